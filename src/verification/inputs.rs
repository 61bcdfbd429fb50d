//! Random inputs for a model: tokens below the size of its vocabulary, masks that keep at least one token of every sample, and labels of which
//! a different share is ignored in each sample.
//!
//! A number depends on the seed, the name of the input, the sample, and the place in the sample. So a global batch is the same for every size
//! of microbatches.

use super::execute::Tensors;
use crate::{feed, memory};
use data::{InputSpec, LabelSpec};
use ir::interp::bytes_of;
use ir::tensor::Elements;
use ir::{Diagnostic, Module, Tensor, Type, random};

/// Draws the inputs of a step, one map for each microbatch.
///
/// # Errors
/// Dims that are not bound; inputs that do not fit into the memory.
pub fn draw(module: &Module, seed: u64, microbatches: u64) -> Result<Vec<Tensors>, Diagnostic> {
    let spec = feed::model_spec(module)?;
    check_memory(module, microbatches)?;
    let microbatch = |index: u64| {
        let mut tensors: Tensors =
            spec.inputs.iter().map(|input| (input.name.clone(), draw_input(input, seed, index))).collect();
        tensors.extend(
            spec.label.iter().map(|label| (label.name.clone(), draw_labels(module, label, seed, index))),
        );
        tensors
    };
    Ok((0..microbatches).map(microbatch).collect())
}

const REMEDY: &str = "a smaller --global-batch, --microbatch or --bind needs less memory";

/// Refuses inputs that do not fit this machine's memory.
fn check_memory(module: &Module, microbatches: u64) -> Result<(), Diagnostic> {
    let sizes = module.inputs.iter().map(|input| bytes_of(module.ty(input.value)));
    let all = sizes.fold(0, u64::saturating_add).saturating_mul(microbatches);
    let largest = module.inputs.iter().max_by_key(|input| bytes_of(module.ty(input.value)));
    let named = |input: &ir::Input| format!(", of which `{}` is {},", input.name, module.ty(input.value));
    let largest = largest.map(named).unwrap_or_default();
    memory::check_tensors(&format!("the inputs of {microbatches} microbatches{largest} need"), all, REMEDY)
}

/// Divides inputs into another number of microbatches: batched inputs are concatenated and cut again.
///
/// # Errors
/// Sizes that do not divide.
pub fn regroup(module: &Module, given: &[Tensors], microbatches: usize) -> Result<Vec<Tensors>, Diagnostic> {
    let mut regrouped = vec![Tensors::new(); microbatches];
    for input in &module.inputs {
        let missing = || Diagnostic::new(format!("input `{}` is missing", input.name));
        let all = given.iter().map(|tensors| tensors.get(&input.name)).collect::<Option<Vec<_>>>();
        let all = all.filter(|all| !all.is_empty()).ok_or_else(missing)?;
        if !input.batched {
            regrouped.iter_mut().for_each(|tensors| drop(tensors.insert(input.name.clone(), all[0].clone())));
            continue;
        }
        let cut = split(&concatenate(&all), microbatches).ok_or_else(|| {
            let message = format!("input `{}` cannot be cut into {microbatches} microbatches", input.name);
            Diagnostic::new(message)
        })?;
        for (tensors, part) in regrouped.iter_mut().zip(cut) {
            tensors.insert(input.name.clone(), part);
        }
    }
    Ok(regrouped)
}

/// Concatenates tensors with equal inner dims along dim 0.
pub fn concatenate(parts: &[&Tensor]) -> Tensor {
    let mut whole = parts[0].clone();
    for part in &parts[1..] {
        match (&mut whole.elements, &part.elements) {
            (Elements::Float(whole), Elements::Float(part)) => whole.extend(part),
            (Elements::Int(whole), Elements::Int(part)) => whole.extend(part),
            (Elements::Bool(whole), Elements::Bool(part)) => whole.extend(part),
            _ => {}
        }
        if let (Some(size), Some(more)) = (whole.sizes.first_mut(), part.sizes.first()) {
            *size += more;
        }
    }
    whole
}

/// Cuts a tensor into equal parts along dim 0. `None` if its size does not divide.
pub fn split(whole: &Tensor, parts: usize) -> Option<Vec<Tensor>> {
    let rows = *whole.sizes.first()?;
    if parts == 0 || !rows.is_multiple_of(parts) {
        return None;
    }
    let (mut sizes, length) = (whole.sizes.clone(), whole.len() / parts);
    sizes[0] = rows / parts;
    let part = |index: usize| {
        let range = index * length..(index + 1) * length;
        let elements = match &whole.elements {
            Elements::Float(all) => Elements::Float(all[range].to_vec()),
            Elements::Int(all) => Elements::Int(all[range].to_vec()),
            Elements::Bool(all) => Elements::Bool(all[range].to_vec()),
        };
        Tensor { dtype: whole.dtype, sizes: sizes.clone(), elements }
    };
    Some((0..parts).map(part).collect())
}

/// Makes a tensor of numbers. `number` gets the sample, the element within the sample, and the place of the element in the last dim.
fn fill(ty: &Type, first_sample: u64, number: impl Fn(u64, u64, u64) -> f64) -> Tensor {
    let sizes: Vec<usize> = ty.sizes().into_iter().flatten().map(|size| size as usize).collect();
    let width = sizes.last().map_or(1, |&size| size as u64).max(1);
    let per_sample = sizes.iter().skip(1).product::<usize>().max(1) as u64;
    let draw = |index: u64| {
        let (sample, element) = (index / per_sample, index % per_sample);
        number(first_sample + sample, element, element % width)
    };
    let count = sizes.iter().product::<usize>() as u64;
    Tensor::of_numbers(ty.dtype, sizes, (0..count).map(draw)).rounded()
}

fn draw_input(input: &InputSpec, seed: u64, microbatch: u64) -> Tensor {
    let ty = Type::of(input.dtype, &input.dims);
    let batch = input.dims.first().copied().unwrap_or(1);
    let first_sample = if input.batched { microbatch * batch } else { 0 };
    let stream = random::stream(&input.name);
    let is_mask = input.name.to_lowercase().contains("mask");
    // A float mask of more than two dims is added to attention scores, and is drawn like other floats.
    if is_mask && (input.dims.len() <= 2 || !input.dtype.is_float()) {
        // The ends of some samples are padding, but the first token of a sample is never padding.
        let width = input.dims.last().copied().unwrap_or(1);
        return fill(&ty, first_sample, |sample, _, at| {
            let kept = at == 0 || at < width - width * (sample % 4) / 8;
            f64::from(u8::from(kept))
        });
    }
    if input.dtype.is_float() {
        return fill(&ty, first_sample, |sample, element, _| {
            random::normal(seed ^ (sample << 32), stream, element)
        });
    }
    let limit = input.vocabulary.unwrap_or(2).max(1);
    fill(&ty, first_sample, |sample, element, _| (bits(seed, stream, sample, element) % limit) as f64)
}

/// Draws labels. In sample `s`, the share `(s mod 7) / 7` of the labels is ignored. So all labels are ignored only in some samples with one
/// label.
fn draw_labels(module: &Module, label: &LabelSpec, seed: u64, microbatch: u64) -> Tensor {
    let ty = Type::of(label.dtype, &label.dims);
    let batched = module.input(&label.name).is_none_or(|input| input.batched);
    let batch = label.dims.first().copied().unwrap_or(1);
    let first_sample = if batched { microbatch * batch } else { 0 };
    let per_sample = label.dims.iter().skip(1).product::<u64>().max(1);
    let (values, order) = (random::stream(&label.name), random::stream("labels that do not count"));
    let classes = label.classes.unwrap_or(2).max(1);
    let counts = |sample: u64| {
        let mut elements: Vec<u64> = (0..per_sample).collect();
        elements.sort_by_cached_key(|&element| (bits(seed, order, sample, element), element));
        let mut counts = vec![true; elements.len()];
        let ignored = (per_sample * (sample % 7) + 3) / 7;
        elements[..ignored as usize].iter().for_each(|&element| counts[element as usize] = false);
        counts
    };
    let counts: Vec<Vec<bool>> = (first_sample..first_sample + batch).map(counts).collect();
    fill(&ty, first_sample, |sample, element, _| match label.ignore_index {
        Some(ignored) if !counts[(sample - first_sample) as usize][element as usize] => ignored as f64,
        _ => (bits(seed, values, sample, element) % classes) as f64,
    })
}

/// 64 random bits.
fn bits(seed: u64, stream: u64, sample: u64, element: u64) -> u64 {
    let stream = stream ^ sample.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let counter = [element as u32, (element >> 32) as u32, stream as u32, (stream >> 32) as u32];
    let words = random::philox(seed, counter);
    u64::from(words[0]) << 32 | u64::from(words[1])
}
