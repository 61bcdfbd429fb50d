//! Initialize: replaces the file's weights by new ones, by a rule.
//!
//! The graph shows the use of a parameter; its name does not matter. A norm's scale starts at one, a bias at zero, and a matrix is drawn
//! by the rule. Invariant: only initializers of states that are tensors of the file change, and they still name those tensors, so that
//! an export can write them back.

use crate::arguments::{Arguments, Options};
use crate::pass::{PassContext, Transform};
use ir::ops::elementwise::Binary;
use ir::{
    Changed, Definition, Diagnostic, Initializer, Level, Module, Node, NodeId, Op, OperandRole, Phase, State,
    ValueId,
};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

/// The pass.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Initialize {
    /// The rule.
    pub rule: Rule,
}

/// The rule by which new weights are drawn. Under every rule, norm scales start at one and biases at zero.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Rule {
    /// Normal with deviation 0.02, residual projections scaled by 1/√(2 layers) (GPT-2, section 2.3).
    #[default]
    Gpt2,
    /// Normal with deviation √(2 / fan in) (He et al. 2015, equation 10).
    Kaiming,
    /// Normal with a given deviation.
    Normal {
        /// The deviation, above 0.
        std: f64,
    },
}

/// Writes a rule as `--init` takes it: `gpt2`, `kaiming` or `normal:std=0.02`.
impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gpt2 => f.write_str("gpt2"),
            Self::Kaiming => f.write_str("kaiming"),
            Self::Normal { std } => write!(f, "normal:std={std:?}"),
        }
    }
}

impl FromStr for Rule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match (text, text.strip_prefix("normal:std=")) {
            ("gpt2", _) => Ok(Self::Gpt2),
            ("kaiming", _) => Ok(Self::Kaiming),
            (_, Some(std)) => Self::normal(std),
            (text, _) if text.starts_with("normal") => Err(format!(
                "`{text}` is not a rule for new weights; `normal` has a standard deviation: normal:std=0.02"
            )),
            _ => {
                Err(format!("`{text}` is not a rule for new weights; there are gpt2, kaiming, normal:std=X"))
            }
        }
    }
}

impl Rule {
    fn normal(std: &str) -> Result<Self, String> {
        match std.parse() {
            Ok(std) if std > 0.0 && f64::is_finite(std) => Ok(Self::Normal { std }),
            _ => Err(format!("`{std}` is not a standard deviation; give a finite number above 0")),
        }
    }

    fn parse(arguments: &mut Arguments) -> Result<Self, String> {
        if let Some(std) = arguments.take("normal") {
            return Self::normal(&std);
        }
        let rule = arguments.word(&[(Self::Gpt2, "gpt2"), (Self::Kaiming, "kaiming")]);
        Ok(rule.ok_or("give a rule: gpt2, kaiming or normal=X")?)
    }

    fn print(&self, arguments: &mut Arguments) {
        match self {
            Self::Gpt2 => arguments.push("", "gpt2"),
            Self::Kaiming => arguments.push("", "kaiming"),
            Self::Normal { std } => arguments.push("normal", std),
        }
    }
}

impl Transform for Initialize {
    const NAME: &'static str = "initialize";
    const NEEDED: bool = false;

    fn options(&mut self, options: &mut Options) {
        options.custom(&mut self.rule, Rule::parse, Rule::print);
    }

    /// Errors: the program is no forward program any more.
    fn run(&self, module: &mut Module, _: &mut PassContext) -> Result<Changed, Diagnostic> {
        if module.level != Level::Imported {
            let error = Diagnostic::new("the use of a parameter is read off the forward program");
            return Err(error.note("run `initialize` before `autodiff`"));
        }
        let decision = decide(module, self.rule);
        apply(module, &decision);
        Ok(if decision.starts.is_empty() { Changed::No } else { Changed::Yes })
    }
}

/// The deviation of GPT-2's weights (Radford et al. 2019, and its published code). Tables have it under every rule but `normal`.
const DEVIATION: f64 = 0.02;

/// The use of a parameter. If there are several, the first in this order counts: a tied head starts as the table that it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Use {
    /// A factor of the elements, such as a norm's scale.
    Scale,
    /// A table of rows that are looked up, or a tensor that is added or joined to activations, such as position embeddings.
    Table,
    /// The weight of a contraction.
    Weight {
        /// The number of products that are summed into one element of the result.
        fan_in: u64,
        /// Whether the result is added to a value that it was computed from.
        residual: bool,
    },
    /// A vector that is added along all dims but one.
    Bias,
}

/// The value of a parameter before step 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum InitialValue {
    /// The same number for all elements.
    Fill(f64),
    /// Normal numbers with this deviation, drawn by seed, state and element.
    Normal(f64),
}

/// The starts of all parameters, by the names of their states.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Decision {
    /// The use and the start of each state.
    pub starts: BTreeMap<String, (Use, InitialValue)>,
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let as_text = |start: &InitialValue| match start {
            InitialValue::Fill(value) => format!("{value}"),
            InitialValue::Normal(deviation) => format!("normal {deviation:.5}"),
        };
        for (state, (found, start)) in &self.starts {
            writeln!(f, "{state}: {found:?} -> {}", as_text(start))?;
        }
        Ok(())
    }
}

/// Decides the starts of the states that are tensors of the file, frozen ones too.
pub fn decide(module: &Module, rule: Rule) -> Decision {
    let graph = Graph::new(module);
    let uses: Vec<(&State, Use)> = parameters(module).map(|state| (state, graph.found_use(state))).collect();
    let residuals =
        uses.iter().filter(|(_, found)| matches!(found, Use::Weight { residual: true, .. })).count();
    let attentions = graph.forward().filter(|(_, node)| matches!(node.op, Op::Attention(_))).count();
    // A layer of a transformer adds to the residual stream twice: after its attention and after its MLP.
    let additions = if attentions > 0 { 2 * attentions } else { residuals };
    let start = |found: Use| start(rule, found, additions.max(1));
    Decision {
        starts: uses.into_iter().map(|(state, found)| (state.name.clone(), (found, start(found)))).collect(),
    }
}

/// Sets the initializers.
pub fn apply(module: &mut Module, decision: &Decision) {
    for state in module.states.values_mut() {
        let (Some((_, start)), Some(data)) = (decision.starts.get(&state.name), state.initializer.data())
        else {
            continue;
        };
        state.initializer = match start {
            InitialValue::Fill(value) => Initializer::Fill { value: value.to_bits(), data },
            InitialValue::Normal(deviation) => {
                Initializer::Normal { std: deviation.to_bits(), data: Some(data) }
            }
        };
    }
}

/// Returns the start of a parameter for its use:
/// - GPT-2: 0.02, and 0.02/√(additions to the residual stream) for weights whose result is added to it (Radford et al. 2019, section
///   2.3: "a factor of 1/√N where N is the number of residual layers").
/// - Kaiming: √(2 / fan in) (He et al. 2015, equation 10). A table starts as GPT-2's: its fan in is one, and the numbers would be so
///   large that they drown all others.
fn start(rule: Rule, found: Use, additions: usize) -> InitialValue {
    match (found, rule) {
        (Use::Scale, _) => InitialValue::Fill(1.0),
        (Use::Bias, _) => InitialValue::Fill(0.0),
        (_, Rule::Normal { std }) => InitialValue::Normal(std),
        (Use::Weight { residual: true, .. }, Rule::Gpt2) => {
            InitialValue::Normal(DEVIATION / (additions as f64).sqrt())
        }
        (Use::Weight { fan_in, .. }, Rule::Kaiming) => {
            InitialValue::Normal((2.0 / fan_in.max(1) as f64).sqrt())
        }
        (Use::Table | Use::Weight { .. }, _) => InitialValue::Normal(DEVIATION),
    }
}

fn parameters(module: &Module) -> impl Iterator<Item = &State> {
    module.states.values().filter(|state| state.initializer.data().is_some() && state.ty.dtype.is_float())
}

/// The forward program, with the facts that the search for uses needs.
struct Graph<'m> {
    module: &'m Module,
    /// The nodes that read each value, by its number.
    readers: Vec<Vec<NodeId>>,
    /// Whether each value depends on an input.
    varies: Vec<bool>,
}

impl<'m> Graph<'m> {
    fn new(module: &'m Module) -> Self {
        let mut varies = vec![false; module.value_count()];
        let mut readers = vec![vec![]; module.value_count()];
        module.inputs.iter().for_each(|input| varies[number(input.value)] = true);
        for (id, node) in module.nodes() {
            let any = node.operands.iter().any(|&operand| varies[number(operand)]);
            node.results.iter().for_each(|&result| varies[number(result)] = any);
            let operands: BTreeSet<ValueId> = node.operands.iter().copied().collect();
            operands.into_iter().for_each(|operand| readers[number(operand)].push(id));
        }
        Self { module, readers, varies }
    }

    fn forward(&self) -> impl Iterator<Item = (NodeId, &'m Node)> {
        self.module.nodes().filter(|(_, node)| node.phase <= Phase::Forward)
    }

    /// Returns the use of a state. Without a reader, its dims decide.
    fn found_use(&self, state: &State) -> Use {
        let mut found = Vec::new();
        let mut stack = vec![state.input];
        while let Some(value) = stack.pop() {
            for &id in &self.readers[number(value)] {
                let node = self.module.node(id);
                match &node.op {
                    _ if node.phase > Phase::Forward => {}
                    op if op.movement().is_view() => stack.push(node.results[0]),
                    Op::InTraining(_) => stack.push(node.results[0]),
                    // Arithmetic that updates a running statistic does not tell its use.
                    Op::Binary(_) if state.output.is_some() => {}
                    _ => found.extend(self.uses_in(state, node, value)),
                }
            }
        }
        let unread = if self.is_vector(state) { Use::Bias } else { Use::Table };
        found.into_iter().min().unwrap_or(unread)
    }

    fn uses_in(&self, state: &State, node: &Node, value: ValueId) -> Vec<Use> {
        let operands = node.operands.iter().enumerate().filter(|(_, operand)| **operand == value);
        operands.map(|(index, _)| self.use_as(state, node, index)).collect()
    }

    /// Returns the use of a state as this operand of a node, perhaps seen through views.
    fn use_as(&self, state: &State, node: &Node, index: usize) -> Use {
        let by_dims = |vector: Use| if self.is_vector(state) { vector } else { Use::Table };
        match &node.op {
            // Running statistics start as the mean and the variance of a standard normal.
            Op::LayerNorm(_) | Op::RmsNorm(_) | Op::BatchNorm(_) => match node.role(index) {
                OperandRole::Scale | OperandRole::Variance => Use::Scale,
                _ => Use::Bias,
            },
            Op::Binary(Binary::Add | Binary::Sub) => by_dims(Use::Bias),
            Op::Binary(_) => by_dims(Use::Scale),
            Op::Contract(contract) => {
                let is_left = node.role(index) == OperandRole::Lhs;
                let labels = if is_left { &contract.lhs } else { &contract.rhs };
                let dims = &self.module.ty(node.operands[index]).dims;
                let summed = labels.0.iter().zip(dims).filter(|(label, _)| !contract.out.0.contains(label));
                let sizes = summed.map(|(_, dim)| dim.size().unwrap_or(1));
                Use::Weight { fan_in: sizes.fold(1, u64::saturating_mul), residual: self.is_residual(node) }
            }
            Op::Experts(experts) => {
                let summed = if experts.transposed { 2 } else { 1 };
                let fan_in = self.module.ty(node.operands[index]).dims[summed].size().unwrap_or(1);
                Use::Weight { fan_in, residual: self.is_residual(node) }
            }
            Op::Recurrent(_) if node.role(index) == OperandRole::Weight => {
                let fan_in = self.module.ty(node.operands[index]).dims[1].size().unwrap_or(1);
                Use::Weight { fan_in, residual: false }
            }
            Op::Recurrent(_) => by_dims(Use::Bias),
            // The bias of its expert is looked up for each row.
            Op::Gather(_) if self.is_of_experts(state) => by_dims(Use::Bias),
            // PyTorch's fan in, also for a transposed convolution.
            Op::Conv(_) | Op::ConvGradInput(_) => {
                let sizes = self.module.ty(node.operands[index]).dims[1..].iter();
                let sizes = sizes.map(|dim| dim.size().unwrap_or(1));
                Use::Weight { fan_in: sizes.fold(1, u64::saturating_mul), residual: self.is_residual(node) }
            }
            _ => Use::Table,
        }
    }

    /// Whether a tensor of the file has at most one dim of more than one element.
    fn is_vector(&self, state: &State) -> bool {
        let ty = state.initializer.data().map_or(&state.ty, |row| &self.module.data[row].ty);
        ty.dims.iter().filter(|dim| !dim.is_one()).count() <= 1
    }

    /// Whether a state stacks a tensor of the file, or a part of it, for each expert.
    fn is_of_experts(&self, state: &State) -> bool {
        state.initializer.data().is_some_and(|row| self.module.data[row].ty.ndim() < state.ty.ndim())
    }

    /// Whether the result of a contraction is added to a value that the contraction was computed from. Views, biases, dropout and constant
    /// factors may come in between.
    fn is_residual(&self, contraction: &Node) -> bool {
        let (mut stack, mut seen) = (vec![contraction.results[0]], BTreeSet::new());
        while let Some(value) = stack.pop() {
            for &id in &self.readers[number(value)] {
                let node = self.module.node(id);
                let other = node
                    .operands
                    .iter()
                    .copied()
                    .find(|&operand| operand != value && self.varies[number(operand)]);
                let follows = match (&node.op, other) {
                    _ if node.phase > Phase::Forward => false,
                    (Op::Binary(Binary::Add), Some(other)) if self.depends(contraction, other) => {
                        return true;
                    }
                    (Op::Binary(Binary::Add | Binary::Mul | Binary::Div), None) => true,
                    (Op::Dropout(_), _) => true,
                    (op, None) => op.movement().is_view(),
                    _ => false,
                };
                if follows && seen.insert(node.results[0]) {
                    stack.push(node.results[0]);
                }
            }
        }
        false
    }

    /// Whether a node depends on a value, directly or through other nodes.
    fn depends(&self, node: &Node, on: ValueId) -> bool {
        let (mut stack, mut seen) = (node.operands.to_vec(), BTreeSet::new());
        while let Some(value) = stack.pop() {
            if value == on {
                return true;
            }
            if seen.insert(value)
                && let Definition::Node(id, _) = self.module.value(value).definition
            {
                stack.extend(&self.module.node(id).operands);
            }
        }
        false
    }
}

fn number(value: ValueId) -> usize {
    value.as_u32() as usize
}
