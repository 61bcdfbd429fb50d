//! Bind: fixes symbolic dims, and changes the batch of a program that was exported for a fixed batch.
//!
//! The batch is followed from dim 0 of the batched inputs through every node's factors. Every dim that carries the batch is rescaled.
//! Constants that an exporter repeated over the batch shrink to one sample, and a broadcast stretches them again. They shrink also when
//! the batch stays, so that a trained tensor does not depend on the number of the sample. A sum over samples that is divided by their
//! number becomes a mean. A model of half weights becomes a model that computes in f32, and trains its weights in f32.
//! Invariants: after it all dims are bound; each sample is computed as it was before.

mod counts;
mod means;
mod places;
mod rebuild;
mod samples;
mod trace;

use crate::arguments::{Arguments, Options};
use crate::fold;
use crate::pass::{PassContext, Transform};
use crate::rewriting::dead::remove_dead;
use crate::rewriting::local;
use ir::{Changed, Diagnostic, Level, Module, Type};
use std::collections::{BTreeMap, BTreeSet};

pub use places::where_places_count;
pub use trace::{Carry, Decision, Samples, decide, find_samples, where_samples_meet};
pub(crate) use trace::{SUMS_OVER_BATCH, batch};

/// The pass, with sizes by name. `batch` is also the name of the batch of a program without symbols. Names without a meaning here are
/// ignored: an import binds symbols itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bind {
    /// Sizes of symbols, and of the batch.
    pub sizes: BTreeMap<String, u64>,
}

/// The name of the batch, whether the exporter wrote it as a symbol or as a number.
pub const BATCH: &str = "batch";

impl Transform for Bind {
    const NAME: &'static str = "bind";
    const NEEDED: bool = true;

    fn options(&mut self, options: &mut Options) {
        let read = |arguments: &mut Arguments| {
            let size = |(name, size): (String, String)| {
                let number = size.parse().ok().filter(|&size| size > 0 && !name.is_empty());
                Ok::<_, String>((
                    name,
                    number.ok_or_else(|| format!("`{size}` is not a size; write {BATCH}=8"))?,
                ))
            };
            arguments.take_rest().into_iter().map(size).collect()
        };
        options.custom(&mut self.sizes, read, |sizes, arguments| {
            sizes.iter().for_each(|(name, size)| arguments.push(name, size));
        });
    }

    fn run(&self, module: &mut Module, cx: &mut PassContext) -> Result<Changed, Diagnostic> {
        if module.level != Level::Imported {
            return Err(Diagnostic::new("the dims must be bound before the program is differentiated"));
        }
        // Constants become exact before anything is computed from them.
        let sharpened = fold::sharpen(module)?;
        let widened = rebuild::widen(module)?;
        let symbols = symbols(module);
        let bound = self.bind_symbols(module, &symbols)?;
        cx.exported_batch = batch(module).ok().flatten();
        let wanted = self.sizes.get(BATCH).copied().filter(|_| !symbols.contains(BATCH));
        // The batch of the program itself is no change.
        let wanted = wanted.filter(|&size| !matches!(batch(module), Ok(Some(from)) if from == size));
        let gathered = samples::run(module)?;
        let means = means::run(module)?;
        if means == Changed::Yes {
            remove_dead(module, Self::NAME);
        }
        let rescaled = match decide(module, wanted) {
            Ok(Some(decision)) => {
                let counts = counts::decide(module, &decision.carries, decision.from, decision.to);
                let sums = decision.sums.iter().filter(|(node, _)| !counts.settled.contains(node));
                sums.map(|(_, warning)| warning).chain(&counts.warnings).for_each(|it| cx.warn(it.clone()));
                counts::apply(module, &counts)?;
                cx.repeated = trace::repeated(module, &decision);
                rebuild::rescale(module, &decision)?;
                local::run(module, Self::NAME)?;
                remove_dead(module, Self::NAME);
                Changed::Yes
            }
            Ok(None) => Changed::No,
            // If nobody asked for another batch, a batch that cannot be followed stays.
            Err(_) if wanted.is_none() => Changed::No,
            Err(error) => return Err(error),
        };
        Ok(sharpened.or(widened).or(bound).or(gathered).or(means).or(rescaled))
    }
}

impl Bind {
    fn bind_symbols(&self, module: &mut Module, symbols: &BTreeSet<String>) -> Result<Changed, Diagnostic> {
        if symbols.is_empty() {
            return Ok(Changed::No);
        }
        let free: Vec<&String> = symbols.iter().filter(|symbol| !self.sizes.contains_key(*symbol)).collect();
        if let Some(first) = free.first() {
            let names: Vec<String> = free.iter().map(|symbol| format!("`{symbol}`")).collect();
            let error = Diagnostic::new(format!("dims have no size yet: {}", names.join(", ")));
            return Err(error.note(format!("bind each dim, such as --bind {first}=8")));
        }
        let too_large = |ty: &Type| Diagnostic::new(format!("{ty} is too large with the given sizes"));
        rebuild::retype(module, |ty| {
            let dims = ty.dims.iter().map(|dim| dim.bind(&self.sizes)).collect::<Option<Vec<_>>>();
            let bound = dims.map(|dims| Type::new(ty.dtype, dims)).filter(|ty| ty.bytes().is_some());
            bound.ok_or_else(|| too_large(ty))
        })?;
        Ok(Changed::Yes)
    }
}

/// Returns the symbols in the sizes of all dims.
fn symbols(module: &Module) -> BTreeSet<String> {
    let inputs = module.inputs.iter().map(|input| input.value);
    let results = module.nodes().flat_map(|(_, node)| node.results.iter().copied());
    let types = inputs.chain(results).map(|value| module.ty(value));
    let symbols = types.flat_map(|ty| ty.dims.iter()).flat_map(|dim| dim.symbols().iter());
    symbols.map(|symbol| symbol.to_string()).collect()
}
