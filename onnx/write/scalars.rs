//! The inference form of a model that computes its own loss: outputs that need labels are removed, with everything that only they
//! read.
//!
//! A scalar output, such as the loss or a metric, is removed if it reads an input that no other output reads: `labels` in most
//! files. If a model has only scalar outputs, they stay.

use crate::proto::{GraphProto, ModelProto, NodeProto};
use std::collections::{BTreeMap, BTreeSet};

/// Removes these scalar outputs of a model if they need inputs of their own. Returns the number of removed outputs.
pub(super) fn cut(model: &mut ModelProto, scalars: &BTreeSet<String>) -> usize {
    let Some(graph) = &mut model.graph else { return 0 };
    let outputs: BTreeSet<String> = graph.output.iter().filter_map(|output| output.name.clone()).collect();
    let others: BTreeSet<String> = outputs.difference(scalars).cloned().collect();
    if others.is_empty() {
        return 0;
    }
    let stored: BTreeSet<&str> =
        graph.initializer.iter().filter_map(|tensor| tensor.name.as_deref()).collect();
    let inputs = graph.input.iter().filter_map(|input| input.name.clone());
    let inputs: BTreeSet<String> = inputs.filter(|name| !stored.contains(name.as_str())).collect();
    let reader = Reader::of(graph);
    let needed = reader.behind(&others);
    let needs_more = |output: &&String| {
        let behind = reader.behind(&[(*output).clone()].into());
        behind.values.iter().any(|value| inputs.contains(value) && !needed.values.contains(value))
    };
    let gone: BTreeSet<String> = outputs.intersection(scalars).filter(needs_more).cloned().collect();
    if gone.is_empty() {
        return 0;
    }
    let before = reader.behind(&outputs);
    let after = reader.behind(&outputs.difference(&gone).cloned().collect());
    // Nodes and tensors that no output read before stay unchanged.
    let unread: BTreeSet<&String> = before.values.difference(&after.values).collect();
    let is_unread = |name: Option<&str>| name.is_some_and(|name| unread.contains(&name.to_owned()));
    let mut place = 0..;
    graph
        .node
        .retain(|_| place.next().is_some_and(|at| after.nodes.contains(&at) || !before.nodes.contains(&at)));
    graph.output.retain(|output| !output.name.as_ref().is_some_and(|name| gone.contains(name)));
    graph.input.retain(|input| !is_unread(input.name.as_deref()));
    graph.initializer.retain(|tensor| !is_unread(tensor.name.as_deref()));
    graph.value_info.retain(|value| {
        !is_unread(value.name.as_deref()) && !value.name.as_ref().is_some_and(|name| gone.contains(name))
    });
    gone.len()
}

/// The nodes and values that outputs of a graph read, directly or through other nodes.
#[derive(Default)]
struct Behind {
    nodes: BTreeSet<usize>,
    values: BTreeSet<String>,
}

/// The nodes of a graph, with the values that each of them reads.
struct Reader {
    reads: Vec<BTreeSet<String>>,
    producers: BTreeMap<String, usize>,
}

impl Reader {
    fn of(graph: &GraphProto) -> Self {
        let mut producers = BTreeMap::new();
        for (place, node) in graph.node.iter().enumerate() {
            producers
                .extend(node.output.iter().filter(|name| !name.is_empty()).map(|name| (name.clone(), place)));
        }
        let reads = graph.node.iter().map(|node: &NodeProto| {
            let mut read = BTreeSet::new();
            super::inference::reads(std::slice::from_ref(node), &mut read);
            read
        });
        Self { reads: reads.collect(), producers }
    }

    fn behind(&self, outputs: &BTreeSet<String>) -> Behind {
        let mut behind = Behind::default();
        let mut pending: Vec<&String> = outputs.iter().collect();
        while let Some(value) = pending.pop() {
            if !behind.values.insert(value.clone()) {
                continue;
            }
            if let Some(&node) = self.producers.get(value)
                && behind.nodes.insert(node)
            {
                pending.extend(&self.reads[node]);
            }
        }
        behind
    }
}
