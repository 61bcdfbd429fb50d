//! The output folder: the files of a compilation and of a run.
//!
//! `program.ir`, `plan.json`, `config.toml`, `metrics.jsonl`, `checkpoints/step-N/`, `model.onnx`, `model.safetensors`, and
//! `model-training.onnx` where the model was exported in training mode; with `--profile` also `timeline.json`, and in a
//! pipeline `profile.json`; of several processes also `logs/` and `flight/`. The file `.trainyard` lists those of these names that a run
//! has written (`list`). Every file is written under a temporary name and renamed, so a reader never sees half of a file. [`Folder::check`]
//! only reads. No file in the folder is changed before all checks have passed.

mod list;

use crate::log::LOGS;
use files::disk;
use files::{FolderLock, LockError, Replacement};
use ir::Diagnostic;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

/// The names of a run's files. Other files in the folder belong to the user and stay.
fn contents() -> impl Iterator<Item = &'static str> {
    let before_export = ["program.ir", "plan.json", "config.toml", "metrics.jsonl", "checkpoints"];
    before_export.into_iter().chain(EXPORTED).chain(["timeline.json", PROFILE, FLIGHT, LOGS])
}

/// The names of the files that an export may write.
pub const EXPORTED: [&str; 5] =
    ["model.onnx", "model.onnx.data", "model-training.onnx", "model-training.onnx.data", "model.safetensors"];

/// The measured tasks of a pipeline.
pub const PROFILE: &str = "profile.json";

/// The folder of the flight records of ranks that failed.
pub const FLIGHT: &str = "flight";

/// The longest time until all processes see a mark that one process left.
const MARK_SHOWS: Duration = Duration::from_secs(10);

/// An output folder, perhaps not made yet.
#[derive(Clone, Debug)]
pub struct Folder {
    path: PathBuf,
}

impl Folder {
    /// The folder at a path.
    pub fn new(path: &Path) -> Self {
        Self { path: path.to_path_buf() }
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A file or folder in it.
    pub fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Whether a path is that of this folder.
    pub fn is(&self, path: &Path) -> bool {
        let canonical = fs::canonicalize(&self.path).ok();
        path == self.path || (canonical.is_some() && canonical == fs::canonicalize(path).ok())
    }

    /// Refuses a folder for a new run if it holds another run, unless `force` allows to remove that run and the new run reads none of its
    /// files. Refuses files with the names of a run's files that no run wrote.
    pub fn check(&self, force: bool, reads: &[PathBuf]) -> Result<(), Diagnostic> {
        if self.path.exists() && !self.path.is_dir() {
            return Err(Diagnostic::new(format!("{} is not a folder", self.path.display()))
                .note("give another folder: -o ANOTHER_DIR"));
        }
        let found = self.found();
        if found.is_empty() {
            return Ok(());
        }
        let listed = list::listed(&self.path);
        let foreign: Vec<&str> = found.iter().copied().filter(|name| !listed.contains(*name)).collect();
        if !foreign.is_empty() {
            let (path, names) = (self.path.display(), foreign.join(", "));
            let message = format!(
                "{path} has files that no run of trainyard wrote ({names}), and a run would overwrite them"
            );
            return Err(Diagnostic::new(message).note("to keep them: -o ANOTHER_DIR"));
        }
        if !force {
            let message = format!("{} holds another run ({})", self.path.display(), found.join(", "));
            return Err(Diagnostic::new(message)
                .note("to continue that run: --resume")
                .note("to delete it: --force")
                .note("to keep it: -o ANOTHER_DIR"));
        }
        let lost = |path: &&PathBuf| {
            let path = fs::canonicalize(path).unwrap_or_default();
            let mut ours = found.iter().filter_map(|name| fs::canonicalize(self.join(name)).ok());
            ours.any(|ours| path.starts_with(ours))
        };
        reads.iter().find(lost).map_or(Ok(()), |path| {
            let message = format!("--force would delete {}, which this run reads", path.display());
            Err(Diagnostic::new(message).note("to keep the file: -o ANOTHER_DIR"))
        })
    }

    /// The paths of a run's files in it.
    pub fn files(&self) -> Vec<PathBuf> {
        self.found().into_iter().map(|name| self.join(name)).collect()
    }

    /// Removes the files of runs. Files of others stay, also in the folders of a run.
    pub fn clear(&self) -> Result<(), Diagnostic> {
        self.found().into_iter().try_for_each(|name| self.remove(name))
    }

    /// Removes a file of a run, or its files in a folder, if a run has written them.
    pub fn remove(&self, name: &str) -> Result<(), Diagnostic> {
        let path = self.join(name);
        if fs::symlink_metadata(&path).is_err() || !list::listed(&self.path).contains(name) {
            return Ok(());
        }
        list::remove(&path, name).map_err(|error| cannot("remove", &path, &error))
    }

    /// Notes that the run writes its metrics, checkpoints and logs into the folder, which is there.
    pub fn claim_training(&self) -> Result<(), Diagnostic> {
        list::add(&self.path, &["metrics.jsonl", "checkpoints", FLIGHT, LOGS])
    }

    /// Notes that the run exports its model into the folder, which is there.
    pub fn claim_export(&self) -> Result<(), Diagnostic> {
        list::add(&self.path, &EXPORTED)
    }

    /// Locks the folder for this process, and creates it if `make` is set; `None` if it does not exist. Files that killed runs left half
    /// written in it are removed. `warn` is told if the file system has no locks. Errors: another process has locked the folder.
    pub fn lock(&self, make: bool, warn: impl FnOnce(Diagnostic)) -> Result<Option<FolderLock>, Diagnostic> {
        if make {
            disk::create_folders(&self.path)
                .map_err(|error| cannot("create the folder", &self.path, &error))?;
        } else if !self.path.is_dir() {
            return Ok(None);
        }
        match FolderLock::take(&self.path) {
            Ok(lock) => {
                for folder in [self.path.clone(), self.join("checkpoints")] {
                    files::remove_leftovers(&folder).map_err(|error| cannot("clear", &folder, &error))?;
                }
                Ok(Some(lock))
            }
            Err(error @ LockError::Unsupported { .. }) => {
                warn(Diagnostic::new(error.to_string()));
                Ok(None)
            }
            Err(error @ LockError::Held { .. }) => Err(Diagnostic::new(error.to_string())
                .passing_if(true)
                .note("wait until the other run ends, or stop it")
                .note("or give another folder: -o ANOTHER_DIR")),
            Err(error @ LockError::Foreign { .. }) => {
                Err(Diagnostic::new(error.to_string()).note("give another folder: -o ANOTHER_DIR"))
            }
            Err(error) => Err(Diagnostic::new(error.to_string())),
        }
    }

    /// Leaves a mark in the folder, which must exist. The other processes of a run recognise the folder by the mark.
    pub fn mark(&self) -> Result<String, Diagnostic> {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let mark = format!("process {}, {} ns since 1970\n", std::process::id(), since.as_nanos());
        let written = Replacement::write(&self.marked(), mark.as_bytes());
        written.map_err(|error| cannot("write", &self.marked(), &error))?;
        Ok(mark)
    }

    /// Removes the mark.
    pub fn unmark(&self) -> Result<(), Diagnostic> {
        disk::remove(&self.marked()).map_err(|error| cannot("remove", &self.marked(), &error))
    }

    /// Refuses a folder without this mark. A network file system may show the mark only after a while.
    pub fn check_mark(&self, mark: &str) -> Result<(), Diagnostic> {
        let begun = Instant::now();
        while fs::read_to_string(self.marked()).ok().as_deref() != Some(mark) {
            if begun.elapsed() > MARK_SHOWS {
                let message = format!("{} is another folder than that of rank 0", self.path.display());
                return Err(Diagnostic::new(message).note(
                    "all ranks write into one folder: on several machines a network folder, with the same -o",
                ));
            }
            thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    fn marked(&self) -> PathBuf {
        self.path.join(".one-folder")
    }

    /// Refuses a path for a file that the user chose with `flag`, if it leads to one of the files `reads` or to a file that is in use.
    pub fn check_target(flag: &str, path: &Path, reads: &[PathBuf]) -> Result<(), Diagnostic> {
        let target = fs::canonicalize(path).ok();
        let is_target = |read: &PathBuf| target.is_some() && fs::canonicalize(read).ok() == target;
        if !reads.iter().any(is_target) && !files::is_in_use(path) {
            return Ok(());
        }
        let message = format!("{flag} {} would overwrite a file that this command reads", path.display());
        Err(Diagnostic::new(message).note(format!("give another file: {flag} ANOTHER_FILE")))
    }

    fn found(&self) -> Vec<&'static str> {
        // A link that leads nowhere is there too.
        contents().filter(|name| fs::symlink_metadata(self.join(name)).is_ok()).collect()
    }

    /// Writes files, all of them or none; the folder is created if it does not exist.
    pub fn write(&self, files: &[(&str, &[u8])]) -> Result<(), Diagnostic> {
        let is_new = !self.path.exists();
        disk::create_folders(&self.path).map_err(|error| cannot("create the folder", &self.path, &error))?;
        let complete = |&(name, bytes): &(&str, &[u8])| {
            let mut file = Replacement::begin(&self.join(name))?;
            file.write_all(bytes)?;
            file.complete()?;
            Ok(file)
        };
        let tell = |name: &str, error: io::Error| cannot("write", &self.join(name), &error);
        let written: Result<Vec<Replacement>, Diagnostic> =
            files.iter().map(|file| complete(file).map_err(|error| tell(file.0, error))).collect();
        let publish = |written: Vec<Replacement>| {
            let names: Vec<&str> = files.iter().map(|(name, _)| *name).collect();
            list::add(&self.path, &names)?;
            let mut written = written.into_iter().zip(files);
            written.try_for_each(|(file, (name, _))| file.publish().map_err(|error| tell(name, error)))
        };
        written.and_then(publish).inspect_err(|_| {
            if is_new {
                let _ = fs::remove_dir(&self.path);
            }
        })
    }
}

fn cannot(what: &str, path: &Path, error: &io::Error) -> Diagnostic {
    Diagnostic::new(format!("cannot {what} {}: {error}", path.display())).passing_if(disk::is_passing(error))
}
