//! The sizes of a run: those of the dims of a model, and the number of microbatches in a step.
//!
//! The batch of the program is that of all data ranks: the samples of each rank (`--microbatch`), times the number of ranks.

use ir::{Diagnostic, Module};
use onnx::{Dim, Model, Value};
use passes::bind::BATCH;
use std::collections::{BTreeMap, BTreeSet};

/// Returns the sizes of all dims that the flags bind. `sizes` are those of `--bind`. `--microbatch` binds the batch, under the name that the
/// file has for it, and `--seq` the sequence. Without a size of the batch, each of the data ranks takes the file's batch.
///
/// # Errors
/// Flags that contradict each other or the file; a batch that the data ranks cannot share.
pub fn bindings(
    model: &Model,
    mut sizes: BTreeMap<String, u64>,
    (microbatch, seq): (Option<u64>, Option<u64>),
    data_ranks: u64,
) -> Result<BTreeMap<String, u64>, Diagnostic> {
    let in_file = dim_of_tokens(model, 0);
    let batch = in_file.and_then(name_of_first).unwrap_or(BATCH).to_owned();
    match (microbatch, sizes.get(&batch), in_file) {
        (Some(microbatch), ..) => {
            let flag = format!("--microbatch {microbatch}{}", on_ranks(data_ranks));
            bind(&mut sizes, batch, microbatch * data_ranks, &flag)?;
        }
        (None, Some(&size), _) if size % data_ranks != 0 => {
            let near = multiples(size, data_ranks).into_iter().map(|size| format!("--bind {batch}={size}"));
            let near = near.collect::<Vec<_>>().join(" or ");
            let message =
                format!("{data_ranks} data ranks cannot share a batch of {size} (--bind {batch}={size})");
            return Err(
                Diagnostic::new(message).note(format!("the nearest batches that they can share: {near}"))
            );
        }
        (None, None, Some(Dim::Known(size))) if data_ranks > 1 => {
            sizes.insert(batch, *size as u64 * data_ranks);
        }
        _ => {}
    }
    if let Some(seq) = seq {
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

/// Returns the names of the dims of a model's inputs, as the import names them.
pub fn dim_names(model: &Model) -> BTreeSet<String> {
    let dims = inputs(model).filter_map(|input| Some((&input.name, input.ty.tensor()?.dims.as_ref()?)));
    let dims = dims.flat_map(|(input, dims)| dims.iter().enumerate().map(move |(i, dim)| (input, i, dim)));
    let names = dims.filter_map(|(input, i, dim)| match dim {
        Dim::Unknown if i > 0 => Some(format!("{input}_dim_{i}")),
        dim => name_of_first(dim).map(str::to_owned),
    });
    names.collect()
}

/// Returns the name of the first dim of an input, as the import names it. `None` if the file has its size.
pub fn name_of_first(dim: &Dim) -> Option<&str> {
    match dim {
        Dim::Named(name) => Some(name),
        Dim::Unknown => Some(BATCH),
        Dim::Known(_) => None,
    }
}

/// Returns the names of dims of a model's inputs that have no size.
pub fn unbound(model: &Model, sizes: &BTreeMap<String, u64>) -> Vec<String> {
    dim_names(model).into_iter().filter(|name| !sizes.contains_key(name)).collect()
}

/// Refuses a model with dims that no flag binds, and names the flags that would.
pub fn require_bound(model: &Model, bindings: &BTreeMap<String, u64>) -> Result<(), Diagnostic> {
    let unbound = unbound(model, bindings);
    if unbound.is_empty() {
        return Ok(());
    }
    let quoted: Vec<String> = unbound.iter().map(|name| format!("`{name}`")).collect();
    let sizes: Vec<String> = unbound.iter().map(|name| format!("{name}=SIZE")).collect();
    let dims = if unbound.len() == 1 { "a dim without a size" } else { "dims without a size" };
    let error = Diagnostic::new(format!("the model's inputs have {dims}: {}", quoted.join(", ")))
        .note(format!("give each dim a size: --bind {}", sizes.join(",")));
    let error = onnx::cache_hint(&model.graph).into_iter().fold(error, Diagnostic::note);
    let batch = dim_of_tokens(model, 0).and_then(name_of_first);
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

/// Returns the inputs that a user gives. Old files also list their tensors as inputs.
pub fn inputs(model: &Model) -> impl Iterator<Item = &Value> {
    let stored: BTreeSet<&str> = model.graph.tensors.iter().map(|tensor| tensor.name.as_str()).collect();
    model.graph.inputs.iter().filter(move |input| !stored.contains(input.name.as_str()))
}

/// Returns the sizes that the passes bind: those of names that no dim of the model has. The import binds the others. `batch` is left to the
/// passes if the model has no dim of that name. Then it means the batch that the exporter wrote into the file.
pub fn left_to_passes(model: &Model, mut sizes: BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    let bound = dim_names(model);
    sizes.retain(|name, _| !bound.contains(name));
    sizes
}

/// Returns the sizes with a batch of `to` in place of `from`. They change for each name of a dim 0 of an input that has the size `from`, or for
/// [`BATCH`] if there is no such name.
pub fn with_batch(model: &Model, sizes: &BTreeMap<String, u64>, from: u64, to: u64) -> BTreeMap<String, u64> {
    let mut sizes = sizes.clone();
    let firsts = inputs(model).filter_map(|input| input.ty.tensor()?.dims.as_ref()?.first());
    let named = firsts.filter(|dim| matches!(dim, Dim::Named(_))).filter_map(name_of_first);
    let named: BTreeSet<&str> = named.filter(|name| sizes.get(*name) == Some(&from)).collect();
    if named.is_empty() {
        sizes.insert(BATCH.to_string(), to);
    }
    sizes.extend(named.into_iter().map(|name| (name.to_owned(), to)));
    sizes
}

/// ` on 4 data ranks`, or nothing for one.
fn on_ranks(data_ranks: u64) -> String {
    if data_ranks == 1 { String::new() } else { format!(" on {data_ranks} data ranks") }
}

/// Returns a dim of the first input that has so many dims.
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

/// Returns the nearest multiples of `of` below and above a number that is not a multiple, without 0.
fn multiples(number: u64, of: u64) -> Vec<u64> {
    let below = number - number % of;
    [below, below + of].into_iter().filter(|&multiple| multiple > 0).collect()
}

/// Returns the divisors of a number that are nearest to `near`, which is not a divisor, below and above it.
fn divisors(of: u64, near: u64) -> Vec<u64> {
    let below = (1..near.min(of + 1)).rev().find(|divisor| of.is_multiple_of(*divisor));
    let above = (near..=of).find(|divisor| of.is_multiple_of(*divisor));
    below.into_iter().chain(above).collect()
}

/// Returns the size of dim 0 of the batched inputs. `None` if no input is batched.
pub fn batch(module: &Module) -> Option<u64> {
    let input = module.inputs.iter().find(|input| input.batched)?;
    module.ty(input.value).dims.first()?.size()
}

/// Returns the number of microbatches in a step: the global batch, divided by the batch of the program, which the data ranks share.
///
/// # Errors
/// A global batch that is not a multiple of the program's batch.
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
