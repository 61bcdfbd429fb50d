//! Sizes of a run: what the dims of a model are bound to, and how many microbatches make a step.
//!
//! The batch of the program is that of all data ranks: so many samples each (`--microbatch`), times the ranks.

use crate::config::Shapes;
use ir::{Diagnostic, Module};
use onnx::{Dim, Model, Value};
use passes::bind::BATCH;
use std::collections::{BTreeMap, BTreeSet};

/// The sizes of all dims that the flags bind: `--bind`, `--microbatch` (the batch, under whatever name the file has for
/// it) and `--seq`. Without either, each of the data ranks takes the file's batch. Errors: flags that contradict each
/// other or the file; a batch that the data ranks cannot share.
pub fn bindings(
    model: &Model,
    shapes: &Shapes,
    data_ranks: u64,
) -> Result<BTreeMap<String, u64>, Diagnostic> {
    let mut sizes = shapes.bindings();
    let in_file = dim_of_tokens(model, 0);
    let batch = match in_file {
        Some(Dim::Named(name)) => name.clone(),
        _ => BATCH.to_string(),
    };
    match (shapes.microbatch, sizes.get(&batch), in_file) {
        (Some(microbatch), ..) => {
            let flag = format!("--microbatch {microbatch}{}", on_ranks(data_ranks));
            bind(&mut sizes, batch, microbatch * data_ranks, &flag)?;
        }
        (None, Some(&size), _) if size % data_ranks != 0 => {
            return Err(cannot_share(&batch, size, data_ranks));
        }
        (None, None, Some(Dim::Known(size))) if data_ranks > 1 => {
            sizes.insert(batch, *size as u64 * data_ranks);
        }
        _ => {}
    }
    if let Some(seq) = shapes.seq {
        match dim_of_tokens(model, 1) {
            Some(Dim::Named(name)) => bind(&mut sizes, name.clone(), seq, &format!("--seq {seq}"))?,
            Some(Dim::Known(size)) if *size as u64 == seq => {}
            Some(Dim::Known(size)) => {
                return Err(Diagnostic::new(format!(
                    "--seq {seq}: the model was exported for sequences of {size}"
                ))
                .note("export the model with a dynamic sequence, or remove --seq"));
            }
            _ => return Err(Diagnostic::new(format!("--seq {seq}: the model has no sequence dim"))),
        }
    }
    Ok(sizes)
}

/// The names of dims of a model's inputs, as the import names them.
pub fn dim_names(model: &Model) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for (input, dims) in inputs(model).filter_map(|input| Some((input, input.ty.tensor()?.dims.as_ref()?))) {
        for (i, dim) in dims.iter().enumerate() {
            match dim {
                Dim::Known(_) => {}
                Dim::Named(name) => drop(names.insert(name.clone())),
                Dim::Unknown if i == 0 => drop(names.insert(BATCH.to_string())),
                Dim::Unknown => drop(names.insert(format!("{}_dim_{i}", input.name))),
            }
        }
    }
    names
}

/// Refuses a model with dims that no flag binds, and names the flags that would.
pub fn require_bound(model: &Model, bindings: &BTreeMap<String, u64>) -> Result<(), Diagnostic> {
    let unbound: Vec<String> =
        dim_names(model).into_iter().filter(|name| !bindings.contains_key(name)).collect();
    if unbound.is_empty() {
        return Ok(());
    }
    let quoted: Vec<String> = unbound.iter().map(|name| format!("`{name}`")).collect();
    let sizes: Vec<String> = unbound.iter().map(|name| format!("{name}=SIZE")).collect();
    let dims = if unbound.len() == 1 { "a dim without a size" } else { "dims without a size" };
    let error = Diagnostic::new(format!("the model's inputs have {dims}: {}", quoted.join(", ")))
        .note(format!("give each dim a size: --bind {}", sizes.join(",")));
    let error = match onnx::cache_hint(&model.graph) {
        Some(hint) => error.note(hint),
        None => error,
    };
    let batch = match dim_of_tokens(model, 0) {
        Some(Dim::Named(name)) => Some(name.as_str()),
        Some(Dim::Unknown) => Some(BATCH),
        _ => None,
    };
    let seq = match dim_of_tokens(model, 1) {
        Some(Dim::Named(name)) => Some(name.as_str()),
        _ => None,
    };
    let short = [(batch, "--microbatch SIZE"), (seq, "--seq SIZE")].into_iter();
    let short = short.filter_map(|(name, flag)| {
        let name = name.filter(|name| unbound.iter().any(|unbound| unbound == name))?;
        Some(format!("{flag} for `{name}`"))
    });
    let short: Vec<String> = short.collect();
    Err(if short.is_empty() { error } else { error.note(format!("or {}", short.join(", "))) })
}

/// The inputs that a user gives: old files list their tensors among them.
pub fn inputs(model: &Model) -> impl Iterator<Item = &Value> {
    let stored: BTreeSet<&str> = model.graph.tensors.iter().map(|tensor| tensor.name.as_str()).collect();
    model.graph.inputs.iter().filter(move |input| !stored.contains(input.name.as_str()))
}

/// The sizes that the passes see to: those that are not of a dim with a name, which the import has bound. `batch` is left
/// if the model has no dim of that name, and stands for the batch that its exporter wrote in.
pub fn left_to_passes(model: &Model, mut sizes: BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    let bound = dim_names(model);
    sizes.retain(|name, _| !bound.contains(name));
    sizes
}

/// The same sizes with a batch of `to` in place of `from`: for each name that an input's dim 0 has, and for [`BATCH`] where
/// the batch has no name.
pub fn with_batch(model: &Model, sizes: &BTreeMap<String, u64>, from: u64, to: u64) -> BTreeMap<String, u64> {
    let mut sizes = sizes.clone();
    let firsts = inputs(model).filter_map(|input| input.ty.tensor()?.dims.as_ref()?.first());
    let named: BTreeSet<&String> = firsts
        .filter_map(|dim| match dim {
            Dim::Named(name) => Some(name),
            _ => None,
        })
        .filter(|name| sizes.get(*name) == Some(&from))
        .collect();
    if named.is_empty() {
        sizes.insert(BATCH.to_string(), to);
    }
    sizes.extend(named.into_iter().map(|name| (name.clone(), to)));
    sizes
}

/// ` on 4 data ranks`, or nothing for one.
fn on_ranks(data_ranks: u64) -> String {
    if data_ranks == 1 { String::new() } else { format!(" on {data_ranks} data ranks") }
}

/// A dim of the first input that has it.
fn dim_of_tokens(model: &Model, dim: usize) -> Option<&Dim> {
    let mut inputs = model.graph.inputs.iter().filter_map(|input| input.ty.tensor()?.dims.as_ref());
    inputs.find_map(|dims| dims.get(dim))
}

fn bind(sizes: &mut BTreeMap<String, u64>, name: String, size: u64, flag: &str) -> Result<(), Diagnostic> {
    match sizes.insert(name.clone(), size) {
        Some(other) if other != size => {
            Err(Diagnostic::new(format!("{flag} contradicts --bind {name}={other}"))
                .note("give only one of these flags"))
        }
        _ => Ok(()),
    }
}

fn cannot_share(batch: &str, size: u64, data_ranks: u64) -> Diagnostic {
    let near = multiples(size, data_ranks).into_iter().map(|size| format!("--bind {batch}={size}"));
    let near = near.collect::<Vec<_>>();
    Diagnostic::new(format!("{data_ranks} data ranks cannot share a batch of {size} (--bind {batch}={size})"))
        .note(format!("the nearest batches that they can share: {}", near.join(" or ")))
}

/// The multiples of `of` on both sides of a number that is none; never 0.
fn multiples(number: u64, of: u64) -> Vec<u64> {
    let below = number - number % of;
    [below, below + of].into_iter().filter(|&multiple| multiple > 0).collect()
}

/// The divisors of a number on both sides of one that is none.
fn divisors(of: u64, near: u64) -> Vec<u64> {
    let below = (1..near.min(of + 1)).rev().find(|divisor| of.is_multiple_of(*divisor));
    let above = (near..=of).find(|divisor| of.is_multiple_of(*divisor));
    below.into_iter().chain(above).collect()
}

/// The size of dim 0 of the batched inputs. `None` if no input is batched.
pub fn batch(module: &Module) -> Option<u64> {
    let input = module.inputs.iter().find(|input| input.batched)?;
    module.ty(input.value).dims.first()?.size()
}

/// The number of microbatches in a step: the global batch over the batch of the program, which the data ranks share.
/// Errors: one that does not divide.
pub fn microbatches(module: &Module, global_batch: Option<u64>, data_ranks: u64) -> Result<u64, Diagnostic> {
    match (global_batch, batch(module)) {
        (Some(global), Some(batch)) if global % batch == 0 => Ok(global / batch),
        (Some(global), Some(batch)) => Err(no_whole_number(global, batch / data_ranks, data_ranks)),
        _ => Ok(1),
    }
}

/// The error for a global batch that is no whole number of microbatches of so many samples on each data rank.
pub fn no_whole_number(global: u64, microbatch: u64, data_ranks: u64) -> Diagnostic {
    let numbers = |numbers: Vec<u64>| numbers.iter().map(u64::to_string).collect::<Vec<_>>().join(" or ");
    let ranks = on_ranks(data_ranks);
    let error = Diagnostic::new(format!(
        "the global batch {global} is not a multiple of the microbatch {microbatch}{ranks}"
    ));
    let near = numbers(multiples(global, (microbatch * data_ranks).max(1)));
    let error = error.note(format!("the nearest multiples: --global-batch {near}"));
    match global % data_ranks {
        0 => error.note(format!("or --microbatch {}", numbers(divisors(global / data_ranks, microbatch)))),
        _ => error,
    }
}
