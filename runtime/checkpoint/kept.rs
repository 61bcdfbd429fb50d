//! The existing checkpoints of a run: their steps, and the removal of checkpoints that it no longer needs.

use super::error::CheckpointError;
use super::folders::{Checkpoints, folders};
use files::disk;
use std::{fs, io};

impl Checkpoints {
    /// Returns the steps of the checkpoints in the folder, whole or not, in order.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn steps(&self) -> Result<Vec<u64>, CheckpointError> {
        Ok(folders(&self.folder)?.into_iter().map(|(step, _)| step).collect())
    }

    /// Returns an error if there is no checkpoint of a step.
    ///
    /// # Errors
    /// There is no such checkpoint (the error lists the existing steps); the folder cannot be read.
    pub fn check_step(&self, step: u64) -> Result<(), CheckpointError> {
        let steps = self.steps()?;
        if steps.contains(&step) {
            return Ok(());
        }
        Err(CheckpointError::NoStep { folder: self.folder.clone(), step, steps })
    }

    /// Removes every checkpoint, whole or not, of a run that another run replaces.
    ///
    /// # Errors
    /// The folder cannot be read or changed.
    pub fn remove_all(&self) -> io::Result<()> {
        let entries = match fs::read_dir(&self.folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            entries => entries?,
        };
        files::remove_leftovers(&self.folder)?;
        for entry in entries {
            let entry = entry?;
            // Other files in the folder belong to the user.
            if entry.file_name().to_str().is_some_and(|name| name.starts_with("step-")) {
                disk::remove(&entry.path())?;
            }
        }
        Ok(())
    }

    /// Removes the checkpoints after `step`, at which the run resumes. The newest is removed first, so that a crash leaves the run at one
    /// of them.
    ///
    /// # Errors
    /// The folder cannot be read or changed.
    pub fn remove_after(&self, step: u64) -> Result<(), CheckpointError> {
        self.steps()?
            .into_iter()
            .rev()
            .take_while(|&later| later > step)
            .try_for_each(|later| self.remove(later))
    }

    /// Removes old checkpoints. Of the checkpoints up to the step `done`, which was just saved, the newest `count` and that of the step
    /// `best` stay. Later ones are ignored: they are damaged, since the run resumed from an earlier one.
    ///
    /// # Errors
    /// The folder cannot be read or changed.
    pub fn keep(&self, count: u64, done: u64, best: Option<u64>) -> Result<(), CheckpointError> {
        let steps: Vec<u64> = self.steps()?.into_iter().filter(|&step| step <= done).collect();
        let old = steps.len().saturating_sub(count.max(1) as usize);
        let old = steps[..old].iter().filter(|&&step| Some(step) != best);
        // A failure to remove one does not prevent the removal of the others.
        let removed: Vec<_> = old.map(|&step| self.remove(step)).collect();
        removed.into_iter().collect()
    }

    /// Removes a checkpoint. It is renamed first, so that a crash leaves no part of it under its name.
    fn remove(&self, step: u64) -> Result<(), CheckpointError> {
        let path = self.path(step);
        let removed = files::temporary_name(&path);
        let remove = || {
            disk::rename(&path, &removed)?;
            disk::sync_folder(&self.folder)?;
            disk::remove(&removed)
        };
        remove().map_err(|source| CheckpointError::Remove { path: path.clone(), source })
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{module, saved, values};
    use std::fs;

    #[test]
    fn a_step_without_a_checkpoint_is_answered_with_those_that_have_one() {
        let (_folder, checkpoints) = saved(&[5, 100, 20]);
        checkpoints.check_step(20).unwrap();
        let error = checkpoints.check_step(12).unwrap_err().to_string();
        assert!(
            error
                .ends_with("has no checkpoint of step 12; it has the checkpoints of the steps 5, 20 and 100"),
            "{error}"
        );
        checkpoints.remove_after(5).unwrap();
        let error = checkpoints.check_step(12).unwrap_err().to_string();
        assert!(error.ends_with("has no checkpoint of step 12; it has the checkpoint of step 5"), "{error}");
        checkpoints.remove_all().unwrap();
        let error = checkpoints.check_step(12).unwrap_err().to_string();
        assert!(error.ends_with("has no checkpoint of step 12, and no other checkpoint"), "{error}");
    }

    #[test]
    fn the_newest_and_the_best_are_kept() {
        for (count, best, kept) in [
            (1, None, vec![40]),
            (2, None, vec![30, 40]),
            (2, Some(10), vec![10, 30, 40]),
            (2, Some(40), vec![30, 40]),
            (9, Some(20), vec![10, 20, 30, 40]),
        ] {
            let (_folder, checkpoints) = saved(&[10, 20, 30, 40, 50]);
            checkpoints.keep(count, 40, best).unwrap();
            assert_eq!(checkpoints.steps().unwrap(), [kept, vec![50]].concat());
        }
    }

    #[test]
    fn checkpoints_after_a_step_are_removed_and_nothing_else() {
        let (_folder, checkpoints) = saved(&[5, 20, 100]);
        fs::write(checkpoints.folder.join("notes.txt"), "the user's own").unwrap();
        checkpoints.remove_after(5).unwrap();
        assert_eq!(checkpoints.steps().unwrap(), [5]);
        assert_eq!(fs::read_dir(&checkpoints.folder).unwrap().count(), 2);
        assert_eq!(checkpoints.latest().unwrap().checkpoint.unwrap().load(&module()).unwrap(), values(5));
    }
}
