//! DeepSpeed's JSON, and PatrickStar's, as flags: `trainyard compile model.onnx --config ds.json`.
//!
//! `keys` is the table of all known keys with their meanings, `document` reads a file against it. The other files turn keys that
//! belong together into flags, one file for each group of keys. The command line wins: its flags replace those of the file, and its
//! mesh decides the number of data ranks. The result is a list of arguments, which the command line's parser reads, and [`Notes`]
//! with every key that is not honoured.
//!
//! A section that the file gives has DeepSpeed's defaults for keys that it leaves out. A section that is not there leaves the flags
//! as they are.

mod batch;
mod document;
mod keys;
mod mesh;
mod notes;
mod offload;
mod optimizer;
mod precision;
mod reference;
mod schedule;
#[cfg(test)]
mod tests;

pub use notes::Notes;
pub use reference::keys_table;

use clap::Command;
use ir::Diagnostic;

use self::document::{Document, Leaf};
use self::keys::Meaning;
use super::check::exclude;
use super::command_line::CommandLine;
use super::file::{Entry, explain, flags, parse_arguments};
use super::text_file::TextFile;

/// Turns a file into entries of a config file, and notes.
pub(super) fn translate(file: &TextFile, line: &CommandLine) -> Result<(Vec<Entry>, Notes), Vec<Diagnostic>> {
    let mut notes = Notes::new(file.name());
    let document = Document::read(file, &mut notes)?;
    let mut translation =
        Translation { document: &document, line, flags: flags(), notes, entries: vec![], errors: vec![] };
    let data_ranks = mesh::translate(&mut translation);
    batch::translate(&mut translation, data_ranks);
    let rate = schedule::rate(&document, line);
    optimizer::translate(&mut translation, &rate);
    schedule::translate(&mut translation, &rate);
    precision::translate(&mut translation);
    mesh::zero(&mut translation, data_ranks);
    offload::translate(&mut translation);
    recompute(&mut translation);
    clip(&mut translation);
    same(&mut translation);
    let Translation { notes, entries, errors, .. } = translation;
    if errors.is_empty() { Ok((entries, notes)) } else { Err(errors) }
}

/// The entries, notes and errors of a translation in progress.
struct Translation<'a> {
    document: &'a Document,
    line: &'a CommandLine<'a>,
    flags: Command,
    notes: Notes,
    entries: Vec<Entry>,
    errors: Vec<Diagnostic>,
}

impl Translation<'_> {
    /// Adds `--FLAG=VALUE` for a key.
    fn set(&mut self, flag: &str, value: &str, leaf: &Leaf) {
        self.add(flag, format!("--{flag}={value}"), leaf);
    }

    /// Adds the switch `--FLAG` for a key.
    fn switch_on(&mut self, flag: &str, leaf: &Leaf) {
        self.add(flag, format!("--{flag}"), leaf);
    }

    fn add(&mut self, flag: &str, argument: String, leaf: &Leaf) {
        match parse_arguments(&self.flags, std::slice::from_ref(&argument)) {
            Ok(()) => self.entries.push(Entry { key: flag.to_owned(), arguments: vec![argument] }),
            Err(error) => self.refuse(leaf, Diagnostic::new(format!("`{}`: {}", leaf.path, explain(&error)))),
        }
    }

    /// Refuses the value of a key.
    fn refuse(&mut self, leaf: &Leaf, error: Diagnostic) {
        self.errors.push(error.at(leaf.place.clone()));
    }

    /// Notes that a key is not honoured.
    fn drop_leaf(&mut self, leaf: &Leaf, reason: impl Into<String>) {
        self.notes.drop_key(leaf.path, reason);
    }
}

/// `--recompute full`, if the file asks for activation checkpointing. If other keys of the file became `--memory`, this key is not honoured,
/// since the search of `--memory` decides.
fn recompute(translation: &mut Translation) {
    let document = translation.document;
    let asks =
        |leaf: &&Leaf| leaf.path.starts_with("activation_checkpointing.") && !document.is_off(leaf.path);
    let interval = document.leaf("pipeline.activation_checkpoint_interval");
    let interval = interval.filter(|leaf| leaf.count().is_some_and(|layers| layers > 0));
    let is_excluded = translation.entries.iter().any(|entry| exclude(&entry.key, "recompute"));
    match document.leaves().find(asks).or(interval) {
        Some(leaf) if is_excluded => {
            translation.drop_leaf(leaf, "--memory decides which activations are computed again");
        }
        Some(leaf) => translation.set("recompute", "full", leaf),
        None => {}
    }
    if let Some(leaf) = interval.filter(|leaf| leaf.count().is_some_and(|layers| layers > 1)) {
        translation.drop_leaf(leaf, "a value is kept between every two blocks of the model");
    }
}

/// `--clip`, unless the norm is 0, which does not clip.
fn clip(translation: &mut Translation) {
    let document = translation.document;
    let Some(leaf) = document.leaf("gradient_clipping") else { return };
    if document.number(leaf.path) != Some(0.0) {
        translation.set("clip", leaf.digits().unwrap_or_default(), leaf);
    }
}

/// The keys that mean the same as a flag.
fn same(translation: &mut Translation) {
    for key in keys::KEYS.iter() {
        let Meaning::Same(flag) = key.meaning else { continue };
        let Some(leaf) = translation.document.leaf(&key.path) else { continue };
        if let Some(argument) = leaf.argument(flag) {
            translation.add(flag, argument, leaf);
        }
    }
}
