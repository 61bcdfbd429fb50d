//! The parts of a compilation that the jobs of a search share: the model's file, its import, and all passes before the first one whose
//! options differ.

use super::{Forward, Job, forward, import_with, open, sizes_of};
use crate::compilation::Source;
use crate::failure::Failure;
use passes::Manager;
use std::borrow::Cow;
use std::collections::BTreeMap;

/// The imported models of jobs, for further jobs.
#[derive(Debug, Default)]
pub struct Shared {
    /// Each with a job that it was imported for, and with the sizes of its dims.
    imported: Vec<(Job, BTreeMap<String, u64>, Source)>,
}

impl Shared {
    /// Compiles the model of a job up to its loss, from the parts that are known.
    ///
    /// # Errors
    /// As of [`super::import`] and [`forward`].
    pub fn forward<'m>(&mut self, job: &Job, manager: &'m Manager) -> Result<Forward<'m>, Failure> {
        let of_file = || self.imported.iter().filter(|(known, ..)| known.file() == job.file());
        let model = match of_file().next() {
            Some((.., source)) => Cow::Borrowed(&source.model),
            None => Cow::Owned(open(job)?),
        };
        let sizes = sizes_of(job, &model)?;
        let source = match of_file().find(|(_, known, _)| *known == sizes) {
            Some((.., source)) => source.clone(),
            None => {
                let mut source = import_with(job, model.into_owned(), &sizes)?;
                source.share_passes();
                self.imported.push((job.clone(), sizes.clone(), source.clone()));
                source
            }
        };
        forward(job, (source, sizes), manager, &mut |_, _, _| {})
    }

    /// The number of models that were imported. Tests compare it.
    pub fn imports(&self) -> usize {
        self.imported.len()
    }
}
