//! Finds a checkpoint of a run: the newest whole one, or that of a step.

use super::error::CheckpointError;
use super::folders::{Checkpoints, folders};
use super::load::Checkpoint;
use std::path::Path;

/// The newest checkpoint of a run.
#[derive(Debug)]
pub struct Latest {
    /// The checkpoint; `None` if there is no whole one.
    pub checkpoint: Option<Checkpoint>,
    /// The errors of the newer checkpoints, none of which is whole.
    pub damaged: Vec<CheckpointError>,
}

/// Returns whether a checkpoint was found and could not be read, so that it is not known whether it is whole.
fn is_out_of_reach(error: &CheckpointError) -> bool {
    use std::io::ErrorKind::{IsADirectory, NotADirectory, NotFound, Other, UnexpectedEof};
    // The checkpoint is damaged: no file, something else in its place (`Other` is a pipe or a device), or too short a file.
    let damaged = [NotFound, NotADirectory, IsADirectory, Other, UnexpectedEof];
    matches!(error, CheckpointError::Read { source, .. } if !damaged.contains(&source.kind()))
}

impl Checkpoints {
    /// Returns the newest whole checkpoint. Temporary folders are skipped. Damaged checkpoints are skipped too, and reported.
    ///
    /// # Errors
    /// The folder cannot be read; the newest checkpoint cannot be read or has another version of the format. In these cases an older
    /// checkpoint would lose existing work.
    pub fn latest(&self) -> Result<Latest, CheckpointError> {
        let mut damaged = Vec::new();
        for (_, path) in folders(&self.folder)?.into_iter().rev() {
            match Checkpoint::open(&path) {
                Ok(checkpoint) => return Ok(Latest { checkpoint: Some(checkpoint), damaged }),
                Err(error @ CheckpointError::Version { .. }) => return Err(error),
                Err(error) if is_out_of_reach(&error) => {
                    return Err(CheckpointError::OutOfReach { source: Box::new(error) });
                }
                Err(error) => damaged.push(error),
            }
        }
        Ok(Latest { checkpoint: None, damaged })
    }

    /// Returns the checkpoint of a step.
    ///
    /// # Errors
    /// There is no checkpoint of that step (the error lists the existing steps); it is not whole.
    pub fn at(&self, step: u64) -> Result<Checkpoint, CheckpointError> {
        self.check_step(step)?;
        Checkpoint::open(&self.path(step))
    }
}

/// Returns the newest readable checkpoint of a folder.
pub(super) fn newest_whole(folder: &Path) -> Option<Checkpoint> {
    folders(folder).ok()?.into_iter().rev().find_map(|(_, path)| Checkpoint::open(&path).ok())
}

#[cfg(test)]
mod tests {
    use super::super::testing::{description, module, saved, values};
    use super::super::{DESCRIPTION, STATES};
    use super::*;
    use std::fs;

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
        assert!(found.damaged[0].to_string().contains("was it truncated?"), "{}", found.damaged[0]);
    }

    #[test]
    fn a_copy_in_the_place_of_another_checkpoint_is_passed_over() {
        let (_folder, checkpoints) = saved(&[10, 55]);
        fs::remove_dir_all(checkpoints.path(55)).unwrap();
        fs::create_dir(checkpoints.path(55)).unwrap();
        for name in [DESCRIPTION, STATES] {
            fs::copy(checkpoints.path(10).join(name), checkpoints.path(55).join(name)).unwrap();
        }
        let error = checkpoints.at(55).unwrap_err().to_string();
        assert!(
            error.ends_with(
                "step-55` is damaged: it holds the checkpoint of step 10, as `checkpoint.json` says"
            ),
            "{error}"
        );
        let found = checkpoints.latest().unwrap();
        assert_eq!((found.checkpoint.unwrap().description.step(), found.damaged.len()), (10, 1));
    }

    /// A link to itself takes the place of an unreadable file, since a test may run as root.
    #[cfg(unix)]
    #[test]
    fn a_checkpoint_that_cannot_be_read_is_not_passed_over() {
        for name in [DESCRIPTION, STATES] {
            let (_folder, checkpoints) = saved(&[1, 2]);
            let file = checkpoints.path(2).join(name);
            fs::remove_file(&file).unwrap();
            std::os::unix::fs::symlink(&file, &file).unwrap();
            let error = ir::Diagnostic::from(checkpoints.latest().unwrap_err()).to_string();
            assert!(error.starts_with(&format!("cannot read `{}`", file.display())), "{error}");
            assert!(error.contains("may be whole") && error.contains("--resume=DIR@STEP"), "{error}");
            checkpoints.at(1).unwrap();
        }
    }

    #[test]
    fn another_version_is_an_error_and_not_passed_over() {
        let (_folder, checkpoints) = saved(&[1, 2]);
        fs::write(checkpoints.path(2).join(DESCRIPTION), "{\"format\": 4, \"new\": [[1]]}").unwrap();
        let error = checkpoints.latest().unwrap_err().to_string();
        assert!(error.contains("format version 4, and this program reads versions up to 3"), "{error}");
    }

    #[test]
    fn a_damaged_value_is_named_with_the_newest_whole_checkpoint() {
        let (_folder, checkpoints) = saved(&[1, 2, 3]);
        for step in [2, 3] {
            let path = checkpoints.path(step).join(STATES);
            let mut bytes = fs::read(&path).unwrap();
            // The last tensor in the file is the one with the narrowest elements.
            *bytes.last_mut().unwrap() ^= 1;
            fs::write(&path, bytes).unwrap();
        }
        let error = checkpoints.latest().unwrap().checkpoint.unwrap().load(&module()).unwrap_err();
        let error = ir::Diagnostic::from(error).to_string();
        let run = checkpoints.folder.parent().unwrap().display();
        assert!(error.contains("step-3/state.safetensors` is damaged: the bytes of `half`"), "{error}");
        assert!(
            error.ends_with(&format!("step-1` is whole: resume from it with --resume={run}@1")),
            "{error}"
        );
    }
}
