//! ONNX files. The target `model` changes their bytes, and lowers the models; `onnx` changes their fields, and trains the models for a
//! step.

use bytes::Bytes;
use checkpoint::{StateBytes, initial_states};
use cpu::ranks::on_processor;
use data::{DataSource, Loader, LoaderOptions};
use ir::interp::Missing;
use ir::{Module, Operator, verify};
use onnx::{Dim, Model};
use passes::Manager;
use passes::bind::Bind;
use program::Program;
use program::device::ProgramId;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use trainyard::compilation::{Compilation, Source};
use trainyard::failure::Failure;
use trainyard::feed;
use trainyard::pipeline::CompilationPlan;
use trainyard::training::Programs;

/// The size of every dim with a name.
const SIZE: u64 = 2;

/// The last stage that a file reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reached {
    /// The model or its compilation is refused.
    Refused,
    /// The step was lowered, but not run, because it takes too much time or memory for a fuzzer.
    TooLarge,
    /// The model was trained for a step.
    Trained,
}

/// An ONNX file without external data: loaded, imported, compiled with the flags' defaults, and lowered.
pub(super) fn model(bytes: &[u8]) {
    let Some(compilation) = compile(bytes) else { return };
    for target in [cpu::TARGET, cuda::TARGET] {
        drop(Programs::lower(&compilation, 1, target));
    }
}

/// As `model`, and the step is run too.
pub(super) fn onnx(bytes: &[u8]) {
    train(bytes);
}

/// Compiles a file and runs one step of it, and one evaluation, on the processor with made-up data.
pub fn train(bytes: &[u8]) -> Reached {
    let Some(compilation) = compile(bytes) else { return Reached::Refused };
    drop(Programs::lower(&compilation, 1, cuda::TARGET));
    let Ok(programs) = Programs::lower(&compilation, 1, cpu::TARGET) else { return Reached::Refused };
    if is_too_large(&programs, &compilation.training) {
        return Reached::TooLarge;
    }
    step(&compilation, &programs).map_or(Reached::Refused, |()| Reached::Trained)
}

fn compile(bytes: &[u8]) -> Option<Compilation> {
    let model = Model::from_bytes(Bytes::copy_from_slice(bytes), None).ok()?;
    let sizes: BTreeMap<String, u64> = symbols(&model).into_iter().map(|name| (name, SIZE)).collect();
    let source = Source::import(Path::new("fuzzed.onnx"), model, &sizes).ok()?;
    if let Err(faults) = verify::verify(&source.imported.module) {
        panic!("the import made a program that is not valid: {faults:?}");
    }
    let plan = CompilationPlan { bind: Bind { sizes }, ..CompilationPlan::default() };
    match source.compile(&plan, &Manager::default(), |_, _, _| {}) {
        Ok(compilation) => Some(compilation),
        Err(Failure::User(_)) => None,
        Err(Failure::Fault(fault)) => panic!("{fault:?}"),
    }
}

/// The names of the dims of a model's inputs.
fn symbols(model: &Model) -> BTreeSet<String> {
    let types = model.graph.inputs.iter().filter_map(|input| input.ty.tensor()?.dims.as_ref());
    let named = types.flatten().filter_map(|dim| match dim {
        Dim::Named(name) => Some(name.clone()),
        _ => None,
    });
    named.collect()
}

/// The most bytes that the programs of a step may take.
const MEMORY: u64 = 64 << 20;
/// The most operations, and bytes read and written, of a step: about a second in a build without optimization.
const WORK: u64 = 100_000_000;

fn is_too_large(programs: &Programs, training: &Module) -> bool {
    let work = training.nodes().map(|(_, node)| {
        let cost = node.op.cost(&training.signature(node));
        cost.flops.saturating_add(cost.read).saturating_add(cost.written)
    });
    programs.peak() > MEMORY || work.fold(0, u64::saturating_add) > WORK
}

/// Runs a step and an evaluation. `None` if the data cannot be made up, or the values of states are missing.
///
/// # Panics
/// If the device refuses a program that was lowered for it, or a batch that the loader made for that program.
fn step(compilation: &Compilation, programs: &Programs) -> Option<()> {
    let spec = feed::model_spec(&compilation.forward).ok()?;
    let loader = Loader::new(&spec, &DataSource::Synthetic, &LoaderOptions::default()).ok()?;
    let batch = loader.global_batch(0);
    let mut states = initial_states(&compilation.training, 0, Missing::Draw, StateBytes::new()).ok()?;
    let mut ranks = on_processor(programs.all(), Some(1), None, None).expect("the program fits the device");
    let state_names = programs.training.first().states.iter().map(|state| &state.name).enumerate();
    for (index, name) in state_names {
        let value = states.remove(name).unwrap_or_else(|| panic!("state `{name}` has no value"));
        ranks.write_state(ProgramId(0), index, &value).expect("the state has the program's size");
    }
    let inputs = |program: &Program| -> Vec<Vec<u8>> {
        let bytes = program.inputs.iter().map(|input| match batch.tensors.get(&input.name) {
            Some(tensor) => tensor.bytes.clone(),
            None => panic!("the loader does not feed the input `{}`", input.name),
        });
        bytes.collect()
    };
    let mut run = |id: usize, program: &Program| {
        let outputs = ranks.step(ProgramId(id), &[inputs(program)]);
        outputs.unwrap_or_else(|error| panic!("the program cannot be run: {error}"));
    };
    run(0, programs.training.first());
    run(1, programs.evaluation.first());
    Some(())
}
