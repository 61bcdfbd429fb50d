//! Loss: gives the program the scalars that are trained: `loss.sum` and `loss.weight`, of one microbatch.
//!
//! A model without a loss gets softmax cross-entropy between its logits and the new input `labels`; the shift of a
//! next-token loss is the loader's work, so next-token and plain cross-entropy are the same graph. A model that
//! brings its loss as a mean has it taken apart into sum and weight again. Invariants: both outputs are float
//! scalars of the forward phase; the other outputs stay, but one that would be taken for the loss is gone.

use crate::bind::{batch, find_samples};
use crate::pass::{PassContext, Transform};
use crate::pipeline::Arguments;
use ir::ops::Float;
use ir::ops::elementwise::{Binary, Unary};
use ir::ops::loss::CrossEntropy;
use ir::ops::reduce::{Reduce, ReduceKind};
use ir::{
    At, Builder, Changed, DType, Definition, Diagnostic, Dim, Dims, Level, Module, Node, Op, Output, Phase,
    Role, Type, ValueId,
};
use std::collections::BTreeSet;
use std::fmt;

/// The pass.
#[derive(Clone, Debug, PartialEq)]
pub struct Loss {
    /// Which loss.
    pub kind: LossKind,
    /// The label of positions that do not count; `None`: -100, or the model's own.
    pub ignore_index: Option<i64>,
    /// The share of each label that is spread over all classes; 0 for none.
    pub label_smoothing: f64,
}

/// Which loss is trained.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LossKind {
    /// The model's own if it has one, else cross-entropy.
    #[default]
    Auto,
    /// Cross-entropy with the next token; the loader shifts the labels.
    NextToken,
    /// Cross-entropy with given labels.
    CrossEntropy,
    /// The model's own.
    Model,
}

impl LossKind {
    /// Every kind with its name.
    pub const ALL: [(Self, &'static str); 4] = [
        (Self::Auto, "auto"),
        (Self::NextToken, "next-token"),
        (Self::CrossEntropy, "cross-entropy"),
        (Self::Model, "model"),
    ];
}

/// The label that PyTorch ignores by default.
pub const IGNORE_INDEX: i64 = -100;

impl Default for Loss {
    fn default() -> Self {
        Self { kind: LossKind::Auto, ignore_index: None, label_smoothing: 0.0 }
    }
}

impl Transform for Loss {
    const NAME: &'static str = "loss";
    const NEEDED: bool = true;

    fn parse(arguments: &mut Arguments) -> Result<Self, String> {
        let ignore =
            arguments.take("ignore").map(|text| text.parse().map_err(|_| format!("`{text}` is no label")));
        Ok(Self {
            kind: arguments.word(&LossKind::ALL).unwrap_or_default(),
            ignore_index: ignore.transpose()?,
            label_smoothing: arguments.value("smoothing", 0.0)?,
        })
    }

    fn print(&self, arguments: &mut Arguments) {
        for (kind, word) in LossKind::ALL {
            arguments.push_flag(word, kind == self.kind && kind != LossKind::default());
        }
        self.ignore_index.iter().for_each(|ignore| arguments.push("ignore", ignore));
        arguments.push_unless(&0.0, "smoothing", &self.label_smoothing);
    }

    fn run(&self, module: &mut Module, cx: &mut PassContext) -> Result<Changed, Diagnostic> {
        let decision = decide(module, self)?;
        if let Decision::Opaque { output, .. } = &decision {
            let warning = Diagnostic::new(format!("output `{output}` is a loss whose weight is not known"));
            cx.warn(warning.note("every microbatch weighs the same, however many labels of it count"));
        }
        if let Decision::CrossEntropy { output, others, .. } = &decision
            && !others.is_empty()
        {
            let warning = Diagnostic::new(format!("output `{output}` is taken for the logits"));
            cx.warn(warning.note(format!("it could also have been {}", others.join(", "))));
        }
        apply(module, self, &decision)
    }
}

/// Where the loss comes from.
#[derive(Clone, Debug, PartialEq)]
pub enum Decision {
    /// Cross-entropy of these logits is added.
    CrossEntropy {
        /// The output that has the logits.
        output: String,
        /// The logits: the output's value, before a softmax that the model may end with.
        logits: ValueId,
        /// Outputs that could have been the logits as well.
        others: Vec<String>,
    },
    /// The model has a mean, taken apart.
    Mean {
        /// The output that is the loss.
        output: String,
        /// The sum.
        sum: ValueId,
        /// What it is divided by.
        weight: ValueId,
    },
    /// The model has a loss of another form; its weight counts as 1.
    Opaque {
        /// The output that is the loss.
        output: String,
        /// The loss.
        value: ValueId,
    },
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CrossEntropy { output, logits, .. } => {
                write!(f, "cross-entropy of {logits} (output `{output}`)")
            }
            Self::Mean { output, sum, weight } => write!(f, "output `{output}` = {sum} / {weight}"),
            Self::Opaque { output, value } => write!(f, "output `{output}` = {value}, of unknown weight"),
        }
    }
}

/// Finds the loss, or the logits to make one of.
pub fn decide(module: &Module, options: &Loss) -> Result<Decision, Diagnostic> {
    if module.level != Level::Imported || module.output("loss.sum").is_some() {
        return Err(Diagnostic::new("the program has a loss to train by already"));
    }
    if !(0.0..1.0).contains(&options.label_smoothing) {
        let message =
            format!("label smoothing is {}; it must be at least 0 and below 1", options.label_smoothing);
        return Err(Diagnostic::new(message));
    }
    match (options.kind, own_loss(module)) {
        (LossKind::Auto | LossKind::Model, Some(decision)) => {
            check_own(module, options, &decision).map(|()| decision)
        }
        (LossKind::Model, None) => {
            let error = Diagnostic::new("the model has no loss: no output is a float scalar");
            Err(error
                .note(format!("its outputs are {}", output_list(module)))
                .note("use --loss cross-entropy"))
        }
        _ => find_logits(module),
    }
}

/// The model's own loss: a float scalar among the outputs, best a mean.
fn own_loss(module: &Module) -> Option<Decision> {
    let scalars = || {
        let outputs = module.outputs.iter().filter(|output| {
            let ty = module.ty(output.value);
            ty.dtype.is_float() && ty.numel() == Some(1)
        });
        outputs.filter(|output| matches!(module.value(output.value).definition, ir::Definition::Node(..)))
    };
    let mean = |output: &Output, is_mean: fn(&Module, ValueId, ValueId) -> bool| {
        let (sum, weight) =
            quotient(module, output.value).filter(|&(sum, weight)| is_mean(module, sum, weight))?;
        Some(Decision::Mean { output: output.name.clone(), sum, weight })
    };
    let of_cross_entropies = scalars().find_map(|output| mean(output, is_cross_entropy));
    let named = || scalars().find(|output| output.name.to_lowercase().contains("loss"));
    let only = || if module.outputs.len() == 1 { scalars().next() } else { None };
    of_cross_entropies.or_else(|| {
        let output = named().or_else(only)?;
        let opaque = Decision::Opaque { output: output.name.clone(), value: output.value };
        Some(mean(output, are_sums).unwrap_or(opaque))
    })
}

/// What a value, in whatever shape, is the quotient of.
fn quotient(module: &Module, value: ValueId) -> Option<(ValueId, ValueId)> {
    let division = module.producer(through_views(module, value))?;
    let Op::Binary(Binary::Div) = division.op else { return None };
    Some((through_views(module, division.operands[0]), through_views(module, division.operands[1])))
}

/// Whether these are the sum and the weight of a cross-entropy.
fn is_cross_entropy(module: &Module, sum: ValueId, weight: ValueId) -> bool {
    module.producer(sum).is_some_and(|node| {
        matches!(node.op, Op::CrossEntropy(_)) && node.results[0] == sum && node.results[1] == weight
    })
}

/// Whether these are sums of whatever a microbatch has, and the weight is not trained: a mean where classes have weights,
/// or a mask says what counts.
fn are_sums(module: &Module, sum: ValueId, weight: ValueId) -> bool {
    let is_sum = |value: ValueId| {
        let adds = |node: &Node| matches!(&node.op, Op::Reduce(Reduce { kind: ReduceKind::Sum, .. }));
        module.producer(value).is_some_and(adds) && module.ty(value).ndim() == 0
    };
    is_sum(sum) && is_sum(weight) && module.ty(weight).dtype.is_float() && !is_trained(module, weight)
}

/// Whether a value depends on a parameter.
fn is_trained(module: &Module, value: ValueId) -> bool {
    let (mut stack, mut seen) = (vec![value], BTreeSet::new());
    while let Some(value) = stack.pop() {
        match module.value(value).definition {
            Definition::State(id) if module.states[id].role == Role::Parameter => return true,
            Definition::Node(id, _) if seen.insert(id) => stack.extend(&module.node(id).operands),
            _ => {}
        }
    }
    false
}

fn through_views(module: &Module, mut value: ValueId) -> ValueId {
    while let Some(Node { op: Op::Reshape(_) | Op::Cast(_), operands, .. }) = module.producer(value) {
        value = operands[0];
    }
    value
}

/// Refuses options that the model's own loss cannot follow.
fn check_own(module: &Module, options: &Loss, decision: &Decision) -> Result<(), Diagnostic> {
    let error = |what: &str| {
        let error = Diagnostic::new(format!("{what} does not apply to the model's own loss"));
        Err(error.note("leave the option out, or train the logits with --loss cross-entropy"))
    };
    let own = match decision {
        Decision::Mean { sum, .. } => module.producer(*sum),
        _ => None,
    };
    match (own.map(|node| &node.op), options.ignore_index) {
        (Some(Op::CrossEntropy(own)), Some(index)) if own.ignore_index != index => {
            return error(&format!("--ignore-index {index} (the model ignores {})", own.ignore_index));
        }
        (Some(Op::CrossEntropy(_)), _) | (_, None) => {}
        (_, Some(index)) => return error(&format!("--ignore-index {index}")),
    }
    if options.label_smoothing != 0.0 { error("--label-smoothing") } else { Ok(()) }
}

/// The output that has the logits: the one named so, else the first float output that is not a cache.
fn find_logits(module: &Module) -> Result<Decision, Diagnostic> {
    let is_cache = |name: &str| {
        ["past_key", "present", "cache", "hidden_state", "attentions"].iter().any(|c| name.contains(c))
    };
    // The cross-entropy of one class is 0, whatever its logit.
    let has_classes = |ty: &Type| ty.ndim() >= 2 && ty.dims[ty.ndim() - 1].size() != Some(1);
    let candidates: Vec<_> = module
        .outputs
        .iter()
        .filter(|output| {
            let ty = module.ty(output.value);
            ty.dtype.is_float() && has_classes(ty) && !is_cache(&output.name.to_lowercase())
        })
        .collect();
    let named = candidates.iter().find(|output| output.name.to_lowercase().contains("logits"));
    let Some(output) = named.or(candidates.first()) else {
        let error = Diagnostic::new(
            "no output can be the logits: none is a float tensor of two dims or more, of which the last has two classes or more",
        );
        let error = error.note(format!("the model's outputs are {}", output_list(module)));
        return Err(error.note(
            "a model that does not tell classes apart brings its own loss: export it with a float scalar named `loss` among its outputs",
        ));
    };
    let others = if named.is_some() { &[][..] } else { &candidates[1..] };
    Ok(Decision::CrossEntropy {
        output: output.name.clone(),
        logits: before_softmax(module, output.value),
        others: others.iter().map(|output| format!("`{}`", output.name)).collect(),
    })
}

/// What a final softmax over the last dim was taken of, else the value itself: cross-entropy wants logits.
fn before_softmax(module: &Module, value: ValueId) -> ValueId {
    let last = module.ty(value).ndim() as u32 - 1;
    match module.producer(value) {
        Some(Node { op: Op::Softmax(softmax), operands, .. }) if softmax.dim == last => operands[0],
        Some(Node { op: Op::LogSoftmax(softmax), operands, .. }) if softmax.dim == last => operands[0],
        Some(Node { op: Op::Binary(Binary::Div), operands, .. }) => {
            normalized_exponentials(module, operands[0], operands[1], last).unwrap_or(value)
        }
        _ => value,
    }
}

/// `x`, if the quotient is a softmax that was written as `exp(x) / Σ exp(x)`. A maximum that was taken off `x` before
/// changes no cross-entropy.
fn normalized_exponentials(module: &Module, part: ValueId, sum: ValueId, last: u32) -> Option<ValueId> {
    let Node { op: Op::Unary(Unary::Exp), operands, .. } = module.producer(part)? else { return None };
    let total = module.producer(through_views(module, sum))?;
    let Op::Reduce(Reduce { kind: ReduceKind::Sum, dims, .. }) = &total.op else { return None };
    (total.operands[0] == part && dims[..] == [last]).then_some(operands[0])
}

fn output_list(module: &Module) -> String {
    let outputs =
        module.outputs.iter().map(|output| format!("`{}` {}", output.name, module.ty(output.value)));
    outputs.collect::<Vec<_>>().join(", ")
}

/// Adds the outputs `loss.sum` and `loss.weight`, and what they need.
pub fn apply(module: &mut Module, options: &Loss, decision: &Decision) -> Result<Changed, Diagnostic> {
    let mut b = Builder::new(module, Loss::NAME);
    b.at(At::End(Phase::Forward)).origin("loss");
    let (sum, weight) = match decision {
        Decision::CrossEntropy { logits, .. } => {
            let labels = labels(&mut b, *logits)?;
            let ignore_index = options.ignore_index.unwrap_or(IGNORE_INDEX);
            let op = CrossEntropy { ignore_index, label_smoothing: Float::new(options.label_smoothing) };
            let results = b.push(op, &[*logits, labels])?;
            (results[0], results[1])
        }
        Decision::Mean { sum, weight, .. } => (*sum, *weight),
        Decision::Opaque { value, .. } => {
            let value = b.reshape(*value, [])?;
            (value, b.splat_like(value, 1.0)?)
        }
    };
    let own = match decision {
        Decision::Mean { output, .. } | Decision::Opaque { output, .. } => output.as_str(),
        Decision::CrossEntropy { .. } => "",
    };
    // A training program reports the mean over the global batch as `loss`.
    let tables = b.tables();
    tables.outputs.retain(|output| output.name != own && output.name != "loss");
    tables.add_output("loss.sum", sum);
    tables.add_output("loss.weight", weight);
    Ok(b.finish())
}

/// The input `labels`, of the logits' dims without the last. It has its samples first, as all data has; logits that have
/// them in another dim, as those of recurrent models do, read it transposed.
fn labels(b: &mut Builder, logits: ValueId) -> Result<ValueId, Diagnostic> {
    let mut dims: Dims = b.ty(logits).dims.clone();
    dims.pop();
    let ty = Type::new(DType::I64, dims.clone());
    match b.module().input("labels") {
        None => {
            let at = dim_of_samples(b.module(), logits);
            dims[..=at].rotate_right(1);
            let labels = b.tables().add_input("labels", Type::new(DType::I64, dims), true);
            let mut permutation: Vec<u32> = (0..ty.ndim() as u32).collect();
            permutation[..=at].rotate_left(1);
            if at == 0 { Ok(labels) } else { Ok(b.transpose(labels, &permutation)?) }
        }
        Some(input) if b.ty(input.value).same_shape(&ty) => Ok(input.value),
        Some(input) => {
            let given = b.ty(input.value);
            let message = format!("the model's input `labels` is {given}, but labels of its logits are {ty}");
            Err(Diagnostic::new(message).note("use --loss model if the model computes its loss from them"))
        }
    }
}

/// The dim of the logits that counts the samples, 0 if in doubt: where the batch was followed to, else one of its size.
/// A batch of one is too easily found in a dim that has one element for another reason.
fn dim_of_samples(module: &Module, logits: ValueId) -> usize {
    let dims = &module.ty(logits).dims;
    let dims = &dims[..dims.len() - 1];
    let Ok(Some(batch)) = batch(module) else { return 0 };
    let alone = |at: &usize| dims.get(*at).and_then(Dim::size) == Some(batch);
    let at = match (batch > 1).then(|| find_samples(module)) {
        Some(Ok(samples)) => {
            samples.carries.get(&logits).filter(|carry| carry.minor == 1).map(|carry| carry.dim)
        }
        Some(Err(_)) | None => (0..dims.len()).find(alone),
    };
    at.filter(alone).unwrap_or(0)
}
