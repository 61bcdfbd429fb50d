//! A module of many operators: compiling is what takes long.

use super::{host, stand_in};
use crate::compare::{Make, Microbatch, assert_agrees_on, unit};
use cuda::host::Order;
use ir::interp::Mode;
use ir::ops::elementwise::Unary;
use ir::{Builder, DType, Module, Op, Tensor, Type, ValueId, random};
use program::Multiprocessors;
use program::Program;
use program::lower::{LowerOptions, lower};
use std::cell::Cell;

/// A program that is being written: every result of an operator is an output.
pub(super) struct Writer {
    module: Module,
    inputs: Microbatch,
    /// The size of the GPU that it is lowered for.
    pub(super) multiprocessors: Multiprocessors,
    /// The size for which it ran by its PTX.
    by_ptx: Cell<Option<Multiprocessors>>,
}

impl Default for Writer {
    fn default() -> Self {
        let (module, inputs) = (Module::new("large"), Microbatch::new());
        Self { module, inputs, multiprocessors: Multiprocessors::default(), by_ptx: Cell::default() }
    }
}

impl Writer {
    pub(super) fn input(&mut self, tensor: Tensor) -> ValueId {
        let name = format!("input.{}", self.inputs.len());
        let value = self.module.add_input(&name, tensor.ty(), false);
        self.inputs.insert(name, tensor);
        value
    }

    /// Normal numbers.
    pub(super) fn floats(&mut self, dtype: DType, sizes: &[usize]) -> ValueId {
        self.numbers(dtype, sizes, |x| x)
    }

    /// What a function makes of normal numbers.
    pub(super) fn numbers(&mut self, dtype: DType, sizes: &[usize], of: impl Fn(f64) -> f64) -> ValueId {
        let stream = self.inputs.len() as u64;
        let number = |i: usize| of(random::normal(2, stream, i as u64));
        let elements = (0..sizes.iter().product()).map(number).collect();
        self.input(Tensor::float(dtype, sizes.to_vec(), elements).rounded())
    }

    /// Integers from `range`.
    pub(super) fn integers(&mut self, dtype: DType, sizes: &[usize], range: std::ops::Range<i64>) -> ValueId {
        let stream = self.inputs.len() as u64;
        let number = |i: usize| (random::normal(2, stream, i as u64).abs() * 1e6) as i64;
        let elements =
            (0..sizes.iter().product()).map(|i| range.start + number(i) % (range.end - range.start));
        self.input(Tensor::int(dtype, sizes.to_vec(), elements.collect()))
    }

    /// What a function builds, without being an output.
    pub(super) fn built<T>(&mut self, build: impl FnOnce(&mut Builder) -> T) -> T {
        let mut b = Builder::new(&mut self.module, "test");
        let built = build(&mut b);
        b.finish();
        built
    }

    pub(super) fn scalar(&mut self, dtype: DType, value: f64) -> ValueId {
        self.built(|b| b.scalar(dtype, value).expect("a scalar"))
    }

    pub(super) fn transposed(&mut self, x: ValueId, permutation: &[u32]) -> ValueId {
        self.built(|b| b.transpose(x, permutation).expect("a permutation"))
    }

    /// The elements of a dim from a place on.
    pub(super) fn cut(&mut self, x: ValueId, dim: u32, start: u64) -> ValueId {
        self.built(|b| {
            let size = b.ty(x).dims[dim as usize].size().expect("bound") - start;
            b.slice(x, dim, start, ir::Dim::known(size)).expect("it is as wide")
        })
    }

    /// The same numbers, in a place that dies where they are read.
    pub(super) fn dying(&mut self, x: ValueId) -> ValueId {
        self.built(|b| {
            let once = b.one(Unary::Neg, &[x]).expect("a number");
            b.one(Unary::Neg, &[once]).expect("a number")
        })
    }

    /// Makes the readers of a cast read `half`, its operand, as in a program of level lowered: their kernels widen it.
    pub(super) fn widen_in_readers(&mut self, half: ValueId, cast: ValueId) {
        let readers = self.module.uses()[cast].clone();
        let mut b = Builder::new(&mut self.module, "test");
        for reader in readers {
            let operands = b.module().node(reader).operands.clone();
            let casts = operands.iter().enumerate().filter(|(_, operand)| **operand == cast);
            casts.for_each(|(index, _)| b.set_operand(reader, index, half));
        }
        b.finish();
    }

    pub(super) fn op(&mut self, op: impl Into<Op>, operands: &[ValueId]) -> Vec<ValueId> {
        self.typed(op, operands, &[])
    }

    pub(super) fn typed(
        &mut self,
        op: impl Into<Op>,
        operands: &[ValueId],
        declared: &[Type],
    ) -> Vec<ValueId> {
        let op = op.into();
        let name = op.name();
        let mut b = Builder::new(&mut self.module, "test");
        let results = b.push_typed(op, operands, declared).unwrap_or_else(|error| panic!("{error}"));
        b.finish();
        for &result in &results {
            let count = self.module.outputs.len();
            self.module.add_output(format!("{name}.{count}"), result);
        }
        results.to_vec()
    }

    /// The program so far.
    pub(super) fn module(&self) -> &Module {
        &self.module
    }

    /// What a GPU is given.
    pub(super) fn lowered(&self) -> Program {
        lower(&self.module, &self.options()).unwrap_or_else(|error| panic!("{error}"))
    }

    fn options(&self) -> LowerOptions<'static> {
        let multiprocessors = self.multiprocessors;
        LowerOptions { multiprocessors, ..LowerOptions::of(cuda::TARGET) }
    }

    /// Runs it with threads in this order, and holds it against the interpreter. Launches run by their PTX the first time, in the
    /// orders that PTX has of its own.
    pub(super) fn check(&self, threads: u32) {
        let ran = self.by_ptx.replace(Some(self.multiprocessors)) == Some(self.multiprocessors);
        let device = if ran { stand_in } else { host };
        self.check_on(&|program| device(program, Order { threads, first: None }));
    }

    /// Runs it on a device that is made, and holds it against the interpreter.
    pub(super) fn check_on(&self, make: Make) {
        assert_agrees_on(
            make,
            Mode::Typed,
            &self.module,
            &self.options(),
            &[vec![self.inputs.clone()]],
            unit,
        );
    }
}

pub(super) const FLOATS: [DType; 4] = [DType::F64, DType::F32, DType::F16, DType::BF16];
