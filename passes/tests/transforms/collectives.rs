//! Collectives on transformers: the pass finds Megatron-LM's sequence parallelism where it is cheaper, changes no number,
//! and keeps gathers that are repeated on purpose.

pub(crate) mod decoder;

use decoder::Sizes;
use ir::interp::{self, Missing, Mode, StateValues};
use ir::ops::collective::Collective;
use ir::{DType, Module, Node, Op, Phase, Tensor, ValueId, random};
use passes::{Manager, PassContext, Pipeline};
use std::collections::BTreeMap;

/// Runs passes, which must not warn.
pub(crate) fn run(module: &mut Module, pipeline: &str) {
    let (pipeline, mut cx) = (pipeline.parse::<Pipeline>().expect("a pipeline"), PassContext::default());
    let end = Manager::default().run(&pipeline, module, &mut cx, |_, _, _| {});
    end.unwrap_or_else(|failure| panic!("{failure}"));
    assert!(cx.warnings.is_empty(), "{:?}", cx.warnings);
}

/// Returns the whole step of a decoder, after more passes.
fn step(sizes: Sizes, pipeline: &str) -> Module {
    let mut module = sizes.decoder();
    run(&mut module, "loss autodiff optimizer(adamw, lr=0.01, clip=1, keep-gradients) simplify");
    run(&mut module, pipeline);
    module
}

/// Activations so large that sequence parallelism pays.
fn large(blocks: usize) -> Sizes {
    Sizes { blocks, batch: 8, sequence: 2048, width: 4096, heads: 32 }
}

/// Counts the all_reduces, all_gathers and reduce_scatters on activations, in forward and in backward.
fn counts(module: &Module) -> [[usize; 3]; 2] {
    let count = |phase: Phase, kind: Collective| {
        let is = |node: &Node| {
            node.phase == phase && node.op == Op::from(kind) && module.ty(node.results[0]).ndim() >= 3
        };
        module.nodes().filter(|(_, node)| is(node)).count()
    };
    let kinds = [Collective::AllReduce, Collective::AllGather, Collective::ReduceScatter];
    [Phase::Forward, Phase::Backward].map(|phase| kinds.map(|kind| count(phase, kind)))
}

/// Returns the counts of a block, from those of modules with one block and with more.
fn per_block(blocks: usize, pipeline: &str) -> [[usize; 3]; 2] {
    let [one, all] = [1, blocks].map(|blocks| counts(&step(large(blocks), pipeline)));
    let each = |phase: usize, kind: usize| {
        let more = all[phase][kind] - one[phase][kind];
        assert_eq!(more % (blocks - 1), 0, "blocks differ: {one:?} {all:?}");
        more / (blocks - 1)
    };
    [0, 1].map(|phase| [0, 1, 2].map(|kind| each(phase, kind)))
}

#[test]
fn large_sequences_are_split_between_the_regions_of_tensor_parallelism() {
    assert_eq!(per_block(24, "spmd(mesh=dp:2*tp:4)"), [[2, 0, 0], [2, 0, 0]]);
    // Two gathers of backward repeat those of forward: parts are kept, and gathered again for the weight's gradient.
    assert_eq!(per_block(24, "spmd(mesh=dp:2*tp:4) collectives"), [[0, 2, 2], [0, 4, 2]]);
}

#[test]
fn short_sequences_keep_their_reductions() {
    let before = step(Sizes::default(), "spmd(mesh=dp:2*tp:2)");
    let mut after = before.clone();
    run(&mut after, "collectives");
    assert_eq!(counts(&after), counts(&before));
}

#[test]
fn the_search_comes_out_the_same_every_time() {
    let placed = step(large(3), "spmd(mesh=dp:2*tp:4, zero=2)");
    let text = |mut module: Module| {
        run(&mut module, "collectives buckets");
        ir::text::print(&module)
    };
    let again = ir::text::parse(&ir::text::print(&placed)).expect("what is printed reads back");
    assert_eq!(text(again), text(placed));
}

/// Returns every node as text without names of values: operator, types, place, and its operands in the same form.
fn nodes(module: &Module) -> Vec<u64> {
    let mut known: BTreeMap<ValueId, u64> = BTreeMap::new();
    let mut all = Vec::new();
    for (_, node) in module.nodes() {
        let ty = |&value: &ValueId| ir::text::type_text(&module.mesh, module.ty(value));
        let leaf = |value: &ValueId| random::stream(&format!("{:?}", module.value(*value).definition));
        let operands: Vec<u64> = node
            .operands
            .iter()
            .map(|value| known.get(value).copied().unwrap_or_else(|| leaf(value)))
            .collect();
        let results: Vec<String> = node.results.iter().map(ty).collect();
        let text = random::stream(&format!("{:?} {operands:?} {results:?} {:?}", node.op, node.phase));
        let result = |(i, &value)| (value, random::stream(&format!("{text} {i}")));
        known.extend(node.results.iter().enumerate().map(result));
        all.push(text);
    }
    all.sort_unstable();
    all
}

#[test]
fn the_flag_and_the_search_give_one_program() {
    let found = step(large(3), "spmd(mesh=dp:2*tp:4) collectives");
    let asked = step(large(3), "spmd(mesh=dp:2*tp:4, sequence-parallel) collectives");
    assert_eq!(nodes(&found), nodes(&asked));
    assert_ne!(nodes(&found), nodes(&step(large(3), "spmd(mesh=dp:2*tp:4)")));
}

/// Counts the gathers of parameters by phase.
fn gathered_parameters(module: &Module) -> [usize; 2] {
    let is = |node: &Node, phase| {
        let whole = module.ty(node.results[0]);
        node.phase == phase && node.op == Op::from(Collective::AllGather) && whole.ndim() < 3
    };
    [Phase::Forward, Phase::Backward].map(|phase| module.nodes().filter(|(_, node)| is(node, phase)).count())
}

#[test]
fn parameters_that_backward_gathers_again_are_not_kept() {
    for mesh in ["dp:4", "dp:2*tp:4"] {
        let mut module = step(large(3), &format!("spmd(mesh={mesh}, zero=3)"));
        let before = gathered_parameters(&module);
        assert!(before.iter().all(|&count| count > 10), "{before:?}");
        run(&mut module, "collectives");
        assert_eq!(gathered_parameters(&module), before, "{mesh}");
    }
}

#[test]
fn small_reductions_of_the_update_travel_together() {
    let count = |module: &Module| {
        let sends = |node: &Node| matches!(node.op, Op::Collective(kind) if kind.communicates());
        module.nodes().filter(|(_, node)| node.phase == Phase::Update && sends(node)).count()
    };
    let mut module = step(Sizes { blocks: 4, ..Sizes::default() }, "spmd(mesh=dp:2*tp:2, zero=1)");
    let before = count(&module);
    run(&mut module, "buckets");
    assert!(before > 60 && count(&module) < 12, "{before} became {}", count(&module));
}

/// Makes tokens for every input, different ones for every index.
fn microbatch(module: &Module, index: u64) -> BTreeMap<String, Tensor> {
    let tensor = |input: &ir::Input| {
        let sizes = module.ty(input.value).sizes().expect("dims are bound");
        let sizes: Vec<usize> = sizes.iter().map(|&size| size as usize).collect();
        let stream = random::stream(&format!("{} {index}", input.name));
        let token = |i: usize| (random::normal(7, stream, i as u64).abs() * 1e4) as i64 % 64;
        let tokens = (0..sizes.iter().product()).map(token).collect();
        (input.name.clone(), Tensor::int(DType::I64, sizes, tokens))
    };
    module.inputs.iter().map(tensor).collect()
}

/// Returns the reports and the states of two steps of two microbatches each.
fn outcome(module: &Module) -> BTreeMap<String, Vec<f64>> {
    let mut states: StateValues = interp::initial_states(module, 1, Missing::Draw).expect("states are drawn");
    let mut all = BTreeMap::new();
    for step in 0..2 {
        let inputs = [microbatch(module, 2 * step), microbatch(module, 2 * step + 1)];
        let outputs = interp::step(module, Mode::Exact, &mut states, &inputs).expect("the program runs");
        let outputs = outputs.into_iter().filter(|(name, _)| name == "loss" || name.starts_with("grad"));
        all.extend(outputs.map(|(name, values)| (format!("{name} {step}"), values[0].numbers().to_vec())));
    }
    all.extend(
        states.into_iter().map(|(id, value)| (module.states[id].name.clone(), value.numbers().to_vec())),
    );
    all
}

#[test]
fn no_number_changes() {
    let sizes = Sizes { blocks: 2, ..Sizes::default() };
    let expected = outcome(&step(sizes, ""));
    for spmd in [
        "mesh=tp:2",
        "mesh=tp:4",
        "mesh=dp:2*tp:2",
        "mesh=dp:2*tp:2, sequence-parallel",
        "mesh=dp:2*tp:2, zero=1",
        "mesh=dp:2*tp:2, zero=2",
        "mesh=dp:2*tp:2, zero=3",
        "mesh=dp:4, zero=3",
    ] {
        let placed = step(sizes, &format!("spmd({spmd})"));
        // Whether it is cheaper or not: without latency everything is cut; `any` cuts more than rows.
        for pass in ["collectives", "collectives(latency=0)", "collectives(any, latency=0, memory=1)"] {
            let mut module = placed.clone();
            run(&mut module, &format!("{pass} buckets(bytes=4096)"));
            let got = outcome(&module);
            assert!(got.keys().eq(expected.keys()), "{spmd}, {pass}");
            for (name, expected) in &expected {
                let largest = expected.iter().fold(1e-3, |most: f64, x| most.max(x.abs()));
                let apart = got[name].iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
                assert!(apart <= 1e-10 * largest, "{spmd}, {pass}: `{name}` is {apart:e} off {largest:e}");
            }
        }
    }
}
