//! Tests an order of early updates that does not wait for the readers of the old weights, and the right order; and the layouts of chains.

use super::draft::chain_layout;
use super::plain::PROCESSOR;
use super::*;
use crate::layout::Layout;
use crate::{Instruction, Kernel, View};
use ir::ops::step::Accumulate;
use ir::{At, Builder, DType, Initializer, Phase, Role, Type, ValueId};

/// Returns `y = w·v` for the states `w` and `v`. Backward makes the gradient of `w` first, and then reads `w` for the gradient of `v`.
fn product() -> Module {
    let (mut module, ty) = (Module::new("product"), Type::of(DType::F32, &[40]));
    let x = module.add_input("x", ty.clone(), true);
    let states = ["w", "v"]
        .map(|name| module.add_state(name, ty.clone(), Role::Parameter, Initializer::Splat(2f64.to_bits())));
    let [w, v] = states.map(|state| module.states[state].input);
    let mut b = Builder::new(&mut module, "test");
    let mul = |b: &mut Builder, phase, x: ValueId, y: ValueId| -> ValueId {
        b.at(At::End(phase)).build(x * y).expect("floats")
    };
    let wv = mul(&mut b, Phase::Forward, w, v);
    let y = mul(&mut b, Phase::Forward, wv, x);
    let loss = b.sum(y, &[0]).expect("a vector");
    let dw = mul(&mut b, Phase::Backward, x, v);
    let dv = mul(&mut b, Phase::Backward, x, w);
    b.at(At::End(Phase::Update));
    let loss = b.one(Accumulate, &[loss]).expect("a float");
    b.tables().add_output("loss", loss);
    for (state, gradient) in states.into_iter().zip([dw, dv]) {
        let gradient = b.one(Accumulate, &[gradient]).expect("a float");
        let old = b.module().states[state].input;
        let new = b.build(old + gradient).expect("vectors");
        b.tables().states[state].output = Some(new);
    }
    b.finish();
    module
}

/// The program in this order of items.
fn lowered(module: &Module, order: fn(&Module, Vec<Item>) -> Early) -> Program {
    let (microbatches, update) = (Microbatches::One, UpdateTime::Early);
    let options = LowerOptions { microbatches, update, unfused: true, ..LowerOptions::of(PROCESSOR) };
    lower_in(module, &options, None, order).unwrap_or_else(|error| panic!("{error}"))
}

/// Moves the update of `w` right after its gradient, before backward reads `w` for the gradient of `v`.
fn too_early(module: &Module, items: Vec<Item>) -> Early {
    let mut early = early::order(module, items);
    let makes = |item: &Item, value| module.node(item.nodes()[0]).results.contains(&value);
    let states: Vec<_> = module.states.values().collect();
    let new = states[0].output.expect("it is updated");
    let reads_w = |item: &Item| {
        let node = module.node(item.nodes()[0]);
        node.phase == Phase::Backward && node.operands.contains(&states[0].input)
    };
    let reader = early.items.iter().position(reads_w).expect("backward reads the weight");
    let update = early.items.iter().position(|item| makes(item, new)).expect("it is updated");
    assert!(reader < update, "the right order waits for the reader");
    let moved = early.items.remove(reader);
    early.moved.extend(moved.nodes().iter().copied());
    early.items.insert(update, moved);
    early
}

/// Whether an instruction reads the place of `w` after an instruction has written it, and whether the new value is copied there at the
/// end.
fn use_of_weight(program: &Program) -> [bool; 2] {
    let place = program.states[0].view.bytes();
    let is_there = |view: &View| view.region.is_in_arena() && view.bytes() == place;
    let all: Vec<&Instruction> = program.sections.iter().flatten().collect();
    let written = all.iter().position(|instruction| instruction.results.iter().any(is_there));
    let written = written.expect("the weight is updated");
    let reads_late = all[written + 1..].iter().any(|instruction| instruction.operands.iter().any(is_there));
    [reads_late, matches!(all[written].kernel, Kernel::Copy)]
}

#[test]
fn a_weight_is_not_overwritten_before_its_last_reader() {
    let module = product();
    assert_eq!(use_of_weight(&lowered(&module, early::order)), [false, false]);
    // The new weight overwrites the old one only if no later instruction reads the old one; otherwise it is copied at the end.
    assert_eq!(use_of_weight(&lowered(&module, too_early)), [false, true]);
}

/// Recomputation and fusion decide which nodes are in one chain.
#[test]
fn a_chain_lies_alike_however_its_nodes_are_grouped() {
    let sizes = [4, 1, 16, 8];
    let layouts = [
        Layout::dense(&sizes),
        Layout::in_order(&sizes, &[0, 3, 1, 2]),
        Layout::in_order(&sizes, &[3, 2, 1, 0]),
        Layout::in_order(&[4, 1, 32, 8], &[0, 3, 1, 2]).slice(2, 5, 1, 16),
        Layout::dense(&[8]),
        Layout::dense(&[4, 1, 16, 1]).broadcast(&sizes),
    ];
    let wide = layouts.len() - 2;
    for a in &layouts[..wide] {
        for (b, c) in layouts.iter().flat_map(|b| layouts.iter().map(move |c| (b, c))) {
            let of = |operands: &[&Layout]| {
                chain_layout(&operands.iter().map(|&layout| layout.clone()).collect::<Vec<_>>(), &sizes)
            };
            let inner = of(&[a, b]);
            // The operands are in the order in which the nodes of the chain first read them.
            let orders = [of(&[a, b, c]), of(&[c, a, b]), of(&[&inner, c]), of(&[c, &inner])];
            assert!(orders.iter().all(|order| *order == orders[0]), "{orders:?} of {a:?}, {b:?}, {c:?}");
        }
    }
    assert_eq!(chain_layout(&layouts[1..2], &sizes), Layout::in_order(&sizes, &[1, 0, 3, 2]));
    assert_eq!(chain_layout(&layouts[..2], &sizes), layouts[0]);
}
