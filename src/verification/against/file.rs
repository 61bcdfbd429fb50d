//! The file of `--against`: numbers that another program computed, sorted by the meaning of their keys.

use crate::verification::execute::Tensors;
use data::Table;
use ir::{DType, Diagnostic, Module, Tensor, Type};
use std::path::Path;

/// The numbers of another program.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Numbers {
    /// `input.NAME`, and `labels` under the name of the program's labels.
    pub inputs: Tensors,
    /// Whether labels are among them.
    pub labels: bool,
    /// `output.NAME`, or the bare name of an output; `loss`.
    pub outputs: Tensors,
    /// `param.NAME`: before the step.
    pub parameters: Tensors,
    /// `grad.NAME`.
    pub gradients: Tensors,
    /// The keys without a meaning.
    pub unknown: Vec<String>,
}

impl Numbers {
    /// Reads an `.npz` or `.safetensors` file. `label` is the program's input of labels, if it has one.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub fn read(path: &Path, module: &Module, label: Option<&str>) -> Result<Self, Diagnostic> {
        let extension = path.extension().map(|extension| extension.to_string_lossy().to_lowercase());
        if !matches!(extension.as_deref(), Some("npz" | "safetensors")) {
            return Err(Diagnostic::new(format!(
                "--against {}: the file is not an .npz file",
                path.display()
            ))
            .note("keys are input.NAME, labels, output.NAME, param.NAME, grad.NAME"));
        }
        let told = |error| Diagnostic::new(format!("--against: {error}"));
        let table = Table::open(path).map_err(told)?;
        let mut numbers = Self::default();
        for key in table.keys() {
            let tensor = table
                .array(key)
                .map_err(told)?
                .and_then(|array| Tensor::from_bytes(&Type::of(array.dtype, &array.dims), &array.bytes));
            let unreadable =
                || Diagnostic::new(format!("--against {}: `{key}` cannot be read", path.display()));
            numbers.sort(key, tensor.ok_or_else(unreadable)?, module, label);
        }
        Ok(numbers)
    }

    /// Whether the numbers were computed in a type with fewer digits than f64.
    pub fn are_rounded(&self) -> bool {
        let computed = self.outputs.values().chain(self.gradients.values());
        computed.into_iter().any(|tensor| tensor.dtype != DType::F64)
    }

    /// Renames outputs that the file names by their position (`output.0`) to the names of the model's outputs.
    pub fn name_outputs(&mut self, model: &Module) {
        let named = std::mem::take(&mut self.outputs).into_iter().map(|(name, tensor)| {
            let position = name.parse::<usize>().ok().filter(|_| model.output(&name).is_none());
            let output = position.and_then(|position| model.outputs.get(position));
            (output.map_or(name, |output| output.name.clone()), tensor)
        });
        self.outputs = named.collect();
    }

    fn sort(&mut self, key: &str, tensor: Tensor, module: &Module, label: Option<&str>) {
        let is_output = |name: &str| module.output(name).is_some();
        if let Some(name) = key.strip_prefix("input.") {
            self.labels |= label == Some(name);
            self.inputs.insert(name.to_owned(), tensor);
        } else if key == "labels" || label == Some(key) {
            self.labels = true;
            self.inputs.insert(label.unwrap_or(key).to_owned(), tensor);
        } else if let Some(name) = key.strip_prefix("output.") {
            self.outputs.insert(name.to_owned(), tensor);
        } else if let Some(name) = key.strip_prefix("param.") {
            self.parameters.insert(name.to_owned(), tensor);
        } else if let Some(name) = key.strip_prefix("grad.") {
            self.gradients.insert(name.to_owned(), tensor);
        } else if is_output(key) || key == "loss" {
            self.outputs.insert(key.to_owned(), tensor);
        } else {
            self.unknown.push(key.to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_say_what_numbers_are() {
        let mut module = Module::new("m");
        let x = module.add_input("x", Type::of(DType::F32, &[2]), true);
        module.add_output("logits", x);
        let mut numbers = Numbers::default();
        for key in ["input.x", "labels", "logits", "output.cache", "param.w", "grad.w", "loss", "hidden"] {
            numbers.sort(key, Tensor::splat(DType::F32, vec![2], 1.0), &module, Some("targets"));
        }
        assert_eq!(numbers.inputs.keys().collect::<Vec<_>>(), ["targets", "x"]);
        assert_eq!(numbers.outputs.keys().collect::<Vec<_>>(), ["cache", "logits", "loss"]);
        assert_eq!(numbers.parameters.len() + numbers.gradients.len(), 2);
        assert!(numbers.labels);
        assert_eq!(numbers.unknown, ["hidden"]);
    }

    #[test]
    fn outputs_may_be_given_by_their_position() {
        let mut module = Module::new("m");
        let x = module.add_input("x", Type::of(DType::F32, &[2]), true);
        ["logits", "hidden"].iter().for_each(|name| module.add_output(*name, x));
        let mut numbers = Numbers::default();
        for name in ["1", "7", "loss"] {
            numbers.outputs.insert(name.into(), Tensor::splat(DType::F32, vec![2], 1.0));
        }
        numbers.name_outputs(&module);
        assert_eq!(numbers.outputs.keys().collect::<Vec<_>>(), ["7", "hidden", "loss"]);
    }
}
