//! Loss: gives the program the scalars that are trained, for one microbatch: `loss.sum` and `loss.weight`.
//!
//! A model without a loss gets one between an output and the new input `labels`: softmax cross-entropy, squared errors, or
//! binary cross-entropy. The loader shifts the labels of a next-token loss, so next-token and plain cross-entropy have the same graph.
//! A model's own loss is taken apart into sums and weights, so that microbatches make the loss of the whole batch. The other scalars of
//! the model are taken apart as well, and reported as `metric.NAME`. Invariants: the outputs `loss.*` and `metric.*` are float scalars
//! of the forward phase; the other outputs stay, except one that would be taken for the loss.

mod build;
mod kind;
mod linear;
mod own;
mod prediction;
mod terms;

pub use kind::LossKind;
pub use own::OwnLoss;
pub use prediction::Prediction;
pub use terms::{Addend, Class, Divisor, Factor, Objective, Weight};

use crate::arguments::Options;
use crate::bind::SUMS_OVER_BATCH;
use crate::moe::Moe;
use crate::pass::{PassContext, Transform};
use crate::reports::LossReport;
use ir::ops::loss::CrossEntropy;
use ir::{
    At, Builder, Changed, Diagnostic, Level, Module, Op, Phase, Scalar, ScalarPart, StepOutput, ValueId,
};
use linear::{Facts, through_views};
use std::fmt;
use terms::Recognizer;

/// The pass.
#[derive(Clone, Debug, PartialEq)]
pub struct Loss {
    /// The loss that is trained.
    pub kind: LossKind,
    /// The label of positions that do not count; `None` for -100, or for the label that the model's own loss ignores.
    pub ignore_index: Option<i64>,
    /// The share of each label that is spread over all classes; 0 for none.
    pub label_smoothing: f64,
}

/// The name of the pass, in pipelines and in the nodes that it makes.
pub const NAME: &str = "loss";

/// The label that PyTorch ignores by default.
pub const IGNORE_INDEX: i64 = -100;

impl Default for Loss {
    fn default() -> Self {
        Self { kind: LossKind::Auto, ignore_index: None, label_smoothing: 0.0 }
    }
}

impl Transform for Loss {
    const NAME: &'static str = NAME;
    const NEEDED: bool = true;

    fn options(&mut self, options: &mut Options) {
        options.custom(&mut self.kind, LossKind::parse, LossKind::print);
        let label = |text: &str| text.parse().map_err(|_| format!("`{text}` is not a label"));
        options.optional("ignore", &mut self.ignore_index, label);
        options.value("smoothing", &mut self.label_smoothing, 0.0);
    }

    fn run(&self, module: &mut Module, cx: &mut PassContext) -> Result<Changed, Diagnostic> {
        let decision = decide(module, self, cx.exported_batch)?;
        if let Choice::Criterion(_, Prediction { output, others, .. }) = &decision.choice
            && !others.is_empty()
        {
            let warning =
                Diagnostic::new(format!("output `{output}` is used as the {}", decision.choice.taken_for()));
            cx.warn(warning.note(format!("other candidates are {}", others.join(", "))));
        }
        if let Choice::Own(own, Objective { constant: Some(constant), .. }) = &decision.choice {
            let warning =
                Diagnostic::new(format!("the loss `{}` has the constant term {constant}", own.output));
            cx.warn(warning.note(
                "the exporter may have folded a penalty on parameters into this constant, which has no \
                 gradient: export with optimize=False",
            ));
        }
        if decision.knows_its_sums() {
            cx.warnings.retain(|warning| !warning.message.ends_with(SUMS_OVER_BATCH));
        }
        cx.reports.loss = Some(LossReport {
            text: decision.to_string(),
            scalars: decision.scalars(),
            doubt: decision.doubt(),
        });
        apply(module, self, &decision)
    }
}

/// A loss that the compiler adds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Criterion {
    /// Softmax cross-entropy with labels of classes.
    CrossEntropy,
    /// The mean of squared errors.
    Mse,
    /// Binary cross-entropy of logits.
    Bce,
}

/// The source of the loss.
#[derive(Clone, Debug, PartialEq)]
pub enum Choice {
    /// A loss that compares this output with labels, which the compiler adds.
    Criterion(Criterion, Prediction),
    /// The model's own loss, taken apart.
    Own(OwnLoss, Objective),
}

/// The objective and the reported metrics.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// The loss.
    pub choice: Choice,
    /// The other scalars of the model, by name.
    pub metrics: Vec<(String, Objective)>,
    /// The number of samples in a microbatch.
    pub batch: u64,
}

impl Choice {
    /// Returns the role of the output that a criterion compares with labels.
    fn taken_for(&self) -> &'static str {
        match self {
            Self::Criterion(Criterion::Mse, _) => "prediction",
            _ => "logits",
        }
    }
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.choice {
            Choice::Criterion(criterion, Prediction { output, .. }) => {
                let formula = match criterion {
                    Criterion::CrossEntropy => {
                        "cross-entropy (mean over the labels that count) of the logits"
                    }
                    Criterion::Mse => "mean squared error of the numbers",
                    Criterion::Bce => "mean binary cross-entropy of the logits",
                };
                write!(f, "{formula} in output `{output}` and the labels")
            }
            Choice::Own(own, objective) => {
                write!(f, "output `{}` ({}): {}", own.output, own.reason, objective.text)
            }
        }
    }
}

impl Decision {
    /// Whether every sum over samples in the loss has a known divisor.
    fn knows_its_sums(&self) -> bool {
        let Choice::Own(_, objective) = &self.choice else { return false };
        let is_sum = |class: &Class| class.divisor == Divisor::One;
        objective.doubts.is_empty() && !objective.classes.iter().any(is_sum)
    }

    /// Returns the outputs that are scalars: the model's own loss and its metrics.
    fn scalars(&self) -> Vec<String> {
        let own = match &self.choice {
            Choice::Own(own, _) => Some(own.output.clone()),
            Choice::Criterion(..) => None,
        };
        own.into_iter().chain(self.metrics.iter().map(|(name, _)| name.clone())).collect()
    }

    fn doubt(&self) -> Option<Diagnostic> {
        let Choice::Own(own, objective) = &self.choice else { return None };
        let message = format!(
            "the loss `{}` of several microbatches may differ from the loss of the whole batch",
            own.output
        );
        let (first, more) = objective.doubts.split_first()?;
        let warning =
            more.iter().fold(Diagnostic::new(message).note(first), |warning, doubt| warning.note(doubt));
        Some(warning.note("the losses of microbatches are averaged, and terms that are sums are added").note(
            "a single microbatch is exact: set --microbatch to the whole global batch, on as many data \
                 ranks as needed",
        ))
    }
}

/// Finds the loss, or the output to make one of. `exported` is the batch that the file was exported with, if it differs from the batch
/// of the module.
pub fn decide(module: &Module, options: &Loss, exported: Option<u64>) -> Result<Decision, Diagnostic> {
    if module.level != Level::Imported || module.step_output(StepOutput::loss(0, ScalarPart::Sum)).is_some() {
        return Err(Diagnostic::new("the program already has a training loss"));
    }
    // The outputs of the pass `moe` have reserved names.
    let by_moe = |value: ValueId| module.producer(value).is_some_and(|node| &*node.by == Moe::NAME);
    let mut reserved = module.outputs.iter().filter(|output| StepOutput::reserves(&output.name));
    if let Some(output) = reserved.find(|output| !by_moe(output.value)) {
        let error = Diagnostic::new(format!("output `{}` has a reserved name", output.name));
        return Err(error.note(
            "names that start with `loss.`, `metric.` or `load.` are reserved: export the output under \
                 another name",
        ));
    }
    if !(0.0..1.0).contains(&options.label_smoothing) {
        let message =
            format!("label smoothing is {}; it must be at least 0 and below 1", options.label_smoothing);
        return Err(Diagnostic::new(message));
    }
    let mut facts = Facts::new(module);
    let own = match options.kind {
        LossKind::Auto | LossKind::Model | LossKind::Output(_) => own::choose(module, &options.kind)?,
        _ => None,
    };
    let choice = match (&options.kind, own) {
        (_, Some(own)) => {
            let objective = Recognizer::new(&mut facts, exported).objective(own.value);
            check_own(module, options, &objective)?;
            Choice::Own(own, objective)
        }
        (LossKind::Model, None) => {
            let error = Diagnostic::new(
                "the model has no loss: no output is a float scalar that depends on inputs and parameters",
            );
            let error = error.note(format!("its outputs are {}", output_list(module)));
            return Err(error.note("use --loss cross-entropy, mse or bce"));
        }
        (kind, None) => criterion(module, kind, options)?,
    };
    let metrics = metrics(module, &choice, &mut facts, exported);
    Ok(Decision { choice, metrics, batch: facts.batch })
}

fn criterion(module: &Module, kind: &LossKind, options: &Loss) -> Result<Choice, Diagnostic> {
    let criterion = match kind {
        LossKind::Mse => Criterion::Mse,
        LossKind::Bce => Criterion::Bce,
        _ => {
            return Ok(Choice::Criterion(Criterion::CrossEntropy, prediction::of_classes(module)?));
        }
    };
    let classes = |flag: &str| {
        let error = Diagnostic::new(format!(
            "{flag} applies to labels that are classes, and --loss {kind} has no classes"
        ));
        Err(error.note("remove the flag, or use --loss cross-entropy"))
    };
    match (options.ignore_index, options.label_smoothing) {
        (Some(index), _) => classes(&format!("--ignore-index {index}")),
        (None, smoothing) if smoothing != 0.0 => classes("--label-smoothing"),
        _ => {
            let prediction = prediction::of_numbers(module, criterion == Criterion::Bce)?;
            Ok(Choice::Criterion(criterion, prediction))
        }
    }
}

/// Takes apart the scalars of the model that are not the loss.
fn metrics(
    module: &Module,
    choice: &Choice,
    facts: &mut Facts,
    exported: Option<u64>,
) -> Vec<(String, Objective)> {
    let loss = match choice {
        Choice::Own(own, _) => own.output.as_str(),
        Choice::Criterion(..) => "",
    };
    let others: Vec<_> = own::scalars(module).filter(|output| output.name != loss).collect();
    let objective = |value: ValueId, facts: &mut Facts| Recognizer::new(facts, exported).objective(value);
    others.iter().map(|output| (output.name.clone(), objective(output.value, facts))).collect()
}

/// Refuses options that the model's own loss cannot follow.
fn check_own(module: &Module, options: &Loss, objective: &Objective) -> Result<(), Diagnostic> {
    let error = |what: &str| {
        let error = Diagnostic::new(format!("{what} does not apply to the model's own loss"));
        Err(error.note("remove the flag, or train the logits with --loss cross-entropy"))
    };
    let own = cross_entropy(module, objective);
    match (own, options.ignore_index) {
        (Some(own), Some(index)) if own.ignore_index != index => {
            return error(&format!("--ignore-index {index} (the model ignores {})", own.ignore_index));
        }
        (Some(_), _) | (_, None) => {}
        (_, Some(index)) => return error(&format!("--ignore-index {index}")),
    }
    if options.label_smoothing != 0.0 { error("--label-smoothing") } else { Ok(()) }
}

/// Returns the cross-entropy of an objective that consists of nothing else.
fn cross_entropy<'m>(module: &'m Module, objective: &Objective) -> Option<&'m CrossEntropy> {
    let [Class { addends, .. }] = &objective.classes[..] else { return None };
    let [addend] = &addends[..] else { return None };
    match &module.producer(through_views(module, addend.value))?.op {
        Op::CrossEntropy(own) => Some(own),
        _ => None,
    }
}

fn output_list(module: &Module) -> String {
    let outputs =
        module.outputs.iter().map(|output| format!("`{}` {}", output.name, module.ty(output.value)));
    outputs.collect::<Vec<_>>().join(", ")
}

/// Adds the outputs `loss.*` and `metric.*`, and the nodes that compute them.
pub fn apply(module: &mut Module, options: &Loss, decision: &Decision) -> Result<Changed, Diagnostic> {
    let mut b = Builder::new(module, Loss::NAME);
    b.at(At::End(Phase::Forward)).origin("loss");
    let (own, classes) = match &decision.choice {
        Choice::Criterion(criterion, prediction) => {
            ("", vec![build::criterion(&mut b, options, *criterion, prediction)?])
        }
        Choice::Own(own, objective) => {
            (own.output.as_str(), build::objective(&mut b, objective, decision.batch)?)
        }
    };
    // A training program reports the mean over the global batch as `loss`.
    let reported = StepOutput::Loss.to_string();
    b.tables().outputs.retain(|output| output.name != own && output.name != reported);
    build::add_outputs(&mut b, Scalar::Loss, &classes)?;
    build::add_objective(&mut b, &classes)?;
    for (name, objective) in &decision.metrics {
        let classes = build::objective(&mut b, objective, decision.batch)?;
        build::add_outputs(&mut b, Scalar::Metric(name), &classes)?;
    }
    Ok(b.finish())
}
