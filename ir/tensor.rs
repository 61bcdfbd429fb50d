//! The tensors of the interpreter: floats as f64, integers as i64, booleans.

use crate::{DType, Type};

/// A tensor in host memory, row-major. Floats of every type are stored as f64 (rounded to the type only in
/// [`crate::interp::Mode::Typed`]), integers of every type as i64 (u64 as the i64 with the same bits).
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    /// The element type.
    pub dtype: DType,
    /// The sizes, outermost first.
    pub sizes: Vec<usize>,
    /// The elements, row-major; their number is the product of the sizes.
    pub elements: Elements,
}

/// The elements of a tensor.
#[derive(Clone, Debug, PartialEq)]
pub enum Elements {
    /// Elements of a floating-point type.
    Float(Vec<f64>),
    /// Elements of an integer type.
    Int(Vec<i64>),
    /// Elements of `bool`.
    Bool(Vec<bool>),
}

impl Elements {
    /// Reads the elements at the offsets given by `strides`, for every index below `sizes` in row-major order.
    pub fn strided(&self, sizes: &[usize], strides: &[usize]) -> Self {
        fn pick<T: Copy>(elements: &[T], sizes: &[usize], strides: &[usize]) -> Vec<T> {
            let (Some((&size, outer)), Some((&step, outer_strides))) =
                (sizes.split_last(), strides.split_last())
            else {
                return vec![elements[0]];
            };
            let mut picked = Vec::with_capacity(sizes.iter().product());
            for start in offsets(outer, outer_strides) {
                match step {
                    0 if size > 0 => picked.extend(std::iter::repeat_n(elements[start], size)),
                    1 => picked.extend_from_slice(&elements[start..start + size]),
                    _ => picked.extend((0..size).map(|i| elements[start + i * step])),
                }
            }
            picked
        }
        match self {
            Self::Float(elements) => Self::Float(pick(elements, sizes, strides)),
            Self::Int(elements) => Self::Int(pick(elements, sizes, strides)),
            Self::Bool(elements) => Self::Bool(pick(elements, sizes, strides)),
        }
    }
}

impl Tensor {
    /// Makes a float tensor. Panics if the number of elements is not the product of the sizes.
    pub fn float(dtype: DType, sizes: Vec<usize>, elements: Vec<f64>) -> Self {
        Self::checked(dtype, sizes, Elements::Float(elements))
    }

    /// Makes an integer tensor. Panics if the number of elements is not the product of the sizes.
    pub fn int(dtype: DType, sizes: Vec<usize>, elements: Vec<i64>) -> Self {
        Self::checked(dtype, sizes, Elements::Int(elements))
    }

    /// Makes a boolean tensor. Panics if the number of elements is not the product of the sizes.
    pub fn bool(sizes: Vec<usize>, elements: Vec<bool>) -> Self {
        Self::checked(DType::Bool, sizes, Elements::Bool(elements))
    }

    fn checked(dtype: DType, sizes: Vec<usize>, elements: Elements) -> Self {
        let len = match &elements {
            Elements::Float(v) => v.len(),
            Elements::Int(v) => v.len(),
            Elements::Bool(v) => v.len(),
        };
        assert_eq!(len, sizes.iter().product::<usize>(), "{len} elements for sizes {sizes:?}");
        Self { dtype, sizes, elements }
    }

    /// Makes a tensor of equal elements, converted to the element type.
    pub fn splat(dtype: DType, sizes: Vec<usize>, value: f64) -> Self {
        let len = sizes.iter().product();
        // `vec!` of zeros takes memory that the system has cleared, without writing to it.
        let elements = match dtype {
            DType::Bool => Elements::Bool(vec![value != 0.0; len]),
            dtype if dtype.is_float() => Elements::Float(vec![value; len]),
            _ => Elements::Int(vec![value as i64; len]),
        };
        Self { dtype, sizes, elements }
    }

    /// Makes a tensor from a number for each element, converted to the element type. Integers are truncated, and not wrapped to the range
    /// of their type. Panics if the number of elements is not the product of the sizes.
    pub fn of_numbers(dtype: DType, sizes: Vec<usize>, numbers: impl IntoIterator<Item = f64>) -> Self {
        let numbers = numbers.into_iter();
        let elements = match dtype {
            DType::Bool => Elements::Bool(numbers.map(|number| number != 0.0).collect()),
            dtype if dtype.is_float() => Elements::Float(numbers.collect()),
            _ => Elements::Int(numbers.map(|number| number as i64).collect()),
        };
        Self::checked(dtype, sizes, elements)
    }

    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        self.sizes.iter().product()
    }

    /// Whether the tensor has no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the elements of a float tensor. Panics for other types: `infer` has checked the types.
    pub fn floats(&self) -> &[f64] {
        match &self.elements {
            Elements::Float(elements) => elements,
            _ => panic!("{} tensor where a float tensor is needed", self.dtype),
        }
    }

    /// Returns the elements of an integer tensor. Panics for other types: `infer` has checked the types.
    pub fn ints(&self) -> &[i64] {
        match &self.elements {
            Elements::Int(elements) => elements,
            _ => panic!("{} tensor where an integer tensor is needed", self.dtype),
        }
    }

    /// Returns the elements of a boolean tensor. Panics for other types: `infer` has checked the types.
    pub fn bools(&self) -> &[bool] {
        match &self.elements {
            Elements::Bool(elements) => elements,
            _ => panic!("{} tensor where a bool tensor is needed", self.dtype),
        }
    }

    /// Returns every element as a number; `bool` as 0 and 1.
    pub fn numbers(&self) -> Vec<f64> {
        match &self.elements {
            Elements::Float(elements) => elements.clone(),
            Elements::Int(elements) => elements.iter().map(|&x| x as f64).collect(),
            Elements::Bool(elements) => elements.iter().map(|&x| f64::from(u8::from(x))).collect(),
        }
    }

    /// Returns the only element of a tensor of one element, as a number.
    pub fn item(&self) -> f64 {
        assert_eq!(self.len(), 1, "item() of a tensor of sizes {:?}", self.sizes);
        self.numbers()[0]
    }

    /// Returns the same elements with other sizes of equal product.
    pub fn reshaped(self, sizes: Vec<usize>) -> Self {
        Self::checked(self.dtype, sizes, self.elements)
    }

    /// Returns the type: whole, with bound dims.
    pub fn ty(&self) -> Type {
        Type::new(self.dtype, self.sizes.iter().map(|&size| crate::Dim::known(size as u64)))
    }

    /// Reads a tensor of that type from little-endian row-major bytes; `None` if their number is wrong.
    pub fn from_bytes(ty: &Type, bytes: &[u8]) -> Option<Self> {
        if ty.bytes()? != bytes.len() as u64 {
            return None;
        }
        let sizes = ty.sizes()?.into_iter().map(|size| size as usize).collect();
        let floats =
            |width: usize, read: &dyn Fn(&[u8]) -> f64| bytes.chunks_exact(width).map(read).collect();
        let ints = |width: usize, read: &dyn Fn(&[u8]) -> i64| bytes.chunks_exact(width).map(read).collect();
        macro_rules! le {
            ($ty:ty) => {
                |b: &[u8]| <$ty>::from_le_bytes(b.try_into().expect("chunks have the element's width"))
            };
        }
        let elements = match ty.dtype {
            DType::F64 => Elements::Float(floats(8, &le!(f64))),
            DType::F32 => Elements::Float(floats(4, &|b| f64::from(le!(f32)(b)))),
            DType::F16 => Elements::Float(floats(2, &|b| half::f16::from_bits(le!(u16)(b)).to_f64())),
            DType::BF16 => Elements::Float(floats(2, &|b| half::bf16::from_bits(le!(u16)(b)).to_f64())),
            DType::I64 => Elements::Int(ints(8, &le!(i64))),
            DType::U64 => Elements::Int(ints(8, &|b| le!(u64)(b) as i64)),
            DType::I32 => Elements::Int(ints(4, &|b| i64::from(le!(i32)(b)))),
            DType::U32 => Elements::Int(ints(4, &|b| i64::from(le!(u32)(b)))),
            DType::I16 => Elements::Int(ints(2, &|b| i64::from(le!(i16)(b)))),
            DType::U16 => Elements::Int(ints(2, &|b| i64::from(le!(u16)(b)))),
            DType::I8 => Elements::Int(ints(1, &|b| i64::from(b[0] as i8))),
            DType::U8 => Elements::Int(ints(1, &|b| i64::from(b[0]))),
            DType::Bool => Elements::Bool(bytes.iter().map(|&b| b != 0).collect()),
        };
        Some(Self { dtype: ty.dtype, sizes, elements })
    }

    /// Returns the elements as little-endian row-major bytes of the element type; floats are rounded to nearest even.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.len() * self.dtype.bytes() as usize);
        let width = self.dtype.bytes() as usize;
        match &self.elements {
            Elements::Bool(elements) => out.extend(elements.iter().map(|&b| u8::from(b))),
            Elements::Int(elements) => elements.iter().for_each(|x| out.extend(&x.to_le_bytes()[..width])),
            Elements::Float(elements) => elements.iter().for_each(|&x| match self.dtype {
                DType::F64 => out.extend(x.to_le_bytes()),
                DType::F32 => out.extend((x as f32).to_le_bytes()),
                DType::F16 => out.extend(crate::rounding::to_f16(x).to_le_bytes()),
                _ => out.extend(crate::rounding::to_bf16(x).to_le_bytes()),
            }),
        }
        out
    }

    /// Rounds each float to the element type. Other elements stay unchanged.
    pub fn rounded(mut self) -> Self {
        if let Elements::Float(elements) = &mut self.elements {
            let round: fn(f64) -> f64 = match self.dtype {
                DType::F32 => |x| f64::from(x as f32),
                DType::F16 => |x| crate::rounding::to_f16(x).to_f64(),
                DType::BF16 => |x| crate::rounding::to_bf16(x).to_f64(),
                _ => return self,
            };
            elements.iter_mut().for_each(|x| *x = round(*x));
        }
        self
    }
}

/// Returns row-major strides, in elements.
pub fn strides(sizes: &[usize]) -> Vec<usize> {
    let mut strides = vec![1; sizes.len()];
    for i in (1..sizes.len()).rev() {
        strides[i - 1] = strides[i] * sizes[i];
    }
    strides
}

/// Returns strides that read a tensor of `sizes` as if it were broadcast to `onto`: 0 along stretched dims.
pub fn broadcast_strides(sizes: &[usize], onto: &[usize]) -> Vec<usize> {
    let missing = onto.len() - sizes.len();
    let own = strides(sizes);
    (0..onto.len())
        .map(|i| match i.checked_sub(missing) {
            Some(j) if sizes[j] != 1 || onto[i] == 1 => own[j],
            _ => 0,
        })
        .collect()
}

/// Returns the offsets of all elements of `sizes` under `strides`, in row-major order.
pub fn offsets(sizes: &[usize], strides: &[usize]) -> Vec<usize> {
    let mut offsets = vec![0];
    for (&size, &stride) in sizes.iter().zip(strides) {
        offsets = offsets.iter().flat_map(|&base| (0..size).map(move |i| base + i * stride)).collect();
    }
    offsets
}
