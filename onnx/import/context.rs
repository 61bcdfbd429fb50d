//! The context of a node's import: its inputs as values or as known integers, and the builder.

use super::call::Call;
use super::dropout::{Dropouts, Ids};
use super::integers::{Int, Ints};
use super::known::Memo;
use super::recurrent::Unrolled;
use super::report::Report;
use super::subgraph::Bodies;
use bytes::Bytes;
use ir::ops::detach::Detach;
use ir::tensor::Elements;
use ir::{Blob, Builder, Claim, DType, Data, DataId, Dim, Dims, Type, TypeError, ValueId};
use std::collections::BTreeMap;

/// The meaning of a name of the graph.
#[derive(Clone, Debug)]
pub(super) enum Entry {
    /// A value of the program.
    Value(ValueId),
    /// Integers that are known during the import. They become a value of the program when a node reads them as one.
    Ints(Ints, DType),
    /// A tensor of the file that no node has read yet.
    Stored(DataId),
    /// A sequence of entries (SplitToSequence).
    Sequence(Vec<Entry>),
    /// An optional without an element.
    Absent,
    /// The result of a node that could not be imported. Its problem has been reported.
    Failed,
}

/// The reason why a node cannot be imported.
#[derive(Clone, Debug)]
pub(super) enum Problem {
    /// A fault of the node.
    Wrong {
        /// The fault, with the numbers.
        message: String,
        /// A remedy.
        note: Option<String>,
    },
    /// An input of the node has failed, and its problem has been reported.
    Reported,
}

impl Problem {
    /// Makes a problem without a remedy.
    pub(super) fn new(message: impl Into<String>) -> Self {
        Self::Wrong { message: message.into(), note: None }
    }

    /// Adds a remedy.
    pub(super) fn note(self, note: impl Into<String>) -> Self {
        match self {
            Self::Wrong { message, .. } => Self::Wrong { message, note: Some(note.into()) },
            Self::Reported => Self::Reported,
        }
    }
}

impl From<TypeError> for Problem {
    fn from(error: TypeError) -> Self {
        Self::new(error.message)
    }
}

/// The result of an import function: an entry for each output that it defines.
pub(super) type Outputs = Result<Vec<Entry>, Problem>;

/// The import in progress.
pub(super) struct Context<'m> {
    /// The builder of the program.
    pub(super) b: Builder<'m>,
    /// The meaning of every name met so far.
    pub(super) entries: BTreeMap<String, Entry>,
    /// The dropouts met so far.
    pub(super) dropouts: Dropouts,
    /// The ids of operators that draw random numbers.
    pub(super) draws: Ids,
    /// The problems found so far.
    pub(super) problems: Report,
    /// The graphs of control flow, and the number of steps unrolled so far.
    pub(super) bodies: Bodies,
    /// Values that were evaluated: the result, or the fact that they depend on an input.
    pub(super) evaluated: Memo,
    /// The recurrent layers that were unrolled.
    pub(super) unrolled: Unrolled,
    /// The inputs of the current node through which no gradient flows.
    pub(super) detached: Vec<usize>,
}

impl<'m> Context<'m> {
    /// Starts an import in which these names are known.
    pub(super) fn new(b: Builder<'m>, entries: BTreeMap<String, Entry>) -> Self {
        Self {
            b,
            entries,
            dropouts: Dropouts::default(),
            draws: Ids::default(),
            problems: Report::default(),
            bodies: Bodies::default(),
            evaluated: Memo::new(),
            unrolled: Unrolled::default(),
            detached: vec![],
        }
    }
}

impl Context<'_> {
    /// Returns the entry of an input; an error if the input is left out.
    pub(super) fn entry(&self, call: &Call, i: usize) -> Result<&Entry, Problem> {
        let name = call
            .input(i)
            .ok_or_else(|| Problem::new(format!("the node needs input {i}, and the file leaves it out")))?;
        match self.entries.get(name) {
            Some(Entry::Failed) => Err(Problem::Reported),
            Some(entry) => Ok(entry),
            None => Err(Problem::new(format!("no node or tensor defines input `{name}`"))),
        }
    }

    /// Returns an input as a value.
    pub(super) fn value(&mut self, call: &Call, i: usize) -> Result<ValueId, Problem> {
        let entry = self.entry(call, i)?.clone();
        let value = self.materialize(&entry)?;
        let name = call.input(i).expect("the entry was found by it");
        if !matches!(entry, Entry::Value(_)) {
            self.entries.insert(name.to_string(), Entry::Value(value));
            if let Entry::Ints(..) = entry {
                self.entries.insert(name.to_string(), entry); // the integers stay known
            }
        }
        if self.detached.contains(&i) && self.ty(value).dtype.is_float() {
            return Ok(self.b.one(Detach, &[value])?);
        }
        Ok(value)
    }

    /// Returns an input as a value, or `None` if it is left out.
    pub(super) fn optional(&mut self, call: &Call, i: usize) -> Result<Option<ValueId>, Problem> {
        call.input(i).map(|_| self.value(call, i)).transpose()
    }

    /// Returns an input as known integers, if it has them.
    pub(super) fn ints(&self, call: &Call, i: usize) -> Option<Ints> {
        match self.entries.get(call.input(i)?)? {
            Entry::Ints(ints, _) => Some(ints.clone()),
            _ => None,
        }
    }

    /// Returns the element type of an input of known integers.
    pub(super) fn known_dtype(&self, call: &Call, i: usize) -> DType {
        match call.input(i).and_then(|name| self.entries.get(name)) {
            Some(Entry::Ints(_, dtype)) => *dtype,
            _ => DType::I64,
        }
    }

    /// Returns the known numbers of an input (axes, starts, repeats…), or `None` if it is left out.
    pub(super) fn numbers(&self, call: &Call, i: usize, what: &str) -> Result<Option<Vec<i64>>, Problem> {
        if call.input(i).is_none() {
            return Ok(None);
        }
        self.entry(call, i)?;
        let ints = self.ints(call, i).ok_or_else(|| {
            Problem::new(format!("`{what}` is computed from data; a static program needs it as a constant"))
                .note("export with static shapes, or with this input as a constant")
        })?;
        let unbound = || {
            let sizes: Vec<_> =
                ints.elements().iter().filter_map(Int::dim).map(|dim| dim.to_string()).collect();
            Problem::new(format!(
                "`{what}` must be numbers, and it depends on unbound sizes: {}",
                sizes.join(", ")
            ))
            .note("bind the sizes with --bind NAME=SIZE")
        };
        ints.numbers().map(Some).ok_or_else(unbound)
    }

    /// Returns known numbers that are an attribute in older operator sets, and an input in newer ones. `None` if the node has neither.
    pub(super) fn attribute_or_input(
        &self,
        call: &Call,
        name: &str,
        i: usize,
    ) -> Result<Option<Vec<i64>>, Problem> {
        call.ints(name).map_or_else(|| self.numbers(call, i, name), |numbers| Ok(Some(numbers)))
    }

    /// Returns an input that is a target shape.
    pub(super) fn shape(&self, call: &Call, i: usize) -> Result<Vec<Int>, Problem> {
        self.entry(call, i)?;
        self.ints(call, i).map(|ints| ints.elements().to_vec()).ok_or_else(|| {
            Problem::new("the target shape is computed from data, or from sizes that are not bound").note(
                "bind all sizes with --bind NAME=SIZE; if that does not help, export with static shapes",
            )
        })
    }

    /// Returns the type of a value.
    pub(super) fn ty(&self, value: ValueId) -> &Type {
        self.b.ty(value)
    }

    /// Returns the dim of a value for an axis attribute. Negative axes count from the end.
    pub(super) fn axis(&self, value: ValueId, axis: i64) -> Result<u32, Problem> {
        let ty = self.ty(value);
        dim(axis, ty.ndim()).ok_or_else(|| Problem::new(format!("axis {axis} is not a dim of {ty}")))
    }

    /// Returns the value of an entry, which is built if necessary.
    pub(super) fn materialize(&mut self, entry: &Entry) -> Result<ValueId, Problem> {
        match entry {
            Entry::Value(value) => Ok(*value),
            Entry::Failed => Err(Problem::Reported),
            Entry::Sequence(_) => Err(Problem::new("the node needs a tensor, and its input is a sequence")),
            Entry::Absent => Err(Problem::new("the node reads an optional that has no element")),
            Entry::Stored(data) => {
                let row = &self.b.module().data[*data];
                // A scalar with loaded bytes becomes a number, unless it may be trained.
                if row.ty.ndim() == 0
                    && !row.claim.is_some_and(Claim::may_be_trained)
                    && let Some(tensor) = ir::interp::file_tensor(row)
                {
                    let (ty, number) = (row.ty.clone(), tensor.item());
                    return Ok(self.b.splat(ty, number)?);
                }
                let ty = row.ty.clone();
                Ok(self.b.one_typed(ir::ops::constant::Constant { data: *data }, &[], ty)?)
            }
            Entry::Ints(ints, dtype) => {
                let numbers = ints.numbers().ok_or_else(|| {
                    Problem::new("sizes that are not bound are read as values")
                        .note("bind the sizes with --bind NAME=SIZE")
                })?;
                self.constant(ints.sizes(), *dtype, &numbers)
            }
        }
    }

    /// Builds a constant of integers.
    fn constant(&mut self, sizes: &[usize], dtype: DType, numbers: &[i64]) -> Result<ValueId, Problem> {
        let dims: Dims = sizes.iter().map(|&size| Dim::known(size as u64)).collect();
        let ty = Type::new(dtype, dims);
        if let [number] = numbers {
            return Ok(self.b.splat(ty, *number as f64)?);
        }
        let elements = match dtype {
            DType::Bool => Elements::Bool(numbers.iter().map(|&n| n != 0).collect()),
            _ => Elements::Int(numbers.to_vec()),
        };
        let bytes = ir::Tensor { dtype, sizes: sizes.to_vec(), elements }.to_bytes();
        let name = format!("shape.{}", self.b.module().data.len());
        let blob = Blob::Inline(Bytes::from(bytes));
        let data = self.b.tables().add_data(Data { name, ty: ty.clone(), blob, claim: None });
        Ok(self.b.one_typed(ir::ops::constant::Constant { data }, &[], ty)?)
    }
}

/// Returns the dim for an axis of `ndim` dims. Negative axes count from the end.
pub(super) fn dim(axis: i64, ndim: usize) -> Option<u32> {
    let ndim = i64::try_from(ndim).ok()?;
    let dim = if axis < 0 { axis + ndim } else { axis };
    (0..ndim).contains(&dim).then_some(dim as u32)
}

/// Returns the dims of a value, which must be exactly `N`.
pub(super) fn dims<const N: usize>(cx: &Context, what: &str, x: ValueId) -> Result<[Dim; N], Problem> {
    let ty = cx.ty(x);
    let dims: Dims = ty.dims.clone();
    dims.into_iter()
        .collect::<Vec<_>>()
        .try_into()
        .map_err(|_| Problem::new(format!("{what} must have {N} dims, and the type is {}", cx.ty(x))))
}

/// Returns a value as the only output.
pub(super) fn one(value: ValueId) -> Outputs {
    Ok(vec![Entry::Value(value)])
}
