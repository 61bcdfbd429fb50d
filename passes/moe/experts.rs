//! Turns a block into experts: its parameters become those of experts, and its nodes are built again on tokens at their experts.

use super::balance::{self, BalanceScalars};
use super::find::{Block, Linear, linear};
use super::route::{self, Choice, Sizes, known};
use super::slots::{self, Slots};
use super::{ExpertStart, Moe};
use ir::ops::contract::Contract;
use ir::ops::experts::Experts;
use ir::ops::indexing::Gather;
use ir::{
    At, Builder, Definition, Diagnostic, Dim, Initializer, Op, Role, StateId, Type, TypeError, ValueId, View,
    ViewStep,
};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

/// The layout of tokens at their experts.
#[derive(Clone, Copy, Debug)]
enum Places {
    /// Rows `[rows, features]`, with the number of each row's expert, `i64[rows]`.
    Rows(ValueId),
    /// Slots `[experts, slots, features]`.
    Slots,
}

/// The shape of a state in terms of the block's hidden numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    /// A matrix that computes hidden numbers.
    Entry { transposed: bool },
    /// A matrix that sums over hidden numbers.
    Exit { transposed: bool },
    /// One number for each hidden number.
    Hidden,
    /// One number for each feature of the result.
    Result,
}

impl Moe {
    /// Replaces a block by a mixture.
    pub(super) fn insert(
        &self,
        b: &mut Builder,
        block: &Block,
        layer: u32,
        parts: &mut BalanceScalars,
    ) -> Result<(), Diagnostic> {
        let (input, output) = (block.input, block.output);
        // The nodes of the mixture stand before the last node of the block, where all its operands are known.
        b.at(At::Before(block.last)).origin(&*block.origin);
        let ty = b.ty(input).clone();
        let all = ty.sizes().unwrap_or_default();
        let (Some(&features), Some(groups)) = (all.last(), block.samples.size()) else {
            return Err(Diagnostic::new(format!("the tokens of a mixture have unbound dims: {ty}"))
                .note("bind them: --microbatch and --seq, or --bind NAME=SIZE"));
        };
        let tokens = all.iter().product::<u64>() / (groups * features).max(1);
        let sizes = Sizes { groups, tokens, features };
        let x = b.reshape(input, known(&[sizes.groups, sizes.tokens, sizes.features]))?;
        let router = router_name(b, block, layer);
        let states = self.states(b, block)?;
        let scores = route::scores(b, self, x, sizes, &router)?;
        let y = match self.routing.capacity {
            None => {
                let choice = route::choose(b, self, scores, sizes, &router)?;
                let load = balance::of_choices(b, self, parts, scores, choice, None, sizes)?;
                parts.loads.push((router, load));
                self.at_rows(b, block, &states, x, choice, sizes)?
            }
            Some(capacity) => {
                let of_expert = slots::of_expert(self, capacity, sizes);
                let slots = if self.routing.by_experts {
                    balance::of_scores(b, self, parts, scores, sizes)?;
                    slots::of_experts(b, self, of_expert, scores.logits, sizes)?
                } else {
                    let choice = route::choose(b, self, scores, sizes, &router)?;
                    let (slots, kept) = slots::of_tokens(b, self, of_expert, choice, sizes)?;
                    let load = balance::of_choices(b, self, parts, scores, choice, Some(kept), sizes)?;
                    parts.loads.push((router, load));
                    slots
                };
                self.at_slots(b, block, &states, x, slots, sizes)?
            }
        };
        let mut y = b.reshape(y, b.ty(output).dims.clone())?;
        if self.shared {
            b.at(At::After(block.last));
            // Readers of the dense result will read the sum, and the sum reads a copy of the last dense node.
            let last = b.module().node(block.last).clone();
            let dense = b.one(last.op, &last.operands)?;
            y = b.build(dense + y)?;
        }
        b.replace(output, y);
        Ok(())
    }

    /// Builds the experts on rows: each token is a row for each of its choices.
    fn at_rows(
        &self,
        b: &mut Builder,
        block: &Block,
        states: &BTreeMap<ValueId, ValueId>,
        x: ValueId,
        choice: Choice,
        sizes: Sizes,
    ) -> Result<ValueId, TypeError> {
        let Sizes { groups, tokens, features } = sizes;
        let (top, dtype) = (self.routing.top, b.ty(x).dtype);
        let rows = groups * tokens * top;
        let x = b.reshape(x, known(&[groups, tokens, 1, features]))?;
        let x = b.broadcast(x, known(&[groups, tokens, top, features]))?;
        let x = b.reshape(x, known(&[rows, features]))?;
        let index = b.reshape(choice.experts, known(&[rows]))?;
        let y = build(b, block, states, x, Places::Rows(index))?;
        let out = b.ty(y).dims[1].clone();
        let y = b.reshape(y, known(&[groups, tokens, top]).into_iter().chain([out]))?;
        let gates = b.cast(choice.gates, dtype)?;
        let gates = b.reshape(gates, known(&[groups, tokens, top, 1]))?;
        b.sum(y * gates, &[2])
    }

    fn at_slots(
        &self,
        b: &mut Builder,
        block: &Block,
        states: &BTreeMap<ValueId, ValueId>,
        x: ValueId,
        slots: Slots,
        sizes: Sizes,
    ) -> Result<ValueId, TypeError> {
        let x = slots.dispatch(b, self, x, sizes)?;
        let y = build(b, block, states, x, Places::Slots)?;
        slots.combine(b, self, y, sizes)
    }

    /// Adds the experts' state for each parameter of a block. Returns their values by those of the block.
    fn states(&self, b: &mut Builder, block: &Block) -> Result<BTreeMap<ValueId, ValueId>, Diagnostic> {
        let mut shapes: Vec<(StateId, Shape)> = Vec::new();
        for &id in &block.nodes {
            let module = b.module();
            let node = module.node(id);
            if let Some(Linear { rows, weight, transposed }) = linear(module, node) {
                let is_entry = rows == block.input;
                shapes.push((
                    weight,
                    if is_entry { Shape::Entry { transposed } } else { Shape::Exit { transposed } },
                ));
                continue;
            }
            for &operand in &node.operands {
                if let Definition::State(state) = module.value(operand).definition {
                    let is_last = id == block.last && node.results[0] == block.output;
                    let follows_exit = is_last && !matches!(node.op, Op::Contract(_));
                    shapes.push((state, if follows_exit { Shape::Result } else { Shape::Hidden }));
                }
            }
        }
        let mut found = BTreeMap::new();
        for (id, shape) in shapes {
            let dense = b.module().states[id].input;
            if let Entry::Vacant(place) = found.entry(dense) {
                place.insert(self.state(b, block, id, shape)?);
            }
        }
        Ok(found)
    }

    /// Adds the experts' state for a dense state: in its place, or beside it if the dense block stays. Its view cuts the dense tensor along
    /// the hidden numbers, and repeats the parts. For example, 8 experts of half the hidden numbers are 2 parts, repeated 4 times.
    fn state(
        &self,
        b: &mut Builder,
        block: &Block,
        id: StateId,
        shape: Shape,
    ) -> Result<ValueId, Diagnostic> {
        let state = b.module().states[id].clone();
        let hidden = self.hidden.unwrap_or(block.hidden);
        let parts = self.parts(block, hidden)?;
        let sizes = state.ty.sizes().unwrap_or_default();
        let mut view: View = state.view.clone();
        let mut reshape = |sizes: &[u64]| view.push(ViewStep::Reshape(sizes.iter().copied().collect()));
        let (own, fan_in): (Vec<u64>, Option<u64>) = match shape {
            Shape::Entry { transposed } => {
                let [input, _] = in_and_out(&sizes, transposed);
                if transposed {
                    reshape(&[parts, hidden, input]);
                    view.push(ViewStep::Transpose([0, 2, 1].into_iter().collect()));
                } else {
                    reshape(&[input, parts, hidden]);
                    view.push(ViewStep::Transpose([1, 0, 2].into_iter().collect()));
                }
                (vec![input, hidden], Some(input))
            }
            Shape::Exit { transposed } => {
                let [_, output] = in_and_out(&sizes, transposed);
                if transposed {
                    reshape(&[output, parts, hidden]);
                    view.push(ViewStep::Transpose([1, 2, 0].into_iter().collect()));
                } else {
                    reshape(&[parts, hidden, output]);
                }
                (vec![hidden, output], Some(hidden))
            }
            Shape::Hidden => {
                reshape(&[parts, hidden]);
                (vec![hidden], None)
            }
            Shape::Result => {
                reshape(&[1, sizes[0]]);
                (vec![sizes[0]], None)
            }
        };
        let copies = if shape == Shape::Result { self.experts } else { self.experts / parts };
        if copies > 1 {
            view.push(ViewStep::Repeat(copies));
        }
        let ty = Type::of(state.ty.dtype, &[&[self.experts], &own[..]].concat());
        let initializer = match (self.start, state.initializer) {
            (ExpertStart::Copies, Initializer::Data(data)) if self.noise > 0.0 => {
                Initializer::Noisy { std: self.noise.to_bits(), data }
            }
            (ExpertStart::Copies, copied @ Initializer::Data(_)) => copied,
            _ => {
                view = View::new();
                fan_in.map_or(Initializer::Zeros, |fan_in| Initializer::Normal {
                    std: route::fresh(fan_in),
                    data: None,
                })
            }
        };
        let name = expert_name(&state.name);
        if !self.shared {
            b.renew_state(id, name, ty, initializer, view);
            return Ok(state.input);
        }
        let added = b.tables().add_state(name, ty, Role::Parameter, initializer);
        b.tables().states[added].view = view;
        Ok(b.module().states[added].input)
    }

    /// Returns the number of parts into which a dense block is cut, so that each part is the start of an expert with `hidden` hidden numbers.
    fn parts(&self, block: &Block, hidden: u64) -> Result<u64, Diagnostic> {
        if self.start == ExpertStart::Fresh {
            return Ok(1);
        }
        let parts = block.hidden / hidden.max(1);
        if hidden > 0 && block.hidden.is_multiple_of(hidden) && self.experts.is_multiple_of(parts) {
            return Ok(parts);
        }
        let error = format!(
            "{} experts of {hidden} hidden numbers cannot begin as copies of a block of {}",
            self.experts, block.hidden
        );
        Err(Diagnostic::new(error).note(
            "copies need a divisor of the block's hidden numbers, and experts for each part; with `fresh` any size will do",
        ))
    }
}

fn in_and_out(sizes: &[u64], transposed: bool) -> [u64; 2] {
    if transposed { [sizes[1], sizes[0]] } else { [sizes[0], sizes[1]] }
}

/// Builds the nodes of a block on tokens at their experts.
fn build(
    b: &mut Builder,
    block: &Block,
    states: &BTreeMap<ValueId, ValueId>,
    x: ValueId,
    places: Places,
) -> Result<ValueId, TypeError> {
    let mut made = BTreeMap::from([(block.input, x)]);
    for &id in &block.nodes {
        let node = b.module().node(id).clone();
        let result = match linear(b.module(), &node) {
            Some(Linear { rows, weight, .. }) => {
                let weight = states[&b.module().states[weight].input];
                match places {
                    Places::Rows(index) => {
                        b.one(Experts { transposed: false }, &[made[&rows], weight, index])?
                    }
                    Places::Slots => b.one(Contract::new("eck,ekn->ecn"), &[made[&rows], weight])?,
                }
            }
            None => {
                let mut operands = Vec::new();
                for operand in node.operands {
                    operands.push(match (made.get(&operand), states.get(&operand)) {
                        (Some(&made), _) => made,
                        (None, Some(&vectors)) => at_places(b, vectors, places)?,
                        // A single number, which all elements read.
                        (None, None) => b.reshape(operand, [])?,
                    });
                }
                b.one(node.op, &operands)?
            }
        };
        made.insert(node.results[0], result);
    }
    Ok(made[&block.output])
}

/// Returns the vectors of experts, `[experts, n]`, in a form that broadcasts beside tokens.
fn at_places(b: &mut Builder, vectors: ValueId, places: Places) -> Result<ValueId, TypeError> {
    match places {
        Places::Rows(index) => b.one(Gather { dim: 0 }, &[vectors, index]),
        Places::Slots => {
            let [experts, n] = [0, 1].map(|dim| b.ty(vectors).dims[dim].clone());
            b.reshape(vectors, [experts, Dim::known(1), n])
        }
    }
}

/// Returns the name of an expert's parameter: `experts` is inserted before the last module's name.
fn expert_name(dense: &str) -> String {
    let mut words: Vec<&str> = dense.split('.').collect();
    words.insert(words.len().saturating_sub(2), "experts");
    words.join(".")
}

/// Returns the name of the router, beside those of the experts. The names of its states begin with it.
fn router_name(b: &Builder, block: &Block, layer: u32) -> String {
    let module = b.module();
    let weight =
        block.nodes.iter().find_map(|&id| linear(module, module.node(id))).map(|linear| linear.weight);
    let expert = weight.map(|weight| expert_name(&module.states[weight].name)).unwrap_or_default();
    let prefix = expert.rsplit_once("experts.").map_or("", |(before, _)| before);
    let name = format!("{prefix}router");
    match module.state(&format!("{name}.weight")) {
        None => name,
        Some(_) => format!("{name}.{layer}"),
    }
}
