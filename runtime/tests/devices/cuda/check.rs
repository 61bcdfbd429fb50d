//! The check of a device itself: on the stand-in, which passes, and with faults in its kernels, which are found.

use ir::ops::samples::Sample;
use runtime::cuda::check::rates::{Sizes, measure};
use runtime::cuda::check::samples::{Report, Way, all, check};
use runtime::cuda::check::{Copies, Direction, Subject};
use runtime::cuda::device::Cuda;
use runtime::cuda::driver::{Driver, DriverError};
use runtime::cuda::host::{Host, Order};
use runtime::cuda::program::{CudaProgram, Kernel};
use runtime::device::DeviceError;
use std::time::{Duration, Instant};

/// The stand-in, which changes the kernels that it is given.
pub(crate) struct StandIn {
    pub(crate) order: Order,
    pub(crate) change: fn(&mut Kernel),
}

impl StandIn {
    /// With kernels as they are.
    pub(crate) fn sound(order: Order) -> Self {
        Self { order, change: |_| () }
    }
}

impl Subject for StandIn {
    type Driver = Host;

    fn with(&self, mut program: CudaProgram) -> Result<Cuda<Host>, DeviceError> {
        program.kernels.iter_mut().for_each(self.change);
        Cuda::with(Host::new(self.order).checked(), vec![program])
    }

    fn copy(&self, copies: Copies) -> Result<Vec<Duration>, DriverError> {
        let mut host = Host::new(self.order);
        let (at, mut bytes) = (host.allocate(copies.bytes as u64)?, vec![0; copies.bytes]);
        let mut copy = |_| {
            let start = Instant::now();
            match copies.direction {
                Direction::ToDevice => host.write(at, &bytes)?,
                Direction::FromDevice => host.read(at, &mut bytes)?,
                Direction::WithinDevice => return Err(DriverError("one memory is enough".into())),
            }
            Ok(start.elapsed())
        };
        (0..copies.repeats).map(&mut copy).collect()
    }
}

/// Softmax and the norms, as they lie.
fn check_some(change: fn(&mut Kernel)) -> Report {
    let some = |sample: &Sample| ["softmax", "log_softmax", "layer_norm"].contains(&sample.op.name());
    let samples: Vec<Sample> = all().into_iter().filter(some).collect();
    check(&StandIn { order: Order::default(), change }, &samples, &Way::ALL[..1], true)
}

#[test]
#[ignore = "needs a C++ compiler"]
fn a_wrong_kernel_is_found_and_named_in_every_type() {
    let sound = check_some(|_| ());
    assert!(sound.failures.is_empty() && sound.passed >= 9, "{sound:?}");
    let wrong =
        check_some(|kernel| kernel.text = kernel.text.replace("softmax::softmax<", "softmax::log_softmax<"));
    assert_eq!(wrong.passed + wrong.failures.len(), sound.passed);
    let of_softmax = |types: &str| {
        let of_type = |operand: &String| operand.starts_with(types);
        let failures = wrong.failures.iter().filter(|failure| failure.operands.iter().all(of_type));
        failures.filter(|failure| failure.operator.starts_with("Softmax(")).count()
    };
    let counts = ["f32", "f16", "bf16"].map(of_softmax);
    assert!(counts[0] > 0 && counts == [counts[0]; 3], "{counts:?}");
    assert_eq!(
        counts.iter().sum::<usize>(),
        wrong.failures.len(),
        "nothing else is wrong: {:?}",
        wrong.failures
    );
    let problem = &wrong.failures[0].problem;
    assert!(problem.starts_with("result.0: element ") && problem.contains("should be"), "{problem}");
}

/// All samples of a type are one program: what does not compile is looked for, and the others are checked all the same.
#[test]
#[ignore = "needs a C++ compiler"]
fn a_kernel_that_does_not_compile_is_found_among_those_that_do() {
    let broken =
        check_some(|kernel| kernel.text = kernel.text.replace("softmax::log_softmax<", "softmax::unknown<"));
    assert!(!broken.failures.is_empty() && broken.passed > 0, "{broken:?}");
    for failure in &broken.failures {
        assert!(failure.operator.starts_with("LogSoftmax("), "{failure:?}");
        assert!(failure.problem.contains("unknown"), "{failure:?}");
    }
}

/// Without a library what needs it is left out, and said to be.
#[test]
fn without_cudnn_convolutions_are_left_out() {
    let convolves = |sample: &Sample| sample.op.name().starts_with("conv");
    let samples: Vec<Sample> = all().into_iter().filter(convolves).collect();
    let report = check(&StandIn::sound(Order::default()), &samples, &Way::ALL[..1], false);
    assert_eq!((report.passed, report.failures.len()), (0, 0));
    assert!(report.skipped >= 3, "{report:?}");
}

#[test]
#[ignore = "needs a C++ compiler"]
fn rates_are_measured_and_what_cannot_be_is_said() {
    let sizes = Sizes {
        copy: 1 << 16,
        matmul: 32,
        attention: [1, 2, 32],
        widths: vec![64],
        at_once: Duration::from_micros(1),
        repeats: 3,
    };
    let rates = measure(&StandIn::sound(Order::default()), &sizes);
    let names: Vec<&str> = rates.iter().map(|rate| rate.name.as_str()).collect();
    assert_eq!(
        names,
        [
            "copy_to_device",
            "copy_from_device",
            "copy_within_device",
            "matmul_bf16",
            "attention_bf16_d64_forward",
            "attention_bf16_d64_backward"
        ]
    );
    for rate in &rates {
        let measured = rate.value.is_some_and(|value| value > 0.0 && value.is_finite());
        assert!(measured || rate.name == "copy_within_device", "{rate:?}");
    }
    assert_eq!(rates[2].error.as_deref(), Some("one memory is enough"));
}
