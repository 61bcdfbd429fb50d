//! Compressed gradients, compared with the uncompressed program and with the algorithm in plain loops, on any number of ranks; and the
//! bytes that the collectives of a step reduce.

use ir::ops::collective::Collective;
use ir::{Module, Op, Phase, Role, StepOutput, Tensor};
use passes::compress_gradients::CompressGradients;
use passes::optimizer::{Algorithm, Optimizer};
use std::collections::BTreeMap;
use testing::models::{self, Fixture, adamw, done, split};
use trainyard::pipeline::CompilationPlan;
use trainyard::verification::execute::{Execution, Machine, Tensors};
use trainyard::verification::{Mode, Subject, inputs};

const SAMPLES: u64 = 4;
const MICROBATCHES: u64 = 2;
const STEPS: u64 = 4;
const RATE: f64 = 0.0625;

fn descent(rate: f64) -> Optimizer {
    let algorithm = Algorithm::Sgd { momentum: 0.0, nesterov: false };
    Optimizer { algorithm, lr: rate, ..Optimizer::default() }
}

/// The model on `ranks` data ranks, with its gradients compressed by `method`.
fn subject(fixture: &Fixture, ranks: u64, method: Option<&str>, optimizer: Optimizer) -> Subject {
    subject_on(fixture, ranks, 1, method, optimizer)
}

/// As [`subject`], with tensor ranks too.
fn subject_on(
    fixture: &Fixture,
    ranks: u64,
    tensor: u64,
    method: Option<&str>,
    optimizer: Optimizer,
) -> Subject {
    let compress = method.map(|text| CompressGradients { method: text.parse().expect("a method"), ranks });
    let spmd = if ranks > 1 { split(&format!("mesh=dp:{ranks}*tp:{tensor}")) } else { Default::default() };
    fixture.compiled(
        SAMPLES,
        CompilationPlan { optimizer, spmd, compress_gradients: compress, ..CompilationPlan::default() },
    )
}

/// Some steps of a program from its first weights.
fn steps(subject: &Subject, mode: Mode, count: u64) -> Vec<Execution> {
    let module = &subject.compilation.training;
    let mut machine = done(Machine::new(module, mode, MICROBATCHES as usize, &subject.start));
    let step = |step| {
        let inputs = done(inputs::draw(&subject.compilation.forward, step, MICROBATCHES));
        done(machine.step(&inputs))
    };
    (0..count).map(step).collect()
}

fn parameters(module: &Module) -> Vec<String> {
    let parameters = module.states.values().filter(|state| state.role == Role::Parameter);
    parameters.map(|state| state.name.clone()).collect()
}

/// The largest difference of two tensors, relative to the largest number of the second, or to `least` if that is larger.
fn error(one: &Tensor, other: &Tensor, least: f64) -> f64 {
    let (one, other) = (one.numbers(), other.numbers());
    assert_eq!(one.len(), other.len());
    let size = other.iter().fold(least, |size, x| size.max(x.abs()));
    let difference = one.iter().zip(other.iter()).fold(0.0f64, |most, (x, y)| most.max((x - y).abs()));
    if difference == 0.0 { 0.0 } else { difference / size }
}

/// The largest error of gradients and parameters over all steps. A gradient that is zero but for rounding (the bias of attention's keys)
/// is measured by the norm of all gradients.
fn largest_error(names: &[String], one: &[Execution], other: &[Execution]) -> f64 {
    let mut largest: f64 = 0.0;
    for (one, other) in one.iter().zip(other) {
        let norm = other.outputs[&StepOutput::GradientNorm.to_string()][0].item();
        for name in names {
            largest = largest.max(error(&one.states[name], &other.states[name], 0.0));
            let gradient = StepOutput::Gradient(name).to_string();
            if let (Some(one), Some(other)) = (one.outputs.get(&gradient), other.outputs.get(&gradient)) {
                largest = largest.max(error(&one[0], &other[0], 1e-3 * norm));
            }
        }
    }
    largest
}

#[test]
fn at_full_rank_gradients_are_those_of_the_uncompressed_program() {
    for fixture in [models::MLP_DYNAMO, models::GPT2_DYNAMO] {
        let full = subject(&fixture, 2, Some("powersgd:rank=1000000,min-rate=0"), descent(RATE));
        let plain = subject(&fixture, 2, None, descent(RATE));
        let report = full.compilation.reports.compressed_gradients.clone().expect("gradients are compressed");
        assert!(report.compressed >= 3 && report.after > report.before, "{report:?}");
        let [full_steps, plain_steps] = [&full, &plain].map(|subject| steps(subject, Mode::Exact, 3));
        let error = largest_error(&parameters(&full.compilation.training), &full_steps, &plain_steps);
        println!("{}: {error:e}", fixture.file);
        assert!(error < 1e-9, "{}: {error:e}", fixture.file);
        // With rank 1 the gradients differ.
        let one = subject(&fixture, 2, Some("powersgd:rank=1"), descent(RATE));
        let error =
            largest_error(&parameters(&one.compilation.training), &steps(&one, Mode::Exact, 1), &plain_steps);
        assert!(error > 1e-2, "{}: {error:e}", fixture.file);
    }
}

/// A matrix in plain loops.
#[derive(Clone)]
struct Matrix {
    rows: usize,
    columns: usize,
    at: Vec<f64>,
}

impl Matrix {
    fn new(rows: usize, columns: usize, at: impl Fn(usize, usize) -> f64) -> Self {
        let at = (0..rows * columns).map(|i| at(i / columns, i % columns)).collect();
        Self { rows, columns, at }
    }

    fn get(&self, row: usize, column: usize) -> f64 {
        self.at[row * self.columns + column]
    }

    fn transposed(&self) -> Self {
        Self::new(self.columns, self.rows, |i, j| self.get(j, i))
    }

    fn times(&self, other: &Self) -> Self {
        let sum = |i, j| (0..self.columns).map(|k| self.get(i, k) * other.get(k, j)).sum();
        Self::new(self.rows, other.columns, sum)
    }

    fn plus(&self, factor: f64, other: &Self) -> Self {
        Self::new(self.rows, self.columns, |i, j| self.get(i, j) + factor * other.get(i, j))
    }

    /// Classical Gram-Schmidt, three times. The operator uses another algorithm.
    fn orthogonal(&self) -> Self {
        let mut q = self.clone();
        for j in 0..self.columns {
            for _ in 0..3 {
                let parts: Vec<f64> =
                    (0..j).map(|k| (0..self.rows).map(|i| q.get(i, k) * q.get(i, j)).sum()).collect();
                for i in 0..self.rows {
                    let part: f64 = (0..j).map(|k| parts[k] * q.get(i, k)).sum();
                    q.at[i * self.columns + j] -= part;
                }
                let length = (0..self.rows).map(|i| q.get(i, j).powi(2)).sum::<f64>().sqrt();
                (0..self.rows).for_each(|i| q.at[i * self.columns + j] /= length);
            }
        }
        q
    }
}

/// The weights after some steps of the uncompressed program, with gradients that are compressed here, without ranks: the paper's algorithms
/// 1 and 2 for one worker.
fn by_hand(plain: &Subject, compressed: &Subject, with_errors: bool) -> Tensors {
    let module = &plain.compilation.training;
    let mut weights = plain.start.clone();
    let mut kept: BTreeMap<String, (Matrix, Matrix)> = BTreeMap::new();
    for step in 0..STEPS {
        let inputs = done(inputs::draw(&plain.compilation.forward, step, MICROBATCHES));
        let ended = done(done(Machine::new(module, Mode::Exact, inputs.len(), &weights)).last_step(&inputs));
        for name in parameters(module) {
            let Some(gradient) = ended.outputs.get(&StepOutput::Gradient(&name).to_string()) else {
                continue;
            };
            let gradient = &gradient[0];
            let mut update = gradient.numbers().to_vec();
            if let Some(start) = compressed.start.get(&format!("powersgd.q({name})")) {
                let rows = *gradient.sizes.iter().find(|&&size| size > 1).expect("a matrix");
                let columns = update.len() / rows;
                let own = Matrix { rows, columns, at: update };
                let seen_transposed = rows > columns;
                let own = if seen_transposed { own.transposed() } else { own };
                let (n, r) = (start.sizes[0], start.sizes[1]);
                let (errors, q) = kept.remove(&name).unwrap_or_else(|| {
                    let numbers = start.numbers();
                    (own.plus(-1.0, &own), Matrix::new(n, r, |i, j| numbers[i * r + j]))
                });
                let sum = if with_errors { own.plus(1.0, &errors) } else { own };
                let p = sum.times(&q).orthogonal();
                let q = sum.transposed().times(&p);
                let low = p.times(&q.transposed());
                kept.insert(name.clone(), (sum.plus(-1.0, &low), q));
                update = if seen_transposed { low.transposed().at } else { low.at };
            }
            let before = &weights[&name];
            let after = before.numbers().iter().zip(&update).map(|(x, change)| x - RATE * change).collect();
            let after = Tensor::float(before.dtype, before.sizes.clone(), after);
            weights.insert(name, after);
        }
    }
    weights
}

#[test]
fn several_steps_are_those_of_the_paper_with_the_errors_made_up_for() {
    let method = Some("powersgd:rank=3");
    let plain = subject(&models::GPT2_DYNAMO, 1, None, descent(RATE));
    let compressed = subject(&models::GPT2_DYNAMO, 2, method, descent(RATE));
    let last = steps(&compressed, Mode::Exact, STEPS).pop().expect("steps were run");
    let names = parameters(&compressed.compilation.training);
    let away = |weights: &Tensors| {
        names.iter().map(|name| error(&last.states[name], &weights[name], 0.0)).fold(0.0, f64::max)
    };
    let error = away(&by_hand(&plain, &compressed, true));
    println!("{error:e}");
    assert!(error < 1e-9, "{error:e}");
    assert!(away(&by_hand(&plain, &compressed, false)) > 1e-6, "the errors make no difference");
}

#[test]
fn any_number_of_ranks_computes_the_same_gradients() {
    let of = |ranks, tensor| {
        subject_on(&models::LLAMA_DYNAMO, ranks, tensor, Some("powersgd:rank=2"), descent(RATE))
    };
    let one = of(1, 1);
    let expected = steps(&one, Mode::Exact, STEPS);
    let names = parameters(&one.compilation.training);
    for (ranks, tensor) in [(2, 1), (4, 1), (2, 2)] {
        let split = of(ranks, tensor);
        let got = steps(&split, Mode::Exact, STEPS);
        let error = largest_error(&names, &got, &expected);
        println!("dp={ranks}, tp={tensor}: {error:e}");
        assert!(error < 1e-9, "dp={ranks}, tp={tensor}: {error:e}");
        // Each rank has the errors that it made. Their sum is the same.
        let errors = got[0].states.iter().filter(|(name, _)| name.starts_with("error("));
        let mut count = 0;
        for (name, errors) in errors {
            let (numbers, whole) = (errors.numbers(), expected[0].states[name].numbers());
            assert_eq!(errors.sizes[0] as u64, ranks, "{name}");
            let size = whole.len();
            let sum = |i: usize| (0..ranks as usize).map(|rank| numbers[rank * size + i]).sum::<f64>();
            let scale = numbers.iter().fold(0.0f64, |most, x| most.max(x.abs()));
            assert!((0..size).all(|i| (sum(i) - whole[i]).abs() <= 1e-9 * scale), "{name}");
            assert!(numbers[size..].iter().any(|x| *x != 0.0), "{name}: rank 1 has no error");
            count += 1;
        }
        assert!(count > 3);
    }
}

/// Bytes of the tensors that are summed over the ranks once a step, and the number of other exchanges of tensors.
fn reduced(module: &Module) -> (u64, usize) {
    let (mut bytes, mut others) = (0, 0);
    for (_, node) in module.nodes() {
        let Op::Collective(kind) = node.op else { continue };
        let tensors = node.operands.iter().map(|&operand| module.ty(operand)).filter(|ty| ty.ndim() > 0);
        match (kind, node.phase) {
            (Collective::AllReduce, Phase::Update) => {
                bytes += tensors.map(|ty| ty.bytes().expect("bound")).sum::<u64>();
            }
            (Collective::AllSlice, _) => {}
            _ => others += tensors.count(),
        }
    }
    (bytes, others)
}

#[test]
fn ranks_reduce_the_bytes_of_two_factors_for_each_matrix() {
    for fixture in [models::GPT2_DYNAMO, models::LLAMA_DYNAMO] {
        let plain = subject(&fixture, 2, None, adamw());
        let (before, others) = reduced(&plain.compilation.training);
        for rank in [1u64, 4] {
            let compressed = subject(&fixture, 2, Some(&format!("powersgd:rank={rank}")), adamw());
            let module = &compressed.compilation.training;
            let (mut expected, mut compressed_tensors) = (0, 0);
            for state in module.states.values().filter(|state| state.role == Role::Parameter) {
                if module.output(&StepOutput::Gradient(&state.name).to_string()).is_none() {
                    continue;
                }
                let sizes = state.ty.sizes().expect("bound");
                let wide: Vec<u64> = sizes.iter().copied().filter(|&size| size > 1).collect();
                let elements = match wide[..] {
                    [m, n] if m * n > rank * (m + n) => {
                        compressed_tensors += 1;
                        rank * (m + n)
                    }
                    _ => sizes.iter().product(),
                };
                expected += 4 * elements;
            }
            let report = compressed.compilation.reports.compressed_gradients.clone().expect("a report");
            assert_eq!(reduced(module), (expected, others), "{} at rank {rank}", fixture.file);
            assert_eq!((report.before, report.after), (before, expected), "{}", fixture.file);
            assert_eq!(report.compressed, compressed_tensors, "{}", fixture.file);
            println!("{} at rank {rank}: {expected} of {before} bytes", fixture.file);
            assert!(4 * expected < before, "{expected} of {before} bytes");
        }
    }
}

#[test]
fn devices_compute_what_the_interpreter_does() {
    for method in ["powersgd:rank=2", "bf16"] {
        let subject = subject(&models::GPT2_DYNAMO, 2, Some(method), descent(RATE));
        let names = parameters(&subject.compilation.training);
        let expected = steps(&subject, Mode::Typed, 3);
        let error = largest_error(&names, &steps(&subject, Mode::On(cpu::TARGET), 3), &expected);
        println!("{method}: {error:e}");
        // Two programs may round a bf16 number to different sides.
        assert!(error < if method == "bf16" { 2e-2 } else { 1e-3 }, "{method}: {error:e}");
    }
}

#[test]
fn in_sixteen_bits_half_of_the_bytes_are_reduced_and_the_mean_of_the_steps_is_the_gradient() {
    let two = subject(&models::GPT2_DYNAMO, 2, Some("bf16"), descent(0.0));
    let plain = subject(&models::GPT2_DYNAMO, 2, None, descent(0.0));
    let [(half, _), (whole, _)] = [&two, &plain].map(|subject| reduced(&subject.compilation.training));
    assert_eq!(2 * half, whole);
    // One rank has no sum of rounded numbers, so later steps make up for all rounding. The learning rate is 0, so the gradient of the same
    // inputs stays the same.
    let [one, plain] =
        [Some("bf16"), None].map(|method| subject(&models::GPT2_DYNAMO, 1, method, descent(0.0)));
    let inputs = done(inputs::draw(&plain.compilation.forward, 0, 1));
    let run = |subject: &Subject, count: usize| -> Vec<Execution> {
        let module = &subject.compilation.training;
        let mut machine = done(Machine::new(module, Mode::Typed, 1, &subject.start));
        (0..count).map(|_| done(machine.step(&inputs))).collect()
    };
    let (expected, got) = (run(&plain, 1), run(&one, 8));
    let mut compared = 0;
    for name in parameters(&one.compilation.training) {
        let gradient = StepOutput::Gradient(&name).to_string();
        let Some(expected) = expected[0].outputs.get(&gradient) else { continue };
        let expected = expected[0].numbers();
        let first = got[0].outputs[&gradient][0].numbers();
        for (i, &number) in expected.iter().enumerate() {
            let mean = got.iter().map(|step| step.outputs[&gradient][0].numbers()[i]).sum::<f64>() / 8.0;
            let unit = number.abs() / 256.0;
            assert!(
                (mean - number).abs() <= unit / 4.0 + 1e-6 * number.abs() + 1e-30,
                "{name}: {mean} for {number}"
            );
            assert!((first[i] - number).abs() <= unit, "{name}");
            compared += usize::from((first[i] - number).abs() > unit / 4.0);
        }
    }
    // The gradients of single steps are further away.
    assert!(compared > 1000, "{compared}");
}
