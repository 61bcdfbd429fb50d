//! What ranks are asked besides steps: programs that share states, numbers that are not finite, wrong sizes, memory.

use crate::compare::{first_non_finite, initial, microbatches, on_ranks, parse, placed};
use cpu::Cpu;
use cpu::ranks::on_processor;
use ir::{Module, Tensor};
use program::device::{DeviceError, ProgramId};
use program::lower::{LowerOptions, lower};
use std::sync::Arc;

fn two() -> Module {
    parse(
        r#"trainyard-ir 1
        module @m placed mesh [dp=2] {
          state @w : f32[4, 3] {dp, -} parameter = normal 0.5
          func @train(%0 = @w, %1 "x" batched : f32[4, 3] {dp, -}) {
            %2 = mul %0, %1 : f32[4, 3] {dp, -} !{fwd, origin "/mul"}
            %3 = log %2 : f32[4, 3] {dp, -} !{fwd, origin "/log"}
            %4 = reduce %3 {kind = sum, dims = [0, 1], keep = false} : f32[] partial(sum dp) !{fwd, origin "/sum"}
            %5 = all_reduce %4 : f32[] !{fwd, origin "/sum"}
            %6 = add %0, %1 : f32[4, 3] {dp, -}
          }
          output "total" = %5
          update @w = %6
        }"#,
    )
}

fn f32s(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|x| x.to_le_bytes()).collect()
}

fn program(module: &Module) -> Arc<program::Program> {
    Arc::new(lower(module, &LowerOptions::of(cpu::TARGET)).unwrap_or_else(|error| panic!("{error}")))
}

#[test]
fn the_rank_that_made_a_nan_is_named() {
    let mut ranks = on_processor(vec![program(&two())], Some(2), None, None).unwrap();
    ranks.write_state(ProgramId(0), 0, &f32s(&[1.0; 12])).unwrap();
    let mut x = [1.0; 12];
    for (place, value, expected) in [
        (0, 1.0, None),
        (7, 0.0, Some("`log` of /log made -inf on rank 1")),
        (8, -1.0, Some("`log` of /log made NaN on rank 1")),
        (2, -1.0, Some("`log` of /log made NaN on rank 0")),
    ] {
        x[place] = value;
        assert_eq!(first_non_finite(&mut ranks, &x).as_deref(), expected);
    }
}

#[test]
fn wrong_sizes_and_indices_are_refused_as_by_one_device() {
    let ranks = || on_processor(vec![program(&two())], Some(2), None, None).unwrap();
    let id = ProgramId(0);
    assert_eq!(ranks().count(), 2);
    let error = ranks().step(id, &[vec![vec![0; 24]]]).unwrap_err().to_string();
    assert!(error.ends_with("`x` is f32[4, 3] and needs 48 bytes, and 24 bytes were given"), "{error}");
    let error = ranks().step(id, &[vec![]]).unwrap_err().to_string();
    assert!(error.ends_with("the program takes 1 inputs, and 0 were given"), "{error}");
    let error = ranks().write_state(id, 1, &[]).unwrap_err().to_string();
    assert!(error.ends_with("the program has no state 1"), "{error}");
    let error = ranks().read_state(id, 1).unwrap_err().to_string();
    assert!(error.ends_with("the program has no state 1"), "{error}");
}

#[test]
fn a_program_for_several_devices_is_not_run_on_one() {
    let error = Cpu::new(vec![program(&two())], Some(1)).map(drop).unwrap_err().to_string();
    assert_eq!(error, "the program `m` is for the 2 devices of the mesh [dp=2], not for 1");
    let one = program(&crate::compare::on_one_device(&two()));
    assert!(Cpu::new(vec![one.clone()], Some(1)).is_ok());
    let error = on_processor(vec![program(&two()), one], Some(1), None, None).map(drop).unwrap_err();
    assert!(matches!(error, DeviceError::Devices { devices: 1, given: 2, .. }), "{error}");
}

#[test]
fn evaluation_reads_the_parts_that_training_writes() {
    let training = two();
    let evaluation = parse(
        r#"trainyard-ir 1
        module @evaluation placed mesh [dp=2] {
          state @w : f32[4, 3] {dp, -} parameter = normal 0.5
          func @train(%0 = @w) {
            %1 = all_gather %0 : f32[4, 3]
            %2 = reduce %1 {kind = sum, dims = [0, 1], keep = false} : f32[]
          }
          output "sum" = %2
        }"#,
    );
    let program = program(&training);
    let options = LowerOptions { states_of: Some(&program), ..LowerOptions::of(cpu::TARGET) };
    let shared = Arc::new(lower(&evaluation, &options).unwrap());
    let mut ranks = on_processor(vec![program.clone(), shared], Some(2), None, None).unwrap();
    ranks.write_state(ProgramId(0), 0, &f32s(&[1.0; 12])).unwrap();
    let x = vec![vec![f32s(&[0.5; 12])]];
    let mut sums = vec![];
    for _ in 0..2 {
        sums.push(ranks.step(ProgramId(1), &[vec![]]).unwrap()["sum"][0].clone());
        ranks.step(ProgramId(0), &x).unwrap();
    }
    assert_eq!(sums, [f32s(&[12.0]), f32s(&[18.0])]);

    let mut other = evaluation.clone();
    let elsewhere = ir::text::print(&other).replace("{dp, -} parameter", "{-, -} parameter");
    assert_ne!(elsewhere, ir::text::print(&other));
    other.states.values_mut().for_each(|state| state.ty.sharding = ir::Sharding::default());
    let error = lower(&other, &options).unwrap_err().to_string();
    assert_eq!(error.lines().next(), Some("the program `m` has no state `w` of type f32[4, 3]"));
}

#[test]
fn a_rank_holds_its_parts_alone() {
    let module = placed(
        "dp=2, tp=2",
        r#"%0 "x" : f32[64, 128] {dp, tp}"#,
        "%1 = exp %0 : f32[64, 128] {dp, tp}",
        &["%1"],
    );
    let (split, whole) = (program(&module), program(&crate::compare::on_one_device(&module)));
    assert_eq!(split.memory.arena, whole.memory.arena / 4);
    let part = 64 * 128 * 4 / 4;
    assert_eq!(split.memory.arena, 2 * part); // before and after
    assert_ne!(split.hash, whole.hash);
    assert_eq!(on_processor(vec![split], Some(1), None, None).unwrap().allocated(), 4 * 2 * part);
}

#[test]
fn the_number_of_threads_does_not_show_and_neither_does_chance() {
    let module = placed(
        "dp=2, tp=2",
        r#"%0 "x" : f32[8, 600] {dp, tp}, %1 "w" : f32[600, 40] {tp, -}"#,
        "%2 = contract %0, %1 {lhs = ab, rhs = bc, out = ac} : f32[8, 40] {dp, -} partial(sum tp)
        %3 = all_reduce %2 : f32[8, 40] {dp, -}
        %4 = reduce %3 {kind = sum, dims = [0, 1], keep = false} : f32[] partial(sum dp)
        %5 = all_reduce %4 : f32[]",
        &["%3", "%5"],
    );
    let program = program(&module);
    let inputs = &microbatches(&module, 1)[0];
    let bytes: Vec<Vec<u8>> = program.inputs.iter().map(|input| inputs[&input.name].to_bytes()).collect();
    let runs = [1, 3, 8, 8].map(|threads| {
        let mut ranks = on_processor(vec![program.clone()], Some(threads), None, None).unwrap();
        ranks.step(ProgramId(0), std::slice::from_ref(&bytes)).unwrap()
    });
    assert!(runs.iter().all(|run| *run == runs[0]));
}

#[test]
fn what_does_not_divide_is_not_lowered() {
    let mut module = two();
    module.mesh.axes.values_mut().for_each(|axis| axis.size = 3);
    let error = lower(&module, &LowerOptions::of(cpu::TARGET)).unwrap_err().to_string();
    assert!(error.contains("f32[4, 3] {dp, -}, cannot be divided equally over the mesh [dp=3]"), "{error}");
}

#[test]
fn states_go_in_and_come_out_whole_on_any_mesh() {
    for mesh in ["dp=4", "dp=2", "dp=1"] {
        let module = parse(&ir::text::print(&two()).replace("dp=2", mesh));
        let program = program(&module);
        let mut ranks = on_processor(vec![program], None, None, None).unwrap();
        let w: Tensor = initial(&module).into_values().next().unwrap();
        ranks.write_state(ProgramId(0), 0, &w.to_bytes()).unwrap();
        assert_eq!(ranks.read_state(ProgramId(0), 0).unwrap(), w.to_bytes());
    }
    assert_eq!(on_ranks(&two(), &LowerOptions::of(cpu::TARGET), 1).len(), 2);
}
