//! Programs of one operator, whose work was counted by hand.

use super::{Bound, CommandCost, Roofline, timeline};
use crate::cuda::lower::lower as lower_for_cuda;
use crate::cuda::program::{Command, Event, Stream, Task};
use crate::lower::{LowerOptions, lower};
use crate::program::{Microbatches, Section};
use crate::target::Target;
use ir::machine::{Preset, Unit};
use ir::ops::attention::{Attention, AttentionGrad};
use ir::ops::contract::Contract;
use ir::ops::elementwise::{Binary, Unary};
use ir::ops::experts::Experts;
use ir::ops::indexing::Gather;
use ir::ops::norm::LayerNorm;
use ir::{Builder, DType, Module, Op, Type};
use smallvec::SmallVec;
use std::sync::Arc;

/// What the commands of an operator on operands of these types take on an H200.
fn of(operators: &[(Op, &[usize])], types: &[(DType, &[u64])]) -> Vec<CommandCost> {
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
    let options =
        LowerOptions { target: Target::Cuda, microbatches: Microbatches::One, ..LowerOptions::default() };
    let program = Arc::new(lower(&module, &options).expect("it lowers"));
    let cuda = lower_for_cuda(program).expect("it lowers for CUDA");
    let mut roofline = Roofline::of(&cuda, Preset::H200.device(), 1);
    std::mem::take(&mut roofline.sections[Section::Microbatch as usize].commands)
}

#[test]
fn a_matrix_multiplication_reads_both_sides_once_and_is_bound_by_tensor_cores() {
    let [multiply] = &of(
        &[(Contract::new("mk,kn->mn").into(), &[0, 1])],
        &[(DType::BF16, &[1024, 512]), (DType::BF16, &[512, 2048])],
    )[..] else {
        panic!("one command")
    };
    assert_eq!(multiply.work.read, 2 * (1024 * 512 + 512 * 2048));
    assert_eq!(multiply.work.written, 2 * 1024 * 2048);
    assert_eq!(multiply.work.flops, 2 * 1024 * 512 * 2048);
    assert_eq!((multiply.bound, multiply.work.unit), (Bound::Compute, Unit::Matrices(DType::BF16)));
    // 2.147 GFLOP at 989.5 · 0.803 TFLOP/s, and 1.5 µs.
    assert!((multiply.seconds - 4.203e-6).abs() < 1e-9, "{}", multiply.seconds);
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
    assert_eq!(large.work.read, 4 * (8192 * 1024 + 2 * 1024));
    assert_eq!(large.work.written, 4 * (8192 * 1024 + 2 * 8192));
    assert_eq!((large.bound, large.work.flops), (Bound::Memory, 8 * 8192 * 1024));
    // 67.2 MB at 4.8 · 0.9 TB/s, and 1.5 µs.
    assert!((large.seconds - 17.05e-6).abs() < 1e-8, "{}", large.seconds);
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
    let kinds: Vec<&str> = parts.iter().map(|part| &part.kind[..]).collect();
    assert_eq!(kinds, ["attention_mma", "attention_by_queries_mma", "attention_by_keys_mma"]);
    let flops: Vec<u64> = parts.iter().map(|part| part.work.flops).collect();
    // Two products; three; four.
    assert_eq!(flops, [2, 3, 4].map(|products| products * 2 * pairs * width / 2));
    assert!(parts.iter().all(|part| part.work.unit == Unit::Attention));
    let moved: Vec<[u64; 2]> = parts.iter().map(|part| [part.work.read, part.work.written]).collect();
    // Scratch has three numbers a row.
    let kept = 3 * 4 * rows;
    let expected = [
        [3 * tensor, tensor + 4 * rows],
        // What it leaves in scratch counts as read.
        [5 * tensor + 4 * rows + kept, tensor],
        [4 * tensor + kept, 2 * tensor],
    ];
    assert_eq!(moved, expected);
}

/// The commands of experts on rows of these widths, with the units that do their operations.
fn units_of_experts(dtype: DType, widths: [u64; 2]) -> Vec<(String, u64, Unit)> {
    let (rows, experts, [k, n]) = (1024, 8, widths);
    let types: [(DType, &[u64]); 3] = [(dtype, &[rows, k]), (dtype, &[experts, k, n]), (DType::I64, &[rows])];
    let commands = of(&[(Experts { transposed: false }.into(), &[0, 1, 2])], &types);
    commands.into_iter().map(|command| (command.kind, command.work.flops, command.work.unit)).collect()
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
    assert_eq!((chain.kind.as_str(), chain.work.unit), ("chain", Unit::Elements(DType::F32)));
    assert_eq!(chain.work.flops, 3 * 4096 * 1024);
    // x, and the row that is added to all; three results, all of them outputs.
    assert_eq!(chain.work.read, 4 * (4096 * 1024 + 1024));
    assert_eq!(chain.work.written, 3 * 4 * 4096 * 1024);
}

#[test]
fn of_a_table_only_the_rows_that_are_looked_up_are_read() {
    let [gather] =
        &of(&[(Gather { dim: 0 }.into(), &[0, 1])], &[(DType::F32, &[50_000, 64]), (DType::I64, &[32])])[..]
    else {
        panic!("one command")
    };
    assert_eq!((gather.work.read, gather.work.written), (32 * 64 * 4 + 32 * 8, 32 * 64 * 4));
}

fn command(stream: Stream, waits: &[u32], records: Option<u32>) -> Command {
    Command {
        stream,
        waits: waits.iter().copied().map(Event).collect(),
        records: records.map(Event),
        task: Task::Library,
        reads: SmallVec::new(),
        writes: SmallVec::new(),
        instructions: 0..1,
    }
}

#[test]
fn streams_overlap_but_for_what_waits() {
    use Stream::{Main, Side};
    let commands = [
        command(Main, &[], Some(0)),
        command(Side, &[0], Some(1)),
        command(Main, &[], None),
        command(Side, &[], None),
        command(Main, &[1], None),
    ];
    assert_eq!(timeline::begins(&commands, &[2.0, 5.0, 3.0, 1.0, 4.0]), [0.0, 2.0, 2.0, 7.0, 7.0]);
}

#[test]
fn gradients_of_weights_run_aside_and_take_memory_all_the_same() {
    let sizes: &[u64] = &[64, 4096, 4096];
    let commands = of(&[(Unary::Neg.into(), &[0]), (Unary::Neg.into(), &[1])], &[(DType::F32, sizes); 2]);
    assert_eq!(commands.len(), 2);
    let cost = super::SectionCost::of(
        &[command(Stream::Main, &[], None), command(Stream::Side, &[], None)],
        commands.clone(),
        &Preset::H200.device(),
    );
    // Both begin at once, and share the memory.
    assert_eq!(cost.commands[1].begin, 0.0);
    let moving = 4.0 * 64.0 * 4096.0 * 4096.0 * 4.0 / Preset::H200.device().memory_rate();
    assert!((cost.seconds - moving).abs() < 1e-9, "{} {moving}", cost.seconds);
}
