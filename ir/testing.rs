//! Random programs that are determined by a seed, for property tests of the text, of passes and of backends.
//!
//! A program is smooth everywhere and keeps its numbers small, so that its gradient can be compared with finite differences, and a
//! backend with the interpreter. It has batched inputs, parameters with every kind of initializer, the output `y`, and the scalar
//! outputs `loss.sum` (a random combination of all values without a reader, so that every parameter has an effect) and
//! `loss.weight`.

use crate::edit::Builder;
use crate::ops::constant::{Constant, Iota};
use crate::ops::contract::Contract;
use crate::ops::elementwise::{Binary, Compare, Select, Unary};
use crate::ops::reduce::{Reduce, ReduceKind};
use crate::ops::shape::{Concat, Pad};
use crate::ops::{Float, Labels};
use crate::{
    Blob, DType, Data, DataId, Dim, Initializer, Module, Role, ScalarPart, StateId, StepOutput, Tensor, Type,
    TypeError, ValueId, ViewStep, random,
};
use smallvec::{SmallVec, smallvec};
use std::collections::{BTreeMap, BTreeSet};

/// Makes a random forward program of floats of `dtype`, with about `steps` operations.
pub fn program(seed: u64, dtype: DType, steps: usize) -> Module {
    let mut module = Module::new(format!("random_{seed}"));
    let mut choices = Choices::new(seed);
    let mut pool = Vec::new();
    for i in 0..1 + choices.below(2) {
        let ty = Type::of(dtype, &choices.sizes(1));
        let value = module.add_input(format!("input.{i}"), ty, true);
        pool.push(BoundedValue { value, bound: INPUT_BOUND });
    }
    let b = Builder::new(&mut module, "random");
    let mut generator = Generator { b, choices, dtype, pool };
    for i in 0..steps {
        generator.b.origin(format!("/step.{i}"));
        generator.step().expect("the generator builds what operators take");
    }
    generator.b.origin("loss");
    let (y, sum, weight) = generator.scalar().expect("the generator builds what operators take");
    generator.b.finish();
    module.add_output("y", y);
    module.add_output(StepOutput::loss(0, ScalarPart::Sum), sum);
    module.add_output(StepOutput::loss(0, ScalarPart::Weight), weight);
    module
}

/// Makes a random tensor for every float input of a program, different for every `index`.
pub fn microbatch(module: &Module, seed: u64, index: u64) -> BTreeMap<String, Tensor> {
    let tensor = |input: &crate::Input| {
        let ty = module.ty(input.value);
        let sizes: Vec<usize> =
            ty.sizes().expect("dims are bound").iter().map(|&size| size as usize).collect();
        let stream = random::stream(&format!("{} {index}", input.name));
        let element = |i| random::normal(seed, stream, i as u64).clamp(-INPUT_BOUND, INPUT_BOUND);
        let elements = (0..sizes.iter().product()).map(element).collect();
        (input.name.clone(), Tensor::float(ty.dtype, sizes, elements).rounded())
    };
    module.inputs.iter().map(tensor).collect()
}

/// The largest magnitude of an input.
const INPUT_BOUND: f64 = 2.0;
/// The bound above which a value is passed through `tanh`.
const BOUND: f64 = 8.0;
/// The standard deviation of drawn parameters.
const STD: f64 = 0.5;
/// A number that drawn parameters hardly exceed.
const PARAMETER_BOUND: f64 = 2.0;
/// The most elements of a value.
const ELEMENTS: u64 = 512;

/// A sequence of random choices. A copy makes the same choices again.
#[derive(Clone, Copy, Debug)]
pub struct Choices {
    seed: u64,
    drawn: u32,
}

impl Choices {
    /// Starts the choices of a seed.
    pub fn new(seed: u64) -> Self {
        Self { seed, drawn: 0 }
    }

    /// Draws a number below `count`.
    pub fn below(&mut self, count: usize) -> usize {
        self.drawn += 1;
        random::philox(self.seed, [self.drawn, 0, 0, 0])[0] as usize % count
    }

    fn uniform(&mut self) -> f64 {
        self.below(2001) as f64 / 1000.0 - 1.0
    }

    /// Draws one of these items.
    pub fn of<T: Clone>(&mut self, items: &[T]) -> T {
        items[self.below(items.len())].clone()
    }

    /// Draws the sizes of `least` to 3 dims.
    fn sizes(&mut self, least: usize) -> Vec<u64> {
        let ndim = least + self.below(4 - least);
        (0..ndim).map(|_| self.of(&[1, 2, 2, 3, 4, 4, 6])).collect()
    }
}

/// A value with a bound on the magnitude of its elements.
#[derive(Clone, Copy)]
struct BoundedValue {
    value: ValueId,
    bound: f64,
}

/// A function that adds one or a few operations.
type Step<G> = fn(&mut G) -> Result<BoundedValue, TypeError>;

struct Generator<'m> {
    b: Builder<'m>,
    choices: Choices,
    dtype: DType,
    pool: Vec<BoundedValue>,
}

impl Generator<'_> {
    fn step(&mut self) -> Result<(), TypeError> {
        let steps: &[Step<Self>] = &[
            Self::unary,
            Self::unary,
            Self::positive,
            Self::binary,
            Self::binary,
            Self::contract,
            Self::contract,
            Self::linear,
            Self::reshape,
            Self::transpose,
            Self::broadcast,
            Self::slice,
            Self::concat,
            Self::pad,
            Self::reduce,
            Self::select,
            Self::source,
        ];
        let BoundedValue { mut value, mut bound } = self.choices.of(steps)(self)?;
        if bound > BOUND {
            (value, bound) = (self.b.build(Unary::Tanh.of(value))?, 1.0);
        }
        self.pool.push(BoundedValue { value, bound });
        Ok(())
    }

    /// Draws a value of the pool, most often a recent one.
    fn pick(&mut self) -> BoundedValue {
        let count = self.pool.len();
        let late = count - 1 - self.choices.below(count.min(3));
        if self.choices.below(3) == 0 { self.choices.of(&self.pool) } else { self.pool[late] }
    }

    /// Draws a value of the pool whose sizes satisfy `fits`, if there is one.
    fn find(&mut self, fits: impl Fn(&[u64]) -> bool) -> Option<BoundedValue> {
        let found: Vec<BoundedValue> =
            self.pool.iter().filter(|known| fits(&self.sizes(known.value))).copied().collect();
        (!found.is_empty()).then(|| self.choices.of(&found))
    }

    fn sizes(&self, value: ValueId) -> Vec<u64> {
        self.b.ty(value).sizes().expect("all dims are bound")
    }

    fn dims(sizes: &[u64]) -> impl Iterator<Item = Dim> {
        sizes.iter().copied().map(Dim::known)
    }

    fn unary(&mut self) -> Result<BoundedValue, TypeError> {
        let x = self.pick();
        let op = self.choices.of(&[
            (Unary::Neg, x.bound),
            (Unary::Tanh, 1.0),
            (Unary::Sigmoid, 1.0),
            (Unary::Sin, 1.0),
            (Unary::Cos, 1.0),
            (Unary::Erf, 1.0),
            (Unary::Gelu, x.bound),
            (Unary::GeluTanh, x.bound),
            (Unary::Silu, x.bound),
        ]);
        Ok(BoundedValue { value: self.b.one(op.0, &[x.value])?, bound: op.1 })
    }

    /// Adds a function whose operand must not be near zero, applied to `½ + sigmoid(x)`.
    fn positive(&mut self) -> Result<BoundedValue, TypeError> {
        let x = self.pick();
        let positive = self.b.build(Unary::Sigmoid.of(x.value) + 0.5)?;
        let function = match self.choices.below(6) {
            0 => Unary::Log.of(positive),
            1 => Unary::Sqrt.of(positive),
            2 => Unary::Rsqrt.of(positive),
            3 => Unary::Reciprocal.of(positive),
            4 => Unary::Exp.of(positive),
            _ => Binary::Pow.of(positive, self.choices.of(&[0.5, 1.5, 2.0, 3.0])),
        };
        Ok(BoundedValue { value: self.b.build(function)?, bound: 4.5 })
    }

    fn binary(&mut self) -> Result<BoundedValue, TypeError> {
        let x = self.pick();
        let sizes = self.sizes(x.value);
        let fits = |other: &[u64]| {
            let pairs = sizes.iter().rev().zip(other.iter().rev());
            let stretched: u64 = pairs.clone().map(|(a, b)| if *a == 1 { *b } else { 1 }).product();
            let leading: u64 = other.iter().rev().skip(sizes.len()).product();
            let elements = sizes.iter().product::<u64>() * stretched * leading;
            pairs.clone().all(|(a, b)| a == b || *a == 1 || *b == 1) && elements <= ELEMENTS
        };
        let y = self.find(fits).unwrap_or(x);
        let (op, bound) = match self.choices.below(4) {
            0 => (Binary::Add, x.bound + y.bound),
            1 => (Binary::Sub, x.bound + y.bound),
            2 => (Binary::Mul, x.bound * y.bound),
            _ => {
                let positive = self.b.build(Unary::Sigmoid.of(y.value) + 0.5)?;
                return Ok(BoundedValue { value: self.b.build(x.value / positive)?, bound: 2.0 * x.bound });
            }
        };
        Ok(BoundedValue { value: self.b.one(op, &[x.value, y.value])?, bound })
    }

    /// Adds a contraction of two values over a dim of equal size, scaled by that size.
    fn contract(&mut self) -> Result<BoundedValue, TypeError> {
        let x = self.pick();
        let sizes = self.sizes(x.value);
        let Some(i) = (0..sizes.len()).rev().find(|&i| sizes[i] > 1) else { return self.linear() };
        let small =
            |other: &[u64]| sizes.iter().chain(other).product::<u64>() <= ELEMENTS * sizes[i] * sizes[i];
        let y =
            self.find(|other| other.contains(&sizes[i]) && other.len() + sizes.len() <= 6 && small(other));
        let Some(y) = y else { return self.linear() };
        let others = self.sizes(y.value);
        let j = others.iter().position(|&size| size == sizes[i]).expect("it was found by that");
        let labels = |first: u8, count: usize, shared: usize| {
            (0..count)
                .map(|k| if k == shared { b'z' } else { first + k as u8 })
                .collect::<SmallVec<[u8; 8]>>()
        };
        let (lhs, rhs) = (labels(b'a', sizes.len(), i), labels(b'k', others.len(), j));
        let out = lhs.iter().chain(&rhs).copied().filter(|&label| label != b'z').collect();
        let contract = Contract { lhs: Labels(lhs), rhs: Labels(rhs), out: Labels(out) };
        let product = self.b.one(contract, &[x.value, y.value])?;
        let value = self.b.build(product * (1.0 / sizes[i] as f64))?;
        Ok(BoundedValue { value, bound: x.bound * y.bound })
    }

    /// Adds a linear layer with a new parameter.
    fn linear(&mut self) -> Result<BoundedValue, TypeError> {
        let mut x = self.pick();
        if self.sizes(x.value).is_empty() {
            x.value = self.b.reshape(x.value, Self::dims(&[1]))?;
        }
        let sizes = self.sizes(x.value);
        let (width, transposed) = (*sizes.last().expect("it has a dim"), self.choices.below(2) == 0);
        let columns = self.choices.of(&[2, 3, 4]);
        let weight = self.parameter(if transposed { [columns, width] } else { [width, columns] });
        let product = self.b.one(Contract::linear(sizes.len(), transposed), &[x.value, weight])?;
        Ok(BoundedValue { value: product, bound: width as f64 * x.bound * PARAMETER_BOUND })
    }

    /// Adds a parameter that is drawn, filled, or cut out of a row of the data table.
    fn parameter(&mut self, [rows, columns]: [u64; 2]) -> ValueId {
        let (dtype, number) = (self.dtype, self.b.module().states.len());
        let ty = Type::of(dtype, &[rows, columns]);
        let name = format!("layer.{number}.weight");
        let kind = self.choices.below(4);
        let initializer = match kind {
            0 => Initializer::Normal { std: STD.to_bits(), data: None },
            1 => Initializer::Splat(self.choices.uniform().to_bits()),
            2 => Initializer::Data(self.row(&format!("{name}.file"), &[rows, columns])),
            _ => Initializer::Data(self.row(&format!("{name}.file"), &[columns + 1, rows])),
        };
        let id: StateId = self.b.tables().add_state(name, ty, Role::Parameter, initializer);
        if kind == 3 {
            let cut = ViewStep::Slice { dim: 0, start: 1, length: columns };
            self.b.tables().states[id].view = smallvec![cut, ViewStep::Transpose(smallvec![1, 0])];
        }
        self.b.module().states[id].input
    }

    /// Adds a row to the data table, with random numbers between -1 and 1.
    fn row(&mut self, name: &str, sizes: &[u64]) -> DataId {
        let elements = (0..sizes.iter().product()).map(|_: u64| self.choices.uniform()).collect();
        let tensor = Tensor::float(self.dtype, sizes.iter().map(|&size| size as usize).collect(), elements);
        let (ty, blob) = (tensor.ty(), Blob::Inline(tensor.to_bytes().into()));
        self.b.tables().add_data(Data { name: name.into(), ty, blob, claim: None })
    }

    fn reshape(&mut self) -> Result<BoundedValue, TypeError> {
        let x = self.pick();
        let mut sizes = self.sizes(x.value);
        let at = self.choices.below(sizes.len() + 1);
        match self.choices.below(3) {
            0 if at + 1 < sizes.len() => {
                let merged = sizes.remove(at) * sizes[at];
                sizes[at] = merged;
            }
            1 if at < sizes.len() && sizes[at].is_multiple_of(2) => {
                sizes[at] /= 2;
                sizes.insert(at, 2);
            }
            _ if sizes.len() < 4 => sizes.insert(at, 1),
            _ => sizes = vec![sizes.iter().product()],
        }
        Ok(BoundedValue { value: self.b.reshape(x.value, Self::dims(&sizes))?, ..x })
    }

    fn transpose(&mut self) -> Result<BoundedValue, TypeError> {
        let x = self.pick();
        let ndim = self.sizes(x.value).len();
        let mut permutation: Vec<u32> = (0..ndim as u32).collect();
        for i in (1..ndim).rev() {
            permutation.swap(i, self.choices.below(i + 1));
        }
        Ok(BoundedValue { value: self.b.transpose(x.value, &permutation)?, ..x })
    }

    fn broadcast(&mut self) -> Result<BoundedValue, TypeError> {
        let x = self.pick();
        let mut sizes = self.sizes(x.value);
        for size in sizes.iter_mut().filter(|size| **size == 1) {
            *size = self.choices.of(&[1, 2, 3]);
        }
        if sizes.len() < 4 {
            sizes.insert(0, self.choices.of(&[1, 2]));
        }
        if sizes.iter().product::<u64>() > ELEMENTS {
            return self.reduce();
        }
        Ok(BoundedValue { value: self.b.broadcast(x.value, Self::dims(&sizes))?, ..x })
    }

    fn slice(&mut self) -> Result<BoundedValue, TypeError> {
        let x = self.pick();
        let sizes = self.sizes(x.value);
        let Some(dim) = (0..sizes.len()).find(|&dim| sizes[dim] > 1) else { return self.unary() };
        let start = self.choices.below(sizes[dim] as usize) as u64;
        let length = 1 + self.choices.below((sizes[dim] - start) as usize) as u64;
        Ok(BoundedValue { value: self.b.slice(x.value, dim as u32, start, Dim::known(length))?, ..x })
    }

    fn concat(&mut self) -> Result<BoundedValue, TypeError> {
        let x = self.pick();
        let sizes = self.sizes(x.value);
        if sizes.is_empty() || sizes.iter().product::<u64>() * 2 > ELEMENTS {
            return self.reduce();
        }
        let dim = self.choices.below(sizes.len());
        let same = |other: &[u64]| {
            other.len() == sizes.len()
                && (0..sizes.len()).all(|i| i == dim || other[i] == sizes[i])
                && other[dim] <= 8
        };
        let y = self.find(same).unwrap_or(x);
        let value = self.b.one(Concat { dim: dim as u32 }, &[x.value, y.value])?;
        Ok(BoundedValue { value, bound: x.bound.max(y.bound) })
    }

    fn pad(&mut self) -> Result<BoundedValue, TypeError> {
        let x = self.pick();
        let mut sizes = self.sizes(x.value);
        if sizes.is_empty() || sizes.iter().product::<u64>() * 3 > ELEMENTS {
            return self.reduce();
        }
        let dim = self.choices.below(sizes.len());
        let (before, after) = (self.choices.below(2) as u64, self.choices.below(2) as u64);
        sizes[dim] += before + after;
        let value = self.choices.of(&[0.0, 0.0, 0.5]);
        let pad = Pad { dim: dim as u32, before, value: Float::new(value) };
        let value = self.b.one_typed(pad, &[x.value], Type::of(self.dtype, &sizes))?;
        Ok(BoundedValue { value, bound: x.bound.max(0.5) })
    }

    fn reduce(&mut self) -> Result<BoundedValue, TypeError> {
        let x = self.pick();
        let sizes = self.sizes(x.value);
        let dims: SmallVec<[u32; 4]> =
            (0..sizes.len() as u32).filter(|_| self.choices.below(2) == 0).collect();
        if dims.is_empty() {
            return self.unary();
        }
        let count: u64 = dims.iter().map(|&dim| sizes[dim as usize]).product();
        let (kind, bound) =
            self.choices.of(&[(ReduceKind::Sum, x.bound * count as f64), (ReduceKind::Mean, x.bound)]);
        let keep = self.choices.below(2) == 0;
        Ok(BoundedValue { value: self.b.one(Reduce { kind, dims, keep }, &[x.value])?, bound })
    }

    /// Adds a selection between two values by comparing an index with a number.
    fn select(&mut self) -> Result<BoundedValue, TypeError> {
        let x = self.pick();
        let sizes = self.sizes(x.value);
        if sizes.is_empty() {
            return self.unary();
        }
        let dim = self.choices.below(sizes.len());
        let index = self.b.one_typed(Iota { dim: dim as u32 }, &[], Type::of(DType::I64, &sizes))?;
        let limit = self.choices.below(sizes[dim] as usize + 1) as f64;
        let condition = self.b.build(Compare::Less.of(index, limit))?;
        let y = self.find(|other| other == sizes).unwrap_or(x);
        let value = self.b.build(Select.of(condition, x.value, y.value))?;
        Ok(BoundedValue { value, bound: x.bound.max(y.bound) })
    }

    /// Adds a value without operands.
    fn source(&mut self) -> Result<BoundedValue, TypeError> {
        let sizes = self.choices.sizes(1);
        let ty = Type::of(self.dtype, &sizes);
        match self.choices.below(3) {
            0 => {
                let value = self.choices.uniform();
                Ok(BoundedValue { value: self.b.splat(ty, value)?, bound: 1.0 })
            }
            1 => {
                let dim = self.choices.below(sizes.len());
                Ok(BoundedValue {
                    value: self.b.one_typed(Iota { dim: dim as u32 }, &[], ty)?,
                    bound: sizes[dim] as f64,
                })
            }
            _ => Ok(BoundedValue { value: self.constant(&sizes)?, bound: 1.0 }),
        }
    }

    fn constant(&mut self, sizes: &[u64]) -> Result<ValueId, TypeError> {
        let name = format!("constant.{}", self.b.module().data.len());
        let data = self.row(&name, sizes);
        self.b.one_typed(Constant { data }, &[], Type::of(self.dtype, sizes))
    }

    /// Returns the last value; the sum, over all values without a reader, of their means with random weights; and the weight 1.
    fn scalar(&mut self) -> Result<(ValueId, ValueId, ValueId), TypeError> {
        let nodes = self.b.module().nodes.values();
        let read: BTreeSet<ValueId> = nodes.flat_map(|node| node.operands.iter().copied()).collect();
        let pool: BTreeSet<ValueId> = self.pool.iter().map(|known| known.value).collect();
        let unread: Vec<ValueId> = pool.difference(&read).copied().collect();
        let last = self.pool.last().expect("a program has an input").value;
        let mut sum = None;
        for value in unread {
            let count: u64 = self.sizes(value).iter().product();
            let flat = self.b.reshape(value, Self::dims(&[count]))?;
            let weights = self.constant(&[count])?;
            let product = self.b.one(Contract::new("a,a->"), &[flat, weights])?;
            let mean = self.b.build(product * (1.0 / count as f64))?;
            sum = Some(match sum {
                None => mean,
                Some(sum) => self.b.build(sum + mean)?,
            });
        }
        let sum = sum.expect("something is read by nothing, for nodes have no cycles");
        Ok((last, sum, self.b.scalar(self.dtype, 1.0)?))
    }
}
