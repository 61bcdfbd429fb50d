//! Lowering for several devices: the sizes of a device's parts, the part that a device keeps of a whole tensor, and the exchanges of
//! devices.
//!
//! Every device gets the same program. A device itself computes the addresses that depend on its place along the axes.

use super::commit::may_overwrite;
use super::draft::{BufferId, BufferKind, Draft, Drafts, Located};
use crate::kernel_contract::OperandLayout;
use crate::layout::Layout;
use crate::{Exchange, Kernel, LocalPart, Moved, RankStep};
use ir::ops::collective::{Change, Collective};
use ir::{AxisId, Diagnostic, Mesh, Node, NodeId, Type};
use smallvec::SmallVec;

/// Returns the bytes of a device's part of a value. Errors: unbound dims, dims that do not divide, sizes beyond the address space.
pub(super) fn part_bytes(mesh: &Mesh, ty: &Type, what: &str) -> Result<u64, Diagnostic> {
    let fits = |bytes: u64| isize::try_from(bytes).is_ok();
    if !ty.bytes().is_some_and(fits) {
        let message = format!("{what} cannot be laid out: {ty}");
        let note = "bind unbound dims with --bind NAME=SIZE; sizes must fit the address space";
        return Err(Diagnostic::new(message).note(note));
    }
    let local = ty.local(mesh).ok_or_else(|| {
        Diagnostic::new(format!(
            "{what}, {}, cannot be divided equally over the mesh {mesh}",
            ir::text::type_text(mesh, ty)
        ))
        .note("this is a bug: sizes are made to divide before lowering")
    })?;
    Ok(local.iter().product::<u64>() * ty.dtype.bytes())
}

impl Drafts<'_> {
    /// Returns the axes with more than one device.
    fn apart(&self, axes: &[AxisId]) -> SmallVec<[AxisId; 2]> {
        axes.iter().copied().filter(|&axis| self.module.mesh.axes[axis].size > 1).collect()
    }

    /// Returns the part that each device keeps of a tensor that all devices have. `dims` are the dims that are cut, with the axes that
    /// split them. No instruction is drafted if no axis has more than one device, or if the whole stays in memory anyway and the backend
    /// reads the part in place.
    pub(super) fn part(
        &mut self,
        whole: Located,
        dims: &[(usize, &[AxisId])],
        id: NodeId,
        node: &Node,
    ) -> Located {
        let dims =
            dims.iter().map(|(dim, axes)| (*dim, self.apart(axes))).filter(|(_, axes)| !axes.is_empty());
        let part = LocalPart { dims: dims.collect() };
        if part.dims.is_empty() {
            return whole;
        }
        if self.stays(whole.buffer) && self.backend.takes_parts_in_place() {
            return part.dims.iter().fold(whole, |own, (dim, axes)| self.own_part(own, *dim, axes));
        }
        let mut sizes = whole.layout.sizes.clone();
        part.dims.iter().for_each(|(dim, axes)| sizes[*dim] /= self.module.mesh.size(axes) as usize);
        let result = self.allocate(whole.dtype, Layout::dense(&sizes));
        self.instructions.push(Draft {
            section: self.section(id),
            of_microbatch: false,
            part: None,
            kernel: Kernel::Part(part),
            operands: vec![whole],
            results: vec![result.clone()],
            accumulates: false,
            parts: None,
            node: id,
            origin: node.origin.clone(),
        });
        result
    }

    /// Returns whether the values in a buffer stay the same during all microbatches: constants, and states that no microbatch updates.
    fn stays(&self, buffer: BufferId) -> bool {
        match self.buffers[buffer].kind {
            BufferKind::Constant(_) => true,
            BufferKind::State(index) => {
                let state = self.module.states.values().nth(index);
                let new = state.and_then(|state| state.output);
                new.is_none_or(|new| !self.module.phase_of(new).is_microbatch())
            }
            BufferKind::Input(_) | BufferKind::Result => false,
        }
    }

    /// Returns a device's own part of a tensor, in place.
    fn own_part(&self, mut whole: Located, dim: usize, axes: &[AxisId]) -> Located {
        let size = whole.layout.sizes[dim] / self.module.mesh.size(axes) as usize;
        let elements = size as isize * whole.layout.strides[dim];
        whole.layout = whole.layout.slice(dim, 0, 1, size);
        whole.by_rank.push(RankStep { axes: axes.into(), elements });
        whole
    }

    /// Drafts a collective: a copy of the device's own part, or an exchange of all tensors that travel together.
    pub(super) fn collective(&mut self, id: NodeId, node: &Node, kind: Collective) -> Result<(), Diagnostic> {
        let bug = |message: String| {
            Diagnostic::new(message)
                .at(node.origin.to_string())
                .note("this is a bug: the module is not verified")
        };
        let (mut operands, mut results) = (Vec::new(), Vec::new());
        let mut exchange =
            Exchange { collective: kind, axes: SmallVec::new(), reduced: None, dims: Vec::new() };
        for (&from, &to) in node.operands.iter().zip(&node.results) {
            let (old, new) = (self.module.ty(from), self.module.ty(to));
            let change = Change::between(&old.sharding, &new.sharding, old.ndim())
                .map_err(|message| bug(format!("`{}`: {message}", node.op.name())))?;
            let axes = self.apart(&change.axes);
            if axes.is_empty() {
                self.located[to] = Some(self.locate(from)?);
                continue;
            }
            if let (false, Some(dim)) = (kind.communicates(), change.split) {
                let whole = self.locate(from)?;
                self.located[to] = Some(self.part(whole, &[(dim, &axes)], id, node));
                continue;
            }
            if Collective::of(&change) != Some(kind) {
                return Err(bug(format!("`{}` cannot make this change of sharding", node.op.name())));
            }
            operands.push(self.operand(from, OperandLayout::Dense, node, id)?);
            let result = self.allocate(new.dtype, Layout::dense(&self.sizes(to)));
            self.located[to] = Some(result.clone());
            results.push(result);
            exchange.dims.push(Moved { gathered: change.gathered, split: change.split });
            (exchange.axes, exchange.reduced) = (axes, change.reduced);
        }
        if !results.is_empty() {
            self.instructions.push(Draft {
                section: self.section(id),
                of_microbatch: false,
                part: None,
                kernel: Kernel::Collective(exchange),
                operands,
                results,
                accumulates: false,
                parts: None,
                node: id,
                origin: node.origin.clone(),
            });
        }
        node.results.iter().for_each(|&result| self.sum_up(result, self.section(id)));
        Ok(())
    }
    /// Lets the optimizer write a device's part of a weight over the old part, if the weight is then gathered around it.
    pub(super) fn write_parts_in_place(&mut self) {
        if !self.backend.takes_parts_in_place() {
            return;
        }
        // For each buffer, the instructions that use it.
        let mut users: Vec<Vec<usize>> = vec![vec![]; self.buffers.len()];
        for (at, draft) in self.instructions.iter().enumerate() {
            draft.operands.iter().chain(&draft.results).for_each(|used| users[used.buffer].push(at));
        }
        for gather in 0..self.instructions.len() {
            for index in 0..self.instructions[gather].operands.len() {
                let Some(place) = self.place_of_part(&users, gather, index) else { continue };
                let old = self.instructions[gather].operands[index].buffer;
                let of_part = std::mem::take(&mut users[old]);
                for &at in &of_part {
                    let draft = &mut self.instructions[at];
                    let used = draft.operands.iter_mut().chain(&mut draft.results);
                    used.filter(|used| used.buffer == old).for_each(|used| *used = place.clone());
                }
                users[place.buffer].extend(of_part);
            }
        }
    }

    /// Returns the place in a state for the operand of a gather, if the operand may be written there.
    fn place_of_part(&self, users: &[Vec<usize>], gather: usize, index: usize) -> Option<Located> {
        let draft = &self.instructions[gather];
        let Kernel::Collective(exchange) = &draft.kernel else { return None };
        let Moved { gathered: Some(dim), split: None } = exchange.dims[index] else { return None };
        let (part, whole) = (&draft.operands[index], &draft.results[index]);
        let state = self.buffers[whole.buffer].merged?;
        // The part must be a contiguous range of a state.
        let is_run = whole.layout.sizes[..dim].iter().all(|&size| size == 1) && part.layout.is_dense();
        // It must be alone in its buffer, which only instructions of this program use, all with the same view.
        let buffer = &self.buffers[part.buffer];
        let is_alone = buffer.kind == BufferKind::Result
            && buffer.merged.is_none()
            && !buffer.carried
            && buffer.bytes == part.layout.len() as u64 * part.dtype.bytes();
        let is_reported = self.outputs.iter().flatten().any(|output| output.buffer == part.buffer);
        let used = |at: usize| self.instructions[at].operands.iter().chain(&self.instructions[at].results);
        let mut seen = users[part.buffer].iter().flat_map(|&at| used(at));
        let is_seen_alike = seen.all(|used| used.buffer != part.buffer || used == part);
        let is_once = draft.operands.iter().filter(|other| other.buffer == part.buffer).count() == 1;
        let is_state = matches!(self.buffers[state].kind, BufferKind::State(_));
        if !is_state || !is_run || !is_alone || is_reported || !is_seen_alike || !is_once {
            return None;
        }
        // One instruction must make it. It may write over the old part, and no instruction may read the old state after it.
        let makes = |at: &usize| self.instructions[*at].results.contains(part);
        let mut makers = users[part.buffer].iter().copied().filter(makes);
        let maker = makers.next().filter(|_| makers.next().is_none())?;
        let place = self.own_part(
            Located { buffer: state, value: part.buffer, ..whole.clone() },
            dim,
            &exchange.axes,
        );
        let mut written = self.instructions[maker].clone();
        let result = written.results.iter().position(|made| made == part)?;
        written.results[result] = place.clone();
        let reads = |draft: &Draft| draft.operands.iter().any(|operand| operand.buffer == state);
        let is_read_later =
            users[state].iter().any(|&at| maker < at && at <= gather && reads(&self.instructions[at]));
        let mut old = (0..written.operands.len()).filter(|&at| written.operands[at].buffer == state);
        let may_write = written.section == draft.section
            && !is_read_later
            && old.all(|at| may_overwrite(self.backend_of(&written), &written, at, result));
        may_write.then_some(place)
    }
}
