//! Export of a model with mixtures of experts. Its graph is not the file's, so it is written from the program.

use super::weights::write_tensors;
use super::{Exported, FileTensors, reserved_name};
use crate::compilation::{Compilation, Source};
use checkpoint::TensorRow;
use ir::{Diagnostic, Module, StepOutput};
use onnx::program::{self, Form, Header, ProgramError};
use passes::rewriting::dead::remove_dead;
use passes::{dropout, moe};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::Path;

/// Writes `model.onnx`, in inference form, and `model.safetensors`. Tensors of the file keep their names there; the tensors of routers and
/// experts have the names of their states.
///
/// # Errors
/// An operator without a form in ONNX; files that cannot be written.
pub(super) fn export(
    source: &Source,
    compilation: &Compilation,
    mixture: &Module,
    tensors: &FileTensors,
    folder: &Path,
) -> Result<Exported, Vec<Diagnostic>> {
    let [model, weights] = ["model.onnx", "model.safetensors"].map(|name| folder.join(name));
    let module = inference(mixture).map_err(|error| vec![error])?;
    program::write(&module, &Header::of(&source.model), tensors, Form::Inference, &model).map_err(told)?;
    let types: BTreeMap<&str, &ir::Type> =
        compilation.reports.parameters.iter().map(|report| (report.data.as_str(), &report.ty)).collect();
    let rows = tensors.keys().filter_map(|name| {
        let ty = types.get(name.as_str())?;
        Some(TensorRow { name: name.clone(), dtype: ty.dtype, dims: ty.sizes()? })
    });
    write_tensors(&weights, rows.collect(), &[], |name| Cow::Borrowed(&tensors[name][..]))?;
    Ok(Exported { model, training_form: None, weights, tensors: tensors.len(), absent: vec![], draws: 0 })
}

/// Refuses, before a run, a model whose result [`export`] could not write.
pub(super) fn check(
    source: &Source,
    compilation: &Compilation,
    mixture: &Module,
) -> Result<(), Vec<Diagnostic>> {
    let module = inference(mixture).map_err(|error| vec![error])?;
    let header = Header::of(&source.model);
    // The weights may be missing before the run: `--init` and `--weights` provide them.
    let written =
        program::model(&module, &header, &BTreeMap::new(), Form::Inference, program::Absent::AsInputs);
    let problems: Vec<Diagnostic> =
        written.err().into_iter().chain(reserved_name(source, compilation)).collect();
    if problems.is_empty() { Ok(()) } else { Err(problems) }
}

/// The model without the scalars that training reports, and without random numbers.
fn inference(mixture: &Module) -> Result<Module, Diagnostic> {
    let mut module = mixture.clone();
    module.outputs.retain(|output| !StepOutput::reserves(&output.name));
    module.states.values_mut().for_each(|state| state.output = None);
    dropout::remove(&mut module)?;
    remove_dead(&mut module, <moe::Moe as passes::Transform>::NAME);
    Ok(module)
}

fn told(error: ProgramError) -> Vec<Diagnostic> {
    match error {
        ProgramError::Program(problem) => vec![problem],
        ProgramError::File(error) => super::told(error),
    }
}
