//! A multiplication whose algorithms are tried on the device.

use super::choice::{Failure, PROPOSALS, Summation, Trial};
use super::functions::{Algorithm, Functions, Proposal};
use super::{Multiplier, Prepared, WORKSPACE, preference};
use crate::driver::{DriverError, Workspace};
use crate::gpu::blas::Call;
use crate::gpu::handles::{Mark, Queue};
use cudarc::cublaslt::sys::cublasLtMatmulAlgoConfigAttributes_t as Attribute;
use std::time::{Duration, Instant};

/// A multiplication, and memory to run it on if there is enough.
pub(super) struct OnDevice<'a> {
    pub(super) multiplier: &'a Multiplier,
    pub(super) prepared: &'a Prepared,
    /// The calls of the multiplication, which differ only in whether they add to the result.
    pub(super) calls: &'a [Call],
    /// The queue of the main stream, and marks on it. `None` without memory.
    pub(super) timer: Option<(&'a Queue, [Mark; 2])>,
    /// The time at which the planning of the program began.
    pub(super) began: Instant,
}

impl OnDevice<'_> {
    fn functions(&self) -> &Functions {
        &self.multiplier.functions
    }

    #[allow(unsafe_code)]
    fn attribute(&self, algorithm: &Algorithm, attribute: Attribute) -> Result<u32, DriverError> {
        let (mut value, mut written) = (0_u32, 0);
        let to = std::ptr::from_mut(&mut value).cast();
        // SAFETY: the algorithm is cuBLASLt's; at most four bytes are written.
        let status = unsafe {
            (self.functions().algorithm)(algorithm, attribute as u32, to, size_of::<u32>(), &mut written)
        };
        self.functions().check("asking about an algorithm", status)?;
        Ok(value)
    }
}

impl Trial for OnDevice<'_> {
    type Algorithm = Algorithm;

    #[allow(unsafe_code)]
    fn propose(&mut self) -> Result<Vec<Algorithm>, DriverError> {
        let functions = &self.multiplier.functions;
        let preference = preference(functions, &self.calls[0].problem)?;
        let [first, second, added, out] = self.prepared.matrices.each_ref().map(|layout| layout.raw);
        let (handle, description) = (self.multiplier.handle.raw, self.prepared.description.raw);
        let (mut proposals, mut count) = ([Proposal::EMPTY; PROPOSALS], 0);
        let (most, to) = (PROPOSALS as i32, proposals.as_mut_ptr());
        // SAFETY: all of these are alive, and there is room for `most` proposals.
        let status = unsafe {
            let preference = preference.raw;
            (functions.propose)(
                handle,
                description,
                first,
                second,
                added,
                out,
                preference,
                most,
                to,
                &mut count,
            )
        };
        functions.check("choosing an algorithm", status)?;
        let proposed = proposals.iter().take(usize::try_from(count).unwrap_or_default());
        Ok(proposed.filter(|proposal| proposal.state == 0).map(|proposal| proposal.algorithm).collect())
    }

    #[allow(unsafe_code)]
    fn check(&mut self, algorithm: Algorithm) -> Result<Summation, DriverError> {
        let functions = self.functions();
        let [first, second, added, out] = self.prepared.matrices.each_ref().map(|layout| layout.raw);
        let (handle, description) = (self.multiplier.handle.raw, self.prepared.description.raw);
        let mut answer = Proposal::EMPTY;
        // SAFETY: all of these are alive, and one answer is written.
        let status = unsafe {
            (functions.check_algorithm)(
                handle,
                description,
                first,
                second,
                added,
                out,
                &algorithm,
                &mut answer,
            )
        };
        functions.check("checking an algorithm", status)?;
        functions.check("checking an algorithm", answer.state)?;
        if answer.workspace as u64 > WORKSPACE {
            return Err(DriverError(format!("an algorithm needs {} bytes of workspace", answer.workspace)));
        }
        Ok(Summation {
            parts: self.attribute(&algorithm, Attribute::CUBLASLT_ALGO_CONFIG_SPLITK_NUM)?,
            scheme: self.attribute(&algorithm, Attribute::CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME)?,
        })
    }

    fn can_run(&self) -> bool {
        self.timer.is_some()
    }

    fn run(&mut self, algorithm: Algorithm) -> Result<f64, Failure> {
        let Some((queue, [before, after])) = &self.timer else {
            return Err(Failure::Refused(DriverError(
                "there is not enough memory to try an algorithm".into(),
            )));
        };
        let mut seconds = 0.0;
        for call in self.calls {
            before.record(queue).map_err(Failure::Device)?;
            self.multiplier
                .launch(self.prepared, queue, Workspace::Main, call, &algorithm)
                .map_err(Failure::Refused)?;
            after.record(queue).and_then(|()| after.reached()).map_err(Failure::Device)?;
            seconds += after.seconds_after(before).map_err(Failure::Device)?;
        }
        self.multiplier.last_trial.set(Some(Instant::now()));
        Ok(seconds)
    }

    fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    fn idle(&self) -> Option<Duration> {
        self.multiplier.last_trial.get().map(|last| last.elapsed())
    }
}
