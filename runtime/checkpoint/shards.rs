//! Checkpoints of several ranks: each rank writes the blocks of states that it owns into a file of its own.
//!
//! The blocks are those of the global tensor without padding, so a run can be resumed on any other mesh.

use super::description::{Document, Shard};
use super::error::CheckpointError;
use super::padding;
use super::tensor_file::{BlockPlace, MARK, SplitTensor, TensorFile};
use super::tensor_writer::{Checksums, TensorLayout, TensorRow};
use ir::{Mesh, Module, State};
use ranks::Parts;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// The blocks that a rank writes.
pub(super) struct Owned<'m> {
    rank: u64,
    ranks: u64,
    /// The rank's place in the mesh.
    place: u64,
    mesh: &'m Mesh,
    states: BTreeMap<&'m str, &'m State>,
    pub(super) layout: TensorLayout<'static>,
    blocks: BTreeMap<String, Vec<u64>>,
}

impl<'m> Owned<'m> {
    /// Returns the blocks of a rank of the module's mesh.
    ///
    /// # Errors
    /// A state's dims have no sizes or do not divide; a state has the name that the format reserves.
    pub(super) fn of(module: &'m Module, rank: u64) -> Result<Self, CheckpointError> {
        let (mut rows, mut blocks) = (vec![], BTreeMap::new());
        let (place, stage) = (module.place_in_mesh(rank), rank / module.mesh.devices());
        for (index, state) in module.states.values().enumerate() {
            // The first pipeline rank that has a state writes it.
            if u64::from(module.pipeline_ranks_with(state).start) != stage {
                continue;
            }
            let unsized_state =
                || CheckpointError::State { name: state.name.clone(), found: 0, expected: u64::MAX };
            let whole = padding::unpadded_type(state).and_then(|ty| ty.sizes()).ok_or_else(unsized_state)?;
            let block = owned_block(&module.mesh, index, state, place, &whole).ok_or_else(unsized_state)?;
            let Some((start, dims)) = block else { continue };
            rows.push(TensorRow { name: state.name.clone(), dtype: state.ty.dtype, dims });
            blocks.insert(state.name.clone(), start);
        }
        let layout =
            TensorLayout::new(rows, &[MARK]).map_err(|name| CheckpointError::ReservedName { name })?;
        let states = module.states.values().map(|state| (state.name.as_str(), state)).collect();
        let ranks = module.ranks();
        Ok(Self { rank, ranks, place, mesh: &module.mesh, states, layout, blocks })
    }

    /// Returns the name of the rank's file.
    pub(super) fn file(&self) -> String {
        format!("state-{:05}-of-{:05}.safetensors", self.rank, self.ranks)
    }

    /// Returns the bytes of a block, given the rank's part of its state.
    ///
    /// # Errors
    /// The part has another size.
    pub(super) fn cut<'b>(
        &self,
        row: &TensorRow,
        part: Cow<'b, [u8]>,
    ) -> Result<Cow<'b, [u8]>, CheckpointError> {
        let size =
            |expected| CheckpointError::State { name: row.name.clone(), found: part.len() as u64, expected };
        let state = self.states.get(row.name.as_str()).ok_or_else(|| size(row.bytes()))?;
        let parts = Parts::of(&state.name, &state.ty, self.mesh).map_err(|_| size(row.bytes()))?;
        if part.len() as u64 != parts.local_bytes() {
            return Err(size(parts.local_bytes()));
        }
        let whole = padding::unpadded_type(state).and_then(|ty| ty.sizes()).unwrap_or_default();
        Ok(parts.within(self.place, part, &whole))
    }

    /// Returns the description of the written file, with these checksums.
    pub(super) fn written(self, checksums: Checksums) -> Shard {
        Shard { file: self.file(), bytes: self.layout.bytes(), checksums, blocks: self.blocks }
    }
}

/// A block: its first index and its sizes.
type Block = (Vec<u64>, Vec<u64>);

/// Returns the block of a state that a rank writes, within the sizes `whole`. Of the ranks with the same block, one writes it. The writer
/// differs from state to state, so that the files are about equally large. The outer `None` means that the dims do not divide.
fn owned_block(mesh: &Mesh, index: usize, state: &State, rank: u64, whole: &[u64]) -> Option<Option<Block>> {
    let starts = |rank: u64| -> Option<Vec<u64>> {
        Some(state.ty.spans(mesh, rank)?.iter().map(|span| span.start).collect())
    };
    let (own, local) = (starts(rank)?, state.ty.local(mesh)?);
    let replicas: Vec<u64> =
        (0..mesh.devices()).filter(|&other| starts(other).as_ref() == Some(&own)).collect();
    let sizes: Vec<u64> = local
        .iter()
        .zip(&own)
        .zip(whole)
        .map(|((&local, &start), &whole)| local.min(whole.saturating_sub(start)))
        .collect();
    // A part of padding alone is not written. An empty state is written whole by its owner.
    let is_padding = sizes.contains(&0) && !whole.contains(&0);
    let is_owner = replicas.get(index % replicas.len().max(1)) == Some(&rank);
    Some((is_owner && !is_padding).then_some((own, sizes)))
}

/// Opens the files of a checkpoint of several ranks as one file of whole tensors.
///
/// # Errors
/// A file cannot be read, or is not the one that was written; blocks do not cover their states.
pub(super) fn open(folder: &Path, document: &Document) -> Result<TensorFile, CheckpointError> {
    let mut all: BTreeMap<&str, Vec<BlockPlace>> = BTreeMap::new();
    let mut files = vec![];
    for (part, shard) in document.shards.iter().enumerate() {
        let file = TensorFile::open(&folder.join(&shard.file))?;
        if file.checksums() != Some(&shard.checksums) {
            let reason = "its checksums differ from the checksums in `checkpoint.json`".to_owned();
            return Err(CheckpointError::Malformed { path: folder.join(&shard.file), reason });
        }
        files.push(file);
        for (name, start) in &shard.blocks {
            all.entry(name).or_default().push(BlockPlace { part, start: start.clone() });
        }
    }
    let mut whole = vec![];
    for row in &document.description.states {
        let blocks = all.remove(row.name.as_str()).unwrap_or_default();
        if let Err(reason) = covers(&row.dims, &row.name, &blocks, &files) {
            return Err(CheckpointError::Malformed { path: folder.join(super::DESCRIPTION), reason });
        }
        whole.push(SplitTensor { name: row.name.clone(), dims: row.dims.clone(), blocks });
    }
    Ok(TensorFile::of_blocks(folder, files, whole))
}

/// Returns an error if blocks do not cover a state of these sizes: some reach beyond it, overlap, or are missing.
fn covers(dims: &[u64], name: &str, blocks: &[BlockPlace], files: &[TensorFile]) -> Result<(), String> {
    let mut elements = 0;
    for BlockPlace { part, start } in blocks {
        let Some(sizes) = files[*part].ty(name).and_then(|ty| ty.sizes()) else {
            return Err(format!("`{}` has no block of the state `{name}`", files[*part].path().display()));
        };
        let fits = |((&start, &size), &whole): ((&u64, &u64), &u64)| {
            start.checked_add(size).is_some_and(|end| end <= whole)
        };
        if start.len() != dims.len()
            || sizes.len() != dims.len()
            || !start.iter().zip(&sizes).zip(dims).all(fits)
        {
            return Err(format!("a block of the state `{name}` reaches beyond its sizes {dims:?}"));
        }
        elements += sizes.iter().product::<u64>();
    }
    let places: BTreeSet<&Vec<u64>> = blocks.iter().map(|block| &block.start).collect();
    if places.len() != blocks.len() || elements != dims.iter().product::<u64>() {
        return Err(format!("its blocks of the state `{name}` do not make up the sizes {dims:?}"));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
