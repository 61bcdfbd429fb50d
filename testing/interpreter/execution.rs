//! The execution of an instruction: its operands are copied from memory, and its results are copied back.

use super::device::Loaded;
use super::memory::Memory;
use comm::{CollectiveKind, CommError, Communicator, Exchanged};
use ir::ops::elementwise::Binary;
use ir::ops::{Interp, PartSpans};
use ir::{Diagnostic, Module, Op, Operator, Tensor, Type, block};
use program::device::DeviceError;
use program::{Exchange, Instruction, Kernel, LocalPart, Message, View};

/// The surroundings of an instruction.
pub(super) struct Execution<'a> {
    pub(super) loaded: &'a Loaded,
    pub(super) memory: &'a mut Memory,
    pub(super) communicator: Option<&'a dyn Communicator>,
    /// Whether the microbatch is the first of its step.
    pub(super) first: bool,
}

impl Execution<'_> {
    /// Runs an instruction.
    ///
    /// # Errors
    /// An exchange fails; a kernel that no contract of this backend allows.
    pub(super) fn run(&mut self, instruction: &Instruction) -> Result<(), DeviceError> {
        let Instruction { kernel, operands, results, .. } = instruction;
        let made = match kernel {
            Kernel::Op(op) => {
                let operands: Vec<Tensor> = operands.iter().map(|view| self.tensor(view)).collect();
                let results: Vec<Type> = results.iter().map(type_of).collect();
                let parts = instruction.parts.as_ref();
                let parts =
                    parts.and_then(|parts| PartSpans::new(&self.loaded.program.mesh, self.rank(), parts));
                interpreted(op, &operands, &results, parts.as_ref())
            }
            Kernel::Copy => vec![self.read(&operands[0])],
            Kernel::Accumulate if self.first => vec![self.read(&operands[0])],
            Kernel::Accumulate => {
                let addends = [self.tensor(&results[0]), self.tensor(&operands[0])];
                interpreted(&Op::from(Binary::Add), &addends, &[type_of(&results[0])], None)
            }
            Kernel::Part(part) => vec![self.part(part, instruction)],
            Kernel::Collective(exchange) => self.exchange(exchange, instruction)?,
            Kernel::Message(message) => self.message(*message, instruction)?,
            Kernel::Elementwise(_) | Kernel::Contract(_) => {
                let error =
                    Diagnostic::new(format!("the interpreter does not fuse `{}`", instruction.name()));
                return Err(DeviceError::kernel(error.at(instruction.origin.to_string())));
            }
        };
        results
            .iter()
            .zip(made)
            .for_each(|(view, bytes)| self.memory.write(view, &self.loaded.bases, &bytes));
        Ok(())
    }

    /// Returns the place of the device in its mesh.
    fn rank(&self) -> u64 {
        self.communicator.map_or(0, Communicator::rank)
    }

    fn read(&self, view: &View) -> Vec<u8> {
        self.memory.read(&self.loaded.constants, view, &self.loaded.bases)
    }

    /// Returns the elements of a view as a tensor.
    pub(super) fn tensor(&self, view: &View) -> Tensor {
        Tensor::from_bytes(&type_of(view), &self.read(view)).expect("the bytes are those of the view")
    }

    /// Returns this device's part of the operand.
    fn part(&self, part: &LocalPart, instruction: &Instruction) -> Vec<u8> {
        let sizes = instruction.results[0].layout.sizes.to_vec();
        let mut start = vec![0; sizes.len()];
        for (dim, axes) in &part.dims {
            start[*dim] = self.loaded.program.mesh.place(self.rank(), axes) as usize * sizes[*dim];
        }
        block::read(&self.tensor(&instruction.operands[0]), &start, &sizes).to_bytes()
    }

    /// Exchanges the operands with the other devices of the group.
    fn exchange(&self, exchange: &Exchange, instruction: &Instruction) -> Result<Vec<Vec<u8>>, CommError> {
        let communicator = self.communicator.ok_or(CommError::Alone)?;
        let group = self.loaded.program.mesh.group(self.rank(), &exchange.axes);
        let operands: Vec<Aligned> =
            instruction.operands.iter().map(|view| Aligned::of(&self.read(view))).collect();
        let mut results: Vec<Aligned> =
            instruction.results.iter().map(|view| Aligned::of(&vec![0; bytes_of(view)])).collect();
        let tensors =
            operands.iter().zip(&mut results).enumerate().map(|(index, (operand, result))| Exchanged {
                dtype: instruction.operands[index].dtype,
                sizes: &instruction.operands[index].layout.sizes,
                gathered: exchange.dims[index].gathered,
                split: exchange.dims[index].split,
                operand: Some(operand.bytes()),
                result: result.bytes_mut(),
            });
        let mut tensors: Vec<Exchanged> = tensors.collect();
        communicator.comes_from(&instruction.origin);
        let kind = CollectiveKind::of(exchange.collective, exchange.reduced);
        communicator.collective(
            kind.expect("lowering writes an all_slice as `Kernel::Part`"),
            &group,
            &mut tensors,
        )?;
        Ok(results.iter().map(|result| result.bytes().to_vec()).collect())
    }

    /// Sends the operand, or receives the result.
    fn message(&self, message: Message, instruction: &Instruction) -> Result<Vec<Vec<u8>>, CommError> {
        let communicator = self.communicator.ok_or(CommError::Alone)?;
        let rank_on = |stage: u32| u64::from(stage) * self.loaded.program.mesh.devices() + self.rank();
        communicator.comes_from(&instruction.origin);
        let Some(result) = instruction.results.first() else {
            let bytes = self.read(&instruction.operands[0]);
            return communicator.send(rank_on(message.to), message.channel, &bytes).map(|()| vec![]);
        };
        let mut bytes = vec![0; bytes_of(result)];
        communicator.receive(rank_on(message.from), message.channel, &mut bytes)?;
        Ok(vec![bytes])
    }
}

/// Returns the bytes of the results of an operator. The numbers of a result are rounded to its type.
fn interpreted(op: &Op, operands: &[Tensor], results: &[Type], parts: Option<&PartSpans>) -> Vec<Vec<u8>> {
    let operands: Vec<&Tensor> = operands.iter().collect();
    // Only constants read the data of a module, and lowering lays them out.
    let data = &Module::new("").data;
    let call = Interp { operands: &operands, results, data, parts };
    op.interp(&call).iter().map(Tensor::to_bytes).collect()
}

fn type_of(view: &View) -> Type {
    let sizes: Vec<u64> = view.layout.sizes.iter().map(|&size| size as u64).collect();
    Type::of(view.dtype, &sizes)
}

fn bytes_of(view: &View) -> usize {
    view.layout.len() * view.dtype.bytes() as usize
}

/// Bytes at an address that is aligned for every element type.
struct Aligned {
    words: Vec<u64>,
    length: usize,
}

impl Aligned {
    fn of(bytes: &[u8]) -> Self {
        let mut aligned = Self { words: vec![0; bytes.len().div_ceil(8)], length: bytes.len() };
        aligned.bytes_mut().copy_from_slice(bytes);
        aligned
    }

    fn bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.words)[..self.length]
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.words)[..self.length]
    }
}
