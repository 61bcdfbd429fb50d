//! Compress activations: keeps them in fewer bytes until backward (Jain et al., Gist: Efficient Data Encoding for Deep Neural Network
//! Training, ISCA 2018).
//!
//! Lossless forms: `masks` keeps one bit for each element of a mask, and of an activation that backward only compares, such as the
//! operand of a ReLU. `indices` keeps the place of the largest element of each window instead of the operand of a max pooling. The lossy
//! form `dtype` keeps f32 activations in a narrower type. Dropout needs no form: backward draws its numbers again.
//!
//! Invariants: without `dtype`, all values have the same bits as before. Nodes of forward keep their operands; only nodes of backward
//! read the restored activations. Statistics that backward reads, such as the logarithms of a softmax's sums, are never rounded.

mod masks;
mod narrow;
mod pools;
#[cfg(test)]
mod tests;

use crate::arguments::Options;
use crate::pass::{PassContext, Transform};
use crate::reports::CompressedActivationsReport;
use crate::rewriting::dead::remove_dead;
use crate::rewriting::kept;
use ir::{Builder, Changed, DType, Diagnostic, Level, Module, Node, NodeId, Op, TypeError, ValueId};
use masks::{Bits, Test};
use narrow::Narrow;
use std::collections::{BTreeMap, BTreeSet};

/// The pass `compress_activations`. `compress_activations(masks, indices, dtype=bf16, least=1024)`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompressActivations {
    /// Whether masks, and activations that backward only compares, are kept as bits.
    pub masks: bool,
    /// Whether max pooling keeps the places of largest elements instead of its operands.
    pub indices: bool,
    /// The type in which f32 activations are kept: bf16 or f16. `None` keeps f32.
    pub dtype: Option<DType>,
    /// The fewest bytes, on each device, of an activation that is compressed.
    pub least: u64,
}

impl CompressActivations {
    /// All lossless forms.
    pub const LOSSLESS: Self = Self { masks: true, indices: true, dtype: None, least: 16 << 10 };
}

impl Default for CompressActivations {
    fn default() -> Self {
        Self { masks: false, indices: false, dtype: None, least: 16 << 10 }
    }
}

impl Transform for CompressActivations {
    const NAME: &'static str = "compress_activations";
    const NEEDED: bool = false;

    fn options(&mut self, options: &mut Options) {
        options.flag("masks", &mut self.masks);
        options.flag("indices", &mut self.indices);
        options.optional("dtype", &mut self.dtype, |text| match text {
            "bf16" => Ok(DType::BF16),
            "f16" => Ok(DType::F16),
            other => Err(format!("`{other}` is not a value of `dtype`, which is bf16 or f16")),
        });
        options.value("least", &mut self.least, Self::default().least);
    }

    fn run(&self, module: &mut Module, cx: &mut PassContext) -> Result<Changed, Diagnostic> {
        if module.level < Level::Training {
            let error = Diagnostic::new("activations wait for backward only in a program that has one");
            return Err(error.note("run `compress_activations` after `optimizer`"));
        }
        let kept_before = kept_bytes(module);
        let lossless = decide(module, self);
        let mut changed = apply(module, &lossless)?;
        let rounded = self.dtype.map(|dtype| decide_rounded(module, dtype, self.least));
        if let Some(rounded) = &rounded {
            changed = changed.or(apply_rounded(module, rounded)?);
        }
        cx.reports.compressed_activations = Some(CompressedActivationsReport {
            kept_before,
            kept: kept_bytes(module),
            masks: lossless.bits() as u64,
            outputs: lossless.outputs() as u64,
            indices: lossless.searches.len() as u64,
            dtype: self.dtype,
            rounded: rounded.map_or(0, |rounded| rounded.values.len() as u64),
            // Half of the distance of neighbours, of 8 and 11 significant bits.
            relative_error: self.dtype.map(|dtype| 2f64.powi(if dtype == DType::BF16 { -8 } else { -11 })),
        });
        Ok(changed)
    }
}

/// Returns the activations that wait for backward and take memory of a step.
fn activations(module: &Module) -> Vec<ValueId> {
    let is_constant = |value: &ValueId| {
        let maker = module.producer(*value).map(|node| &node.op);
        matches!(maker, Some(Op::Constant(_) | Op::Iota(_) | Op::Splat(_)))
    };
    kept::activations(module).into_iter().filter(|value| !is_constant(value)).collect()
}

/// Returns the bytes, on each device, of a microbatch's activations that wait for backward.
pub fn kept_bytes(module: &Module) -> u64 {
    let activations = activations(module).into_iter();
    let bytes = activations.filter_map(|value| module.ty(value).local_bytes(&module.mesh));
    bytes.fold(0, u64::saturating_add)
}

/// The activations that are kept in a lossless form.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    /// Gradients of max pooling, which search for the largest elements again.
    searches: Vec<NodeId>,
    /// Nodes of backward that only compare activations.
    tests: Vec<Test>,
    /// Bools that are kept as bits.
    masks: Vec<ValueId>,
}

impl Decision {
    /// Whether every activation stays as it is.
    pub fn is_empty(&self) -> bool {
        self.searches.is_empty() && self.tests.is_empty() && self.masks.is_empty()
    }

    /// Returns the number of activations that are kept as bits.
    fn bits(&self) -> usize {
        self.masks.len() + self.tests.iter().filter(|test| test.output.is_none()).count()
    }

    /// Returns the number of tests that read another activation, which is kept anyway.
    fn outputs(&self) -> usize {
        self.tests.iter().filter(|test| test.output.is_some()).count()
    }
}

/// Nodes of backward that may read another form, and the activations that all other nodes of backward read.
struct Candidates {
    searches: Vec<NodeId>,
    tests: Vec<NodeId>,
    kept: BTreeSet<ValueId>,
    /// The results of the ReLUs of forward, by their operands.
    relus: BTreeMap<ValueId, Vec<ValueId>>,
}

impl Candidates {
    fn of(module: &Module, options: &CompressActivations) -> Self {
        let nodes = |is_asked: bool, is_one: fn(&Module, &Node) -> bool| {
            let all = module.nodes().filter(move |(_, node)| is_asked && is_one(module, node));
            all.map(|(id, _)| id).collect()
        };
        let (searches, tests) =
            (nodes(options.indices, pools::is_search), nodes(options.masks, masks::is_test));
        let mut candidates = Self { searches, tests, kept: BTreeSet::new(), relus: masks::relus(module) };
        // An activation that another node reads is kept in any case. A candidate that reads another form of it frees nothing.
        loop {
            candidates.kept = candidates.read_by_others(module);
            let is_freed =
                |id: &NodeId| pools::is_freed(module, module.node(*id), &candidates, options.least);
            let searches: Vec<_> = candidates.searches.iter().copied().filter(is_freed).collect();
            let is_freed =
                |id: &NodeId| masks::is_freed(module, module.node(*id), &candidates, options.least);
            let tests: Vec<_> = candidates.tests.iter().copied().filter(is_freed).collect();
            if (searches.len(), tests.len()) == (candidates.searches.len(), candidates.tests.len()) {
                return candidates;
            }
            (candidates.searches, candidates.tests) = (searches, tests);
        }
    }

    /// Returns the activations that nodes of backward read in any case.
    fn read_by_others(&self, module: &Module) -> BTreeSet<ValueId> {
        let candidates: BTreeSet<NodeId> = self.searches.iter().chain(&self.tests).copied().collect();
        let mut read = BTreeSet::new();
        for (id, node) in module.nodes().filter(|(_, node)| node.phase.is_gradient()) {
            let spared = match node.op {
                _ if !candidates.contains(&id) => 0,
                Op::MaxPoolGrad(_) => 1,
                _ => masks::tested(node).len(),
            };
            let operands = node.operands[spared..].iter();
            read.extend(operands.filter_map(|&operand| kept::behind_views(module, operand)));
        }
        read
    }
}

/// Chooses the activations that are kept in a lossless form.
pub fn decide(module: &Module, options: &CompressActivations) -> Decision {
    let candidates = Candidates::of(module, options);
    let tests = candidates.tests.iter().map(|&node| masks::test(module, node, &candidates)).collect();
    let masks =
        if options.masks { masks::bools(module, &activations(module), options.least) } else { vec![] };
    Decision { searches: candidates.searches, tests, masks }
}

/// Keeps activations in their lossless forms.
pub fn apply(module: &mut Module, decision: &Decision) -> Result<Changed, Diagnostic> {
    let mut b = Builder::new(module, CompressActivations::NAME);
    pools::find_in_forward(&mut b, &decision.searches).map_err(ill_typed)?;
    let compared = masks::compare_in_forward(&mut b, &decision.tests).map_err(ill_typed)?;
    let changed = b.finish();
    let mut b = Builder::new(module, CompressActivations::NAME);
    let masks: Vec<ValueId> = decision.masks.iter().copied().chain(compared).collect();
    kept::keep(&mut b, &masks, &Bits).map_err(ill_typed)?;
    let packed = b.finish();
    Ok(changed.or(packed).or(remove_dead(module, CompressActivations::NAME)))
}

/// The activations that are kept in a narrower type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rounded {
    /// The narrower type.
    pub dtype: DType,
    /// The activations to round.
    pub values: Vec<ValueId>,
}

/// Chooses the activations that are kept in a narrower type.
pub fn decide_rounded(module: &Module, dtype: DType, least: u64) -> Rounded {
    Rounded { dtype, values: narrow::choose(module, &activations(module), least) }
}

/// Keeps activations in a narrower type.
pub fn apply_rounded(module: &mut Module, rounded: &Rounded) -> Result<Changed, Diagnostic> {
    let mut b = Builder::new(module, CompressActivations::NAME);
    kept::keep(&mut b, &rounded.values, &Narrow { to: rounded.dtype }).map_err(ill_typed)?;
    Ok(b.finish())
}

fn ill_typed(error: TypeError) -> Diagnostic {
    Diagnostic::new(format!("compress_activations built an ill-typed node: {error}"))
}
