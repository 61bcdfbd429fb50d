//! Programs of one operator, with work that was counted by hand.

use super::commands;
use crate::lower::lower as lower_for_cuda;
use ir::machine::{DeviceKind, Machine, Preset, Unit};
use ir::ops::attention::{Attention, AttentionGrad};
use ir::ops::contract::Contract;
use ir::ops::elementwise::{Binary, Unary};
use ir::ops::experts::Experts;
use ir::ops::indexing::Gather;
use ir::ops::norm::LayerNorm;
use ir::{Builder, DType, Module, Op, Type};
use program::commands::{CommandClass, Stream};
use program::lower::{LowerOptions, lower};
use program::simulator::{Bound, SimulatedCommand, SimulatedStep};
use program::{Microbatches, Part};
use std::sync::Arc;

/// Returns the commands of operators on operands of these types, on an H200.
fn of(operators: &[(Op, &[usize])], types: &[(DType, &[u64])]) -> Vec<SimulatedCommand> {
    let mut module = Module::new("test");
    let mut values: Vec<_> = (types.iter().enumerate())
        .map(|(index, (dtype, sizes))| module.add_input(format!("x{index}"), Type::of(*dtype, sizes), false))
        .collect();
    let mut b = Builder::new(&mut module, "test");
    for (op, operands) in operators {
        let operands: Vec<_> = operands.iter().map(|&operand| values[operand]).collect();
        values.extend(b.push(op.clone(), &operands).expect("the types fit"));
    }
    for (index, &value) in values[types.len()..].iter().enumerate() {
        b.tables().add_output(format!("y{index}"), value);
    }
    b.finish();
    let options = LowerOptions { microbatches: Microbatches::One, ..LowerOptions::of(crate::TARGET) };
    let program = Arc::new(lower(&module, &options).expect("it lowers"));
    let cuda = lower_for_cuda(program).expect("it lowers for CUDA");
    let list = commands(&cuda, 1);
    let mut step = SimulatedStep::of(&list, &Machine::Node(Preset::H200.device()));
    std::mem::take(&mut step.parts[Part::Microbatch as usize].commands)
}

#[test]
fn a_matrix_multiplication_reads_both_sides_once_and_is_bound_by_tensor_cores() {
    let [multiply] = &of(
        &[(Contract::new("mk,kn->mn").into(), &[0, 1])],
        &[(DType::BF16, &[1024, 512]), (DType::BF16, &[512, 2048])],
    )[..] else {
        panic!("one command")
    };
    assert_eq!(multiply.command.work.read, 2 * (1024 * 512 + 512 * 2048));
    assert_eq!(multiply.command.work.written, 2 * 1024 * 2048);
    assert_eq!(multiply.command.work.flops, 2 * 1024 * 512 * 2048);
    assert_eq!((multiply.bound, multiply.command.work.unit), (Bound::Compute, Unit::Matrices(DType::BF16)));
    // 2.147 GFLOP at 989.5 · 0.803 TFLOP/s, and 1.5 µs.
    assert!((multiply.alone - 4.203e-6).abs() < 1e-9, "{}", multiply.alone);
}

#[test]
fn a_norm_is_bound_by_memory_and_a_small_one_by_its_start() {
    let norm = |rows: u64| {
        let op = LayerNorm { eps: 1e-5.into() };
        let types: [(DType, &[u64]); 3] =
            [(DType::F32, &[rows, 1024]), (DType::F32, &[1024]), (DType::F32, &[1024])];
        of(&[(op.into(), &[0, 1, 2])], &types).remove(0)
    };
    let large = norm(8192);
    assert_eq!(large.command.work.read, 4 * (8192 * 1024 + 2 * 1024));
    assert_eq!(large.command.work.written, 4 * (8192 * 1024 + 2 * 8192));
    assert_eq!((large.bound, large.command.work.flops), (Bound::Memory, 8 * 8192 * 1024));
    // 67.2 MB at 4.8 · 0.9 TB/s, and 1.5 µs.
    assert!((large.alone - 17.05e-6).abs() < 1e-8, "{}", large.alone);
    assert_eq!(norm(64).bound, Bound::Launch);
}

#[test]
fn half_of_causal_attention_is_counted_and_each_part_of_its_gradient_for_itself() {
    let (batch, heads, length, width) = (2, 4, 128, 64);
    let sizes: &[u64] = &[batch, heads, length, width];
    let attention = Attention { scale: 0.125.into(), causal: true };
    let gradient = AttentionGrad { scale: 0.125.into(), causal: true };
    let parts = of(
        &[(attention.into(), &[0, 1, 2]), (gradient.into(), &[0, 1, 2, 4, 5, 3])],
        &[(DType::BF16, sizes); 4],
    );
    let tensor = 2 * batch * heads * length * width;
    let (rows, pairs) = (batch * heads * length, batch * heads * length * length);
    let kinds: Vec<&str> = parts.iter().map(|part| &part.command.kind[..]).collect();
    assert_eq!(kinds, ["attention_mma", "attention_by_queries_mma", "attention_by_keys_mma"]);
    let flops: Vec<u64> = parts.iter().map(|part| part.command.work.flops).collect();
    // The forward has two products; the gradient by queries has three, and the gradient by keys has four.
    assert_eq!(flops, [2, 3, 4].map(|products| products * 2 * pairs * width / 2));
    assert!(parts.iter().all(|part| part.command.work.unit == Unit::Attention(DType::BF16)));
    let moved: Vec<[u64; 2]> =
        parts.iter().map(|part| [part.command.work.read, part.command.work.written]).collect();
    // The scratch has three numbers for each row.
    let kept = 3 * 4 * rows;
    let expected = [
        [3 * tensor, tensor + 4 * rows],
        // The numbers that it leaves in scratch count as read.
        [5 * tensor + 4 * rows + kept, tensor],
        [4 * tensor + kept, 2 * tensor],
    ];
    assert_eq!(moved, expected);
}

/// Returns the commands of experts on rows of these widths, with the units that do their operations.
fn units_of_experts(dtype: DType, widths: [u64; 2]) -> Vec<(String, u64, Unit)> {
    let (rows, experts, [k, n]) = (1024, 8, widths);
    let types: [(DType, &[u64]); 3] = [(dtype, &[rows, k]), (dtype, &[experts, k, n]), (DType::I64, &[rows])];
    let commands = of(&[(Experts { transposed: false }.into(), &[0, 1, 2])], &types);
    let fact = |one: SimulatedCommand| (one.command.kind, one.command.work.flops, one.command.work.unit);
    commands.into_iter().map(fact).collect()
}

#[test]
fn experts_of_halves_are_computed_at_the_rate_of_matrices() {
    let [sort, multiply] = &units_of_experts(DType::BF16, [512, 256])[..] else { panic!("two commands") };
    assert_eq!((sort.0.as_str(), sort.1), ("sort", 0));
    let flops = 2 * 1024 * 512 * 256;
    assert_eq!(*multiply, ("experts_mma".into(), flops, Unit::Matrices(DType::BF16)));
    // Packs of 16 bytes do not fit, or there are no tensor cores for the type.
    for (dtype, widths) in [(DType::BF16, [512, 252]), (DType::BF16, [508, 256]), (DType::F32, [512, 256])] {
        let plain = &units_of_experts(dtype, widths)[1];
        assert_eq!((plain.0.as_str(), plain.2), ("experts", Unit::Elements(dtype)), "{dtype} {widths:?}");
    }
}

#[test]
fn a_chain_moves_its_ends_and_not_what_is_between() {
    let [chain] = &of(
        &[(Unary::Neg.into(), &[0]), (Binary::Mul.into(), &[2, 0]), (Binary::Add.into(), &[3, 1])],
        &[(DType::F32, &[4096, 1024]), (DType::F32, &[1024])],
    )[..] else {
        panic!("one command")
    };
    assert_eq!((chain.command.kind.as_str(), chain.command.work.unit), ("chain", Unit::Elements(DType::F32)));
    assert_eq!(chain.command.work.flops, 3 * 4096 * 1024);
    // x, and the row that is added to all rows; three results, all of which are outputs.
    assert_eq!(chain.command.work.read, 4 * (4096 * 1024 + 1024));
    assert_eq!(chain.command.work.written, 3 * 4 * 4096 * 1024);
}

#[test]
fn of_a_table_only_the_rows_that_are_looked_up_are_read() {
    let [gather] =
        &of(&[(Gather { dim: 0 }.into(), &[0, 1])], &[(DType::F32, &[50_000, 64]), (DType::I64, &[32])])[..]
    else {
        panic!("one command")
    };
    assert_eq!((gather.command.work.read, gather.command.work.written), (32 * 64 * 4 + 32 * 8, 32 * 64 * 4));
}

#[test]
fn a_product_that_nothing_reads_runs_aside_and_waits_for_its_operand() {
    let sizes: &[u64] = &[512, 512];
    let commands = of(
        &[(Unary::Neg.into(), &[0]), (Contract::new("mk,kn->mn").into(), &[2, 1]), (Unary::Neg.into(), &[0])],
        &[(DType::BF16, sizes); 2],
    );
    let streams: Vec<Stream> = commands.iter().map(|one| one.command.stream).collect();
    let product = streams.iter().position(|stream| *stream == Stream::Side).expect("a product goes aside");
    let waits = &commands[product].command.waits;
    assert_eq!(waits.len(), 1, "{streams:?}");
    assert!(commands[product].span.begin >= commands[waits[0]].span.end);
}

/// A state of 16 MiB in a file, which the host reads, changes and writes; its twin rests on the host.
const IN_FILE: &str = r#"trainyard-ir 1
    module @m training {
      state @s : f32[4194304] optimizer disk = zeros
      state @t : f32[4194304] optimizer host = zeros
      func @train(%0 = @s, %1 = @t) {
        %2 = copy %0 {to = host} : f32[4194304] !{update}
        %3 = add %2, %1 : f32[4194304] !{update, on host}
        %4 = copy %3 {to = disk} : f32[4194304] !{update}
        %5 = add %1, %1 : f32[4194304] !{update, on host}
      }
      update @s = %4
      update @t = %5
    }"#;

#[test]
fn copies_with_a_file_take_as_long_as_the_disk_and_updates_on_the_host_wait_for_them() {
    let module = ir::text::parse(IN_FILE).unwrap();
    let step = |preset: Preset| {
        let target = if preset.device().kind == DeviceKind::Gpu { crate::TARGET } else { cpu::TARGET };
        let program = lower(&module, &LowerOptions::of(target)).unwrap();
        let list = target.commands(&Arc::new(program), 1).unwrap();
        let mut step = SimulatedStep::of(&list, &Machine::Node(preset.device()));
        std::mem::take(&mut step.parts[Part::Update as usize].commands)
    };
    // 16 MiB at 0.84 of 50 GB/s and of 5 GB/s, and 100 µs.
    for (preset, seconds) in [(Preset::H200, 499.5e-6), (Preset::Cpu, 4094.6e-6)] {
        let commands = step(preset);
        let with_file: Vec<&SimulatedCommand> =
            commands.iter().filter(|one| one.command.kind == "copy").collect();
        assert_eq!(with_file.len(), 2);
        for one in with_file {
            assert_eq!((one.bound, &one.command.class), (Bound::Disk, &CommandClass::Disk(4 * 4_194_304)));
            assert!((one.alone - seconds).abs() < 1e-7, "{preset:?}: {}", one.alone);
        }
    }
    let commands = step(Preset::H200);
    let streams: Vec<Stream> = commands.iter().map(|one| one.command.stream).collect();
    assert_eq!(streams, [Stream::Disk, Stream::Host, Stream::Disk, Stream::Host]);
    // The second update waits for the first one, because the first one reads a value that the second one changes. The driver may run
    // functions of two streams one after the other, so the update also waits for the copy, which could begin at the same moment.
    assert_eq!(commands[2].span.begin, commands[1].span.end);
    assert_eq!(commands[3].span.begin, commands[2].span.end);
}
