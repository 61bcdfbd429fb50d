//! Parameters: decides which tensors of the file are trained, and makes them states.
//!
//! Claims about a tensor decide first ([`ir::Claim`]): those of the user, of the exporter's list, and of the author's name for it. A
//! tensor without a claim is decided by its uses: it is a parameter if it reaches, through views, a contraction, the data of a gather,
//! a norm's scale or bias, or a bias addition; else it is a constant. The pass runs after patterns are found, when rotary tables and
//! masks can be recognised. If all uses of a parameter go through one view, the state has that view. If they all go through slices, each
//! slice becomes a state. Invariants: every use of a parameter reads a state; the program computes the same values; the report names
//! every float tensor of the file with a reason.

mod claims;
mod evidence;
mod names;
mod paths;
mod report;
mod ties;
mod views;

pub use evidence::{Evidence, Finding};
pub use report::{ParameterSpec, specs};
pub use ties::TiedRow;
pub use views::TensorCut;

use crate::arguments::{Arguments, Options};
use crate::pass::{PassContext, Transform};
use crate::rewriting::dead::remove_dead;
use crate::rewriting::local;
use ir::{
    Blob, Builder, Changed, Claim, Data, DataId, Diagnostic, Initializer, Level, Module, Op, Phase, Role,
    ValueId,
};
use std::collections::BTreeMap;

/// The pass.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Parameters {
    /// The tensors that are parameters.
    pub set: Set,
    /// Whether matrices with equal bytes stay separate parameters.
    pub untied: bool,
    /// Patterns of parameters that are not trained.
    pub freeze: Vec<String>,
    /// If there are any, the patterns of the only parameters that are trained.
    pub train_only: Vec<String>,
}

/// The tensors that are parameters.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Set {
    /// The tensors that are parameters by their claims and uses.
    #[default]
    Find,
    /// Exactly these, each whole. The reference that a program is verified against gets the program's set in this way.
    Only(Vec<ParameterSpec>),
}

impl Set {
    fn parse(arguments: &mut Arguments) -> Result<Self, String> {
        let is_given = arguments.flag("given");
        Ok(if is_given { Self::Only(report::parse_specs(arguments)?) } else { Self::Find })
    }

    fn print(&self, arguments: &mut Arguments) {
        if let Self::Only(specs) = self {
            arguments.push_flag("given", true);
            report::print_specs(specs, arguments);
        }
    }
}

impl Transform for Parameters {
    const NAME: &'static str = "parameters";
    const NEEDED: bool = true;

    fn options(&mut self, options: &mut Options) {
        options.flag("untied", &mut self.untied);
        options.list("freeze", &mut self.freeze);
        options.list("train-only", &mut self.train_only);
        options.custom(&mut self.set, Set::parse, Set::print);
    }

    fn run(&self, module: &mut Module, cx: &mut PassContext) -> Result<Changed, Diagnostic> {
        if module.level != Level::Imported {
            return Err(Diagnostic::new(
                "the pass `parameters` must run before the program is differentiated",
            ));
        }
        match &self.set {
            Set::Only(specs) => report::apply_specs(module, specs),
            Set::Find => self.find(module, cx),
        }
    }
}

impl Parameters {
    fn find(&self, module: &mut Module, cx: &mut PassContext) -> Result<Changed, Diagnostic> {
        let ties = if self.untied { vec![] } else { ties::decide(module, cx) };
        let tied = ties::apply(module, &ties)?;
        let mut decision = decide(module, cx, self)?;
        decision.ties = ties;
        warn(module, &decision, cx);
        cx.reports.parameters = report::reports(module, &decision, cx);
        let changed = apply(module, &decision);
        let cleaned = remove_dead(module, Self::NAME);
        // A tied matrix is read transposed. The contractions absorb the transpose.
        let absorbed = if tied == Changed::Yes { local::run(module, Self::NAME)? } else { Changed::No };
        Ok(tied.or(changed).or(cleaned).or(absorbed).or(remove_dead(module, Self::NAME)))
    }
}

/// The decision on every float tensor of the file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Decision {
    /// The decisions, in the order of the data table.
    pub rows: Vec<Row>,
    /// Rows that were merged with an equal row, before the rows were classified.
    pub ties: Vec<TiedRow>,
}

/// The decision on one tensor of the file.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The tensor.
    pub data: DataId,
    /// The finding, with its reason.
    pub finding: Finding,
    /// Whether a parameter is left untrained because the user said so.
    pub frozen: bool,
    /// The states that it becomes; none for a constant.
    pub states: Vec<NewState>,
}

/// A state that a tensor becomes.
#[derive(Clone, Debug, PartialEq)]
pub struct NewState {
    /// The name of the state.
    pub name: String,
    /// The part of the tensor, and the values that it replaces.
    pub cut: TensorCut,
}

/// Whether a row can be a parameter: floats of the file. A scalar can be one only if its claim says that it may be trained.
fn can_be_trained(data: &Data) -> bool {
    let is_number = data.ty.ndim() == 0 && !data.claim.is_some_and(Claim::may_be_trained);
    data.ty.dtype.is_float() && !is_number && matches!(data.blob, Blob::File(_))
}

/// Returns the values that read each row that can be a parameter.
fn readers(module: &Module) -> BTreeMap<DataId, Vec<ValueId>> {
    let mut readers: BTreeMap<DataId, Vec<ValueId>> = BTreeMap::new();
    for (_, node) in module.nodes().filter(|(_, node)| node.phase <= Phase::Forward) {
        if let Op::Constant(constant) = &node.op
            && can_be_trained(&module.data[constant.data])
        {
            readers.entry(constant.data).or_default().push(node.results[0]);
        }
    }
    readers
}

/// Classifies every row, cuts parameters into states and names them.
pub fn decide(module: &Module, cx: &PassContext, options: &Parameters) -> Result<Decision, Diagnostic> {
    let mut search = evidence::ModuleFacts::new(module, &cx.repeated);
    let uses = module.uses();
    let mut names = names::Names::new(module);
    let mut rows = Vec::new();
    for (data, values) in readers(module) {
        let finding = claims::weigh(module, data, search.finding(data, &values));
        let base = names.base(data, cx);
        let mut states = Vec::new();
        if finding.is_parameter() {
            for cut in views::cuts(module, &uses, &module.data[data], &values) {
                let name = names.unique(&format!("{base}{}", views::suffix(&cut.view)));
                states.push(NewState { name, cut });
            }
        }
        rows.push(Row { data, finding, frozen: false, states });
    }
    names::freeze(module, cx, &mut rows, options)?;
    Ok(Decision { rows, ties: vec![] })
}

/// Adds the states, and makes the program read them.
pub fn apply(module: &mut Module, decision: &Decision) -> Changed {
    let mut b = Builder::new(module, Parameters::NAME);
    for row in &decision.rows {
        let role = if row.frozen { Role::Buffer } else { Role::Parameter };
        for state in &row.states {
            let tables = b.tables();
            let ty = tables.ty(state.cut.values[0]).clone();
            let id = tables.add_state(&state.name, ty, role, Initializer::Data(row.data));
            tables.states[id].view = state.cut.view.clone();
            let input = tables.states[id].input;
            state.cut.values.iter().for_each(|&value| b.replace(value, input));
        }
    }
    b.finish()
}

/// Whether an untrained tensor may be a parameter after all, so that the user must be warned.
fn is_doubtful(module: &Module, row: &Row) -> bool {
    let data = &module.data[row.data];
    let is_proven = matches!(row.finding.evidence, Evidence::Constant(_));
    if row.finding.is_compared {
        return false;
    }
    match data.claim {
        Some(Claim::Named) => claims::named_constant(module, data).is_none(),
        Some(Claim::Computed) => !is_proven,
        None => !is_proven && data.name.starts_with("onnx::") && data.ty.numel() != Some(1),
        _ => false,
    }
}

/// Warns of decisions that the user may not expect.
fn warn(module: &Module, decision: &Decision, cx: &mut PassContext) {
    for tie in &decision.ties {
        let (tied, to) = (&module.data[tie.data].name, &module.data[tie.to].name);
        // The exporter says itself that these two are one parameter.
        if cx.authors.contains_key(tied) && cx.authors.get(tied) == cx.authors.get(to) {
            continue;
        }
        let transposed = if tie.permutation == [1, 0] { ", transposed" } else { "" };
        let warning = Diagnostic::new(format!(
            "`{tied}` and `{to}` have the same bytes{transposed}: they are trained as one parameter"
        ));
        cx.warn(warning.note("--untied keeps the tensors apart"));
    }
    let trained = || decision.rows.iter().filter(|row| row.finding.is_parameter() && !row.frozen);
    let by_name = trained().filter(|row| matches!(row.finding.evidence, Evidence::Named(_)));
    let by_name: Vec<String> = by_name.map(|row| format!("`{}`", module.data[row.data].name)).collect();
    if !by_name.is_empty() {
        let message = match &by_name[..] {
            [name] => format!("{name} is trained only because of its name"),
            names => {
                format!(
                    "{} tensors are trained only because of their names: {}",
                    names.len(),
                    names.join(", ")
                )
            }
        };
        let note = "the file does not say whether such a tensor is a parameter or a buffer; --freeze NAME keeps a \
             buffer constant";
        cx.warn(Diagnostic::new(message).note(note));
    }
    let others = decision.rows.iter().filter(|row| !row.finding.is_parameter());
    let (computed, left_out): (Vec<_>, Vec<_>) = others
        .filter(|row| is_doubtful(module, row))
        .partition(|row| module.data[row.data].claim == Some(Claim::Computed));
    if !computed.is_empty() {
        let names: Vec<String> =
            computed.iter().map(|row| format!("`{}`", module.data[row.data].name)).collect();
        let message =
            format!("the exporter computed these tensors, perhaps from parameters: {}", names.join(", "));
        let note =
            "no gradient flows through a computed tensor; export with optimize=False to keep the computation";
        cx.warn(Diagnostic::new(message).note(note));
    }
    if !left_out.is_empty() {
        let names = left_out.iter().map(|row| {
            // `inspect` shows the place of the use.
            let reason = row.finding.reason().split(", node ").next().unwrap_or_default();
            format!("`{}` ({reason})", module.data[row.data].name)
        });
        let names: Vec<String> = names.collect();
        let warning = Diagnostic::new(format!("not trained: {}", names.join(", ")));
        cx.warn(warning.note("--train-also NAME trains such a tensor"));
    }
    for row in trained() {
        let data = &module.data[row.data];
        let Data { name, ty, claim, .. } = data;
        if let Evidence::Ambiguous(reason) = &row.finding.evidence {
            let warning =
                Diagnostic::new(format!("`{name}` {ty} is trained, though it may be a constant: {reason}"));
            cx.warn(warning.note(format!("--freeze '{name}' keeps the tensor constant")));
        }
        // If the exporter names the owner of each tensor, a shared tensor is tied. So is a named tensor whose elements are not initial
        // ones.
        let is_initial =
            || data.bytes().is_some_and(|bytes| ir::is_initial(bytes, ty.dtype.bytes() as usize));
        let is_doubtful = claim.is_none() || *claim == Some(Claim::Named) && is_initial();
        if row.finding.vector_uses > 1 && is_doubtful {
            let uses = row.finding.vector_uses;
            let warning = Diagnostic::new(format!(
                "{uses} uses share the initializer `{name}`: they are trained as tied parameters"
            ));
            cx.warn(warning.note(
                "the exporter may have merged equal tensors: --untied gives each use its own parameter",
            ));
        }
    }
}
