//! Finds the tensors of another program among those of the model, by name or by value. A tensor may be the transpose or a slice of the other.

use ir::{Tensor, View, ViewStep};
use smallvec::smallvec;
use std::collections::BTreeSet;

/// A tensor of the model.
#[derive(Clone, Debug)]
pub struct Ours {
    /// Its names. The first is the name in the file.
    pub names: Vec<String>,
    /// Its value before the step.
    pub value: Tensor,
}

/// A tensor of the other program; it has a value, a gradient, or both.
#[derive(Clone, Debug)]
pub struct Theirs<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its sizes.
    pub sizes: &'a [usize],
    /// Its value before the step.
    pub value: Option<&'a Tensor>,
}

/// A tensor of the model found in the other program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The index of the model's tensor.
    pub ours: usize,
    /// The index of the other program's tensor.
    pub theirs: usize,
    /// The way in which it was found.
    pub by: By,
    /// The relation of the two layouts.
    pub lies: Relation,
}

/// The evidence that two tensors are the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// Their names are equal, or one name is the other with a prefix.
    Name,
    /// Their values before the step are equal.
    Value,
}

/// Two views that cut equal tensors out of ours and theirs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Relation {
    /// The view of the model's tensor.
    pub ours: View,
    /// The view of the other program's tensor.
    pub theirs: View,
}

impl Relation {
    /// The two tensors that should be equal. `None` when a view does not fit.
    pub fn cut(&self, ours: &Tensor, theirs: &Tensor) -> Option<(Tensor, Tensor)> {
        Some((ir::view::apply(&self.ours, ours)?, ir::view::apply(&self.theirs, theirs)?))
    }

    /// The relation in words. Empty if the layouts are equal.
    pub fn words(&self) -> String {
        let is_transposed = |view: &View| view.iter().any(|step| matches!(step, ViewStep::Transpose(_)));
        let slice = |view: &View| {
            view.iter().find_map(|step| match step {
                ViewStep::Slice { start, length, .. } => Some(format!("{start}..{}", start + length)),
                _ => None,
            })
        };
        // The transpose may be in the view of either side.
        let across = is_transposed(&self.ours) != is_transposed(&self.theirs);
        let of = |view: &View, whose: &str| {
            let dim = if is_transposed(view) { "columns" } else { "rows" };
            slice(view).map(|range| format!("{dim} {range} of {whose}"))
        };
        let mut words: Vec<String> = across.then(|| "transposed".to_owned()).into_iter().collect();
        words.extend(of(&self.theirs, "that there"));
        words.extend(of(&self.ours, "that here"));
        words.join(", ")
    }
}

/// Finds the tensors of the other program among those of the model: first by name, then by value among the remaining ones, if only one fits.
pub fn find(ours: &[Ours], theirs: &[Theirs]) -> Vec<Found> {
    let mut found = by_name(ours, theirs);
    let taken = |found: &[Found]| -> (BTreeSet<usize>, BTreeSet<usize>) {
        (found.iter().map(|found| found.ours).collect(), found.iter().map(|found| found.theirs).collect())
    };
    let (our_taken, their_taken) = taken(&found);
    let mut candidates: Vec<Found> = Vec::new();
    for (i, ours) in ours.iter().enumerate().filter(|(i, _)| !our_taken.contains(i)) {
        for (j, theirs) in theirs.iter().enumerate().filter(|(j, _)| !their_taken.contains(j)) {
            let lies = theirs.value.and_then(|value| by_value(&ours.value, value));
            candidates.extend(lies.map(|lies| Found { ours: i, theirs: j, by: By::Value, lies }));
        }
    }
    // Equal values prove nothing if several tensors have them: the weights of norms are all ones before training.
    let is_only = |one: &Found| {
        let rivals = |other: &&Found| {
            let same_theirs = other.theirs == one.theirs && other.lies.theirs == one.lies.theirs;
            let same_ours = other.ours == one.ours && other.lies.ours == one.lies.ours;
            same_theirs || same_ours
        };
        candidates.iter().filter(rivals).count() == 1
    };
    found.extend(candidates.iter().filter(|one| is_only(one)).cloned());
    found.sort_by_key(|found| found.theirs);
    found
}

fn by_name(ours: &[Ours], theirs: &[Theirs]) -> Vec<Found> {
    let mut found: Vec<Found> = Vec::new();
    for exact in [true, false] {
        for (j, theirs) in theirs.iter().enumerate() {
            let fits = |name: &String| {
                name == theirs.name || !exact && (is_end(name, theirs.name) || is_end(theirs.name, name))
            };
            let mut named = ours.iter().enumerate().filter(|(i, ours)| {
                ours.names.iter().any(fits) && found.iter().all(|found| found.ours != *i)
            });
            let (Some((i, ours)), None) = (named.next(), named.next()) else { continue };
            if found.iter().any(|found| found.theirs == j) {
                continue;
            }
            if let Some(lies) = how(&ours.value, theirs) {
                found.push(Found { ours: i, theirs: j, by: By::Name, lies });
            }
        }
    }
    found
}

/// Whether `end` is `.`-separated parts at the end of `name`, as `h.0.weight` is of `model.h.0.weight`.
fn is_end(end: &str, name: &str) -> bool {
    name.strip_suffix(end).is_some_and(|rest| rest.ends_with('.'))
}

/// The relation of two tensors of one name: by their values, or by their sizes if the values differ.
fn how(ours: &Tensor, theirs: &Theirs) -> Option<Relation> {
    if let Some(lies) = theirs.value.and_then(|value| by_value(ours, value)) {
        return Some(lies);
    }
    if ours.sizes == theirs.sizes {
        return Some(Relation::default());
    }
    let transposed = ours.sizes.len() == 2 && ours.sizes.iter().rev().eq(theirs.sizes);
    transposed.then(|| Relation { ours: View::new(), theirs: transpose() })
}

fn transpose() -> View {
    smallvec![ViewStep::Transpose(smallvec![1, 0])]
}

/// The relation of two tensors with equal values. One may be the transpose of the other, or a range of its rows or columns.
fn by_value(ours: &Tensor, theirs: &Tensor) -> Option<Relation> {
    if !ours.dtype.is_float() || !theirs.dtype.is_float() || ours.is_empty() || theirs.is_empty() {
        return None;
    }
    // A file may hold more digits than the model.
    let theirs = Tensor { dtype: ours.dtype, ..theirs.clone() }.rounded();
    let rows = range_of(ours, &theirs).or_else(|| {
        let swapped = range_of(&theirs, ours)?;
        Some(Relation { ours: swapped.theirs, theirs: swapped.ours })
    });
    rows.map(|relation| both_flat(relation, ours, &theirs))
}

/// Finds the elements of the smaller tensor as a range of the rows of the larger one. Each may be transposed.
fn range_of(small: &Tensor, large: &Tensor) -> Option<Relation> {
    if small.len() > large.len() {
        return None;
    }
    for (small_view, small) in orientations(small) {
        for (large_view, large) in orientations(large) {
            let Some(&rows) = large.sizes.first() else { continue };
            let width = large.len() / rows;
            if !small.len().is_multiple_of(width) {
                continue;
            }
            let length = small.len() / width;
            let values = large.floats();
            let at = |start: &usize| values[start * width..(start + length) * width] == *small.floats();
            if let Some(start) = (0..=rows - length).find(at) {
                let mut theirs = large_view.clone();
                if length < rows {
                    theirs.push(ViewStep::Slice { dim: 0, start: start as u64, length: length as u64 });
                }
                return Some(Relation { ours: small_view, theirs });
            }
        }
    }
    None
}

/// The tensor, and its transpose if it has two dims.
fn orientations(tensor: &Tensor) -> Vec<(View, Tensor)> {
    let mut all = vec![(View::new(), tensor.clone())];
    if tensor.sizes.len() == 2 {
        all.extend(ir::view::apply(&transpose(), tensor).map(|turned| (transpose(), turned)));
    }
    all
}

/// Flattens both cuts if they are equal in row-major order but have different sizes.
fn both_flat(mut relation: Relation, ours: &Tensor, theirs: &Tensor) -> Relation {
    if let Some((ours, theirs)) = relation.cut(ours, theirs)
        && ours.sizes != theirs.sizes
    {
        for view in [&mut relation.ours, &mut relation.theirs] {
            view.push(ViewStep::Reshape(smallvec![ours.len() as u64]));
        }
    }
    relation
}

#[cfg(test)]
mod tests {
    use super::*;
    use ir::DType;

    fn tensor(sizes: &[usize], first: usize) -> Tensor {
        let count = sizes.iter().product::<usize>();
        Tensor::float(DType::F32, sizes.to_vec(), (first..first + count).map(|i| (i * i) as f64).collect())
    }

    fn found(ours: &[(&str, &Tensor)], theirs: &[(&str, &Tensor)]) -> Vec<String> {
        let ours: Vec<Ours> = ours
            .iter()
            .map(|(name, value)| Ours { names: vec![(*name).into()], value: (*value).clone() })
            .collect();
        let theirs: Vec<Theirs> = theirs
            .iter()
            .map(|(name, value)| Theirs { name, sizes: &value.sizes, value: Some(value) })
            .collect();
        let words = |found: &Found| {
            let (ours, theirs) = (&ours[found.ours], &theirs[found.theirs]);
            let (cut, expected) = found.lies.cut(&ours.value, theirs.value.unwrap()).unwrap();
            assert_eq!(cut, expected, "{found:?}");
            format!("{} = {} {}", theirs.name, ours.names[0], found.lies.words()).trim_end().to_owned()
        };
        find(&ours, &theirs).iter().map(words).collect()
    }

    #[test]
    fn a_name_may_have_a_prefix_more() {
        let (a, b) = (tensor(&[2, 3], 0), tensor(&[2, 3], 9));
        assert_eq!(
            found(&[("h.0.w", &a), ("x.h.0.w", &b)], &[("m.x.h.0.w", &b), ("m.h.0.w", &a)]),
            ["m.x.h.0.w = x.h.0.w", "m.h.0.w = h.0.w"]
        );
    }

    #[test]
    fn values_are_found_transposed_and_in_slices() {
        let wide = tensor(&[4, 6], 3);
        let slice =
            |dim, start| ir::view::apply(&[ViewStep::Slice { dim, start, length: 2 }], &wide).unwrap();
        let turned = ir::view::apply(&transpose(), &wide).unwrap();
        assert_eq!(found(&[("a", &turned)], &[("b", &wide)]), ["b = a transposed"]);
        assert_eq!(found(&[("a", &wide)], &[("b", &turned)]), ["b = a transposed"]);
        let rows = slice(0, 1).reshaped(vec![1, 2, 6]);
        assert_eq!(found(&[("a", &rows)], &[("b", &wide)]), ["b = a rows 1..3 of that there"]);
        assert_eq!(
            found(&[("a", &wide)], &[("l", &slice(0, 0)), ("r", &slice(0, 2))]),
            ["l = a rows 0..2 of that here", "r = a rows 2..4 of that here"]
        );
        assert_eq!(found(&[("a", &slice(1, 4))], &[("b", &wide)]), ["b = a columns 4..6 of that there"]);
    }

    #[test]
    fn values_that_fit_several_tensors_prove_nothing() {
        let ones = Tensor::splat(DType::F32, vec![3], 1.0);
        assert!(found(&[("a", &ones), ("b", &ones)], &[("c", &ones), ("d", &ones)]).is_empty());
        assert_eq!(found(&[("a", &ones), ("b", &ones)], &[("x.a", &ones), ("d", &ones)]).len(), 2);
    }

    #[test]
    fn tensors_of_a_name_with_other_values_are_compared_as_they_lie() {
        let (a, b) = (tensor(&[2, 3], 0), tensor(&[3, 2], 50));
        let theirs = [Theirs { name: "m.w", sizes: &b.sizes, value: Some(&b) }];
        let ours = [Ours { names: vec!["w".into()], value: a }];
        let lies = Relation { ours: View::new(), theirs: transpose() };
        assert_eq!(find(&ours, &theirs), [Found { ours: 0, theirs: 0, by: By::Name, lies }]);
    }
}
