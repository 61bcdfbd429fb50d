//! Tests of cuDNN's graphs as text.

use super::share::{counts, shares};
use super::testing::{Places, attention, instruction};
use super::*;
use expect_test::{Expect, expect};
use ir::ops::conv::{Conv, ConvGradInput, ConvGradWeight};
use smallvec::smallvec;

fn check(instruction: &Instruction, expected: Expect) {
    let text = match Graph::of(instruction) {
        Ok(graph) => graph.to_string(),
        Err(error) => error.to_string(),
    };
    expected.assert_eq(&text);
}

/// Returns an operator on dense tensors of these sizes (two operands and a result), each `behind` elements after its place.
fn dense(op: impl Into<Op>, dtype: DType, sizes: [&[usize]; 3], behind: u64) -> Instruction {
    let mut places = Places::default();
    let [first, second, result] = sizes.map(|sizes| places.dense(dtype, sizes, behind));
    instruction(op, vec![first, second], vec![result])
}

#[test]
fn a_convolution_has_the_zeros_around_its_image_on_each_side() {
    let conv = Conv { strides: smallvec![2, 1], dilations: smallvec![1, 3], pads: smallvec![3, 0, 2, 1] };
    let sizes: [&[usize]; 3] = [&[16, 3, 224, 224], &[64, 3, 7, 7], &[16, 64, 112, 207]];
    check(
        &dense(conv, DType::F32, sizes, 0),
        expect![[r#"
        0: f32 [16, 3, 224, 224] by [150528, 50176, 224, 1] operand 0, aligned to 16
        1: f32 [64, 3, 7, 7] by [147, 49, 7, 1] operand 1, aligned to 16
        2: f32 [16, 64, 112, 207] by [1483776, 23184, 207, 1] result 0, aligned to 16
        2 = convolution of 0 by 1, strides [2, 1], dilations [1, 3], zeros [3, 0] and [2, 1]
    "#]],
    );
}

#[test]
fn a_convolution_over_one_dim_is_one_over_two() {
    let op = ConvGradInput { strides: smallvec![4], dilations: smallvec![2], pads: smallvec![1, 2] };
    check(
        &dense(op, DType::BF16, [&[6, 2, 3], &[2, 6, 5], &[2, 4, 20]], 3),
        expect![[r#"
        0: bf16 [2, 4, 1, 20] by [80, 20, 20, 1] result 0, aligned to 2
        1: bf16 [6, 2, 1, 3] by [6, 3, 3, 1] operand 0, aligned to 2
        2: bf16 [2, 6, 1, 5] by [30, 5, 5, 1] operand 1, aligned to 2
        0 = image's gradient of 1 and 2, strides [1, 4], dilations [1, 2], zeros [0, 1] and [0, 2]
    "#]],
    );
}

#[test]
fn a_gradient_of_a_weight_over_three_dims() {
    let op = ConvGradWeight { strides: smallvec![1; 3], dilations: smallvec![1; 3], pads: smallvec![0; 6] };
    let sizes: [&[usize]; 3] = [&[2, 4, 3, 4, 5], &[2, 6, 3, 4, 5], &[6, 4, 1, 1, 1]];
    check(
        &dense(op, DType::F64, sizes, 1),
        expect![[r#"
        0: f64 [2, 4, 3, 4, 5] by [240, 60, 20, 5, 1] operand 0, aligned to 8
        1: f64 [6, 4, 1, 1, 1] by [4, 1, 1, 1, 1] result 0, aligned to 8
        2: f64 [2, 6, 3, 4, 5] by [360, 60, 20, 5, 1] operand 1, aligned to 8
        1 = weight's gradient of 0 and 2, strides [1, 1, 1], dilations [1, 1, 1], zeros [0, 0, 0] and [0, 0, 0]
    "#]],
    );
}

#[test]
fn what_cudnn_does_not_convolve_is_named() {
    let conv = Conv { strides: smallvec![1; 4], dilations: smallvec![1; 4], pads: smallvec![0; 8] };
    check(
        &dense(conv, DType::F32, [&[1; 6]; 3], 0),
        expect![
            "`conv`: cuDNN supports convolutions over at most 3 spatial dims, not over 4; --device cpu runs every operator"
        ],
    );
    let conv = Conv { strides: smallvec![1 << 40], dilations: smallvec![1], pads: smallvec![0, 0] };
    check(
        &dense(conv, DType::F32, [&[1; 3]; 3], 0),
        expect![
            "`conv`: cuDNN does not support a window that moves by 1099511627776; --device cpu runs every operator"
        ],
    );
}

#[test]
fn gpt2_s_attention_is_the_graph_that_cudnn_knows() {
    let [forward, gradient] = attention([8, 12, 12, 1024, 64], DType::BF16, true);
    check(
        &forward,
        expect![[r#"
        0: f32 [1, 1, 1, 1] by [1, 1, 1, 1] number 0.125
        1: bf16 [8, 12, 1024, 64] by [786432, 64, 768, 1] operand 0, aligned to 16
        2: bf16 [8, 12, 1024, 64] by [786432, 64, 768, 1] operand 2, aligned to 16
        3: bf16 [8, 12, 1024, 64] by [786432, 64, 768, 1] result 0, aligned to 16
        4: bf16 [8, 12, 64, 1024] by [786432, 64, 1, 768] operand 1, aligned to 16
        5: f32 [8, 12, 1024, 1] by [12288, 1024, 1, 1] result 1, aligned to 16
        6: f32 [8, 12, 1024, 1024] by [12582912, 1048576, 1024, 1] between
        7: f32 [8, 12, 1024, 1024] by [12582912, 1048576, 1024, 1] between
        8: i32 [8, 12, 1024, 1024] by [12582912, 1048576, 1024, 1] between
        9: i32 [8, 12, 1024, 1024] by [12582912, 1048576, 1024, 1] between
        10: bool [8, 12, 1024, 1024] by [12582912, 1048576, 1024, 1] between
        11: f32 [1, 1, 1, 1] by [1, 1, 1, 1] number -inf
        12: f32 [8, 12, 1024, 1024] by [12582912, 1048576, 1024, 1] between
        13: f32 [8, 12, 1024, 1] by [12288, 1024, 1, 1] between
        14: f32 [8, 12, 1024, 1024] by [12582912, 1048576, 1024, 1] between
        15: f32 [8, 12, 1024, 1024] by [12582912, 1048576, 1024, 1] between
        16: f32 [8, 12, 1024, 1] by [12288, 1024, 1, 1] between
        17: f32 [8, 12, 1024, 1] by [12288, 1024, 1, 1] between
        18: bf16 [8, 12, 1024, 1024] by [12582912, 1048576, 1024, 1] between
        6 = 1 times 4
        7 = Multiply of [6, 0]
        8 = Index(2) of [7]
        9 = Index(3) of [7]
        10 = AtLeast of [8, 9]
        12 = Select of [7, 11, 10]
        13 = Max over 12
        14 = Subtract of [12, 13]
        15 = Exp of [14]
        16 = Sum over 15
        17 = Log of [16]
        5 = Add of [13, 17]
        18 = Divide of [15, 16]
        3 = 18 times 2
    "#]],
    );
    check(
        &gradient,
        expect![[r#"
        0: f32 [1, 1, 1, 1] by [1, 1, 1, 1] number 0.125
        1: bf16 [8, 12, 1024, 64] by [786432, 64, 768, 1] operand 0, aligned to 16
        2: bf16 [8, 12, 1024, 64] by [786432, 64, 768, 1] operand 3, aligned to 16
        3: bf16 [8, 12, 1024, 64] by [786432, 64, 768, 1] operand 5, aligned to 16
        4: bf16 [8, 12, 64, 1024] by [786432, 64, 1, 768] operand 1, aligned to 16
        5: bf16 [8, 12, 64, 1024] by [786432, 64, 1, 768] operand 2, aligned to 16
        6: bf16 [8, 12, 1024, 64] by [786432, 64, 768, 1] result 0, aligned to 16
        7: bf16 [8, 12, 1024, 64] by [786432, 64, 768, 1] result 1, aligned to 16
        8: bf16 [8, 12, 1024, 64] by [786432, 64, 768, 1] result 2, aligned to 16
        9: f32 [8, 12, 1024, 1] by [12288, 1024, 1, 1] operand 4, aligned to 16
        10: f32 [8, 12, 1024, 64] by [786432, 65536, 64, 1] between
        11: f32 [8, 12, 1024, 1] by [12288, 1024, 1, 1] between
        12: f32 [1, 1, 1, 1] by [1, 1, 1, 1] number 1
        13: f32 [8, 12, 1024, 1] by [12288, 1024, 1, 1] scratch, aligned to 16
        14: f32 [8, 12, 1024, 1024] by [12582912, 1048576, 1024, 1] between
        15: f32 [8, 12, 1024, 1024] by [12582912, 1048576, 1024, 1] between
        16: f32 [8, 12, 1024, 1024] by [12582912, 1048576, 1024, 1] between
        17: i32 [8, 12, 1024, 1024] by [12582912, 1048576, 1024, 1] between
        18: i32 [8, 12, 1024, 1024] by [12582912, 1048576, 1024, 1] between
        19: bool [8, 12, 1024, 1024] by [12582912, 1048576, 1024, 1] between
        20: f32 [1, 1, 1, 1] by [1, 1, 1, 1] number -inf
        21: f32 [8, 12, 1024, 1024] by [12582912, 1048576, 1024, 1] between
        22: f32 [8, 12, 1024, 1024] by [12582912, 1048576, 1024, 1] between
        23: bf16 [8, 12, 1024, 1024] by [12582912, 1048576, 1, 1024] between
        24: f32 [8, 12, 1024, 1024] by [12582912, 1048576, 1024, 1] between
        25: f32 [8, 12, 1024, 1024] by [12582912, 1048576, 1024, 1] between
        26: f32 [8, 12, 1024, 1024] by [12582912, 1048576, 1024, 1] between
        27: f32 [8, 12, 1024, 1024] by [12582912, 1048576, 1024, 1] between
        28: bf16 [8, 12, 1024, 1024] by [12582912, 1048576, 1, 1024] between
        29: bf16 [8, 12, 1024, 64] by [786432, 64, 768, 1] between
        10 = Multiply of [3, 2]
        11 = Sum over 10
        13 = Multiply of [11, 12]
        14 = 1 times 4
        15 = Multiply of [14, 0]
        16 = Subtract of [15, 9]
        17 = Index(2) of [16]
        18 = Index(3) of [16]
        19 = AtLeast of [17, 18]
        21 = Select of [16, 20, 19]
        22 = Exp of [21]
        23 = view of 22
        8 = 23 times 3
        24 = 3 times 5
        25 = Subtract of [24, 13]
        26 = Multiply of [25, 22]
        27 = Multiply of [26, 0]
        28 = view of 27
        7 = 28 times 1
        29 = view of 4
        6 = 27 times 29
    "#]],
    );
}

#[test]
fn llama_s_heads_share_keys_and_their_gradients_are_summed() {
    let [forward, gradient] = attention([4, 32, 8, 2048, 128], DType::F16, true);
    check(
        &forward,
        expect![[r#"
        0: f32 [1, 1, 1, 1] by [1, 1, 1, 1] number 0.088388346
        1: f16 [4, 32, 2048, 128] by [8388608, 128, 4096, 1] operand 0, aligned to 16
        2: f16 [4, 8, 2048, 128] by [2097152, 128, 1024, 1] operand 2, aligned to 16
        3: f16 [4, 32, 2048, 128] by [8388608, 128, 4096, 1] result 0, aligned to 16
        4: f16 [4, 8, 128, 2048] by [2097152, 128, 1, 1024] operand 1, aligned to 16
        5: f32 [4, 32, 2048, 1] by [65536, 2048, 1, 1] result 1, aligned to 16
        6: f32 [4, 32, 2048, 2048] by [134217728, 4194304, 2048, 1] between
        7: f32 [4, 32, 2048, 2048] by [134217728, 4194304, 2048, 1] between
        8: i32 [4, 32, 2048, 2048] by [134217728, 4194304, 2048, 1] between
        9: i32 [4, 32, 2048, 2048] by [134217728, 4194304, 2048, 1] between
        10: bool [4, 32, 2048, 2048] by [134217728, 4194304, 2048, 1] between
        11: f32 [1, 1, 1, 1] by [1, 1, 1, 1] number -inf
        12: f32 [4, 32, 2048, 2048] by [134217728, 4194304, 2048, 1] between
        13: f32 [4, 32, 2048, 1] by [65536, 2048, 1, 1] between
        14: f32 [4, 32, 2048, 2048] by [134217728, 4194304, 2048, 1] between
        15: f32 [4, 32, 2048, 2048] by [134217728, 4194304, 2048, 1] between
        16: f32 [4, 32, 2048, 1] by [65536, 2048, 1, 1] between
        17: f32 [4, 32, 2048, 1] by [65536, 2048, 1, 1] between
        18: f16 [4, 32, 2048, 2048] by [134217728, 4194304, 2048, 1] between
        6 = 1 times 4
        7 = Multiply of [6, 0]
        8 = Index(2) of [7]
        9 = Index(3) of [7]
        10 = AtLeast of [8, 9]
        12 = Select of [7, 11, 10]
        13 = Max over 12
        14 = Subtract of [12, 13]
        15 = Exp of [14]
        16 = Sum over 15
        17 = Log of [16]
        5 = Add of [13, 17]
        18 = Divide of [15, 16]
        3 = 18 times 2
    "#]],
    );
    check(
        &gradient,
        expect![[r#"
        0: f32 [1, 1, 1, 1] by [1, 1, 1, 1] number 0.088388346
        1: f16 [4, 32, 2048, 128] by [8388608, 128, 4096, 1] operand 0, aligned to 16
        2: f16 [4, 32, 2048, 128] by [8388608, 128, 4096, 1] operand 3, aligned to 16
        3: f16 [4, 32, 2048, 128] by [8388608, 128, 4096, 1] operand 5, aligned to 16
        4: f16 [4, 8, 128, 2048] by [2097152, 128, 1, 1024] operand 1, aligned to 16
        5: f16 [4, 8, 128, 2048] by [2097152, 128, 1, 1024] operand 2, aligned to 16
        6: f16 [4, 32, 2048, 128] by [8388608, 128, 4096, 1] result 0, aligned to 16
        7: f16 [4, 8, 2048, 128] by [2097152, 128, 1024, 1] result 1, aligned to 16
        8: f16 [4, 8, 2048, 128] by [2097152, 128, 1024, 1] result 2, aligned to 16
        9: f32 [4, 32, 2048, 1] by [65536, 2048, 1, 1] operand 4, aligned to 16
        10: f32 [4, 32, 2048, 128] by [8388608, 262144, 128, 1] between
        11: f32 [4, 32, 2048, 1] by [65536, 2048, 1, 1] between
        12: f32 [1, 1, 1, 1] by [1, 1, 1, 1] number 1
        13: f32 [4, 32, 2048, 1] by [65536, 2048, 1, 1] scratch, aligned to 16
        14: f32 [4, 32, 2048, 2048] by [134217728, 4194304, 2048, 1] between
        15: f32 [4, 32, 2048, 2048] by [134217728, 4194304, 2048, 1] between
        16: f32 [4, 32, 2048, 2048] by [134217728, 4194304, 2048, 1] between
        17: i32 [4, 32, 2048, 2048] by [134217728, 4194304, 2048, 1] between
        18: i32 [4, 32, 2048, 2048] by [134217728, 4194304, 2048, 1] between
        19: bool [4, 32, 2048, 2048] by [134217728, 4194304, 2048, 1] between
        20: f32 [1, 1, 1, 1] by [1, 1, 1, 1] number -inf
        21: f32 [4, 32, 2048, 2048] by [134217728, 4194304, 2048, 1] between
        22: f32 [4, 32, 2048, 2048] by [134217728, 4194304, 2048, 1] between
        23: f16 [4, 32, 2048, 2048] by [134217728, 4194304, 1, 2048] between
        24: f16 [4, 32, 2048, 128] by [8388608, 262144, 128, 1] between
        25: f32 [4, 32, 2048, 2048] by [134217728, 4194304, 2048, 1] between
        26: f32 [4, 32, 2048, 2048] by [134217728, 4194304, 2048, 1] between
        27: f32 [4, 32, 2048, 2048] by [134217728, 4194304, 2048, 1] between
        28: f32 [4, 32, 2048, 2048] by [134217728, 4194304, 2048, 1] between
        29: f16 [4, 32, 2048, 2048] by [134217728, 4194304, 1, 2048] between
        30: f16 [4, 32, 2048, 128] by [8388608, 262144, 128, 1] between
        31: f16 [4, 8, 2048, 128] by [2097152, 128, 1024, 1] between
        10 = Multiply of [3, 2]
        11 = Sum over 10
        13 = Multiply of [11, 12]
        14 = 1 times 4
        15 = Multiply of [14, 0]
        16 = Subtract of [15, 9]
        17 = Index(2) of [16]
        18 = Index(3) of [16]
        19 = AtLeast of [17, 18]
        21 = Select of [16, 20, 19]
        22 = Exp of [21]
        23 = view of 22
        24 = 23 times 3
        8 = Sum over 24
        25 = 3 times 5
        26 = Subtract of [25, 13]
        27 = Multiply of [26, 22]
        28 = Multiply of [27, 0]
        29 = view of 28
        30 = 29 times 1
        7 = Sum over 30
        31 = view of 4
        6 = 28 times 31
    "#]],
    );
}

#[test]
fn attention_that_is_not_for_cudnn_is_refused() {
    let [mut forward, _] = attention([2, 4, 4, 128, 64], DType::F32, false);
    check(
        &forward,
        expect![
            "`attention`: f32 (cuDNN is used for attention in f16 and bf16); --device cpu runs every operator"
        ],
    );
    let mask = forward.operands[0].clone();
    forward.operands.push(mask);
    check(
        &forward,
        expect![
            "`attention`: a mask (cuDNN is used only for causal masks); --device cpu runs every operator"
        ],
    );
}

#[test]
fn shares_are_parts_of_the_batch_one_after_the_other() {
    let [_, gradient] = attention([6, 4, 2, 128, 64], DType::BF16, true);
    assert_eq!(counts(&gradient), [1, 2, 3, 6, 12]);
    let parts = shares(&gradient, 3);
    assert_eq!(parts.len(), 3);
    for (index, part) in parts.iter().enumerate() {
        let views = part.operands.iter().chain(&part.results);
        for (part, whole) in views.zip(gradient.operands.iter().chain(&gradient.results)) {
            assert_eq!(part.layout.sizes[0], 2);
            assert_eq!(part.layout.sizes[1..], whole.layout.sizes[1..]);
            assert_eq!(part.layout.offset, index as isize * 2 * whole.layout.strides[0]);
        }
        assert_eq!(part.scratch, gradient.scratch);
    }
    let conv = Conv { strides: smallvec![1], dilations: smallvec![1], pads: smallvec![0, 0] };
    assert_eq!(counts(&dense(conv, DType::F32, [&[6, 1, 1], &[1, 1, 1], &[6, 1, 1]], 0)), [1]);
}

/// Heads that share keys and values stay together, in their order in memory.
#[test]
fn shares_of_a_sample_are_groups_of_its_heads() {
    let [forward, gradient] = attention([2, 12, 4, 128, 64], DType::BF16, true);
    assert_eq!(counts(&forward), [1, 2, 4, 8]);
    for (instruction, count) in [(&forward, 4), (&gradient, 4), (&gradient, 8)] {
        let of_heads = count / 2;
        let parts = shares(instruction, count);
        assert_eq!(parts.len(), count);
        for (index, part) in parts.iter().enumerate() {
            let (sample, group) = (index / of_heads, index % of_heads);
            let views = part.operands.iter().chain(&part.results);
            for (part, whole) in views.zip(instruction.operands.iter().chain(&instruction.results)) {
                let heads = whole.layout.sizes[1] / of_heads;
                assert_eq!(part.layout.sizes[..2], [1, heads]);
                assert_eq!(part.layout.sizes[2..], whole.layout.sizes[2..]);
                let places = [sample, group * heads].map(|place| place as isize);
                let offset = places[0] * whole.layout.strides[0] + places[1] * whole.layout.strides[1];
                assert_eq!(part.layout.offset, offset);
            }
            assert_eq!(part.scratch, instruction.scratch);
            assert!(Graph::of(part).is_ok());
        }
        // The shares cover the whole result, and no element twice.
        let mut elements: Vec<(isize, usize)> =
            parts.iter().map(|part| (part.results[0].layout.offset, part.results[0].layout.len())).collect();
        elements.sort_unstable();
        elements.dedup();
        let all: usize = elements.iter().map(|(_, count)| count).sum();
        assert_eq!(all, instruction.results[0].layout.len());
    }
}

/// The rows of a share's logarithms and of its scratch lie without holes, as the graph says.
#[test]
fn a_share_of_heads_has_its_rows_without_holes() {
    let [_, gradient] = attention([2, 12, 4, 128, 64], DType::BF16, true);
    for part in shares(&gradient, 8) {
        assert!(part.operands[4].layout.strides.ends_with(&[128, 1]));
        let graph = Graph::of(&part).unwrap_or_else(|error| panic!("{error}"));
        let rows = graph.tensors.iter().filter(|tensor| {
            matches!(
                tensor.held,
                TensorStorage::Memory {
                    part: InstructionTensor::Operand(4) | InstructionTensor::Scratch,
                    ..
                }
            )
        });
        let rows: Vec<(&[i64], &[i64])> =
            rows.map(|tensor| (&tensor.sizes[..], &tensor.strides[..])).collect();
        assert_eq!(rows, [(&[1, 3, 128, 1][..], &[384, 128, 1, 1][..]); 2]);
    }
}
