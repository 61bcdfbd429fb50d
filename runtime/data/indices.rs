//! Checks of indices that a program computes from a batch. Each must lie in the dim that it indexes. A device reads zeros outside of a dim,
//! so the host also computes the indices, before a device gets the batch.

use super::array::{Array, Batch};
use super::error::DataError;
use ir::analysis::indices::{Indices, of_inputs};
use ir::{Module, Op, Tensor, Type, ValueId};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The indices of a program that depend only on its inputs.
#[derive(Clone, Debug)]
pub(super) struct IndexChecks {
    module: Arc<Module>,
    indices: Vec<Indices>,
    /// The values that the indices depend on and that depend on no input.
    constants: BTreeMap<ValueId, Arc<Tensor>>,
    /// The number of samples of a batch.
    batch: u64,
}

impl IndexChecks {
    /// Prepares the checks of a program with its loss, for batches of this number of samples. `None` if there is nothing to check.
    pub(super) fn new(module: &Module, batch: u64) -> Option<Self> {
        let mut indices = of_inputs(module);
        // Constant indices are checked when the program is compiled.
        indices.retain(|indices| !indices.inputs.is_empty());
        let mut constants = BTreeMap::new();
        indices.iter().for_each(|indices| indices.compute(module, &mut constants));
        (!indices.is_empty()).then(|| Self { module: Arc::new(module.clone()), indices, constants, batch })
    }

    /// Checks the rows of a batch. `sample` returns the sample of a row.
    ///
    /// # Errors
    /// [`DataError::Index`] for the first index that is outside.
    pub(super) fn check(
        &self,
        batch: &Batch,
        data: &str,
        sample: impl Fn(u64) -> u64,
    ) -> Result<(), DataError> {
        let Some((mut values, rows)) = self.inputs(batch) else { return Ok(()) };
        for indices in &self.indices {
            let Some(outside) = indices.outside(&self.module, &mut values) else { continue };
            let node = self.module.node(indices.reader);
            let [place, count] = outside.place.map(|number| number as u64);
            // If the indices are laid out sample by sample, this is the row.
            let row = count.is_multiple_of(self.batch).then(|| place / (count / self.batch) % rows);
            return Err(DataError::Index {
                kind: if matches!(node.op, Op::CrossEntropy(_)) { "label" } else { "index" },
                index: outside.index,
                size: outside.size,
                table: indices.described(&self.module),
                node: node.origin.to_string(),
                place: row.map_or_else(
                    || format!("in `{data}`"),
                    |row| format!("in sample {} of `{data}`, counted from 0", sample(row)),
                ),
            });
        }
        Ok(())
    }

    /// Returns the inputs of a batch and the constants, as values of the program, and the number of rows of the batch. A part of a batch is
    /// repeated to the length of a whole batch, so that it has the dims of the program.
    fn inputs(&self, batch: &Batch) -> Option<(BTreeMap<ValueId, Arc<Tensor>>, u64)> {
        let mut rows = self.batch;
        let mut values = self.constants.clone();
        let read = |i: &u32| self.indices.iter().any(|indices| indices.inputs.contains(i));
        for i in (0..self.module.inputs.len() as u32).filter(read) {
            let input = &self.module.inputs[i as usize];
            let ty = self.module.ty(input.value);
            let Some(array) = batch.tensors.get(&input.name) else { continue };
            if input.batched {
                rows = *array.dims.first()?;
            }
            values.insert(input.value, Arc::new(whole(array, ty)?));
        }
        (rows > 0).then_some((values, rows))
    }
}

/// Returns an array with fewer rows, repeated to the size of a type.
fn whole(array: &Array, ty: &Type) -> Option<Tensor> {
    let bytes = ty.bytes()? as usize;
    if array.bytes.len() == bytes {
        return Tensor::from_bytes(ty, &array.bytes);
    }
    let times = bytes.div_ceil(array.bytes.len().max(1));
    let mut repeated = array.bytes.repeat(times);
    repeated.truncate(bytes);
    Tensor::from_bytes(ty, &repeated)
}
