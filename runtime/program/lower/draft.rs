//! Drafts: instructions over buffers that have no address yet.

use super::fuse::Item;
use super::pad;
use super::parts::{PartPlace, Whole};
use super::stages::RankStages;
use super::sums::Sum;
use super::{LowerOptions, ranks};
use crate::backend::Target;
use crate::kernel_contract::{KernelContract, OperandLayout};
use crate::layout::{Layout, Sizes};
use crate::{Chain, ChainSource, ChainStep, Kernel, Microbatches, RankSteps, Section, UpdateTime};
use bytes::Bytes;
use cranelift_entity::{EntitySet, SecondaryMap};
use ir::timetable::ChunkPhase;
use ir::{DType, Definition, Diagnostic, Module, Node, NodeId, Op, Phase, Signature, ValueId};
use smallvec::SmallVec;
use std::sync::Arc;

/// The index of a buffer.
pub(super) type BufferId = usize;

/// A piece of memory without an address.
#[derive(Clone, Debug)]
pub(super) struct Buffer {
    pub(super) kind: BufferKind,
    pub(super) bytes: u64,
    /// Whether it holds values from one microbatch to the next.
    pub(super) carried: bool,
    /// Whether it holds values from one step to the next: casts of weights.
    pub(super) renewed: bool,
    /// The buffer whose place this buffer takes.
    pub(super) merged: Option<BufferId>,
}

/// The purpose of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BufferKind {
    /// The state with this index.
    State(usize),
    /// The constant with this index.
    Constant(usize),
    /// The input with this index.
    Input(usize),
    /// A result.
    Result,
}

/// The place of a value.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Located {
    pub(super) buffer: BufferId,
    /// The value's own buffer, by which it is numbered, even if the value lies in another buffer's place.
    pub(super) value: BufferId,
    pub(super) dtype: DType,
    pub(super) layout: Layout,
    pub(super) by_rank: RankSteps,
}

impl Located {
    /// Returns the place of elements that have the same layout on all devices.
    pub(super) fn whole(buffer: BufferId, dtype: DType, layout: Layout) -> Self {
        Self { buffer, value: buffer, dtype, layout, by_rank: RankSteps::new() }
    }
}

/// An instruction without addresses.
#[derive(Clone, Debug)]
pub(super) struct Draft {
    pub(super) section: Section,
    /// Whether it is in the section `update` but runs in every microbatch.
    pub(super) of_microbatch: bool,
    /// In a pipeline, the part of a microbatch that runs it.
    pub(super) part: Option<ChunkPhase>,
    pub(super) kernel: Kernel,
    pub(super) operands: Vec<Located>,
    pub(super) results: Vec<Located>,
    pub(super) accumulates: bool,
    /// The types of the whole tensors, if the kernel needs them.
    pub(super) parts: Option<Box<Signature>>,
    pub(super) node: NodeId,
    pub(super) origin: Arc<str>,
}

/// The time of a run: the section, and whether every microbatch runs it.
type RunsIn = (Section, bool);

/// A program being drafted.
pub(super) struct Drafts<'m> {
    pub(super) module: &'m Module,
    pub(super) backend: Target,
    /// The pipeline rank that the program is for.
    pub(super) stages: Option<RankStages<'m>>,
    pub(super) microbatches: Microbatches,
    pub(super) update: UpdateTime,
    /// The nodes of backward that run in the section `update`, in every microbatch.
    pub(super) moved: EntitySet<NodeId>,
    pub(super) buffers: Vec<Buffer>,
    pub(super) constants: Vec<(BufferId, Bytes)>,
    pub(super) instructions: Vec<Draft>,
    pub(super) located: SecondaryMap<ValueId, Option<Located>>,
    packed: SecondaryMap<ValueId, Option<(RunsIn, Located)>>,
    /// The places of values that are written as parts of a concatenation.
    pub(super) parts: SecondaryMap<ValueId, Option<PartPlace>>,
    /// The places of these concatenations.
    pub(super) wholes: SecondaryMap<ValueId, Option<Whole>>,
    pub(super) sums: SecondaryMap<ValueId, Vec<Sum>>,
    /// The views that were applied to a sum, so that they need not be applied to its addends.
    pub(super) summed_views: EntitySet<NodeId>,
    /// Results whose rows are padded.
    pub(super) padded: EntitySet<ValueId>,
    /// The places of the outputs, once their section is drafted.
    pub(super) outputs: Vec<Option<Located>>,
}

impl<'m> Drafts<'m> {
    /// Makes buffers for states and inputs, and no instruction yet.
    pub(super) fn new(
        module: &'m Module,
        options: &LowerOptions,
        live: &EntitySet<NodeId>,
        stages: Option<RankStages<'m>>,
    ) -> Result<Self, Diagnostic> {
        let mut drafts = Self {
            module,
            backend: options.target,
            stages,
            microbatches: options.microbatches,
            update: options.update,
            moved: EntitySet::new(),
            buffers: vec![],
            constants: vec![],
            instructions: vec![],
            located: SecondaryMap::new(),
            packed: SecondaryMap::new(),
            parts: SecondaryMap::new(),
            wholes: SecondaryMap::new(),
            sums: SecondaryMap::new(),
            summed_views: EntitySet::new(),
            padded: EntitySet::new(),
            outputs: vec![None; module.outputs.len()],
        };
        let states = module.states.values().map(|state| (state.input, &state.name)).enumerate();
        let states = states.map(|(index, place)| (BufferKind::State(index), place));
        let inputs = module.inputs.iter().map(|input| (input.value, &input.name)).enumerate();
        let inputs = inputs.map(|(index, place)| (BufferKind::Input(index), place));
        for (kind, (value, name)) in states.chain(inputs) {
            let ty = module.ty(value);
            // States of other pipeline ranks keep their index and take no memory.
            let is_elsewhere = matches!(kind, BufferKind::State(_)) && !drafts.is_here(value);
            if is_elsewhere {
                drafts.buffer(kind, 0);
                continue;
            }
            let bytes = ranks::part_bytes(&module.mesh, ty, &format!("`{name}`"))?;
            let layout = Layout::dense(&drafts.sizes(value));
            let buffer = drafts.buffer(kind, bytes);
            drafts.located[value] = Some(Located::whole(buffer, ty.dtype, layout));
        }
        drafts.find_parts(live);
        if options.microbatches == Microbatches::Many {
            drafts.find_sums(live);
        }
        Ok(drafts)
    }

    /// Returns the section in which a node runs.
    pub(super) fn section(&self, id: NodeId) -> Section {
        if self.moved.contains(id) { Section::Update } else { self.module.node(id).phase.into() }
    }

    /// Returns the section after which a value is complete.
    pub(super) fn section_of(&self, value: ValueId) -> Section {
        match self.module.value(value).definition {
            Definition::Node(node, _) => self.section(node),
            Definition::Input(_) => Section::Microbatch,
            Definition::State(_) => Section::Prepare,
        }
    }

    /// Returns whether a state belongs to this pipeline rank. True without a pipeline.
    pub(super) fn is_here(&self, state: ValueId) -> bool {
        self.stages.as_ref().is_none_or(|stages| stages.has(self.module.stage_of(state)))
    }

    /// In a pipeline, returns the part of a microbatch after which a value is complete.
    pub(super) fn part_of(&self, value: ValueId) -> Option<ChunkPhase> {
        let stages = self.stages.as_ref()?;
        match self.module.value(value).definition {
            Definition::Node(node, _) => stages.part(self.module, node),
            Definition::Input(index) => {
                let stage = self.module.inputs[index as usize].stage;
                Some(ChunkPhase { phase: Phase::Forward, chunk: stage })
            }
            Definition::State(_) => None,
        }
    }

    /// Returns the contract of the kernel that runs a node.
    pub(super) fn kernel_contract<'n>(&self, node: &'n Node) -> KernelContract<'n> {
        self.backend.at(node.place).kernel_contract(&node.op, node.operands.len())
    }

    /// Returns the contract of the kernel of an operator with this number of operands, where a node computes.
    pub(super) fn contract_at<'op>(&self, node: NodeId, op: &'op Op, operands: usize) -> KernelContract<'op> {
        self.backend.at(self.module.node(node).place).kernel_contract(op, operands)
    }

    /// Returns the backend whose kernel runs an instruction.
    pub(super) fn backend_of(&self, draft: &Draft) -> Target {
        self.backend.at(self.module.node(draft.node).place)
    }

    /// Returns the bound sizes of a device's part of a value.
    pub(super) fn sizes(&self, value: ValueId) -> Sizes {
        let sizes = self.module.ty(value).local(&self.module.mesh).unwrap_or_default();
        sizes.into_iter().map(|size| size as usize).collect()
    }

    pub(super) fn buffer(&mut self, kind: BufferKind, bytes: u64) -> BufferId {
        self.buffers.push(Buffer { kind, bytes, carried: false, renewed: false, merged: None });
        self.buffers.len() - 1
    }

    /// Makes a buffer for a result, and returns the result's place in it.
    pub(super) fn allocate(&mut self, dtype: DType, layout: Layout) -> Located {
        let buffer = self.buffer(BufferKind::Result, layout.span().end as u64 * dtype.bytes());
        Located::whole(buffer, dtype, layout)
    }

    /// Returns the place of a value. Values are defined before their uses, so every value has one.
    pub(super) fn locate(&self, value: ValueId) -> Result<Located, Diagnostic> {
        let error = || Diagnostic::new(format!("{value} is read in a section in which it does not exist"));
        self.located[value].clone().ok_or_else(error)
    }

    /// Returns the place of a value in a layout that the reader accepts. Copies the value if necessary.
    pub(super) fn operand(
        &mut self,
        value: ValueId,
        reads: OperandLayout,
        node: &Node,
        id: NodeId,
    ) -> Result<Located, Diagnostic> {
        let located = self.locate(value)?;
        if reads.accepts(&located.layout) {
            return Ok(located);
        }
        let section = self.section(id);
        let runs_in = (section, node.phase.is_microbatch());
        if let Some((_, packed)) = self.packed[value].clone().filter(|(made, _)| *made == runs_in) {
            return Ok(packed);
        }
        let packed = self.copy(located, section, id, node.origin.clone());
        self.packed[value] = Some((runs_in, packed.clone()));
        Ok(packed)
    }

    /// Drafts a dense copy, and returns its place.
    pub(super) fn copy(
        &mut self,
        from: Located,
        section: Section,
        node: NodeId,
        origin: Arc<str>,
    ) -> Located {
        let to = self.allocate(from.dtype, Layout::dense(&from.layout.sizes));
        self.copy_to(from, to.clone(), section, node, origin);
        to
    }

    /// Drafts a copy to a place with the same sizes and type.
    pub(super) fn copy_to(
        &mut self,
        from: Located,
        to: Located,
        section: Section,
        node: NodeId,
        origin: Arc<str>,
    ) {
        self.instructions.push(Draft {
            section,
            of_microbatch: false,
            part: None,
            kernel: Kernel::Copy,
            operands: vec![from],
            results: vec![to],
            accumulates: false,
            parts: None,
            node,
            origin,
        });
    }

    /// Drafts an item. Nodes of backward that early updates moved to `update` still run in every microbatch.
    pub(super) fn of_item(&mut self, item: &Item) -> Result<(), Diagnostic> {
        let before = self.instructions.len();
        self.item(item)?;
        let is_moved = item.nodes().iter().any(|&node| self.moved.contains(node));
        for draft in self.instructions[before..].iter_mut().filter(|draft| draft.section == Section::Update) {
            draft.of_microbatch = is_moved;
        }
        Ok(())
    }

    fn item(&mut self, item: &Item) -> Result<(), Diagnostic> {
        let module = self.module;
        match item {
            Item::Chain { nodes, stored } => self.chain(nodes, stored),
            Item::Contract(fused) => self.fused_contract(fused),
            Item::Added(added) => self.added(added),
            Item::Node(id) => {
                let node = module.node(*id);
                match &node.op {
                    Op::Constant(constant) => self.constant(*id, node, constant)?,
                    Op::Splat(splat) => self.splat(node, splat),
                    Op::Iota(iota) => self.iota(*id, node, iota)?,
                    Op::Accumulate(_) => return self.accumulate(node),
                    Op::Collective(collective) => return self.collective(*id, node, *collective),
                    Op::Transfer(_) if self.stages.is_some() => return self.transfer(*id, node),
                    _ if self.summed_views.contains(*id) => return Ok(()),
                    Op::Concat(_) if self.wholes[node.results[0]].is_some() => self.concatenate(*id, node)?,
                    op if op.movement().is_layout() => {
                        let located = self.locate(node.operands[0])?;
                        let view = self.view(*id, located);
                        self.located[node.results[0]] = Some(view);
                    }
                    _ => return self.kernel(*id, node),
                }
                self.sum_up(node.results[0], self.section(*id));
                Ok(())
            }
        }
    }

    /// Returns the place of a node that only changes the layout of the same elements. A reshape that strides cannot express is copied
    /// first.
    pub(super) fn view(&mut self, id: NodeId, from: Located) -> Located {
        let node = self.module.node(id);
        let sizes = self.sizes(node.results[0]);
        let layout = match &node.op {
            Op::Transpose(transpose) => {
                let permutation: Sizes = transpose.permutation.iter().map(|&dim| dim as usize).collect();
                from.layout.transpose(&permutation)
            }
            Op::Broadcast(_) => from.layout.broadcast(&sizes),
            Op::Slice(slice) => {
                let dim = slice.dim as usize;
                from.layout.slice(dim, slice.start, slice.step, sizes[dim])
            }
            _ => match from.layout.reshape(&sizes) {
                Some(layout) => layout,
                None => {
                    let dense = self.copy(from, self.section(id), id, node.origin.clone());
                    let layout = Layout::dense(&sizes);
                    return Located { layout, ..dense };
                }
            },
        };
        Located { layout, ..from }
    }

    /// Drafts a node that has a kernel of its own.
    fn kernel(&mut self, id: NodeId, node: &Node) -> Result<(), Diagnostic> {
        let contract = self.kernel_contract(node);
        let operands = node.operands.iter().enumerate();
        let mut operands = operands
            .map(|(index, &value)| self.operand(value, contract.reads(index), node, id))
            .collect::<Result<Vec<_>, _>>()?;
        let layouts: Vec<Layout> = operands.iter().map(|operand| operand.layout.clone()).collect();
        let mut results = Vec::new();
        for &value in &node.results {
            let sizes = self.sizes(value);
            let layout = if self.padded.contains(value) {
                pad::layout(&sizes)
            } else {
                contract.result_layout(&layouts, &sizes)
            };
            results.push(self.place(value, layout));
        }
        if let Op::Contract(product) = &node.op {
            self.lay_for_multiplication(product, id, &mut operands, &mut results[0]);
        }
        let dtype = self.module.ty(node.results[0]).dtype;
        let direct = contract.accumulates(dtype)
            && matches!(self.sums[node.results[0]].as_slice(), [sum] if sum.alone);
        let signature = self.module.signature(node);
        let is_split = signature.operands.iter().chain(&signature.results).any(|ty| !ty.sharding.is_whole());
        self.instructions.push(Draft {
            section: self.section(id),
            of_microbatch: false,
            part: None,
            kernel: Kernel::Op(node.op.clone()),
            operands,
            results: results.clone(),
            accumulates: direct,
            parts: (is_split && node.op.depends_on_position()).then(|| Box::new(signature)),
            node: id,
            origin: node.origin.clone(),
        });
        if direct {
            self.buffers[results[0].buffer].carried = true;
            let sum = self.sums[node.results[0]].remove(0);
            self.locate_sum(&sum, results[0].clone());
            return Ok(());
        }
        for (&value, located) in node.results.iter().zip(results) {
            self.located[value] = Some(located);
            self.sum_up(value, self.section(id));
        }
        Ok(())
    }

    /// Drafts elementwise nodes as one instruction. Each node is a step, which reads the results of earlier steps or operands of the
    /// instruction; a value that several steps read is one operand. The results that are `stored` all get the layout of [`chain_layout`].
    fn chain(&mut self, nodes: &[NodeId], stored: &[ValueId]) -> Result<(), Diagnostic> {
        let module = self.module;
        let (mut values, mut operands): (Vec<ValueId>, Vec<Located>) = (vec![], vec![]);
        let mut steps: Vec<ChainStep> = Vec::new();
        let made: Vec<ValueId> = nodes.iter().map(|&id| module.node(id).results[0]).collect();
        let sizes = self.sizes(made[0]);
        for &id in nodes {
            let node = module.node(id);
            debug_assert!(self.kernel_contract(node).in_chains);
            let mut sources = SmallVec::new();
            for &value in &node.operands {
                let step = made[..steps.len()].iter().position(|&m| m == value);
                sources.push(match (step, values.iter().position(|&v| v == value)) {
                    (Some(step), _) => ChainSource::Step(step as u32),
                    (None, Some(operand)) => ChainSource::Operand(operand as u32),
                    (None, None) => {
                        values.push(value);
                        operands.push(self.locate(value)?);
                        ChainSource::Operand(values.len() as u32 - 1)
                    }
                });
            }
            let dtype = module.ty(node.results[0]).dtype;
            steps.push(ChainStep {
                op: node.op.clone(),
                sources,
                dtype,
                node: id,
                origin: node.origin.clone(),
            });
        }
        let layouts: Vec<Layout> = operands.iter().map(|operand| operand.layout.clone()).collect();
        let layout = chain_layout(&layouts, &sizes);
        operands.iter_mut().for_each(|operand| operand.layout = operand.layout.broadcast(&sizes));
        let stores: SmallVec<[u32; 2]> = made
            .iter()
            .enumerate()
            .filter(|(_, value)| stored.contains(value))
            .map(|(step, _)| step as u32)
            .collect();
        let stored = stores.iter().map(|&step| made[step as usize]).collect::<Vec<_>>();
        let results: Vec<Located> = stored.iter().map(|&value| self.place(value, layout.clone())).collect();
        let last = nodes[nodes.len() - 1];
        let section = self.section(last);
        self.instructions.push(Draft {
            section,
            of_microbatch: false,
            part: None,
            kernel: Kernel::Elementwise(Chain { steps, stores }),
            operands,
            results: results.clone(),
            accumulates: false,
            parts: None,
            node: last,
            origin: module.node(last).origin.clone(),
        });
        for (value, located) in stored.into_iter().zip(results) {
            self.located[value] = Some(located);
            self.sum_up(value, section);
        }
        Ok(())
    }
}

/// Returns the layout of a chain's results: the common memory order of all operands with the chain's sizes, or row-major if their orders
/// differ. So the layout does not depend on the grouping of nodes into chains. Recomputation changes the grouping, and the memory order of
/// a tensor decides the last bits of a sum over it.
pub(super) fn chain_layout(operands: &[Layout], sizes: &[usize]) -> Layout {
    let has_order = |layout: &&Layout| {
        let is_whole = |(&size, &stride): (&usize, &isize)| size == 1 || stride > 0;
        layout.sizes.as_slice() == sizes && layout.sizes.iter().zip(&layout.strides).all(is_whole)
    };
    let mut orders = operands.iter().filter(has_order).map(Layout::by_distance);
    let agreed = orders.next().filter(|first| orders.all(|order| order == *first));
    let dense = Layout::dense(sizes);
    match agreed.filter(|order| *order != dense.by_distance()) {
        Some(order) => Layout::in_order(sizes, &order),
        None => dense,
    }
}
