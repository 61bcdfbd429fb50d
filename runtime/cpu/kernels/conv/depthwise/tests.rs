//! The kernels against plain loops in f64, over windows of every kind.

use crate::math::{Float, Real};
use crate::storage::{narrow, widen};
use half::{bf16, f16};
use ir::ops::conv::{Conv, ConvGradInput, ConvGradWeight, Geometry};
use ir::{DType, Op, random};
use program::convolution::Convolution;
use rayon::ThreadPoolBuilder;
use smallvec::SmallVec;

/// The sizes of an image and a weight; strides, dilations and pads.
type Case = [&'static [usize]; 5];

const CASES: &[Case] = &[
    // Windows of a residual block of ConvNeXt, over planes as large as and smaller than a window.
    [&[2, 3, 12, 12], &[3, 1, 7, 7], &[1, 1], &[1, 1], &[3, 3, 3, 3]],
    [&[1, 2, 3, 3], &[2, 1, 7, 7], &[1, 1], &[1, 1], &[3, 3, 3, 3]],
    [&[3, 2, 1, 1], &[2, 1, 7, 7], &[1, 1], &[1, 1], &[3, 3, 3, 3]],
    // Two and three outputs of each channel, and strides.
    [&[1, 4, 24, 25], &[8, 1, 3, 3], &[2, 2], &[1, 1], &[1, 1, 1, 1]],
    [&[2, 2, 9, 70], &[6, 1, 5, 5], &[2, 1], &[1, 1], &[2, 2, 2, 2]],
    [&[1, 2, 10, 11], &[2, 1, 3, 3], &[3, 3], &[2, 2], &[0, 1, 3, 2]],
    [&[1, 2, 12, 9], &[4, 1, 4, 2], &[2, 3], &[3, 1], &[4, 0, 1, 5]],
    // Elements that no window reads, and taps that meet no element.
    [&[1, 2, 11, 13], &[2, 1, 2, 2], &[4, 5], &[1, 1], &[0, 0, 0, 0]],
    [&[2, 2, 8, 9], &[2, 1, 1, 1], &[2, 2], &[1, 1], &[0, 0, 0, 0]],
    [&[1, 2, 2, 3], &[2, 1, 3, 3], &[1, 1], &[1, 1], &[5, 4, 3, 6]],
    [&[1, 2, 3, 2], &[2, 1, 5, 4], &[1, 2], &[3, 2], &[6, 3, 7, 4]],
    // More terms than are summed one after the other.
    [&[1, 2, 20, 21], &[2, 1, 31, 31], &[1, 1], &[1, 1], &[15, 15, 15, 15]],
    // Sides of a single element.
    [&[2, 2, 7, 1], &[2, 1, 3, 1], &[1, 1], &[1, 1], &[1, 0, 1, 0]],
    [&[2, 2, 1, 9], &[4, 1, 3, 3], &[1, 2], &[1, 1], &[1, 1, 1, 1]],
    [&[1, 3, 4, 1], &[3, 1, 2, 3], &[2, 1], &[1, 1], &[0, 1, 0, 2]],
    // One and three spatial dims.
    [&[3, 3, 40], &[3, 1, 4], &[1], &[1], &[3, 0]],
    [&[1, 2, 500], &[2, 1, 31], &[1], &[1], &[15, 15]],
    [&[1, 2, 5], &[4, 1, 9], &[1], &[1], &[4, 4]],
    [&[2, 2, 1500], &[2, 1, 3], &[1], &[2], &[2, 2]],
    [&[2, 2, 4, 5, 6], &[4, 1, 3, 2, 2], &[1, 2, 1], &[1, 1, 2], &[1, 1, 0, 1, 0, 2]],
    [&[1, 2, 1, 5, 8], &[2, 1, 3, 3, 3], &[1, 1, 2], &[1, 2, 1], &[1, 2, 1, 1, 2, 1]],
    // Several strips, the last one shorter.
    [&[1, 2, 150, 130], &[2, 1, 3, 3], &[1, 1], &[1, 1], &[1, 1, 1, 1]],
    [&[1, 2, 301, 260], &[4, 1, 3, 4], &[2, 2], &[1, 1], &[1, 1, 2, 1]],
    [&[1, 2, 40_000], &[2, 1, 4], &[1], &[1], &[3, 0]],
    [&[1, 2, 50_001], &[2, 1, 5], &[2], &[3], &[0, 7]],
];

/// The convolution and its two gradients, each with the numbers of its operands and its result among `x`, `weight` and `y`.
fn operators([_, _, strides, dilations, pads]: Case) -> [(Op, [usize; 3]); 3] {
    let numbers = |numbers: &[usize]| numbers.iter().map(|&x| x as u64).collect::<Vec<_>>();
    let (strides, dilations, pads) = (numbers(strides), numbers(dilations), numbers(pads));
    macro_rules! operator {
        ($operator:ident) => {
            Op::from($operator {
                strides: SmallVec::from_slice(&strides),
                dilations: SmallVec::from_slice(&dilations),
                pads: SmallVec::from_slice(&pads),
            })
        };
    }
    [
        (operator!(Conv), [0, 1, 2]),
        (operator!(ConvGradInput), [1, 2, 0]),
        (operator!(ConvGradWeight), [0, 2, 1]),
    ]
}

fn geometry(case: Case) -> Geometry {
    let [(op, _), ..] = operators(case);
    let Op::Conv(conv) = op else { unreachable!("it is the first") };
    Geometry::new(conv.windows(), case[0], case[1])
}

/// Returns the sizes of `x`, `weight` and `y`.
fn sizes(case: Case) -> [Vec<usize>; 3] {
    let sides = geometry(case).sides;
    let y = [case[0][0], case[1][0]].into_iter().chain(sides.iter().map(|side| side.positions));
    [case[0].to_vec(), case[1].to_vec(), y.collect()]
}

/// Returns normal numbers for `x`, `weight` and `y`, rounded to a type.
fn tensors<S: Float>(case: Case) -> [Vec<S>; 3] {
    let mut stream = 0;
    sizes(case).map(|sizes| {
        stream += 1;
        let numbers = (0..sizes.iter().product::<usize>()).map(|i| random::normal(7, stream, i as u64));
        numbers.map(S::from_f64).collect()
    })
}

/// Runs the kernel of an operator with scratch that is not zero.
fn run<S: Float>(case: Case, op: &Op, [first, second, result]: [usize; 3], tensors: &[Vec<S>; 3]) -> Vec<S> {
    let sizes = sizes(case);
    let dtype = [DType::F16, DType::F32, DType::F64][size_of::<S>().ilog2() as usize - 1];
    let convolution = Convolution::of(op, dtype, [&sizes[first], &sizes[second]], &sizes[result]);
    let convolution = convolution.expect("it is a convolution");
    let planes = convolution.depthwise.as_ref().expect("it is depthwise");
    let mut scratch = vec![S::Real::of(f64::NAN); convolution.scratch()];
    let mut made = vec![S::from_f64(f64::NAN); tensors[result].len()];
    super::run(&convolution, planes, [&tensors[first], &tensors[second]], &mut made, &mut scratch);
    made
}

/// Calls `term` with the places in `x`, `weight` and `y` of the factors of each term of `Σ y · conv(x, weight)`.
fn for_each_term(geometry: &Geometry, mut term: impl FnMut([usize; 3])) {
    let Geometry { batch, groups, outputs, sides, .. } = geometry;
    let (taps, positions) = (geometry.taps(), geometry.positions());
    let place = |mut tap: usize, mut position: usize| {
        let (mut place, mut step) = (0, 1);
        for side in sides.iter().rev() {
            place += step * side.at(tap % side.kernel, position % side.positions)?;
            (step, tap, position) = (step * side.image, tap / side.kernel, position / side.positions);
        }
        Some(place)
    };
    for (tap, position) in (0..taps).flat_map(|tap| (0..positions).map(move |position| (tap, position))) {
        let Some(place) = place(tap, position) else { continue };
        for channel in 0..batch * groups * outputs {
            let (block, weight) = (channel / outputs, channel % (groups * outputs));
            term([block * geometry.area() + place, weight * taps + tap, channel * positions + position]);
        }
    }
}

/// Compares the kernels with plain loops, and the result of two threads with that of one.
fn check<S: Float>(case: Case, epsilon: f64) {
    let tensors = tensors::<S>(case);
    for (op, [first, second, result]) in operators(case) {
        let mut expected = vec![[0.0; 2]; tensors[result].len()];
        for_each_term(&geometry(case), |places| {
            let term = tensors[first][places[first]].to_f64() * tensors[second][places[second]].to_f64();
            let [sum, size] = &mut expected[places[result]];
            (*sum, *size) = (*sum + term, *size + term.abs());
        });
        let of_threads = [1, 2].map(|threads| {
            let pool = ThreadPoolBuilder::new().num_threads(threads).build().expect("there are threads");
            pool.install(|| run(case, &op, [first, second, result], &tensors))
        });
        for (i, (given, [sum, size])) in of_threads[0].iter().zip(expected).enumerate() {
            let error = (given.to_f64() - sum).abs();
            assert!(error <= 8.0 * epsilon * size, "{case:?}, `{}`, {i}: {error:e} of {size:e}", op.name());
        }
        let bits = |made: &[S]| bytemuck::cast_slice::<S, u8>(made).to_vec();
        assert!(bits(&of_threads[0]) == bits(&of_threads[1]), "{case:?}, `{}` on two threads", op.name());
    }
}

#[test]
fn depthwise_convolutions_are_the_sums_of_the_definition() {
    for &case in CASES {
        check::<f32>(case, f64::from(f32::EPSILON));
        check::<f64>(case, f64::EPSILON);
    }
}

/// Compares a type of two bytes with f32.
fn check_half<S: Float<Real = f32>>(case: Case) {
    let tensors = tensors::<S>(case);
    let wide = tensors.each_ref().map(|tensor| {
        let mut wide = vec![0.0; tensor.len()];
        widen(tensor, &mut wide);
        wide
    });
    for (op, places) in operators(case) {
        let (given, expected) = (run(case, &op, places, &tensors), run(case, &op, places, &wide));
        let mut rounded = given.clone();
        narrow(&expected, &mut rounded);
        assert!(given == rounded, "{case:?}, `{}`", op.name());
    }
}

#[test]
fn depthwise_convolutions_of_halves_are_rounded_once() {
    for &case in CASES.iter().take(16) {
        check_half::<f16>(case);
        check_half::<bf16>(case);
    }
}

/// Sums that are dropped are computed beside those of the result. An infinity in them must not reach the result.
#[test]
fn an_infinite_element_affects_its_own_windows_alone() {
    /// The last element of a line of `x`.
    const AT: usize = 4 * 9 + 8;
    let case: Case = [&[1, 2, 9, 9], &[2, 1, 3, 3], &[1, 1], &[1, 1], &[0, 0, 0, 0]];
    for (op, [first, second, result]) in operators(case) {
        for (operand, other) in [(first, second), (second, first)] {
            if operand == 1 {
                continue; // an infinite weight is multiplied with the zeros around the image
            }
            let mut tensors = tensors::<f32>(case);
            tensors[operand][AT] = f32::INFINITY;
            tensors[other].iter_mut().for_each(|x| *x = x.abs() + 1.0);
            let mut infinite = vec![false; tensors[result].len()];
            for_each_term(&geometry(case), |places| infinite[places[result]] |= places[operand] == AT);
            let made = run(case, &op, [first, second, result], &tensors);
            for (i, (&made, infinite)) in made.iter().zip(infinite).enumerate() {
                assert_eq!(
                    made == f32::INFINITY,
                    infinite,
                    "`{}`, operand {operand}, {i}: {made}",
                    op.name()
                );
                assert!(infinite || made.is_finite(), "`{}`, operand {operand}, {i}: {made}", op.name());
            }
        }
    }
}
