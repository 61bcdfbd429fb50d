//! Sharding rules as factors: which dims of operands and results are split together.
//!
//! A rule is one line, such as `"* m k+, * k n -> * m n"`: operands, then results, with one word for each dim.
//!
//! | word | meaning |
//! | --- | --- |
//! | `m` | a factor; the same word is the same factor |
//! | `k+`, `k max`, `k min` | a reduced factor: sharding it leaves a partial value of that kind |
//! | `(h k)` | a dim that merges factors, major first; a factor's size comes from a dim where it is alone |
//! | `k^` | a factor that cannot be split |
//! | `k~` | a factor that the operator's own partition rule splits |
//! | `*`, `*+` | all remaining dims, aligned at the last one over operands and results; `*+`: each reduced by sum |
//! | `1` | a dim of size one that belongs to no factor |
//! | `.` | a scalar |
//!
//! Results that contain a reduced factor are split along it; results that lack it become partial.
//!
//! The idea is Shardy's (OpShardingRule). The names of factors have no meaning outside of their rule.

use crate::{AxisId, Dim, Mesh, PartialKind, Signature, Type};
use smallvec::SmallVec;

/// Index of a factor in [`Factors::factors`].
pub type FactorId = u32;

/// The factors of one dim, major first. Empty for a dim of size one that only stretches.
pub type DimFactors = SmallVec<[FactorId; 1]>;

/// The axes that split a factor, major first.
pub type FactorAxes = SmallVec<[AxisId; 1]>;

/// The factors of a dim, each with the axes that split it.
pub type Splits = SmallVec<[(FactorId, FactorAxes); 2]>;

/// The sharding rule of one operation on given types.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Factors {
    /// The factors.
    pub factors: Vec<Factor>,
    /// For each operand, for each dim, its factors.
    pub operands: Vec<Vec<DimFactors>>,
    /// For each result, for each dim, its factors.
    pub results: Vec<Vec<DimFactors>>,
    /// Sets of operands in which the operation is (jointly) linear, so that partial sums pass through.
    pub linear: Vec<SmallVec<[u32; 2]>>,
    /// Whether the operation maps zeros to zeros: see [`Factors::keeps_zeros_along`].
    pub zeros: bool,
}

/// A factor: an iteration dimension of the operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Factor {
    /// The number of steps of the iteration.
    pub size: Dim,
    /// The effect of splitting the factor.
    pub kind: FactorKind,
}

/// The effect of splitting a factor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FactorKind {
    /// Operands and results are split alike.
    Free,
    /// The result is a partial value of this kind.
    Reduced(PartialKind),
    /// The factor cannot be split.
    Whole,
    /// The operator's own partition rule is needed.
    Custom,
}

impl Factors {
    /// Parses the rule `line` for these types. Panics when rule and types disagree: `infer` has accepted the types, so that would
    /// be a bug in the operator's file, which the conformance test would find.
    pub fn rule(line: &str, signature: &Signature) -> Self {
        let (operands, results) = line.split_once("->").expect("a rule has an arrow");
        let mut parser = RuleParser::default();
        let operands = parser.side(operands, &signature.operands);
        let results = parser.side(results, &signature.results);
        parser.finish(operands, results, signature)
    }

    /// Returns the rule of an elementwise operation with broadcasting: `"*, * -> *"`, with a `*` for each tensor.
    pub fn elementwise(signature: &Signature) -> Self {
        let mut parser = RuleParser::default();
        let mut side = |types: &[Type]| types.iter().map(|ty| parser.tensor("*", ty)).collect();
        let (operands, results) = (side(&signature.operands), side(&signature.results));
        parser.finish(operands, results, signature)
    }

    /// Returns the rule of an operation without operands whose result may be split along any dim.
    pub fn source(signature: &Signature) -> Self {
        Self::elementwise(signature)
    }

    /// Declares that the operation is linear in these operands together.
    pub fn linear_in(mut self, operands: &[u32]) -> Self {
        self.linear.push(SmallVec::from_slice(operands));
        self
    }

    /// Declares that the operation maps zeros to zeros, so that dims may be padded with zeros.
    pub fn keeping_zeros(mut self) -> Self {
        self.zeros = true;
        self
    }

    /// Whether a factor may be extended at its end by steps for which every operand that has the factor is zero. Then the results
    /// that have it are zero there too, and all other numbers stay the same.
    pub fn keeps_zeros_along(&self, factor: FactorId) -> bool {
        let has = |operand: usize| self.operands[operand].iter().any(|dim| dim.contains(&factor));
        let all = (0..self.operands.len()).all(|operand| has(operand) || self.operands[operand].is_empty());
        let linear = |set: &SmallVec<[u32; 2]>| set.iter().all(|&operand| has(operand as usize));
        self.zeros && (all || self.linear.iter().any(linear))
    }

    /// Distributes the axes that split a dim over the dim's factors, major first. `Err` has the first axis that fits on no factor,
    /// because the parts would not be contiguous, or because the axis does not divide the factor.
    pub fn spread(&self, mesh: &Mesh, dim: &[FactorId], axes: &[AxisId]) -> Result<Splits, AxisId> {
        let mut rest = axes.iter().copied().filter(|&axis| mesh.axes[axis].size > 1).peekable();
        let mut splits = Splits::new();
        let mut open = true;
        for &factor in dim {
            let mut left = self.factors[factor as usize].size.size().unwrap_or(1);
            let mut own = FactorAxes::new();
            while let Some(axis) =
                rest.next_if(|&axis| open && left > 1 && left.is_multiple_of(mesh.axes[axis].size))
            {
                left /= mesh.axes[axis].size;
                own.push(axis);
            }
            // A factor that is not fully split leaves no contiguous parts for the next factor.
            open = open && left == 1;
            splits.push((factor, own));
        }
        rest.next().map_or(Ok(splits), Err)
    }

    /// Returns the axes that split a dim if its factors are split by `splits`: the longest list that [`Factors::spread`] maps
    /// back.
    pub fn merge(
        &self,
        mesh: &Mesh,
        dim: &[FactorId],
        splits: impl Fn(FactorId) -> FactorAxes,
    ) -> FactorAxes {
        let mut axes = FactorAxes::new();
        for &factor in dim {
            let own = splits(factor);
            let size = self.factors[factor as usize].size.size().unwrap_or(1);
            axes.extend_from_slice(&own);
            if mesh.size(&own) != size {
                break;
            }
        }
        axes
    }

    /// Marks every factor as one that cannot be split.
    pub fn whole(mut self) -> Self {
        self.factors.iter_mut().for_each(|factor| factor.kind = FactorKind::Whole);
        self
    }
}

/// The name of a factor in a rule.
#[derive(Clone, Copy, PartialEq)]
enum Name<'a> {
    Word(&'a str),
    /// The dim of a `*`, counted from the right.
    Star(usize),
}

/// A word of a rule: the factor names of one dim with their kinds.
type Word<'a> = SmallVec<[(Name<'a>, FactorKind); 1]>;

#[derive(Default)]
struct RuleParser<'a> {
    /// The name of each factor. There are few, so they are searched one by one.
    names: SmallVec<[Name<'a>; 8]>,
    kinds: SmallVec<[FactorKind; 8]>,
}

impl<'a> RuleParser<'a> {
    /// Parses the words of every tensor on one side, with `*` expanded.
    fn side(&mut self, text: &'a str, types: &[Type]) -> Vec<Vec<DimFactors>> {
        let count = if types.is_empty() { 0 } else { text.split(',').count() };
        assert_eq!(count, types.len(), "rule side `{text}` has the wrong number of tensors");
        text.split(',').zip(types).map(|(text, ty)| self.tensor(text, ty)).collect()
    }

    fn tensor(&mut self, text: &'a str, ty: &Type) -> Vec<DimFactors> {
        let words = split_words(text);
        let star = |word: &str| match word {
            "*" => Some(FactorKind::Free),
            "*+" => Some(FactorKind::Reduced(PartialKind::Sum)),
            _ => None,
        };
        let fixed = words.iter().filter(|word| star(word).is_none()).count();
        let stars = ty.ndim().checked_sub(fixed).expect("the rule has more words than the tensor dims");
        let mut dims = Vec::with_capacity(ty.ndim());
        for word in words {
            if let Some(kind) = star(word) {
                // Aligned at the last dim: the i-th dim from the right has the same factor in all tensors.
                dims.extend(
                    (0..stars).rev().map(|i| DimFactors::from_elem(self.factor(Name::Star(i), kind), 1)),
                );
            } else {
                dims.push(parse_word(word).into_iter().map(|(name, kind)| self.factor(name, kind)).collect());
            }
        }
        assert_eq!(dims.len(), ty.ndim(), "rule `{text}` does not have a word for every dim of {ty}");
        dims
    }

    /// Returns the factor of this name. A kind that one of its places has holds for all.
    fn factor(&mut self, name: Name<'a>, kind: FactorKind) -> FactorId {
        let known = self.names.iter().position(|known| *known == name);
        let id = known.unwrap_or(self.names.len());
        if known.is_none() {
            self.names.push(name);
            self.kinds.push(kind);
        } else if kind != FactorKind::Free {
            self.kinds[id] = kind;
        }
        id as FactorId
    }

    fn finish(
        self,
        mut operands: Vec<Vec<DimFactors>>,
        mut results: Vec<Vec<DimFactors>>,
        signature: &Signature,
    ) -> Factors {
        let mut sizes: Vec<Option<Dim>> = vec![None; self.kinds.len()];
        let tensors = || {
            let operands = operands.iter().zip(&signature.operands);
            operands.chain(results.iter().zip(&signature.results))
        };
        let dims = || tensors().flat_map(|(dims, ty)| dims.iter().zip(&ty.dims));
        for (factors, size) in dims() {
            if let [factor] = factors[..] {
                let known = &mut sizes[factor as usize];
                if known.is_none() || known.as_ref().is_some_and(Dim::is_one) {
                    *known = Some(size.clone());
                }
            }
        }
        // A merged dim may have one factor that is nowhere alone. Its size is the quotient of the dim and the other factors.
        for (factors, size) in dims() {
            let unknown: Vec<_> = factors.iter().filter(|&&f| sizes[f as usize].is_none()).copied().collect();
            if let [factor] = unknown[..] {
                let mut others = factors.iter().filter(|&&f| f != factor);
                let rest =
                    others.try_fold(size.clone(), |rest, &f| rest.quotient(sizes[f as usize].as_ref()?));
                sizes[factor as usize] = rest;
            }
        }
        let sizes: Vec<Dim> = sizes.into_iter().map(|size| size.unwrap_or_else(|| Dim::known(1))).collect();
        let factors: Vec<Factor> =
            sizes.into_iter().zip(&self.kinds).map(|(size, &kind)| Factor { size, kind }).collect();
        let stretch = |dims: &mut Vec<DimFactors>, ty: &Type| {
            for (dim, size) in dims.iter_mut().zip(&ty.dims) {
                if size.is_one() && dim.iter().any(|&f| !factors[f as usize].size.is_one()) {
                    dim.clear();
                }
            }
        };
        operands.iter_mut().zip(&signature.operands).for_each(|(dims, ty)| stretch(dims, ty));
        results.iter_mut().zip(&signature.results).for_each(|(dims, ty)| stretch(dims, ty));
        Factors { factors, operands, results, linear: Vec::new(), zeros: false }
    }
}

/// Splits `"b (h k) m max"` into `["b", "(h k)", "m max"]`.
fn split_words(text: &str) -> SmallVec<[&str; 8]> {
    let mut words = SmallVec::new();
    let mut rest = text.trim();
    while !rest.is_empty() {
        let inner = if rest.starts_with('(') { rest.find(')').unwrap_or(0) } else { 0 };
        let mut end = rest[inner..].find(' ').map_or(rest.len(), |at| inner + at);
        if [" max", " min"].into_iter().any(|kind| rest[end..].starts_with(kind)) {
            end += " max".len();
        }
        let (word, behind) = rest.split_at(end);
        if word != "." {
            words.push(word);
        }
        rest = behind.trim_start();
    }
    words
}

fn parse_word(word: &str) -> Word<'_> {
    if word == "1" {
        return Word::new();
    }
    if let Some(inner) = word.strip_prefix('(').and_then(|rest| rest.strip_suffix(')')) {
        return inner.split_whitespace().flat_map(parse_word).collect();
    }
    let suffixes = [
        ("+", FactorKind::Reduced(PartialKind::Sum)),
        (" max", FactorKind::Reduced(PartialKind::Max)),
        (" min", FactorKind::Reduced(PartialKind::Min)),
        ("^", FactorKind::Whole),
        ("~", FactorKind::Custom),
    ];
    let found = suffixes.into_iter().find_map(|(suffix, kind)| Some((word.strip_suffix(suffix)?, kind)));
    let (name, kind) = found.unwrap_or((word, FactorKind::Free));
    Word::from_iter([(Name::Word(name), kind)])
}
