//! The places of a program's states in the tensors of the model's file. By these, programs that cut the same tensors differently are compared.

use super::execute::Tensors;
use ir::tensor::Elements;
use ir::{Diagnostic, Initializer, Module, Role, State, Tensor, View};
use passes::reports::{ParameterReport, RowRole};
use std::collections::BTreeMap;

/// The trained tensors of a file, and the states that hold them.
#[derive(Clone, Debug, PartialEq)]
pub struct Layout {
    /// The tensors, in the order of the file.
    pub tensors: Vec<FileTensor>,
}

/// A trained tensor of the file.
#[derive(Clone, Debug, PartialEq)]
pub struct FileTensor {
    /// Its name in the file.
    pub name: String,
    /// Its sizes in the file.
    pub sizes: Vec<usize>,
    /// The states that hold it.
    pub parts: Vec<StatePart>,
}

/// A state that is a part of a tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct StatePart {
    /// The state's name.
    pub state: String,
    /// The views from the tensor to the state, without padding. There are several if the file repeats the elements of the state, for each
    /// sample of a batch that an exporter wrote into the file. The program reads the first.
    pub views: Vec<View>,
    /// The zeros at the ends of the state's dims, so that the dims divide over devices. Reported gradients have no padding.
    pub padding: View,
}

impl Layout {
    /// The layout of the states of a compiled program.
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
            let part =
                StatePart { padding: added.unwrap_or_default().into(), ..StatePart::whole(&state.name) };
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

    /// The layout of a reference: each tensor is whole in one state of its name.
    pub fn whole(&self) -> Self {
        let whole = |tensor: &FileTensor| FileTensor {
            parts: vec![StatePart::whole(&tensor.name)],
            ..tensor.clone()
        };
        Self { tensors: self.tensors.iter().map(whole).collect() }
    }
}

impl FileTensor {
    /// Whether a state of its name holds it.
    fn is_one_state(&self) -> bool {
        matches!(&self.parts[..], [part] if part.state == self.name)
    }

    /// Puts the values of the states together to the tensor. Elements without a state are zero. `None` if no state has a value.
    ///
    /// # Errors
    /// A value that does not fit.
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
    /// A state that is a whole tensor.
    fn whole(state: &str) -> Self {
        Self { state: state.to_owned(), views: vec![View::new()], padding: View::new() }
    }

    /// The view from the tensor to the state, padding included.
    fn padded(&self) -> View {
        self.views[0].iter().chain(&self.padding).cloned().collect()
    }

    /// Cuts the state's value, without padding, out of the tensor's value. `None` if it does not fit.
    pub fn cut(&self, whole: &Tensor) -> Option<Tensor> {
        ir::view::apply(&self.views[0], whole)
    }

    /// As [`Self::cut`], but with the padding if `sizes` are not those of the cut. The state of a program may be padded or not.
    pub fn cut_to(&self, sizes: &[usize], whole: &Tensor) -> Option<Tensor> {
        let cut = self.cut(whole)?;
        if cut.sizes == sizes { Some(cut) } else { ir::view::apply(&self.padding, &cut) }
    }

    /// Returns the gradient of the state, given the gradient of the tensor. An element of the state may be several elements of the tensor, whose
    /// gradients are added. `None` if it does not fit.
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
