//! The lines on the terminal before a run: what was compiled, and what the compiler chose.

use super::{Compile, Ready};
use crate::cli::report::{self, tell};
use crate::hardware::Chosen;
use crate::inspection;
use crate::plan::RunPlan;
use crate::processes::Processes;
use crate::verification::assumptions;
use ir::units::bytes;

impl Compile {
    /// Tells the sizes of the program and of its memory.
    pub(super) fn tell_plan(&self, processes: &Processes, plan: &RunPlan, device: &Chosen) {
        let RunPlan { parameters, parameter_elements, microbatches, microbatch, memory, .. } = plan;
        tell!(
            "{}: {parameter_elements} parameters in {parameters} tensors, {microbatches} x {microbatch} \
             samples per step",
            self.model.display()
        );
        let parallel = &self.settings.compile.parallel;
        let each = parallel.described().map_or("", |_| "on each rank, ");
        if let Some(mesh) = parallel.described() {
            let on = match processes.launched() {
                _ if !device.target.is_host() => "a GPU each",
                None => "as threads",
                Some(_) => "as processes",
            };
            let own = microbatch / parallel.data_ranks();
            tell!("mesh: {mesh} {on}, {microbatches} x {own} samples each");
        }
        let additional = memory.training_arena.max(memory.evaluation_arena) - memory.states;
        let [planned, states, additional, constants, live] =
            [memory.peak, memory.states, additional, memory.constants, memory.lower_bound].map(bytes);
        tell!(
            "memory: {each}{planned} planned ({states} states, {additional} additional arena, {constants} \
             constants; at least {live} live at a time)"
        );
        if memory.host + memory.disk > 0 {
            let [host, disk] = [memory.host, memory.disk].map(bytes);
            tell!("beside the device: {each}{host} on the host, {disk} on the disk");
        }
    }
}

/// Tells the choices of the passes.
pub(super) fn tell_choices(ready: &Ready, device: &Chosen) {
    let compilation = &ready.last().compilation;
    let pipeline = compilation.training.pipeline.as_ref();
    if let Some(pipeline) = pipeline.filter(|pipeline| pipeline.is_asynchronous()) {
        tell!("staleness: {}", inspection::staleness(&pipeline.delays));
    }
    let reports = &compilation.reports;
    if let Some(report) = reports.stages.as_ref().filter(|report| report.is_choice()) {
        tell!("{}", inspection::chosen_schedule(report));
    }
    tell!("trained: {}", assumptions::trained_tensors(&reports.parameters, None).says);
    if let Some(report) = &reports.recomputed {
        report::tell_lines(&inspection::recomputed(report));
    }
    if let Some(report) = &reports.compressed_gradients {
        tell!("{}", inspection::compressed_gradients(report));
    }
    if let [_, .., last] = &ready.jobs[..] {
        tell!("gradients are reduced whole up to step {}", last.first_step);
    }
    let activations = reports.compressed_activations.as_ref().map(inspection::compressed_activations);
    let loss = reports.loss.as_ref().map(|loss| format!("loss: {}", loss.text));
    for line in [&activations, &ready.fit, &loss].into_iter().flatten() {
        report::tell_line(line);
    }
    if ready.training.is_some() {
        tell!("device: {}", device.described);
    }
}
