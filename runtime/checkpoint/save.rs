//! Writing a checkpoint: into a temporary folder beside it, flushed, then renamed.

use super::description::{Description, StateRow};
use super::error::CheckpointError;
use super::{DESCRIPTION, STATES, StateSource, load, padding, tensor_file};
use ir::{DType, Module, State};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

/// The checkpoints of one run: DIR/checkpoints.
#[derive(Clone, Debug)]
pub struct Checkpoints {
    pub(super) folder: PathBuf,
}

/// A file that is being written. Tests have disks that are full.
trait Target: Write {
    /// Waits until all of it is on the disk.
    fn flush_to_disk(&mut self) -> io::Result<()>;
}

impl Target for BufWriter<File> {
    fn flush_to_disk(&mut self) -> io::Result<()> {
        self.flush()?;
        self.get_ref().sync_all()
    }
}

type Create = dyn Fn(&Path) -> io::Result<Box<dyn Target>>;

fn create_file(path: &Path) -> io::Result<Box<dyn Target>> {
    Ok(Box::new(BufWriter::with_capacity(1 << 20, File::create(path)?)))
}

impl Checkpoints {
    /// The checkpoints in `folder` (DIR/checkpoints). Nothing is created before the first save.
    pub fn new(folder: &Path) -> Self {
        Self { folder: folder.to_owned() }
    }

    /// The folder that has a folder for each checkpoint.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Where the checkpoint of a step is.
    pub fn path(&self, step: u64) -> PathBuf {
        self.folder.join(format!("step-{step}"))
    }

    /// Removes every checkpoint, whole or not, of a run that another takes the place of.
    ///
    /// # Errors
    /// The folder cannot be read or changed.
    pub fn remove_all(&self) -> io::Result<()> {
        let entries = match fs::read_dir(&self.folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            entries => entries?,
        };
        for entry in entries {
            let entry = entry?;
            // Other files in there are the user's.
            if entry.file_name().to_str().is_some_and(|name| name.starts_with("step-")) {
                remove(&entry.path())?;
            }
        }
        Ok(())
    }

    /// Writes the checkpoint that `description` describes, replacing one of the same step, and returns its path.
    ///
    /// # Errors
    /// A value that is not there or has another size; a disk that is full, a folder that cannot be written. Then
    /// nothing of this checkpoint is left, and earlier ones are as they were.
    pub fn save(
        &self,
        module: &Module,
        description: &Description,
        states: &dyn StateSource,
    ) -> Result<PathBuf, CheckpointError> {
        self.save_with(module, description, states, &create_file)
    }

    fn save_with(
        &self,
        module: &Module,
        description: &Description,
        states: &dyn StateSource,
        create: &Create,
    ) -> Result<PathBuf, CheckpointError> {
        let layout = Layout::of(module)?;
        let text = serde_json::to_vec_pretty(description).expect("numbers and strings have a JSON form");
        let needed = layout.bytes() + text.len() as u64;
        let path = self.path(description.step());
        let temporary = self.folder.join(format!("step-{}.tmp", description.step()));
        let write = || -> Result<(), Failure> {
            fs::create_dir_all(&self.folder)?;
            remove(&temporary)?;
            fs::create_dir(&temporary)?;
            layout.write(&mut *create(&temporary.join(STATES))?, states)?;
            let mut file = create(&temporary.join(DESCRIPTION))?;
            file.write_all(&text)?;
            file.flush_to_disk()?;
            sync_folder(&temporary)?;
            self.publish(&temporary, &path)?;
            Ok(())
        };
        write().map_err(|failure| {
            // What cannot be removed stays under its temporary name, which no reader takes for a checkpoint.
            let _ = remove(&temporary);
            match failure {
                Failure::State(error) => error,
                Failure::Disk(source) => {
                    let kept = load::newest_whole(&self.folder).map(|checkpoint| checkpoint.path);
                    CheckpointError::Write {
                        path: path.clone(),
                        step: description.step(),
                        needed,
                        source,
                        kept,
                    }
                }
            }
        })?;
        Ok(path)
    }

    /// Gives a folder that is whole its name. One that has the name already goes first, and out of the way, since
    /// renaming onto a folder with files in it is refused.
    fn publish(&self, temporary: &Path, path: &Path) -> io::Result<()> {
        let replaced = path.with_extension("replaced.tmp");
        remove(&replaced)?;
        if path.exists() {
            fs::rename(path, &replaced)?;
        }
        fs::rename(temporary, path)?;
        sync_folder(&self.folder)?;
        remove(&replaced)
    }
}

/// Why a checkpoint was not written.
enum Failure {
    Disk(io::Error),
    State(CheckpointError),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Disk(error)
    }
}

/// The order of the tensors in a file: wide elements first, so that every tensor is aligned to its element.
struct Layout<'m> {
    header: Vec<u8>,
    tensors: Vec<(&'m str, DType, Vec<u64>, u64)>,
    /// States that are padded, which their tensors are not.
    padded: BTreeMap<&'m str, &'m State>,
}

impl<'m> Layout<'m> {
    fn of(module: &'m Module) -> Result<Self, CheckpointError> {
        let mut tensors = Vec::with_capacity(module.states.len());
        for (state, row) in module.states.values().zip(StateRow::table(module)) {
            let Some(bytes) = padding::unpadded_type(state).and_then(|ty| ty.bytes()) else {
                let name = state.name.clone();
                return Err(CheckpointError::State { name, found: 0, expected: u64::MAX });
            };
            tensors.push((state.name.as_str(), state.ty.dtype, row.dims, bytes));
        }
        tensors.sort_by_key(|(_, dtype, _, _)| std::cmp::Reverse(dtype.bytes()));
        let header = tensor_file::header(&tensors).map_err(|name| CheckpointError::ReservedName { name })?;
        let padded = module.states.values().filter(|state| padding::is_padded(state));
        Ok(Self { header, tensors, padded: padded.map(|state| (state.name.as_str(), state)).collect() })
    }

    fn bytes(&self) -> u64 {
        self.header.len() as u64 + self.tensors.iter().map(|(_, _, _, bytes)| bytes).sum::<u64>()
    }

    fn write(&self, file: &mut dyn Target, states: &dyn StateSource) -> Result<(), Failure> {
        file.write_all(&self.header)?;
        for (name, _, _, expected) in &self.tensors {
            let mut value = states.state(name).unwrap_or_default();
            if let Some(state) = self.padded.get(name)
                && let Some(unpadded) = padding::remove(state, value.to_vec().into())
            {
                value = unpadded.to_vec().into();
            }
            if value.len() as u64 != *expected {
                let (name, found, expected) = ((*name).to_owned(), value.len() as u64, *expected);
                return Err(Failure::State(CheckpointError::State { name, found, expected }));
            }
            file.write_all(&value)?;
        }
        Ok(file.flush_to_disk()?)
    }
}

/// Removes a folder of ours and what is in it, if it is there.
fn remove(folder: &Path) -> io::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

/// Puts a folder's names on the disk. Where folders cannot be opened (Windows) the file system sees to it.
fn sync_folder(folder: &Path) -> io::Result<()> {
    if cfg!(unix) { File::open(folder)?.sync_all() } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{description, module, values};
    use super::*;

    /// A file on a disk with room for so many more bytes.
    struct Full(File, usize);

    impl Write for Full {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let fits = bytes.len().min(self.1);
            if fits == 0 && !bytes.is_empty() {
                return Err(io::Error::from(io::ErrorKind::StorageFull));
            }
            self.1 -= fits;
            self.0.write(&bytes[..fits])
        }

        fn flush(&mut self) -> io::Result<()> {
            self.0.flush()
        }
    }

    impl Target for Full {
        fn flush_to_disk(&mut self) -> io::Result<()> {
            self.0.sync_all()
        }
    }

    #[test]
    fn a_full_disk_leaves_nothing_behind_and_names_the_checkpoint_that_is_whole() {
        let folder = tempfile::tempdir().unwrap();
        let checkpoints = Checkpoints::new(&folder.path().join("checkpoints"));
        let (module, values) = (module(), values(1));
        let earlier = checkpoints.save(&module, &description(10), &values).unwrap();
        let room = fs::metadata(earlier.join(STATES)).unwrap().len() as usize;
        // Full within the header, within the tensors, and at the last byte of the description.
        for room in [3, room / 2, room - 1] {
            let create = move |path: &Path| -> io::Result<Box<dyn Target>> {
                Ok(Box::new(Full(File::create(path)?, room)))
            };
            let error = checkpoints.save_with(&module, &description(20), &values, &create).unwrap_err();
            let text = error.to_string();
            assert!(text.contains("step 20") && text.contains("bytes: "), "{text}");
            assert!(text.contains(&format!("`{}` is whole", earlier.display())), "{text}");
            let names: Vec<_> = fs::read_dir(folder.path().join("checkpoints")).unwrap().collect();
            assert_eq!(names.len(), 1, "{names:?}");
        }
        assert_eq!(checkpoints.latest().unwrap().checkpoint.unwrap().description.step(), 10);
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_named_with_the_bytes_it_takes() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("checkpoints"), "a file").unwrap();
        let checkpoints = Checkpoints::new(&folder.path().join("checkpoints"));
        let error = checkpoints.save(&module(), &description(5), &values(1)).unwrap_err().to_string();
        assert!(error.contains("checkpoints/step-5") && error.contains("there is no earlier"), "{error}");
    }

    #[test]
    fn a_value_of_the_wrong_size_is_refused_before_anything_has_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let checkpoints = Checkpoints::new(&folder.path().join("checkpoints"));
        let mut values = values(1);
        values.insert("weight".to_owned(), vec![0; 3].into());
        let error = checkpoints.save(&module(), &description(5), &values).unwrap_err().to_string();
        assert_eq!(error, "the value of state `weight` has 3 bytes, its type takes 24");
        assert!(!checkpoints.path(5).exists());
    }

    #[test]
    fn a_step_is_saved_again_over_what_a_killed_run_left() {
        let folder = tempfile::tempdir().unwrap();
        let checkpoints = Checkpoints::new(&folder.path().join("checkpoints"));
        checkpoints.save(&module(), &description(5), &values(1)).unwrap();
        fs::create_dir(folder.path().join("checkpoints/step-5.tmp")).unwrap();
        fs::write(folder.path().join("checkpoints/step-5.tmp").join(STATES), "torn").unwrap();
        checkpoints.save(&module(), &description(5), &values(2)).unwrap();
        let found = checkpoints.latest().unwrap().checkpoint.unwrap();
        assert_eq!(found.load(&module()).unwrap(), values(2));
        assert_eq!(fs::read_dir(folder.path().join("checkpoints")).unwrap().count(), 1);
        checkpoints.remove_all().unwrap();
        assert_eq!(fs::read_dir(folder.path().join("checkpoints")).unwrap().count(), 0);
    }
}
