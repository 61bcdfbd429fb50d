//! What the import of one node sees: its inputs as values or as known integers, its attributes, and a builder.

use super::call::Call;
use super::dropout::{Dropouts, Ids};
use super::integers::{Int, Ints};
use super::known::Memo;
use super::report::Report;
use super::subgraph::Bodies;
use bytes::Bytes;
use ir::ops::detach::Detach;
use ir::tensor::Elements;
use ir::{Blob, Builder, Claim, DType, Data, DataId, Dim, Dims, Type, TypeError, ValueId};
use std::collections::BTreeMap;

/// What a name of the graph stands for.
#[derive(Clone, Debug)]
pub(super) enum Entry {
    /// A value of the program.
    Value(ValueId),
    /// Integers known now; a value of the program once something needs them as one.
    Ints(Ints, DType),
    /// A tensor of the file that nothing has read yet.
    Stored(DataId),
    /// A sequence of entries (SplitToSequence).
    Sequence(Vec<Entry>),
    /// An optional that has no element.
    Absent,
    /// The result of a node that could not be imported, and has been reported.
    Failed,
}

/// Why a node cannot be imported.
#[derive(Clone, Debug)]
pub(super) enum Problem {
    /// This is wrong with it.
    Wrong {
        /// What is wrong, with the numbers.
        message: String,
        /// What would work.
        note: Option<String>,
    },
    /// Something it reads has been reported already.
    Reported,
}

impl Problem {
    /// A problem without advice.
    pub(super) fn new(message: impl Into<String>) -> Self {
        Self::Wrong { message: message.into(), note: None }
    }

    /// With what would work.
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

/// What an importing function returns: an entry for each output it defines.
pub(super) type Outputs = Result<Vec<Entry>, Problem>;

/// The import in progress.
pub(super) struct Context<'m> {
    /// Builds the program.
    pub(super) b: Builder<'m>,
    /// What every name met so far stands for.
    pub(super) entries: BTreeMap<String, Entry>,
    /// The dropouts met so far.
    pub(super) dropouts: Dropouts,
    /// The ids of operators that draw random numbers.
    pub(super) draws: Ids,
    /// What cannot be imported.
    pub(super) problems: Report,
    /// The graphs of control flow, and what their steps have come to.
    pub(super) bodies: Bodies,
    /// Values that no input reaches, and which others have been found to be reached by one.
    pub(super) evaluated: Memo,
    /// Steps that recurrent layers have been unrolled into.
    pub(super) recurrent_steps: u64,
    /// The inputs of the node at hand through which no gradient flows.
    pub(super) detached: Vec<usize>,
}

impl<'m> Context<'m> {
    /// An import that has met these names.
    pub(super) fn new(b: Builder<'m>, entries: BTreeMap<String, Entry>) -> Self {
        Self {
            b,
            entries,
            dropouts: Dropouts::default(),
            draws: Ids::default(),
            problems: Report::default(),
            bodies: Bodies::default(),
            evaluated: Memo::new(),
            recurrent_steps: 0,
            detached: vec![],
        }
    }
}

impl Context<'_> {
    /// What an input stands for; an error if it is left out.
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

    /// An input as a value.
    pub(super) fn value(&mut self, call: &Call, i: usize) -> Result<ValueId, Problem> {
        let entry = self.entry(call, i)?.clone();
        let value = self.materialize(&entry)?;
        let name = call.input(i).expect("the entry was found by it");
        if !matches!(entry, Entry::Value(_)) {
            self.entries.insert(name.to_string(), Entry::Value(value));
            if let Entry::Ints(..) = entry {
                self.entries.insert(name.to_string(), entry); // still known
            }
        }
        if self.detached.contains(&i) && self.ty(value).dtype.is_float() {
            return Ok(self.b.one(Detach, &[value])?);
        }
        Ok(value)
    }

    /// An input as a value, or nothing if it is left out.
    pub(super) fn optional(&mut self, call: &Call, i: usize) -> Result<Option<ValueId>, Problem> {
        call.input(i).map(|_| self.value(call, i)).transpose()
    }

    /// An input as known integers, if it is that.
    pub(super) fn ints(&self, call: &Call, i: usize) -> Option<Ints> {
        match self.entries.get(call.input(i)?)? {
            Entry::Ints(ints, _) => Some(ints.clone()),
            _ => None,
        }
    }

    /// The type of an input that is known integers.
    pub(super) fn known_dtype(&self, call: &Call, i: usize) -> DType {
        match call.input(i).and_then(|name| self.entries.get(name)) {
            Some(Entry::Ints(_, dtype)) => *dtype,
            _ => DType::I64,
        }
    }

    /// An input whose numbers the import needs now (axes, starts, repeats…), or nothing if it is left out.
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

    /// An input that is a target shape.
    pub(super) fn shape(&self, call: &Call, i: usize) -> Result<Vec<Int>, Problem> {
        self.entry(call, i)?;
        self.ints(call, i).map(|ints| ints.elements().to_vec()).ok_or_else(|| {
            Problem::new("the target shape is computed from data, or from sizes that are not bound").note(
                "bind all sizes with --bind NAME=SIZE; if that does not help, export with static shapes",
            )
        })
    }

    /// The type of a value.
    pub(super) fn ty(&self, value: ValueId) -> &Type {
        self.b.ty(value)
    }

    /// An axis attribute as a dim of a value: negative ones count from the end.
    pub(super) fn axis(&self, value: ValueId, axis: i64) -> Result<u32, Problem> {
        let ty = self.ty(value);
        dim(axis, ty.ndim()).ok_or_else(|| Problem::new(format!("axis {axis} is not a dim of {ty}")))
    }

    /// A value for an entry.
    pub(super) fn materialize(&mut self, entry: &Entry) -> Result<ValueId, Problem> {
        match entry {
            Entry::Value(value) => Ok(*value),
            Entry::Failed => Err(Problem::Reported),
            Entry::Sequence(_) => Err(Problem::new("the node needs a tensor, and its input is a sequence")),
            Entry::Absent => Err(Problem::new("the node reads an optional that has no element")),
            Entry::Stored(data) => {
                let row = &self.b.module().data[*data];
                // A scalar whose bytes are here is a number, unless it may be trained.
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

    /// A constant of integers.
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

/// An axis as a dim of `ndim`: negative ones count from the end.
pub(super) fn dim(axis: i64, ndim: usize) -> Option<u32> {
    let ndim = i64::try_from(ndim).ok()?;
    let dim = if axis < 0 { axis + ndim } else { axis };
    (0..ndim).contains(&dim).then_some(dim as u32)
}

/// One output that is a value.
pub(super) fn one(value: ValueId) -> Outputs {
    Ok(vec![Entry::Value(value)])
}
