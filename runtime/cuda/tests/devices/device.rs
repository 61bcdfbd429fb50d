//! What the device is asked besides steps: programs that share states, numbers that are not finite, bad sizes.

use crate::compare::Microbatch;
use cpu::Cpu;
use ir::ops::elementwise::{Binary, Unary};
use ir::{Builder, DType, Initializer, Module, Role, Tensor, Type};
use program::device::{Device, DeviceError, ProgramId, step};
use program::lower::{LowerOptions, lower};
use program::{Microbatches, Section};
use std::sync::Arc;

/// y = log(x · w) - 1, with names to find again.
fn logarithm() -> Module {
    let mut module = Module::new("logarithm");
    let ty = Type::of(DType::F32, &[2, 3]);
    let x = module.add_input("x", ty.clone(), true);
    let w = module.add_state("w", ty, Role::Parameter, Initializer::Splat(1.0f64.to_bits()));
    let w = module.states[w].input;
    let mut b = Builder::new(&mut module, "test");
    b.origin("/scale");
    let scaled = b.build(x * w).unwrap();
    b.origin("/inverse");
    let inverse = b.one(Unary::Reciprocal, &[scaled]).unwrap();
    b.origin("/log");
    let log = b.one(Unary::Log, &[inverse]).unwrap();
    b.origin("/less");
    let one = b.splat_like(log, 1.0).unwrap();
    let y = b.one(Binary::Sub, &[log, one]).unwrap();
    b.finish();
    module.add_output("y", y);
    module
}

fn f32_bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|x| x.to_le_bytes()).collect()
}

#[test]
fn the_first_node_that_made_a_nan_is_named() {
    let module = logarithm();
    for unfused in [true, false] {
        assert_first_non_finite_is_named(&module, &LowerOptions { unfused, ..LowerOptions::of(cpu::TARGET) });
    }
}

fn assert_first_non_finite_is_named(module: &Module, options: &LowerOptions) {
    let mut cpu = Cpu::new(vec![Arc::new(lower(module, options).unwrap())], Some(1)).unwrap();
    let id = ProgramId(0);
    cpu.write_state(id, 0, &f32_bytes(&[1.0; 6])).unwrap();
    for (x, expected) in [
        ([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], None),
        ([1.0, 2.0, -3.0, 4.0, 5.0, 6.0], Some("`log` of /log made NaN")),
        ([1.0, 0.0, 3.0, 4.0, 5.0, 6.0], Some("`reciprocal` of /inverse made inf")),
        (
            [1.0, 0.0, -3.0, 4.0, 5.0, 6.0],
            Some("`log` of /log made NaN; before it, `reciprocal` of /inverse made inf"),
        ),
    ] {
        cpu.write_input(id, 0, &f32_bytes(&x)).unwrap();
        let found = cpu.first_non_finite(id).unwrap().map(|found| found.to_string());
        assert_eq!(found.as_deref(), expected);
    }
}

#[test]
fn evaluation_reads_the_states_that_training_writes() {
    let seed = crate::training::seed_with_parameters(21);
    let training = crate::training::training_program(seed, DType::F64, true);
    let mut evaluation = ir::testing::program(seed, DType::F64, 16);
    evaluation.name = "evaluation".into();
    evaluation.outputs.retain(|output| output.name == "loss.sum");
    let program = lower(&training, &LowerOptions::of(cpu::TARGET)).unwrap();
    let options = LowerOptions { states_of: Some(&program), ..LowerOptions::of(cpu::TARGET) };
    let evaluation_program = lower(&evaluation, &options).unwrap();
    let mut cpu = Cpu::new(vec![Arc::new(program), Arc::new(evaluation_program)], Some(2)).unwrap();
    let initial = ir::interp::initial_states(&training, 1, ir::interp::Missing::Draw).unwrap();
    for (index, tensor) in initial.values().enumerate() {
        cpu.write_state(ProgramId(0), index, &tensor.to_bytes()).unwrap();
    }
    let microbatch = ir::testing::microbatch(&training, seed, 0);
    let inputs = vec![crate::compare::bytes(cpu.program(ProgramId(0)), &microbatch)];
    let before = step(&mut cpu, ProgramId(1), &inputs).unwrap();
    let trained = step(&mut cpu, ProgramId(0), &inputs).unwrap();
    let after = step(&mut cpu, ProgramId(1), &inputs).unwrap();
    assert_eq!(before.keys().collect::<Vec<_>>(), ["loss.sum"]);
    let number = |bytes: &[u8]| f64::from_le_bytes(bytes.try_into().unwrap());
    assert!((number(&before["loss.sum"][0]) - number(&trained["loss.sum"][0])).abs() < 1e-12);
    assert_ne!(before["loss.sum"], after["loss.sum"]);
}

#[test]
fn wrong_sizes_and_indices_are_refused() {
    let module = logarithm();
    let options = LowerOptions { microbatches: Microbatches::One, ..LowerOptions::of(cpu::TARGET) };
    let mut cpu = Cpu::new(vec![Arc::new(lower(&module, &options).unwrap())], Some(1)).unwrap();
    let id = ProgramId(0);
    let error = cpu.write_input(id, 0, &[0; 23]).unwrap_err();
    assert_eq!(error.to_string(), "`x` is f32[2, 3] and needs 24 bytes, and 23 bytes were given");
    assert!(matches!(cpu.write_state(id, 1, &[]), Err(DeviceError::Unknown { what: "state", index: 1 })));
    assert!(matches!(
        cpu.run(ProgramId(1), Section::Update),
        Err(DeviceError::Unknown { what: "program", index: 1 })
    ));
    cpu.run(id, Section::Microbatch).unwrap();
    assert!(matches!(cpu.run(id, Section::Microbatch), Err(DeviceError::OneMicrobatch)));
}

#[test]
fn dead_nodes_are_not_computed() {
    let mut module = logarithm();
    let first = module.nodes().next().unwrap().1.results[0];
    module.outputs.clear();
    module.add_output("scaled", first);
    let program = lower(&module, &LowerOptions::of(cpu::TARGET)).unwrap();
    assert_eq!(program.section(Section::Microbatch).len(), 1);
}

#[test]
fn a_constant_without_bytes_is_named() {
    let mut module = Module::new("constant");
    let ty = Type::of(DType::F32, &[2]);
    let data = ir::Data { name: "table".into(), ty: ty.clone(), blob: ir::Blob::File(None), claim: None };
    let data = module.add_data(data);
    let mut b = Builder::new(&mut module, "test");
    let y = b.one_typed(ir::ops::constant::Constant { data }, &[], ty).unwrap();
    b.finish();
    module.add_output("y", y);
    let error = lower(&module, &LowerOptions::of(cpu::TARGET)).unwrap_err();
    assert_eq!(error.message, "the bytes of constant `table` are missing");
}

/// Constants reach outputs as they are, however they are laid out.
#[test]
fn constants_and_views_of_them_can_be_reported() {
    let mut module = Module::new("constants");
    let mut b = Builder::new(&mut module, "test");
    let splat = b.splat(Type::of(DType::F32, &[2, 3]), 2.5).unwrap();
    let iota = b.one_typed(ir::ops::constant::Iota { dim: 0 }, &[], Type::of(DType::I64, &[3, 2])).unwrap();
    let turned = b.transpose(iota, &[1, 0]).unwrap();
    b.finish();
    module.add_output("splat", splat);
    module.add_output("turned", turned);
    crate::compare::assert_agrees(&module, &LowerOptions::of(cpu::TARGET), &[vec![Microbatch::new()]], 0.0);
    let expected = Tensor::int(DType::I64, vec![2, 3], vec![0, 1, 2, 0, 1, 2]);
    let program = lower(&module, &LowerOptions::of(cpu::TARGET)).unwrap();
    let mut cpu = Cpu::new(vec![Arc::new(program)], Some(1)).unwrap();
    let outputs = step(&mut cpu, ProgramId(0), &[vec![]]).unwrap();
    assert_eq!(outputs["turned"][0], expected.to_bytes());
}
