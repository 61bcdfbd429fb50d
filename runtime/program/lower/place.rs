//! Addresses: results take over the places of dying buffers, the other buffers are planned into one arena, and every view gets its address.

use super::LowerOptions;
use super::classes::Boundaries;
use super::commit::may_overwrite;
use super::draft::{Buffer, BufferId, BufferKind, Draft, Drafts, Located};
use super::lives::{Lives, Positions};
use super::overlap;
use super::stages::{self, Blocks, PartAccesses, Slots, Versions};
use super::tiers;
use super::values;
use crate::MemoryByClass;
use crate::Multiprocessors;
use crate::kernel_contract::Unplaced;
use crate::layout::Layout;
use crate::{
    BlockId, ConstantSlot, InputSlot, Instruction, Kernel, Memory, OutputSlot, Program, Region, Section,
    StateSlot, View,
};
use ir::analysis::Lifetime;
use ir::analysis::memory_plan::{self, aligned};
use ir::text::type_text;
use ir::timetable::ChunkPhase;
use ir::{DType, Diagnostic, Role, State, Tier, Type};
use smallvec::SmallVec;

/// Fixes the addresses of a drafted program. The update renews the first `renewed` instructions of `prepare`.
///
/// Orders the instructions by section and moves exchanges; adds scratch; computes lifetimes; shares places between operands and results;
/// plans the memories; and then turns every draft into an instruction with addresses.
pub(super) fn program(
    mut drafts: Drafts,
    options: &LowerOptions,
    renewed: usize,
) -> Result<Program, Diagnostic> {
    drafts.instructions.sort_by_key(|draft| draft.section);
    overlap::order(&mut drafts, renewed)?;
    let scratch = scratch(&mut drafts, options);
    let positions = Positions::of(&drafts.instructions);
    let position = |index: usize| positions.of_instruction(index, drafts.instructions[index].section);
    let mut parts = PartAccesses::of(&drafts, &scratch, position);
    let last_beside = overlap::last_beside(&drafts);
    let mut lives = Lives::of(&drafts, &scratch, &last_beside, &positions, &parts);
    share_in_place(&mut drafts, &positions, &mut parts, &mut lives);
    let lifetimes = lives.lifetimes;
    let boundaries = positions.boundaries(&drafts);
    let tiers = tiers::of_buffers(&drafts, &scratch);
    let Addresses { of, memory, blocks, slots, versions } =
        addresses(&drafts, (&lifetimes, &tiers), boundaries, &parts, options)?;
    let view_in = |located: &Located, part: Option<ChunkPhase>| {
        let buffer = root(&drafts.buffers, located.buffer);
        let constant = matches!(drafts.buffers[buffer].kind, BufferKind::Constant(_));
        let Located { dtype, layout, by_rank, .. } = located.clone();
        let version = versions.as_ref().and_then(|versions| versions.place(buffer, part));
        let (block, base) = version.map_or(of[buffer], |(block, at)| (Some(block), at));
        let region = match block {
            Some(block) if tiers[buffer] == Tier::Device => Region::Block(block),
            Some(block) => Region::HostBlock(block),
            None if constant => Region::Constants,
            None => Region::of_tier(tiers[buffer]),
        };
        View { region, base, dtype, layout, by_rank }
    };
    let view = |located: &Located| view_in(located, None);
    let mut sections = [vec![], vec![], vec![]];
    for (draft, scratch) in drafts.instructions.iter().zip(&scratch) {
        sections[draft.section as usize].push(Instruction {
            kernel: draft.kernel.clone(),
            operands: draft.operands.iter().map(|operand| view_in(operand, draft.part)).collect(),
            results: draft.results.iter().map(view).collect(),
            scratch: scratch.as_ref().map(view),
            in_place: shared_places(&drafts.buffers, draft)?,
            accumulates: draft.accumulates,
            of_microbatch: draft.of_microbatch,
            parts: draft.parts.clone(),
            node: draft.node,
            origin: draft.origin.clone(),
        });
    }
    let module = drafts.module;
    let inputs = module.inputs.iter().enumerate().map(|(index, input)| {
        let buffer = module.states.len() + index; // the first buffers are those of states and then of inputs, in their order
        let located = drafts.located[input.value].as_ref().filter(|_| lifetimes[buffer].is_some());
        let ty = module.ty(input.value).clone();
        let (name, view) = (input.name.clone(), located.map(view));
        InputSlot { name, ty, batched: input.batched, stage: input.stage, view }
    });
    let outputs = module.outputs.iter().zip(&drafts.outputs).filter_map(|(output, located)| {
        let (ty, section) = (module.ty(output.value).clone(), drafts.section_of(output.value));
        let (name, part) = (output.name.clone(), drafts.part_of(output.value));
        Some(OutputSlot { name, ty, section, part, view: view(located.as_ref()?) })
    });
    let states = module.states.values().filter(|state| drafts.is_here(state.input)).map(|state| {
        let located = drafts.located[state.input].as_ref().expect("every state has a buffer");
        StateSlot { name: state.name.clone(), ty: state.ty.clone(), role: state.role, view: view(located) }
    });
    let constants = drafts.constants.iter();
    let constants =
        constants.map(|(buffer, bytes)| ConstantSlot { base: of[*buffer].1, bytes: bytes.clone() });
    let pipeline = drafts.stages.as_ref().map(|stages| {
        let in_microbatch = drafts.instructions.iter().filter(|draft| draft.section == Section::Microbatch);
        let parts: Vec<_> = in_microbatch.map(|draft| draft.part).collect();
        stages::turns(stages, blocks, &slots, &parts, versions.as_ref())
    });
    let mut program = Program {
        name: module.name.clone(),
        mesh: module.mesh.clone(),
        inputs: inputs.collect(),
        outputs: outputs.collect(),
        states: states.collect(),
        constants: constants.collect(),
        sections,
        renewed,
        microbatches: drafts.microbatches,
        pipeline,
        update: drafts.update,
        target: options.target.name(),
        multiprocessors: options.multiprocessors,
        values: values::of(&drafts, &scratch, &last_beside),
        memory,
        hash: 0,
    };
    program.hash = program.content_hash();
    Ok(program)
}

/// Makes a buffer for the scratch of each instruction that needs some.
fn scratch(drafts: &mut Drafts, options: &LowerOptions) -> Vec<Option<Located>> {
    let on = options.multiprocessors;
    let wanted: Vec<usize> = drafts.instructions.iter().map(|draft| numbers(drafts, draft, on)).collect();
    let buffer = |numbers| (numbers > 0).then(|| drafts.allocate(DType::F32, Layout::dense(&[numbers])));
    wanted.into_iter().map(buffer).collect()
}

/// Returns the number of f32 elements of scratch that an instruction takes.
fn numbers(drafts: &Drafts, draft: &Draft, on: Multiprocessors) -> usize {
    let unplaced = |all: &[Located]| {
        let one = |one: &Located| Unplaced { dtype: one.dtype, layout: one.layout.clone() };
        all.iter().map(one).collect::<Vec<_>>()
    };
    let (operands, results) = (unplaced(&draft.operands), unplaced(&draft.results));
    match &draft.kernel {
        Kernel::Op(op) => {
            drafts.contract_at(draft.node, op, operands.len()).scratch(op, &operands, &results, on)
        }
        Kernel::Collective(exchange) => drafts.backend.exchange_scratch(exchange, &operands, &results),
        Kernel::Elementwise(_) | Kernel::Contract(_) => 0,
        Kernel::Copy | Kernel::Accumulate | Kernel::Part(_) | Kernel::Message(_) => 0,
    }
}

/// Returns the buffer whose place a buffer finally takes.
pub(super) fn root(buffers: &[Buffer], mut buffer: BufferId) -> BufferId {
    while let Some(merged) = buffers[buffer].merged {
        buffer = merged;
    }
    buffer
}

/// Lets results take the places of operands whose last reader is the instruction that makes the result.
fn share_in_place(drafts: &mut Drafts, positions: &Positions, parts: &mut PartAccesses, lives: &mut Lives) {
    let Drafts { module, buffers, instructions, backend, .. } = drafts;
    for (index, draft) in instructions.iter().enumerate() {
        let position = positions.of_instruction(index, draft.section);
        let backend = backend.at(module.node(draft.node).place);
        for result in 0..draft.results.len() {
            let new = draft.results[result].buffer;
            let born_here = lives.lifetimes[new].is_some_and(|lifetime| lifetime.first == position);
            if buffers[new].merged.is_some() || buffers[new].carried || !born_here {
                continue;
            }
            let fits = |&operand: &usize| {
                let old = root(buffers, draft.operands[operand].buffer);
                let others = || draft.operands.iter().filter(|other| root(buffers, other.buffer) == old);
                may_overwrite(backend, draft, operand, result)
                    && buffers[old].kind == BufferKind::Result
                    && buffers[old].bytes == buffers[new].bytes
                    && lives.ends(old, draft, position)
                    && parts.may_join(old, new, position)
                    && others().all(|other| other.layout == draft.operands[operand].layout)
                    && draft.results.iter().all(|other| root(buffers, other.buffer) != old)
            };
            if let Some(operand) = (0..draft.operands.len()).find(fits) {
                let old = root(buffers, draft.operands[operand].buffer);
                buffers[new].merged = Some(old);
                parts.join(old, new);
                lives.join(old, new);
            }
        }
    }
}

/// Returns the pairs of an instruction's operands and results that share one place.
fn shared_places(buffers: &[Buffer], draft: &Draft) -> Result<SmallVec<[(u32, u32); 2]>, Diagnostic> {
    let mut pairs = SmallVec::new();
    for (i, operand) in draft.operands.iter().enumerate() {
        for (j, result) in draft.results.iter().enumerate() {
            if root(buffers, operand.buffer) != root(buffers, result.buffer) {
                continue;
            }
            if let Kernel::Collective(_) = draft.kernel {
                // A gather whose parts lie in their places in the result, or a reduction whose operand has no later reader.
                pairs.push((i as u32, j as u32));
                continue;
            }
            let is_same = operand.layout == result.layout && operand.by_rank == result.by_rank;
            // Separate parts of one whole.
            if !is_same && operand.layout.is_apart(&result.layout) {
                continue;
            }
            if !is_same {
                let message = format!(
                    "lowering gave operand {i} and result {j} of an instruction the same place with \
                     different layouts: {} and {}",
                    operand.layout, result.layout
                );
                return Err(Diagnostic::new(message).at(draft.origin.to_string()).note("this is a bug"));
            }
            pairs.push((i as u32, j as u32));
        }
    }
    Ok(pairs)
}

/// The addresses of all buffers.
struct Addresses {
    /// The block of each buffer, if it lies in one, and its address.
    of: Vec<(Option<BlockId>, u64)>,
    memory: Memory,
    blocks: Blocks,
    slots: Slots,
    versions: Option<Versions>,
}

/// Computes the address of every buffer, and the size of each memory: states first, then all buffers that are planned by lifetimes, then
/// the slots of blocks. Constants have a region of their own.
///
/// The first loop gives states and constants their addresses, and sorts all other buffers that have a lifetime: a buffer that several parts
/// of a microbatch touch goes into a block; the others are planned on the device, or in the memory of the host or the disk. Then each
/// memory is planned, and slots for the blocks follow the plan. Programs that share states (`states_of`) take the addresses of the other
/// program's states.
fn addresses(
    drafts: &Drafts,
    (lifetimes, tiers): (&[Option<Lifetime>], &[Tier]),
    boundaries: Boundaries,
    parts: &PartAccesses,
    options: &LowerOptions,
) -> Result<Addresses, Diagnostic> {
    let mut addresses = vec![(None, 0); drafts.buffers.len()];
    let mut blocks = Blocks::default();
    let mut memory = Memory::default();
    let mut planned: Vec<BufferId> = Vec::new();
    let mut elsewhere: Vec<BufferId> = Vec::new();
    let mut versions = Versions::of(drafts).filter(|_| options.states_of.is_none());
    if let (Some(versions), Some(stages)) = (&versions, &drafts.stages) {
        versions.addresses.iter().for_each(|(&buffer, &address)| addresses[buffer].1 = address);
        memory.states = versions.total(stages.delay());
    }
    let is_placed = |id| versions.as_ref().is_some_and(|versions| versions.addresses.contains_key(&id));
    for (id, buffer) in drafts.buffers.iter().enumerate() {
        match buffer.kind {
            BufferKind::State(_) if buffer.bytes == 0 && drafts.stages.is_some() => {}
            BufferKind::State(_) if is_placed(id) => {}
            BufferKind::State(index) => match options.states_of {
                Some(other) => addresses[id].1 = shared_state(drafts, index, other)?,
                None => {
                    let states = match tiers[id] {
                        Tier::Device => &mut memory.states,
                        tier => &mut memory.beside(tier).states,
                    };
                    addresses[id].1 = *states;
                    *states = states.saturating_add(buffer.bytes.next_multiple_of(tiers::unit(tiers[id])));
                }
            },
            BufferKind::Constant(_) => {
                addresses[id].1 = memory.constants;
                memory.constants += aligned(buffer.bytes);
            }
            BufferKind::Input(_) | BufferKind::Result
                if buffer.merged.is_none() && lifetimes[id].is_some() =>
            {
                let between = lifetimes[id].and_then(|lifetime| parts.between(id, lifetime));
                match between {
                    Some(between) => {
                        let (block, at) = blocks.add(between, buffer.bytes, tiers[id]);
                        addresses[id] = (Some(block), at);
                    }
                    None if tiers[id] == Tier::Device => planned.push(id),
                    None => elsewhere.push(id),
                }
            }
            BufferKind::Input(_) | BufferKind::Result => {}
        }
    }
    if let Some(other) = options.states_of {
        memory.states = other.memory.states;
        (memory.host.states, memory.disk.states) = (other.memory.host.states, other.memory.disk.states);
    }
    let buffer = |&id: &BufferId| {
        let lifetime = lifetimes[id].unwrap_or(Lifetime { first: 0, last: 0 });
        memory_plan::Buffer { bytes: drafts.buffers[id].bytes, lifetime }
    };
    let buffers: Vec<memory_plan::Buffer> = planned.iter().map(buffer).collect();
    let placement = tiers::plan(&buffers, memory.states)?;
    for (&id, &offset) in planned.iter().zip(&placement.offsets) {
        addresses[id].1 = memory.states + offset;
    }
    for tier in [Tier::Host, Tier::Disk] {
        let planned: Vec<BufferId> = elsewhere.iter().copied().filter(|&id| tiers[id] == tier).collect();
        let own = memory.beside(tier);
        let in_units = |buffer: memory_plan::Buffer| memory_plan::Buffer {
            bytes: buffer.bytes.next_multiple_of(tiers::unit(tier)),
            ..buffer
        };
        let offsets = own.plan(&planned.iter().map(buffer).map(in_units).collect::<Vec<_>>())?;
        planned.iter().zip(offsets).for_each(|(&id, offset)| addresses[id].1 = offset);
    }
    let planned_end = memory.states + aligned(placement.peak);
    let mut slots = Slots::default();
    let bytes = drafts.stages.as_ref().map_or(0, |stages| {
        let host = &mut memory.host;
        let start = aligned(host.total);
        let on_host = blocks.add_slots(&mut slots, stages, Tier::Host, start);
        if on_host > 0 {
            (host.lower_bound, host.total) = (host.lower_bound + on_host, start + on_host);
        }
        blocks.add_slots(&mut slots, stages, Tier::Device, planned_end)
    });
    if let (Some(versions), Some(stages)) = (&mut versions, &drafts.stages) {
        blocks.add_versions(stages.forward(), versions);
    }
    memory.arena = memory.states + placement.peak;
    if bytes > 0 {
        memory.arena = planned_end + bytes;
    }
    memory.lower_bound = memory.states + placement.lower_bound + bytes;
    memory.by_class = of_states(drafts);
    let class = |(&id, buffer): (&BufferId, &memory_plan::Buffer)| {
        let Buffer { kind, carried, .. } = drafts.buffers[id];
        boundaries.class(kind, carried, buffer.lifetime)
    };
    let classes: Vec<_> = planned.iter().zip(&buffers).map(class).collect();
    memory.by_class.add(&buffers, &classes, memory.arena - memory.states - bytes);
    memory.by_class.activations += bytes;
    Ok(Addresses { of: addresses, memory, blocks, slots, versions })
}

/// Returns the bytes of states on the device, by class.
fn of_states(drafts: &Drafts) -> MemoryByClass {
    let mut memory = MemoryByClass::default();
    let on_device = |(_, state): &(&Buffer, &State)| state.tier == Tier::Device;
    for (buffer, state) in drafts.buffers.iter().zip(drafts.module.states.values()).filter(on_device) {
        let class = match state.role {
            Role::Parameter | Role::Buffer | Role::Version => &mut memory.parameters,
            Role::Optimizer | Role::Counter | Role::Scaler | Role::Rng | Role::Compression => {
                &mut memory.optimizer
            }
        };
        *class += aligned(buffer.bytes);
    }
    memory
}

/// Returns the address of the state of that name in the other program.
fn shared_state(drafts: &Drafts, index: usize, other: &Program) -> Result<u64, Diagnostic> {
    let state =
        drafts.module.states.values().nth(index).expect("buffers of states come from the state table");
    let mesh = &drafts.module.mesh;
    let same_parts = |ty: &Type| {
        ty.same_shape(&state.ty)
            && (0..ty.ndim()).all(|dim| ty.sharding.axes(dim) == state.ty.sharding.axes(dim))
            && other.mesh == *mesh
    };
    // Programs of one module have their states in the same order, so the state with the same index is tried first.
    let mut slots = other.states.get(index).into_iter().chain(&other.states);
    let is_it = |slot: &&StateSlot| {
        slot.name == state.name && same_parts(&slot.ty) && slot.view.region == Region::of_tier(state.tier)
    };
    let found = slots.find(is_it);
    found.map(|slot| slot.view.base).ok_or_else(|| {
        let ty = type_text(mesh, &state.ty);
        let message = format!("the program `{}` has no state `{}` of type {ty}", other.name, state.name);
        Diagnostic::new(message).note("programs that share states must come from one module")
    })
}
