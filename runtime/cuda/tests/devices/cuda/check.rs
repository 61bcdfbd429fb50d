//! The check of a device itself: on the stand-in, which passes, and with faults in its kernels, which are found.

use cuda::check::StandIn;
use cuda::check::rates::{Rate, Sizes, measure, measure_product, products};
use cuda::check::samples::{SampleVariant, all, check};
use cuda::check::search::Report;
use cuda::host::Order;
use cuda::program::Kernel;
use ir::samples::Sample;

/// Softmax and the norms, as they lie.
fn check_some(change: fn(&mut Kernel)) -> Report {
    let some = |sample: &Sample| ["softmax", "log_softmax", "layer_norm"].contains(&sample.op.name());
    let samples: Vec<Sample> = all().into_iter().filter(some).collect();
    check(&StandIn { change, ..StandIn::sound(Order::default()) }, &samples, &SampleVariant::ALL[..1], true)
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
    let report = check(&StandIn::sound(Order::default()), &samples, &SampleVariant::ALL[..1], false);
    assert_eq!((report.passed, report.failures.len()), (0, 0));
    assert!(report.skipped >= 3, "{report:?}");
}

#[test]
#[ignore = "needs a C++ compiler"]
fn rates_are_measured_and_what_cannot_be_is_said() {
    let rates = measure(&StandIn::sound(Order::default()), &Sizes::small());
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

#[test]
#[ignore = "needs a C++ compiler"]
fn rates_of_products_name_the_layer_the_pass_and_the_operands() {
    let (subject, sizes) = (StandIn::sound(Order::default()), Sizes::small());
    let rates: Vec<Rate> =
        (0..products(&sizes)).map(|number| measure_product(&subject, number, &sizes)).collect();
    let described: Vec<String> = rates.iter().map(|rate| format!("{} {}", rate.name, rate.sizes)).collect();
    assert_eq!(
        described,
        [
            "toy_forward ti,oi->to of [32, 16] and [24, 16]",
            "toy_input_gradient to,oi->ti of [32, 24] and [24, 16]",
            "toy_weight_gradient to,ti->oi of [32, 24] and [32, 16]"
        ]
    );
    assert!(rates.iter().all(|rate| rate.value.is_some_and(|value| value > 0.0)), "{rates:?}");
}
