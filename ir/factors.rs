//! Sharding rules as factors: which dims of operands and results move together.
//!
//! A rule is one line, such as `"* m k+, * k n -> * m n"`: operands, then results, a word a dim.
//!
//! | word | meaning |
//! | --- | --- |
//! | `m` | a factor; the same word is the same factor |
//! | `k+`, `k max`, `k min` | a reduced factor: sharding it leaves a partial value of that kind |
//! | `(h k)` | a dim that merges factors, major first; sizes come from where they stand alone |
//! | `k^` | a factor that cannot be split |
//! | `k~` | a factor that the operator's own partition rule splits |
//! | `*`, `*+` | all remaining dims, aligned at the last one over operands and results; `*+`: each reduced by sum |
//! | `1` | a dim of size one that belongs to no factor |
//! | `.` | a scalar |
//!
//! Results that have a reduced factor are split along it; those that lack it become partial.
//!
//! The idea is Shardy's (OpShardingRule); the names of factors mean nothing outside the line.

use crate::{AxisId, Dim, Mesh, PartialKind, Signature, Type};
use smallvec::SmallVec;
use std::collections::BTreeMap;

/// Index of a factor in [`Factors::factors`].
pub type FactorId = u32;

/// The factors of one dim, major first; none for a dim of size one that only stretches.
pub type DimFactors = SmallVec<[FactorId; 1]>;

/// The axes that split a factor, major first.
pub type FactorAxes = SmallVec<[AxisId; 1]>;

/// The factors of a dim with the axes that split each.
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
    /// Sets of operands in which the operation is linear (jointly), so that a partial sum passes through.
    pub linear: Vec<SmallVec<[u32; 2]>>,
    /// Whether it leaves zeros zeros: see [`Factors::keeps_zeros_along`].
    pub zeros: bool,
}

/// A factor: an iteration dimension of the operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Factor {
    /// How many steps it has.
    pub size: Dim,
    /// What splitting it does.
    pub kind: FactorKind,
}

/// What splitting a factor does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FactorKind {
    /// Splits operands and results alike.
    Free,
    /// Leaves a partial value of this kind.
    Reduced(PartialKind),
    /// Not possible.
    Whole,
    /// Needs the operator's own partition rule.
    Custom,
}

impl Factors {
    /// The rule of that line for these types. Panics when line and types disagree: `infer` has accepted the types,
    /// so that would be a bug in the operator's file, which the conformance test runs.
    pub fn rule(line: &str, signature: &Signature) -> Self {
        let (operands, results) = line.split_once("->").expect("a rule has an arrow");
        let mut parser = RuleParser::default();
        let operands = parser.side(operands, &signature.operands);
        let results = parser.side(results, &signature.results);
        parser.finish(operands, results, signature)
    }

    /// The rule of an elementwise operation with broadcasting.
    pub fn elementwise(signature: &Signature) -> Self {
        let side = |count: usize| vec!["*"; count].join(", ");
        let line = format!("{} -> {}", side(signature.operands.len()), side(signature.results.len()));
        Self::rule(&line, signature)
    }

    /// The rule of an operation without operands whose result may be split anywhere.
    pub fn source(signature: &Signature) -> Self {
        Self::rule(" -> *", signature)
    }

    /// Says that the operation is linear in these operands together.
    pub fn linear_in(mut self, operands: &[u32]) -> Self {
        self.linear.push(SmallVec::from_slice(operands));
        self
    }

    /// Says that the operation leaves zeros zeros, so that dims may be padded with them.
    pub fn keeping_zeros(mut self) -> Self {
        self.zeros = true;
        self
    }

    /// Whether a factor may have more steps, at its end, in which every operand that has it is zero: then the results
    /// that have it are zero there too, and everything else is as it was.
    pub fn keeps_zeros_along(&self, factor: FactorId) -> bool {
        let has = |operand: usize| self.operands[operand].iter().any(|dim| dim.contains(&factor));
        let all = (0..self.operands.len()).all(|operand| has(operand) || self.operands[operand].is_empty());
        let linear = |set: &SmallVec<[u32; 2]>| set.iter().all(|&operand| has(operand as usize));
        self.zeros && (all || self.linear.iter().any(linear))
    }

    /// Spreads the axes that split a dim over the dim's factors, major first. `Err` has the first axis that finds no
    /// place: the parts would not be contiguous, or a factor does not divide.
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
            // A factor that is not used up leaves nothing contiguous for the next.
            open = open && left == 1;
            splits.push((factor, own));
        }
        rest.next().map_or(Ok(splits), Err)
    }

    /// The axes of a dim whose factors are split so, as far as [`Factors::spread`] would give them back.
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

/// A word of a rule: the factor names of one dim with their kinds.
type Word = SmallVec<[(String, FactorKind); 1]>;

#[derive(Default)]
struct RuleParser {
    names: BTreeMap<String, FactorId>,
    kinds: Vec<FactorKind>,
}

impl RuleParser {
    /// Words of every tensor on one side, `*` expanded.
    fn side(&mut self, text: &str, types: &[Type]) -> Vec<Vec<DimFactors>> {
        let texts: Vec<&str> = if types.is_empty() { vec![] } else { text.split(',').collect() };
        assert_eq!(texts.len(), types.len(), "rule side `{text}` has the wrong number of tensors");
        texts.into_iter().zip(types).map(|(text, ty)| self.tensor(text, ty)).collect()
    }

    fn tensor(&mut self, text: &str, ty: &Type) -> Vec<DimFactors> {
        let words = split_words(text);
        let star = |word: &str| match word {
            "*" => Some(FactorKind::Free),
            "*+" => Some(FactorKind::Reduced(PartialKind::Sum)),
            _ => None,
        };
        let fixed = words.iter().filter(|word| star(word).is_none()).count();
        let stars = ty.ndim().checked_sub(fixed).expect("the rule has more words than the tensor dims");
        let mut dims = Vec::new();
        for word in &words {
            if let Some(kind) = star(word) {
                // Aligned at the last dim: the i-th from the right is the same factor everywhere.
                (0..stars).rev().for_each(|i| dims.push(self.word(&[(format!("*{i}"), kind)])));
            } else {
                dims.push(self.word(&parse_word(word)));
            }
        }
        assert_eq!(dims.len(), ty.ndim(), "rule `{text}` does not have a word for every dim of {ty}");
        dims
    }

    fn word(&mut self, word: &[(String, FactorKind)]) -> DimFactors {
        word.iter()
            .map(|(name, kind)| {
                let next = self.kinds.len() as FactorId;
                let id = *self.names.entry(name.clone()).or_insert(next);
                if id == next {
                    self.kinds.push(*kind);
                } else if *kind != FactorKind::Free {
                    self.kinds[id as usize] = *kind;
                }
                id
            })
            .collect()
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
        // A merged dim may hold one factor that stands alone nowhere: it has what the others leave.
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
fn split_words(text: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let mut open = false;
    for piece in text.split_whitespace().filter(|piece| *piece != ".") {
        match words.last_mut() {
            Some(last) if open || piece == "max" || piece == "min" => {
                last.push(' ');
                last.push_str(piece);
            }
            _ => words.push(piece.to_string()),
        }
        open = (open || piece.starts_with('(')) && !piece.ends_with(')');
    }
    words
}

fn parse_word(word: &str) -> Word {
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
    Word::from_iter([(name.to_string(), kind)])
}
