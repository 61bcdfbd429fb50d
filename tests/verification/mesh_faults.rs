//! Faults planted in a real program on a mesh. The verifier refuses a fault that contradicts the shardings.
//! Bisecting names the pass of every other fault. Needless communication is counted.

use ir::ops::collective::Collective;
use ir::{
    At, AxisId, Builder, DType, Module, NodeId, Op, PartialKind, Phase, Sharding, Type, ValueId, verify,
};
use passes::precision::Precision;
use passes::spmd::{AxisSize, Spmd};
use smallvec::smallvec;
use testing::layers::{change, makers, reductions};
use testing::models;
use testing::planted::Planted;
use testing::verification;
use trainyard::pipeline::CompilationPlan;
use trainyard::verification::Mode;
use trainyard::verification::compare::Kind;
use trainyard::verification::report::Report;

/// GPT-2 on two data ranks by two tensor ranks.
fn gpt2(zero: u8, precision: &Precision) -> Planted {
    Planted::of(&models::GPT2_DYNAMO, 4, |plan| {
        let axis = |name: &str| AxisSize { name: name.into(), size: 2 };
        let spmd = Spmd { mesh: vec![axis("dp"), axis("tp")], zero, ..Spmd::default() };
        CompilationPlan { spmd, precision: precision.clone(), ..plan }
    })
}

fn half() -> Precision {
    Precision { compute: DType::BF16, ..Precision::default() }
}

/// The program after `spmd`.
fn placed(planted: &Planted) -> Module {
    let stage = planted.stages.iter().find(|stage| stage.pass == "spmd").expect("it ran");
    verify::verify(&stage.module).expect("it is sound");
    stage.module.clone()
}

fn axis(module: &Module, name: &str) -> AxisId {
    module.mesh.find(name).expect("the mesh has it")
}

/// The all_reduces over one axis in a phase whose addends come from `addends` nodes.
fn reduces(module: &Module, phase: Phase, over: &str, addends: usize) -> Vec<NodeId> {
    let axes = [axis(module, over)];
    let nodes = module.nodes().filter(|(_, node)| node.phase == phase);
    let found = nodes.filter(|(_, node)| {
        node.op == Op::Collective(Collective::AllReduce)
            && change(module, node).axes[..] == axes
            && change(module, node).reduced == Some(PartialKind::Sum)
            && module.ty(node.operands[0]).ndim() == 3
            && makers(module, node.operands[0], &axes).len() == addends
    });
    found.map(|(id, _)| id).collect()
}

/// All faults that the verifier reports.
#[track_caller]
fn refused(module: &Module) -> String {
    let faults = verify::verify(module).expect_err("the verifier finds the fault");
    faults.into_iter().map(|fault| fault.message).collect::<Vec<_>>().join("\n")
}

fn reshard(module: &mut Module, value: ValueId, sharding: Sharding) {
    let mut b = Builder::new(module, "fault");
    b.shard(value, sharding);
    b.finish();
}

/// Replaces the result of a node for all its readers. `wrong` builds the new value after the node, from a second node that computes the
/// same.
fn instead(module: &mut Module, id: NodeId, wrong: impl Fn(&mut Builder, ValueId) -> ValueId) {
    let node = module.node(id).clone();
    let ty = module.ty(node.results[0]).clone();
    let mut b = Builder::new(module, "fault");
    b.at(At::After(id));
    let again = b.one_typed(node.op, &node.operands, ty).expect("as before");
    let made = wrong(&mut b, again);
    b.replace(node.results[0], made);
    b.remove(id);
    b.finish();
}

/// The sum, as the builder makes it, with the sharding of `x`.
fn add(b: &mut Builder, x: ValueId, y: ValueId) -> ValueId {
    let sharding = b.ty(x).sharding.clone();
    let sum = b.build(x + y).expect("two tensors of one type");
    b.shard(sum, sharding);
    sum
}

fn scale(b: &mut Builder, x: ValueId, factor: f64) -> ValueId {
    let sharding = b.ty(x).sharding.clone();
    let scaled = b.build(x * factor).expect("a float");
    b.shard(scaled, sharding);
    scaled
}

#[test]
fn a_partial_sum_that_is_labelled_whole_is_refused() {
    let module = placed(&gpt2(0, &Precision::default()));
    for phase in [Phase::Forward, Phase::Backward] {
        for id in reduces(&module, phase, "tp", 1) {
            let mut wrong = module.clone();
            let maker =
                *makers(&module, module.node(id).operands[0], &[axis(&module, "tp")]).first().expect("one");
            let value = module.node(maker).results[0];
            let whole = Sharding { partial: None, ..module.ty(value).sharding.clone() };
            reshard(&mut wrong, value, whole);
            let said = refused(&wrong);
            assert!(
                said.contains("result 0 is declared whole, and the operands make it a partial sum over `tp`"),
                "{said}"
            );
        }
    }
}

#[test]
fn a_reduction_that_is_missing_is_refused() {
    let module = placed(&gpt2(0, &Precision::default()));
    let mut tried = 0;
    for (phase, over) in [(Phase::Forward, "tp"), (Phase::Backward, "tp")] {
        for id in (1..=3).flat_map(|addends| reduces(&module, phase, over, addends)) {
            let mut wrong = module.clone();
            let (from, to) = (module.node(id).operands[0], module.node(id).results[0]);
            let mut b = Builder::new(&mut wrong, "fault");
            b.replace(to, from);
            b.remove(id);
            b.finish();
            let said = refused(&wrong);
            // A linear reader would have to keep the value partial.
            let read = said.contains("partial sum used as a whole value") && said.contains("over `tp`");
            let passed = "is declared whole, and the operands make it a partial sum over `tp`";
            assert!(read || said.contains(passed), "{said}");
            tried += 1;
        }
    }
    assert!(tried >= 9, "{tried}: four forward, four backward, the embedding and the head");
}

#[test]
fn a_gradient_that_is_not_reduced_over_data_ranks_is_refused() {
    let module = placed(&gpt2(0, &Precision::default()));
    let dp = axis(&module, "dp");
    let gradient = module.nodes().find(|(_, node)| {
        let from =
            |value: ValueId| module.producer(value).is_some_and(|node| matches!(node.op, Op::Accumulate(_)));
        node.op == Op::Collective(Collective::AllReduce)
            && from(node.operands[0])
            && change(&module, node).axes[..] == [dp]
            && module.ty(node.results[0]).ndim() == 2
    });
    let (id, node) = gradient.expect("there are gradients of matrices");
    let (from, to) = (node.operands[0], node.results[0]);
    let mut wrong = module.clone();
    let mut b = Builder::new(&mut wrong, "fault");
    b.replace(to, from);
    b.remove(id);
    b.finish();
    let said = refused(&wrong);
    // The optimizer and the norm read the value, and both accept only whole values.
    assert!(said.contains("partial sum used as a whole value") && said.contains("over `dp`"), "{said}");
}

/// The group of a collective follows from the shardings, so a wrong group is a wrong sharding.
#[test]
fn a_group_over_the_wrong_axis_is_refused() {
    let module = placed(&gpt2(0, &Precision::default()));
    let (dp, tp) = (axis(&module, "dp"), axis(&module, "tp"));
    // A gradient that is partial over dp is declared partial over tp, so that it is reduced over tp.
    let is_whole = |&&id: &&NodeId| module.ty(module.node(id).results[0]).sharding.is_whole();
    let found = gradients(&module);
    let id = *found.iter().find(is_whole).expect("norms are not split");
    let mut wrong = module.clone();
    let over = |axis| Sharding { partial: Some((PartialKind::Sum, smallvec![axis])), ..Sharding::default() };
    reshard(&mut wrong, module.node(id).operands[0], over(tp));
    assert_eq!(change(&wrong, wrong.node(id)).axes[..], [tp]);
    let said = refused(&wrong);
    let expected =
        "result 0 is declared a partial sum over `tp`, and the operands make it a partial sum over `dp`";
    assert!(said.contains(expected), "{said}");
    // An activation that is partial over tp is declared partial over dp, which splits its samples.
    let id = reduces(&module, Phase::Forward, "tp", 1)[1];
    let mut wrong = module.clone();
    let maker = *makers(&module, module.node(id).operands[0], &[tp]).first().expect("one");
    for value in [module.node(id).operands[0], module.node(maker).results[0]] {
        reshard(&mut wrong, value, over(dp));
    }
    let said = refused(&wrong);
    let expected = "is split over nothing and dim 0 of operand 0 over `dp`: a collective must stand between";
    assert!(said.contains(expected), "{said}");
    // The result is declared still partial over tp.
    let mut wrong = module.clone();
    reshard(&mut wrong, module.node(id).results[0], over(tp));
    let said = refused(&wrong);
    assert!(said.contains("partial sum used as a whole value: operand 0"), "{said}");
}

/// The gradients of queries, keys and values with respect to their common operand are each reduced alone: right, with three times the
/// traffic.
#[test]
fn three_reductions_for_one_are_right_and_are_counted() {
    let planted = gpt2(0, &Precision::default());
    let apart = |module: &mut Module| {
        let tp = axis(module, "tp");
        let id = reduces(module, Phase::Backward, "tp", 3)[0];
        let whole = module.ty(module.node(id).results[0]).clone();
        let addends: Vec<ValueId> = makers(module, module.node(id).operands[0], &[tp])
            .into_iter()
            .map(|maker| module.node(maker).results[0])
            .collect();
        instead(module, id, |b, _| {
            let reduced = addends.iter().map(|&addend| {
                let ty =
                    Type { dims: whole.dims.clone(), sharding: whole.sharding.clone(), dtype: whole.dtype };
                b.one_typed(Collective::AllReduce, &[addend], ty).expect("a reduction")
            });
            let reduced: Vec<ValueId> = reduced.collect();
            reduced[1..].iter().fold(reduced[0], |sum, &addend| add(b, sum, addend))
        });
        passes::rewriting::dead::remove_dead(module, "fault");
    };
    let stages = planted.stages_with("spmd", apart);
    assert!(planted.differences(&stages, Mode::Exact)[0].error <= 1e-9);
    assert_eq!(planted.culprit(&stages, Mode::Exact, 1e-9), None);
    let module = &stages.iter().find(|stage| stage.pass == "spmd").expect("it ran").module;
    let counts = reductions(module, &planted.source.imported.aliases, "tp").layers;
    let counts: Vec<[usize; 2]> = counts.into_values().collect();
    assert!(counts.contains(&[2, 4]) && counts.contains(&[2, 2]), "{counts:?}");
}

/// Their sum is reduced once, but is used for each of the three.
#[test]
fn a_sum_that_is_taken_once_for_each_addend_is_found_and_spmd_is_named() {
    gpt2(0, &Precision::default()).check("spmd", |module| {
        let id = reduces(module, Phase::Backward, "tp", 3)[0];
        instead(module, id, |b, sum| {
            let twice = add(b, sum, sum);
            add(b, twice, sum)
        });
    });
}

/// The reductions of gradients over data ranks, once a step.
fn gradients(module: &Module) -> Vec<NodeId> {
    let dp = axis(module, "dp");
    let is_sum = |value: ValueId| {
        let node = module.producer(value);
        module.ty(value).ndim() > 0 && node.is_some_and(|node| matches!(node.op, Op::Accumulate(_)))
    };
    let nodes = module.nodes().filter(|(_, node)| {
        matches!(node.op, Op::Collective(Collective::AllReduce | Collective::ReduceScatter))
            && is_sum(node.operands[0])
            && change(module, node).axes[..] == [dp]
    });
    nodes.map(|(id, _)| id).collect()
}

/// Divides gradients by the number of data ranks. That is a fault: a gradient is the sum over data ranks divided by the weight of all of
/// them.
fn divide_by_ranks(module: &mut Module) {
    let found = gradients(module);
    assert!(!found.is_empty());
    found.into_iter().for_each(|id| instead(module, id, |b, sum| scale(b, sum, 0.5)));
}

/// The test checks the named pass and its number, and that only gradients and later values are wrong.
#[test]
#[ignore = "longer"]
fn a_mean_that_is_divided_twice_is_found_and_spmd_is_named() {
    for (zero, precision, tolerance) in [(0, Precision::default(), 1e-5), (1, half(), 5e-2)] {
        let planted = gpt2(zero, &precision);
        let differences = planted.check_above("spmd", divide_by_ranks, tolerance);
        let wrong = |kind: Kind| differences.iter().any(|one| one.kind == kind && one.error > 1e-9);
        assert!(wrong(Kind::Gradient) && !wrong(Kind::Loss) && !wrong(Kind::Output), "{differences:?}");
        let largest = differences.iter().find(|one| one.kind == Kind::Gradient).expect("they are compared");
        assert!((largest.error - 0.5).abs() < 1e-6, "half of it is missing: {largest:?}");
    }
}

#[test]
#[ignore = "longer"]
fn what_an_earlier_or_a_later_pass_breaks_is_not_blamed_on_spmd() {
    let planted = gpt2(1, &half());
    let wrong_gradient = |module: &mut Module| {
        let output = module.outputs.iter().position(|output| output.name.starts_with("grad."));
        let at = output.expect("gradients are kept");
        let mut b = Builder::new(module, "fault");
        b.at(At::End(Phase::Update));
        let gradient = b.module().outputs[at].value;
        b.tables().outputs[at].value = scale(&mut b, gradient, 1.5);
        b.finish();
    };
    for pass in ["autodiff", "precision", "simplify", "spmd", "collectives", "buckets"] {
        planted.check_above(pass, wrong_gradient, 5e-2);
    }
}

#[test]
#[ignore = "longer"]
fn without_a_fault_no_pass_is_blamed_on_a_mesh() {
    for (zero, precision, tolerance) in [(0, Precision::default(), 1e-5), (2, half(), 5e-2)] {
        let planted = gpt2(zero, &precision);
        assert!(planted.stages.iter().any(|stage| stage.pass == "spmd"));
        assert_eq!(planted.culprit(&planted.stages, Mode::Exact, 1e-9), None);
        assert_eq!(planted.culprit(&planted.stages, Mode::On(cpu::TARGET), tolerance), None);
        // If a mode rounds by more than the tolerance, no pass is to blame.
        let culprit =
            planted.culprit(&planted.stages, Mode::On(cpu::TARGET), 1e-9).expect("rounding is found");
        assert_eq!((culprit.pass, culprit.number), (None, 0));
    }
}

/// The report of `trainyard verify gpt2.dynamo.onnx ARGUMENTS`.
fn verify_command(arguments: &str) -> Report {
    models::done(verification::verify(&models::path("gpt2.dynamo.onnx"), arguments))
}

#[test]
fn the_command_bisects_on_a_mesh() {
    let flags = "--microbatch 2 --global-batch 8 --mesh dp=2,tp=2 --zero 1 --bf16 --bisect";
    let sound = verify_command(flags);
    assert!(sound.passed && sound.culprit.is_none(), "{sound}");
    // f32 rounds by less than this tolerance, and bf16 by more. So no pass after `precision` is to blame.
    let rounded = verify_command(&format!("{flags} --mode cpu --tolerance 1e-4"));
    let culprit = rounded.culprit.as_ref().expect("one pass made it so");
    assert!(!rounded.passed && culprit.pass.as_deref() == Some("precision"), "{rounded}");
}
