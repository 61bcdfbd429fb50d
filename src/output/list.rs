//! The list of the files in a folder that runs of Trainyard wrote. Only files of the list are ever removed, because a folder may have had
//! files of these names before a run.

use super::{cannot, contents};
use crate::log::LOGS;
use files::{Replacement, disk};
use ir::Diagnostic;
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::Path;

/// The file with the list: a name in each line.
pub(super) const LIST: &str = ".trainyard";

/// The names in the list of a folder. Runs of older versions kept no list. A folder with the program and the flags of such a run is treated
/// as if all names of a run's files were in its list.
pub(super) fn listed(folder: &Path) -> BTreeSet<String> {
    let is_known = |line: &&str| contents().any(|name| name == *line);
    match fs::read_to_string(folder.join(LIST)) {
        Ok(text) => text.lines().filter(is_known).map(str::to_owned).collect(),
        Err(_) if is_of_older_version(folder) => contents().map(str::to_owned).collect(),
        Err(_) => BTreeSet::new(),
    }
}

fn is_of_older_version(folder: &Path) -> bool {
    let begins = |name: &str, with: &str| {
        fs::read_to_string(folder.join(name)).is_ok_and(|text| text.starts_with(with))
    };
    begins("program.ir", "trainyard-ir ") && begins("plan.json", "{") && folder.join("config.toml").is_file()
}

/// Adds names to the list of a folder that is there, before files of these names are written.
pub(super) fn add(folder: &Path, names: &[&str]) -> Result<(), Diagnostic> {
    let mut listed = listed(folder);
    let before = listed.len();
    listed.extend(names.iter().map(|name| (*name).to_owned()));
    let path = folder.join(LIST);
    if listed.len() == before && path.exists() {
        return Ok(());
    }
    let text: String = listed.iter().map(|name| format!("{name}\n")).collect();
    Replacement::write(&path, text.as_bytes()).map_err(|error| cannot("write", &path, &error))
}

/// Removes a file of a run. From a folder, the files that runs write there are removed, and then the folder if it is empty.
pub(super) fn remove(path: &Path, name: &str) -> io::Result<()> {
    if !path.is_dir() {
        return disk::remove(path);
    }
    match name {
        "checkpoints" => {
            files::remove_leftovers(path)?;
            remove_within(
                path,
                |name| number(name, "step-", ""),
                |folder| remove_within(folder, |name| is_of_checkpoint(name).then_some(0), disk::remove),
            )
        }
        super::FLIGHT | LOGS => remove_within(path, |name| number(name, "rank-", ".txt"), disk::remove),
        _ => Ok(()),
    }
}

/// Removes the entries of a folder that have names of a run's files, in falling order, and then the folder if it is empty.
fn remove_within(
    folder: &Path,
    order: impl Fn(&str) -> Option<u64>,
    remove: impl Fn(&Path) -> io::Result<()>,
) -> io::Result<()> {
    let mut ours = vec![];
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let place = entry.file_name().to_str().and_then(&order);
        ours.extend(place.map(|place| (place, entry.path())));
    }
    ours.sort();
    for (_, path) in ours.iter().rev() {
        // A folder with the name of a file of a run, or a file with the name of a folder, does not belong to a run.
        let removed = remove(path);
        if removed.as_ref().is_err_and(|error| error.kind() != io::ErrorKind::NotADirectory) {
            return removed;
        }
    }
    let is_empty = fs::read_dir(folder)?.next().is_none();
    let is_link = fs::symlink_metadata(folder)?.is_symlink();
    if is_empty && !is_link { disk::remove(folder) } else { Ok(()) }
}

/// The number in a name between a beginning and an end.
fn number(name: &str, begin: &str, end: &str) -> Option<u64> {
    name.strip_prefix(begin)?.strip_suffix(end)?.parse().ok()
}

/// Whether a file of this name belongs to a checkpoint.
fn is_of_checkpoint(name: &str) -> bool {
    let is_shard = |name: &str| {
        name.split_once("-of-")
            .is_some_and(|(rank, ranks)| [rank, ranks].iter().all(|part| part.parse::<u64>().is_ok()))
    };
    let states = name.strip_prefix("state").and_then(|name| name.strip_suffix(".safetensors"));
    name == "checkpoint.json"
        || states.is_some_and(|rest| rest.is_empty() || rest.strip_prefix('-').is_some_and(is_shard))
}
