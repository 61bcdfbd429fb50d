//! A multiplication whose epilogue cuBLASLt refuses: the multiplication without the epilogue, and kernels for the epilogue.
//!
//! A matrix that is added stays with the multiplication, which adds it before it writes the result, because the result may lie in the
//! matrix's place. The product is rounded to the result's type before a kernel reads it.

use super::super::{Multiprocessors, Step, chain, reduce};
use crate::program::{Epilogue, Matrices, Multiply, ValueStart};
use ir::ops::elementwise::{Binary, Unary};
use ir::ops::reduce::{Reduce, ReduceKind};
use ir::{DType, Op};
use program::layout::{Layout, Sizes};
use program::{Activation, Chain, ChainSource, ChainStep, Instruction, Kernel, Region, View};
use smallvec::{SmallVec, smallvec};

/// Returns the steps of a multiplication with an epilogue. They get the instruction's node and origin.
pub(super) fn steps(multiply: Multiply, instruction: &Instruction, on: Multiprocessors) -> Vec<Step> {
    let addend = multiply.epilogue.addend.clone();
    let plain = Multiply { epilogue: Epilogue { addend, ..Epilogue::default() }, ..multiply.clone() };
    let rest = Rest { multiply: &multiply, instruction, on };
    // The sums come first: a multiplication whose result no later command reads runs on the side stream.
    let mut steps = rest.sums().unwrap_or_default();
    steps.push(Step::Multiply(plain));
    steps.extend(rest.chain());
    steps
}

/// The work of an epilogue, except for the addition of a matrix.
struct Rest<'a> {
    multiply: &'a Multiply,
    instruction: &'a Instruction,
    on: Multiprocessors,
}

impl Rest<'_> {
    /// Returns the kernels that compute the sums over the terms of a side.
    fn sums(&self) -> Option<Vec<Step>> {
        let Multiply { sizes: [m, k, n], dtype, out_dtype, .. } = *self.multiply;
        let (side, start) = self.multiply.epilogue.sums?;
        let (matrix, sizes, summed, kept) = match side {
            0 => (&self.multiply.lhs, [m, k], 1, m),
            _ => (&self.multiply.rhs, [k, n], 0, n),
        };
        let sums = lying(start.region, start.byte, out_dtype, &[(kept, 1)]);
        let reduce = Reduce { kind: ReduceKind::Sum, dims: smallvec![summed], keep: false };
        let kernel = Kernel::Op(reduce.clone().into());
        let instruction = self.instruction(kernel, vec![view(matrix, dtype, sizes)], vec![sums]);
        Some(reduce::steps(&reduce, &instruction, self.on))
    }

    /// Returns the kernel that adds the bias to the product and applies the activation, in the product's place.
    fn chain(&self) -> Option<Step> {
        let Multiply { sizes: [_, _, n], out_dtype, ref out, ref epilogue, .. } = *self.multiply;
        let product = self.of_result(out);
        let mut writer = Writer { chain: self, operands: vec![product.clone()], steps: vec![] };
        let mut last = ChainSource::Operand(0);
        if let Some(ValueStart { region, byte }) = epilogue.bias {
            let rows = self.multiply.sizes[0];
            let bias = writer.operand(lying(region, byte, out_dtype, &[(rows, 0), (n, 1)]));
            last = writer.step(Binary::Add, smallvec![last, bias]);
        }
        let mut results = vec![product];
        let mut stores: SmallVec<[u32; 2]> = SmallVec::new();
        match (epilogue.activation, &epilogue.aux) {
            (Activation::None, _) => {}
            (Activation::GeluTanh, aux) => {
                let argument = last;
                last = writer.step(Unary::GeluTanh, smallvec![argument]);
                if let Some(aux) = aux {
                    results.push(self.of_result(aux));
                    stores.push(writer.stored(argument));
                }
            }
            (Activation::GeluTanhGrad, aux) => {
                let aux = writer.operand(self.of_result(aux.as_ref()?));
                last = writer.step(Binary::GeluTanhGrad, smallvec![aux, last]);
            }
        }
        // Without a bias or an activation, no kernel is needed.
        let ChainSource::Step(step) = last else { return None };
        stores.insert(0, step);
        let Writer { operands, steps, .. } = writer;
        let chain = Chain { steps, stores };
        let instruction = self.instruction(Kernel::Elementwise(chain.clone()), operands, results);
        Some(Step::Kernel(chain::run(&chain, &instruction)))
    }

    /// Returns a matrix of the result's sizes and type.
    fn of_result(&self, matrix: &Matrices) -> View {
        let [m, _, n] = self.multiply.sizes;
        view(matrix, self.multiply.out_dtype, [m, n])
    }

    fn instruction(&self, kernel: Kernel, operands: Vec<View>, results: Vec<View>) -> Instruction {
        let Instruction { node, of_microbatch, ref origin, .. } = *self.instruction;
        let (in_place, origin) = (SmallVec::new(), origin.clone());
        Instruction {
            kernel,
            operands,
            results,
            scratch: None,
            in_place,
            accumulates: false,
            of_microbatch,
            parts: None,
            node,
            origin,
        }
    }
}

/// A chain under construction.
struct Writer<'a> {
    chain: &'a Rest<'a>,
    operands: Vec<View>,
    steps: Vec<ChainStep>,
}

impl Writer<'_> {
    fn operand(&mut self, view: View) -> ChainSource {
        self.operands.push(view);
        ChainSource::Operand(self.operands.len() as u32 - 1)
    }

    fn step(&mut self, op: impl Into<Op>, sources: SmallVec<[ChainSource; 3]>) -> ChainSource {
        let Instruction { node, ref origin, .. } = *self.chain.instruction;
        let dtype = self.chain.multiply.out_dtype;
        self.steps.push(ChainStep { op: op.into(), sources, dtype, node, origin: origin.clone() });
        ChainSource::Step(self.steps.len() as u32 - 1)
    }

    /// Returns the step that makes a stored value. An operand becomes a step by a cast to its own type.
    fn stored(&mut self, source: ChainSource) -> u32 {
        let to = self.chain.multiply.out_dtype;
        let made = match source {
            ChainSource::Operand(_) => self.step(ir::ops::elementwise::Cast { to }, smallvec![source]),
            step @ ChainSource::Step(_) => step,
        };
        let ChainSource::Step(step) = made else { unreachable!("a step was made just now") };
        step
    }
}

/// Returns a single matrix as a view.
fn view(matrix: &Matrices, dtype: DType, [rows, columns]: [usize; 2]) -> View {
    let [down, right] = matrix.strides.map(|stride| stride as isize);
    lying(matrix.region, matrix.start, dtype, &[(rows, down), (columns, right)])
}

/// Returns a view that begins at a byte, with the size and the stride of each dim.
fn lying(region: Region, byte: i64, dtype: DType, dims: &[(usize, isize)]) -> View {
    let sizes: Sizes = dims.iter().map(|dim| dim.0).collect();
    let strides = dims.iter().map(|dim| dim.1).collect();
    View::whole(region, byte as u64, dtype, Layout { sizes, strides, offset: 0 })
}
