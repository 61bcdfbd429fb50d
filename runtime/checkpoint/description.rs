//! `checkpoint.json`: the description of a checkpoint.

use super::evaluations::Evaluations;
use super::fingerprint::DataFingerprint;
use super::tensor_writer::Checksums;
use data::DataPosition;
use files::Checksum;
use ir::{Module, Role, State, visible};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

/// The version of the format. It changes when an older program could not read a newer file, or would misread it.
///
/// Version 1 had no checksums and no evaluations; its files are still read. Version 3 has a file for each rank; a checkpoint of one device
/// has version 2.
pub const FORMAT: u64 = 3;
/// The version of a checkpoint whose states are in one file.
pub(super) const ONE_FILE: u64 = 2;

/// All contents of a checkpoint except the values of its states.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Description {
    /// The module's name.
    pub module: String,
    /// The position in the data at which the next step begins. It also has the number of completed steps.
    pub position: DataPosition,
    /// The training data.
    pub data: DataFingerprint,
    /// The evaluations of the run. `None` in checkpoints of format 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evaluations: Option<Evaluations>,
    /// The state table.
    pub states: Vec<StateRow>,
}

/// The contents of `checkpoint.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Document {
    /// The format version: [`FORMAT`] or [`ONE_FILE`].
    pub(super) format: u64,
    /// The checksum of the file's bytes, computed with zeros in place of these digits.
    checksum: String,
    /// The other files of the checkpoint, with their sizes in bytes.
    pub(super) files: BTreeMap<String, u64>,
    /// The checksums of the states' tensors, if they are in one file.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) checksums: Checksums,
    /// The files of several ranks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) shards: Vec<Shard>,
    #[serde(flatten)]
    pub(super) description: Description,
}

/// A file of blocks that one rank has written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shard {
    /// The name of the file in the folder of the checkpoint.
    pub(super) file: String,
    /// The size of the file in bytes.
    pub(super) bytes: u64,
    /// The checksums of its blocks, by the states' names.
    pub(super) checksums: Checksums,
    /// The first index of each block in its state, by the state's name.
    pub(super) blocks: BTreeMap<String, Vec<u64>>,
}

/// The text before the digits of a document's checksum.
const BEFORE_CHECKSUM: &[u8] = b"\"checksum\": \"";

impl Document {
    /// Makes the document of a checkpoint whose states are in one file.
    pub(super) fn new(description: Description, files: BTreeMap<String, u64>, checksums: Checksums) -> Self {
        let checksum = "0".repeat(Checksum::DIGITS);
        Self { format: ONE_FILE, checksum, files, checksums, shards: vec![], description }
    }

    /// Makes the document of a checkpoint of several ranks.
    pub(super) fn of_shards(description: Description, shards: Vec<Shard>) -> Self {
        let files = shards.iter().map(|shard| (shard.file.clone(), shard.bytes)).collect();
        let checksum = "0".repeat(Checksum::DIGITS);
        Self { format: FORMAT, checksum, files, checksums: Checksums::new(), shards, description }
    }

    /// Returns the bytes of the file.
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut text = serde_json::to_vec_pretty(self).expect("numbers and strings have a JSON form");
        let digits = checksum_digits(&text).expect("the checksum is a field of it");
        text[digits.clone()].fill(b'0');
        let sum = Checksum::of(&text).to_string();
        text[digits].copy_from_slice(sum.as_bytes());
        text
    }

    /// Parses the bytes of a file. The error is a sentence about the fault.
    pub(super) fn of_bytes(text: &[u8]) -> Result<Self, String> {
        if !is_summed(text) {
            return Err(NOT_SUMMED.to_owned());
        }
        serde_json::from_slice(text).map_err(|error| error.to_string())
    }
}

/// The fault of bytes that fail [`is_summed`].
pub(super) const NOT_SUMMED: &str = "its contents do not match their checksum";

/// Returns whether the bytes of a file have the checksum that they contain.
pub(super) fn is_summed(text: &[u8]) -> bool {
    let Some(digits) = checksum_digits(text) else { return false };
    let mut sum = Checksum::of(&text[..digits.start]);
    sum.add(&[b'0'; Checksum::DIGITS]);
    sum.add(&text[digits.end..]);
    sum.to_string().as_bytes() == &text[digits]
}

/// Returns the place of the checksum's digits in a document.
pub(super) fn checksum_digits(text: &[u8]) -> Option<Range<usize>> {
    let begin = text.windows(BEFORE_CHECKSUM.len()).position(|window| window == BEFORE_CHECKSUM)?;
    let begin = begin + BEFORE_CHECKSUM.len();
    let digits = begin..begin + Checksum::DIGITS;
    (digits.end <= text.len()).then_some(digits)
}

/// A row of the state table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateRow {
    /// The state's name.
    pub name: String,
    /// Its element type, as in the text of a module.
    pub dtype: String,
    /// Its global sizes without padding, outermost first.
    pub dims: Vec<u64>,
    /// Its purpose, as in the text of a module.
    pub role: String,
    /// Its view of the file's tensor, before padding, as in the text of a module. Empty if it is that tensor.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub view: String,
}

impl Description {
    /// Makes the description of a checkpoint of `module` at a position in the data.
    pub fn new(module: &Module, position: DataPosition, data: DataFingerprint) -> Self {
        Self {
            module: module.name.clone(),
            position,
            data,
            evaluations: None,
            states: StateRow::table(module),
        }
    }

    /// Returns the number of completed steps.
    pub fn step(&self) -> u64 {
        self.position.step
    }
}

impl StateRow {
    /// Returns the rows of a module's state table, in its order.
    pub fn table(module: &Module) -> Vec<Self> {
        module.states.values().map(Self::of).collect()
    }

    /// Returns the rows of a module's parameters, by name.
    pub fn parameters(module: &Module) -> BTreeMap<String, Self> {
        let parameters = module.states.values().filter(|state| state.role == Role::Parameter).map(Self::of);
        parameters.map(|row| (row.name.clone(), row)).collect()
    }

    fn of(state: &State) -> Self {
        // The row must not depend on the mesh: a run may be resumed on another mesh, with other padding.
        let sizes: Option<Vec<u64>> = state.ty.sizes();
        let (padding, dims) = ir::view::padding(&state.view, sizes.as_deref().unwrap_or_default());
        let unbound = || state.ty.dims.iter().map(|dim| dim.size().unwrap_or(u64::MAX)).collect();
        Self {
            name: state.name.clone(),
            dtype: state.ty.dtype.to_string(),
            // Programs that are lowered have no unbound dims. A symbol never equals a number.
            dims: if sizes.is_some() { dims } else { unbound() },
            role: state.role.name().to_owned(),
            view: ir::text::view_text(&state.view[..state.view.len() - padding.len()]),
        }
    }

    /// Describes the type, role and view.
    pub(super) fn what(&self) -> String {
        let view = if self.view.is_empty() { String::new() } else { format!(" view {}", self.view) };
        visible(&format!("{}{:?} {}{view}", self.dtype, self.dims, self.role)).into_owned()
    }
}

/// `` `h.0.attn.weight` f32[768, 768] ``
impl fmt::Display for StateRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` {}{:?}", visible(&self.name), visible(&self.dtype), self.dims)
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::description;
    use super::*;

    #[test]
    fn no_bit_of_a_document_can_change_unnoticed() {
        let files = BTreeMap::from([("state.safetensors".to_owned(), 400)]);
        let checksums = Checksums::from([("weight".to_owned(), "0123456789abcdef".to_owned())]);
        let document = Document::new(description(3), files, checksums);
        let text = document.to_bytes();
        let read = Document::of_bytes(&text).unwrap();
        assert_eq!((&read.description, &read.checksums), (&document.description, &document.checksums));
        for place in 0..text.len() {
            for bit in 0..8 {
                let mut damaged = text.clone();
                damaged[place] ^= 1 << bit;
                assert!(Document::of_bytes(&damaged).is_err(), "bit {bit} of byte {place}");
            }
        }
    }
}
