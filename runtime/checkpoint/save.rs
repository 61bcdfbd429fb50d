//! Writes a checkpoint into a temporary folder beside it, which is flushed and then renamed.

use super::description::{Description, Document, Shard};
use super::error::CheckpointError;
use super::find::newest_whole;
use super::folders::Checkpoints;
use super::shards::Owned;
use super::tensor_file::MARK;
use super::tensor_writer::{TensorLayout, TensorRow};
use super::{DESCRIPTION, STATES, StateSource, padding};
use files::disk::{self, OpenFile};
use ir::{Module, State};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

impl Checkpoints {
    /// Writes the checkpoint that `description` describes, replacing one of the same step, and returns its path. The folder above
    /// [`Self::folder`] must exist.
    ///
    /// # Errors
    /// A value is missing or has another size; the disk is full; the folder cannot be written or is gone. Then nothing of this checkpoint
    /// remains, and earlier ones are unchanged.
    pub fn save(
        &self,
        module: &Module,
        description: &Description,
        states: &dyn StateSource,
    ) -> Result<PathBuf, CheckpointError> {
        let table = StateTable::of(module)?;
        let path = self.path(description.step());
        let temporary = files::temporary_name(&path);
        self.write(&table, description, states, &temporary, &path).map_err(|failure| {
            self.abandon(&temporary);
            match failure {
                Failure::State(error) => error,
                Failure::Disk(source) => self.unwritten(description.step(), table.layout.bytes(), source),
            }
        })?;
        Ok(path)
    }

    /// Begins the checkpoint of a step that several ranks write: makes the folder for their files, with a temporary name. Rank 0 calls
    /// this, then every rank calls [`Self::write_shard`], and then rank 0 calls [`Self::commit`], or [`Self::abandon`] if a rank failed.
    ///
    /// # Errors
    /// The folder cannot be made.
    pub fn begin(&self, step: u64) -> Result<PathBuf, CheckpointError> {
        let temporary = files::temporary_name(&self.path(step));
        let made = self.make_folder().and_then(|()| disk::create_folder(&temporary));
        made.map_err(|source| self.unwritten(step, 0, source))?;
        Ok(temporary)
    }

    /// Writes the blocks of states that a rank owns into the folder `temporary`. `states` gives the rank's part of each state.
    ///
    /// # Errors
    /// A part is missing or has another size; the disk is full.
    pub fn write_shard(
        &self,
        temporary: &Path,
        step: u64,
        module: &Module,
        rank: u64,
        states: &dyn StateSource,
    ) -> Result<Shard, CheckpointError> {
        let owned = Owned::of(module, rank)?;
        let value = |row: &TensorRow| {
            let part = states.state(&row.name).unwrap_or_default();
            owned.cut(row, part).map_err(Failure::State)
        };
        let written = write_file(&temporary.join(owned.file()), |out| owned.layout.write(out, value));
        match written {
            Ok(checksums) => Ok(owned.written(checksums)),
            Err(Failure::State(error)) => Err(error),
            Err(Failure::Disk(source)) => Err(self.unwritten(step, owned.layout.bytes(), source)),
        }
    }

    /// Completes a checkpoint that all ranks have written, and gives the folder its name. Returns its path.
    ///
    /// # Errors
    /// The folder cannot be written or is gone. Then nothing of this checkpoint remains.
    pub fn commit(
        &self,
        temporary: &Path,
        description: &Description,
        shards: Vec<Shard>,
    ) -> Result<PathBuf, CheckpointError> {
        let (step, path) = (description.step(), self.path(description.step()));
        let bytes = shards.iter().map(|shard| shard.bytes).sum();
        let document = Document::of_shards(description.clone(), shards).to_bytes();
        let written = write_file(&temporary.join(DESCRIPTION), |out| Ok(out.write_all(&document)?));
        let published = written.and_then(|()| {
            disk::sync_folder(temporary)?;
            Ok(self.publish(temporary, &path)?)
        });
        published.map_err(|failure| {
            self.abandon(temporary);
            match failure {
                Failure::State(error) => error,
                Failure::Disk(source) => self.unwritten(step, bytes, source),
            }
        })?;
        Ok(path)
    }

    /// Abandons a checkpoint that was begun.
    pub fn abandon(&self, temporary: &Path) {
        // A folder that cannot be removed keeps its temporary name, which no reader takes for a checkpoint.
        let _ = disk::remove(temporary);
    }

    fn unwritten(&self, step: u64, needed: u64, source: io::Error) -> CheckpointError {
        let kept = newest_whole(&self.folder).map(|checkpoint| checkpoint.path);
        CheckpointError::Write { path: self.path(step), step, needed, source, kept }
    }

    /// Makes the folder of all checkpoints, if it does not exist.
    fn make_folder(&self) -> io::Result<()> {
        if !self.folder.is_dir() {
            disk::create_folder(&self.folder)?;
            disk::sync_folder(files::parent(&self.folder))?;
        }
        Ok(())
    }

    /// Writes all files into the folder `temporary`, and renames it to `path` when they are on the disk.
    fn write(
        &self,
        table: &StateTable,
        description: &Description,
        states: &dyn StateSource,
        temporary: &Path,
        path: &Path,
    ) -> Result<(), Failure> {
        self.make_folder()?;
        disk::create_folder(temporary)?;
        let checksums = write_file(&temporary.join(STATES), |out| {
            table.layout.write(out, |row| table.value(row, states))
        })?;
        let files = BTreeMap::from([(STATES.to_owned(), table.layout.bytes())]);
        let document = Document::new(description.clone(), files, checksums).to_bytes();
        write_file(&temporary.join(DESCRIPTION), |out| Ok(out.write_all(&document)?))?;
        disk::sync_folder(temporary)?;
        self.publish(temporary, path)?;
        Ok(())
    }

    /// Gives a complete folder its name. A folder that already has this name is first renamed, because renaming onto a folder with files
    /// fails, and removed at the end.
    fn publish(&self, temporary: &Path, path: &Path) -> io::Result<()> {
        let replaced = files::temporary_name(path);
        if path.exists() {
            disk::rename(path, &replaced)?;
        }
        disk::rename(temporary, path)?;
        disk::sync_folder(&self.folder)?;
        disk::remove(&replaced)
    }
}

type Out = BufWriter<OpenFile>;

/// Writes a new file and waits until it is on the disk. Returns the result of `contents`.
fn write_file<T>(path: &Path, contents: impl FnOnce(&mut Out) -> Result<T, Failure>) -> Result<T, Failure> {
    let mut out = BufWriter::with_capacity(1 << 20, disk::create_new(path)?);
    let result = contents(&mut out)?;
    out.flush()?;
    out.get_ref().sync()?;
    Ok(result)
}

/// The reason why a checkpoint was not written.
enum Failure {
    Disk(io::Error),
    State(CheckpointError),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Disk(error)
    }
}

/// The states of a program in the form of a file.
struct StateTable<'m> {
    layout: TensorLayout<'static>,
    states: BTreeMap<&'m str, &'m State>,
}

impl<'m> StateTable<'m> {
    fn of(module: &'m Module) -> Result<Self, CheckpointError> {
        let row = |state: &State| match padding::unpadded_type(state).and_then(|ty| ty.sizes()) {
            Some(dims) => Ok(TensorRow { name: state.name.clone(), dtype: state.ty.dtype, dims }),
            None => Err(CheckpointError::State { name: state.name.clone(), found: 0, expected: u64::MAX }),
        };
        let rows = module.states.values().map(row).collect::<Result<_, _>>()?;
        let layout =
            TensorLayout::new(rows, &[MARK]).map_err(|name| CheckpointError::ReservedName { name })?;
        Ok(Self {
            layout,
            states: module.states.values().map(|state| (state.name.as_str(), state)).collect(),
        })
    }

    /// Returns the bytes of a state without padding.
    fn value<'s>(&self, row: &TensorRow, states: &'s dyn StateSource) -> Result<Cow<'s, [u8]>, Failure> {
        let mut value = states.state(&row.name).unwrap_or_default();
        if let Some(state) = self.states.get(row.name.as_str()).filter(|state| padding::is_padded(state))
            && let Some(unpadded) = padding::remove(state, value.to_vec().into())
        {
            value = unpadded.to_vec().into();
        }
        if value.len() as u64 != row.bytes() {
            let (name, found, expected) = (row.name.clone(), value.len() as u64, row.bytes());
            return Err(Failure::State(CheckpointError::State { name, found, expected }));
        }
        Ok(value)
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{description, module, values};
    use super::*;
    use files::fault::{Fault, count, inject};
    use std::fs;

    /// Makes a run with the checkpoint of step 10.
    fn run() -> (tempfile::TempDir, Checkpoints) {
        let folder = tempfile::tempdir().unwrap();
        let checkpoints = Checkpoints::new(&folder.path().join("checkpoints"));
        checkpoints.save(&module(), &description(10), &values(1)).unwrap();
        (folder, checkpoints)
    }

    fn names(checkpoints: &Checkpoints) -> Vec<String> {
        let entries = fs::read_dir(checkpoints.folder()).unwrap();
        entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn a_full_disk_leaves_nothing_behind_and_names_the_checkpoint_that_is_whole() {
        let (_folder, checkpoints) = run();
        let save = || checkpoints.save(&module(), &description(20), &values(2));
        for at in 0..4 {
            let text = ir::Diagnostic::from(inject(at, Fault::Full, save).unwrap_err()).to_string();
            assert!(text.contains("step 20") && text.contains("bytes: "), "{text}");
            let earlier = checkpoints.path(10);
            assert!(text.contains(&format!("`{}` is whole", earlier.display())), "{text}");
            assert_eq!(names(&checkpoints), ["step-10"]);
        }
    }

    /// After any fault at any operation, the checkpoint before or the one after exists and is whole.
    #[test]
    fn a_save_survives_every_fault_at_every_operation() {
        for replaced in [20, 10] {
            let save =
                |checkpoints: &Checkpoints| checkpoints.save(&module(), &description(replaced), &values(2));
            let (_folder, checkpoints) = run();
            let (saved, operations) = count(|| save(&checkpoints));
            saved.unwrap();
            println!("a save of step {replaced} after step 10: {operations} operations");
            for (at, fault) in (0..operations).flat_map(|at| Fault::ALL.map(|fault| (at, fault))) {
                let (_folder, checkpoints) = run();
                // There is a second, earlier checkpoint, since the one of the same step is renamed first.
                checkpoints.save(&module(), &description(9), &values(9)).unwrap();
                let _ = inject(at, fault, || save(&checkpoints));
                let found = checkpoints.latest().unwrap();
                assert!(found.damaged.is_empty(), "{fault:?} at {at}: {:?}", found.damaged);
                let found = found.checkpoint.expect("there was one before");
                let step = found.description.step();
                let loaded = found.load(&module()).unwrap();
                let known = [(9, values(9)), (10, values(1)), (replaced, values(2))];
                assert!(known.contains(&(step, loaded)), "{fault:?} at {at}: step {step} is neither");
                assert!(step >= 10 || replaced == 10, "{fault:?} at {at}: step 10 is gone");
                save(&checkpoints).unwrap();
                assert_eq!(
                    checkpoints.latest().unwrap().checkpoint.unwrap().load(&module()).unwrap(),
                    values(2)
                );
            }
        }
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_named_with_the_bytes_it_takes() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("checkpoints"), "a file").unwrap();
        let checkpoints = Checkpoints::new(&folder.path().join("checkpoints"));
        let error = checkpoints.save(&module(), &description(5), &values(1)).unwrap_err();
        let error = ir::Diagnostic::from(error).to_string();
        assert!(error.contains("checkpoints/step-5") && error.contains("there is no earlier"), "{error}");
    }

    #[test]
    fn a_value_of_the_wrong_size_is_refused_before_anything_has_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let checkpoints = Checkpoints::new(&folder.path().join("checkpoints"));
        let mut values = values(1);
        values.insert("weight".to_owned(), vec![0; 3].into());
        let error = checkpoints.save(&module(), &description(5), &values).unwrap_err().to_string();
        assert_eq!(error, "the value of state `weight` has 3 bytes, and its type needs 24");
        assert!(!checkpoints.path(5).exists());
    }

    #[test]
    fn a_step_is_saved_again_over_what_a_killed_run_left() {
        let folder = tempfile::tempdir().unwrap();
        let checkpoints = Checkpoints::new(&folder.path().join("checkpoints"));
        checkpoints.save(&module(), &description(5), &values(1)).unwrap();
        let left = folder.path().join("checkpoints/.step-5.0123456789abcdef.partial");
        fs::create_dir(&left).unwrap();
        fs::write(left.join(STATES), "torn").unwrap();
        checkpoints.save(&module(), &description(5), &values(2)).unwrap();
        let found = checkpoints.latest().unwrap().checkpoint.unwrap();
        assert_eq!(found.load(&module()).unwrap(), values(2));
        checkpoints.remove_all().unwrap();
        assert_eq!(fs::read_dir(folder.path().join("checkpoints")).unwrap().count(), 0);
    }
}
