//! Numbers and sizes in the graph under construction.
//!
//! A number that its element type cannot represent exactly is stored as a double and cast. A float cast rounds it where the model
//! runs, but not where the interpreter compares programs exactly.

use super::attribute;
use super::draft::{Draft, TensorId, size};
use crate::ElementType;
use crate::proto::TensorProto;
use bytes::Bytes;
use ir::{DType, Diagnostic, Dim, Tensor, Type};

impl Draft<'_> {
    /// Returns a vector of integers, `i64[n]`.
    pub(super) fn integers(&mut self, numbers: &[i64]) -> TensorId {
        if let Some(&known) = self.integers.get(numbers) {
            return known;
        }
        let tensor = self.stored(&Tensor::int(DType::I64, vec![numbers.len()], numbers.to_vec()));
        self.integers.insert(numbers.to_vec(), tensor);
        tensor
    }

    /// Returns a scalar of a type.
    pub(super) fn number(&mut self, dtype: DType, number: f64) -> TensorId {
        let key = (dtype, number.to_bits());
        if let Some(&known) = self.numbers.get(&key) {
            return known;
        }
        let rounded = Tensor::splat(dtype, vec![], number).rounded();
        let tensor = if is_exact(dtype, number) {
            self.stored(&rounded)
        } else {
            let double = self.stored(&Tensor::splat(DType::F64, vec![], number));
            self.cast(double, DType::F64, dtype)
        };
        self.numbers.insert(key, tensor);
        tensor
    }

    /// Adds a `Constant` node.
    pub(super) fn stored(&mut self, tensor: &Tensor) -> TensorId {
        let proto = proto(&tensor.ty(), Bytes::from(tensor.to_bytes()));
        self.push("Constant", &[], [attribute::tensor("value", proto)])
    }

    /// Converts elements to another type.
    pub(super) fn cast(&mut self, x: TensorId, from: DType, to: DType) -> TensorId {
        if from == to { x } else { self.push("Cast", &[x], [attribute::int("to", code(to))]) }
    }

    /// Returns the size of a dim, `i64[1]`.
    ///
    /// # Errors
    /// The size cannot be represented in ONNX; a symbol is not a whole dim of any input.
    pub(super) fn size(&mut self, dim: &Dim) -> Result<TensorId, Diagnostic> {
        if let Some(known) = dim.size() {
            return Ok(self.integers(&[size(known)?]));
        }
        let mut product = None;
        if dim.coefficient() != 1 {
            product = Some(self.integers(&[size(dim.coefficient())?]));
        }
        for symbol in dim.symbols() {
            let factor = self.symbol(symbol)?;
            product = Some(match product {
                Some(product) => self.push("Mul", &[product, factor], []),
                None => factor,
            });
        }
        product
            .ok_or_else(|| Diagnostic::new(format!("the dim {dim} has neither a coefficient nor a symbol")))
    }

    /// Returns the size of a dim as a scalar, i64.
    ///
    /// # Errors
    /// As [`Self::size`].
    pub(super) fn scalar_size(&mut self, dim: &Dim) -> Result<TensorId, Diagnostic> {
        match dim.size() {
            Some(known) => {
                let known = size(known)?;
                Ok(self.stored(&Tensor::int(DType::I64, vec![], vec![known])))
            }
            None => {
                let size = self.size(dim)?;
                let axes = self.integers(&[0]);
                Ok(self.push("Squeeze", &[size, axes], []))
            }
        }
    }

    /// Returns dims as a tensor, `i64[n]`.
    ///
    /// # Errors
    /// As [`Self::size`].
    pub(super) fn shape(&mut self, dims: &[Dim]) -> Result<TensorId, Diagnostic> {
        let known: Option<Vec<u64>> = dims.iter().map(Dim::size).collect();
        if let Some(known) = known {
            let sizes = known.into_iter().map(size).collect::<Result<Vec<_>, _>>()?;
            return Ok(self.integers(&sizes));
        }
        let sizes = dims.iter().map(|dim| self.size(dim)).collect::<Result<Vec<_>, _>>()?;
        Ok(match sizes[..] {
            [single] => single,
            _ => self.push("Concat", &sizes, [attribute::int("axis", 0)]),
        })
    }

    fn symbol(&mut self, symbol: &std::sync::Arc<str>) -> Result<TensorId, Diagnostic> {
        if let Some(&known) = self.sizes.get(symbol) {
            return Ok(known);
        }
        let wanted = Dim::symbol(symbol);
        let module = self.module;
        let place = module.inputs.iter().find_map(|input| {
            let place = module.ty(input.value).dims.iter().position(|dim| *dim == wanted)?;
            Some((input.value, place as i64))
        });
        let (input, place) = place.ok_or_else(|| {
            Diagnostic::new(format!("no input of the model has the size `{wanted}`"))
                .note("bind the size with --bind NAME=SIZE")
        })?;
        let input = self.value(input)?;
        let bounds = [attribute::int("start", place), attribute::int("end", place + 1)];
        let size = self.push("Shape", &[input], bounds);
        self.sizes.insert(symbol.clone(), size);
        Ok(size)
    }
}

/// Whether a type can represent a number exactly. NaN counts as exact.
fn is_exact(dtype: DType, number: f64) -> bool {
    let held = Tensor::splat(dtype, vec![], number).rounded().item();
    !dtype.is_float() || held == number || number.is_nan()
}

/// Returns the number of an element type in ONNX.
pub(super) fn code(dtype: DType) -> i64 {
    i64::from(ElementType::from(dtype).code())
}

/// Returns a tensor as a message without a name. Dims of a data row are bound.
pub(super) fn proto(ty: &Type, bytes: Bytes) -> TensorProto {
    TensorProto {
        dims: ty.dims.iter().map(|dim| dim.size().unwrap_or(0) as i64).collect(),
        data_type: Some(ElementType::from(ty.dtype).code()),
        raw_data: Some(bytes),
        ..TensorProto::default()
    }
}
