//! Kernels on tensors of more than 2³¹ elements. Their memory is addresses whose pages are never touched but at the ends of
//! tensors, and only the blocks at the ends of a grid run: an index that overflows 32 bits shows there.

use cuda::driver::{Address, Driver, DriverError};
use cuda::host::{Host, Order};
use cuda::lower::lower as lower_for_cuda;
use cuda::program::{Argument, CudaProgram, Kernel, Stream, Task};
use ir::ops::Float;
use ir::ops::dropout::Dropout;
use ir::ops::elementwise::Binary;
use ir::ops::indexing::Gather;
use ir::ops::loss::{CrossEntropy, CrossEntropyGrad};
use ir::ops::norm::LayerNorm;
use ir::ops::optimizer::Sgd;
use ir::ops::reduce::{Reduce, ReduceKind};
use ir::ops::shape::{Pad, Reshape};
use ir::ops::softmax::{Softmax, SoftmaxGrad};
use ir::{Builder, DType, Module, Op, Type, ValueId};
use program::lower::{LowerOptions, lower};
use program::{Region, Section, View};
use std::sync::Arc;

/// The first index that 31 bits do not count.
const LARGE: u64 = 1 << 31;

/// Blocks that run at each end of a grid.
const CORNERS: u32 = 8;

/// A module whose inputs and outputs are too large to be made.
struct Large {
    module: Module,
}

impl Large {
    fn new() -> Self {
        Self { module: Module::new("large") }
    }

    fn input(&mut self, dtype: DType, sizes: &[u64]) -> ValueId {
        let name = format!("input.{}", self.module.inputs.len());
        self.module.add_input(name, Type::of(dtype, sizes), false)
    }

    fn floats(&mut self, sizes: &[u64]) -> ValueId {
        self.input(DType::F32, sizes)
    }

    fn scalar(&mut self, value: f64) -> ValueId {
        let mut b = Builder::new(&mut self.module, "test");
        let scalar = b.scalar(DType::F64, value).expect("a scalar");
        b.finish();
        scalar
    }

    /// The results of an operator, which are outputs.
    fn op(&mut self, op: impl Into<Op>, operands: &[ValueId], declared: &[Type]) -> Vec<ValueId> {
        let mut b = Builder::new(&mut self.module, "test");
        let results = b.push_typed(op, operands, declared).unwrap_or_else(|error| panic!("{error}"));
        b.finish();
        for &result in &results {
            let count = self.module.outputs.len();
            self.module.add_output(format!("output.{count}"), result);
        }
        results.to_vec()
    }

    /// The module on the stand-in, its kernels changed.
    fn load(self, change: fn(&mut Kernel)) -> Sparse {
        let options = LowerOptions::of(cuda::TARGET);
        let program = lower(&self.module, &options).unwrap_or_else(|error| panic!("{error}"));
        let mut cuda = lower_for_cuda(Arc::new(program)).unwrap_or_else(|error| panic!("{error}"));
        cuda.kernels.iter_mut().for_each(change);
        Sparse::load(cuda).unwrap_or_else(|error| panic!("{error}"))
    }
}

/// A program in memory that is there where it is touched.
struct Sparse {
    host: Host,
    cuda: CudaProgram,
    arena: Address,
    constants: Address,
}

impl Sparse {
    fn load(cuda: CudaProgram) -> Result<Self, DriverError> {
        let mut host = Host::new(Order::default()).holding(1 << 42).corners(CORNERS);
        let memory = &cuda.program.memory;
        let (arena, constants) = (host.allocate(memory.arena)?, host.allocate(memory.constants)?);
        for constant in &cuda.program.constants {
            host.write(Address(constants.0 + constant.base), &constant.bytes)?;
        }
        Ok(Self { host, cuda, arena, constants })
    }

    /// Runs every kernel once.
    fn run(&mut self) -> Result<(), DriverError> {
        let loaded = self.host.load(&self.cuda)?;
        for (section, _) in Section::ALL {
            for command in self.cuda.section(section) {
                let Task::Launch(launch) = &command.task else { panic!("{:?} is no launch", command.task) };
                let words: Vec<u64> = launch.arguments.iter().map(|argument| self.word(argument)).collect();
                self.host.launch(Stream::Main, loaded, launch, &words)?;
            }
        }
        self.host.finish()
    }

    fn word(&self, argument: &Argument) -> u64 {
        match argument {
            Argument::Address(region, start) => self.base(*region).0.wrapping_add_signed(*start),
            Argument::Number(number) => *number as u64,
            Argument::Adds => 0,
            other => panic!("{other:?} is not of one launch on one device"),
        }
    }

    fn base(&self, region: Region) -> Address {
        match region {
            Region::Arena => self.arena,
            Region::Constants => self.constants,
            Region::Block(_) | Region::HostBlock(_) => panic!("a program of one stage has no blocks"),
            Region::Host | Region::Disk => panic!("a program for a GPU lies on the GPU"),
        }
    }

    /// The address of an element of a dense view.
    fn at(&self, view: &View, element: u64) -> Address {
        assert!(view.layout.is_dense() && element < view.layout.len() as u64, "{view:?}");
        Address(self.base(view.region).0 + view.bytes().start + element * view.dtype.bytes())
    }

    fn set_bytes(&mut self, input: usize, element: u64, bytes: &[u8]) {
        let view = self.cuda.program.inputs[input].view.clone().expect("it is read");
        let at = self.at(&view, element);
        self.host.write(at, bytes).expect("it is in the arena");
    }

    /// Sets an element of an input of floats.
    fn set(&mut self, input: usize, element: u64, value: f32) {
        self.set_bytes(input, element, &value.to_le_bytes());
    }

    /// An element of an output of floats.
    fn get(&self, output: usize, element: u64) -> f32 {
        let mut bytes = [0; 4];
        let at = self.at(&self.cuda.program.outputs[output].view, element);
        self.host.read(at, &mut bytes).expect("it is in the arena");
        f32::from_le_bytes(bytes)
    }

    fn assert(&self, output: usize, element: u64, expected: f32) {
        let found = self.get(output, element);
        let near = (found - expected).abs() <= 1e-5 * expected.abs().max(1.0);
        assert!(near, "output {output}, element {element}: {found} should be {expected}");
    }
}

/// `x² + y` where both are neighbours in memory, and where `y` is of each row.
fn chains() -> Large {
    let mut large = Large::new();
    let x = large.floats(&[LARGE + 1028]);
    let y = large.floats(&[LARGE + 1028]);
    let square = large.op(Binary::Mul, &[x, x], &[])[0];
    large.op(Binary::Add, &[square, y], &[]);
    let rows = large.floats(&[(1 << 25) + 1, 65]);
    let row = large.floats(&[65]);
    large.op(Binary::Sub, &[rows, row], &[]);
    large
}

fn set_chains(sparse: &mut Sparse) {
    let (last, last_row) = (LARGE + 1027, ((1 << 25) + 1) * 65 - 1);
    for (element, x) in [(0, 2.0), (5, 3.0), (last - 5, 4.0), (last, 5.0)] {
        sparse.set(0, element, x);
        sparse.set(1, element, 100.0 * x);
    }
    for (element, x) in [(3, 6.0), (last_row - 1, 7.0), (last_row, 8.0)] {
        sparse.set(2, element, x);
    }
    sparse.set(3, 64, 0.5);
    sparse.set(3, 3, 0.25);
}

#[test]
#[ignore = "needs a C++ compiler"]
fn chains_count_beyond_31_bits() {
    let mut sparse = chains().load(|_| ());
    set_chains(&mut sparse);
    sparse.run().unwrap_or_else(|error| panic!("{error}"));
    let (last, last_row) = (LARGE + 1027, ((1 << 25) + 1) * 65 - 1);
    for (element, x) in [(0, 2.0), (5, 3.0), (6, 0.0), (last - 5, 4.0), (last - 1, 0.0), (last, 5.0)] {
        sparse.assert(0, element, x * x);
        sparse.assert(1, element, x * x + 100.0 * x);
    }
    for (element, expected) in [(3, 5.75), (last_row - 1, 7.0), (last_row, 7.5), (last_row - 61, -0.25)] {
        sparse.assert(2, element, expected);
    }
}

/// The test finds an index of 32 bits.
#[test]
#[ignore = "needs a C++ compiler"]
fn an_index_that_overflows_is_found() {
    let mut sparse = chains().load(|kernel| {
        assert!(kernel.text.contains("= (i64)thread_index()"), "{}", kernel.text);
        kernel.text = kernel.text.replace("i0 = (i64)first * ", "i0 = (i32)first * ");
    });
    set_chains(&mut sparse);
    let ran = sparse.run();
    let last = LARGE + 1027;
    assert!(ran.is_err() || sparse.get(1, last) != 525.0);
}

#[test]
#[ignore = "needs a C++ compiler"]
fn rows_count_beyond_31_bits() {
    let mut large = Large::new();
    let (rows, size) = ((1 << 25) + 1, 65);
    let (x, dy) = (large.floats(&[rows, size]), large.floats(&[rows, size]));
    let (scale, bias) = (large.floats(&[size]), large.floats(&[size]));
    large.op(Softmax { dim: 1 }, &[x], &[]);
    large.op(SoftmaxGrad { dim: 1 }, &[x, dy], &[]);
    large.op(LayerNorm { eps: Float::new(1.0) }, &[x, scale, bias], &[]);
    large.op(reduce(1), &[x], &[]);
    let mut sparse = large.load(|_| ());
    let last = rows * size - 1;
    for element in [1, last - size, last] {
        sparse.set(0, element, 2.0);
        sparse.set(1, element, 3.0);
    }
    sparse.set(2, 64, 1.0);
    sparse.set(2, 1, 1.0);
    sparse.set(3, 0, 4.0);
    sparse.run().unwrap_or_else(|error| panic!("{error}"));
    let e = 2f32.exp();
    // The variance of a 2 among zeros.
    let (mean, square) = (2.0 / size as f32, 4.0 / size as f32);
    let root = 1.0 / (square - mean * mean + 1.0).sqrt();
    for element in [1, last - size, last] {
        let first = element - element % size;
        sparse.assert(0, element, e / (e + 64.0));
        sparse.assert(0, first, 1.0 / (e + 64.0));
        // y · (dy - Σ y·dy), of a y that is 2 and a dy that is 3.
        sparse.assert(1, element, 2.0 * (3.0 - 6.0));
        sparse.assert(2, element, (2.0 - mean) * root);
        sparse.assert(2, first, 4.0);
        sparse.assert(3, element / size, mean);
        sparse.assert(5, element / size, 2.0);
    }
}

fn reduce(dim: u32) -> Reduce {
    Reduce { kind: ReduceKind::Sum, dims: [dim].into_iter().collect(), keep: false }
}

/// Rows whose elements are far apart, and copies that move them.
#[test]
#[ignore = "needs a C++ compiler"]
fn rows_across_and_copies_count_beyond_31_bits() {
    let mut large = Large::new();
    let inner = (1 << 24) + 1;
    let x = large.floats(&[2, 64, inner]);
    large.op(Softmax { dim: 1 }, &[x], &[]);
    large.op(reduce(1), &[x], &[]);
    let padded = Type::of(DType::F32, &[2, 65, inner]);
    large.op(Pad { dim: 1, before: 1, value: Float::new(-1.0) }, &[x], &[padded]);
    let sides = [46_341, 46_349];
    let square = large.floats(&sides);
    let mut b = Builder::new(&mut large.module, "test");
    let turned = b.transpose(square, &[1, 0]).expect("a permutation");
    b.finish();
    large.op(Reshape, &[turned], &[Type::of(DType::F32, &[sides[0] * sides[1]])]);
    let mut sparse = large.load(|_| ());
    let last = 2 * 64 * inner - 1;
    sparse.set(0, last, 2.0);
    sparse.set(0, 0, 2.0);
    let end = sides[0] * sides[1] - 1;
    sparse.set(1, end, 3.0);
    sparse.set(1, end - sides[1], 4.0);
    sparse.set(1, sides[1], 5.0);
    sparse.run().unwrap_or_else(|error| panic!("{error}"));
    let e = 2f32.exp();
    for (element, column) in [(last, inner), (0, 0)] {
        sparse.assert(0, element, e / (e + 63.0));
        let other = if column == 0 { inner } else { last - inner };
        sparse.assert(0, other, 1.0 / (e + 63.0));
    }
    sparse.assert(1, 2 * inner - 1, 2.0);
    sparse.assert(1, 0, 2.0);
    sparse.assert(2, 2 * 65 * inner - 1, 2.0);
    sparse.assert(2, 0, -1.0);
    sparse.assert(3, end, 3.0);
    sparse.assert(3, end - 1, 4.0);
    sparse.assert(3, 1, 5.0);
}

/// The sizes of a tensor of more elements than 32 bits count. Its rows are odd: a copy moves one element a thread.
const STRIDED: [u64; 3] = [1 << 15, (1 << 16) + 1, 3];

/// The last row, from a copy that exchanges the outer dims.
fn last_row_of_a_strided_copy(change: fn(&mut Kernel)) -> Result<[f32; 3], DriverError> {
    let mut large = Large::new();
    let x = large.floats(&STRIDED);
    let mut b = Builder::new(&mut large.module, "test");
    let turned = b.transpose(x, &[1, 0, 2]).expect("a permutation");
    b.finish();
    let count = STRIDED.iter().product();
    large.op(Reshape, &[turned], &[Type::of(DType::F32, &[count])]);
    let mut sparse = large.load(change);
    let last = [3, 2, 1].map(|back| count - back);
    for (element, value) in last.into_iter().zip([2.0, 3.0, 4.0]) {
        sparse.set(0, element, value);
    }
    sparse.run()?;
    Ok(last.map(|element| sparse.get(0, element)))
}

#[test]
#[ignore = "needs a C++ compiler"]
fn strided_copies_count_beyond_32_bits() {
    let last = last_row_of_a_strided_copy(|_| ()).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(last, [2.0, 3.0, 4.0]);
}

/// The test finds an index of 32 bits.
#[test]
#[ignore = "needs a C++ compiler"]
fn an_index_of_a_strided_copy_that_overflows_is_found() {
    let last = last_row_of_a_strided_copy(|kernel| {
        assert!(kernel.text.contains("i64, 1, 1, 1>("), "{}", kernel.text);
        kernel.text = kernel.text.replace("i64, 1, 1, 1>(", "u32, 1, 1, 1>(");
    });
    assert!(!matches!(last, Ok([2.0, 3.0, 4.0])), "{last:?}");
}

#[test]
#[ignore = "needs a C++ compiler"]
fn losses_and_gathers_count_beyond_31_bits() {
    let mut large = Large::new();
    let (positions, classes) = ((1 << 16) + 1, (1 << 15) + 3);
    let logits = large.floats(&[positions, classes]);
    let labels = large.input(DType::I32, &[positions]);
    let (sums, d) = (large.floats(&[positions]), large.floats(&[]));
    let smoothing = Float::new(0.0);
    large.op(CrossEntropy { ignore_index: -1, label_smoothing: smoothing }, &[logits, labels], &[]);
    let gradient = CrossEntropyGrad { ignore_index: -1, label_smoothing: smoothing };
    large.op(gradient, &[logits, labels, sums, d], &[]);
    let rows = (1 << 25) + 1;
    let table = large.floats(&[rows, 65]);
    let few = large.input(DType::I32, &[3]);
    large.op(Gather { dim: 0 }, &[table, few], &[]);
    let small = large.floats(&[8, 65]);
    let many = large.input(DType::I32, &[rows]);
    large.op(Gather { dim: 0 }, &[small, many], &[]);
    let mut sparse = large.load(|_| ());
    let last = positions * classes - 1;
    let label = classes as i32 - 1;
    sparse.set(0, last, 9.0);
    sparse.set_bytes(1, positions - 1, &label.to_le_bytes());
    let all = 9f32.exp() + (classes - 1) as f32;
    sparse.set(2, positions - 1, all.ln());
    sparse.set(3, 0, 1.0);
    sparse.set(4, rows * 65 - 1, 6.0);
    sparse.set_bytes(5, 2, &(rows as i32 - 1).to_le_bytes());
    sparse.set(6, 7 * 65 + 64, 7.0);
    sparse.set_bytes(7, rows - 1, &7i32.to_le_bytes());
    sparse.run().unwrap_or_else(|error| panic!("{error}"));
    sparse.assert(2, positions - 1, all.ln());
    sparse.assert(3, last, 9f32.exp() / all - 1.0);
    sparse.assert(3, last - 1, 1.0 / all);
    sparse.assert(4, 2 * 65 + 64, 6.0);
    sparse.assert(5, rows * 65 - 1, 7.0);
}

#[test]
#[ignore = "needs a C++ compiler"]
fn dropout_and_optimizers_count_beyond_31_bits() {
    let mut large = Large::new();
    let count = LARGE + 1028;
    let (x, numbers) = (large.floats(&[2, count / 2]), large.input(DType::I64, &[2]));
    large.op(Dropout { ratio: Float::new(0.5), id: 0, seed: 1, dim: 0 }, &[x, numbers], &[]);
    let (parameter, gradient) = (large.floats(&[count]), large.floats(&[count]));
    let velocity = large.floats(&[count]);
    let (rate, decay) = (large.scalar(0.5), large.scalar(0.0));
    let sgd = Sgd { momentum: Float::new(0.5), nesterov: false };
    large.op(sgd, &[parameter, gradient, velocity, rate, decay], &[]);
    let mut sparse = large.load(|_| ());
    let ends = [0, count - 64];
    for element in ends.into_iter().flat_map(|end| end..end + 64) {
        sparse.set(0, element, 1.0);
        sparse.set(2, element, 1.0);
        sparse.set(3, element, (element % 7) as f32);
        sparse.set(4, element, 2.0);
    }
    sparse.run().unwrap_or_else(|error| panic!("{error}"));
    for end in ends {
        let dropped: Vec<f32> = (end..end + 64).map(|element| sparse.get(0, element)).collect();
        assert!(dropped.iter().all(|&x| x == 0.0 || x == 2.0), "{dropped:?}");
        let kept = dropped.iter().filter(|&&x| x == 2.0).count();
        assert!((16..=48).contains(&kept), "{kept} of 64 are kept from {end} on");
        for element in end..end + 64 {
            let velocity = 1.0 + (element % 7) as f32;
            sparse.assert(1, element, 1.0 - 0.5 * velocity);
            sparse.assert(2, element, velocity);
        }
    }
}
