//! Tests that a call of cuBLASLt computes its multiplication, with cuBLASLt's documentation written as plain loops.

use super::*;
use crate::program::ValueStart;
use ir::ops::elementwise::{Binary, Unary};
use program::Region;

/// The addresses of each part; its numbers are f64. The address of an element is `part * PART + element * 8`.
const PART: u64 = 1 << 32;
const PARTS: usize = 7;

type Memory = [Vec<f64>; PARTS];

fn place(part: usize) -> Address {
    Address(part as u64 * PART)
}

fn part(at: Address) -> usize {
    (at.0 / PART) as usize
}

const PLACES: [usize; PARTS] = [0, 1, 2, 3, 4, 5, 6];

fn memory() -> Memory {
    let number = |part: usize, i: usize| ir::random::normal(7, part as u64, i as u64);
    PLACES.map(|part| (0..512).map(|i| number(part, i)).collect())
}

fn matrices(strides: [i64; 2], apart: i64) -> Matrices {
    Matrices { region: Region::Arena, start: 0, strides, apart }
}

/// Returns the strides of `[rows, columns]`, with `more` elements between lines.
fn lines(by_rows: bool, [rows, columns]: [usize; 2], more: i64) -> [i64; 2] {
    if by_rows { [columns as i64 + more, 1] } else { [1, rows as i64 + more] }
}

fn places(multiply: &Multiply) -> MultiplyPlaces {
    let epilogue = &multiply.epilogue;
    MultiplyPlaces {
        lhs: place(0),
        rhs: place(1),
        out: place(2),
        addend: epilogue.addend.as_ref().map(|_| place(3)),
        bias: epilogue.bias.map(|_| place(4)),
        aux: epilogue.aux.as_ref().map(|_| place(5)),
        sums: epilogue.sums.map(|_| place(6)),
    }
}

fn at(matrices: &Matrices, matrix: usize, [row, column]: [usize; 2]) -> usize {
    let [down, right] = matrices.strides;
    (matrix as i64 * matrices.apart + row as i64 * down + column as i64 * right) as usize
}

/// Computes a multiplication by its definition.
fn meant(multiply: &Multiply, memory: &mut Memory, add: bool) {
    let ([m, k, n], epilogue) = (multiply.sizes, &multiply.epilogue);
    let before = memory.clone();
    for (matrix, i, j) in all([multiply.batch, m, n]) {
        let term =
            |l| before[0][at(&multiply.lhs, matrix, [i, l])] * before[1][at(&multiply.rhs, matrix, [l, j])];
        let mut x: f64 = (0..k).map(term).sum();
        x += epilogue.addend.as_ref().map_or(0.0, |addend| before[3][at(addend, 0, [i, j])]);
        x += epilogue.bias.map_or(0.0, |_| before[4][j]);
        let out = at(&multiply.out, matrix, [i, j]);
        let aux = epilogue.aux.as_ref().map(|aux| at(aux, 0, [i, j]));
        let made = finish(epilogue.activation, x, aux.map(|aux| &mut memory[5][aux]));
        memory[2][out] = made + if add { before[2][out] } else { 0.0 };
    }
    match epilogue.sums {
        Some((0, _)) => {
            (0..m).for_each(|i| memory[6][i] = (0..k).map(|l| before[0][at(&multiply.lhs, 0, [i, l])]).sum())
        }
        Some(_) => {
            (0..n).for_each(|j| memory[6][j] = (0..k).map(|l| before[1][at(&multiply.rhs, 0, [l, j])]).sum())
        }
        None => {}
    }
}

fn finish(activation: Activation, x: f64, aux: Option<&mut f64>) -> f64 {
    match (activation, aux) {
        (Activation::None, _) => x,
        (Activation::GeluTanh, aux) => {
            if let Some(aux) = aux {
                *aux = x;
            }
            Unary::GeluTanh.scalar(x)
        }
        (Activation::GeluTanhGrad, aux) => Binary::GeluTanhGrad.scalar(*aux.expect("it is read"), x),
    }
}

fn all([a, b, c]: [usize; 3]) -> impl Iterator<Item = (usize, usize, usize)> {
    (0..a).flat_map(move |i| (0..b).flat_map(move |j| (0..c).map(move |l| (i, j, l))))
}

/// Computes a call as cuBLASLt does: `D = finish(op(A) · op(B) + C)`, by columns.
fn told(call: &Call, memory: &mut Memory) {
    let Call { problem, places, adds, .. } = call;
    let [a, b, c, d] = &problem.matrices;
    for columns in &problem.matrices {
        assert!(columns.leading >= columns.rows as i64, "a column reaches into the next: {columns:?}");
    }
    let [rows, columns] = [d.rows as usize, d.columns as usize];
    assert_eq!([c.rows, c.columns], [d.rows, d.columns]);
    let swap = |columns: &Columns, transposed| {
        if transposed { [columns.columns, columns.rows] } else { [columns.rows, columns.columns] }
    };
    let [[first_rows, terms], [second_terms, second_columns]] =
        [swap(a, problem.transposed[0]), swap(b, problem.transposed[1])];
    assert_eq!([first_rows, terms, second_columns], [d.rows, second_terms, d.columns]);
    let before = memory.clone();
    let element = |which: usize, columns: &Columns, batch: usize, [i, j]: [usize; 2], transposed: bool| {
        let [i, j] = if transposed { [j, i] } else { [i, j] };
        before[part(places[which])]
            [(batch as i64 * columns.apart + i as i64 + j as i64 * columns.leading) as usize]
    };
    let first = |batch, i, l| element(0, a, batch, [i, l], problem.transposed[0]);
    let second = |batch, l, j| element(1, b, batch, [l, j], problem.transposed[1]);
    let terms = terms as usize;
    for (batch, j, i) in all([problem.batch as usize, columns, rows]) {
        let mut x: f64 = (0..terms).map(|l| first(batch, i, l) * second(batch, l, j)).sum();
        x += if *adds { element(2, c, batch, [i, j], false) } else { 0.0 };
        let bias = |there: bool| if there { before[part(call.vector.unwrap())][i] } else { 0.0 };
        let aux = |leading: i64| i + j * leading as usize;
        let to = call.aux.map(part);
        let made = match problem.finish {
            Finish::Plain { bias: there } => x + bias(there),
            Finish::Gelu { bias: there, aux: leading } => {
                let kept = leading.map(|leading| &mut memory[to.unwrap()][aux(leading)]);
                finish(Activation::GeluTanh, x + bias(there), kept)
            }
            Finish::GeluGradient { aux: leading } => {
                finish(Activation::GeluTanhGrad, x, Some(&mut memory[to.unwrap()][aux(leading)]))
            }
            Finish::Sums { of_first } => {
                let sum = if of_first {
                    (i, (0..terms).map(|l| first(0, i, l)).sum())
                } else {
                    (j, (0..terms).map(|l| second(0, l, j)).sum())
                };
                memory[part(call.vector.unwrap())][sum.0] = sum.1;
                x
            }
        };
        memory[part(places[3])][(batch as i64 * d.apart + i as i64 + j as i64 * d.leading) as usize] = made;
    }
}

fn multiply(sizes: [usize; 3], batch: usize, [lhs, rhs, out]: [Matrices; 3]) -> Multiply {
    Multiply {
        sizes,
        batch,
        lhs,
        rhs,
        out,
        dtype: DType::F64,
        out_dtype: DType::F64,
        accumulates: true,
        epilogue: Epilogue::default(),
    }
}

fn assert_same(multiply: &Multiply, add: bool) {
    let call = Call::of(multiply, &places(multiply), add).unwrap_or_else(|error| panic!("{error}"));
    let (mut meant_memory, mut told_memory) = (memory(), memory());
    meant(multiply, &mut meant_memory, add);
    told(&call, &mut told_memory);
    for (part, (meant, told)) in meant_memory.iter().zip(&told_memory).enumerate() {
        for (i, (x, y)) in meant.iter().zip(told).enumerate() {
            assert!((x - y).abs() < 1e-12, "part {part}, element {i}: {x} and {y} of {multiply:?} {call:?}");
        }
    }
}

const BOTH: [bool; 2] = [true, false];

/// Returns every combination of layouts of both sides and the result.
fn ways() -> impl Iterator<Item = [bool; 3]> {
    all([2, 2, 2]).map(|(a, b, c)| [a, b, c].map(|way| BOTH[way]))
}

#[test]
fn matrices_of_all_sizes_lie_in_all_ways() {
    let sizes =
        [[3, 4, 5], [1, 4, 5], [3, 1, 5], [3, 4, 1], [1, 1, 5], [1, 4, 1], [3, 1, 1], [1, 1, 1], [4, 4, 4]];
    for ([m, k, n], [lhs, rhs, out]) in
        sizes.into_iter().flat_map(|sizes| ways().map(move |ways| (sizes, ways)))
    {
        for (batch, more) in [(1, 0), (1, 3), (3, 0), (2, 2)] {
            let apart = [m * k, k * n, m * n].map(|size| size as i64 + 11 * more);
            let matrices = [
                matrices(lines(lhs, [m, k], more), apart[0]),
                matrices(lines(rhs, [k, n], more), apart[1]),
                matrices(lines(out, [m, n], more), apart[2]),
            ];
            for add in BOTH {
                assert_same(&multiply([m, k, n], batch, matrices.clone()), add);
            }
        }
    }
}

/// Matrices lie interleaved, as heads in `[token, head, number]`; or one matrix is multiplied by many.
#[test]
fn matrices_of_a_batch_are_interleaved_or_one() {
    let ([m, k, n], heads) = ([4, 3, 5], 2);
    let interleaved = |length: i64| matrices([heads * length, 1], length);
    let all = [interleaved(3), matrices([1, 3], 0), interleaved(5)];
    assert_same(&multiply([m, k, n], heads as usize, all), false);
    let transposed = |length: i64| matrices([1, heads * length], length);
    assert_same(&multiply([m, k, n], heads as usize, [transposed(4), interleaved(5), transposed(4)]), true);
}

#[test]
fn epilogues_mean_what_they_say() {
    let start = ValueStart { region: Region::Arena, byte: 0 };
    for [lhs, rhs, by_rows] in ways() {
        let ([m, k, n], sides) = ([3, 4, 5], [lhs, rhs]);
        let out = matrices(lines(by_rows, [m, n], 0), 0);
        let all =
            [lines(sides[0], [m, k], 0), lines(sides[1], [k, n], 0)].map(|strides| matrices(strides, 0));
        let [left, right] = all;
        let plain = multiply([m, k, n], 1, [left, right, out.clone()]);
        let with = |epilogue: Epilogue| Multiply { epilogue, ..plain.clone() };
        let there = |bias: bool| bias.then_some(start);
        for (bias, other) in [(false, false), (false, true), (by_rows, false), (by_rows, true)] {
            let addend = other.then(|| out.clone());
            assert_same(&with(Epilogue { bias: there(bias), addend, ..Epilogue::default() }), false);
            let activation = Activation::GeluTanh;
            let aux = other.then(|| out.clone());
            let kept = Epilogue { bias: there(bias), activation, aux, ..Epilogue::default() };
            assert_same(&with(kept), false);
        }
        assert_same(&with(Epilogue { bias: there(by_rows), ..Epilogue::default() }), true);
        let (activation, aux) = (Activation::GeluTanhGrad, Some(out.clone()));
        assert_same(&with(Epilogue { activation, aux, ..Epilogue::default() }), false);
        for (side, add) in [(0, false), (1, false), (0, true), (1, true)] {
            assert_same(&with(Epilogue { sums: Some((side, start)), ..Epilogue::default() }), add);
        }
    }
}

#[test]
fn what_cublaslt_cannot_do_is_refused() {
    let start = ValueStart { region: Region::Arena, byte: 0 };
    let rows = |length: i64| matrices([length, 1], 0);
    let plain = multiply([3, 4, 5], 1, [rows(4), rows(5), rows(5)]);
    let refused = |multiply: &Multiply, add: bool| {
        let error = Call::of(multiply, &places(multiply), add).unwrap_err();
        assert!(error.to_string().contains("cuBLASLt"), "{error}");
    };
    // A side has no contiguous dim; lines overlap.
    refused(&Multiply { lhs: matrices([8, 2], 0), ..plain.clone() }, false);
    refused(&Multiply { rhs: rows(4), ..plain.clone() }, false);
    refused(&Multiply { batch: usize::MAX, ..plain.clone() }, false);
    let with = |epilogue: Epilogue| Multiply { epilogue, ..plain.clone() };
    let (bias, sums) = (Some(start), Some((0, start)));
    refused(&with(Epilogue { bias, sums, ..Epilogue::default() }), false);
    refused(&with(Epilogue { activation: Activation::GeluTanh, ..Epilogue::default() }), true);
    refused(&with(Epilogue { addend: Some(rows(5)), ..Epilogue::default() }), true);
    refused(&with(Epilogue { activation: Activation::GeluTanhGrad, ..Epilogue::default() }), false);
    refused(&with(Epilogue { aux: Some(rows(5)), ..Epilogue::default() }), false);
    let by_columns = Multiply { out: matrices([1, 3], 0), ..plain.clone() };
    let with_bias = Epilogue { bias, ..Epilogue::default() };
    refused(&Multiply { epilogue: with_bias.clone(), ..by_columns.clone() }, false);
    let with_addend = Epilogue { addend: Some(rows(5)), ..Epilogue::default() };
    refused(&Multiply { epilogue: with_addend, ..by_columns }, false);
    refused(&Multiply { epilogue: with_bias, batch: 2, ..plain.clone() }, false);
}

#[test]
fn alignments_are_those_of_the_addresses() {
    assert_eq!([0, 256, 512, 64, 18, 3].map(|at| alignment(Address(at))), [256, 256, 256, 64, 2, 1]);
    let rows = |length: i64| matrices([length, 1], 0);
    let plain = multiply([3, 4, 5], 1, [rows(4), rows(5), rows(5)]);
    let at = |lhs| MultiplyPlaces { lhs: Address(lhs), ..places(&plain) };
    let problem = |lhs| Call::of(&plain, &at(lhs), false).unwrap().problem;
    assert_eq!(problem(512), problem(1024));
    // The right side comes first.
    assert_eq!(problem(8).alignments, [256, 8, 256, 256, 0, 0]);
}
