//! Compress gradients: data ranks reduce factors of low rank, or 16-bit numbers, in place of whole gradients.
//!
//! The pass reads the outputs `grad.NAME` of [`crate::autodiff`] and gives each compressed one a new value, which the optimizer then
//! reads. A gradient `G = Σᵢ Gᵢ` is a sum over the data ranks `i`. The operator `addends` keeps the addends apart, as a tensor
//! `[ranks, ..]` that is split over the data axes. Every rank keeps the error of its own addend, `error(NAME)`, and adds it to the next
//! addend. All operations are linear in the addends and summed over the ranks, so the program computes the same gradients on any number
//! of ranks, even on one: `verify` compares it with the same pass on one device.
//!
//! Invariants: the pass runs after `autodiff` and before `optimizer`; its nodes are in the update phase, so microbatches are summed
//! first; the sum of the errors of all ranks is the part of the sum of all gradients that no update has used yet.

mod powersgd;
mod sixteen;

use crate::arguments::{Arguments, Options};
use crate::optimizer::Factored;
use crate::pass::{PassContext, Transform};
use crate::reports::CompressedGradientsReport;
use crate::rewriting::dead::remove_dead;
use ir::ops::compression::Addends;
use ir::{
    At, Builder, Changed, DType, Diagnostic, Initializer, Level, Module, Op, Phase, Role, StateId,
    StepOutput, Type, TypeError, ValueId,
};
use std::fmt;
use std::str::FromStr;

/// The pass. The default is not valid until `ranks` is set.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CompressGradients {
    /// The method.
    pub method: Method,
    /// The number of data ranks, which is the number of addends of a gradient.
    pub ranks: u64,
}

/// The form in which gradients are reduced.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Method {
    /// Two factors for each matrix (Vogels et al., NeurIPS 2019, algorithm 1); vectors stay as they are. A tensor with more dims is a
    /// matrix whose rows are its first dim of more than one element.
    PowerSgd {
        /// The columns of a factor. A matrix with fewer rows or columns has a factor with so few columns.
        rank: u64,
        /// The least rate of compression: a matrix is compressed if it has more than `min_rate` times the elements of its factors; with 0
        /// every matrix is.
        min_rate: f64,
    },
    /// Every tensor in 16 bits.
    #[default]
    Bf16,
}

impl Method {
    const WORDS: [&'static str; 2] = ["powersgd", "bf16"];

    /// The default rank: the largest one with which the paper trains its models.
    const RANK: u64 = 4;

    fn parse(arguments: &mut Arguments) -> Result<Self, String> {
        let method = match arguments.word(&[(0, Self::WORDS[0]), (1, Self::WORDS[1])]) {
            Some(0) => Self::PowerSgd {
                rank: arguments.value("rank", Self::RANK)?,
                min_rate: arguments.value("min-rate", 1.0)?,
            },
            Some(_) => Self::Bf16,
            None => return Err("give a method: powersgd, or bf16".into()),
        };
        match method {
            Self::PowerSgd { rank: 0, .. } => {
                Err("rank=0 leaves no column to send; give a rank of 1 or more, such as rank=4".into())
            }
            Self::PowerSgd { min_rate, .. } if !(min_rate >= 0.0 && min_rate.is_finite()) => Err(format!(
                "min-rate={min_rate} is not allowed; give a finite number, 0 or more, such as min-rate=2"
            )),
            _ => Ok(method),
        }
    }

    fn print(self, arguments: &mut Arguments) {
        match self {
            Self::PowerSgd { rank, min_rate } => {
                arguments.push_flag(Self::WORDS[0], true);
                arguments.push("rank", rank);
                arguments.push_unless(&1.0, "min-rate", &min_rate);
            }
            Self::Bf16 => arguments.push_flag(Self::WORDS[1], true),
        }
    }
}

/// Reads `powersgd:rank=4,min-rate=2` or `bf16`, as the flag has it.
impl FromStr for Method {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, options) = text.split_once(':').unwrap_or((text, ""));
        let mut arguments = Arguments::default();
        arguments.push_flag(name, true);
        for option in options.split(',').filter(|option| !option.is_empty()) {
            let (key, value) = option.split_once('=').unwrap_or(("", option));
            arguments.push(key, value);
        }
        let method = Self::parse(&mut arguments)?;
        match arguments.take_rest().first() {
            None => Ok(method),
            Some((key, value)) => {
                let word = if key.is_empty() { value } else { key };
                Err(format!(
                    "{name} has no option `{word}`; powersgd has rank and min-rate, and bf16 has none"
                ))
            }
        }
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PowerSgd { rank, min_rate } if *min_rate == 1.0 => write!(f, "powersgd:rank={rank}"),
            Self::PowerSgd { rank, min_rate } => write!(f, "powersgd:rank={rank},min-rate={min_rate}"),
            Self::Bf16 => f.write_str("bf16"),
        }
    }
}

impl CompressGradients {
    fn parse(arguments: &mut Arguments) -> Result<Self, String> {
        match arguments.value("ranks", 0)? {
            0 => Err("give the number of data ranks: ranks=2".into()),
            ranks => Ok(Self { method: Method::parse(arguments)?, ranks }),
        }
    }
}

impl Transform for CompressGradients {
    const NAME: &'static str = "compress_gradients";
    const NEEDED: bool = true;

    fn options(&mut self, options: &mut Options) {
        options.custom(self, Self::parse, |pass, arguments| {
            pass.method.print(arguments);
            arguments.push("ranks", pass.ranks);
        });
    }

    fn run(&self, module: &mut Module, cx: &mut PassContext) -> Result<Changed, Diagnostic> {
        let decision = decide(module, self)?;
        cx.reports.compressed_gradients = Some(decision.report());
        apply(module, self, &decision)
    }
}

/// The gradients to compress.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// The method's name in the report.
    name: String,
    /// The compressed gradients, in the order of the outputs.
    gradients: Vec<Compressed>,
    /// The number and the bytes of trained tensors that are not compressed.
    others: (usize, u64),
}

/// The compression of one gradient.
#[derive(Clone, Debug, PartialEq)]
struct Compressed {
    /// The index of `grad.NAME` in the table of outputs.
    output: usize,
    parameter: StateId,
    /// The bytes that data ranks would reduce without compression.
    bytes: u64,
    /// The bytes that data ranks reduce with compression.
    reduced: u64,
    shape: Shape,
}

/// The form in which a gradient is reduced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    /// `[m, r]` and `[n, r]`.
    Factors { m: u64, n: u64, r: u64 },
    /// The tensor in another type.
    Narrow,
}

impl Decision {
    fn report(&self) -> CompressedGradientsReport {
        let sum =
            |bytes: fn(&Compressed) -> u64| self.gradients.iter().map(bytes).sum::<u64>() + self.others.1;
        CompressedGradientsReport {
            method: self.name.clone(),
            compressed: self.gradients.len(),
            tensors: self.gradients.len() + self.others.0,
            before: sum(|gradient| gradient.bytes),
            after: sum(|gradient| gradient.reduced),
        }
    }
}

/// Finds the gradients that are sums over microbatches, and so over data ranks, and that the method compresses.
///
/// # Errors
/// The program has no gradients, an optimizer, a scaled loss or stages; the method compresses none of its gradients.
pub fn decide(module: &Module, options: &CompressGradients) -> Result<Decision, Diagnostic> {
    let has_gradients = module.outputs.iter().any(|output| StepOutput::gradient_of(&output.name).is_some());
    if module.level != Level::Training || module.state("step").is_some() || !has_gradients {
        let error = Diagnostic::new(
            "the pass `compress_gradients` needs a program with gradients and without an optimizer",
        );
        return Err(error.note("run `autodiff` before it and `optimizer` after it"));
    }
    if module.step_output(StepOutput::Skipped).is_some() {
        let error = Diagnostic::new("--compress-gradients cannot be used with fp16");
        return Err(error.note(
            "fp16 scales the loss and looks at every whole gradient to skip steps; --bf16 needs no loss scale",
        ));
    }
    if module.pipeline.is_some() {
        let error = Diagnostic::new("--compress-gradients cannot be used with the stages of a pipeline");
        return Err(error.note("use a mesh without pp, or remove --compress-gradients"));
    }
    let mut decision = Decision { name: options.method.described(), gradients: vec![], others: (0, 0) };
    for (place, output) in module.outputs.iter().enumerate() {
        let Some(name) = StepOutput::gradient_of(&output.name) else { continue };
        let parameter = module.state(name).ok_or_else(|| {
            Diagnostic::new(format!("`{}` is the gradient of a state that is not there", output.name))
        })?;
        let tensor = Factored::of(module, output.value).tensor;
        let bytes = module.ty(tensor).bytes().unwrap_or(0);
        let is_sum = module.producer(tensor).is_some_and(|node| matches!(node.op, Op::Accumulate(_)));
        match options.method.shape(module.ty(tensor)).filter(|_| is_sum) {
            Some((shape, reduced)) => {
                decision.gradients.push(Compressed { output: place, parameter, bytes, reduced, shape });
            }
            None => decision.others = (decision.others.0 + 1, decision.others.1 + bytes),
        }
    }
    if decision.gradients.is_empty() {
        let error = Diagnostic::new(format!("{} compresses no gradient of this program", decision.name));
        let note = "PowerSGD leaves vectors, and matrices whose factors have more elements; with --grad-dtype no gradient is a sum in f32";
        return Err(error.note(note));
    }
    Ok(decision)
}

impl Method {
    fn described(self) -> String {
        match self {
            Self::PowerSgd { rank, .. } => format!("PowerSGD of rank {rank}"),
            Self::Bf16 => "bf16".into(),
        }
    }

    /// Returns the compressed form of a gradient of this type, and the bytes that data ranks reduce; `None` if it is not compressed.
    fn shape(self, ty: &Type) -> Option<(Shape, u64)> {
        let sizes = ty.sizes()?;
        match self {
            Self::PowerSgd { rank, min_rate } => {
                // A vector is a factor already.
                let wide: Vec<u64> = sizes.into_iter().filter(|&size| size > 1).collect();
                let [m, rest @ ..] = &wide[..] else { return None };
                let (m, n) = (*m, rest.iter().product::<u64>());
                let r = rank.min(m).min(n);
                let elements = r.checked_mul(m.checked_add(n)?)?;
                let saves = min_rate == 0.0 || m.checked_mul(n)? as f64 > min_rate * elements as f64;
                (!rest.is_empty() && saves).then_some((Shape::Factors { m, n, r }, elements * FULL.bytes()))
            }
            Self::Bf16 => (ty.dtype.bytes() > 2).then_some((Shape::Narrow, ty.numel()?.checked_mul(2)?)),
        }
    }
}

/// The type of errors and factors.
const FULL: DType = DType::F32;

/// Gives the compressed gradients their new values, and adds the states.
///
/// # Errors
/// None that a verified program can cause.
pub fn apply(
    module: &mut Module,
    options: &CompressGradients,
    decision: &Decision,
) -> Result<Changed, Diagnostic> {
    let mut b = Builder::new(module, CompressGradients::NAME);
    for compressed in &decision.gradients {
        let row = &b.module().states[compressed.parameter];
        let (name, stage) = (row.name.clone(), row.stage);
        let gradient = b.module().outputs[compressed.output].value;
        b.at(At::End(Phase::Update)).origin(name.as_str()).stage(stage);
        let mut states = States { b: &mut b, parameter: name, stage };
        let new = match compressed.shape {
            Shape::Factors { m, n, r } => powersgd::build(&mut states, gradient, options.ranks, [m, n, r])?,
            Shape::Narrow => sixteen::build(&mut states, gradient, options.ranks)?,
        };
        let ty = b.ty(gradient).clone();
        let new = b.cast(new, ty.dtype)?;
        let new = b.reshape(new, ty.dims)?;
        b.tables().outputs[compressed.output].value = new;
    }
    let changed = b.finish();
    Ok(changed.or(remove_dead(module, CompressGradients::NAME)))
}

/// The builder, with the parameter whose gradient is compressed.
struct States<'a, 'm> {
    b: &'a mut Builder<'m>,
    parameter: String,
    stage: u32,
}

impl States<'_, '_> {
    /// Adds a state `KIND(NAME)`, and returns its id and value.
    fn add(&mut self, kind: &str, ty: Type, initializer: Initializer) -> (StateId, ValueId) {
        let name = format!("{kind}({})", self.parameter);
        let id = self.b.tables().add_state(name, ty, Role::Compression, initializer);
        self.b.tables().states[id].stage = self.stage;
        (id, self.b.module().states[id].input)
    }

    fn set(&mut self, state: StateId, new: ValueId) {
        self.b.tables().states[state].output = Some(new);
    }

    /// Returns the addends of a gradient as `[ranks, sizes..]` of f32, each with the error of its rank: `Mᵢ = Gᵢ + Eᵢ`. Also returns the
    /// state of the errors, which starts with zeros. The factors of the gradient multiply its addends, so errors are in the gradient's own
    /// units.
    fn with_errors(
        &mut self,
        gradient: ValueId,
        ranks: u64,
        sizes: &[u64],
    ) -> Result<(ValueId, StateId), TypeError> {
        let Factored { tensor, factors } = Factored::of(self.b.module(), gradient);
        let addends = self.b.one(Addends { count: ranks }, &[tensor])?;
        let ty = Type::of(FULL, &[&[ranks], sizes].concat());
        let addends = self.b.reshape(addends, ty.dims.clone())?;
        let mut addends = self.b.cast(addends, FULL)?;
        for factor in factors {
            let factor = self.b.cast(factor, FULL)?;
            addends = self.b.build(addends * factor)?;
        }
        let (state, errors) = self.add("error", ty, Initializer::Zeros);
        Ok((self.b.build(addends + errors)?, state))
    }
}

#[cfg(test)]
mod tests;
