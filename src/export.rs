//! Export: writes trained values into the model's file, and into a file of weights alone.
//!
//! `model.onnx` is the graph that was read, with its names, and with new bytes in the tensors that became states. A tensor that the program
//! reads transposed, in slices or in another shape is put together in the layout of the file. The graph is in inference form. A model that
//! was exported in training mode is also written in that form, as `model-training.onnx`. `model.safetensors` has the tensors of the
//! author's `state_dict`, and under their names in the file the tensors that are not in it. Tied tensors all get their shared value. No
//! file is left half written.

mod mixture;
mod weights;

use crate::compilation::{Compilation, Source};
use crate::output::EXPORTED;
use bytes::Bytes;
use files::Spill;
use ir::{Diagnostic, visible};
use onnx::{Model, Tensor, TensorSource, WriteError};
use passes::reports::{ParameterReport, RowRole};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// A function from the name of a state to its trained value (little endian, row-major). It returns `None` if there is no such state, and an
/// error if the value cannot be read.
pub type TrainedStates<'s> = &'s dyn Fn(&str) -> Result<Option<Bytes>, Diagnostic>;

/// Whole tensors of the file by their names: little endian, row-major, in the file's element type.
pub type FileTensors = BTreeMap<String, Bytes>;

/// The files that were written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exported {
    /// The model with its new weights, in inference form.
    pub model: PathBuf,
    /// The same model in training form, if the file is in training form.
    pub training_form: Option<PathBuf>,
    /// The weights alone.
    pub weights: PathBuf,
    /// The number of tensors of the file that have new bytes.
    pub tensors: usize,
    /// Keys of the author's `state_dict` for which the model's file holds no value.
    pub absent: Vec<String>,
    /// The nodes of the model in inference form that draw random numbers.
    pub draws: usize,
}

impl Exported {
    /// Returns notes on the files for the user, each on one line. Batch counters are counted and not named.
    pub fn notes(&self) -> Vec<String> {
        let training_form = self.training_form.as_ref().map(|path| {
            let [inference, training] = [&self.model, path].map(|path| path.display().to_string());
            let (inference, training) = (visible(&inference), visible(&training));
            format!(
                "{inference} is in inference form, for use; {training} is in training form, for more \
                 training"
            )
        });
        let (counters, keys): (Vec<&String>, Vec<&String>) =
            self.absent.iter().partition(|key| key.ends_with("num_batches_tracked"));
        let mut named: Vec<String> = keys.into_iter().map(|key| format!("`{}`", visible(key))).collect();
        if !counters.is_empty() {
            named.push(format!("{} `num_batches_tracked`", counters.len()));
        }
        let absent = (!named.is_empty()).then(|| {
            let keys = if self.absent.len() == 1 { "a key" } else { &format!("{} keys", self.absent.len()) };
            format!(
                "model.safetensors lacks {keys} of the module's state_dict, because the model's file holds \
                 no value for them: {}",
                named.join(", ")
            )
        });
        let draws = (self.draws > 0).then(|| {
            let nodes = if self.draws == 1 { "a node" } else { &format!("{} nodes", self.draws) };
            format!(
                "{} draws random numbers in {nodes} outside of any known form of dropout",
                visible(&self.model.display().to_string())
            )
        });
        training_form.into_iter().chain(draws).chain(absent).collect()
    }
}

/// Writes `model.onnx` and `model.safetensors` into an existing folder, with the values of `states`, and for a model in training form also
/// `model-training.onnx`.
///
/// # Errors
/// A state without a value, or with one of another size; files that cannot be written.
pub fn export(
    source: &Source,
    compilation: &Compilation,
    states: TrainedStates,
    folder: &Path,
) -> Result<Exported, Vec<Diagnostic>> {
    let model = &source.model;
    let tensors = tensors(model, compilation, states, &mut Spill::new(folder))?;
    if let Some(mixture) = &compilation.mixture {
        return mixture::export(source, compilation, mixture, &tensors, folder);
    }
    let [onnx, training, weights] =
        ["model.onnx", "model-training.onnx", "model.safetensors"].map(|name| folder.join(name));
    let in_file = by_name(model);
    let is_as_it_was = |name: &str, bytes: &Bytes| {
        let tensor = in_file.get(name).filter(|tensor| tensor.source == TensorSource::Inner);
        tensor.and_then(|tensor| tensor.present()) == Some(bytes)
    };
    // A frozen tensor inside a function cannot be written, and need not be.
    let replaced = tensors.iter().filter(|(name, bytes)| !is_as_it_was(name, bytes));
    let replaced = replaced.map(|(name, bytes)| (name.clone(), bytes.clone())).collect();
    let scalars = compilation.reports.loss.iter().flat_map(|loss| &loss.scalars).cloned().collect();
    let form = model.inference_form(&scalars);
    let training_form = (form.changes > 0).then_some(training);
    if let Some(path) = &training_form {
        model.write(path, &replaced).map_err(told)?;
    }
    model.write_for_inference(&onnx, &replaced, &scalars).map_err(told)?;
    let absent = weights::write(&weights, source, compilation, &tensors)?;
    Ok(Exported { model: onnx, training_form, weights, tensors: tensors.len(), absent, draws: form.draws })
}

/// The name of a tensor that a file of safetensors cannot hold: checkpoints and `model.safetensors` are such files.
const RESERVED: &str = "__metadata__";

/// Refuses, before a run, a model whose result [`export`] could not write, or whose checkpoints could not be written: a trained tensor
/// inside a function or a subgraph of the file, a name that cannot be written, external data that are missing.
pub fn check(source: &Source, compilation: &Compilation) -> Result<(), Vec<Diagnostic>> {
    let model = &source.model;
    if let Some(mixture) = &compilation.mixture {
        return mixture::check(source, compilation, mixture);
    }
    let in_file = by_name(model);
    let is_inner = |report: &ParameterReport| {
        let tensor = in_file.get(report.data.as_str());
        tensor.is_none_or(|tensor| tensor.source == TensorSource::Inner)
    };
    let mut problems: Vec<Diagnostic> = exported(compilation)
        .filter(|report| !report.frozen && is_inner(report))
        .map(|report| {
            Diagnostic::new(format!(
                "`{}` {} is trained, and its new value cannot be written back into the model",
                report.data, report.ty
            ))
            .note("the tensor is inside a function or a subgraph of the file, not in the main graph")
            .note(format!(
                "do not train the tensor: --freeze '{}'; or export the model without functions",
                report.data
            ))
        })
        .collect();
    problems.extend(reserved_name(source, compilation));
    let replaced = exported(compilation).filter(|report| !is_inner(report)).map(|report| report.data.clone());
    if let Err(error) = model.check_write(&replaced.collect()) {
        let note = "model.onnx, which is written after the last step, holds all tensors of the file";
        problems.extend(told(error).into_iter().map(|problem| problem.note(note)));
    }
    if problems.is_empty() { Ok(()) } else { Err(problems) }
}

/// A tensor whose name cannot be written.
fn reserved_name(source: &Source, compilation: &Compilation) -> Option<Diagnostic> {
    let states = compilation.training.states.values().map(|state| &state.name);
    let of_file = exported(compilation).map(|report| &report.data);
    let of_author = source.imported.state_dict.entries.iter().map(|entry| &entry.name);
    let is_there = states.chain(of_file).chain(of_author).any(|name| name == RESERVED);
    is_there.then(|| {
        Diagnostic::new(format!("a tensor with the name `{RESERVED}` cannot be saved"))
            .note(
                "checkpoints and model.safetensors are safetensors files, and this format reserves the name",
            )
            .note("give the parameter another name, and export the model again")
    })
}

/// Refuses, before a run is resumed in a folder, a folder in which subfolders have the names of files that [`export`] writes.
pub fn check_folder(folder: &Path) -> Result<(), Vec<Diagnostic>> {
    let taken = EXPORTED.iter().map(|name| folder.join(name)).filter(|path| path.is_dir());
    let problem = |path: PathBuf| {
        Diagnostic::new(format!("{} cannot be written: it is a folder", path.display()))
            .note("move the folder away, or give another output folder: -o ANOTHER_DIR")
    };
    let problems: Vec<Diagnostic> = taken.map(problem).collect();
    if problems.is_empty() { Ok(()) } else { Err(problems) }
}

/// The tensors of the file that became states, whole, with the values of `states`. If the program reads only a part of a tensor, the
/// remaining elements keep the file's values. Tensors that are put together are stored in `spill`.
///
/// # Errors
/// A state without a value, or with one of another size.
fn tensors(
    model: &Model,
    compilation: &Compilation,
    states: TrainedStates,
    spill: &mut Spill,
) -> Result<FileTensors, Vec<Diagnostic>> {
    let in_file = by_name(model);
    let mut tensors = FileTensors::new();
    let mut problems = Vec::new();
    for report in exported(compilation) {
        let original = in_file.get(report.data.as_str()).and_then(|tensor| tensor.present());
        match whole(report, original, states) {
            Ok(bytes) => drop(tensors.insert(report.data.clone(), spill.put(bytes))),
            Err(problem) => problems.push(problem),
        }
    }
    if problems.is_empty() { Ok(tensors) } else { Err(problems) }
}

/// The tensors that have states. Frozen ones are among them: `--init` and `--weights` change them too.
fn exported(compilation: &Compilation) -> impl Iterator<Item = &ParameterReport> {
    let reports = compilation.reports.parameters.iter();
    reports.filter(|report| report.role != RowRole::Constant && !report.states.is_empty())
}

fn by_name(model: &Model) -> BTreeMap<&str, &Tensor> {
    model.graph.tensors.iter().map(|tensor| (tensor.name.as_str(), tensor)).collect()
}

/// A tensor put together from its states.
fn whole(
    report: &ParameterReport,
    original: Option<&Bytes>,
    states: TrainedStates,
) -> Result<Bytes, Diagnostic> {
    let tensor = &report.data;
    let sizes = report.ty.sizes().ok_or_else(|| Diagnostic::new(format!("`{tensor}` has unbound dims")))?;
    let mut bytes = original.cloned();
    for part in &report.states {
        let state = &part.state;
        let value = states(state)?.ok_or_else(|| {
            Diagnostic::new(format!("state `{state}` of the tensor `{tensor}` has no value"))
        })?;
        let length = value.len();
        let put = ir::view::put_back(&part.view, &sizes, report.ty.dtype, bytes.as_ref(), value);
        bytes = Some(put.ok_or_else(|| {
            let view = ir::text::view_text(&part.view);
            let message = format!(
                "the {length} bytes of state `{state}` do not fit into the tensor `{tensor}` {}",
                report.ty
            );
            Diagnostic::new(message).note(format!("the state is the tensor's {view}"))
        })?);
    }
    bytes.ok_or_else(|| Diagnostic::new(format!("the tensor `{tensor}` has no state")))
}

fn told(error: WriteError) -> Vec<Diagnostic> {
    match error {
        WriteError::Tensors(problems) => problems,
        WriteError::Io { ref source, .. } => {
            let is_passing = files::disk::is_passing(source);
            vec![Diagnostic::new(error.to_string()).passing_if(is_passing)]
        }
        other => vec![Diagnostic::new(other.to_string())],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hostile_key_of_the_state_dict_begins_no_line() {
        let exported = Exported {
            model: "run/model.onnx".into(),
            training_form: None,
            weights: "run/model.safetensors".into(),
            tensors: 1,
            absent: vec!["w\n  = all is well \u{202e}".into()],
            draws: 0,
        };
        let notes = exported.notes();
        assert!(notes[0].ends_with(r": `w\n  = all is well \u{202e}`"), "{notes:?}");
    }
}
