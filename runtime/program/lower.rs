//! Lowering: turns a module into the program that a device runs. With several devices, each runs the same program on its parts of the
//! tensors.
//!
//! The module is lowered as it is, with all its outputs; [`Backend::rewrites`](crate::backend::Backend::rewrites) names the passes that make it ready for a target. Nodes on
//! which nothing depends are left out. The steps know the device only as a `backend::Backend`. In their order:
//!
//! - `fuse` groups elementwise nodes into chains, and `epilogue` folds the operators after a multiplication into it.
//! - `early` moves updates into backward, if they are to run there.
//! - `draft` writes instructions over buffers without addresses. Views cost nothing; kernels read and write the layouts of their contracts.
//!   `parts` are written at their place in a whole, `matrices` are copied for multiplications, `pad` keeps rows of logits aligned,
//!   `constants` makes the bytes that never change, `ranks` has the exchanges of devices, `stages` the work of pipeline ranks, and `sums`
//!   the sums over microbatches.
//! - `commit` brings new state values into the states' own buffers.
//! - `renew` makes optimizers write the casts of the weights that the next step reads.
//! - `overlap` orders exchanges between devices so that they run beside computation.
//! - `tiers` chooses the memory of each buffer, `values` lists the values in them, and `lives` has their live ranges.
//! - `place` lets results overwrite dying buffers, plans the arena, and fixes every address.
//! - `classes` counts the memory by its classes.

mod classes;
mod commit;
mod constants;
mod draft;
mod early;
mod epilogue;
mod fuse;
mod lives;
mod matrices;
mod overlap;
mod pad;
mod parts;
mod place;
#[cfg(test)]
mod plain;
mod ranks;
mod renew;
mod stages;
mod sums;
mod tiers;
mod values;

use crate::Multiprocessors;
use crate::Target;
use crate::{Microbatches, Program, Section, UpdateTime};
use cranelift_entity::SecondaryMap;
use draft::Drafts;
use early::Early;
use fuse::Item;
use ir::analysis::{Readers, live_nodes};
use ir::timetable::ChunkPhase;
use ir::{Diagnostic, Module, NodeId};
use stages::RankStages;

/// The options of lowering.
#[derive(Clone, Copy, Debug)]
pub struct LowerOptions<'a> {
    /// The number of microbatches that a step may have.
    pub microbatches: Microbatches,
    /// The time at which updates run.
    pub update: UpdateTime,
    /// A program whose states this one shares. States of the same name lie at the same place, so that one device can run both programs in
    /// turns (evaluation between the steps of training).
    pub states_of: Option<&'a Program>,
    /// Whether elementwise nodes stay single instructions.
    pub unfused: bool,
    /// Whether multiplications have no epilogues, even if the target supports them.
    pub without_epilogues: bool,
    /// The kind of device.
    pub target: Target,
    /// The size of the GPU, if the program is for a GPU.
    pub multiprocessors: Multiprocessors,
}

impl LowerOptions<'_> {
    /// The defaults for a target.
    pub fn of(target: Target) -> Self {
        Self {
            microbatches: Microbatches::default(),
            update: UpdateTime::default(),
            states_of: None,
            unfused: false,
            without_epilogues: false,
            target,
            multiprocessors: Multiprocessors::default(),
        }
    }
}

/// Lowers a module.
///
/// Errors: unbound dims, constants whose bytes are not loaded, states that `states_of` lacks; a module with several stages.
pub fn lower(module: &Module, options: &LowerOptions) -> Result<Program, Diagnostic> {
    if module.pipeline.is_some() {
        return Err(Diagnostic::new(
            "a program with stages cannot be lowered as one program; `lower_rank` lowers the part of a pipeline rank",
        ));
    }
    let order = match options.update {
        UpdateTime::Late => |_: &Module, items| Early { items, ..Early::default() },
        UpdateTime::Early => early::order,
    };
    lower_in(module, options, None, order)
}

/// Lowers the stages of a pipeline rank. `states_of` is a program of the same rank.
///
/// Errors: those of [`lower`]; a module without stages; early updates.
pub fn lower_rank(module: &Module, rank: u32, options: &LowerOptions) -> Result<Program, Diagnostic> {
    let Some(pipeline) = &module.pipeline else {
        return Err(Diagnostic::new("a program without stages has no pipeline ranks"));
    };
    if options.update == UpdateTime::Early {
        let error = Diagnostic::new("early updates are not possible in a pipeline");
        return Err(
            error.note("a step of a pipeline has several microbatches at once; remove --update early")
        );
    }
    let options = LowerOptions { microbatches: Microbatches::Many, ..*options };
    let stages = RankStages::new(pipeline, rank);
    let order = |_: &Module, items| Early { items, ..Early::default() };
    lower_in(&module.of_pipeline_rank(rank), &options, Some(stages), order)
}

/// Lowers a module as [`lower`] does, with its items in the order that `order` gives.
fn lower_in(
    module: &Module,
    options: &LowerOptions,
    stages: Option<RankStages>,
    order: fn(&Module, Vec<Item>) -> Early,
) -> Result<Program, Diagnostic> {
    check(module)?;
    let backend = options.target;
    let live = stages.as_ref().map_or_else(|| live_nodes(module), |stages| stages::live(module, stages));
    let readers = Readers::new(module, &live);
    let slots = match options.update {
        UpdateTime::Late => SecondaryMap::new(),
        UpdateTime::Early => {
            let nodes: Vec<NodeId> = module.order().iter().copied().filter(|&id| live.contains(id)).collect();
            early::slots_of_nodes(module, &nodes)
        }
    };
    let mut items = fuse::items(module, backend, &live, &readers, options.unfused, &slots);
    if !options.unfused && !options.without_epilogues {
        items = epilogue::items(module, backend, &readers, options.microbatches, items);
    }
    let Early { items, moved } = order(module, items);
    let mut drafts = Drafts::new(module, options, &live, stages)?;
    drafts.moved = moved;
    if backend.pads_rows() {
        drafts.padded = pad::rows(&drafts, &items, &readers);
    }
    for (section, part) in runs(&drafts) {
        let begun = drafts.instructions.len();
        for item in &items {
            let first = item.nodes()[0];
            let own = drafts.stages.as_ref().and_then(|stages| stages.part(module, first));
            if drafts.section(first) == section && own == part {
                drafts.of_item(item)?;
            }
        }
        commit::finish_section(&mut drafts, section, part);
        drafts.instructions[begun..].iter_mut().for_each(|draft| draft.part = part);
    }
    drafts.write_parts_in_place();
    let renewed = renew::weights(&mut drafts);
    place::program(drafts, options, renewed)
}

/// Returns the runs of instructions that are drafted one after the other: the sections and, in a pipeline, the parts of a microbatch.
fn runs(drafts: &Drafts) -> Vec<(Section, Option<ChunkPhase>)> {
    let parts = |section| match (section, &drafts.stages) {
        (Section::Microbatch, Some(stages)) => stages.parts(drafts.module).into_iter().map(Some).collect(),
        _ => vec![None],
    };
    let runs = |(section, _)| parts(section).into_iter().map(move |part| (section, part));
    Section::ALL.into_iter().flat_map(runs).collect()
}

/// Checks the module before any instruction is drafted.
fn check(module: &Module) -> Result<(), Diagnostic> {
    for (_, node) in module.nodes() {
        for &value in node.results.iter().chain(&node.operands) {
            let ty = module.ty(value);
            ranks::part_bytes(&module.mesh, ty, &format!("a value of `{}`", node.op.name()))
                .map_err(|error| error.at(node.origin.to_string()))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
