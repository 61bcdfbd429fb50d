//! `--weights FILE.safetensors`: values of parameters and buffers by name, and a report of mismatches.

use super::StateBytes;
use super::load::Checkpoint;
use super::matching::{self, Lies, Match};
use super::raw_view::RawTensor;
use super::tensor_file::TensorFile;
use bytes::Bytes;
use ir::{Diagnostic, Module, Role, ViewStep, visible};
use smallvec::smallvec;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};

/// The result of loading a weights file.
#[derive(Debug)]
pub struct Weights {
    /// Values of states, each with the size of its type. States that the file lacks are not included.
    pub values: StateBytes,
    /// The matches and mismatches.
    pub report: WeightsReport,
}

/// The matches and mismatches between a weights file and a program. Its `Display` is for the user.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WeightsReport {
    /// The file.
    pub path: PathBuf,
    /// The loaded states, each with its tensor.
    pub loaded: Vec<(String, String)>,
    /// The loaded tensors that were stored transposed.
    pub transposed: Vec<String>,
    /// Tensors that have a state's name and do not fit it, with the reason.
    pub refused: Vec<String>,
    /// Parameters and buffers that keep their old values.
    pub without: Vec<String>,
    /// Tensors that match the name of no state.
    pub unused: Vec<String>,
    /// Tensors without a checksum, in a file in which others have one.
    pub unchecked: Vec<String>,
}

/// Reads the values of parameters and buffers from `path`: a safetensors file of PyTorch or of another program, or the folder of a
/// checkpoint.
///
/// A tensor is found by the model file's name (the row of the data table), the state's name, or one of the `aliases` of that row (module
/// paths). A whole tensor of the model goes through the state's view. In a checkpoint's file, a state is found only by its own name, and
/// its tensor is used unchanged. Floats are converted to the state's type.
///
/// # Errors
/// The file cannot be read; nothing in it matches.
pub fn load_weights(
    path: &Path,
    module: &Module,
    aliases: &BTreeMap<String, Vec<String>>,
) -> Result<Weights, Diagnostic> {
    let file = Checkpoint::tensors(path)?;
    weights_of(&file, module, aliases)
}

/// Does the same as [`load_weights`] with an open file.
///
/// # Errors
/// Those of [`load_weights`].
pub fn weights_of(
    file: &TensorFile,
    module: &Module,
    aliases: &BTreeMap<String, Vec<String>>,
) -> Result<Weights, Diagnostic> {
    let matching = matching::decide(module, file, aliases);
    let mut values = StateBytes::new();
    let mut refused = matching.refused;
    let mut report =
        WeightsReport { path: file.path().to_owned(), without: matching.without, ..Default::default() };
    let mut last = (String::new(), Bytes::new());
    for found in matching.matches {
        // States that are slices of one tensor follow each other, so the tensor is read only once.
        if last.0 != found.tensor {
            last = (found.tensor.clone(), file.read(&found.tensor)?.unwrap_or_default());
        }
        match value(module, &found, file, last.1.clone()) {
            Some(bytes) => {
                if found.lies == Lies::Transposed {
                    report.transposed.push(found.tensor.clone());
                }
                values.insert(found.state.name.clone(), bytes);
                report.loaded.push((found.state.name.clone(), found.tensor));
            }
            None => {
                let view = ir::text::view_text(&found.state.view);
                refused.push(format!(
                    "`{}` cannot be turned into `{}` by {view}",
                    found.tensor, found.state.name
                ));
            }
        }
    }
    report.refused = refused;
    report.unused = unused(module, file, &report);
    report.unchecked = file.unchecked().to_vec();
    if values.is_empty() { Err(nothing(module, file, &report)) } else { Ok(Weights { values, report }) }
}

fn value(module: &Module, found: &Match, file: &TensorFile, bytes: Bytes) -> Option<Bytes> {
    let ty = file.ty(&found.tensor)?;
    let mut tensor = RawTensor::new(ty.dtype, ty.sizes()?, bytes)?;
    if found.lies == Lies::Transposed {
        tensor = tensor.view(&[ViewStep::Transpose(smallvec![1, 0])])?;
    }
    if let (true, Some(row)) = (found.lies != Lies::AsState, found.state.initializer.data()) {
        tensor = tensor.cast(module.data[row].ty.dtype)?.view(&found.state.view)?;
    }
    let mut value = tensor.cast(found.state.ty.dtype)?;
    if found.lies == Lies::AsState {
        value = value.view(ir::view::padding(&found.state.view, &[]).0)?;
    }
    (value.sizes == found.state.ty.sizes()?).then_some(value.bytes)
}

/// Returns the tensors of no state, without a checkpoint's optimizer states that the program has too.
fn unused(module: &Module, file: &TensorFile, report: &WeightsReport) -> Vec<String> {
    let mut used: BTreeSet<&str> = report.loaded.iter().map(|(_, tensor)| tensor.as_str()).collect();
    if file.of_states {
        used.extend(module.states.values().map(|state| state.name.as_str()));
    }
    let refused = |name: &str| report.refused.iter().any(|reason| reason.starts_with(&format!("`{name}` ")));
    file.names().filter(|name| !used.contains(name) && !refused(name)).map(str::to_owned).collect()
}

fn nothing(module: &Module, file: &TensorFile, report: &WeightsReport) -> Diagnostic {
    let trained = |state: &&ir::State| matches!(state.role, Role::Parameter | Role::Buffer);
    let ours: Vec<String> = module.states.values().filter(trained).map(|state| state.name.clone()).collect();
    let theirs: Vec<String> = file.names().map(str::to_owned).collect();
    let mut diagnostic =
        Diagnostic::new(format!("no tensor of `{}` matches a parameter of the model", report.path.display()))
            .note(format!("the model has {}", list(&ours)))
            .note(format!("the file has {}", list(&theirs)));
    for reason in report.refused.iter().take(LISTED) {
        diagnostic = diagnostic.note(reason.clone());
    }
    diagnostic
}

/// The largest number of names listed for a kind of mismatch.
const LISTED: usize = 8;

fn list(names: &[String]) -> String {
    let more = names.len().saturating_sub(LISTED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let named: Vec<String> = names.iter().take(LISTED).map(|name| format!("`{}`", visible(name))).collect();
    format!("{}{more}", named.join(", "))
}

/// The number of loaded states, and a line for each kind of mismatch.
impl fmt::Display for WeightsReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (loaded, missed) = (self.loaded.len(), self.without.len() + self.refused.len());
        write!(
            f,
            "{loaded} of {} parameters and buffers were loaded from `{}`",
            loaded + missed,
            visible(&self.path.display().to_string())
        )?;
        if !self.transposed.is_empty() {
            write!(f, "\n  = transposed: {}", list(&self.transposed))?;
        }
        self.refused.iter().try_for_each(|reason| write!(f, "\n  = not loaded: {}", visible(reason)))?;
        if !self.without.is_empty() {
            write!(f, "\n  = not in the file, and therefore not changed: {}", list(&self.without))?;
        }
        if !self.unused.is_empty() {
            write!(f, "\n  = in the file, but not in the model: {}", list(&self.unused))?;
        }
        if !self.unchecked.is_empty() {
            let names = list(&self.unchecked);
            write!(
                f,
                "\n  = loaded without a check, because a program changed or added them after the checksums \
                 were written: {names}"
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ir::{Blob, DType, Data, Initializer, Type};
    use safetensors::tensor::TensorView;
    use std::collections::HashMap;

    fn floats(numbers: &[f32]) -> Vec<u8> {
        numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
    }

    /// `qkv` of the file is f32[2, 6], and `q` and `k` are columns of it; `bias` is a tensor of its own.
    fn module() -> Module {
        let mut module = Module::new("attention");
        let mut row = |name: &str, sizes: &[u64]| {
            module.add_data(Data {
                name: name.into(),
                ty: Type::of(DType::F32, sizes),
                blob: Blob::File(None),
                claim: None,
            })
        };
        let (weight, bias) = (row("onnx::MatMul_9", &[2, 6]), row("bias", &[3]));
        for (name, start) in [("qkv.weight[0..3]", 0), ("qkv.weight[3..6]", 3)] {
            let (ty, data) = (Type::of(DType::F32, &[2, 3]), Initializer::Data(weight));
            let state = module.add_state(name, ty, Role::Parameter, data);
            module.states[state].view = smallvec![ViewStep::Slice { dim: 1, start, length: 3 }];
        }
        module.add_state("bias", Type::of(DType::F32, &[3]), Role::Parameter, Initializer::Data(bias));
        module.add_state("adam.m(bias)", Type::of(DType::F32, &[3]), Role::Optimizer, Initializer::Zeros);
        module
    }

    fn aliases() -> BTreeMap<String, Vec<String>> {
        [("onnx::MatMul_9".to_owned(), vec!["qkv.weight".to_owned()])].into()
    }

    type Row<'a> = (&'a str, safetensors::Dtype, Vec<usize>, Vec<u8>);

    fn load(module: &Module, rows: &[Row], writer: &str) -> Result<Weights, Diagnostic> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("weights.safetensors");
        let views = rows.iter().map(|(name, dtype, shape, bytes)| {
            (*name, TensorView::new(*dtype, shape.clone(), bytes).unwrap())
        });
        let mark = HashMap::from([("format".to_owned(), writer.to_owned())]);
        std::fs::write(&path, safetensors::serialize(views, Some(mark)).unwrap()).unwrap();
        load_weights(&path, module, &aliases())
    }

    const F32: safetensors::Dtype = safetensors::Dtype::F32;

    #[test]
    fn a_tensor_under_the_files_own_name_goes_through_the_views() {
        let numbers: Vec<f32> = (0..12u8).map(f32::from).collect();
        let rows = [("onnx::MatMul_9", F32, vec![2, 6], floats(&numbers))];
        let weights = load(&module(), &rows, "np").unwrap();
        assert_eq!(weights.values["qkv.weight[0..3]"], floats(&[0.0, 1.0, 2.0, 6.0, 7.0, 8.0]));
        assert_eq!(weights.values["qkv.weight[3..6]"], floats(&[3.0, 4.0, 5.0, 9.0, 10.0, 11.0]));
        assert_eq!(weights.report.without, ["bias"]);
        assert!(weights.report.unused.is_empty() && weights.report.refused.is_empty());
    }

    #[test]
    fn pytorchs_matrix_under_a_module_path_is_transposed_first() {
        // qkv.weight[out][in] = 10 out + in, so that the model's [in][out] has columns of tens.
        let numbers: Vec<f32> = (0..12u8).map(|i| f32::from(i / 2 * 10 + i % 2)).collect();
        let bias = [1.5f32, 2.5, 3.5].map(half::bf16::from_f32).map(half::bf16::to_le_bytes).concat();
        let rows = [
            ("qkv.weight", F32, vec![6, 2], floats(&numbers)),
            ("bias", safetensors::Dtype::BF16, vec![3], bias),
            ("attn.mask", F32, vec![1], floats(&[0.0])),
        ];
        let weights = load(&module(), &rows, "pt").unwrap();
        assert_eq!(weights.values["qkv.weight[3..6]"], floats(&[30.0, 40.0, 50.0, 31.0, 41.0, 51.0]));
        assert_eq!(weights.values["bias"], floats(&[1.5, 2.5, 3.5]));
        let text = weights.report.to_string();
        assert!(text.starts_with("3 of 3 parameters and buffers were loaded from"), "{text}");
        assert!(text.contains("transposed: `qkv.weight`"), "{text}");
        assert!(text.ends_with("in the file, but not in the model: `attn.mask`"), "{text}");
    }

    #[test]
    fn a_square_matrix_lies_as_the_others_do_or_as_its_writer_has_it() {
        let mut module = Module::new("squares");
        let mut aliases = BTreeMap::new();
        for (name, path, sizes) in [("val_1", "a.weight", [2, 2]), ("val_2", "b.weight", [2, 3])] {
            let blob = Blob::File(None);
            let row = module.add_data(Data {
                name: name.into(),
                ty: Type::of(DType::F32, &sizes),
                blob,
                claim: None,
            });
            module.add_state(path, Type::of(DType::F32, &sizes), Role::Parameter, Initializer::Data(row));
            aliases.insert(name.to_owned(), vec![path.to_owned()]);
        }
        let square = ("a.weight", F32, vec![2, 2], floats(&[1.0, 2.0, 3.0, 4.0]));
        let (straight, turned) = (floats(&[1.0, 2.0, 3.0, 4.0]), floats(&[1.0, 3.0, 2.0, 4.0]));
        let other = |shape: Vec<usize>| ("b.weight", F32, shape, floats(&[0.0; 6]));
        let cases = [
            (vec![square.clone()], "pt", &turned),
            (vec![square.clone()], "np", &straight),
            (vec![square.clone(), other(vec![3, 2])], "np", &turned),
            (vec![square.clone(), other(vec![2, 3])], "pt", &straight),
        ];
        for (rows, writer, expected) in cases {
            assert_eq!(
                load(&module, &rows, writer).unwrap().values["a.weight"],
                expected,
                "{rows:?} {writer}"
            );
        }
    }

    #[test]
    fn what_does_not_fit_is_told_with_both_shapes() {
        let rows = [
            ("bias", F32, vec![4], floats(&[0.0; 4])),
            ("onnx::MatMul_9", F32, vec![2, 6], floats(&[0.0; 12])),
        ];
        let report = load(&module(), &rows, "pt").unwrap().report;
        assert_eq!(report.refused, ["`bias` is f32[4], `bias` takes f32[3]"]);
        assert!(report.unused.is_empty() && report.without.is_empty());
        let integers = [("bias", safetensors::Dtype::I32, vec![3], vec![0; 12])];
        let error = load(&module(), &integers, "pt").unwrap_err().to_string();
        assert!(error.contains("`bias` holds i32, `bias` takes f32"), "{error}");
        assert!(
            error.contains("no tensor of") && error.contains("the model has `qkv.weight[0..3]`"),
            "{error}"
        );
    }

    #[test]
    fn a_checkpoint_gives_its_states_as_they_are() {
        let folder = tempfile::tempdir().unwrap();
        let module = module();
        let values: StateBytes = module
            .states
            .values()
            .enumerate()
            .map(|(i, state)| (state.name.clone(), vec![i as u8; state.ty.bytes().unwrap() as usize].into()))
            .collect();
        let checkpoints = super::super::Checkpoints::new(&folder.path().join("checkpoints"));
        let description = super::super::testing::description(3);
        let path = checkpoints.save(&module, &description, &values).unwrap();
        let weights = load_weights(&path.join("state.safetensors"), &module, &aliases()).unwrap();
        assert_eq!(weights.report.loaded.len(), 3);
        assert!(weights.report.unused.is_empty() && weights.report.without.is_empty());
        assert!(weights.values.iter().all(|(name, value)| values[name] == value));
    }
}
