//! Compares the programs that are extracted for random programs with the originals.

use super::graph::{ENode, Graph, Head, Typing};
use super::{exits, insert, price, rules, stood, stored};
use crate::rewriting::egraph::{Limits, Problem, saturate};
use ir::{DType, Module, NodeId, Phase, testing};

/// Returns the cost of the extracted program, with or without the rules.
fn cost(module: &Module, with_rules: bool) -> u64 {
    let region: Vec<NodeId> =
        module.nodes().filter(|(_, node)| node.phase == Phase::Forward).map(|(id, _)| id).collect();
    let mut graph = Graph::new(Typing::new(module));
    let classes = insert(&mut graph, module, &region);
    let args = exits(module, &region).iter().map(|value| classes[value]).collect();
    let root = graph.add(ENode { head: Head::Root, args });
    let applied = if with_rules { rules::all() } else { vec![] };
    assert!(saturate(&mut graph, &applied, Limits { iterations: 100, nodes: 100_000 }).complete);
    let tables = stored(&graph);
    let problem = Problem::new(&graph, root, |_, node| {
        Some(price(&graph, &tables, &std::collections::BTreeSet::new(), node))
    });
    let stood = stood(module, &graph, &region, &classes);
    let choice = problem.solve(|node| stood.contains_key(node)).expect("the program itself can be chosen");
    problem.total(&choice)
}

#[test]
fn what_comes_out_never_costs_more_than_what_went_in() {
    for seed in 0..60 {
        let module = testing::program(seed, DType::F32, 24);
        let (before, after) = (cost(&module, false), cost(&module, true));
        assert!(after <= before, "seed {seed}: {before} became {after}");
    }
}

#[test]
fn rules_make_random_programs_cheaper_at_times() {
    let cheaper = |seed: &u64| {
        let module = testing::program(*seed, DType::F32, 24);
        cost(&module, true) < cost(&module, false)
    };
    assert!((0..20).any(|seed| cheaper(&seed)), "then the other test compares equals");
}
