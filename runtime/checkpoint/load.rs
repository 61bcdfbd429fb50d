//! Reading a checkpoint: finding the newest whole one, and giving its values to a program of the same states.

use super::compare::Differences;
use super::description::{Description, FORMAT, StateRow};
use super::error::CheckpointError;
use super::fingerprint::DataFiles;
use super::pending::PendingFingerprint;
use super::save::Checkpoints;
use super::tensor_file::TensorFile;
use super::{DESCRIPTION, STATES, StateBytes, padding, sampled};
use crate::data::open_regular;
use bytes::Bytes;
use ir::Module;
use serde::Deserialize;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

/// A checkpoint whose files are whole.
#[derive(Debug)]
pub struct Checkpoint {
    /// Its folder.
    pub path: PathBuf,
    /// What it belongs to.
    pub description: Description,
    states: TensorFile,
}

/// The newest checkpoint of a run.
#[derive(Debug)]
pub struct Latest {
    /// The checkpoint; `None` if there is no whole one.
    pub checkpoint: Option<Checkpoint>,
    /// Newer ones that are not whole, with what is wrong with each.
    pub damaged: Vec<CheckpointError>,
}

/// No honest description is longer: a row of the table takes a few hundred bytes.
const LONGEST_DESCRIPTION: u64 = 256 << 20;

impl Checkpoint {
    /// Opens the checkpoint in a folder `step-N` and checks that it is whole; values are read by [`Self::load`].
    ///
    /// # Errors
    /// Files that are missing or damaged or of another version of the format.
    pub fn open(path: &Path) -> Result<Self, CheckpointError> {
        let description = read_description(&path.join(DESCRIPTION))?;
        let states = TensorFile::open(&path.join(STATES))?;
        for row in &description.states {
            let ty = states.ty(&row.name).map(|ty| (ty.dtype.to_string(), ty.sizes().unwrap_or_default()));
            if ty.is_none_or(|(dtype, dims)| dtype != row.dtype || dims != row.dims) {
                let reason = format!("the state {row} of `{DESCRIPTION}` is not in it");
                return Err(CheckpointError::Malformed { path: path.join(STATES), reason });
            }
        }
        Ok(Self { path: path.to_owned(), description, states })
    }

    /// The values of all states of `module`.
    ///
    /// # Errors
    /// Another state table, with the differences; a file that cannot be read.
    pub fn load(&self, module: &Module) -> Result<StateBytes, CheckpointError> {
        let differences = Differences::between(&StateRow::table(module), &self.description.states);
        if !differences.is_empty() {
            let (path, module) = (self.path.clone(), self.description.module.clone());
            return Err(CheckpointError::OtherModel { path, module, differences });
        }
        let mut values = StateBytes::new();
        for state in module.states.values() {
            let Some(bytes) = self.states.read(&state.name)? else { continue };
            let bytes = Bytes::from(bytes);
            let value = if padding::is_padded(state) { padding::add(state, bytes) } else { Some(bytes) };
            values.extend(value.map(|value| (state.name.clone(), value)));
        }
        Ok(values)
    }

    /// Refuses to go on with other training data than that in `files`; returns its fingerprint. Files that are where and as
    /// they were are not read again. Data of a checkpoint of format 1 is compared by the rule of that format.
    ///
    /// # Errors
    /// The data is not what it was; a file that cannot be read.
    pub fn check_data(&self, files: &DataFiles) -> Result<PendingFingerprint, CheckpointError> {
        let then = &self.description.data;
        let is_sampled = then.files.is_empty();
        let now = if is_sampled { sampled::fingerprint(files)? } else { files.fingerprint(&then.files)? };
        match now.is_of_same_data(then) {
            true if is_sampled => Ok(PendingFingerprint::start(files.clone())),
            true => Ok(now.into()),
            false => Err(CheckpointError::OtherData { path: self.path.clone(), then: then.clone(), now }),
        }
    }
}

fn read_description(path: &Path) -> Result<Description, CheckpointError> {
    #[derive(Deserialize)]
    struct Versioned {
        format: u64,
    }
    let read = |source| CheckpointError::Read { path: path.to_owned(), source };
    let malformed = |reason: String| CheckpointError::Malformed { path: path.to_owned(), reason };
    let file = open_regular(path).map_err(read)?;
    let mut text = Vec::new();
    file.take(LONGEST_DESCRIPTION).read_to_end(&mut text).map_err(read)?;
    // The version first: the rest of another one may look different.
    let found =
        serde_json::from_slice::<Versioned>(&text).map_err(|error| malformed(error.to_string()))?.format;
    if found != FORMAT {
        return Err(CheckpointError::Version { path: path.to_owned(), found });
    }
    serde_json::from_slice(&text).map_err(|error| malformed(error.to_string()))
}

impl Checkpoints {
    /// The newest whole checkpoint. Temporary folders are passed over; so are damaged checkpoints, which are told.
    ///
    /// # Errors
    /// The folder cannot be read; the newest checkpoint has another version of the format, so that going on from an
    /// older one would lose work that is there.
    pub fn latest(&self) -> Result<Latest, CheckpointError> {
        let mut damaged = Vec::new();
        for (_, path) in folders(&self.folder)?.into_iter().rev() {
            match Checkpoint::open(&path) {
                Ok(checkpoint) => return Ok(Latest { checkpoint: Some(checkpoint), damaged }),
                Err(error @ CheckpointError::Version { .. }) => return Err(error),
                Err(error) => damaged.push(error),
            }
        }
        Ok(Latest { checkpoint: None, damaged })
    }
}

/// The newest checkpoint of a folder that can be read.
pub(super) fn newest_whole(folder: &Path) -> Option<Checkpoint> {
    folders(folder).ok()?.into_iter().rev().find_map(|(_, path)| Checkpoint::open(&path).ok())
}

/// The folders `step-N`, by N.
fn folders(folder: &Path) -> Result<Vec<(u64, PathBuf)>, CheckpointError> {
    let read = |source| CheckpointError::Read { path: folder.to_owned(), source };
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(read)?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry.map_err(read)?;
        let step =
            entry.file_name().to_str().and_then(|name| name.strip_prefix("step-")?.parse::<u64>().ok());
        found.extend(step.map(|step| (step, entry.path())));
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::super::testing::{description, module, module_with, values};
    use super::*;
    use ir::DType;

    fn saved(steps: &[u64]) -> (tempfile::TempDir, Checkpoints) {
        let folder = tempfile::tempdir().unwrap();
        let checkpoints = Checkpoints::new(&folder.path().join("checkpoints"));
        for &step in steps {
            checkpoints.save(&module(), &description(step), &values(step as u8)).unwrap();
        }
        (folder, checkpoints)
    }

    #[test]
    fn the_newest_by_number_comes_back_bit_for_bit() {
        let (_folder, checkpoints) = saved(&[9, 10, 100]);
        let found = checkpoints.latest().unwrap();
        assert!(found.damaged.is_empty());
        let checkpoint = found.checkpoint.unwrap();
        assert_eq!(checkpoint.description, description(100));
        assert_eq!(checkpoint.load(&module()).unwrap(), values(100));
    }

    #[test]
    fn no_folder_has_no_checkpoint() {
        let folder = tempfile::tempdir().unwrap();
        assert!(Checkpoints::new(&folder.path().join("checkpoints")).latest().unwrap().checkpoint.is_none());
    }

    #[test]
    fn torn_and_temporary_checkpoints_are_passed_over() {
        let (_folder, checkpoints) = saved(&[1, 2, 3, 4, 5]);
        fs::rename(checkpoints.path(5), checkpoints.folder.join("step-5.tmp")).unwrap();
        let states = checkpoints.path(4).join(STATES);
        let bytes = fs::read(&states).unwrap();
        fs::write(&states, &bytes[..bytes.len() - 1]).unwrap();
        fs::remove_file(checkpoints.path(3).join(DESCRIPTION)).unwrap();
        fs::write(checkpoints.path(2).join(DESCRIPTION), "{\"format\": 1, \"step\":").unwrap();
        let found = checkpoints.latest().unwrap();
        assert_eq!(found.checkpoint.unwrap().description.step(), 1);
        assert_eq!(found.damaged.len(), 3);
        assert!(found.damaged[0].to_string().contains("is it cut off?"), "{}", found.damaged[0]);
    }

    #[test]
    fn another_version_is_an_error_and_not_passed_over() {
        let (_folder, checkpoints) = saved(&[1, 2]);
        fs::write(checkpoints.path(2).join(DESCRIPTION), "{\"format\": 2, \"new\": [[1]]}").unwrap();
        let error = checkpoints.latest().unwrap_err().to_string();
        assert!(error.contains("format version 2; this program reads version 1"), "{error}");
    }

    #[test]
    fn a_checkpoint_of_another_model_is_refused_with_the_differences() {
        let (_folder, checkpoints) = saved(&[1]);
        let other = module_with(&[("weight", DType::F32, &[3, 2]), ("bias", DType::F32, &[2])]);
        let checkpoint = checkpoints.latest().unwrap().checkpoint.unwrap();
        let error = checkpoint.load(&other).unwrap_err().to_string();
        assert!(error.contains("missing in the checkpoint: `bias` f32[2]"), "{error}");
        assert!(
            error.contains("not in this program: `empty` f32[0, 4], `half` bf16[3], `step` i64[]"),
            "{error}"
        );
        assert!(
            error.contains("`weight` is f32[3, 2] parameter here and f32[2, 3] parameter there"),
            "{error}"
        );
        assert!(error.contains("--weights"), "{error}");
    }

    /// The padding is the mesh's: a checkpoint made on one goes on on another.
    #[test]
    fn a_checkpoint_does_not_know_of_padding() {
        let padded = |after: u64| {
            let mut module = module_with(&[("weight", DType::U8, &[3 + after, 2])]);
            if after > 0 {
                let state = module.states.values_mut().next().unwrap();
                state.view.push(ir::ViewStep::Pad { dim: 0, after });
            }
            let mut value: Vec<u8> = (1..=6).collect();
            value.resize(6 + 2 * after as usize, 0);
            (module, StateBytes::from([("weight".to_owned(), value.into())]))
        };
        let folder = tempfile::tempdir().unwrap();
        let checkpoints = Checkpoints::new(&folder.path().join("checkpoints"));
        let mut files = Vec::new();
        for (step, after) in [(1, 0), (2, 1), (3, 5)] {
            let (module, values) = padded(after);
            let position = description(step).position;
            let path =
                checkpoints.save(&module, &Description::new(&module, position, data()), &values).unwrap();
            files.push(fs::read(path.join(STATES)).unwrap());
            for other in [0, 1, 5] {
                let (module, values) = padded(other);
                let checkpoint = checkpoints.latest().unwrap().checkpoint.unwrap();
                assert_eq!(checkpoint.load(&module).unwrap(), values);
            }
        }
        assert!(files[0] == files[1] && files[1] == files[2]);
    }

    #[test]
    fn a_table_that_does_not_fit_its_tensors_is_damaged() {
        let (_folder, checkpoints) = saved(&[1]);
        let path = checkpoints.path(1).join(DESCRIPTION);
        let text = fs::read_to_string(&path).unwrap().replace("\"f32\"", "\"f64\"");
        fs::write(&path, text).unwrap();
        let error = Checkpoint::open(&checkpoints.path(1)).unwrap_err().to_string();
        assert!(error.contains("`weight` f64[2, 3]"), "{error}");
    }

    #[test]
    fn hostile_json_is_an_error_and_not_a_panic() {
        let (_folder, checkpoints) = saved(&[1]);
        let good = fs::read_to_string(checkpoints.path(1).join(DESCRIPTION)).unwrap();
        let deep = format!("{}{}", "[".repeat(200_000), "]".repeat(200_000));
        let cases = [
            String::new(),
            "null".to_owned(),
            deep,
            good.replace("\"step\": 1", "\"step\": -1"),
            good.replace("\"format\": 1", "\"format\": 1e99"),
            good.replace("\"states\"", "\"other\""),
            good.replace("2,\n", "\"two\",\n"),
        ];
        for text in cases {
            assert_ne!(text, good);
            fs::write(checkpoints.path(1).join(DESCRIPTION), &text).unwrap();
            assert!(Checkpoint::open(&checkpoints.path(1)).is_err(), "{}", &text[..text.len().min(200)]);
        }
    }

    proptest::proptest! {
        /// Any damage is an error or harmless; the values that are read have the sizes of their states.
        #[test]
        fn damage_anywhere_is_no_panic(
            states: bool, place: proptest::sample::Index, byte: u8, cut: Option<proptest::sample::Index>,
        ) {
            let (_folder, checkpoints) = saved(&[1]);
            let path = checkpoints.path(1).join(if states { STATES } else { DESCRIPTION });
            let mut bytes = fs::read(&path).unwrap();
            *place.get_mut(&mut bytes) = byte;
            bytes.truncate(cut.map_or(usize::MAX, |cut| cut.index(bytes.len())));
            fs::write(&path, bytes).unwrap();
            if let Ok(values) = Checkpoint::open(&checkpoints.path(1)).and_then(|found| found.load(&module())) {
                let sizes = |values: &StateBytes| values.values().map(|value| value.len()).collect::<Vec<_>>();
                proptest::prop_assert_eq!(sizes(&values), sizes(&super::super::testing::values(1)));
            }
        }
    }

    /// A checkpoint that was made with the data in a file of these bytes, and the bytes' file.
    fn of_data(bytes: &[u8], old: bool) -> (tempfile::TempDir, Checkpoint, DataFiles) {
        let (folder, checkpoints) = saved(&[1]);
        let mut checkpoint = checkpoints.latest().unwrap().checkpoint.unwrap();
        let files = DataFiles { train: Some(folder.path().join("data.bin")), ..DataFiles::default() };
        fs::write(folder.path().join("data.bin"), bytes).unwrap();
        let fingerprint = if old { sampled::fingerprint(&files) } else { files.fingerprint(&[]) };
        // As a file of that format has it.
        let text = serde_json::to_string(&fingerprint.unwrap()).unwrap();
        assert_eq!(text.contains("files"), !old, "{text}");
        checkpoint.description.data = serde_json::from_str(&text).unwrap();
        (folder, checkpoint, files)
    }

    fn bytes() -> Vec<u8> {
        (0..1_000_000u32).map(|i| ((i * 31) >> 3) as u8).collect()
    }

    #[test]
    fn other_data_is_refused_with_both_sizes() {
        for old in [false, true] {
            let (_folder, checkpoint, files) = of_data(b"the data", old);
            let then = checkpoint.description.data.hash.clone();
            fs::write(files.train.as_ref().unwrap(), "other data").unwrap();
            let error = checkpoint.check_data(&files).unwrap_err().to_string();
            assert!(error.contains(&format!("of 8 bytes (hash {then}); this run has 10 bytes")), "{error}");
            let error = checkpoint.check_data(&DataFiles::default()).unwrap_err().to_string();
            assert!(error.contains("this run has 0 bytes (hash synthetic)"), "{error}");
        }
    }

    #[test]
    fn a_file_whose_middle_was_replaced_is_other_data() {
        let (_folder, checkpoint, files) = of_data(&bytes(), false);
        checkpoint.check_data(&files).unwrap();
        let mut other = bytes();
        other[30_000..970_000].iter_mut().for_each(|byte| *byte = !*byte);
        fs::write(files.train.as_ref().unwrap(), other).unwrap();
        let error = checkpoint.check_data(&files).unwrap_err().to_string();
        assert!(error.contains("was made with other data, of 1000000 bytes"), "{error}");
    }

    #[test]
    fn a_copy_of_another_name_and_time_is_the_same_data() {
        for old in [false, true] {
            let (folder, checkpoint, files) = of_data(&bytes(), old);
            let copy = folder.path().join("copy.txt");
            fs::write(&copy, bytes()).unwrap();
            fs::File::options().write(true).open(&copy).unwrap().set_modified(std::time::UNIX_EPOCH).unwrap();
            let copied = DataFiles { train: Some(copy), ..DataFiles::default() };
            let mut now = checkpoint.check_data(&copied).unwrap();
            // The checkpoints to come have the fingerprint of all bytes, whatever the first had.
            assert!(now.wait().unwrap().is_of_same_data(&files.fingerprint(&[]).unwrap()));
        }
    }
}
