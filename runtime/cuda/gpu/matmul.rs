//! Multiplications by cuBLASLt: descriptions and the choice of an algorithm are made once for each shape.

mod descriptions;

use self::descriptions::{Description, Handle, Layout, Preference, Scale, data_type};
use super::blas::{Call, Problem};
use super::handles::{Memory, Queue};
use crate::cuda::driver::DriverError;
use crate::cuda::libraries::{self, Folders, Library};
use cudarc::cublaslt::{result, sys};
use std::collections::HashMap;
use std::ffi::{CStr, c_void};

/// Scratch for each stream: what NVIDIA recommends for Hopper and later; less elsewhere would do.
const WORKSPACE: u64 = 32 << 20;
/// That of all streams.
pub(super) const WORKSPACES: u64 = 2 * WORKSPACE;

/// The oldest cuBLASLt that is taken, as it counts versions.
const OLDEST: usize = 120_000;

/// cuBLASLt on a device.
pub(super) struct Multiplier {
    plans: HashMap<Problem, Plan>,
    /// Of each stream.
    workspaces: [Memory; 2],
    single: Single,
    handle: Handle,
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
    algorithm: sys::cublasLtMatmulAlgo_t,
}

/// What cuBLASLt did not do, and why, in its own words.
#[allow(unsafe_code)]
fn refused(what: &'static str) -> impl Fn(result::CublasError) -> DriverError {
    move |error| {
        // SAFETY: it gives a text for any status, which is part of the library; null is taken care of.
        let text = unsafe {
            let text = sys::cublasLtGetStatusString(error.0);
            if text.is_null() { "".into() } else { CStr::from_ptr(text).to_string_lossy() }
        };
        DriverError(format!("cuBLASLt, {what}: {:?}, {text}", error.0))
    }
}

impl Multiplier {
    /// On the device whose context is current.
    #[allow(unsafe_code)]
    pub(super) fn new(folders: &Folders, single: Single) -> Result<Self, DriverError> {
        let missing = |error: &dyn std::fmt::Display| {
            DriverError(format!("{error}; matrices are multiplied by it: {}", Library::CublasLt.source()))
        };
        let opened = libraries::open(Library::CublasLt, folders).map_err(|error| missing(&error))?;
        // SAFETY: it opens the library as `libraries` does. Without one, the calls below would panic.
        if !unsafe { sys::is_culib_present() } {
            return Err(missing(&format!("{} is not found again by its name", opened.path.display())));
        }
        // SAFETY: it says a number.
        let version = unsafe { sys::cublasLtGetVersion() };
        if version < OLDEST {
            return Err(missing(&format!(
                "the cuBLASLt that the system's loader finds is {version}, older than {OLDEST}"
            )));
        }
        let handle = Handle::new()?;
        let workspaces = [Memory::new(WORKSPACE)?, Memory::new(WORKSPACE)?];
        Ok(Self { plans: HashMap::new(), workspaces, single, handle })
    }

    /// Multiplies, on a queue, with the workspace of its stream.
    #[allow(unsafe_code)]
    pub(super) fn run(&mut self, queue: &Queue, stream: usize, call: &Call) -> Result<(), DriverError> {
        if !self.plans.contains_key(&call.problem) {
            let plan = Plan::new(&self.handle, call, self.single)?;
            self.plans.insert(call.problem, plan);
        }
        let plan = &self.plans[&call.problem];
        plan.description.point(call)?;
        let [first, second, added, out] = call.places.map(|place| place.0 as *mut c_void);
        let [of_first, of_second, of_added, of_out] = plan.matrices.each_ref().map(|layout| layout.0);
        let scale = Scale::of(call.problem.types[0]);
        let (one, zero) = scale.numbers();
        let workspace = self.workspaces[stream].at.0 as *mut c_void;
        // SAFETY: the descriptions are alive, and the algorithm was chosen for them. The addresses are a program's, which
        // keeps what lies there apart; the workspace is the stream's own. `one` and `zero` are read before it returns.
        let done = unsafe {
            result::matmul(
                self.handle.0,
                plan.description.0,
                one,
                if call.adds { one } else { zero },
                first,
                of_first,
                second,
                of_second,
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
        done.map_err(|error| described(refused("multiplying")(error), &call.problem))
    }
}

fn described(error: DriverError, problem: &Problem) -> DriverError {
    DriverError(format!("{error} ({problem:?})"))
}

impl Plan {
    fn new(handle: &Handle, call: &Call, single: Single) -> Result<Self, DriverError> {
        let problem = &call.problem;
        let [side, rest] = problem.types.map(data_type);
        let description = Description::new(problem, single)?;
        // The alignment of what it points to decides as well.
        description.point(call)?;
        let layout = |(columns, ty)| Layout::new(columns, ty, problem.batch);
        let [first, second, added, out] = problem.matrices;
        let matrices =
            [layout((first, side))?, layout((second, side))?, layout((added, rest))?, layout((out, rest))?];
        let algorithm = algorithm(handle, &description, &matrices, problem)?;
        Ok(Self { description, matrices, algorithm })
    }
}

/// The fastest, as cuBLASLt believes, of those that round once.
#[allow(unsafe_code)]
fn algorithm(
    handle: &Handle,
    description: &Description,
    matrices: &[Layout; 4],
    problem: &Problem,
) -> Result<sys::cublasLtMatmulAlgo_t, DriverError> {
    use sys::cublasLtMatmulPreferenceAttributes_t as Attribute;
    let preference = Preference::new()?;
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
    let [first, second, added, out] = matrices.each_ref().map(|layout| layout.0);
    // SAFETY: all of these are alive.
    let found = unsafe {
        let (handle, description, preference) = (handle.0, description.0, preference.0);
        result::get_matmul_algo_heuristic(handle, description, first, second, added, out, preference)
    };
    let found = found.map_err(|error| described(refused("choosing an algorithm")(error), problem))?;
    Ok(found.algo)
}
