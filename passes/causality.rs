//! Causality: finds whether position t of a result depends only on positions up to t of an input. The analysis changes nothing.
//!
//! Each value has the latest position of the input that its elements depend on. The latest position of an element is the
//! largest of one number for each index of each dim (`Latest`), which is exact for the programs of decoders: hidden states
//! `[batch, t, width]` depend on positions up to `t`, and scores `[batch, heads, t, s]` on positions up to `max(t, s)`. A mask
//! that hides the scores of later positions is known by `bounds`, so the weighted sum over `s` reads no position after `t`.
//! Each element of the result of an unknown operator depends on all elements of its operands.

mod bounds;

use crate::analysis::constants::Constants;
use bounds::{Bounds, Hiding};
use ir::factors::{FactorKind, Factors};
use ir::ops::attention::Attention;
use ir::ops::contract::Contract;
use ir::ops::conv::Conv;
use ir::ops::recurrent::Recurrent;
use ir::ops::reduce::CumulativeSum;
use ir::ops::shape::{Concat, Pad, Slice};
use ir::{Module, Node, Op, Operator, ValueId};
use std::collections::BTreeMap;

/// The position of an element that depends on no position.
const NONE: i64 = -1;

/// The latest position that each element of a value depends on: the largest of `all`, and of one number for each of the
/// element's indices in `along`.
#[derive(Clone, Debug, Default, PartialEq)]
struct Latest {
    /// A position that counts for all elements.
    all: i64,
    /// A position for each index of some dims.
    along: BTreeMap<usize, Vec<i64>>,
}

impl Latest {
    fn none() -> Self {
        Self { all: NONE, along: BTreeMap::new() }
    }

    /// Returns the latest position of all elements.
    fn largest(&self) -> i64 {
        self.along.values().flatten().copied().fold(self.all, i64::max)
    }

    /// Adds positions for the indices of a dim.
    fn add(&mut self, dim: usize, positions: Vec<i64>) {
        match self.along.get_mut(&dim) {
            None => {
                self.along.insert(dim, positions);
            }
            Some(known) => {
                known.iter_mut().zip(positions).for_each(|(known, new)| *known = (*known).max(new))
            }
        }
    }

    /// Adds the positions of another value with the same dims.
    fn join(&mut self, other: &Self) {
        self.all = self.all.max(other.all);
        for (&dim, positions) in &other.along {
            self.add(dim, positions.clone());
        }
    }

    /// Splits off the positions along a dim. The rest has no numbers for this dim.
    fn split(&self, dim: usize, size: usize) -> (Vec<i64>, Self) {
        let mut rest = self.clone();
        (rest.along.remove(&dim).unwrap_or_else(|| vec![NONE; size]), rest)
    }
}

/// Whether a value depends, at index t of `dim`, on no position after t of the integer input `[batch, t]`.
pub fn is_causal(module: &Module, input: ValueId, result: ValueId, dim: usize) -> bool {
    let Some([_, sequence]) = module.ty(input).sizes().and_then(|sizes| <[u64; 2]>::try_from(sizes).ok())
    else {
        return false;
    };
    let Some(latest) = Positions::of(module, input, sequence).latest.remove(&result) else { return true };
    let (own, rest) = latest.split(dim, sequence as usize);
    rest.largest() <= 0 && own.iter().zip(0..).all(|(&position, index)| position <= index)
}

/// The analysis of a program.
struct Positions<'m> {
    module: &'m Module,
    /// Values that are missing depend on no position.
    latest: BTreeMap<ValueId, Latest>,
    bounds: Bounds<'m>,
    constants: Constants<'m>,
}

impl<'m> Positions<'m> {
    fn of(module: &'m Module, input: ValueId, sequence: u64) -> Self {
        let first = Latest { all: NONE, along: [(1, (0..sequence as i64).collect())].into() };
        let (bounds, constants) = (Bounds::new(module), Constants::new(module));
        let mut positions = Self { module, latest: [(input, first)].into(), bounds, constants };
        for (_, node) in module.nodes() {
            positions.node(node);
        }
        positions
    }

    fn of_operand(&self, node: &Node, operand: usize) -> Latest {
        self.latest.get(&node.operands[operand]).cloned().unwrap_or_else(Latest::none)
    }

    fn sizes(&self, value: ValueId) -> Option<Vec<usize>> {
        Some(self.module.ty(value).sizes()?.into_iter().map(|size| size as usize).collect())
    }

    fn node(&mut self, node: &Node) {
        if !node.operands.iter().any(|operand| self.latest.contains_key(operand)) {
            return;
        }
        let results = match &node.op {
            Op::Recurrent(layer) => self.recurrent(node, layer),
            _ => self.special(node).map(|first| vec![first; node.results.len()]),
        };
        let results = results.or_else(|| self.by_factors(node)).unwrap_or_else(|| self.mixed(node));
        self.latest.extend(node.results.iter().copied().zip(results));
    }

    /// Returns the positions of results whose elements each depend on all elements of all operands.
    fn mixed(&self, node: &Node) -> Vec<Latest> {
        let all = (0..node.operands.len()).map(|operand| self.of_operand(node, operand).largest());
        let all = all.fold(NONE, i64::max);
        vec![Latest { all, along: BTreeMap::new() }; node.results.len()]
    }

    /// Handles operators whose factors do not tell which indices an element reads. Returns the positions of the first result; all
    /// results have the same dims.
    fn special(&mut self, node: &Node) -> Option<Latest> {
        match &node.op {
            Op::Slice(slice) => self.slice(node, slice),
            Op::Pad(pad) => self.pad(node, pad),
            Op::Concat(concat) => self.concat(node, concat),
            Op::CumulativeSum(sum) => Some(self.cumulative_sum(node, sum)),
            Op::Conv(conv) => self.conv(node, conv),
            Op::Gather(gather) => self.gather(node, gather.dim as usize),
            Op::Softmax(softmax) => self.softmax(node, softmax.dim as usize),
            Op::Contract(contract) => self.contract(node, contract),
            Op::Attention(attention) => self.attention(node, attention),
            _ => None,
        }
    }

    fn slice(&self, node: &Node, slice: &Slice) -> Option<Latest> {
        let (dim, latest) = (slice.dim as usize, self.of_operand(node, 0));
        let Some(positions) = latest.along.get(&dim) else { return Some(latest) };
        let count = self.sizes(node.results[0])?[dim];
        let index = |i: usize| usize::try_from(slice.start + slice.step * i as i64).ok();
        let cut = (0..count).map(|i| positions.get(index(i)?).copied()).collect::<Option<Vec<_>>>()?;
        let mut latest = latest.clone();
        latest.along.insert(dim, cut);
        Some(latest)
    }

    fn pad(&self, node: &Node, pad: &Pad) -> Option<Latest> {
        let (dim, mut latest) = (pad.dim as usize, self.of_operand(node, 0));
        if let Some(positions) = latest.along.remove(&dim) {
            let size = self.sizes(node.results[0])?[dim];
            let mut padded = vec![NONE; pad.before as usize];
            padded.extend(positions);
            padded.resize(size, NONE);
            latest.along.insert(dim, padded);
        }
        Some(latest)
    }

    /// Puts operands side by side. A position that all elements of one operand depend on counts only for the indices of that operand.
    fn concat(&self, node: &Node, concat: &Concat) -> Option<Latest> {
        let dim = concat.dim as usize;
        let (mut joined, mut beside) = (Latest::none(), vec![]);
        for operand in 0..node.operands.len() {
            let size = self.sizes(node.operands[operand])?[dim];
            let (positions, rest) = self.of_operand(node, operand).split(dim, size);
            beside.extend(positions.into_iter().map(|position| position.max(rest.all)));
            joined.join(&Latest { all: NONE, ..rest });
        }
        if beside.iter().any(|&position| position > NONE) {
            joined.along.insert(dim, beside);
        }
        Some(joined)
    }

    fn cumulative_sum(&self, node: &Node, sum: &CumulativeSum) -> Latest {
        let mut latest = self.of_operand(node, 0);
        let Some(mut positions) = latest.along.remove(&(sum.dim as usize)) else { return latest };
        if sum.reverse {
            positions.reverse();
        }
        let mut before = NONE;
        for position in &mut positions {
            let with = before.max(*position);
            *position = if sum.exclusive { before } else { with };
            before = with;
        }
        if sum.reverse {
            positions.reverse();
        }
        latest.along.insert(sum.dim as usize, positions);
        latest
    }

    /// Handles a recurrent layer: a step reads the steps before it in the layer's direction.
    fn recurrent(&self, node: &Node, layer: &Recurrent) -> Option<Vec<Latest>> {
        let count = self.sizes(node.operands[0])?[0];
        let (mut steps, rest) = self.of_operand(node, 0).split(0, count);
        if layer.reverse {
            steps.reverse();
        }
        let mut before = NONE;
        for position in &mut steps {
            before = before.max(*position);
            *position = before;
        }
        if layer.reverse {
            steps.reverse();
        }
        let others = (1..node.operands.len()).map(|operand| self.of_operand(node, operand).largest());
        let all = others.fold(rest.largest(), i64::max);
        let mut results = vec![Latest { all: all.max(before), along: BTreeMap::new() }; node.results.len()];
        results[0] = Latest { all, along: [(0, steps)].into() };
        Some(results)
    }

    /// Handles a convolution: a window reads the positions of its elements.
    fn conv(&self, node: &Node, conv: &Conv) -> Option<Latest> {
        let weight = self.of_operand(node, 1).largest();
        let (x, kernel) = (self.of_operand(node, 0), self.sizes(node.operands[1])?);
        let sizes = self.sizes(node.results[0])?;
        let (mut latest, mut all) = (Latest::none(), x.all.max(weight));
        for (dim, positions) in &x.along {
            let Some(spatial) = dim.checked_sub(2) else {
                // The batch dim stays; channels are summed.
                match dim {
                    0 => latest.add(0, positions.clone()),
                    _ => all = positions.iter().copied().fold(all, i64::max),
                }
                continue;
            };
            let (stride, dilation) = (conv.strides[spatial] as usize, conv.dilations[spatial] as usize);
            let before = conv.pads[spatial] as usize;
            let read = |t: usize, k: usize| {
                let index = (t * stride + k * dilation).checked_sub(before)?;
                positions.get(index).copied()
            };
            let window = |t| (0..kernel[*dim]).filter_map(|k| read(t, k)).fold(NONE, i64::max);
            latest.add(*dim, (0..sizes[*dim]).map(window).collect());
        }
        latest.all = all;
        Some(latest)
    }

    /// Handles a lookup in a table, which reads the rows that its indices name. Constant indices in one dim read rows at known places.
    fn gather(&mut self, node: &Node, dim: usize) -> Option<Latest> {
        let (data, indices) = (self.of_operand(node, 0), self.of_operand(node, 1));
        let count = self.sizes(node.operands[1])?.len();
        let size = self.sizes(node.operands[0])?[dim];
        let (rows, rest) = data.split(dim, size);
        let mut latest = Latest { all: rest.all.max(indices.all), along: BTreeMap::new() };
        for (at, positions) in rest.along {
            latest.add(if at < dim { at } else { at + count - 1 }, positions);
        }
        for (at, positions) in indices.along {
            latest.add(at + dim, positions);
        }
        if rows.iter().all(|&row| row == NONE) {
            return Some(latest);
        }
        let table = self.constants.value(node.operands[1]).filter(|_| count == 1);
        let row = |&index: &i64| rows.get(usize::try_from(index).ok()?).copied();
        match table.and_then(|table| table.ints().iter().map(row).collect::<Option<Vec<_>>>()) {
            Some(read) => latest.add(dim, read),
            None => latest.all = rows.into_iter().fold(latest.all, i64::max),
        }
        Some(latest)
    }

    /// Handles a softmax: a probability depends on all scores of its row that are not hidden.
    fn softmax(&mut self, node: &Node, dim: usize) -> Option<Latest> {
        let sizes = self.sizes(node.operands[0])?;
        let row = sizes.len().checked_sub(2)?;
        if dim != row + 1 {
            return None;
        }
        let (read, mut rest) = self.of_operand(node, 0).split(dim, sizes[dim]);
        let hiding = self.bounds.hidden_scores(node.operands[0]);
        rest.add(row, visible(&read, sizes[row], &hiding));
        Some(rest)
    }

    /// Handles a sum over the last dim of one side, such as the product of attention's probabilities and values. Where the element of this
    /// side is zero, the other side does not count.
    fn contract(&mut self, node: &Node, contract: &Contract) -> Option<Latest> {
        let roles = contract.roles();
        let [summed] = roles.summed[..] else { return None };
        let labels = [&contract.lhs.0, &contract.rhs.0];
        for (weights, values) in [(0, 1), (1, 0)] {
            let sizes = self.sizes(node.operands[weights])?;
            let [.., row, column] = labels[weights][..] else { continue };
            if column != summed || !contract.out.0.contains(&row) || labels[values].contains(&row) {
                continue;
            }
            let hiding = self.bounds.zeros(node.operands[weights]);
            if matches!(hiding, Hiding::Nothing) {
                continue;
            }
            let at = |operand: usize, label: u8| labels[operand].iter().position(|&own| own == label);
            let (weights_at, values_at) = (at(weights, summed)?, at(values, summed)?);
            let size = sizes[weights_at];
            let (mut read, weights_rest) = self.of_operand(node, weights).split(weights_at, size);
            let (of_values, values_rest) = self.of_operand(node, values).split(values_at, size);
            read.iter_mut().zip(of_values).for_each(|(read, value)| *read = (*read).max(value));
            let out = |label: u8| contract.out.0.iter().position(|&own| own == label);
            let mut latest = Latest { all: weights_rest.all.max(values_rest.all), along: BTreeMap::new() };
            for (operand, rest) in [(weights, weights_rest), (values, values_rest)] {
                for (dim, positions) in rest.along {
                    latest.add(out(labels[operand][dim])?, positions);
                }
            }
            latest.add(out(row)?, visible(&read, sizes[weights_at - 1], &hiding));
            return Some(latest);
        }
        None
    }

    /// Handles attention: query `i` reads itself, and the keys and values that its mask shows.
    fn attention(&mut self, node: &Node, attention: &Attention) -> Option<Latest> {
        let (queries, keys) = (self.sizes(node.operands[0])?[2], self.sizes(node.operands[1])?[2]);
        let (mut rows, mut latest) = self.of_operand(node, 0).split(2, queries);
        let mut read = vec![NONE; keys];
        for operand in 1..3 {
            let (positions, rest) = self.of_operand(node, operand).split(2, keys);
            read.iter_mut().zip(positions).for_each(|(read, new)| *read = (*read).max(new));
            latest.all = latest.all.max(rest.largest());
        }
        let mut hiding = Hiding::Nothing;
        if let Some(&mask) = node.operands.get(3) {
            let sizes = self.sizes(mask)?;
            let (of_rows, rest) = self.of_operand(node, 3).split(2, sizes[2]);
            let (of_keys, rest) = rest.split(3, keys);
            latest.all = latest.all.max(rest.largest());
            (0..queries).for_each(|row| rows[row] = rows[row].max(of_rows[row % of_rows.len()]));
            read.iter_mut().zip(of_keys).for_each(|(read, new)| *read = (*read).max(new));
            hiding = self.bounds.hidden_by_mask(mask);
        }
        // Heads and widths are not distinguished.
        latest = Latest { all: latest.largest(), along: BTreeMap::new() };
        let seen = if attention.causal {
            let hidden = |row: usize, key: usize| key > row || hiding.hides(row, key);
            (0..queries).map(|row| shown(&read, |key| hidden(row, key))).collect()
        } else {
            visible(&read, queries, &hiding)
        };
        rows.iter_mut().zip(seen).for_each(|(row, seen): (_, i64)| *row = (*row).max(seen));
        latest.along.insert(2, rows);
        Some(latest)
    }

    /// Handles any operator with factors: an element of a result reads the elements of operands that have its index along a free factor,
    /// and all elements along other factors.
    fn by_factors(&self, node: &Node) -> Option<Vec<Latest>> {
        if matches!(node.op, Op::ScatterElements(_) | Op::ScatterNd(_)) {
            return None;
        }
        let factors = node.op.factors(&self.module.signature(node));
        let mut all = NONE;
        let mut along: BTreeMap<u32, Vec<i64>> = BTreeMap::new();
        for (operand, dims) in factors.operands.iter().enumerate() {
            let latest = self.of_operand(node, operand);
            all = all.max(latest.all);
            for (dim, positions) in &latest.along {
                for (factor, positions) in of_factors(&factors, &dims[*dim], positions)? {
                    match factor.filter(|&factor| factors.factors[factor as usize].kind == FactorKind::Free) {
                        None => all = positions.into_iter().fold(all, i64::max),
                        Some(factor) => {
                            let known = along.entry(factor).or_insert_with(|| vec![NONE; positions.len()]);
                            known
                                .iter_mut()
                                .zip(positions)
                                .for_each(|(known, new)| *known = (*known).max(new));
                        }
                    }
                }
            }
        }
        let result = |dims: &Vec<ir::factors::DimFactors>| {
            let is_there = |factor: &u32| dims.iter().any(|dim| dim.contains(factor));
            let reduced = along.iter().filter(|(factor, _)| !is_there(factor));
            let all = reduced.flat_map(|(_, positions)| positions).copied().fold(all, i64::max);
            let mut latest = Latest { all, along: BTreeMap::new() };
            for (dim, own) in dims.iter().enumerate() {
                if own.iter().any(|factor| along.contains_key(factor)) {
                    latest.along.insert(dim, merged(&factors, own, &along)?);
                }
            }
            Some(latest)
        };
        factors.results.iter().map(result).collect()
    }
}

/// Returns the latest position that each row reads, given the positions of the columns.
fn visible(read: &[i64], rows: usize, hiding: &Hiding) -> Vec<i64> {
    match hiding {
        Hiding::Nothing => vec![read.iter().copied().fold(NONE, i64::max); rows],
        hiding => (0..rows).map(|row| shown(read, |column| hiding.hides(row, column))).collect(),
    }
}

/// Returns the latest of the positions that are not hidden.
fn shown(read: &[i64], is_hidden: impl Fn(usize) -> bool) -> i64 {
    let shown = read.iter().enumerate().filter(|(column, _)| !is_hidden(*column));
    shown.map(|(_, &position)| position).fold(NONE, i64::max)
}

fn size_of(factors: &Factors, factor: u32) -> Option<usize> {
    factors.factors[factor as usize].size.size().map(|size| size as usize)
}

/// Converts the positions along a dim to positions along its factors. The factor is `None` for a dim without factors. If the positions
/// are not the maximum of one number for each factor, only the last factor has numbers: the latest at any index of the others.
fn of_factors(factors: &Factors, dim: &[u32], positions: &[i64]) -> Option<Vec<(Option<u32>, Vec<i64>)>> {
    if let [] | [_] = dim {
        return Some(vec![(dim.first().copied(), positions.to_vec())]);
    }
    let sizes = dim.iter().map(|&factor| size_of(factors, factor)).collect::<Option<Vec<_>>>()?;
    let strides: Vec<usize> = (0..dim.len()).map(|i| sizes[i + 1..].iter().product()).collect();
    let index = |place: usize, i: usize| place / strides[i] % sizes[i];
    let least = |i: usize| {
        let mut least = vec![i64::MAX; sizes[i]];
        for (place, &position) in positions.iter().enumerate() {
            let least = &mut least[index(place, i)];
            *least = (*least).min(position);
        }
        least
    };
    let each: Vec<Vec<i64>> = (0..dim.len()).map(least).collect();
    let largest = |place: usize| (0..dim.len()).map(|i| each[i][index(place, i)]).max();
    if positions.iter().enumerate().all(|(place, &position)| largest(place) == Some(position)) {
        return Some(dim.iter().copied().map(Some).zip(each).collect());
    }
    let last = dim.len() - 1;
    let mut latest = vec![NONE; sizes[last]];
    for (place, &position) in positions.iter().enumerate() {
        let latest = &mut latest[index(place, last)];
        *latest = (*latest).max(position);
    }
    Some(vec![(Some(dim[last]), latest)])
}

/// Returns the positions along a dim with these factors.
fn merged(factors: &Factors, dim: &[u32], along: &BTreeMap<u32, Vec<i64>>) -> Option<Vec<i64>> {
    let mut merged = vec![NONE];
    for &factor in dim {
        let size = size_of(factors, factor)?;
        let own = along.get(&factor).filter(|own| own.len() == size);
        let minor = (0..size).map(|index| own.map_or(NONE, |own| own[index])).collect::<Vec<_>>();
        merged = merged.iter().flat_map(|&major| minor.iter().map(move |&minor| major.max(minor))).collect();
    }
    Some(merged)
}
