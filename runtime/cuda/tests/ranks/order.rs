//! The static check of collectives: programs that would not meet are refused, with both sides.

use crate::compare::placed;
use comm::check::{check, check_along};
use ir::DType;
use program::lower::{LowerOptions, lower};
use program::{Instruction, Kernel, Program, Section};

/// Four reductions: over tp, over dp, over both, over tp again.
fn program() -> Program {
    let module = placed(
        "dp=2, tp=2",
        r#"%0 "x" : f32[8, 6] {dp, tp}, %1 "y" : f32[8, 6] {dp, tp}"#,
        r#"%2 = reduce %0 {kind = sum, dims = [1], keep = false} : f32[8] {dp} partial(sum tp)
        %3 = all_reduce %2 : f32[8] {dp} !{fwd, origin "/first"}
        %4 = reduce %0 {kind = sum, dims = [0], keep = false} : f32[6] {tp} partial(sum dp)
        %5 = all_reduce %4 : f32[6] {tp} !{fwd, origin "/second"}
        %6 = reduce %1 {kind = max, dims = [0, 1], keep = false} : f32[] partial(max dp, tp)
        %7 = all_reduce %6 : f32[] !{fwd, origin "/third"}
        %8 = reduce %1 {kind = sum, dims = [1], keep = false} : f32[8] {dp} partial(sum tp)
        %9 = reduce_scatter %8 : f32[8] {dp*tp} !{fwd, origin "/fourth"}"#,
        &["%3", "%5", "%7", "%9"],
    );
    lower(&module, &LowerOptions::of(cpu::TARGET)).unwrap()
}

fn microbatch(program: &mut Program) -> &mut Vec<Instruction> {
    &mut program.sections[Section::Microbatch as usize]
}

/// Where the collectives stand.
fn places(program: &Program) -> Vec<usize> {
    let instructions = program.section(Section::Microbatch).iter().enumerate();
    instructions.filter(|(_, i)| matches!(i.kernel, Kernel::Collective(_))).map(|(at, _)| at).collect()
}

/// What the check says when the program of one rank is another.
fn verdict(rank: usize, edit: impl Fn(&mut Program, &[usize])) -> String {
    verdict_of(&[rank], edit)
}

fn verdict_of(ranks: &[usize], edit: impl Fn(&mut Program, &[usize])) -> String {
    let mut programs = vec![program(); 4];
    let places = places(&programs[0]);
    assert_eq!(places.len(), 4);
    check(&programs.iter().collect::<Vec<_>>()).unwrap();
    ranks.iter().for_each(|&rank| edit(&mut programs[rank], &places));
    check(&programs.iter().collect::<Vec<_>>()).unwrap_err().to_string()
}

#[test]
fn a_missing_collective_is_named_with_the_rank_that_would_wait() {
    let error = verdict(2, |program, places| drop(microbatch(program).remove(places[3])));
    let lines: Vec<&str> = error.lines().collect();
    assert_eq!(lines[0], "rank 3 would wait forever for rank 2, which issues too few collectives");
    assert!(
        lines[1].contains("rank 3 issues `reduce_scatter` sum over [axis1] split 0 of f32[4]"),
        "{error}"
    );
    assert!(lines[1].contains("/fourth"), "{error}");
    assert!(lines[2].contains("rank 2 has reached the end of microbatch"), "{error}");
}

#[test]
fn swapped_collectives_of_different_groups_wait_for_each_other() {
    let swap = |program: &mut Program, places: &[usize]| microbatch(program).swap(places[0], places[1]);
    let error = verdict_of(&[1, 2], swap);
    assert!(
        error.starts_with("the ranks [0, 1, 3, 2] would wait for each other forever, in this order"),
        "{error}"
    );
    assert!(
        error.contains("rank 0 issues `all_reduce` sum over [axis1] of f32[4] (microbatch instruction"),
        "{error}"
    );
    assert!(
        error.contains("rank 1 issues `all_reduce` sum over [axis0] of f32[3] (microbatch instruction"),
        "{error}"
    );
    assert!(error.contains("/first") && error.contains("/second"), "{error}");
    let error = verdict(1, |program, places| microbatch(program).swap(places[1], places[2]));
    assert!(
        error.starts_with("the ranks [3, 1] would wait for each other forever, in this order"),
        "{error}"
    );
}

/// Rank 1 alone may meet its neighbours along one axis before those along the other: each pair still meets.
#[test]
fn an_order_in_which_every_group_still_meets_is_no_fault() {
    let mut programs = vec![program(); 4];
    let places = places(&programs[0]);
    microbatch(&mut programs[1]).swap(places[0], places[1]);
    check(&programs.iter().collect::<Vec<_>>()).unwrap();
}

#[test]
fn another_kind_shape_or_type_is_told_apart() {
    let different = "rank 2 and rank 3 issue different collectives to each other";
    let retyped = verdict(3, |program, places| microbatch(program)[places[0]].operands[0].dtype = DType::I32);
    assert!(retyped.starts_with(different), "{retyped}");
    assert!(retyped.contains("of f32[4] (") && retyped.contains("of i32[4] ("), "{retyped}");
    let reshaped = verdict(3, |program, places| {
        let instruction = &mut microbatch(program)[places[0]];
        instruction.operands[0].layout = program::layout::Layout::dense(&[2, 2]);
    });
    assert!(reshaped.starts_with(different) && reshaped.contains("of f32[2, 2] ("), "{reshaped}");
    let another = verdict(3, |program, places| {
        let Kernel::Collective(exchange) = &mut microbatch(program)[places[3]].kernel else { unreachable!() };
        exchange.reduced = Some(ir::PartialKind::Max);
    });
    assert!(another.starts_with(different), "{another}");
    assert!(
        another.contains("`reduce_scatter` sum over") && another.contains("`reduce_scatter` max over"),
        "{another}"
    );
}

#[test]
fn collectives_may_stand_elsewhere_between_the_same_neighbours() {
    let mut programs = vec![program(); 4];
    let at = places(&programs[0])[0];
    // What else a rank does between collectives does not matter.
    let other = microbatch(&mut programs[1])[at - 1].clone();
    microbatch(&mut programs[1]).insert(at, other);
    check(&programs.iter().collect::<Vec<_>>()).unwrap();
}

#[test]
fn the_mesh_is_that_of_all_ranks() {
    let programs = vec![program(); 3];
    let error = check(&programs.iter().collect::<Vec<_>>()).unwrap_err().to_string();
    assert_eq!(error, "the mesh [dp=2, tp=2] has 4 devices, and there are 3 ranks");
    let mut programs = vec![program(); 4];
    programs[2].mesh.axes.values_mut().for_each(|axis| axis.name.push('x'));
    let error = check(&programs.iter().collect::<Vec<_>>()).unwrap_err().to_string();
    assert_eq!(error, "rank 2 runs on the mesh [dpx=2, tpx=2], and rank 0 on the mesh [dp=2, tp=2]");
}

/// Programs that differ along an axis are proven by one rank for each place along it, with the numbers of real ranks.
#[test]
fn one_rank_of_each_kind_represents_all() {
    let along = |name: &str, programs: &[Program]| {
        let axis = programs[0].mesh.find(name).unwrap();
        check_along(&programs.iter().collect::<Vec<_>>(), &[axis])
    };
    let mut programs = vec![program(); 2];
    let places = places(&programs[0]);
    check_along(&[&programs[0]], &[]).unwrap();
    along("dp", &programs).unwrap();
    microbatch(&mut programs[1]).swap(places[0], places[1]);
    // Ranks 2 and 3, which differ along tp, both meet over tp one collective later: every group still meets.
    along("dp", &programs).unwrap();
    microbatch(&mut programs[1]).remove(places[3]);
    // The last reduction is over tp alone, and all ranks of a place along dp lack it.
    along("dp", &programs).unwrap();
    microbatch(&mut programs[1]).remove(places[2]);
    let error = along("dp", &programs).unwrap_err().to_string();
    assert!(error.starts_with("rank 0 would wait forever for rank 2"), "{error}");
    let error = along("tp", &programs).unwrap_err().to_string();
    assert!(error.starts_with("rank 0 would wait forever for rank 1"), "{error}");
}
