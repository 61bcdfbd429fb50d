//! Multiplications by cuBLASLt: descriptions and the choice of an algorithm are made once for each shape.

mod descriptions;
mod functions;

use self::descriptions::{Description, Handle, Layout, Preference, Scale, data_type};
use self::functions::{Algorithm, Functions, Proposal};
use super::blas::{Call, Problem};
use super::handles::{Memory, Queue};
use crate::cuda::driver::DriverError;
use crate::cuda::libraries::Folders;
use cudarc::cublaslt::sys;
use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::Arc;

/// Scratch for each stream: what NVIDIA recommends for Hopper and later; less elsewhere would do.
const WORKSPACE: u64 = 32 << 20;
/// That of all streams.
pub(super) const WORKSPACES: u64 = 2 * WORKSPACE;

/// cuBLASLt on a device.
pub(super) struct Multiplier {
    plans: HashMap<Problem, Plan>,
    /// Of each stream.
    workspaces: [Memory; 2],
    single: Single,
    handle: Handle,
    functions: Arc<Functions>,
}

/// How f32 is multiplied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Single {
    /// In f32.
    #[default]
    Full,
    /// Rounded to 10 bits after the point: a thousandth of a number's size is lost, and it is several times as fast.
    Tf32,
}

/// A shape's description and how it is done.
struct Plan {
    description: Description,
    matrices: [Layout; 4],
    algorithm: Algorithm,
}

impl Multiplier {
    /// Opens cuBLASLt for the device whose context is current.
    pub(super) fn new(folders: &Folders, single: Single) -> Result<Self, DriverError> {
        let functions = Arc::new(Functions::open(folders)?);
        let handle = Handle::new(&functions)?;
        let workspaces = [Memory::new(WORKSPACE)?, Memory::new(WORKSPACE)?];
        Ok(Self { plans: HashMap::new(), workspaces, single, handle, functions })
    }

    /// Multiplies, on a queue, with the workspace of its stream.
    #[allow(unsafe_code)]
    pub(super) fn run(&mut self, queue: &Queue, stream: usize, call: &Call) -> Result<(), DriverError> {
        if !self.plans.contains_key(&call.problem) {
            let plan = Plan::new(&self.functions, &self.handle, call, self.single)?;
            self.plans.insert(call.problem, plan);
        }
        let plan = &self.plans[&call.problem];
        plan.description.point(call)?;
        let [first, second, added, out] = call.places.map(|place| place.0 as *mut c_void);
        let [of_first, of_second, of_added, of_out] = plan.matrices.each_ref().map(|layout| layout.raw);
        let scale = Scale::of(call.problem.types[0]);
        let (one, zero) = scale.numbers();
        let workspace = self.workspaces[stream].at.0 as *mut c_void;
        // SAFETY: the descriptions are alive, and the algorithm was chosen for them. The addresses are a program's, which
        // keeps what lies there apart; the workspace is the stream's own. `one` and `zero` are read before it returns.
        let status = unsafe {
            (self.functions.multiply)(
                self.handle.raw,
                plan.description.raw,
                one,
                first,
                of_first,
                second,
                of_second,
                if call.adds { one } else { zero },
                added,
                of_added,
                out,
                of_out,
                &plan.algorithm,
                workspace,
                WORKSPACE as usize,
                queue.0.cast(),
            )
        };
        self.functions.check("multiplying", status).map_err(|error| described(error, &call.problem))
    }
}

fn described(error: DriverError, problem: &Problem) -> DriverError {
    DriverError(format!("{error} ({problem:?})"))
}

impl Plan {
    fn new(
        functions: &Arc<Functions>,
        handle: &Handle,
        call: &Call,
        single: Single,
    ) -> Result<Self, DriverError> {
        let problem = &call.problem;
        let [side, rest] = problem.types.map(data_type);
        let description = Description::new(functions, problem, single)?;
        // The alignment of what it points to decides as well.
        description.point(call)?;
        let layout = |(columns, ty)| Layout::new(functions, columns, ty, problem.batch);
        let [first, second, added, out] = problem.matrices;
        let matrices =
            [layout((first, side))?, layout((second, side))?, layout((added, rest))?, layout((out, rest))?];
        let algorithm = algorithm(functions, handle, &description, &matrices, problem)?;
        Ok(Self { description, matrices, algorithm })
    }
}

/// The fastest algorithm, as cuBLASLt believes, of those that round once.
#[allow(unsafe_code)]
fn algorithm(
    functions: &Arc<Functions>,
    handle: &Handle,
    description: &Description,
    matrices: &[Layout; 4],
    problem: &Problem,
) -> Result<Algorithm, DriverError> {
    let preference = preference(functions, problem)?;
    let [first, second, added, out] = matrices.each_ref().map(|layout| layout.raw);
    let (mut proposal, mut count) = (Proposal::EMPTY, 0);
    // SAFETY: all of these are alive, and one proposal is written at most.
    let status = unsafe {
        let (handle, description, preference) = (handle.raw, description.raw, preference.raw);
        let (proposals, count) = (&mut proposal, &mut count);
        (functions.propose)(handle, description, first, second, added, out, preference, 1, proposals, count)
    };
    let asked = "choosing an algorithm";
    let chosen = functions.check(asked, status).and_then(|()| functions.check(asked, proposal.state));
    chosen.map_err(|error| described(error, problem))?;
    Ok(proposal.algorithm)
}

/// The conditions that the algorithms of a problem have to keep.
fn preference(functions: &Arc<Functions>, problem: &Problem) -> Result<Preference, DriverError> {
    use sys::cublasLtMatmulPreferenceAttributes_t as Attribute;
    let preference = Preference::new(functions)?;
    preference.set(Attribute::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, WORKSPACE)?;
    // Parts of a sum may be made apart, but are kept in the type that sums are made in.
    let kept = sys::cublasLtReductionScheme_t::CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE as u32;
    preference.set(Attribute::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, kept)?;
    let alignments = [
        Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
        Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
        Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
    ];
    for (attribute, bytes) in alignments.into_iter().zip(problem.alignments) {
        preference.set(attribute, bytes)?;
    }
    Ok(preference)
}
