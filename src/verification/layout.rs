//! Where the states of a program lie in the tensors of the model's file: how programs that cut the same tensors
//! differently are compared.

use super::execute::Tensors;
use ir::tensor::Elements;
use ir::{Diagnostic, Initializer, Module, Role, State, Tensor, View};
use passes::reports::{ParameterReport, RowRole};
use std::collections::BTreeMap;

/// The trained tensors of a file, and the states that hold them.
#[derive(Clone, Debug, PartialEq)]
pub struct Layout {
    /// In the order of the file.
    pub tensors: Vec<FileTensor>,
}

/// A trained tensor of the file.
#[derive(Clone, Debug, PartialEq)]
pub struct FileTensor {
    /// Its name in the file.
    pub name: String,
    /// Its sizes there.
    pub sizes: Vec<usize>,
    /// The states it is made of.
    pub parts: Vec<StatePart>,
}

/// A state that is a part of a tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct StatePart {
    /// The state's name.
    pub state: String,
    /// From the tensor to the state: more than one where the file repeats what the state holds once (a batch that an
    /// exporter wrote in); the first is the one that the program reads. Without padding.
    pub views: Vec<View>,
    /// Zeros at the end of the state's dims, so that they divide over devices. Gradients are reported without.
    pub padding: View,
}

impl Layout {
    /// Where the states of a compiled program lie.
    pub fn of(reports: &[ParameterReport]) -> Self {
        let trained = reports
            .iter()
            .filter(|report| report.role == RowRole::Parameter && !report.frozen && report.tied.is_none());
        let tensor = |report: &ParameterReport| {
            let mut parts: Vec<StatePart> = Vec::new();
            for held in &report.states {
                let (padding, _) = ir::view::padding(&held.view, &[]);
                let view: View = held.view[..held.view.len() - padding.len()].into();
                match parts.iter_mut().find(|part| part.state == held.state) {
                    Some(part) => part.views.push(view),
                    None => {
                        let (state, padding) = (held.state.clone(), padding.into());
                        parts.push(StatePart { state, views: vec![view], padding });
                    }
                }
            }
            let sizes = report.ty.sizes().into_iter().flatten().map(|size| size as usize).collect();
            FileTensor { name: report.data.clone(), sizes, parts }
        };
        Self { tensors: trained.map(tensor).collect() }
    }

    /// The layout of a program whose states are those of its reference, and no tensors of a file: each state is a tensor of its own, as it
    /// is in `forward`, before states are padded.
    pub fn of_states(forward: &Module, program: &Module) -> Self {
        let views: BTreeMap<&str, &View> =
            program.states.values().map(|state| (state.name.as_str(), &state.view)).collect();
        let trained = forward.states.values().filter(|state| state.role == Role::Parameter);
        let tensor = |state: &State| {
            let added = views.get(state.name.as_str()).and_then(|view| view.strip_prefix(&state.view[..]));
            let part = StatePart {
                state: state.name.clone(),
                views: vec![View::new()],
                padding: added.unwrap_or_default().into(),
            };
            let sizes = state.ty.sizes().into_iter().flatten().map(|size| size as usize).collect();
            FileTensor { name: state.name.clone(), sizes, parts: vec![part] }
        };
        Self { tensors: trained.map(tensor).collect() }
    }

    /// The delays of trained states in an asynchronous schedule. A tensor whose parts lie in other states has a delay of 1 if one of its
    /// parts has a delay: its earlier version is made of versions of its parts, which may have different ages.
    pub fn delays(&self, module: &Module) -> Vec<(String, u32)> {
        let mut delays: BTreeMap<&str, u32> = BTreeMap::new();
        for state in module.states.values().filter(|state| state.role == Role::Version) {
            if let Initializer::CopyOf(newest) = state.initializer {
                *delays.entry(&module.states[newest].name).or_default() += 1;
            }
        }
        for tensor in &self.tensors {
            let is_delayed = tensor.parts.iter().any(|part| delays.contains_key(part.state.as_str()));
            if is_delayed && !tensor.is_one_state() {
                delays.insert(&tensor.name, 1);
            }
        }
        delays.into_iter().map(|(name, delay)| (name.to_owned(), delay)).collect()
    }

    /// The earlier versions of tensors whose parts lie in other states, by the name of the version; `read` has the value that each
    /// delayed state's readers read. Errors: as of [`FileTensor::assemble`].
    pub fn versions(
        &self,
        delays: &[(String, u32)],
        read: impl Fn(&str) -> Option<Tensor>,
    ) -> Result<Tensors, Diagnostic> {
        let mut versions = Tensors::new();
        for tensor in self.tensors.iter().filter(|tensor| !tensor.is_one_state()) {
            if !delays.iter().any(|(name, _)| *name == tensor.name) {
                continue;
            }
            let parts = tensor.parts.iter().filter_map(|part| Some((part.state.clone(), read(&part.state)?)));
            if let Some(whole) = tensor.assemble("", &parts.collect())? {
                versions.insert(passes::delay::version_name(&tensor.name, 1), whole);
            }
        }
        Ok(versions)
    }

    /// The same tensors, each whole in one state of its name: where the states of a reference lie.
    pub fn whole(&self) -> Self {
        let whole = |tensor: &FileTensor| {
            let parts = vec![StatePart {
                state: tensor.name.clone(),
                views: vec![View::new()],
                padding: View::new(),
            }];
            FileTensor { parts, ..tensor.clone() }
        };
        Self { tensors: self.tensors.iter().map(whole).collect() }
    }
}

impl FileTensor {
    /// Whether a state of its name holds it.
    fn is_one_state(&self) -> bool {
        matches!(&self.parts[..], [part] if part.state == self.name)
    }

    /// The tensor that the states' values make, zero where no state lies. Errors: a value that is missing or does not
    /// fit.
    pub fn assemble(&self, prefix: &str, values: &Tensors) -> Result<Option<Tensor>, Diagnostic> {
        let mut whole: Option<Tensor> = None;
        for part in &self.parts {
            let name = format!("{prefix}{}", part.state);
            let Some(value) = values.get(&name) else { continue };
            let whole = whole.get_or_insert_with(|| Tensor::splat(value.dtype, self.sizes.clone(), 0.0));
            let written = ir::view::write_back(&part.views[0], value, whole);
            written.or_else(|| ir::view::write_back(&part.padded(), value, whole)).ok_or_else(|| {
                Diagnostic::new(format!(
                    "`{name}` {} does not fit `{}` {:?}",
                    value.ty(),
                    self.name,
                    self.sizes
                ))
            })?;
        }
        Ok(whole)
    }
}

impl StatePart {
    /// The view from the tensor to the state, padding included.
    fn padded(&self) -> View {
        self.views[0].iter().chain(&self.padding).cloned().collect()
    }

    /// The part of a tensor's value that the state holds, without padding. `None` when it does not fit.
    pub fn cut(&self, whole: &Tensor) -> Option<Tensor> {
        ir::view::apply(&self.views[0], whole)
    }

    /// The same, with the padding if these are the sizes of the padded state: a pass may have padded it or not.
    pub fn cut_to(&self, sizes: &[usize], whole: &Tensor) -> Option<Tensor> {
        let cut = self.cut(whole)?;
        if cut.sizes == sizes { Some(cut) } else { ir::view::apply(&self.padding, &cut) }
    }

    /// The gradient in the state, given that in the tensor: one element of the state may be several of the tensor,
    /// whose gradients then add up. `None` when it does not fit.
    pub fn gradient(&self, whole: &Tensor) -> Option<Tensor> {
        let mut sum = self.cut(whole)?;
        for view in &self.views[1..] {
            let addend = ir::view::apply(view, whole)?;
            if let (Elements::Float(sum), Elements::Float(addend)) = (&mut sum.elements, &addend.elements) {
                sum.iter_mut().zip(addend).for_each(|(sum, addend)| *sum += addend);
            }
        }
        Some(sum)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ir::{DType, ViewStep};
    use smallvec::smallvec;

    fn rows(start: u64) -> View {
        smallvec![ViewStep::Slice { dim: 0, start, length: 1 }]
    }

    fn tensor(elements: &[f64]) -> Tensor {
        Tensor::float(DType::F32, vec![2, 2], elements.to_vec())
    }

    #[test]
    fn parts_are_put_together_where_they_lie() {
        let part = |state: &str, start| StatePart {
            state: state.into(),
            views: vec![rows(start)],
            padding: View::new(),
        };
        let parts = vec![part("upper", 0), part("lower", 1)];
        let file = FileTensor { name: "w".into(), sizes: vec![2, 2], parts };
        let row = |x| Tensor::float(DType::F32, vec![1, 2], vec![x, x]);
        let values = [("grad.upper".to_owned(), row(1.0)), ("grad.lower".to_owned(), row(2.0))].into();
        assert_eq!(file.assemble("grad.", &values).unwrap(), Some(tensor(&[1.0, 1.0, 2.0, 2.0])));
        assert_eq!(file.assemble("adam.", &values).unwrap(), None);
        let wrong = [("upper".to_owned(), tensor(&[0.0; 4]))].into();
        let error = file.assemble("", &wrong).unwrap_err();
        assert!(error.message.contains("`upper` f32[2, 2] does not fit `w` [2, 2]"), "{error}");
    }

    #[test]
    fn a_padded_state_is_compared_with_its_padding_and_its_gradient_without() {
        let padding = [ir::ViewStep::Pad { dim: 1, after: 1 }].into_iter().collect();
        let part = StatePart { state: "w".into(), views: vec![rows(0)], padding };
        let whole = tensor(&[1.0, 2.0, 10.0, 20.0]);
        assert_eq!(part.cut_to(&[1, 3], &whole).unwrap().floats(), [1.0, 2.0, 0.0]);
        assert_eq!(part.cut_to(&[1, 2], &whole).unwrap().floats(), [1.0, 2.0]);
        assert_eq!(part.gradient(&whole).unwrap().floats(), [1.0, 2.0]);
        let file = FileTensor { name: "w".into(), sizes: vec![2, 2], parts: vec![part] };
        for value in [vec![3.0, 4.0], vec![3.0, 4.0, 5.0]] {
            let value = Tensor::float(DType::F32, vec![1, value.len()], value);
            let assembled = file.assemble("", &[("w".to_owned(), value)].into()).unwrap().unwrap();
            assert_eq!(assembled.floats(), [3.0, 4.0, 0.0, 0.0]);
        }
    }

    #[test]
    fn gradients_of_what_the_file_repeats_add_up() {
        let part = StatePart { state: "w".into(), views: vec![rows(0), rows(1)], padding: View::new() };
        let whole = tensor(&[1.0, 2.0, 10.0, 20.0]);
        assert_eq!(part.cut(&whole).unwrap().floats(), [1.0, 2.0]);
        assert_eq!(part.gradient(&whole).unwrap().floats(), [11.0, 22.0]);
    }
}
