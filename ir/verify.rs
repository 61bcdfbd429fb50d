//! The verifier: the invariants of programs. Each level has all invariants of the level before, and more.
//!
//! **Imported**, the forward graph (`tables`, `program`, `partial`):
//!
//! 1. Every id is in range: nodes in the order (each once), values, data rows, states, axes.
//! 2. Names are unique: data rows, states, inputs, outputs, axes. An axis has at least one device.
//! 3. Data rows are whole: their dims are bound, they are not sharded, and they have as many bytes as the type.
//! 4. A state's input value has the state's type; its new value has the state's shape. Its data row, through its view, has its
//!    shape. A state copies a state before it in the table with the same dims. A batched input has a dim 0.
//! 5. Every value is defined once, by its `definition`, and before its uses.
//! 6. Phases are in order; below level *training* no node is in `bwd` or `update`.
//! 7. Every node has the operands and results that its operator's `infer` accepts; a constant has its row's type.
//! 8. A sharding has an entry for every dim; no axis occurs twice in a value.
//! 9. A partial value is read only where the operator is linear in it, and is neither an output nor a state.
//!
//! **Training**, the whole step (`training`):
//!
//! 10. All dims are bound, and the bytes of a value fit in 64 bits.
//! 11. `prepare` reads nothing of a microbatch; `fwd` reads nothing of `bwd`, and neither reads anything of `weight`; `update`
//!     reads a value of a microbatch only through `accumulate`, which is in `update` and reads nothing else.
//! 12. A state's new value is defined in `update`; a buffer's and a counter's may be in `fwd`.
//! 13. A program with a node in `bwd` or `update` has an output `loss`. The output is a float scalar. (A program without such
//!     a node is an evaluation.)
//! 14. A copy of a node (`copy` above 0), which computes a value again, is in `bwd` or `weight`. It is not a reduction over
//!     devices, and its results are not new values of states.
//!
//! **Placed** (`placed`):
//!
//! 15. Every split dim divides by the devices that split it.
//! 16. Operands and results of a node are split alike, by the operator's factors; only collectives change a sharding. No axis
//!     splits two factors of a node.
//! 17. A result is partial over exactly the axes of the reduced factors and of the partial operands.
//! 18. A state's new value is sharded as the state.
//!
//! **Lowered** (`lowered`), adapted to the kernels of a target, which cast as they read and write:
//!
//! 19. In place of 7: an operand may be f16 or bf16 where the operator takes f32; the kernel widens it as it reads. A result may
//!     have a float type other than the operator's; the kernel casts to it as it writes. Dims are still inferred.
//!
//! **Stages** (`stages`), of a program with a table of stages, at every level:
//!
//! 20. Nodes and states name a stage of the table, or every stage. A node reads values of its own stage and of every stage; only a
//!     transfer reads a value of one other stage.
//! 21. The new value of a state is computed on the stage of the state.
//! 22. The timetable runs each part of each microbatch once, after everything on which it depends, on the rank of its stage. In an
//!     asynchronous schedule this holds for any number of steps; no forward runs ahead of the update that computes its weights,
//!     and no update waits for the update of an earlier stage.
//!
//! **Tiers** (`tiers`), at every level:
//!
//! 23. A node computes on the device or on the host, and reads values that lie there. Only a `copy` reads a value of another tier.
//!     It must be the tier next to its own, since nothing moves between the device and a file without the host. Collectives and
//!     transfers are on the device.
//! 24. A state's new value lies where the state rests. No output lies in a file.
//!
//! A failure is a bug of the pass that the message names. Values are named as [`crate::text::print`] prints them.

mod partial;
mod placed;
mod program;
mod stages;
mod tables;
mod tiers;
mod training;

use crate::Phase;
use crate::text::{Numbering, type_text};
use crate::{Diagnostic, Level, Module, Node, NodeId, Type, ValueId};

/// Checks a module at its level. The error has every violation found. Groups of invariants are checked in the order of the list
/// above; a later group is checked only if the module satisfies the earlier ones.
pub fn verify(module: &Module) -> Result<(), Vec<Diagnostic>> {
    let faults = tables::ids_out_of_range(module);
    if !faults.is_empty() {
        return Err(faults);
    }
    let mut groups: Vec<fn(&mut Check)> =
        vec![tables::check, program::check, partial::check, stages::check, tiers::check];
    if module.level >= Level::Training {
        groups.push(training::check);
    }
    if module.level >= Level::Placed {
        groups.push(placed::check);
    }
    let mut check = Check { module, names: Numbering::of(module), faults: Vec::new() };
    for group in groups {
        group(&mut check);
        if !check.faults.is_empty() {
            return Err(check.faults);
        }
    }
    Ok(())
}

/// A check in progress.
struct Check<'m> {
    module: &'m Module,
    names: Numbering,
    faults: Vec<Diagnostic>,
}

impl<'m> Check<'m> {
    /// Adds a violation that does not belong to a node.
    fn fault(&mut self, message: impl Into<String>) {
        self.faults.push(Diagnostic::new(message));
    }

    /// Adds a violation of a node, with its line, origin, types and pass.
    fn node_fault(&mut self, id: NodeId, message: impl AsRef<str>) {
        let node = self.module.node(id);
        let list = |ids: &[ValueId]| match ids {
            [] => "nothing".to_string(),
            ids => ids.iter().map(|&id| self.ty(self.module.ty(id))).collect::<Vec<_>>().join(", "),
        };
        let phase = Phase::ALL[node.phase as usize].1;
        let mut fault = Diagnostic::new(format!("`{}`: {}", self.names.node(node), message.as_ref()))
            .note(format!("from {} to {}", list(&node.operands), list(&node.results)));
        if !node.origin.is_empty() {
            fault = fault.at(node.origin.to_string());
        }
        let by =
            if node.by.is_empty() { String::new() } else { format!(", last touched by pass `{}`", node.by) };
        self.faults.push(fault.note(format!("a node of {phase}{by}")));
    }

    /// Returns the text of a type with its sharding.
    fn ty(&self, ty: &Type) -> String {
        type_text(&self.module.mesh, ty)
    }

    /// Returns a value as text, such as `%3: f32[2]`.
    fn value(&self, id: ValueId) -> String {
        format!("{}: {}", self.names.value(id), self.ty(self.module.ty(id)))
    }

    /// Returns the nodes in program order with their ids, without borrowing `self`.
    fn nodes(&self) -> impl Iterator<Item = (NodeId, &'m Node)> + use<'m> {
        self.module.nodes()
    }

    /// Returns every defined value with its type: inputs, states, results.
    fn values(&self) -> impl Iterator<Item = (ValueId, &'m Type)> + use<'m> {
        let module = self.module;
        let inputs = module.inputs.iter().map(|input| input.value);
        let states = module.states.values().map(|state| state.input);
        let results = module.nodes().flat_map(|(_, node)| node.results.iter().copied());
        inputs.chain(states).chain(results).map(move |id| (id, module.ty(id)))
    }

    /// Returns the outputs and the new values of states, each with its description.
    fn roots(&self) -> Vec<(String, ValueId)> {
        let outputs =
            self.module.outputs.iter().map(|output| (format!("output `{}`", output.name), output.value));
        let states = self.module.states.values().filter_map(|state| Some((state, state.output?)));
        outputs
            .chain(states.map(|(state, value)| (format!("the new value of state `{}`", state.name), value)))
            .collect()
    }
}
