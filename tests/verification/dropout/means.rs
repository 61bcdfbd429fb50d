//! Dropout does not change means: of a tensor, of the gradient of a linear function, and, nearly, of a loss.
//!
//! Seeds fix the random numbers, so each test gives the same numbers every time. The bounds are multiples of the standard deviation of the
//! mean of independent draws (the central limit theorem).

use ir::{DType, Module, Tensor};
use passes::dropout::Dropout;
use passes::{Manager, PassContext, Pipeline};
use testing::models::{self, GPT2_DROPOUT, done};
use trainyard::pipeline::CompilationPlan;
use trainyard::verification::Mode;
use trainyard::verification::against::{self, file::Numbers};
use trainyard::verification::execute::{Machine, Tensors};

const SAMPLES: usize = 4;
const WIDTH: usize = 48;
const STEPS: usize = 400;

/// `y = dropout(x·w)`, and its sum: linear in `w`.
const LINEAR: &str = "trainyard-ir 1
module @linear imported {
  state @w : f32[48] parameter = zeros
  func @forward(%0 \"x\" batched : f32[4, 48], %1 = @w) {
    %2 = mul %0, %1 : f32[4, 48] !{fwd}
    %3 = dropout %2 {ratio = 0.5, id = 0, seed = 0, dim = 0} : f32[4, 48] !{fwd}
    %4 = reduce %3 {kind = sum, dims = [0, 1], keep = false} : f32[] !{fwd}
  }
  output \"y\" = %3
  output \"loss\" = %4
}
";

/// The program [`LINEAR`] with a backward phase.
fn linear(seed: u64, ratio: f64) -> Module {
    let mut module = ir::text::parse(LINEAR).expect("it is a program");
    let pipeline = format!("bind dropout(seed={seed}, ratio={ratio}) loss(model) autodiff");
    let pipeline: Pipeline = pipeline.parse().expect("it is a pipeline");
    let (manager, mut cx) = (Manager::default(), PassContext::default());
    if let Err(failure) = manager.run(&pipeline, &mut module, &mut cx, |_, _, _| {}) {
        panic!("{failure}");
    }
    module
}

/// Normal numbers.
fn numbers(sizes: &[usize], stream: u64) -> Tensor {
    let count = sizes.iter().product::<usize>() as u64;
    let elements = (0..count).map(|i| ir::random::normal(3, stream, i)).collect();
    Tensor::float(DType::F32, sizes.to_vec(), elements).rounded()
}

/// The sum over steps of a result with this name.
struct Total {
    name: &'static str,
    sums: Vec<f64>,
}

/// Asserts that the means are the expected ones: each within five standard deviations, and with a mean square of the scores near 1. If the
/// mean square is not too small, the draws are independent and the deviations are right.
fn assert_means(what: &str, means: &[f64], expected: &[f64], deviations: &[f64]) {
    let scores = means
        .iter()
        .zip(expected)
        .zip(deviations)
        .map(|((mean, expected), deviation)| (mean - expected) / deviation);
    let scores: Vec<f64> = scores.collect();
    let largest = scores.iter().fold(0.0f64, |largest, score| largest.max(score.abs()));
    let square = scores.iter().map(|score| score * score).sum::<f64>() / scores.len() as f64;
    println!("{what}: largest {largest:.2} deviations, mean square {square:.2}");
    assert!(largest <= 5.0, "{what}: {largest:.2} deviations");
    // The mean square of n normal numbers has the standard deviation √(2/n).
    let limit = 4.0 * (2.0 / scores.len() as f64).sqrt();
    assert!((square - 1.0).abs() <= limit, "{what}: mean square {square:.2}");
}

#[test]
fn the_means_of_what_is_left_and_of_its_gradient_are_those_without_dropout() {
    let inputs = Tensors::from([("x".to_owned(), numbers(&[SAMPLES, WIDTH], 1))]);
    let start = Tensors::from([("w".to_owned(), numbers(&[WIDTH], 2))]);
    let (x, w) = (inputs["x"].floats(), start["w"].floats());
    let outputs: Vec<f64> = x.iter().enumerate().map(|(i, x)| x * w[i % WIDTH]).collect();
    let column = |j: usize| (0..SAMPLES).map(move |sample| x[sample * WIDTH + j]);
    let gradients: Vec<f64> = (0..WIDTH).map(|j| column(j).sum()).collect();
    let lengths: Vec<f64> = (0..WIDTH).map(|j| column(j).map(|x| x * x).sum::<f64>().sqrt()).collect();
    for mode in [Mode::Exact, Mode::On(cpu::TARGET)] {
        for (seed, ratio) in [(0, 0.1), (1, 0.5), (u64::MAX, 0.8)] {
            let module = linear(seed, ratio);
            let mut machine = done(Machine::new(&module, mode, 1, &start));
            let mut totals = [("y", SAMPLES * WIDTH), ("grad.w", WIDTH)]
                .map(|(name, count)| Total { name, sums: vec![0.0; count] });
            for _ in 0..STEPS {
                let execution = done(machine.step(std::slice::from_ref(&inputs)));
                for Total { name, sums } in &mut totals {
                    let reported = execution.outputs[*name][0].floats();
                    sums.iter_mut().zip(reported).for_each(|(sum, reported)| *sum += reported);
                }
            }
            let [left, gradient] = totals
                .map(|total| total.sums.into_iter().map(|sum| sum / STEPS as f64).collect::<Vec<f64>>());
            // An element becomes 0, or 1/(1 - ratio) times its value.
            let deviation = (ratio / (1.0 - ratio) / STEPS as f64).sqrt();
            let of = |sizes: &[f64]| sizes.iter().map(|size| size.abs() * deviation).collect::<Vec<f64>>();
            let what = |of: &str| format!("{of} in mode {}, ratio {ratio}", mode.name());
            assert_means(&what("outputs"), &left, &outputs, &of(&outputs));
            assert_means(&what("gradients"), &gradient, &gradients, &of(&lengths));
        }
    }
}

/// The first losses of GPT-2 with dropout in training mode, which has the weights of the fixtures `gpt2`. The samples are those of PyTorch's
/// numbers, and no step changes a weight.
fn losses(ratio: f64, seed: u64, steps: usize) -> Vec<f64> {
    let dropout = Dropout { seed, ratio: Some(ratio) };
    let optimizer = passes::optimizer::Optimizer { lr: 0.0, ..models::momentum() };
    let subject = GPT2_DROPOUT
        .compiled(GPT2_DROPOUT.batch, CompilationPlan { optimizer, dropout, ..CompilationPlan::default() });
    let module = &subject.compilation.training;
    let label = done(against::label_name(module));
    let mut numbers = done(Numbers::read(&models::path("gpt2.train.npz"), module, label.as_deref()));
    let shown = Tensor::splat(DType::I64, numbers.inputs["input_ids"].sizes.clone(), 1.0);
    numbers.inputs.insert("attention_mask".into(), shown);
    let inputs = done(against::microbatches(module, &numbers, label.as_deref()));
    let mut machine = done(Machine::new(module, Mode::On(cpu::TARGET), 1, &subject.start));
    (0..steps).map(|_| done(machine.step(&inputs)).loss().expect("a step has a loss")).collect()
}

/// Dropout adds noise with mean zero to the logits, with a variance proportional to the ratio. So the curvature of the loss moves its mean
/// in proportion to the ratio: by at most a hundredth of the ratio, apart from chance.
#[test]
fn the_mean_of_the_first_loss_of_gpt2_is_near_that_without_dropout() {
    let [none] = losses(0.0, 0, 1)[..] else { panic!("a step has a loss") };
    for ratio in [0.01, 0.1] {
        let drawn: Vec<f64> = (0..4).flat_map(|seed| losses(ratio, seed, 16)).collect();
        let count = drawn.len() as f64;
        let mean = drawn.iter().sum::<f64>() / count;
        let variance = drawn.iter().map(|loss| (loss - mean).powi(2)).sum::<f64>() / (count - 1.0);
        let deviation = (variance / count).sqrt();
        println!("ratio {ratio}: {mean:.5}, without {none:.5}, deviation of the mean {deviation:.5}");
        let limit = 0.01 * ratio + 4.0 * deviation;
        assert!(deviation > 0.0 && (mean - none).abs() <= limit, "{mean}, not {none}");
    }
}
