//! The static check: the programs of all ranks issue the same collectives in the same order, so no rank waits for a collective that never
//! comes.
//!
//! The check walks through each part of a step as the ranks will run it. A group goes on together when all its members are at a collective
//! of that group and agree on its dims and types. If no rank can go on and some rank has not reached the end, the programs would deadlock
//! there. All ranks run the parts in the same order, so only the order within a part is checked.

use ir::{AxisId, Diagnostic, Mesh};
use program::{Exchange, Instruction, Kernel, Part, Program, View};
use std::fmt;

/// Proves that ranks can run these programs together, one program for each rank.
///
/// # Errors
/// Another mesh, or another number of devices; collectives that differ, are missing, or wait for each other in a circle. The error names
/// both sides.
pub fn check(programs: &[&Program]) -> Result<(), Diagnostic> {
    let Some(first) = programs.first() else { return Ok(()) };
    let axes: Vec<AxisId> = first.mesh.axes.keys().collect();
    check_along(programs, &axes)
}

/// Proves that ranks can run programs that differ only along these axes of the mesh. There is one program for each place along them, the
/// last axis fastest. The work does not grow with the other axes.
///
/// Ranks that differ only along other axes run the same program, so they are always at the same collective. Each place therefore represents
/// all of its ranks, on a mesh whose other axes have one device.
///
/// # Errors
/// Those of [`check`].
pub fn check_along(programs: &[&Program], axes: &[AxisId]) -> Result<(), Diagnostic> {
    let Some(first) = programs.first() else { return Ok(()) };
    if let Some(place) = programs.iter().position(|program| program.mesh != first.mesh) {
        let (other, mesh) = (&programs[place].mesh, &first.mesh);
        return Err(Diagnostic::new(format!(
            "rank {} runs on the mesh {other}, and rank 0 on the mesh {mesh}",
            rank(mesh, &collapsed(mesh, axes), place)
        )));
    }
    let collapsed = collapsed(&first.mesh, axes);
    if collapsed.devices() != programs.len() as u64 {
        let (mesh, devices, count) = (&first.mesh, collapsed.devices(), programs.len());
        return Err(Diagnostic::new(format!(
            "the mesh {mesh} has {devices} devices, and there are {count} ranks"
        )));
    }
    Part::ALL.into_iter().try_for_each(|(part, name)| {
        let ranks = programs.iter().map(|program| issued(program, part)).collect();
        let (mesh, collapsed, next) = (&first.mesh, &collapsed, vec![0; programs.len()]);
        Walk { mesh, collapsed, section: name, ranks, next }.run()
    })
}

/// Returns the mesh with one device on every axis but these.
fn collapsed(mesh: &Mesh, axes: &[AxisId]) -> Mesh {
    let mut collapsed = mesh.clone();
    let others = collapsed.axes.iter_mut().filter(|(axis, _)| !axes.contains(axis));
    others.for_each(|(_, axis)| axis.size = 1);
    collapsed
}

/// Returns the first of the ranks that a place of the collapsed mesh represents.
fn rank(mesh: &Mesh, collapsed: &Mesh, place: usize) -> u64 {
    let coordinates = collapsed.coordinates(place as u64);
    mesh.axes.iter().fold(0, |rank, (id, axis)| rank * axis.size + coordinates[id])
}

/// A collective in a program.
#[derive(Clone, Copy)]
struct Issued<'p> {
    index: usize,
    instruction: &'p Instruction,
    exchange: &'p Exchange,
}

fn issued(program: &Program, part: Part) -> Vec<Issued<'_>> {
    let collective = |(index, instruction)| match instruction {
        &Instruction { kernel: Kernel::Collective(ref exchange), .. } => {
            Some(Issued { index, instruction, exchange })
        }
        _ => None,
    };
    program.part(part).into_iter().filter_map(collective).collect()
}

/// Compares the facts on which ranks must agree: dims and types, not addresses.
impl PartialEq for Issued<'_> {
    fn eq(&self, other: &Self) -> bool {
        let shape = |views: &[View]| -> Vec<_> {
            views.iter().map(|view| (view.dtype, view.layout.sizes.clone())).collect()
        };
        let shapes =
            |issued: &Self| (shape(&issued.instruction.operands), shape(&issued.instruction.results));
        self.exchange == other.exchange && shapes(self) == shapes(other)
    }
}

/// `` `all_reduce` sum over [axis0] of f32[4, 8] (microbatch instruction 7, node "/h.0/mlp" (Gemm, opset 20)) ``
struct Described<'p>(Issued<'p>, &'static str);

impl fmt::Display for Described<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Issued { index, instruction, exchange } = self.0;
        let operand = |view: &View| format!("{}{:?}", view.dtype, view.layout.sizes.as_slice());
        let operands: Vec<_> = instruction.operands.iter().map(operand).collect();
        write!(f, "`{}`{exchange} of {}", instruction.name(), operands.join(", "))?;
        write!(f, " ({} instruction {index}", self.1)?;
        if !instruction.origin.is_empty() {
            write!(f, ", {}", instruction.origin)?;
        }
        f.write_str(")")
    }
}

/// The ranks on their way through a section, each known by its place in the collapsed mesh.
struct Walk<'p> {
    mesh: &'p Mesh,
    /// The mesh of the places. Each place represents ranks with the same program.
    collapsed: &'p Mesh,
    section: &'static str,
    /// The collectives that each place issues.
    ranks: Vec<Vec<Issued<'p>>>,
    /// The number of collectives that each place has passed.
    next: Vec<usize>,
}

impl<'p> Walk<'p> {
    fn run(mut self) -> Result<(), Diagnostic> {
        let mut moved: Vec<usize> = (0..self.ranks.len()).rev().collect();
        while let Some(rank) = moved.pop() {
            let Some(group) = self.group(rank) else { continue };
            if group.iter().any(|&member| self.group(member).as_ref() != Some(&group)) {
                continue; // the last member to arrive looks again
            }
            if let Some(&other) = group.iter().find(|&&member| self.at(member) != self.at(group[0])) {
                return Err(self.different(group[0], other));
            }
            group.iter().for_each(|&member| self.next[member] += 1);
            moved.extend(group.iter().rev());
        }
        match (0..self.ranks.len()).find(|&rank| self.at(rank).is_some()) {
            Some(rank) => Err(self.stuck(rank)),
            None => Ok(()),
        }
    }

    /// Returns the next collective of a rank.
    fn at(&self, rank: usize) -> Option<Issued<'p>> {
        self.ranks[rank].get(self.next[rank]).copied()
    }

    /// Returns the ranks that a rank waits for next, including itself.
    fn group(&self, rank: usize) -> Option<Vec<usize>> {
        let axes = &self.at(rank)?.exchange.axes;
        let group = self.collapsed.group(rank as u64, axes);
        Some(group.into_iter().map(|rank| rank as usize).collect())
    }

    /// Returns the number of the rank at a place.
    fn number(&self, place: usize) -> u64 {
        rank(self.mesh, self.collapsed, place)
    }

    fn told(&self, place: usize) -> String {
        let rank = self.number(place);
        self.at(place).map_or_else(
            || format!("rank {rank} has reached the end of {}", self.section),
            |issued| format!("rank {rank} issues {}", Described(issued, self.section)),
        )
    }

    fn different(&self, first: usize, second: usize) -> Diagnostic {
        let message = format!(
            "rank {} and rank {} issue different collectives to each other",
            self.number(first),
            self.number(second)
        );
        self.diagnostic(message, &[first, second])
    }

    /// Describes why a rank cannot go on. Follows the ranks from each to one that it waits for, until a rank has reached the end or closes
    /// a circle.
    fn stuck(&self, rank: usize) -> Diagnostic {
        let mut path = vec![rank];
        loop {
            let last = path[path.len() - 1];
            let Some(group) = self.group(last) else {
                let waits = path[path.len() - 2];
                let message = format!(
                    "rank {} would wait forever for rank {}, which issues too few collectives",
                    self.number(waits),
                    self.number(last)
                );
                return self.diagnostic(message, &[waits, last]);
            };
            let comes = |member: usize| self.group(member).as_ref() == Some(&group);
            let next = group.iter().copied().find(|&member| !comes(member)).unwrap_or(last);
            if let Some(start) = path.iter().position(|&before| before == next) {
                let circle = &path[start..];
                let numbers: Vec<u64> = circle.iter().map(|&place| self.number(place)).collect();
                let message =
                    format!("the ranks {numbers:?} would wait for each other forever, in this order");
                return self.diagnostic(message, circle);
            }
            path.push(next);
        }
    }

    fn diagnostic(&self, message: String, ranks: &[usize]) -> Diagnostic {
        let note = "this is a bug: every rank must issue the same collectives in the same order";
        let told = ranks.iter().map(|&rank| self.told(rank));
        told.fold(Diagnostic::new(message), Diagnostic::note).note(note)
    }
}
