//! Tensors of the model's file that hold several of the author's: the weights of a recurrent layer, in ONNX's order of gates.
//!
//! The file of `--against` has each of the author's tensors under its own name. So the author's tensors are compared. They are cut
//! out of the tensors of the model's file, as an export cuts them.

use super::matching::Ours;
use crate::verification::inputs::concatenate;
use ir::{Tensor, ViewStep};
use onnx::{StateDict, StateDictEntry, TensorPart};
use std::collections::{BTreeMap, BTreeSet};

/// A trained tensor and its gradient, `None` if it has none.
pub(super) type Trained = (Ours, Option<Tensor>);

/// The author's tensors that are parts of tensors of the file, each with the first such tensor.
pub(super) fn holders(state_dict: &StateDict) -> BTreeMap<String, String> {
    let held = parts(state_dict).map(|entry| (entry.name.clone(), entry.parts[0].tensor.clone()));
    held.collect()
}

fn parts(state_dict: &StateDict) -> impl Iterator<Item = &StateDictEntry> {
    let is_slice = |step: &ViewStep| matches!(step, ViewStep::Slice { .. });
    let is_cut = move |part: &TensorPart| part.view.iter().any(is_slice);
    state_dict.entries.iter().filter(move |entry| entry.parts.len() > 1 || entry.parts.iter().any(is_cut))
}

/// Replaces each tensor that packs several tensors of the author by these tensors.
pub(super) fn unpack(trained: Vec<Trained>, state_dict: &StateDict) -> Vec<Trained> {
    let found = parts(state_dict).filter_map(|entry| Some((entry, author_tensor(entry, &trained)?)));
    let found: Vec<(&StateDictEntry, Trained)> = found.collect();
    let packed: BTreeSet<&str> =
        found.iter().flat_map(|(entry, _)| &entry.parts).map(|part| &part.tensor[..]).collect();
    let is_whole = |(ours, _): &Trained| !packed.contains(&ours.names[0][..]);
    let whole: Vec<Trained> = trained.iter().filter(|trained| is_whole(trained)).cloned().collect();
    whole.into_iter().chain(found.into_iter().map(|(_, tensor)| tensor)).collect()
}

/// One of the author's tensors with its gradient. `None` if a part of it is not trained.
fn author_tensor(entry: &StateDictEntry, trained: &[Trained]) -> Option<Trained> {
    let mut parts = Vec::new();
    for part in &entry.parts {
        let (ours, gradient) = trained.iter().find(|(ours, _)| ours.names[0] == part.tensor)?;
        let value = ir::view::apply(&part.view, &ours.value)?;
        let gradient = match gradient {
            Some(gradient) => ir::view::apply(&part.view, gradient)?,
            None => Tensor::splat(value.dtype, value.sizes.clone(), 0.0),
        };
        parts.push((value, gradient));
    }
    let (values, gradients): (Vec<&Tensor>, Vec<&Tensor>) =
        parts.iter().map(|(value, gradient)| (value, gradient)).unzip();
    let ours = Ours { names: vec![entry.name.clone()], value: concatenate(&values) };
    Some((ours, Some(concatenate(&gradients))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ir::{DType, View};

    fn ours(name: &str, sizes: &[usize], elements: &[f64]) -> Ours {
        let value = Tensor::float(DType::F32, sizes.to_vec(), elements.to_vec());
        Ours { names: vec![name.to_owned()], value }
    }

    fn part(start: u64) -> TensorPart {
        let view = View::from_iter([ViewStep::Slice { dim: 0, start, length: 2 }]);
        TensorPart { tensor: "val_1".into(), view }
    }

    #[test]
    fn packed_tensors_are_compared_in_the_authors_layout() {
        let entry = |name: &str, parts| StateDictEntry { name: name.into(), parts };
        let entries = vec![
            entry("bias_ih", vec![part(2), part(0)]),
            entry("bias_hh", vec![part(4)]),
            StateDictEntry::whole("head", "head", View::new()),
        ];
        let state_dict = StateDict { entries, absent: vec![] };
        let packed = ours("val_1", &[6], &[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
        let gradient = Tensor {
            elements: ours("", &[6], &[10.0, 11.0, 12.0, 13.0, 14.0, 15.0]).value.elements,
            ..packed.value.clone()
        };
        let trained = vec![(packed, Some(gradient)), (ours("head", &[1], &[7.0]), None)];
        let found = unpack(trained, &state_dict);
        let names: Vec<&str> = found.iter().map(|(ours, _)| &ours.names[0][..]).collect();
        assert_eq!(names, ["head", "bias_ih", "bias_hh"]);
        assert_eq!(found[1].0.value.floats(), [2.0, 3.0, 0.0, 1.0]);
        let gradients: Vec<Option<&[f64]>> =
            found.iter().map(|(_, it)| it.as_ref().map(|it| it.floats())).collect();
        assert_eq!(gradients, [None, Some(&[12.0, 13.0, 10.0, 11.0][..]), Some(&[14.0, 15.0])]);
        assert_eq!(holders(&state_dict).get("bias_hh").map(String::as_str), Some("val_1"));
    }
}
