//! What a command moves and computes, from the places and layouts of the instruction that it is of.
//!
//! Memory is counted as if caches held what a kernel reads twice, and nothing from one kernel to the next.

use crate::cuda::program::{
    Argument, Collective, Command, CudaProgram, Launch, Matrices, Multiply, Start, Task,
};
use crate::program::{Activation, Chain, Instruction, Kernel, Section, View};
use ir::machine::Unit;
use ir::ops::elementwise::{Binary, Unary};
use ir::{DType, Op, Operator, Signature, Type};

/// What a command takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// Bytes read from memory.
    pub read: u64,
    /// Bytes written to memory.
    pub written: u64,
    /// Bytes sent to other devices, as a ring does it.
    pub sent: u64,
    /// Floating-point operations that are done, also those that are done again; a multiply-add is two.
    pub flops: u64,
    /// What does them.
    pub unit: Unit,
}

impl Work {
    /// All bytes.
    pub fn bytes(&self) -> u64 {
        self.read + self.written
    }
}

/// The work of a program's commands.
pub(super) struct Works<'a> {
    cuda: &'a CudaProgram,
    /// Where the tables of launches that are several in one begin, ascending.
    tables: Vec<usize>,
    /// Whether accumulators are added to.
    adds: bool,
}

impl<'a> Works<'a> {
    pub(super) fn new(cuda: &'a CudaProgram, adds: bool) -> Self {
        let launches = cuda.sections.iter().flatten().filter_map(|command| match &command.task {
            Task::Launch(launch) => Some(launch),
            _ => None,
        });
        let mut tables: Vec<usize> = launches.filter_map(table).collect();
        tables.sort_unstable();
        Self { cuda, tables, adds }
    }

    /// The work of a section's command.
    pub(super) fn of(&self, section: Section, command: &Command) -> Work {
        let instruction = &self.cuda.program.section(section)[command.instructions.start];
        match &command.task {
            Task::Multiply(multiply) => multiplication(multiply, multiply.accumulates && self.adds),
            Task::Launch(launch) => self.launched(launch, instruction, command, section),
            Task::Collective(collective) => self.exchange(collective),
            Task::Library => self.part(instruction, |_| true, library(instruction)),
        }
    }

    /// The work of all layers of a launch, each of an instruction of its own: they are in one order.
    fn launched(&self, launch: &Launch, first: &Instruction, command: &Command, section: Section) -> Work {
        let unit = self.unit(launch, first);
        let all = &self.cuda.program.section(section)[command.instructions.clone()];
        let name = first.name();
        let mut alike = all.iter().filter(|other| other.name() == name);
        let mut sum = Work { read: 0, written: 0, sent: 0, flops: 0, unit };
        for given in self.given(launch) {
            let own = alike.find(|instruction| is_of(given, instruction)).unwrap_or(first);
            let touches = |view: &View| is_given(given, view, own.scratch.as_ref() == Some(view));
            let Work { read, written, flops, .. } = self.part(own, touches, unit);
            sum.read += read;
            sum.written += written;
            sum.flops += flops;
        }
        sum
    }

    /// What each layer of a launch is given.
    fn given<'l>(&'l self, launch: &'l Launch) -> impl Iterator<Item = &'l [Argument]> {
        let all = match table(launch) {
            Some(start) => {
                let next = self.tables.partition_point(|&other| other <= start);
                let end = self.tables.get(next).copied().unwrap_or(self.cuda.tables.len());
                &self.cuda.tables[start..end]
            }
            None => &launch.arguments[..],
        };
        let layers = if table(launch).is_some() { launch.grid[2] as usize } else { 1 };
        all.chunks((all.len() / layers.max(1)).max(1))
    }

    /// The unit that computes a launch of this instruction.
    fn unit(&self, launch: &Launch, instruction: &Instruction) -> Unit {
        let files = &self.cuda.kernels[launch.kernel].files;
        let dtype = instruction.results[0].dtype;
        let on_tensor_cores = files.iter().any(|file| file.name == "mma.cuh");
        match &instruction.kernel {
            Kernel::Op(Op::Experts(_) | Op::ExpertsGrad(_)) if on_tensor_cores => Unit::Matrices(dtype),
            _ if on_tensor_cores => Unit::Attention,
            _ => Unit::Elements(dtype),
        }
    }

    /// The part of an instruction that touches some of its tensors.
    fn part(&self, instruction: &Instruction, touches: impl Fn(&View) -> bool, unit: Unit) -> Work {
        let Instruction { operands, results, scratch, .. } = instruction;
        let touched = |view: &&View| touches(view);
        let mut read: u64 = (operands.iter().enumerate())
            .filter(|(index, view)| touches(view) && !operands[..*index].contains(view))
            .map(|(index, view)| of_operand(instruction, index, view))
            .sum();
        let limit = limit_of_result(instruction, &touches);
        let made: u64 = results.iter().filter(touched).map(|view| bytes(view).min(limit)).sum();
        let mut written = made;
        if instruction.accumulates && self.adds {
            read += made;
        }
        if let Some(scratch) = scratch.as_ref().filter(touched) {
            // What comes last reads what those before it have left there.
            let left = if made > 0 { &mut read } else { &mut written };
            *left += bytes(scratch);
        }
        Work { read, written, sent: 0, flops: flops(instruction, touches), unit }
    }

    /// What one of a group of devices moves and sends.
    fn exchange(&self, collective: &Collective) -> Work {
        use ir::ops::collective::Collective as Kind;
        let devices = self.cuda.program.mesh.size(&collective.axes);
        let piece: u64 =
            collective.tensors.iter().map(|tensor| tensor.count as u64 * tensor.dtype.bytes()).sum();
        let (read, written) = match collective.kind {
            Kind::AllReduce | Kind::AllSlice => (1, 1),
            Kind::AllGather => (1, devices),
            Kind::ReduceScatter => (devices, 1),
            Kind::AllToAll => (devices, devices),
        };
        let group = collective.kind.group_bytes(piece * read, piece * written, devices);
        let sent = collective.kind.bytes_sent(group, devices);
        Work {
            read: piece * read,
            written: piece * written,
            sent,
            flops: 0,
            unit: Unit::Elements(DType::F32),
        }
    }
}

/// Where the table of a launch begins that is several in one.
fn table(launch: &Launch) -> Option<usize> {
    match launch.arguments[..] {
        [Argument::Table(start)] => Some(start),
        _ => None,
    }
}

/// Whether an instruction is what a kernel with these arguments is of.
fn is_of(arguments: &[Argument], instruction: &Instruction) -> bool {
    let given = |view: &View| is_given(arguments, view, false);
    let largest = instruction.operands.iter().max_by_key(|view| elements(view));
    instruction.results.iter().any(given) || largest.is_some_and(given)
}

/// Whether one of the arguments is where a tensor begins, or, of scratch, within it.
fn is_given(arguments: &[Argument], view: &View, is_scratch: bool) -> bool {
    let (start, bytes) = (Start::of(view), view.bytes());
    arguments.iter().any(|argument| match argument {
        &Argument::Address(region, byte) if is_scratch => {
            region == start.region && bytes.contains(&byte.cast_unsigned())
        }
        &Argument::Address(region, byte) => (Start { region, byte }) == start,
        Argument::AddressByRank(region, byte) => (Start { region: *region, byte: byte.first }) == start,
        Argument::Number(_)
        | Argument::NumberByRank(_)
        | Argument::Table(_)
        | Argument::Adds
        | Argument::Halt => false,
    })
}

/// The bytes of a tensor's elements: what is repeated counts once, and holes do not.
fn bytes(view: &View) -> u64 {
    let span = view.bytes();
    (span.end - span.start).min(elements(view) * view.dtype.bytes())
}

fn elements(view: &View) -> u64 {
    view.layout.len() as u64
}

/// Of a table that is read at indices, or a tensor that is cut, as much as is read.
fn of_operand(instruction: &Instruction, index: usize, view: &View) -> u64 {
    match (&instruction.kernel, index) {
        (Kernel::Op(Op::Gather(_) | Op::GatherElements(_) | Op::GatherNd(_)) | Kernel::Part(_), 0) => {
            bytes(view).min(bytes(&instruction.results[0]))
        }
        _ => bytes(view),
    }
}

/// The most that a part writes of a result: of one that is written at indices as much as the updates are, unless the part is
/// what fills it first.
fn limit_of_result(instruction: &Instruction, touches: impl Fn(&View) -> bool) -> u64 {
    let operands = &instruction.operands;
    let Kernel::Op(op) = &instruction.kernel else { return u64::MAX };
    let (updates, fills) = match op {
        Op::GatherGrad(_) | Op::GatherElementsGrad(_) | Op::GatherNdGrad(_) => {
            let others = operands.iter().chain(&instruction.scratch);
            (&operands[1], !{ others }.any(&touches))
        }
        Op::ScatterElements(_) | Op::ScatterNd(_) => (&operands[2], touches(&operands[0])),
        _ => return u64::MAX,
    };
    if fills { u64::MAX } else { bytes(updates) }
}

/// The operations of a part of an instruction: they are done where its largest operand is read.
fn flops(instruction: &Instruction, touches: impl Fn(&View) -> bool) -> u64 {
    let largest = instruction.operands.iter().max_by_key(|view| elements(view));
    let is_it = largest.is_some_and(&touches);
    match &instruction.kernel {
        Kernel::Op(Op::AttentionGrad(op)) => attention_gradient(op.causal, instruction, touches),
        Kernel::Op(op) if is_it => op.cost(&signature(&instruction.operands, &instruction.results)).flops,
        Kernel::Elementwise(chain) => chained(chain, &instruction.results[0]),
        Kernel::Accumulate => elements(&instruction.results[0]),
        Kernel::Op(_) | Kernel::Contract(_) | Kernel::Copy | Kernel::Part(_) | Kernel::Collective(_) => 0,
    }
}

/// Queries and keys are multiplied for the scores, d out and values for their gradients, by each part that makes a result;
/// then each result takes a product of its own. (Together 5 products; in two parts 7.)
fn attention_gradient(causal: bool, instruction: &Instruction, touches: impl Fn(&View) -> bool) -> u64 {
    let [q, k, v] = [0, 1, 2].map(|operand| &instruction.operands[operand].layout.sizes);
    let pairs = (q[0] * q[1] * q[2] * k[2]) as u64;
    let (width, value_width) = (q[3] as u64, v[3] as u64);
    let made = instruction.results.iter().zip([width, width, value_width]);
    let own: u64 = made.filter(|(view, _)| touches(view)).map(|(_, width)| width).sum();
    let flops = if own > 0 { 2 * pairs * (own + width + value_width) } else { 0 };
    if causal { flops / 2 } else { flops }
}

/// Of a chain whose results have the elements of this one.
fn chained(chain: &Chain, result: &View) -> u64 {
    let of = |op: &Op, sources: usize, dtype: DType| {
        let view = View { dtype, ..result.clone() };
        op.cost(&signature(&vec![view.clone(); sources], &[view])).flops
    };
    chain.steps.iter().map(|step| of(&step.op, step.sources.len(), step.dtype)).sum()
}

fn signature(operands: &[View], results: &[View]) -> Signature {
    let ty = |view: &View| {
        let sizes: Vec<u64> = view.layout.sizes.iter().map(|&size| size as u64).collect();
        Type::of(view.dtype, &sizes)
    };
    let types = |views: &[View]| views.iter().map(ty).collect();
    Signature { operands: types(operands), results: types(results) }
}

/// The unit that does the work of a library.
fn library(instruction: &Instruction) -> Unit {
    let dtype = instruction.operands.first().map_or(DType::F32, |view| view.dtype);
    match &instruction.kernel {
        Kernel::Op(op) => Unit::of(op, dtype),
        _ => Unit::Elements(dtype),
    }
}

fn multiplication(multiply: &Multiply, adds: bool) -> Work {
    let Multiply { sizes: [m, k, n], batch, dtype, out_dtype, epilogue, .. } = multiply;
    let [m, k, n, batch] = [*m, *k, *n, *batch].map(|size| size as u64);
    let side =
        |matrices: &Matrices, count: u64| count * dtype.bytes() * if matrices.apart == 0 { 1 } else { batch };
    let out = m * n * batch * out_dtype.bytes();
    let bias = epilogue.bias.map_or(0, |_| n * out_dtype.bytes());
    let addend = epilogue.addend.as_ref().map_or(0, |_| out);
    let aux = epilogue.aux.as_ref().map_or(0, |_| out);
    let [aux_read, aux_written] = match epilogue.activation {
        Activation::GeluTanhGrad => [aux, 0],
        Activation::None | Activation::GeluTanh => [0, aux],
    };
    let summed = epilogue.sums.map_or(0, |(side, _)| if side == 0 { m } else { n });
    Work {
        read: side(&multiply.lhs, m * k)
            + side(&multiply.rhs, k * n)
            + bias
            + addend
            + aux_read
            + if adds { out } else { 0 },
        written: out + aux_written + summed * out_dtype.bytes(),
        sent: 0,
        flops: 2 * m * k * n * batch + finished(multiply) * m * n,
        unit: Unit::Matrices(*dtype),
    }
}

/// Operations on each element of a product before it is stored.
fn finished(multiply: &Multiply) -> u64 {
    let epilogue = &multiply.epilogue;
    let one = Type::of(multiply.out_dtype, &[1]);
    let cost = |op: Op, operands: usize| {
        op.cost(&Signature { operands: vec![one.clone(); operands], results: vec![one.clone()] }).flops
    };
    let activation = match epilogue.activation {
        Activation::None => 0,
        Activation::GeluTanh => cost(Unary::GeluTanh.into(), 1),
        Activation::GeluTanhGrad => cost(Binary::GeluTanhGrad.into(), 2),
    };
    activation + u64::from(epilogue.bias.is_some()) + u64::from(epilogue.addend.is_some())
}
