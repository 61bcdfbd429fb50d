//! The prices of stages: the times of their tasks, the activations that they keep, and the weights that they read.
//!
//! A copy of the program runs through the passes that make backward: `autodiff`, and if the options ask for them `precision` and
//! `recompute`. In this copy every divided node is a stage of its own, and passes give each added node the stage of a forward node. So
//! the price of any run of nodes is a difference of two sums.

use super::Stage;
use super::work::Forward;
use crate::autodiff::{Autodiff, put_off_all};
use crate::pass::{PassContext, Transform};
use crate::precision::Precision;
use crate::recompute::Recompute;
use ir::analysis::takes_no_time;
use ir::timetable::TASK_PHASES;
use ir::{
    Builder, DType, Definition, EVERY_STAGE, Module, Movement, Node, NodeId, Op, Phase, Role, StateId,
    ValueId,
};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// The prices of all runs of nodes.
#[derive(Clone, Debug, Default)]
pub(super) struct Prices {
    /// The picoseconds of the nodes before each place, for each phase of a task.
    times: [Vec<u64>; 3],
    /// The bytes that the nodes before each place keep of a microbatch, for each class of [`KeptBytes`].
    kept: [Vec<u64>; 3],
    /// The bytes of a microbatch that are sent to a stage that begins at each place.
    messages: Vec<u64>,
    /// The elements of the trained weights that are first read before each place.
    weights: Vec<u64>,
    /// Weights that are read at several places.
    shared: Vec<Shared>,
}

/// The bytes of a stage's kept activations, by their lifetimes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct KeptBytes {
    /// The bytes kept from forward to backward.
    pub(super) backward: u64,
    /// The bytes kept from forward to the gradients of parameters.
    pub(super) weight: u64,
    /// The bytes of gradients, kept from backward to the gradients of parameters.
    pub(super) gradients: u64,
}

/// A further reader of a weight.
#[derive(Clone, Copy, Debug)]
struct Shared {
    /// The place of the previous reader.
    before: usize,
    at: usize,
    elements: u64,
}

impl Prices {
    /// Computes the prices of a program. `None` if the program cannot be trained: `autodiff` reports the reason.
    pub(super) fn of(module: &Module, forward: &Forward, options: &Stage) -> Option<Self> {
        let places = forward.divided.len();
        let trial = trial(module, forward, options)?;
        let device = options.rates().device();
        let mut times = [(); 3].map(|()| vec![0; places]);
        for (_, node) in trial.nodes() {
            let phase = TASK_PHASES.iter().position(|(phase, _)| *phase == node.phase);
            if let (Some(phase), Some(place)) = (phase, place_of(node, places))
                && !takes_no_time(&node.op)
            {
                let time: &mut u64 = &mut times[phase][place];
                *time = time.saturating_add(device.node_time(&node.op, &trial.signature(node)));
            }
        }
        let (weights, shared) = weights(module, forward);
        Some(Self {
            times: times.map(sums),
            kept: kept(&trial, places).map(sums),
            messages: messages(&trial, places),
            weights: sums(weights),
            shared,
        })
    }

    /// Returns the picoseconds of the forward, backward and weight task of a stage.
    pub(super) fn times(&self, nodes: &Range<usize>) -> [u64; 3] {
        self.times.each_ref().map(|sums| between(sums, nodes))
    }

    /// Returns the bytes that the nodes of a stage keep of a microbatch.
    pub(super) fn kept(&self, nodes: &Range<usize>) -> KeptBytes {
        let [backward, weight, gradients] = self.kept.each_ref().map(|sums| between(sums, nodes));
        KeptBytes { backward, weight, gradients }
    }

    /// Returns the bytes of a microbatch that are sent to a stage that begins at `start`.
    pub(super) fn messages(&self, start: usize) -> u64 {
        self.messages.get(start).copied().unwrap_or(0)
    }

    /// Returns the elements of the trained weights that a stage owns, because it is the first to read them.
    pub(super) fn own_weights(&self, nodes: &Range<usize>) -> u64 {
        between(&self.weights, nodes)
    }

    /// Returns the elements of the trained weights that a stage reads and an earlier stage owns.
    pub(super) fn weights_of_others(&self, nodes: &Range<usize>) -> u64 {
        let is_first = |shared: &&Shared| nodes.contains(&shared.at) && !nodes.contains(&shared.before);
        let of_others = self.shared.iter().filter(is_first).map(|shared| shared.elements);
        of_others.fold(0, u64::saturating_add)
    }
}

/// Returns the differentiated copy of a program, in which each divided node is a stage.
fn trial(module: &Module, forward: &Forward, options: &Stage) -> Option<Module> {
    let mut trial = module.clone();
    let places: BTreeMap<NodeId, u32> = forward.divided.iter().copied().zip(0..).collect();
    let mut b = Builder::new(&mut trial, Stage::NAME);
    for id in b.module().order().to_vec() {
        b.set_stage(id, places.get(&id).copied().unwrap_or(EVERY_STAGE));
    }
    b.finish();
    let cx = &mut PassContext::default();
    Autodiff::default().run(&mut trial, cx).ok()?;
    put_off_all(&mut trial, Stage::NAME);
    if options.compute != DType::F32 {
        Precision { compute: options.compute, ..Precision::default() }.run(&mut trial, cx).ok()?;
    }
    if let Some(price) = options.recompute {
        let recompute = Recompute { price, first: None, then: 0, device: options.device.clone() };
        recompute.run(&mut trial, cx).ok()?;
    }
    Some(trial)
}

fn place_of(node: &Node, places: usize) -> Option<usize> {
    Some(node.stage as usize).filter(|&place| place < places)
}

/// Returns the bytes of the values that are made at each place and outlive their task, by class.
fn kept(trial: &Module, places: usize) -> [Vec<u64>; 3] {
    let mut classes: BTreeMap<ValueId, usize> = BTreeMap::new();
    for (_, node) in trial.nodes().filter(|(_, node)| node.phase.is_gradient()) {
        for &operand in &node.operands {
            let value = trial.viewed(operand, Movement::is_layout);
            let Definition::Node(maker, _) = trial.value(value).definition else { continue };
            let maker = trial.node(maker);
            let class = match (maker.phase, node.phase) {
                _ if matches!(maker.op, Op::Constant(_) | Op::Splat(_)) => continue,
                (Phase::Forward, Phase::Backward) => 0,
                (Phase::Forward, Phase::Weight) => 1,
                (Phase::Backward, Phase::Weight) => 2,
                _ => continue,
            };
            classes.entry(value).and_modify(|known| *known = class.max(*known)).or_insert(class);
        }
    }
    let mut kept = [(); 3].map(|()| vec![0u64; places]);
    for (value, class) in classes {
        if let Some(place) = trial.producer(value).and_then(|node| place_of(node, places)) {
            let bytes = &mut kept[class][place];
            *bytes = bytes.saturating_add(trial.ty(value).bytes().unwrap_or(0));
        }
    }
    kept
}

/// Returns for each place the bytes of the values that are made before it and read by forward nodes at or after it.
fn messages(trial: &Module, places: usize) -> Vec<u64> {
    let mut last: BTreeMap<ValueId, usize> = BTreeMap::new();
    for (_, node) in trial.nodes().filter(|(_, node)| node.phase == Phase::Forward) {
        let Some(place) = place_of(node, places) else { continue };
        for &operand in &node.operands {
            let own = last.entry(operand).or_default();
            *own = place.max(*own);
        }
    }
    let mut messages = vec![0u64; places];
    for (value, last) in last {
        let maker = trial.producer(value).filter(|node| node.phase == Phase::Forward);
        let Some(made) = maker.and_then(|node| place_of(node, places)) else { continue };
        let bytes = trial.ty(value).bytes().unwrap_or(0);
        let read = messages.iter_mut().take(last + 1).skip(made + 1);
        read.for_each(|sum| *sum = sum.saturating_add(bytes));
    }
    messages
}

/// Returns the elements of the weights that are first read at each place, and the weights that are read again.
fn weights(module: &Module, forward: &Forward) -> (Vec<u64>, Vec<Shared>) {
    let (mut first, mut shared) = (vec![0u64; forward.divided.len()], vec![]);
    for (state, places) in readers(module, forward) {
        let state = &module.states[state];
        if state.role != Role::Parameter {
            continue;
        }
        let elements = state.ty.numel().unwrap_or(0);
        if let Some(place) = places.first() {
            first[*place] = first[*place].saturating_add(elements);
        }
        let again = places.windows(2).map(|pair| Shared { before: pair[0], at: pair[1], elements });
        shared.extend(again);
    }
    (first, shared)
}

/// Returns for each state the places of the nodes that read it, directly or through nodes that depend only on weights.
fn readers(module: &Module, forward: &Forward) -> BTreeMap<StateId, Vec<usize>> {
    let mut behind: BTreeMap<ValueId, BTreeSet<StateId>> =
        module.states.iter().map(|(id, state)| (state.input, BTreeSet::from([id]))).collect();
    let read = |behind: &BTreeMap<ValueId, BTreeSet<StateId>>, node: &Node| -> BTreeSet<StateId> {
        node.operands.iter().filter_map(|value| behind.get(value)).flatten().copied().collect()
    };
    for (_, node) in module.nodes().filter(|(id, _)| forward.of_weights.contains(id)) {
        let states = read(&behind, node);
        node.results.iter().for_each(|&result| drop(behind.insert(result, states.clone())));
    }
    let mut readers: BTreeMap<StateId, Vec<usize>> = BTreeMap::new();
    for (place, &id) in forward.divided.iter().enumerate() {
        for state in read(&behind, module.node(id)) {
            readers.entry(state).or_default().push(place);
        }
    }
    readers
}

/// Returns the sums up to each place.
fn sums(of_places: Vec<u64>) -> Vec<u64> {
    let mut sums = vec![0u64];
    sums.extend(of_places.into_iter().scan(0u64, |sum, own| {
        *sum = sum.saturating_add(own);
        Some(*sum)
    }));
    sums
}

fn between(sums: &[u64], nodes: &Range<usize>) -> u64 {
    sums[nodes.end] - sums[nodes.start]
}
