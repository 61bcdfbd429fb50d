//! Attention and its gradient: tiles of both sizes, whole and not, masks of every kind, rows that lie in
//! several ways.

use super::writer::Writer;
use cuda::check::StandIn;
use cuda::check::samples::{SampleVariant, all, check};
use cuda::check::search::Report;
use cuda::host::Order;
use cuda::program::{File, Kernel};
use ir::ops::attention::{Attention, AttentionGrad};
use ir::{DType, Tensor, ValueId, random};
use std::sync::Arc;

/// Batch, query heads, key-value heads, queries, keys, widths of queries and values.
type Sizes = [usize; 7];

/// How a mask is broadcast, and of what type.
type Masked = Option<([bool; 3], DType)>;

/// A mask that hides some keys from some queries, and from some all.
fn mask(writer: &mut Writer, [b, h, _, s, t, ..]: Sizes, (whole, dtype): ([bool; 3], DType)) -> ValueId {
    let [b, h, s] =
        [(whole[0], b), (whole[1], h), (whole[2], s)].map(|(whole, size)| if whole { size } else { 1 });
    let number = |i: usize| random::normal(6, 9, i as u64);
    let hidden = |i: usize| i / t % 3 == 2 || i / t % 3 == 1 && number(i) < 0.0;
    let (sizes, places) = (vec![b, h, s, t], 0..b * h * s * t);
    writer.input(match dtype {
        DType::Bool => Tensor::bool(sizes, places.map(|i| !hidden(i)).collect()),
        // Beside the last number of f32 a score is nothing.
        DType::F64 => {
            let huge = |i: usize| if hidden(i) { f64::from(f32::MIN) } else { number(i) };
            Tensor::float(dtype, sizes, places.map(huge).collect())
        }
        _ => {
            let added = |i: usize| if hidden(i) { f64::NEG_INFINITY } else { number(i) };
            Tensor::float(dtype, sizes, places.map(added).collect()).rounded()
        }
    })
}

/// Attention and its gradient. Everything lies as `[batch, position, head, width]`, rows so many elements
/// apart.
fn attend(writer: &mut Writer, dtype: DType, sizes: Sizes, causal: bool, masked: Masked, apart: usize) {
    let [b, h, g, s, t, d, e] = sizes;
    let [q, k, v, dout] = [(h, s, d), (g, t, d), (g, t, e), (h, s, e)].map(|(heads, positions, width)| {
        let x = writer.floats(dtype, &[b, positions, heads, width + apart]);
        let x = writer.cut(x, 3, apart as u64);
        writer.transposed(x, &[0, 2, 1, 3])
    });
    let scale = (1.0 / (d as f64).sqrt()).into();
    let mut operands = vec![q, k, v];
    operands.extend(masked.map(|masked| mask(writer, sizes, masked)));
    let results = writer.op(Attention { scale, causal }, &operands);
    operands.extend(results);
    operands.push(dout);
    writer.op(AttentionGrad { scale, causal }, &operands);
}

#[test]
#[ignore = "needs a C++ compiler"]
fn attention_of_any_size_and_mask() {
    let mut writer = Writer::default();
    let mut attend = |dtype, sizes, causal, masked| attend(&mut writer, dtype, sizes, causal, masked, 0);
    attend(DType::F32, [1, 2, 2, 40, 70, 20, 12], false, None);
    attend(DType::F32, [1, 4, 1, 45, 45, 33, 70], true, None);
    attend(DType::F64, [1, 2, 1, 34, 37, 35, 40], false, Some(([true, false, true], DType::Bool)));
    attend(DType::F64, [2, 2, 2, 33, 33, 36, 36], true, None);
    attend(DType::F16, [1, 2, 1, 35, 35, 40, 72], true, Some(([false, true, false], DType::F32)));
    attend(DType::F32, [2, 2, 1, 33, 40, 8, 9], false, Some(([false, false, true], DType::F64)));
    attend(DType::BF16, [2, 1, 1, 1, 66, 40, 40], false, Some(([true, true, true], DType::BF16)));
    // Enough for the larger tiles.
    attend(DType::F32, [8, 16, 2, 65, 65, 4, 80], true, None);
    for threads in [0, 1, 3] {
        writer.check(threads);
    }
}

#[test]
#[ignore = "needs a C++ compiler"]
fn attention_by_tensor_cores() {
    let mut writer = Writer::default();
    let mut attend = |dtype, sizes, causal, apart| attend(&mut writer, dtype, sizes, causal, None, apart);
    attend(DType::BF16, [1, 4, 2, 150, 150, 64, 64], true, 0);
    attend(DType::F16, [1, 2, 2, 70, 130, 64, 64], false, 8);
    attend(DType::F16, [1, 2, 1, 100, 100, 128, 128], true, 0);
    attend(DType::BF16, [2, 2, 1, 40, 33, 128, 128], false, 0);
    // Rows that are not aligned are not theirs.
    attend(DType::F16, [1, 1, 1, 20, 20, 64, 64], false, 3);
    for threads in [0, 1, 3] {
        writer.check(threads);
    }
}

#[test]
#[ignore = "needs a C++ compiler"]
fn attention_under_masks_by_tensor_cores() {
    let mut writer = Writer::default();
    let mut attend =
        |dtype, sizes, causal, masked| attend(&mut writer, dtype, sizes, causal, Some(masked), 0);
    attend(DType::BF16, [1, 4, 2, 150, 150, 64, 64], true, ([false, false, true], DType::Bool));
    attend(DType::F16, [2, 2, 1, 70, 130, 64, 64], false, ([true, true, true], DType::Bool));
    // A query mask for all, of an odd number of keys.
    attend(DType::BF16, [2, 2, 2, 40, 67, 64, 64], false, ([true, false, false], DType::Bool));
    attend(DType::F16, [1, 2, 1, 100, 100, 128, 128], true, ([false, true, true], DType::F32));
    attend(DType::BF16, [2, 2, 2, 66, 71, 64, 64], false, ([true, false, true], DType::BF16));
    attend(DType::F16, [1, 4, 2, 70, 70, 64, 64], true, ([false, true, false], DType::F16));
    // Beside these numbers scores are nothing, and logsumexps have no digits for the number of keys.
    attend(DType::F16, [1, 4, 2, 70, 66, 64, 64], false, ([false, true, true], DType::F64));
    attend(DType::BF16, [1, 2, 2, 40, 40, 128, 128], true, ([false, false, true], DType::F64));
    for threads in [0, 1, 3] {
        writer.check(threads);
    }
}

#[test]
#[ignore = "needs a C++ compiler"]
fn attention_of_many_widths_by_tensor_cores() {
    let mut writer = Writer::default();
    let mut attend = |dtype, sizes, causal, masked| attend(&mut writer, dtype, sizes, causal, masked, 0);
    attend(DType::BF16, [1, 4, 2, 70, 70, 80, 80], true, None);
    attend(DType::F16, [1, 2, 2, 65, 90, 96, 96], false, Some(([false, true, true], DType::Bool)));
    attend(DType::BF16, [2, 1, 1, 70, 70, 32, 32], true, Some(([true, false, true], DType::F32)));
    attend(DType::F16, [1, 2, 1, 70, 70, 16, 16], true, None);
    attend(DType::BF16, [1, 2, 1, 33, 40, 40, 40], false, None);
    attend(DType::F16, [1, 2, 1, 20, 80, 8, 24], false, Some(([false, false, true], DType::F64)));
    attend(DType::BF16, [1, 2, 1, 66, 66, 64, 128], true, None);
    attend(DType::F16, [1, 2, 1, 40, 70, 104, 64], false, None);
    attend(DType::BF16, [1, 2, 2, 49, 49, 120, 8], true, Some(([true, true, false], DType::Bool)));
    for threads in [0, 1, 3] {
        writer.check(threads);
    }
}

/// Many blocks, in either order.
#[test]
#[ignore = "needs a C++ compiler"]
fn attention_of_many_heads_by_tensor_cores() {
    let mut writer = Writer::default();
    let mut attend = |dtype, sizes, causal| attend(&mut writer, dtype, sizes, causal, None, 0);
    attend(DType::BF16, [16, 16, 16, 20, 20, 64, 64], true);
    attend(DType::F16, [16, 16, 16, 17, 20, 128, 128], false);
    writer.check(2);
    writer.check(3);
}

/// The kernels, in the order of their launches, of attention and its gradient on `[1, 4, 2, 40, 40]` and
/// widths.
fn kernels(dtype: DType, widths: [usize; 2], masked: Masked, apart: usize) -> Vec<String> {
    let mut writer = Writer::default();
    attend(&mut writer, dtype, [1, 4, 2, 40, 40, widths[0], widths[1]], true, masked, apart);
    let program = cuda::lower::lower(Arc::new(writer.lowered())).unwrap_or_else(|error| panic!("{error}"));
    let names = program.kernels.iter().filter_map(|kernel| kernel.name.rsplit_once('_'));
    names.map(|(name, _)| name.to_string()).filter(|name| name.starts_with("attention")).collect()
}

#[test]
fn tensor_cores_take_masks_and_widths_of_whole_packs() {
    let mask = |dtype| Some(([true, false, true], dtype));
    let taken = [
        kernels(DType::BF16, [64, 64], None, 0),
        kernels(DType::F16, [128, 128], mask(DType::Bool), 8),
        kernels(DType::BF16, [64, 64], mask(DType::F32), 0),
        kernels(DType::F16, [64, 64], mask(DType::F64), 0),
        kernels(DType::BF16, [80, 80], None, 0),
        kernels(DType::F16, [16, 16], mask(DType::F16), 0),
        kernels(DType::BF16, [96, 64], None, 0),
        kernels(DType::F16, [8, 128], mask(DType::Bool), 0),
    ];
    for kernels in taken {
        assert_eq!(kernels, ["attention_mma", "attention_by_queries_mma", "attention_by_keys_mma"]);
    }
    let others = [
        kernels(DType::F32, [64, 64], None, 0),
        // Rows that are not whole packs, that are not aligned, or that are too wide.
        kernels(DType::F16, [36, 36], None, 0),
        kernels(DType::BF16, [64, 60], None, 0),
        kernels(DType::F16, [64, 64], None, 3),
        kernels(DType::BF16, [136, 64], None, 0),
        kernels(DType::F16, [64, 256], None, 0),
    ];
    for kernels in others {
        assert_eq!(kernels, ["attention", "attention_rows", "attention_by_queries", "attention_by_keys"]);
    }
}

/// Rows of 0 keys, and no rows.
#[test]
#[ignore = "needs a C++ compiler"]
fn attention_to_nothing_gives_zeros() {
    let mut writer = Writer::default();
    attend(&mut writer, DType::F32, [1, 2, 2, 5, 0, 4, 4], false, None, 0);
    attend(&mut writer, DType::F32, [1, 2, 2, 0, 5, 4, 4], false, None, 0);
    writer.check(0);
}

/// Attention's samples, on kernels with a fault.
fn check_with(fault: fn(&mut Kernel)) -> Report {
    let samples: Vec<_> = all().into_iter().filter(|sample| sample.op.name() == "attention").collect();
    check(
        &StandIn { change: fault, ..StandIn::sound(Order::default()) },
        &samples,
        &SampleVariant::ALL[..1],
        true,
    )
}

/// Replaces a text in the files that a kernel needs.
fn replace(kernel: &mut Kernel, text: &str, by: &str) {
    for file in kernel.files.iter_mut().filter(|file| file.text.contains(text)) {
        let text = String::leak(file.text.replace(text, by));
        *file = Box::leak(Box::new(File { name: file.name, text, after: file.after }));
    }
}

/// The stand-in makes a copy when its group is waited for: a wait for one group less finds nothing in shared
/// memory.
#[test]
#[ignore = "night: orders"]
fn a_wait_for_one_group_of_copies_less_is_found() {
    let report = check_with(|kernel| {
        replace(kernel, "wait_for_copies_but<STAGES - 2>", "wait_for_copies_but<STAGES - 1>")
    });
    assert!(report.passed > 0, "f32 does without tensor cores: {report:?}");
    assert!(!report.failures.is_empty(), "{report:?}");
    for failure in &report.failures {
        let half = failure.operands.iter().any(|operand| operand.contains("f16"));
        let is_found =
            failure.problem.starts_with("result.") || failure.problem.contains("ends without a wait");
        assert!(half && is_found, "{failure:?}");
    }
}
