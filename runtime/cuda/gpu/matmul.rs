//! Multiplications by cuBLASLt. Each problem is described, and its algorithm chosen, once, when a program is loaded.

mod choice;
mod descriptions;
mod functions;
mod scratch;
mod trial;

pub(super) use self::scratch::{Scratch, bytes};

use self::descriptions::{Description, Handle, Layout, Preference, Scale, data_type};
use self::functions::{Algorithm, Functions};
use self::trial::OnDevice;
use super::blas::{Call, Problem};
use super::handles::{Allocation, Mark, Queue};
use crate::driver::{DriverError, Workspace};
use crate::libraries::Folders;
use crate::program::Multiply;
use cudarc::cublaslt::sys;
use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::Arc;
use std::time::Instant;

/// The scratch of each stream: as much as NVIDIA recommends for Hopper and later; older GPUs need less.
const WORKSPACE: u64 = 32 << 20;
/// The scratch of all streams.
pub(super) const WORKSPACES: u64 = Workspace::ALL.len() as u64 * WORKSPACE;

/// The algorithms that were chosen for problems. Other GPUs of the same kind take them over.
pub(super) type Choices = HashMap<Problem, Vec<Algorithm>>;

/// cuBLASLt on a device.
pub(super) struct Multiplier {
    plans: HashMap<Problem, MatmulPlan>,
    /// The choices that another GPU has made.
    given: Choices,
    /// The memory of each workspace, by [`Workspace`].
    workspaces: [Allocation; Workspace::ALL.len()],
    /// The end of the last run of a trial.
    last_trial: Cell<Option<Instant>>,
    single: Single,
    handle: Handle,
    functions: Arc<Functions>,
}

/// The precision of f32 multiplications.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Single {
    /// In f32.
    #[default]
    Full,
    /// Rounded to 10 bits after the point: a thousandth of a number's size is lost, at several times the speed.
    Tf32,
}

/// A problem in the form of cuBLASLt.
struct Prepared {
    description: Description,
    matrices: [Layout; 4],
}

/// A problem with its algorithms: the chosen one first, then the algorithms to try if it is refused.
struct MatmulPlan {
    prepared: Prepared,
    algorithms: Vec<Algorithm>,
}

impl Multiplier {
    /// Opens cuBLASLt for the device whose context is current.
    pub(super) fn new(folders: &Folders, single: Single) -> Result<Self, DriverError> {
        let functions = Arc::new(Functions::open(folders)?);
        let handle = Handle::new(&functions)?;
        let workspaces = [Allocation::new(WORKSPACE)?, Allocation::new(WORKSPACE)?];
        let (plans, given) = (HashMap::new(), Choices::new());
        Ok(Self { plans, given, workspaces, last_trial: Cell::new(None), single, handle, functions })
    }

    /// Takes over the choices of another GPU of the same kind.
    pub(super) fn follow(&mut self, choices: Choices) {
        self.given = choices;
    }

    /// Returns the version of cuBLASLt. Another version may not know an algorithm.
    pub(super) fn version(&self) -> usize {
        self.functions.version()
    }

    /// Returns the choices of this GPU.
    pub(super) fn choices(&self) -> Choices {
        self.plans.iter().map(|(problem, plan)| (*problem, plan.algorithms.clone())).collect()
    }

    /// Returns whether the algorithm of a multiplication needs no trial.
    pub(super) fn knows(&self, multiply: &Multiply) -> bool {
        let call = Call::of(multiply, &scratch::nowhere(multiply), false);
        call.is_ok_and(|Call { problem, .. }| {
            self.plans.contains_key(&problem) || self.given.contains_key(&problem)
        })
    }

    /// Chooses the algorithm of a multiplication, by trial runs in scratch if there is any. The planning of the program began
    /// at `began`.
    ///
    /// # Errors
    /// cuBLASLt has no algorithm for it.
    pub(super) fn plan(
        &mut self,
        multiply: &Multiply,
        scratch: Option<&Scratch>,
        queue: &Queue,
        began: Instant,
    ) -> Result<(), DriverError> {
        let places = scratch.and_then(|scratch| scratch.places(multiply));
        let adds: &[bool] = if multiply.accumulates { &[false, true] } else { &[false] };
        let at = places.unwrap_or_else(|| scratch::nowhere(multiply));
        let calls = adds.iter().map(|&add| Call::of(multiply, &at, add)).collect::<Result<Vec<_>, _>>()?;
        let timer = places.map(|_| Ok((queue, [Mark::timed()?, Mark::timed()?]))).transpose()?;
        self.choose(&calls, timer, began)
    }

    /// Chooses the algorithm of calls with the same problem.
    fn choose(
        &mut self,
        calls: &[Call],
        timer: Option<(&Queue, [Mark; 2])>,
        began: Instant,
    ) -> Result<(), DriverError> {
        let problem = calls[0].problem;
        if self.plans.contains_key(&problem) {
            return Ok(());
        }
        let prepared = Prepared::new(&self.functions, &calls[0], self.single)?;
        let algorithms = match self.given.get(&problem).filter(|given| !given.is_empty()) {
            Some(algorithms) => algorithms.clone(),
            None => {
                let mut trial = OnDevice { multiplier: self, prepared: &prepared, calls, timer, began };
                choice::choose(&mut trial).map_err(|error| described(error, &problem))?
            }
        };
        self.plans.insert(problem, MatmulPlan { prepared, algorithms });
        Ok(())
    }

    /// Multiplies, on a queue, with the workspace of its stream. An algorithm that is refused is dropped, and the next one is tried.
    pub(super) fn run(
        &mut self,
        queue: &Queue,
        workspace: Workspace,
        call: &Call,
    ) -> Result<(), DriverError> {
        // A multiplication of a loaded program is already planned.
        self.choose(std::slice::from_ref(call), None, Instant::now())?;
        loop {
            let plan = &self.plans[&call.problem];
            let Some(algorithm) = plan.algorithms.first() else { return Err(without(&call.problem)) };
            let done = self.launch(&plan.prepared, queue, workspace, call, algorithm);
            let Err(error) = done else { return Ok(()) };
            match self.plans.get_mut(&call.problem) {
                Some(plan) if plan.algorithms.len() > 1 => drop(plan.algorithms.remove(0)),
                _ => return Err(described(error, &call.problem)),
            }
        }
    }

    /// Multiplies by an algorithm.
    #[allow(unsafe_code)]
    fn launch(
        &self,
        prepared: &Prepared,
        queue: &Queue,
        workspace: Workspace,
        call: &Call,
        algorithm: &Algorithm,
    ) -> Result<(), DriverError> {
        prepared.description.point(call)?;
        let [first, second, added, out] = call.places.map(|place| place.0 as *mut c_void);
        let [of_first, of_second, of_added, of_out] = prepared.matrices.each_ref().map(|layout| layout.raw);
        let scale = Scale::of(call.problem.types[0]);
        let (one, zero) = scale.numbers();
        let workspace = self.workspaces[workspace as usize].at.0 as *mut c_void;
        // SAFETY: the descriptions are alive, and the algorithm was chosen for them. The addresses belong to a program, which keeps its
        // tensors apart, or to scratch; the workspace is the stream's own. `one` and `zero` are read before the call returns.
        let status = unsafe {
            (self.functions.multiply)(
                self.handle.raw,
                prepared.description.raw,
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
                algorithm,
                workspace,
                WORKSPACE as usize,
                queue.0.cast(),
            )
        };
        self.functions.check("multiplying", status)
    }
}

/// Returns the error of a multiplication whose plan has no algorithm.
fn without(problem: &Problem) -> DriverError {
    described(DriverError("no algorithm was chosen".into()), problem)
}

fn described(error: DriverError, problem: &Problem) -> DriverError {
    DriverError(format!("{error} ({problem:?})"))
}

impl Prepared {
    fn new(functions: &Arc<Functions>, call: &Call, single: Single) -> Result<Self, DriverError> {
        let problem = &call.problem;
        let [side, rest] = problem.types.map(data_type);
        let description = Description::new(functions, problem, single)?;
        // cuBLASLt checks the alignment of the epilogue's addresses.
        description.point(call)?;
        let layout = |(columns, ty)| Layout::new(functions, columns, ty, problem.batch);
        let [first, second, added, out] = problem.matrices;
        let matrices =
            [layout((first, side))?, layout((second, side))?, layout((added, rest))?, layout((out, rest))?];
        Ok(Self { description, matrices })
    }
}

/// Returns the conditions that the algorithms of a problem have to meet.
fn preference(functions: &Arc<Functions>, problem: &Problem) -> Result<Preference, DriverError> {
    use sys::cublasLtMatmulPreferenceAttributes_t as Attribute;
    let preference = Preference::new(functions)?;
    preference.set(Attribute::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, WORKSPACE)?;
    // A sum may be computed in parts, but the parts are kept in the type of the sum.
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
