//! Named arrays of an `.npz` or `.safetensors` file.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use ir::DType;

use crate::safetensors_types;

use super::array::Array;
use super::column::Column;
use super::error::DataError;
use super::file::{self, Format};
use super::npz::{self, LoadError, ZippedArray};
use super::table_array::{Named, TableArray};

/// The arrays of one file. Uncompressed arrays are mapped; others are unpacked on demand.
#[derive(Clone, Debug)]
pub struct Table {
    /// The file.
    pub path: PathBuf,
    arrays: BTreeMap<String, Entry>,
    /// Keys whose arrays cannot be used, with the reason. It is an error only if one of them is needed.
    unusable: BTreeMap<String, String>,
}

/// Every key of a file, with its array or the reason why the array cannot be used.
type Entries = BTreeMap<String, Result<Entry, String>>;

/// An array of a file, whose elements may be compressed.
#[derive(Clone, Debug)]
enum Entry {
    Mapped(TableArray),
    Zipped(Box<ZippedArray>),
}

impl Table {
    /// Opens `path`: an `.npz`, or else safetensors.
    ///
    /// Arrays of a type that the IR does not have (complex, strings, 8-bit floats) are treated as missing.
    ///
    /// # Errors
    /// A file that is missing or damaged.
    pub fn open(path: &Path) -> Result<Self, DataError> {
        let bytes = file::map(path)?;
        let entries = match Format::of(path)? {
            Format::Npz => npz::read(&bytes).map(zipped),
            _ => read_safetensors(&bytes),
        };
        let entries = entries.map_err(|reason| DataError::Malformed { path: path.to_owned(), reason })?;
        let (mut arrays, mut unusable) = (BTreeMap::new(), BTreeMap::new());
        for (key, entry) in entries {
            match entry {
                Ok(array) => drop(arrays.insert(key, array)),
                Err(reason) => drop(unusable.insert(key, reason)),
            }
        }
        Ok(Self { path: path.to_owned(), arrays, unusable })
    }

    /// Returns the keys, sorted.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.arrays.keys().map(String::as_str)
    }

    /// Returns a copy of the array at `key`; `None` if there is none.
    ///
    /// # Errors
    /// The array is damaged, or its elements do not fit into memory.
    pub fn array(&self, key: &str) -> Result<Option<Array>, DataError> {
        let Some(entry) = self.arrays.get(key) else { return Ok(None) };
        let TableArray { dtype, dims, bytes } = self.load(key, entry)?;
        Ok(Some(Array { dtype, dims, bytes: bytes.into() }))
    }

    /// Returns the array at `key` for `column`. Its type and dims are checked before its elements are unpacked. `hint` names an alternative
    /// if there is no such array.
    ///
    /// # Errors
    /// There is no such array; it has another type or other dims, is damaged, or does not fit into memory.
    pub(super) fn named(&self, key: &str, hint: &str, column: &Column) -> Result<Named, DataError> {
        let entry = self.arrays.get(key).ok_or_else(|| self.missing(key, hint))?;
        let data = format!("{}:{key}", self.path.display());
        let (dtype, dims) = entry.shape();
        column.check_shape(dtype, dims, &data)?;
        Ok((data, self.load(key, entry)?))
    }

    fn load(&self, key: &str, entry: &Entry) -> Result<TableArray, DataError> {
        let path = self.path.clone();
        match entry {
            Entry::Mapped(array) => Ok(array.clone()),
            Entry::Zipped(array) => array.load().map_err(|error| match error {
                LoadError::Damaged(reason) => {
                    DataError::Malformed { path, reason: format!("`{key}` {reason}") }
                }
                LoadError::TooLarge { bytes, most } => {
                    let data = format!("{}:{key}", path.display());
                    let remedy =
                        "save the file with np.savez: uncompressed arrays are mapped and need no memory";
                    DataError::TooLarge { data, bytes, most, remedy }
                }
            }),
        }
    }

    /// Returns the key that feeds input `name`: the name itself, or `input.NAME`.
    pub(super) fn key_for_input(&self, name: &str) -> Option<String> {
        [name.to_owned(), format!("input.{name}")].into_iter().find(|key| self.arrays.contains_key(key))
    }

    /// Returns the reason why there is nothing at `key`; `hint` names an alternative.
    pub(super) fn missing(&self, key: &str, hint: &str) -> DataError {
        let path = self.path.clone();
        if let Some(reason) = self.unusable.get(key) {
            return DataError::Malformed { path, reason: format!("`{key}` {reason}") };
        }
        let there = self.keys().map(str::to_owned).collect();
        DataError::MissingKey { path, key: key.to_owned(), hint: hint.to_owned(), there }
    }

    /// Returns the reason why the array of input `name` cannot be used, if the file has one.
    pub(super) fn unusable_input(&self, name: &str) -> Option<DataError> {
        let keys = [name.to_owned(), format!("input.{name}")];
        keys.iter().find(|key| self.unusable.contains_key(*key)).map(|key| self.missing(key, ""))
    }
}

impl Entry {
    /// Returns the array's type and dims, which are known without its elements.
    fn shape(&self) -> (DType, &[u64]) {
        match self {
            Self::Mapped(array) => (array.dtype, &array.dims),
            Self::Zipped(array) => (array.header().dtype, &array.header().dims),
        }
    }
}

fn zipped(arrays: BTreeMap<String, Result<ZippedArray, String>>) -> Entries {
    let entry = |array| Entry::Zipped(Box::new(array));
    arrays.into_iter().map(|(name, array)| (name, array.map(entry))).collect()
}

fn read_safetensors(bytes: &Bytes) -> Result<Entries, String> {
    let file = safetensors::SafeTensors::deserialize(bytes).map_err(|error| error.to_string())?;
    let entries = file.tensors().into_iter().map(|(name, tensor)| {
        let dims = tensor.shape().iter().map(|&dim| dim as u64).collect();
        let unknown = || format!("holds {:?}, which is not supported", tensor.dtype());
        let array = safetensors_types::loaded(tensor.dtype())
            .ok_or_else(unknown)
            .and_then(|dtype| TableArray::new(dtype, dims, bytes.slice_ref(tensor.data())));
        (name, array.map(Entry::Mapped))
    });
    Ok(entries.collect())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn safetensors_are_read_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("samples.safetensors");
        let values: Vec<u8> = [1.0f32, 2.0, 3.0, 4.0].iter().flat_map(|value| value.to_le_bytes()).collect();
        let view =
            safetensors::tensor::TensorView::new(safetensors::Dtype::F32, vec![2, 2], &values).unwrap();
        fs::write(&path, safetensors::serialize([("x", view)], None).unwrap()).unwrap();
        let table = Table::open(&path).unwrap();
        let array = table.array("x").unwrap().unwrap();
        assert_eq!((array.dtype, array.dims.as_slice()), (DType::F32, [2, 2].as_slice()));
        assert_eq!(array.to_f64s(), [1.0, 2.0, 3.0, 4.0]);
        assert!(table.array("y").unwrap().is_none());
    }

    #[test]
    fn an_array_of_a_type_we_do_not_have_matters_only_where_it_is_wanted() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("samples.safetensors");
        let view = |dtype| safetensors::tensor::TensorView::new(dtype, vec![2], &[0, 1]).unwrap();
        let views = [("x", view(safetensors::Dtype::U8)), ("scale", view(safetensors::Dtype::F8_E4M3))];
        fs::write(&path, safetensors::serialize(views, None).unwrap()).unwrap();
        let table = Table::open(&path).unwrap();
        assert_eq!(table.keys().collect::<Vec<_>>(), ["x"]);
        let error = table.unusable_input("scale").unwrap().to_string();
        assert!(error.ends_with("`scale` holds F8_E4M3, which is not supported"), "{error}");
        assert!(table.unusable_input("x").is_none());
    }

    #[test]
    fn a_truncated_file_is_damaged() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["short.safetensors", "short.npz"] {
            let path = folder.path().join(name);
            fs::write(&path, [9, 0, 0, 0, 0, 0, 0, 0, b'{']).unwrap();
            let error = Table::open(&path).unwrap_err();
            assert!(matches!(error, DataError::Malformed { .. }), "{error}");
        }
    }
}
