//! Sizes of a run: what the dims of a model are bound to, and how many microbatches make a step.

use crate::config::Shapes;
use ir::{Diagnostic, Module};
use onnx::{Dim, Model};
use passes::bind::BATCH;
use std::collections::BTreeMap;

/// The sizes of all dims that the flags bind: `--bind`, `--microbatch` (the batch, under whatever name the file has for
/// it) and `--seq`. Errors: flags that contradict each other or the file.
pub fn bindings(
    model: &Model,
    shapes: &Shapes,
    seq: Option<u64>,
) -> Result<BTreeMap<String, u64>, Diagnostic> {
    let mut sizes = shapes.bindings();
    if let Some(microbatch) = shapes.microbatch {
        let name = match dim_of_tokens(model, 0) {
            Some(Dim::Named(name)) => name.clone(),
            _ => BATCH.to_string(),
        };
        bind(&mut sizes, name, microbatch, "--microbatch")?;
    }
    if let Some(seq) = seq {
        match dim_of_tokens(model, 1) {
            Some(Dim::Named(name)) => bind(&mut sizes, name.clone(), seq, "--seq")?,
            Some(Dim::Known(size)) if *size as u64 == seq => {}
            Some(Dim::Known(size)) => {
                return Err(Diagnostic::new(format!(
                    "--seq {seq}: the model was exported for sequences of {size}"
                ))
                .note("export it with a dynamic sequence, or leave --seq away"));
            }
            _ => return Err(Diagnostic::new(format!("--seq {seq}: the model has no sequence dim"))),
        }
    }
    Ok(sizes)
}

/// A dim of the first input that has it.
fn dim_of_tokens(model: &Model, dim: usize) -> Option<&Dim> {
    let mut inputs = model.graph.inputs.iter().filter_map(|input| input.ty.tensor()?.dims.as_ref());
    inputs.find_map(|dims| dims.get(dim))
}

fn bind(sizes: &mut BTreeMap<String, u64>, name: String, size: u64, flag: &str) -> Result<(), Diagnostic> {
    match sizes.insert(name.clone(), size) {
        Some(other) if other != size => {
            Err(Diagnostic::new(format!("{flag} {size} contradicts --bind {name}={other}"))
                .note("give one of the two"))
        }
        _ => Ok(()),
    }
}

/// The number of microbatches in a step: the global batch over the batch of the program. Errors: one that does not
/// divide.
pub fn microbatches(module: &Module, global_batch: Option<u64>) -> Result<u64, Diagnostic> {
    let batched = module.inputs.iter().find(|input| input.batched);
    let batch = batched.and_then(|input| module.ty(input.value).dims.first()?.size());
    match (global_batch, batch) {
        (Some(global), Some(batch)) if global % batch == 0 => Ok(global / batch),
        (Some(global), Some(batch)) => {
            let nearest = (global / batch).max(1) * batch;
            Err(Diagnostic::new(format!(
                "--global-batch {global} is not a multiple of the microbatch {batch}"
            ))
            .note(format!("--global-batch {nearest} is, or choose another --microbatch")))
        }
        _ => Ok(1),
    }
}
