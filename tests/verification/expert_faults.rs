//! Faults planted in the program of a model with experts on an expert axis. The verifier refuses a fault that contradicts the shardings.
//! Bisecting names the pass of every other fault.

use ir::ops::collective::Collective;
use ir::ops::elementwise::Binary;
use ir::{At, Builder, Module, NodeId, Op, PartialKind, Phase, Sharding, ValueId, verify};
use passes::spmd::{AxisSize, Spmd};
use smallvec::smallvec;
use std::collections::BTreeSet;
use testing::layers::change;
use testing::models;
use testing::planted::Planted;
use trainyard::pipeline::CompilationPlan;
use trainyard::verification::compare::Kind;

/// Mixtral on two data ranks by two expert ranks.
fn mixtral() -> Planted {
    Planted::of(&models::MIXTRAL_DYNAMO, 4, |plan| {
        let axis = |name: &str| AxisSize { name: name.into(), size: 2 };
        CompilationPlan { spmd: Spmd { mesh: vec![axis("dp"), axis("ep")], ..Spmd::default() }, ..plan }
    })
}

/// The program after `spmd`.
fn placed(planted: &Planted) -> Module {
    let stage = planted.stages.iter().find(|stage| stage.pass == "spmd").expect("it ran");
    verify::verify(&stage.module).expect("it is sound");
    stage.module.clone()
}

/// The collectives of one kind whose operands are made by a node with an operator for which `made_by` is true.
fn collectives(module: &Module, kind: Collective, made_by: impl Fn(&Op) -> bool) -> Vec<NodeId> {
    let nodes = module.nodes().filter(|(_, node)| {
        let maker = || module.producer(node.operands[0]);
        node.op == Op::Collective(kind) && maker().is_some_and(|maker| made_by(&maker.op))
    });
    nodes.map(|(id, _)| id).collect()
}

/// The sums of the gradients of experts over data ranks, once a step.
fn gradients(module: &Module) -> Vec<NodeId> {
    let sums = collectives(module, Collective::AllReduce, |op| matches!(op, Op::Accumulate(_)));
    sums.into_iter().filter(|&id| module.ty(module.node(id).results[0]).ndim() == 3).collect()
}

/// Replaces a value of a node for all its readers by a value that `wrong` builds from it.
fn change_value(module: &mut Module, id: NodeId, wrong: impl Fn(&mut Builder, ValueId) -> ValueId) {
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

#[test]
fn gradients_of_experts_are_summed_over_data_ranks_alone_and_all_others_over_expert_ranks_too() {
    let module = placed(&mixtral());
    let [dp, ep] = ["dp", "ep"].map(|name| module.mesh.find(name).expect("the mesh has it"));
    let sums = collectives(&module, Collective::AllReduce, |op| matches!(op, Op::Accumulate(_)));
    assert_eq!(gradients(&module).len(), 4, "two layers with two tensors of matrices");
    assert!(sums.len() > 17);
    for id in sums {
        let node = module.node(id);
        let is_of_experts = gradients(&module).contains(&id);
        let axes = if is_of_experts { vec![dp] } else { vec![dp, ep] };
        assert_eq!(change(&module, node).axes.to_vec(), axes, "{id}");
    }
}

/// A gradient of experts is declared to be summed over expert ranks, which have other experts.
#[test]
fn a_gradient_of_experts_that_is_summed_over_expert_ranks_is_refused() {
    let mut module = placed(&mixtral());
    let ep = module.mesh.find("ep").expect("the mesh has it");
    let id = gradients(&module)[0];
    let partial = Some((PartialKind::Sum, smallvec![ep]));
    let value = module.node(id).operands[0];
    reshard(&mut module, value, Sharding { partial, ..Sharding::default() });
    let said = refused(&module);
    assert!(said.contains("is split over nothing and dim 0 of operand 0 over `ep`"), "{said}");
}

/// Each device computes only its own experts' part of each row.
#[test]
fn rows_of_other_devices_experts_that_are_missing_are_refused() {
    let module = placed(&mixtral());
    let results = collectives(&module, Collective::ReduceScatter, |op| matches!(op, Op::Experts(_)));
    assert!(results.len() >= 6, "{results:?}");
    for id in results {
        let mut wrong = module.clone();
        let value = module.node(id).operands[0];
        let whole = Sharding { partial: None, ..module.ty(value).sharding.clone() };
        reshard(&mut wrong, value, whole);
        let said = refused(&wrong);
        assert!(
            said.contains("is declared whole, and the operands make it a partial sum over `ep`"),
            "{said}"
        );
    }
}

/// The rows of all expert ranks reach each expert, so the number of expert ranks must not divide a gradient.
#[test]
fn a_gradient_of_experts_that_expert_ranks_divide_is_found_and_spmd_is_named() {
    let differences = mixtral().check("spmd", |module| {
        for id in gradients(module) {
            change_value(module, id, |b, sum| {
                let sharding = b.ty(sum).sharding.clone();
                let half = b.build(sum * 0.5).expect("a float");
                b.shard(half, sharding);
                half
            });
        }
    });
    let wrong: Vec<_> = differences.iter().filter(|one| one.error > 1e-9).collect();
    let gradients = wrong.iter().filter(|one| one.kind == Kind::Gradient);
    let names: BTreeSet<&str> = gradients.map(|one| one.name.as_str()).collect();
    // The exporter's names of the matrices of experts.
    assert_eq!(names, BTreeSet::from(["val_262", "val_271", "val_443", "val_451"]));
    assert!(wrong.iter().all(|one| !matches!(one.kind, Kind::Loss | Kind::Output)), "{wrong:?}");
}

/// An index counts all experts, and not only those of a device.
#[test]
fn an_index_into_the_experts_of_a_device_is_found_and_spmd_is_named() {
    mixtral().check("spmd", |module| {
        let gathers = collectives(module, Collective::AllGather, |_| true);
        let is_index = |&id: &NodeId| {
            let result = module.node(id).results[0];
            let reads = |node: &ir::Node| matches!(node.op, Op::Experts(_)) && node.operands[2] == result;
            module.nodes().any(|(_, node)| node.phase == Phase::Forward && reads(node))
        };
        let found: Vec<NodeId> = gathers.into_iter().filter(is_index).collect();
        assert_eq!(found.len(), 2, "the experts of a layer share their index");
        change_value(module, found[0], |b, index| {
            let (dtype, sharding) = (b.ty(index).dtype, b.ty(index).sharding.clone());
            let of_device = b.scalar(dtype, 2.0).expect("a scalar");
            let within = b.one(Binary::Mod, &[index, of_device]).expect("integers");
            b.shard(within, sharding);
            within
        });
    });
}
