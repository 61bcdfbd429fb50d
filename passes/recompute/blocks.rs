//! Blocks: parts of the forward phase that are joined by a single large value, such as the layers of a transformer.
//!
//! The forward phase is cut wherever a single large value is read later. Values that are small, or that are read over more than
//! a third of the program, do not count: masks, position tables, the output of an encoder. Equal runs of segments are the model's
//! layers: the shortest period that covers most segments makes a block of each repetition. Segments without a period are
//! grouped by the square root of their number (Chen et al., Training Deep Nets with Sublinear Memory Cost, arXiv
//! 1604.06174).

use cranelift_entity::{EntitySet, SecondaryMap};
use ir::analysis::takes_no_time;
use ir::text::type_text;
use ir::{Definition, Module, Movement, NodeId, Op, Phase, ValueId};
use std::collections::BTreeMap;
use std::ops::Range;

/// The inverse of a share of the forward nodes: a value that is read over more than 1/`LONG` of them does not end a block.
const LONG: usize = 3;
/// The inverse of a share of sizes: a value smaller than 1/`SMALL` of their upper quartile does not end a block.
const SMALL: u64 = 16;

/// The blocks of the forward phase.
pub(super) struct Blocks {
    /// The live forward nodes of each block, in program order. No block is empty.
    nodes: Vec<Vec<NodeId>>,
    /// The values that a later block reads in the forward phase, directly or through views. They are always kept.
    pub(super) between: EntitySet<ValueId>,
}

impl Blocks {
    /// Finds the blocks among the live nodes.
    pub(super) fn find(module: &Module, live: &EntitySet<NodeId>) -> Self {
        let forward: Vec<NodeId> = module
            .nodes()
            .filter(|(id, node)| node.phase == Phase::Forward && live.contains(*id))
            .map(|(id, _)| id)
            .collect();
        let spans = Spans::of(module, &forward);
        let segments = segments(&spans, forward.len());
        let signatures = signatures(module, &forward, &segments);
        let mut groups = Vec::new();
        group(&signatures, 0, &mut groups);
        let nodes_of =
            |group: &Range<usize>| forward[segments[group.start].start..segments[group.end - 1].end].to_vec();
        let nodes: Vec<Vec<NodeId>> = groups.iter().map(nodes_of).collect();
        let mut block_of: Vec<usize> = Vec::with_capacity(forward.len());
        nodes.iter().enumerate().for_each(|(block, nodes)| block_of.extend(nodes.iter().map(|_| block)));
        let mut between = EntitySet::new();
        for span in &spans.0 {
            if block_of[span.made] != block_of[span.last_read] {
                between.insert(span.value);
            }
        }
        Self { nodes, between }
    }

    /// Returns the blocks whose nodes may be repeated: all but the last. Backward begins with the last block, so its activations would
    /// be computed again while they are still in memory.
    pub(super) fn repeatable(&self) -> &[Vec<NodeId>] {
        &self.nodes[..self.nodes.len().saturating_sub(1)]
    }
}

/// Returns the value whose bytes a view shows.
pub(super) fn base(module: &Module, value: ValueId) -> ValueId {
    module.viewed(value, Movement::is_layout)
}

/// Returns the bytes of a device's part of a value; `u64::MAX` if they are not known.
pub(super) fn local_bytes(module: &Module, value: ValueId) -> u64 {
    module.ty(value).local_bytes(&module.mesh).unwrap_or(u64::MAX)
}

/// A value, and the positions of its node and of its last reader among the forward nodes.
struct Span {
    value: ValueId,
    made: usize,
    last_read: usize,
    bytes: u64,
}

/// The spans of all values that forward nodes compute, except views and constants.
struct Spans(Vec<Span>);

impl Spans {
    fn of(module: &Module, forward: &[NodeId]) -> Self {
        let mut spans = Vec::new();
        let mut index_of: SecondaryMap<ValueId, Option<u32>> = SecondaryMap::new();
        for (position, &id) in forward.iter().enumerate() {
            let node = module.node(id);
            for &operand in &node.operands {
                if let Some(index) = index_of[base(module, operand)] {
                    let span: &mut Span = &mut spans[index as usize];
                    span.last_read = position;
                }
            }
            if takes_no_time(&node.op) {
                continue;
            }
            for &value in &node.results {
                index_of[value] = Some(spans.len() as u32);
                let bytes = local_bytes(module, value);
                spans.push(Span { value, made: position, last_read: position, bytes });
            }
        }
        Self(spans)
    }

    /// Returns the least bytes of a value that may end a block.
    fn least(&self) -> u64 {
        let mut sizes: Vec<u64> = self.0.iter().map(|span| span.bytes).collect();
        sizes.sort_unstable();
        sizes.get(sizes.len() * 3 / 4).map_or(0, |quartile| quartile / SMALL)
    }
}

/// Cuts the forward nodes, by their positions, after each node after which only a single large value is still read.
///
/// A walk over the positions counts the values that are alive, and sums up their indices. If the count is one, the sum is the index of
/// the value that is alone. Each value cuts once, at the first position where it is alone.
fn segments(spans: &Spans, count: usize) -> Vec<Range<usize>> {
    let least = spans.least();
    let ends_blocks = |span: &&Span| span.bytes >= least && (span.last_read - span.made) * LONG <= count;
    // At each position, the changes of two sums over the values that are alive after it: their number, and the sum of their indices.
    let mut alive = vec![(0i64, 0i64); count + 1];
    for (index, span) in spans.0.iter().enumerate().filter(|(_, span)| ends_blocks(span)) {
        let index = index as i64;
        alive[span.made].0 += 1;
        alive[span.made].1 += index;
        alive[span.last_read].0 -= 1;
        alive[span.last_read].1 -= index;
    }
    let (mut segments, mut start, mut before) = (Vec::new(), 0, None);
    let (mut values, mut numbers) = (0, 0);
    for (position, (more, added)) in alive.iter().enumerate().take(count) {
        values += more;
        numbers += added;
        let alone = (values == 1).then_some(numbers);
        if alone.is_some() && alone != before {
            segments.push(start..position + 1);
            start = position + 1;
            before = alone;
        }
    }
    if start < count {
        segments.push(start..count);
    }
    segments
}

/// Returns a number for each segment. Equal segments have equal numbers.
fn signatures(module: &Module, forward: &[NodeId], segments: &[Range<usize>]) -> Vec<usize> {
    let mut known: BTreeMap<Vec<(&'static str, String)>, usize> = BTreeMap::new();
    let mut signature = |segment: &Range<usize>| {
        let node = |&id: &NodeId| {
            let node = module.node(id);
            let types: Vec<String> =
                node.results.iter().map(|&result| type_text(&module.mesh, module.ty(result))).collect();
            (node.op.name(), types.join(" "))
        };
        let next = known.len();
        *known.entry(forward[segment.clone()].iter().map(node).collect()).or_insert(next)
    };
    segments.iter().map(&mut signature).collect()
}

/// Groups segments into blocks. `offset` is the index of the first segment.
fn group(signatures: &[usize], offset: usize, groups: &mut Vec<Range<usize>>) {
    let count = signatures.len();
    let longest = (1..=count / 2).filter_map(|period| Some((longest_run(signatures, period)?, period)));
    let most = longest.max_by_key(|(run, period)| (run.len(), std::cmp::Reverse(*period)));
    let Some((run, period)) = most else {
        let each = count.isqrt().max(1);
        groups.extend((0..count).step_by(each).map(|start| offset + start..offset + count.min(start + each)));
        return;
    };
    group(&signatures[..run.start], offset, groups);
    let starts = run.clone().step_by(period);
    groups.extend(starts.map(|start| offset + start..offset + start + period));
    group(&signatures[run.end..], offset + run.end, groups);
}

/// Returns the longest run of segments that repeats with a period, cut to whole periods, of which it has at least two.
fn longest_run(signatures: &[usize], period: usize) -> Option<Range<usize>> {
    let (mut best, mut equal) = (0..0, 0);
    for end in period..signatures.len() {
        equal = if signatures[end] == signatures[end - period] { equal + 1 } else { 0 };
        let whole = (equal + period) / period * period;
        if equal >= period && whole > best.len() {
            let start = end + 1 - equal - period;
            best = start..start + whole;
        }
    }
    (!best.is_empty()).then_some(best)
}

/// Whether a forward node computes a value, and it is no constant.
pub(super) fn is_activation(module: &Module, value: ValueId) -> bool {
    match module.value(value).definition {
        Definition::Node(id, _) => {
            let node = module.node(id);
            node.phase == Phase::Forward && !matches!(node.op, Op::Constant(_) | Op::Splat(_))
        }
        Definition::Input(_) | Definition::State(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn groups(signatures: &[usize]) -> Vec<Range<usize>> {
        let mut found = Vec::new();
        group(signatures, 0, &mut found);
        found
    }

    #[test]
    fn layers_of_two_segments_are_one_block_each() {
        assert_eq!(groups(&[0, 1, 2, 1, 2, 1, 2, 3]), [0..1, 1..3, 3..5, 5..7, 7..8]);
    }

    #[test]
    fn two_runs_of_layers_are_found_one_after_the_other() {
        assert_eq!(groups(&[1, 1, 1, 2, 3, 2, 3]), [0..1, 1..2, 2..3, 3..5, 5..7]);
    }

    #[test]
    fn segments_without_a_period_are_grouped_by_the_root_of_their_number() {
        assert_eq!(groups(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]), [0..3, 3..6, 6..9, 9..10]);
    }
}
