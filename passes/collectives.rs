//! Collectives: rewrites a program so that it communicates less.
//!
//! A placed module, in which every collective stands where two shardings meet, goes into an e-graph. Rules that know only factors
//! and shardings (`rules`) add equal forms, and the cheapest program is extracted, counted as a DAG. For transformer blocks with
//! tensor parallelism and large activations it finds sequence parallelism as in Megatron-LM (Korthikanti et al., arXiv 2205.05198).
//!
//! Invariants: nodes compute the same values; no node moves to a later phase, another stage or another copy; a gather of one phase never
//! becomes a gather of another phase; every collective has one operand before and after.

mod decision;
mod graph;
mod insert;
mod order;
mod price;
mod rows;
mod rules;
mod split;

pub use decision::Decision;

use crate::arguments::Options;
use crate::pass::{PassContext, Transform};
use crate::rewriting::egraph::{Limits, Problem, saturate};
use decision::Search;
use graph::{ENode, Graph, Program, StepPlace};
use insert::insert;
use ir::machine::{Device, Link, Unit};
use ir::{At, Builder, Changed, DType, Diagnostic, Module, NodeId, Op, ValueId};
use order::Chosen;
use price::Prices;
use smallvec::SmallVec;
use std::collections::BTreeMap;

/// The pass `collectives`. `collectives(any, link=450, latency=1000, memory=3000, flops=600, kept=10, bucket=26214400)`.
///
/// The first four numbers describe the machine that it prices programs for: by default [`Device::assumed`]. The last two are prices of
/// the pass itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Collectives {
    /// Whether every dim may be cut, not only the rows of activations (sequences).
    pub any: bool,
    /// GB/s that a device sends while all devices send.
    pub link: u64,
    /// Nanoseconds of each step of a collective's ring; a launch takes several of them.
    pub latency: u64,
    /// GB/s of a device's memory.
    pub memory: u64,
    /// TFLOP/s of a device.
    pub flops: u64,
    /// The price of keeping a byte from forward to backward, in picoseconds. It is higher than the time of sending a byte, so that
    /// a value that can be gathered again is not kept whole.
    pub kept: u64,
    /// The bytes at which a reduction of the update pays its whole latency. Smaller reductions travel in buckets.
    pub bucket: u64,
}

impl Default for Collectives {
    fn default() -> Self {
        let device = Device::assumed();
        let in_units = |rate: f64, unit: f64| (rate / unit).round() as u64;
        Self {
            any: false,
            link: in_units(device.link.rate(), GIGA),
            latency: in_units(device.link.latency, NANO),
            memory: in_units(device.memory_rate(), GIGA),
            flops: in_units(device.rate(Unit::Matrices(DType::BF16)), TERA),
            kept: 10,
            bucket: 25 << 20,
        }
    }
}

const NANO: f64 = 1e-9;
const GIGA: f64 = 1e9;
const TERA: f64 = 1e12;

impl Collectives {
    /// Returns the device that programs are priced for.
    fn device(&self) -> Device {
        let bandwidth = self.link as f64 * GIGA;
        let link = Link { bandwidth, attained: 1.0, latency: self.latency as f64 * NANO };
        Device::with_rates(link, self.memory as f64 * GIGA, self.flops as f64 * TERA)
    }
}

impl Transform for Collectives {
    const NAME: &'static str = "collectives";
    const NEEDED: bool = false;

    fn options(&mut self, options: &mut Options) {
        let default = Self::default();
        options.flag("any", &mut self.any);
        options.value("link", &mut self.link, default.link);
        options.value("latency", &mut self.latency, default.latency);
        options.value("memory", &mut self.memory, default.memory);
        options.value("flops", &mut self.flops, default.flops);
        options.value("kept", &mut self.kept, default.kept);
        options.value("bucket", &mut self.bucket, default.bucket);
    }

    /// Rewrites a placed program. If a limit is reached, the program stays as it was and the user gets a warning.
    fn run(&self, module: &mut Module, cx: &mut PassContext) -> Result<Changed, Diagnostic> {
        match decide(module, self) {
            Ok(Some(decision)) => apply(module, &decision),
            Ok(None) => Ok(Changed::No),
            Err(limit) => {
                cx.warn(limit);
                Ok(Changed::No)
            }
        }
    }
}

/// Searches. Returns `None` if nothing is better. Errors: a limit was reached.
pub fn decide(module: &Module, options: &Collectives) -> Result<Option<Decision>, Diagnostic> {
    if !module.nodes().any(|(_, node)| matches!(node.op, Op::Collective(_))) {
        return Ok(None);
    }
    let mut graph = Graph::new(Program::new(module, options.any));
    let inserted = insert(&mut graph, module);
    let original = graph.nodes().len();
    let limits = Limits { iterations: 100, nodes: 100_000.max(20 * original) };
    let end = saturate(&mut graph, &rules::all(), limits);
    if !end.complete {
        let message =
            format!("collectives stopped after {} rounds: the program is not changed", end.iterations);
        return Err(Diagnostic::new(message));
    }
    let prices = Prices::new(options);
    let price = |class, node: &ENode| price::allowed(&graph, class, node).then(|| prices.of(&graph, node));
    let problem = Problem::new(&graph, inserted.root, price);
    let stood = inserted.stood(&graph);
    let choice = problem
        .solve(|node| stood.contains_key(node))
        .ok_or_else(|| Diagnostic::new("collectives found no program in its e-graph"))?;
    let order = problem.order(&choice).ok_or_else(|| Diagnostic::new("collectives chose a circle"))?;
    let place: BTreeMap<usize, usize> = order.iter().enumerate().map(|(i, &class)| (class, i)).collect();
    let chosen = order.into_iter().map(|class| {
        let candidate = &problem.classes[class][choice[class].expect("ordered classes are chosen")];
        let id = problem.ids[class];
        let args = candidate.needs.iter().map(|need| place[need]).collect();
        Chosen { class: id, node: candidate.node.clone(), place: graph[id].data.place, args }
    });
    let chosen: Vec<Chosen> = chosen.collect();
    Ok(Search { module, graph: &graph, inserted, stood, original, provenance: end.provenance }
        .decision(&chosen))
}

/// Replaces the old program by the new one.
pub fn apply(module: &mut Module, decision: &Decision) -> Result<Changed, Diagnostic> {
    let old: Vec<NodeId> = module.order().to_vec();
    let mut b = Builder::new(module, Collectives::NAME);
    let mut values: Vec<SmallVec<[ValueId; 2]>> = Vec::new();
    for step in &decision.steps {
        let operands: Vec<ValueId> = step.operands.iter().map(|operand| operand.value(&values)).collect();
        let StepPlace { phase, stage, copy } = step.place;
        b.at(At::End(phase)).stage(stage).copy(copy).origin(step.origin.clone()).by(&step.by);
        let results = b
            .push_typed(step.op.clone(), &operands, &step.types)
            .map_err(|error| Diagnostic::new(format!("collectives built an ill-typed node: {error}")))?;
        for (&result, ty) in results.iter().zip(&step.types) {
            b.shard(result, ty.sharding.clone());
        }
        values.push(results);
    }
    for (old, new) in &decision.exits {
        b.replace(*old, new.value(&values));
    }
    old.into_iter().for_each(|node| b.remove(node));
    Ok(b.finish())
}
