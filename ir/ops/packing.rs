//! Packing of eight bools into a byte (the binarised masks of Jain et al., Gist, ISCA 2018).

use super::*;
use crate::{DType, Dim, Dims};

/// The number of bits of a byte.
pub const BITS: u64 = 8;

/// Packs bools into the bits of bytes: operand `bool[.., n]`, result `u8[.., ⌈n/8⌉]`. Element `8·b + k` of a row is bit `k` of
/// byte `b`, where bit 0 is the lowest. The bits after the end of a row are 0.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PackBits;

/// Unpacks the bools of [`PackBits`]: operand `u8[.., ⌈n/8⌉]`, result `bool[.., n]`, of the declared type.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UnpackBits;

/// Returns the dims of the bytes into which bools of these dims are packed.
fn packed(bools: &Dims) -> Result<Dims, TypeError> {
    let mut dims = bools.clone();
    let last = dims
        .last_mut()
        .ok_or_else(|| TypeError::new("packs the elements of a last dim; a scalar has none"))?;
    let size =
        last.size().ok_or_else(|| TypeError::new(format!("the last dim must be bound, not {last}")))?;
    *last = Dim::known(size.div_ceil(BITS));
    Ok(dims)
}

/// Returns the words of the last dim, of bools and of bytes. A split into whole bytes splits the bools as well.
fn words(bools: &Type) -> [&'static str; 2] {
    let is_whole = bools.dims.last().and_then(Dim::size).is_some_and(|size| size.is_multiple_of(BITS));
    if is_whole { ["* (bytes bits^)", "* bytes"] } else { ["* bools^", "* bytes^"] }
}

impl Operator for PackBits {
    fn facts(&self) -> Facts {
        Operands::new(&[OperandRole::Data]).anywhere(PrecisionClass::Source)
    }

    fn infer(&self, types: &Inference) -> Result<Vec<Type>, TypeError> {
        let [x] = types.operands()?;
        ensure!(x.dtype == DType::Bool, "packs bools, not {x}");
        Ok(vec![Type::new(DType::U8, packed(&x.dims)?)])
    }

    /// `"* (m k^) -> * m"`
    fn factors(&self, signature: &Signature) -> Factors {
        let [bools, bytes] = words(&signature.operands[0]);
        Factors::rule(&format!("{bools} -> {bytes}"), signature)
    }

    /// Bools have no gradient.
    fn gradient(&self, _: &mut Builder, _: NodeRef, _: &[Option<ValueId>]) -> Gradients {
        Ok(vec![None])
    }

    fn cost(&self, signature: &Signature) -> Cost {
        Cost::streaming(signature, 0)
    }

    fn interp(&self, cx: &Interp) -> Vec<Tensor> {
        let x = cx.operands[0];
        let byte = |bits: &[bool]| bits.iter().rev().fold(0, |byte, &bit| 2 * byte + i64::from(bit));
        let rows = x.bools().chunks_exact(x.sizes.last().copied().unwrap_or(1).max(1));
        let bytes = rows.flat_map(|row| row.chunks(BITS as usize)).map(byte).collect();
        vec![Tensor::int(DType::U8, cx.sizes(0), bytes)]
    }
}

impl Operator for UnpackBits {
    fn facts(&self) -> Facts {
        Operands::new(&[OperandRole::Data]).anywhere(PrecisionClass::Source)
    }

    fn infer(&self, types: &Inference) -> Result<Vec<Type>, TypeError> {
        let ([bytes], bools) = (types.operands()?, types.declared()?);
        ensure!(
            bytes.dtype == DType::U8 && bools.dtype == DType::Bool && packed(&bools.dims)? == bytes.dims,
            "the bits of {bytes} are not the elements of {bools}"
        );
        Ok(vec![Type::new(DType::Bool, bools.dims.clone())])
    }

    /// `"* m -> * (m k^)"`
    fn factors(&self, signature: &Signature) -> Factors {
        let [bools, bytes] = words(&signature.results[0]);
        Factors::rule(&format!("{bytes} -> {bools}"), signature)
    }

    /// Bools have no gradient.
    fn gradient(&self, _: &mut Builder, _: NodeRef, _: &[Option<ValueId>]) -> Gradients {
        Ok(vec![None])
    }

    fn cost(&self, signature: &Signature) -> Cost {
        Cost::streaming(signature, 0)
    }

    fn interp(&self, cx: &Interp) -> Vec<Tensor> {
        let sizes = cx.sizes(0);
        let size = sizes.last().copied().unwrap_or(1);
        let bits = |row: &[i64]| (0..size).map(|i| row[i / 8] >> (i % 8) & 1 != 0).collect::<Vec<_>>();
        let rows = cx.operands[0].ints().chunks_exact(size.div_ceil(8).max(1));
        vec![Tensor::bool(sizes, rows.flat_map(bits).collect())]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cranelift_entity::PrimaryMap;

    fn run(op: &dyn Operator, operand: Tensor, result: Type) -> Tensor {
        let (operands, results, data) = ([&operand], [result], PrimaryMap::new());
        op.interp(&Interp { operands: &operands, results: &results, data: &data, parts: None }).remove(0)
    }

    #[test]
    fn a_row_ends_with_a_byte_of_its_own() {
        let bits = [true, false, false, true, true, false, false, false, true, false, true, true];
        let bools = Tensor::bool(vec![2, 6], bits.to_vec());
        let packed = run(&PackBits, bools.clone(), Type::of(DType::U8, &[2, 1]));
        assert_eq!(packed.ints(), [0b01_1001, 0b11_0100]);
        assert_eq!(run(&UnpackBits, packed, Type::of(DType::Bool, &[2, 6])), bools);
    }

    #[test]
    fn a_dim_of_whole_bytes_is_split_into_whole_bytes() {
        let factors = |size: u64| {
            let (operands, results) =
                (vec![Type::of(DType::Bool, &[2, size])], vec![Type::of(DType::U8, &[2, size.div_ceil(8)])]);
            let factors = PackBits.factors(&Signature { operands, results });
            factors.operands[0][1].iter().map(|&id| factors.factors[id as usize].clone()).collect::<Vec<_>>()
        };
        use crate::factors::FactorKind::{Free, Whole};
        let described =
            |size| factors(size).iter().map(|f| (f.size.size().unwrap(), f.kind)).collect::<Vec<_>>();
        assert_eq!(described(48), [(6, Free), (8, Whole)]);
        assert_eq!(described(12), [(12, Whole)]);
    }
}
