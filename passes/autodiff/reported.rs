//! Numbers that a step reports and that are not trained: scalars of the model, and the loads of experts, over all microbatches.

use super::{accumulate, classes, value};
use ir::ops::step::Accumulate;
use ir::{At, Builder, DType, Diagnostic, Module, Phase, Scalar, ScalarPart, StepOutput, TypeError};

/// Reports the scalars of the model that are not trained: the output `metric.NAME` in the update.
pub(super) fn metrics(b: &mut Builder) -> Result<(), Diagnostic> {
    let outputs = b.module().outputs.iter();
    let metrics: Vec<String> =
        outputs.filter_map(|output| metric_with_sum(b.module(), &output.name)).collect();
    for name in metrics {
        let classes = classes(b.module(), Scalar::Metric(&name))?;
        let sums = accumulate(b, &classes)?;
        b.at(At::End(Phase::Update));
        let value = value(b, &sums)?;
        b.tables().add_output(StepOutput::Metric(&name), value);
    }
    Ok(())
}

/// Sums up the loads of experts over the microbatches: the output `load.NAME` becomes an output of the update, in f64, which holds every
/// count.
pub(super) fn loads(b: &mut Builder) -> Result<(), TypeError> {
    for index in 0..b.module().outputs.len() {
        let output = &b.module().outputs[index];
        if StepOutput::load_of(&output.name).is_none() {
            continue;
        }
        let value = output.value;
        let stage = b.module().stage_of(value);
        b.origin("moe").stage(stage).at(At::End(Phase::Forward));
        let count = b.cast(value, DType::F64)?;
        b.at(At::End(Phase::Update));
        let sum = b.one(Accumulate, &[count])?;
        b.tables().outputs[index].value = sum;
    }
    Ok(())
}

/// Returns the name of the metric whose first class has this output as its sum.
fn metric_with_sum(module: &Module, output: &str) -> Option<String> {
    let Some(StepOutput::Part { scalar: Scalar::Metric(name), class, part: ScalarPart::Sum }) =
        StepOutput::of(output)
    else {
        return None;
    };
    let first = StepOutput::Part { scalar: Scalar::Metric(name), class: 0, part: ScalarPart::Sum };
    match class {
        0 => Some(name.to_owned()),
        // A metric may itself be called `NAME.1`: then there is no metric `NAME`.
        class => module.step_output(first).is_none().then(|| format!("{name}.{class}")),
    }
}
