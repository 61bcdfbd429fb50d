//! Faults planted after `recompute`. The verifier refuses each fault that breaks a rule of programs. A repeated dropout that draws other
//! numbers breaks no rule: `verify` finds its wrong gradients, and bisecting names the pass.

use ir::ops::collective::Collective;
use ir::{At, Builder, Module, Node, NodeId, Op, Phase, ValueId, verify};
use passes::recompute::Recompute;
use testing::models;
use testing::planted::Planted;
use trainyard::pipeline::CompilationPlan;
use trainyard::verification::compare::Kind;

fn planted(fixture: &models::Fixture, mesh: &str) -> Planted {
    Planted::of(fixture, 2, |plan| {
        let plan = CompilationPlan { recompute: Some(Recompute::FULL), ..plan };
        if mesh.is_empty() { plan } else { CompilationPlan { spmd: models::split(mesh), ..plan } }
    })
}

/// The program after `recompute`, without a fault.
fn recomputed(planted: &Planted) -> Module {
    let stage = planted.stages.last().expect("passes ran");
    assert_eq!(stage.pass, "recompute");
    verify::verify(&stage.module).unwrap_or_else(|faults| panic!("{}", faults[0]));
    stage.module.clone()
}

/// All faults that the verifier reports.
fn refused(module: &Module) -> String {
    let faults = verify::verify(module).expect_err("the verifier finds the fault");
    faults.into_iter().map(|fault| fault.message).collect::<Vec<_>>().join("\n")
}

/// The nodes for which `fits` is true.
fn nodes(module: &Module, fits: impl Fn(&Node) -> bool) -> Vec<NodeId> {
    module.nodes().filter(|(_, node)| fits(node)).map(|(id, _)| id).collect()
}

/// Repeats a forward node at the start of backward, as the pass repeats nodes. Returns the first result of the copy.
fn repeat(module: &mut Module, id: NodeId) -> ValueId {
    let node = module.node(id).clone();
    let ty = module.ty(node.results[0]).clone();
    let first = nodes(module, |node| node.phase == Phase::Backward)[0];
    let mut b = Builder::new(module, "fault");
    b.at(At::Before(first)).copy(1);
    let copy = b.one_typed(node.op, &node.operands, ty.clone()).expect("as before");
    b.shard(copy, ty.sharding);
    b.finish();
    copy
}

#[test]
fn a_repeated_dropout_that_draws_other_numbers_is_found_by_verify() {
    let planted = planted(&models::GPT2_DROPOUT, "");
    let draws = |node: &Node| node.copy > 0 && matches!(node.op, Op::Dropout(_));
    let other_numbers = |module: &mut Module| {
        let copies = nodes(module, draws);
        assert!(!copies.is_empty(), "no dropout is repeated");
        for id in copies {
            let node = module.node(id).clone();
            let Op::Dropout(mut op) = node.op else { panic!("it is a dropout") };
            op.id += 1000;
            let ty = module.ty(node.results[0]).clone();
            let mut b = Builder::new(module, "fault");
            b.at(At::After(id));
            let drawn = b.one_typed(op, &node.operands, ty).expect("as before");
            b.replace(node.results[0], drawn);
            b.remove(id);
            b.finish();
        }
        verify::verify(module).expect("no rule of programs is broken");
    };
    let differences = planted.check("recompute", other_numbers);
    assert_eq!(differences[0].kind, Kind::Gradient, "{differences:?}");
    assert!(differences.iter().all(|difference| difference.name != "loss" || difference.error == 0.0));
}

#[test]
fn a_repeated_write_of_a_state_is_refused_by_the_verifier() {
    // The samples that dropout has seen are counted in the forward phase.
    let mut module = recomputed(&planted(&models::GPT2_DROPOUT, ""));
    let counts = |module: &Module, value| module.phase_of(value) == Phase::Forward;
    let written = module.states.iter().find_map(|(id, state)| {
        let output = state.output.filter(|&output| counts(&module, output))?;
        Some((id, output))
    });
    let (state, output) = written.expect("a state is written in forward");
    let id = nodes(&module, |node| node.results.contains(&output))[0];
    let copy = repeat(&mut module, id);
    verify::verify(&module).expect("to compute the value again is no fault");
    module.states[state].output = Some(copy);
    let said = refused(&module);
    let name = &module.states[state].name;
    let expected = format!("a copy must not write a state, and its result is the new value of `{name}`");
    assert!(said.contains(&expected), "{said}");
}

#[test]
fn a_repeated_reduction_is_refused_by_the_verifier() {
    let mut module = recomputed(&planted(&models::GPT2_DYNAMO, "mesh=tp:2"));
    let reduces = |node: &Node| {
        node.phase == Phase::Forward && matches!(node.op, Op::Collective(Collective::AllReduce))
    };
    assert!(
        nodes(&module, |node| node.copy > 0 && matches!(node.op, Op::Collective(kind) if kind.reduces()))
            .is_empty()
    );
    let id = nodes(&module, reduces)[0];
    repeat(&mut module, id);
    let said = refused(&module);
    assert!(said.contains("a reduction over devices must not be repeated"), "{said}");
}

#[test]
fn a_copy_behind_its_reader_is_refused_by_the_verifier() {
    let module = recomputed(&planted(&models::GPT2_DYNAMO, ""));
    let copies = nodes(&module, |node| node.copy > 0);
    assert!(copies.len() > 10, "{} copies", copies.len());
    for id in copies {
        let result = module.node(id).results[0];
        let reader = nodes(&module, |node| node.operands.contains(&result));
        let mut wrong = module.clone();
        let mut b = Builder::new(&mut wrong, "fault");
        b.move_to(id, At::After(reader[0]));
        b.finish();
        let said = refused(&wrong);
        assert!(said.contains("before it is defined"), "{said}");
    }
}
