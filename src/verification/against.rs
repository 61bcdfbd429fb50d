//! `--against FILE.npz`: the compiled program against numbers that another program computed.

pub mod file;
pub mod matching;
mod packed;
pub mod untrained;

use super::Mode;
use super::assumptions::TrainedThere;
use super::compare::{self, Difference, FLOOR, Kind};
use super::execute::{Execution, Tensors};
use super::inputs;
use super::report::{ComparedTensors, Match};
use super::{Subject, Tested};
use crate::compilation::Compilation;
use crate::failure::Failure;
use crate::feed;
use file::Numbers;
use ir::relative_error::{largest, relative_error};
use ir::tensor::Elements;
use ir::{DType, Diagnostic, Module, StepOutput, Tensor, Type};
use matching::{By, Found, Ours, Theirs};
use packed::Trained;
use passes::reports::ParameterReport;
use std::collections::BTreeMap;
pub use untrained::Untrained;

/// The result of the comparison.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// The differences, from the largest error to the smallest.
    pub differences: Vec<Difference>,
    /// The tensors of both sides.
    pub tensors: ComparedTensors,
    /// The author's tensors that are parts of tensors of the model's file, each with the name of that tensor.
    pub packed: BTreeMap<String, String>,
    /// The file's statement on the set of trained tensors.
    pub trained_there: TrainedThere,
    /// The inputs of the step.
    pub microbatches: Vec<Tensors>,
    /// The execution of the program.
    pub execution: Execution,
}

impl Outcome {
    /// The name that the model's file has for the tensor of a difference.
    pub fn name_here(&self, difference: &Difference) -> String {
        let matched = self.tensors.matched.iter().find(|found| found.there == difference.name);
        let is_tensor = matches!(difference.kind, Kind::Gradient | Kind::Parameter);
        let here = matched.filter(|_| is_tensor).map_or(&difference.name, |found| &found.here);
        self.packed.get(here).unwrap_or(here).clone()
    }
}

/// The name of the program's labels.
pub fn label_name(module: &Module) -> Result<Option<String>, Diagnostic> {
    Ok(feed::model_spec(module)?.label.map(|label| label.name))
}

/// Runs a step of the compiled program on the file's inputs, and compares its results with the file.
///
/// # Errors
/// Inputs that are missing or do not fit; gradients without labels; a file without any tensor to compare with.
pub fn run(subject: &Subject, numbers: &Numbers, mode: Mode) -> Result<Outcome, Failure> {
    let Compilation { forward, training: module, .. } = &subject.compilation;
    let label = label_name(forward)?;
    if !numbers.labels && !numbers.gradients.is_empty() && label.is_some() {
        let error = Diagnostic::new(
            "--against: gradients can be compared only with the labels that they were computed from",
        );
        return Err(error.note("add the labels under the key `labels`").into());
    }
    let microbatches = microbatches(forward, numbers, label.as_deref())?;
    let execution = subject.run(Tested { module, cut: true }, mode, &microbatches)?;
    let mut outcome = Outcome {
        differences: Vec::new(),
        tensors: ComparedTensors { unmatched_there: numbers.unknown.clone(), ..ComparedTensors::default() },
        packed: packed::holders(&subject.compilation.state_dict),
        trained_there: TrainedThere { gradients: numbers.gradients.len(), missing: 0 },
        microbatches,
        execution,
    };
    compare_outputs(&mut outcome, module, numbers);
    compare_parameters(&mut outcome, subject, numbers)?;
    if outcome.differences.is_empty() {
        let known = "keys are input.NAME, labels, output.NAME or the bare name, param.NAME, grad.NAME, loss";
        return Err(Diagnostic::new("--against: the file has no tensor to compare with").note(known).into());
    }
    compare::sort(&mut outcome.differences);
    Ok(outcome)
}

/// Returns the file's inputs, cut into microbatches of the program's size. Without labels, all labels are ignored ones.
pub fn microbatches(
    module: &Module,
    numbers: &Numbers,
    label: Option<&str>,
) -> Result<Vec<Tensors>, Diagnostic> {
    let mut whole = Tensors::new();
    let mut count: Option<(usize, &str)> = None;
    for input in module.inputs.iter().filter(|input| numbers.labels || label != Some(&input.name)) {
        let ty = module.ty(input.value);
        let given = numbers.inputs.get(&input.name).ok_or_else(|| {
            let there: Vec<String> = numbers.inputs.keys().map(|name| format!("`{name}`")).collect();
            Diagnostic::new(format!("--against: the file has no `input.{}`, which is {ty}", input.name)).note(
                format!("its inputs are {}", if there.is_empty() { "none".into() } else { there.join(", ") }),
            )
        })?;
        let wrong = || {
            let error = Diagnostic::new(format!(
                "--against: input `{}` is {}, and the program takes {ty}",
                input.name,
                given.ty()
            ));
            if label == Some(&input.name) && is_permuted(given, ty) {
                return error.note(format!(
                    "dim 0 of `{}` is the batch, also where another dim of the output is: put the dim of the samples first",
                    input.name
                ));
            }
            error.note("--microbatch N changes the batch; --bind NAME=SIZE sets symbolic dims")
        };
        let tensor = converted(given, ty.dtype).ok_or_else(wrong)?;
        let times = times(&tensor, &ty.sizes().unwrap_or_default(), input.batched).ok_or_else(wrong)?;
        if input.batched && count.replace((times, &input.name)).is_some_and(|(other, _)| other != times) {
            return Err(wrong());
        }
        whole.insert(input.name.clone(), tensor);
    }
    let count = count.map_or(1, |(count, _)| count);
    if let Some(input) = label.filter(|_| !numbers.labels).and_then(|label| module.input(label)) {
        let mut sizes: Vec<usize> =
            module.ty(input.value).sizes().into_iter().flatten().map(|size| size as usize).collect();
        if let (true, Some(rows)) = (input.batched, sizes.first_mut()) {
            *rows *= count;
        }
        let ignored = feed::model_spec(module)?.label.and_then(|label| label.ignore_index).unwrap_or(0);
        let labels = Tensor::splat(module.ty(input.value).dtype, sizes, ignored as f64);
        whole.insert(input.name.clone(), labels);
    }
    inputs::regroup(module, &[whole], count)
}

/// Whether a tensor has the dims of a type in another order.
fn is_permuted(tensor: &Tensor, ty: &Type) -> bool {
    let sorted = |mut sizes: Vec<u64>| {
        sizes.sort_unstable();
        sizes
    };
    let given = sorted(tensor.sizes.iter().map(|&size| size as u64).collect());
    ty.sizes().is_some_and(|sizes| sorted(sizes.into_iter().collect()) == given)
}

/// Returns the tensor with another element type. `None` if floats would become integers or the reverse, except for masks.
fn converted(tensor: &Tensor, dtype: DType) -> Option<Tensor> {
    let same = match &tensor.elements {
        Elements::Float(_) => dtype.is_float(),
        Elements::Int(_) => dtype.is_integer(),
        Elements::Bool(_) => dtype == DType::Bool,
    };
    if same {
        return Some(Tensor { dtype, ..tensor.clone() });
    }
    // A file may have a mask in any type.
    let numbers = tensor.numbers();
    let is_mask = numbers.iter().all(|&number| number == 0.0 || number == 1.0);
    is_mask.then(|| Tensor::of_numbers(dtype, tensor.sizes.clone(), numbers))
}

/// The number of microbatches in a tensor. `None` if it is not a whole number.
fn times(tensor: &Tensor, sizes: &[u64], batched: bool) -> Option<usize> {
    let wide: Vec<u64> = tensor.sizes.iter().map(|&size| size as u64).collect();
    if wide == sizes {
        return Some(1);
    }
    let ((&rows, inner), (&batch, inner_sizes)) = (wide.split_first()?, sizes.split_first()?);
    let divides = batched && inner == inner_sizes && batch > 0 && rows > 0 && rows.is_multiple_of(batch);
    divides.then(|| (rows / batch) as usize)
}

fn compare_outputs(outcome: &mut Outcome, module: &Module, numbers: &Numbers) {
    for (name, expected) in &numbers.outputs {
        let (Some(given), Some(_)) = (outcome.execution.outputs.get(name), module.output(name)) else {
            outcome.tensors.unmatched_there.push(name.clone());
            continue;
        };
        let is_loss = StepOutput::of(name) == Some(StepOutput::Loss);
        if is_loss && !numbers.labels && module.input("labels").is_some() {
            outcome.tensors.unmatched_there.push(name.clone());
            continue;
        }
        let given = inputs::concatenate(&given.iter().collect::<Vec<_>>());
        let given = if is_loss { given.reshaped(expected.sizes.clone()) } else { given };
        let error = relative_error(&given, expected, FLOOR);
        let kind = if is_loss { Kind::Loss } else { Kind::Output };
        outcome.differences.push(Difference::new(kind, name, error));
    }
    let missing = module.outputs.iter().map(|output| &output.name);
    let missing =
        missing.filter(|name| StepOutput::of(name).is_none() && !numbers.outputs.contains_key(*name));
    outcome.tensors.unmatched_here.extend(missing.map(|name| format!("output {name}")));
}

fn compare_parameters(outcome: &mut Outcome, subject: &Subject, numbers: &Numbers) -> Result<(), Diagnostic> {
    let reported = outcome.execution.gradients();
    let (ours, gradients): (Vec<Ours>, Vec<Option<Tensor>>) =
        packed::unpack(ours(subject, &reported)?, &subject.compilation.state_dict).into_iter().unzip();
    let theirs = theirs(numbers);
    let found = matching::find(&ours, &theirs);
    let largest = largest(numbers.gradients.values());
    for Found { ours: i, theirs: j, by, lies } in &found {
        let (ours, theirs) = (&ours[*i], &theirs[*j]);
        let mut compare = |kind: Kind, mine: &Tensor, expected: &Tensor, floor: f64| {
            let cuts = lies.cut(mine, expected);
            let error =
                cuts.map_or(f64::INFINITY, |(mine, expected)| relative_error(&mine, &expected, floor));
            outcome.differences.push(Difference::new(kind, theirs.name, error));
        };
        if let Some(value) = theirs.value {
            compare(Kind::Parameter, &ours.value, value, FLOOR);
        }
        if let Some(expected) = numbers.gradients.get(theirs.name) {
            let zero = || Tensor::splat(ours.value.dtype, ours.value.sizes.clone(), 0.0);
            let gradient = gradients[*i].clone().unwrap_or_else(zero);
            compare(Kind::Gradient, &gradient, expected, FLOOR * largest);
            let is_zero_there = expected.numbers().iter().all(|&number| number == 0.0);
            if is_zero_there && !untrained::is_zero(&gradient, largest) {
                outcome.tensors.trained_here_alone.push(ours.names[0].clone());
            }
        }
        let by = if *by == By::Value { "by its value" } else { "" };
        let how = [by.to_owned(), lies.words()].into_iter().filter(|words| !words.is_empty());
        let how = how.collect::<Vec<_>>().join(", ");
        outcome.tensors.matched.push(Match {
            there: theirs.name.to_owned(),
            here: ours.names[0].clone(),
            how,
        });
    }
    let has_gradient = |i: usize| {
        let there = found.iter().filter(|found| found.ours == i).map(|found| theirs[found.theirs].name);
        there.into_iter().any(|name| numbers.gradients.contains_key(name))
    };
    outcome.trained_there.missing = (0..ours.len()).filter(|&i| !has_gradient(i)).count();
    let not_found = |i: usize| !theirs.is_empty() && found.iter().all(|found| found.ours != i);
    let missing = ours.iter().enumerate().filter(|(i, _)| not_found(*i));
    outcome.tensors.unmatched_here.extend(missing.map(|(_, ours)| format!("parameter {}", ours.names[0])));

    let is_found = |j: usize| found.iter().any(|found| found.theirs == j);
    let left = theirs.iter().enumerate().filter(|(j, _)| !is_found(*j)).map(|(_, theirs)| theirs.clone());
    let gradient = |theirs: &Theirs| numbers.gradients.get(theirs.name);
    let is_trained = |theirs: &Theirs| gradient(theirs).is_some_and(|it| !untrained::is_zero(it, largest));
    let (trained, others): (Vec<Theirs>, Vec<Theirs>) = left.partition(is_trained);
    outcome.tensors.untrained = untrained::explain(subject, &ours, &trained);
    // A tensor with a gradient of zeros is trained by neither side.
    let unknown = others.iter().filter(|theirs| gradient(theirs).is_none());
    outcome.tensors.unmatched_there.extend(unknown.map(|theirs| format!("parameter {}", theirs.name)));
    Ok(())
}

/// The parameters of the file that have a value, a gradient, or both, in the order of their names.
fn theirs(numbers: &Numbers) -> Vec<Theirs<'_>> {
    let mut theirs: BTreeMap<&str, Theirs> = BTreeMap::new();
    for (name, gradient) in &numbers.gradients {
        theirs.insert(name, Theirs { name, sizes: &gradient.sizes, value: None });
    }
    for (name, value) in &numbers.parameters {
        theirs.insert(name, Theirs { name, sizes: &value.sizes, value: Some(value) });
    }
    theirs.into_values().collect()
}

/// The trained tensors of the model with all their names, and the gradient of each. A tensor that the file repeats for every sample is taken
/// once.
fn ours(subject: &Subject, reported: &Tensors) -> Result<Vec<Trained>, Diagnostic> {
    let mut ours = Vec::new();
    for tensor in &subject.layout.tensors {
        let is_it = |report: &&ParameterReport| {
            report.data == tensor.name || report.tied.as_ref().is_some_and(|tie| tie.data == tensor.name)
        };
        let mut names = vec![tensor.name.clone()];
        for report in subject.compilation.reports.parameters.iter().filter(is_it) {
            names.extend(report.aliases.iter().chain([&report.data]).cloned());
        }
        names.extend(tensor.parts.iter().map(|part| part.state.clone()));
        let (value, gradient) = match tensor.parts.as_slice() {
            [part] if part.views.len() > 1 => (
                subject.start.get(&part.state).cloned(),
                reported.get(&StepOutput::Gradient(&part.state).to_string()).cloned(),
            ),
            _ => {
                (subject.tensors.get(&tensor.name).cloned(), tensor.assemble(StepOutput::GRADIENT, reported)?)
            }
        };
        let missing = || Diagnostic::new(format!("`{}` has no value", tensor.name));
        ours.push((Ours { names, value: value.ok_or_else(missing)? }, gradient));
    }
    Ok(ours)
}
