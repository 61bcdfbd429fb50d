//! The work of cuDNN: convolutions and attention. The plans for it are chosen when its program is loaded, once for each shape.

mod descriptors;
mod functions;
mod graphs;
mod plans;

use self::descriptors::{Descriptor, Handle, Value};
use self::functions::Functions;
use self::graphs::number_of;
use self::plans::{ExecutionPlan, Target};
use super::handles::{Allocation, Queue};
use super::{Gpu, Single};
use crate::cudnn::share::{counts, shares};
use crate::cudnn::{Graph, Tensor, TensorStorage};
use crate::driver::{Address, DriverError, LibraryTask};
use crate::libraries::Folders;
use crate::lower::{Libraries, lower_with};
use crate::program::{CudaProgram, Multiply, ValueStart};
use cudarc::cudnn::sys;
use ir::{Diagnostic, Op};
use program::{Instruction, Kernel, Program, View};
use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::Arc;
use std::time::Instant;
use sys::cudnnBackendAttributeName_t as Name;
use sys::cudnnBackendDescriptorType_t as Kind;

/// The most room that a plan may take besides the arena. There is always a convolution's plan that takes none, and attention is divided
/// until it fits. Convolutions take room for an image whose channels are its last dim, and attention's gradient takes it for the
/// scores.
pub(super) const MOST_ROOM: u64 = 512 << 20;

/// cuDNN on a device.
pub(super) struct Cudnn {
    plans: HashMap<Graph, ExecutionPlan>,
    /// The number of shares of each instruction, by the graph of the whole instruction.
    counts: HashMap<Graph, usize>,
    /// The room, as much as the largest plan needs, and its bytes. It is for one stream, which runs all work of cuDNN.
    room: Option<(Allocation, u64)>,
    single: Single,
    handle: Handle,
    functions: Arc<Functions>,
}

/// The library that computes the attention which both cuDNN and our kernels support.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AttentionBy {
    /// cuDNN, if it is installed.
    #[default]
    Cudnn,
    /// Our kernels.
    Own,
}

impl Gpu {
    /// Lowers a program for this GPU. Attention that cuDNN supports goes to cuDNN if it is installed; our kernels could run it, but
    /// cuDNN is faster.
    ///
    /// # Errors
    /// An instruction without a kernel.
    pub fn lower(&mut self, program: Arc<Program>) -> Result<CudaProgram, Diagnostic> {
        self.began = Instant::now();
        lower_with(program, self)
    }

    pub(super) fn leaves_to_cudnn(&mut self, instruction: &Instruction) -> bool {
        let attends = matches!(instruction.kernel, Kernel::Op(Op::Attention(_) | Op::AttentionGrad(_)));
        let is_asked = self.options.attention == AttentionBy::Cudnn
            && attends
            && !is_of_nothing(instruction)
            && Graph::of(instruction).is_ok();
        let Some(cudnn) = is_asked.then(|| self.cudnn().ok()).flatten() else { return false };
        let Err(error) = cudnn.plan_instruction(instruction) else { return true };
        // The lines after the first list the graph.
        let reason = error.0.lines().next().unwrap_or_default().trim_end_matches(':');
        self.notes.add("kernels run attention that cuDNN refuses", reason.to_owned());
        false
    }

    /// Returns cuDNN, which is opened once.
    pub(super) fn cudnn(&mut self) -> Result<&mut Cudnn, DriverError> {
        self.context.bind()?;
        let open = || Cudnn::new(&self.folders, self.options.single);
        self.cudnn.get_or_insert_with(open).as_mut().map_err(|error| error.clone())
    }
}

impl Libraries for Gpu {
    fn runs(&mut self, instruction: &Instruction) -> bool {
        self.leaves_to_cudnn(instruction)
    }

    fn takes(&mut self, multiply: &Multiply) -> bool {
        self.takes_epilogue(multiply)
    }

    fn has_side_stream(&self) -> bool {
        !self.options.without_side_stream
    }
}

impl Cudnn {
    /// Opens cuDNN for the device whose context is current.
    pub(super) fn new(folders: &Folders, single: Single) -> Result<Self, DriverError> {
        let functions = Arc::new(Functions::open(folders)?);
        let handle = Handle::new(&functions)?;
        Ok(Self { plans: HashMap::new(), counts: HashMap::new(), room: None, single, handle, functions })
    }

    /// Does the slow preparations for an instruction. [`Self::make_room`] comes after the last one.
    pub(super) fn load(&mut self, instruction: &Instruction) -> Result<(), DriverError> {
        self.plan_instruction(instruction).map_err(|error| described(&error, instruction))
    }

    /// Finds the number of shares into which an instruction has to be divided, and makes their plans.
    fn plan_instruction(&mut self, instruction: &Instruction) -> Result<(), DriverError> {
        if is_of_nothing(instruction) {
            return Ok(());
        }
        let whole = Graph::of(instruction)?;
        if self.counts.contains_key(&whole) {
            return Ok(());
        }
        let count = fewest_shares(instruction, |graph| self.plan(graph))?;
        self.counts.insert(whole, count);
        Ok(())
    }

    fn plan(&mut self, graph: &Graph) -> Result<(), DriverError> {
        if self.plans.contains_key(graph) {
            return Ok(());
        }
        let target = Target::Here(&self.handle);
        let plan = ExecutionPlan::new(&self.functions, target, graph, self.single, MOST_ROOM)?;
        self.plans.insert(graph.clone(), plan);
        Ok(())
    }

    /// Allocates the memory that the plans need. Nothing may run or have been captured yet, because it would use the previous memory.
    pub(super) fn make_room(&mut self) -> Result<(), DriverError> {
        let needed = self.plans.values().map(|plan| plan.workspace).max().unwrap_or_default();
        if self.room.as_ref().is_none_or(|(_, bytes)| *bytes < needed) {
            self.room = None;
            self.room = Some((Allocation::new(needed)?, needed));
        }
        Ok(())
    }

    /// Runs an instruction that was loaded.
    pub(super) fn run(&self, queue: &Queue, task: &LibraryTask) -> Result<(), DriverError> {
        let instruction = task.instruction;
        if is_of_nothing(instruction) {
            return clear(queue, task);
        }
        let unloaded = || DriverError(format!("`{}` of a program that was not loaded", instruction.name()));
        let count = *self.counts.get(&Graph::of(instruction)?).ok_or_else(unloaded)?;
        for share in shares(instruction, count) {
            let graph = Graph::of(&share)?;
            let plan = self.plans.get(&graph).ok_or_else(unloaded)?;
            let pack = self.pack(&places(&graph, &LibraryTask { instruction: &share, ..*task }))?;
            let done = self.handle.execute(queue, &plan.descriptor, &pack);
            done.map_err(|error| described(&error, instruction))?;
        }
        Ok(())
    }

    /// Returns the addresses of a graph's tensors, by their numbers, in cuDNN's form.
    fn pack(&self, places: &[(i64, *mut c_void)]) -> Result<Descriptor, DriverError> {
        let (ids, places): (Vec<i64>, Vec<*mut c_void>) = places.iter().copied().unzip();
        let room = self.room.as_ref().map_or(0, |(memory, _)| memory.at.0) as *mut c_void;
        let pack = Descriptor::new(&self.functions, Kind::CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR)?;
        pack.set(Name::CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, Value::Integers(&ids))?;
        pack.set(Name::CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, Value::Addresses(&places))?;
        pack.set(Name::CUDNN_ATTR_VARIANT_PACK_WORKSPACE, Value::Addresses(&[room]))?;
        pack.finalize("the addresses of tensors")
    }
}

/// Returns the fewest shares of an instruction that all have a plan.
fn fewest_shares(
    instruction: &Instruction,
    mut plan: impl FnMut(&Graph) -> Result<(), DriverError>,
) -> Result<usize, DriverError> {
    let mut refused = Ok(1);
    for count in counts(instruction) {
        let planned = shares(instruction, count).iter().try_for_each(|share| plan(&Graph::of(share)?));
        refused = planned.map(|()| count);
        if refused.is_ok() {
            break;
        }
    }
    refused
}

/// Returns the address of a part of an instruction.
fn address(view: &View, task: &LibraryTask) -> Address {
    let start = ValueStart::of(view);
    Address(task.memories.of(start.region).0.wrapping_add_signed(start.byte))
}

/// Returns the numbers of a graph's tensors, and their addresses.
fn places(graph: &Graph, task: &LibraryTask) -> Vec<(i64, *mut c_void)> {
    let place = |(id, tensor): (usize, &Tensor)| {
        let place = match &tensor.held {
            TensorStorage::Memory { part, .. } => {
                address(part.view(task.instruction)?, task).0 as *mut c_void
            }
            TensorStorage::Number(bits) => std::ptr::from_ref(bits).cast_mut().cast(),
            TensorStorage::Between => return None,
        };
        Some((number_of(id), place))
    };
    graph.tensors.iter().enumerate().filter_map(place).collect()
}

fn clear(queue: &Queue, task: &LibraryTask) -> Result<(), DriverError> {
    let clear =
        |result: &View| queue.clear(address(result, task), result.layout.len() as u64 * result.dtype.bytes());
    task.instruction.results.iter().try_for_each(clear)
}

/// Whether an instruction sums over nothing, which cuDNN does not support. Its result is zeros.
fn is_of_nothing(instruction: &Instruction) -> bool {
    instruction.operands.iter().any(|operand| operand.layout.is_empty())
}

fn described(error: &DriverError, instruction: &Instruction) -> DriverError {
    DriverError(format!("`{}` {}: {error}", instruction.name(), instruction.origin))
}

#[cfg(test)]
mod tests;
