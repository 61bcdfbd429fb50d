//! The commands of a GPU as the simulator sees them: their streams, waits, bytes and operations.

#[cfg(test)]
mod tests;

use super::program::{
    Argument, Collective, Command as CudaCommand, CudaProgram, Event, Launch, Matrices, MemoryCopy, Multiply,
    Task, ValueStart,
};
use ir::machine::Unit;
use ir::ops::elementwise::{Binary, Unary};
use ir::{DType, Op, Operator, Signature, Type};
use program::commands::work::{Work, bytes, elements, largest_sizes};
use program::commands::{Command, CommandClass, CommandList, Exchange};
use program::{Activation, Instruction, Kernel, Part, Section, View};
use std::collections::BTreeMap;

/// Returns the commands of a step with this number of microbatches.
pub fn commands(cuda: &CudaProgram, microbatches: u64) -> CommandList {
    let works = Works::new(cuda, microbatches > 1);
    let parts = Part::ALL.map(|(part, _)| {
        let (commands, section) = (cuda.repeated(part), part.section());
        let waits = waits(commands);
        let command = |(command, waits): (&CudaCommand, Vec<usize>)| works.command(section, command, &waits);
        commands.iter().zip(waits).map(command).collect()
    });
    CommandList { mesh: cuda.program.mesh.clone(), microbatches, parts }
}

/// Returns for each command the indices of the commands whose events it waits for.
fn waits(commands: &[CudaCommand]) -> Vec<Vec<usize>> {
    let mut marked: BTreeMap<Event, usize> = BTreeMap::new();
    let waits = commands.iter().enumerate().map(|(number, command)| {
        let waits = command.waits.iter().filter_map(|event| marked.get(event).copied()).collect();
        marked.extend(command.records.map(|event| (event, number)));
        waits
    });
    waits.collect()
}

/// The work of a program's commands.
struct Works<'a> {
    cuda: &'a CudaProgram,
    /// The starts of the tables of combined launches, ascending.
    tables: Vec<usize>,
    /// Whether the step adds to accumulators, which it does with several microbatches.
    adds: bool,
}

impl<'a> Works<'a> {
    fn new(cuda: &'a CudaProgram, adds: bool) -> Self {
        let launches = cuda.sections.iter().flatten().filter_map(|command| match &command.task {
            Task::Launch(launch) => Some(launch),
            _ => None,
        });
        let mut tables: Vec<usize> = launches.filter_map(table).collect();
        tables.sort_unstable();
        Self { cuda, tables, adds }
    }

    /// Returns a section's command as the simulator's.
    fn command(&self, section: Section, command: &CudaCommand, waits: &[usize]) -> Command {
        let instruction = &self.cuda.program.section(section)[command.instructions.start];
        let (class, work) = match &command.task {
            Task::Multiply(multiply) => {
                let work = multiplication(multiply, multiply.accumulates && self.adds);
                (CommandClass::Multiplication, work)
            }
            Task::Launch(launch) => {
                (CommandClass::Kernel, self.launched(launch, instruction, command, section))
            }
            Task::Collective(collective) => {
                let (exchange, work) = self.exchange(collective);
                (CommandClass::Collective(exchange), work)
            }
            Task::Library => (CommandClass::Library, Work::of(instruction, self.adds)),
            Task::Message(_) => (CommandClass::Kernel, Work::of(instruction, self.adds)),
            Task::Copy(MemoryCopy { to, bytes, .. }) => {
                let is_download = to.region.is_on_host();
                let class = if is_download { CommandClass::Download } else { CommandClass::Upload };
                (class(*bytes), Work::of(instruction, self.adds))
            }
            Task::Host => (CommandClass::OnHost, Work::of(instruction, self.adds)),
            Task::Disk => {
                let bytes = bytes(&instruction.results[0]);
                (CommandClass::Disk(bytes), Work::of(instruction, self.adds))
            }
        };
        Command {
            class,
            kind: self.kind(instruction, &command.task),
            sizes: sizes(instruction, &command.task),
            origin: instruction.origin.clone(),
            stream: command.stream,
            waits: waits.into(),
            layers: if let Task::Launch(launch) = &command.task { launch.grid[2] } else { 1 },
            work,
        }
    }

    fn kind(&self, instruction: &Instruction, task: &Task) -> String {
        match task {
            Task::Launch(launch) => {
                let name = &self.cuda.kernels[launch.kernel].name;
                let name = name.rsplit_once('_').map_or(&name[..], |(name, _hash)| name);
                name.strip_suffix("_many").unwrap_or(name).into()
            }
            Task::Multiply(_) => "multiply".into(),
            Task::Library
            | Task::Collective(_)
            | Task::Message(_)
            | Task::Copy(_)
            | Task::Host
            | Task::Disk => instruction.name(),
        }
    }

    /// Returns the work of all layers of a launch. Each layer computes an instruction of its own, in the order of the
    /// instructions.
    fn launched(
        &self,
        launch: &Launch,
        first: &Instruction,
        command: &CudaCommand,
        section: Section,
    ) -> Work {
        let unit = self.unit(launch, first);
        if matches!(first.kernel, Kernel::Op(Op::Recurrent(_) | Op::RecurrentGrad(_))) {
            return self.step_of_layer(launch, first, unit);
        }
        let all = &self.cuda.program.section(section)[command.instructions.clone()];
        let name = first.name();
        let mut alike = all.iter().filter(|other| other.name() == name);
        let mut sum = Work { read: 0, written: 0, flops: 0, unit };
        for given in self.given(launch) {
            let own = alike.find(|instruction| is_of(given, instruction)).unwrap_or(first);
            let touches = |view: &View| is_given(given, view, own.scratch.as_ref() == Some(view));
            let Work { read, written, flops, .. } = Work::of_part(own, touches, unit, self.adds);
            sum.read += read;
            sum.written += written;
            sum.flops += flops;
        }
        sum
    }

    /// Returns the work of a launch of a recurrent layer, which has one for each step, and two that copy its states.
    fn step_of_layer(&self, launch: &Launch, layer: &Instruction, unit: Unit) -> Work {
        let whole = Work::of(layer, self.adds);
        let steps = layer.results[0].layout.sizes[0].max(1) as u64;
        if self.cuda.kernels[launch.kernel].name.starts_with("recurrent_step") {
            // Each step reads the weight.
            let weight = layer.operands.iter().find(|view| view.layout.sizes.len() == 2).map_or(0, bytes);
            let read = whole.read.saturating_sub(weight) / steps + weight;
            return Work { read, written: whole.written / steps, flops: whole.flops / steps, unit };
        }
        let states = layer.scratch.as_ref().map_or(0, bytes);
        Work { read: states, written: states, flops: 0, unit }
    }

    /// Returns the arguments of each layer of a launch.
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

    /// Returns the unit that computes a launch of this instruction.
    fn unit(&self, launch: &Launch, instruction: &Instruction) -> Unit {
        let files = &self.cuda.kernels[launch.kernel].files;
        let dtype = instruction.results[0].dtype;
        let on_tensor_cores = files.iter().any(|file| file.name == "mma.cuh");
        match &instruction.kernel {
            Kernel::Op(Op::Experts(_) | Op::ExpertsGrad(_)) if on_tensor_cores => Unit::Matrices(dtype),
            _ if on_tensor_cores => Unit::Attention(dtype),
            _ => Unit::Elements(dtype),
        }
    }

    /// Returns the exchange of a collective, and the bytes that each device reads and writes for it.
    fn exchange(&self, collective: &Collective) -> (Exchange, Work) {
        use ir::ops::collective::Collective as Kind;
        let (kind, devices) = (collective.kind, self.cuda.program.mesh.size(&collective.axes));
        let piece: u64 =
            collective.tensors.iter().map(|tensor| tensor.count as u64 * tensor.dtype.bytes()).sum();
        let (read, written) = match kind {
            Kind::AllReduce | Kind::AllSlice => (piece, piece),
            Kind::AllGather => (piece, piece * devices),
            Kind::ReduceScatter => (piece * devices, piece),
            Kind::AllToAll => (piece * devices, piece * devices),
        };
        let group_bytes = kind.group_bytes(read, written, devices);
        let work = Work { read, written, flops: 0, unit: Unit::Elements(DType::F32) };
        (Exchange { kind, axes: collective.axes.clone(), group_bytes }, work)
    }
}

fn sizes(instruction: &Instruction, task: &Task) -> Vec<usize> {
    match task {
        Task::Multiply(multiply) => [multiply.batch].into_iter().chain(multiply.sizes).collect(),
        Task::Launch(_)
        | Task::Library
        | Task::Collective(_)
        | Task::Message(_)
        | Task::Copy(_)
        | Task::Host
        | Task::Disk => largest_sizes(instruction),
    }
}

/// Returns the start of a combined launch's table. `None` for a launch that combines nothing.
fn table(launch: &Launch) -> Option<usize> {
    match launch.arguments[..] {
        [Argument::Table(start)] => Some(start),
        _ => None,
    }
}

/// Whether a kernel with these arguments computes an instruction: an argument is the address of a result or of the largest
/// operand.
fn is_of(arguments: &[Argument], instruction: &Instruction) -> bool {
    let given = |view: &View| is_given(arguments, view, false);
    let largest = instruction.operands.iter().max_by_key(|view| elements(view));
    instruction.results.iter().any(given) || largest.is_some_and(given)
}

/// Whether one of the arguments is the address of a tensor's first element, or, for scratch, of any of its bytes.
fn is_given(arguments: &[Argument], view: &View, is_scratch: bool) -> bool {
    let (start, bytes) = (ValueStart::of(view), view.bytes());
    arguments.iter().any(|argument| match argument {
        &Argument::Address(region, byte) if is_scratch => {
            region == start.region && bytes.contains(&byte.cast_unsigned())
        }
        &Argument::Address(region, byte) => (ValueStart { region, byte }) == start,
        Argument::AddressByRank(region, byte) => (ValueStart { region: *region, byte: byte.first }) == start,
        Argument::Number(_)
        | Argument::NumberByRank(_)
        | Argument::Table(_)
        | Argument::Adds
        | Argument::Halt => false,
    })
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
        flops: 2 * m * k * n * batch + finished(multiply) * m * n,
        unit: Unit::Matrices(*dtype),
    }
}

/// Returns the operations of the epilogue on each element of a product.
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
