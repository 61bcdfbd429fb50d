//! Takes a scalar of the model apart into terms that can be added up over microbatches.
//!
//! Over microbatches, a quotient of sums is the quotient of the accumulated sums, a mean over samples is the mean of the
//! microbatches' means, and a sum over samples is the sum of their sums. [`Objective`] says for each part of a scalar
//! which of these cases it is.

use super::linear::{Facts, Linear};
use ir::ops::elementwise::{Binary, Compare, Unary};
use ir::{Node, Op, ValueId};
use std::collections::BTreeMap;

/// A scalar as a sum of classes.
#[derive(Clone, Debug, PartialEq)]
pub struct Objective {
    /// The parts of the scalar, by their divisors.
    pub classes: Vec<Class>,
    /// The formula in words, for the user.
    pub text: String,
    /// The reasons why several microbatches may not give the value of the whole batch; empty if they do.
    pub doubts: Vec<String>,
    /// A term that depends on no input and no parameter.
    pub constant: Option<f64>,
}

/// The terms of a scalar that share a divisor.
#[derive(Clone, Debug, PartialEq)]
pub struct Class {
    /// The addends of the dividend.
    pub addends: Vec<Addend>,
    /// The divisor of their sum over all microbatches.
    pub divisor: Divisor,
}

/// `coefficient · value`, times or divided by factors.
#[derive(Clone, Debug, PartialEq)]
pub struct Addend {
    /// A scalar, perhaps with dims of size one.
    pub value: ValueId,
    /// A constant factor.
    pub coefficient: f64,
    /// Factors that depend on parameters alone, and so are the same in all microbatches.
    pub factors: Vec<Factor>,
}

/// A factor that depends on parameters alone.
#[derive(Clone, Debug, PartialEq)]
pub struct Factor {
    /// The factor.
    pub value: ValueId,
    /// Whether the addend is divided by the factor.
    pub divides: bool,
}

/// The divisor of the sum over microbatches.
#[derive(Clone, Debug, PartialEq)]
pub enum Divisor {
    /// The number of samples: the addends are means over the samples of a microbatch.
    Samples,
    /// No divisor: the addends are sums over samples.
    One,
    /// A sum over microbatches that depends on the data.
    Weight(Weight),
}

/// A weight: `max(Σ value, floor) + epsilon`. If the value is a mean, the value and the bounds are multiplied by the number of samples.
#[derive(Clone, Debug, PartialEq)]
pub struct Weight {
    /// A sum over the samples of a microbatch, or a mean.
    pub value: ValueId,
    /// Whether the value and the addends that it divides are means over the samples.
    pub is_mean: bool,
    /// The smallest value of the sum.
    pub floor: Option<f64>,
    /// A number that is added to the sum.
    pub epsilon: f64,
}

/// Takes scalars apart. `exported` is the batch that the constants of the file were made for.
pub(super) struct Recognizer<'f, 'm> {
    facts: &'f mut Facts<'m>,
    exported: u64,
    /// The outputs of the model that are scalars, by which terms are named.
    names: BTreeMap<ValueId, String>,
    terms: Vec<Term>,
    doubts: Vec<String>,
    constant: Option<f64>,
    /// The number of values that were visited.
    steps: usize,
}

/// The most values that are visited. No loss of an author has more parts. A value that is read twice at each of n steps has 2ⁿ.
const MOST_STEPS: usize = 1000;

struct Term {
    addend: Addend,
    divisor: Divisor,
    text: String,
}

/// The path from the scalar to a term of it: the factors on the way, and the last name.
#[derive(Clone)]
struct Path {
    coefficient: f64,
    factors: Vec<Factor>,
    name: Option<String>,
}

impl Path {
    fn scaled(&self, by: f64) -> Self {
        Self { coefficient: self.coefficient * by, ..self.clone() }
    }

    fn with(&self, value: ValueId, divides: bool) -> Self {
        let mut path = self.clone();
        path.factors.push(Factor { value, divides });
        path
    }
}

impl<'f, 'm> Recognizer<'f, 'm> {
    pub(super) fn new(facts: &'f mut Facts<'m>, exported: Option<u64>) -> Self {
        let module = facts.module;
        let scalars = module.outputs.iter().filter(|output| module.ty(output.value).numel() == Some(1));
        let names = scalars.map(|output| (facts.through_views(output.value), output.name.clone())).collect();
        let exported = exported.unwrap_or(facts.batch);
        Self { facts, exported, names, terms: vec![], doubts: vec![], constant: None, steps: 0 }
    }

    /// Takes a scalar apart.
    pub(super) fn objective(mut self, value: ValueId) -> Objective {
        self.names.remove(&self.facts.through_views(value));
        let whole = Path { coefficient: 1.0, factors: vec![], name: None };
        self.collect(value, &whole);
        if self.steps > MOST_STEPS {
            (self.terms, self.doubts, self.constant) = (vec![], vec![], None);
            self.opaque(value, whole);
        }
        self.doubt_sums();
        let text = text(&self.terms);
        let whole = self.exported == self.facts.batch || !self.terms.iter().any(|term| term.is_mean());
        let mut classes: Vec<Class> = Vec::new();
        for Term { addend, divisor, .. } in self.terms {
            match classes.iter_mut().find(|class| class.divisor == divisor) {
                Some(class) => class.addends.push(addend),
                None => classes.push(Class { addends: vec![addend], divisor }),
            }
        }
        // A scalar of one class without a weight is itself the only addend.
        if let [Class { addends, divisor: Divisor::Samples | Divisor::One }] = &mut classes[..]
            && whole
        {
            *addends = vec![Addend { value, coefficient: 1.0, factors: vec![] }];
        }
        Objective { classes, text, doubts: self.doubts, constant: self.constant }
    }

    fn collect(&mut self, value: ValueId, path: &Path) {
        let value = self.facts.through_views(value);
        let mut path = path.clone();
        self.steps += 1;
        if self.steps > MOST_STEPS {
            return;
        }
        if let Some(name) = self.names.get(&value) {
            path.name = Some(name.clone());
        }
        if let Some(constant) = self.facts.number(value) {
            let constant = constant * path.coefficient;
            self.constant = Some(constant).filter(|&constant| constant != 0.0).or(self.constant);
            return self.push(value, path, Divisor::Samples, "a constant");
        }
        if !self.facts.reads_inputs(value) {
            return self.push(value, path, Divisor::Samples, "a term of parameters alone");
        }
        let Some(node) = self.facts.module.producer(value) else {
            return self.opaque(value, path);
        };
        let (left, right) = (node.operands.first().copied(), node.operands.get(1).copied());
        match (&node.op, left, right) {
            (Op::Binary(op @ (Binary::Add | Binary::Sub)), Some(left), Some(right)) => {
                self.collect(left, &path);
                let sign = if *op == Binary::Sub { -1.0 } else { 1.0 };
                self.collect(right, &path.scaled(sign));
            }
            (Op::Unary(Unary::Neg), Some(operand), _) => self.collect(operand, &path.scaled(-1.0)),
            (Op::Binary(Binary::Mul), Some(left), Some(right)) => self.product(value, [left, right], path),
            (Op::Binary(Binary::Div), Some(left), Some(right)) => self.quotient(value, left, right, path),
            _ => self.linear(value, path),
        }
    }

    fn product(&mut self, value: ValueId, operands: [ValueId; 2], path: Path) {
        let [left, right] = operands;
        for (part, factor) in [(left, right), (right, left)] {
            if let Some(factor) = self.facts.number(factor) {
                return self.collect(part, &path.scaled(factor));
            }
            if let Some(Node { op: Op::Unary(Unary::Reciprocal), operands, .. }) =
                self.facts.module.producer(factor)
            {
                let divisor = operands[0];
                return self.quotient(value, part, divisor, path);
            }
            if !self.facts.reads_inputs(factor) {
                return self.collect(part, &path.with(factor, false));
            }
        }
        self.opaque(value, path);
    }

    fn quotient(&mut self, value: ValueId, part: ValueId, divisor: ValueId, path: Path) {
        if let Some(number) = self.facts.number(divisor) {
            if !self.mean_by(part, number, &path) {
                self.collect(part, &path.scaled(1.0 / number));
            }
        } else if !self.facts.reads_inputs(divisor) {
            self.collect(part, &path.with(divisor, true));
        } else if let Some(weight) = self.weight(divisor)
            && self.facts.linear(part) == Some(if weight.is_mean { Linear::Mean } else { Linear::Sum })
        {
            let is_cross_entropy = |value| {
                let producer = self.facts.module.producer(self.facts.through_views(value));
                producer.is_some_and(|node| matches!(node.op, Op::CrossEntropy(_)))
            };
            let (sum, of) = (self.facts.through_views(part), weight.value);
            let text = if is_cross_entropy(sum) && is_cross_entropy(of) {
                "cross-entropy (mean over the labels that count)".into()
            } else {
                let floor = weight.floor.map(|floor| format!(", which is at least {floor}"));
                let text = if weight.is_mean { "mean / mean weight" } else { "sum / weight" };
                format!("{text} from the data{}", floor.unwrap_or_default())
            };
            self.push(sum, path, Divisor::Weight(weight), &text);
        } else {
            self.opaque(value, path);
        }
    }

    /// Whether a sum over samples divided by a number is a mean over them: the number must be a multiple of the batch that the file was
    /// exported with. Such a mean is added as a term.
    fn mean_by(&mut self, part: ValueId, number: f64, path: &Path) -> bool {
        if self.facts.linear(part) != Some(Linear::Sum) {
            return false;
        }
        let sum = self.facts.through_views(part);
        let each = (number / self.exported as f64).round();
        let elements = self.facts.summed_elements(sum);
        let is_multiple = each >= 1.0 && (number - each * self.exported as f64).abs() <= 1e-5 * number;
        // Every number is a multiple of 1.
        let is_count = match self.exported {
            1 => each == elements as f64,
            _ => elements.is_multiple_of(each as u64),
        };
        if !is_multiple || !is_count || each * self.exported as f64 == 1.0 {
            return false;
        }
        let mean = path.scaled(1.0 / (each * self.facts.batch as f64));
        let text = MEAN;
        self.push_with(sum, mean, path.coefficient, Divisor::Samples, text);
        true
    }

    /// Returns a sum or a mean over the samples as a weight: as it is, or bounded away from zero.
    fn weight(&mut self, value: ValueId) -> Option<Weight> {
        let inner = self.facts.through_views(value);
        if self.facts.reads_parameters(inner) {
            return None;
        }
        if let Some(linear) = self.facts.linear(value) {
            let is_float = |value: &ValueId| self.facts.module.ty(*value).dtype.is_float();
            let value = Some(inner).filter(is_float).unwrap_or(value);
            return Some(Weight { value, is_mean: linear == Linear::Mean, floor: None, epsilon: 0.0 });
        }
        let node = self.facts.module.producer(inner)?;
        let (op, operands) = (node.op.clone(), node.operands.clone());
        match op {
            Op::Binary(Binary::Max | Binary::AtLeast | Binary::Add) => {
                let [left, right] = [operands[0], operands[1]];
                let (of, number) = match self.facts.number(right) {
                    Some(number) => (left, number),
                    None => (right, self.facts.number(left)?),
                };
                let mut weight = self.weight(of)?;
                match op {
                    Op::Binary(Binary::Add) => weight.epsilon += number,
                    _ => weight.floor = Some((number - weight.epsilon).max(weight.floor.unwrap_or(f64::MIN))),
                }
                Some(weight)
            }
            // `where(weight == 0, 1, weight)`: where the weight is 0, no term counts.
            Op::Select(_) => {
                let (of, compares) = self.compared_with_zero(operands[0])?;
                let (chosen, number) = match compares {
                    Compare::Greater => (operands[1], operands[2]),
                    Compare::Equal | Compare::LessEqual => (operands[2], operands[1]),
                    _ => return None,
                };
                let is_same = self.facts.through_views(chosen) == self.facts.through_views(of);
                self.facts.number(number).filter(|_| is_same)?;
                self.weight(chosen)
            }
            _ => None,
        }
    }

    /// Returns the value that a comparison compares with 0, and the comparison with the value on the left.
    fn compared_with_zero(&mut self, value: ValueId) -> Option<(ValueId, Compare)> {
        let node = self.facts.module.producer(self.facts.through_views(value))?;
        let Op::Compare(compare) = node.op else { return None };
        let [left, right] = [node.operands[0], node.operands[1]];
        if self.facts.number(right) == Some(0.0) {
            return Some((left, compare));
        }
        let mirrored = match compare {
            Compare::Less => Compare::Greater,
            Compare::GreaterEqual => Compare::LessEqual,
            Compare::Equal => Compare::Equal,
            _ => return None,
        };
        (self.facts.number(left) == Some(0.0)).then_some((right, mirrored))
    }

    fn linear(&mut self, value: ValueId, path: Path) {
        match self.facts.linear(value) {
            Some(Linear::Mean) => self.push(value, path, Divisor::Samples, MEAN),
            Some(Linear::Sum) => self.push(value, path, Divisor::One, SUM),
            None => self.opaque(value, path),
        }
    }

    fn opaque(&mut self, value: ValueId, path: Path) {
        let name = path.name.as_ref().map_or("it".into(), |name| format!("`{name}`"));
        let doubt =
            format!("{name} is not a sum or a mean over the samples, and not a quotient of such sums");
        self.doubts.push(doubt);
        self.push(value, path, Divisor::Samples, "a value of another form");
    }

    fn push(&mut self, value: ValueId, path: Path, divisor: Divisor, text: &str) {
        let told = path.coefficient;
        self.push_with(value, path, told, divisor, text);
    }

    fn push_with(&mut self, value: ValueId, path: Path, told: f64, divisor: Divisor, text: &str) {
        let Path { coefficient, factors, name } = path;
        let parameters = if factors.is_empty() { "" } else { "factor of parameters · " };
        let name = name.map_or(String::new(), |name| format!(" (`{name}`)"));
        let text = format!("{}{parameters}{text}{name}", number(told));
        self.terms.push(Term { addend: Addend { value, coefficient, factors }, divisor, text });
    }

    /// Adds a doubt if a sum may be a mean, since the two are equal at a batch of one, and a doubt if samples could not be followed.
    fn doubt_sums(&mut self) {
        if self.exported == 1 && self.terms.iter().any(|term| term.divisor == Divisor::One) {
            let doubt = "the file was exported with a batch of 1, in which a sum over samples may be a mean over them";
            self.doubts.push(doubt.into());
        }
        let weighs = self.terms.iter().any(|term| self.facts.reads_inputs(term.addend.value));
        if let Some(lost) = self.facts.lost.as_ref().filter(|_| weighs && self.facts.batch > 1) {
            self.doubts.push(format!("the loss may mix samples: {}", lost.message));
        }
    }
}

const MEAN: &str = "mean over the samples";
const SUM: &str = "sum over the samples";

impl Term {
    /// Whether the divisor was a number of the file.
    fn is_mean(&self) -> bool {
        self.divisor == Divisor::Samples && self.addend.coefficient != 1.0
    }
}

/// Returns a constant factor as text before a term: `0.1 · `, `-`, or nothing for 1.
fn number(coefficient: f64) -> String {
    match coefficient {
        1.0 => String::new(),
        -1.0 => "-".into(),
        // An f32 has about seven digits.
        other => format!("{} · ", (other as f32)),
    }
}

fn text(terms: &[Term]) -> String {
    let mut text = String::new();
    for term in terms {
        match term.text.strip_prefix('-') {
            _ if text.is_empty() => text += &term.text,
            Some(positive) => text += &format!(" - {positive}"),
            None => text += &format!(" + {}", term.text),
        }
    }
    text
}
