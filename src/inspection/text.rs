//! An inspection as text.

use super::compressed::{compressed_activations, compressed_gradients};
use super::feed_forward::feed_forward;
use super::parameters::{ParameterFacts, TensorRow};
use super::recomputed::recomputed;
use super::stages::{chosen_schedule, other_schedules};
use super::step::{DeviceFacts, EachDevice};
use super::units::{bytes, count, flops, grouped};
use super::{FileFacts, Inspection, MemoryFacts, Port, ProgramFacts, StepFacts, Support, bind_hint};
use crate::diagnostics::{Severity, render};
use ir::visible;
use passes::Timing;
use passes::reports::{NearMiss, RowRole, Tie};
use std::collections::BTreeMap;
use std::fmt;

/// Names longer than this do not move the columns behind them.
const NAME_WIDTH: usize = 44;

impl fmt::Display for Inspection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}: {}", visible(&self.file.path), self.verdict())?;
        file(f, &self.file)?;
        if let Some(parameters) = &self.parameters {
            write_parameters(f, parameters)?;
        }
        if !self.groups.is_empty() {
            writeln!(f)?;
            self.groups.iter().try_for_each(|group| write!(f, "{group}"))?;
        }
        if let Some(program) = &self.program {
            write_program(f, program, &self.near_misses)?;
        }
        if let Some(found) = &self.feed_forward {
            f.write_str(&feed_forward(found))?;
        }
        if let Some(loss) = &self.loss {
            writeln!(f, "\nloss: {}", visible(&loss.text))?;
        }
        if let Some(step) = &self.step {
            write_step(f, step)?;
        }
        if let Some(schedule) = &self.schedule {
            writeln!(f, "\n{}\n{}", chosen_schedule(schedule), other_schedules(schedule))?;
        }
        if let Some(pipeline) = &self.pipeline {
            write!(f, "{pipeline}")?;
        }
        if let Some(report) = &self.recomputed {
            write!(f, "\n{}", recomputed(report))?;
        }
        if let Some(report) = &self.compressed_activations {
            writeln!(f, "\n{}", compressed_activations(report))?;
        }
        if let Some(report) = &self.compressed_gradients {
            writeln!(f, "\n{}", compressed_gradients(report))?;
        }
        if let Some(fit) = &self.fit {
            writeln!(f, "{fit}")?;
        }
        if let Some(prediction) = &self.prediction {
            write!(f, "{prediction}")?;
        }
        if !self.passes.is_empty() {
            let ms = |time: &Timing| time.time.as_secs_f64() * 1e3;
            let times = self.passes.iter().map(|time| format!("{} {:.1} ms", time.pass, ms(time)));
            writeln!(f, "\npasses: {}", times.collect::<Vec<_>>().join(", "))?;
        }
        if self.support != Support::Trainable && !self.unbound.is_empty() {
            let names: Vec<String> = self.unbound.iter().map(|name| format!("`{}`", visible(name))).collect();
            let (names, hint) = (names.join(", "), bind_hint(&self.unbound));
            writeln!(f, "\ndims without a size: {names}; for more details, {}", visible(&hint))?;
        }
        if !self.warnings.is_empty() {
            let warnings: Vec<_> = self.warnings.iter().map(super::DiagnosticFacts::as_diagnostic).collect();
            write!(f, "\n{}", render(Severity::Warning, &warnings, false))?;
        }
        Ok(())
    }
}

impl Inspection {
    fn verdict(&self) -> String {
        let reasons = || count(self.reasons.len(), "reason");
        match self.support {
            Support::Trainable if self.file.absent > 0 => {
                "can be trained when weights are given: --weights FILE, or --init RULE".into()
            }
            Support::Trainable => "can be trained".into(),
            Support::Unbound => "can be trained when its dims are bound".into(),
            Support::Undecided => "bind its dims to find out whether it can be trained".into(),
            Support::Importable => format!("can be imported but not trained, for {}", reasons()),
            Support::Unsupported => format!("cannot be imported, for {}", reasons()),
        }
    }
}

fn file(f: &mut fmt::Formatter<'_>, file: &FileFacts) -> fmt::Result {
    let sets: Vec<String> =
        file.opsets.iter().map(|(name, version)| format!("{} {version}", visible(name))).collect();
    let producer = if file.producer.is_empty() { "unnamed".into() } else { visible(&file.producer) };
    writeln!(f, "  made by  {producer}; IR version {}; operator sets {}", file.ir_version, sets.join(", "))?;
    ports(f, "takes", &file.inputs)?;
    ports(f, "gives", &file.outputs)?;
    let absent = if file.absent > 0 { format!(", {} of them missing", file.absent) } else { String::new() };
    let tensors = format!("{} ({}{absent})", count(file.tensors, "tensor"), bytes(file.bytes));
    writeln!(f, "  holds    {tensors}, {}: {}", count(file.nodes, "node"), histogram(&file.operators))
}

fn ports(f: &mut fmt::Formatter<'_>, what: &str, ports: &[Port]) -> fmt::Result {
    let ports: Vec<String> =
        ports.iter().map(|port| format!("{} {}", visible(&port.name), port.ty)).collect();
    writeln!(f, "  {what:8} {}", if ports.is_empty() { "nothing".into() } else { ports.join(", ") })
}

/// The most frequent first.
fn histogram(counts: &BTreeMap<String, usize>) -> String {
    let mut counts: Vec<(&String, usize)> = counts.iter().map(|(name, count)| (name, *count)).collect();
    counts.sort_by_key(|(name, count)| (std::cmp::Reverse(*count), *name));
    counts.iter().map(|(name, count)| format!("{count} {}", visible(name))).collect::<Vec<_>>().join(", ")
}

fn write_parameters(f: &mut fmt::Formatter<'_>, parameters: &ParameterFacts) -> fmt::Result {
    let frozen = match parameters.frozen {
        0 => String::new(),
        elements => format!(", {} frozen", grouped(elements)),
    };
    let trained = grouped(parameters.trained);
    writeln!(f, "\n{}, {trained} elements trained{frozen}", count(parameters.count, "parameter"))?;
    rows(f, parameters, RowRole::Parameter)?;
    for role in [RowRole::Buffer, RowRole::Constant] {
        let number = parameters.of_role(role).count();
        if number > 0 {
            writeln!(f, "\n{}, not trained", count(number, role.name()))?;
            rows(f, parameters, role)?;
        }
    }
    Ok(())
}

fn rows(f: &mut fmt::Formatter<'_>, parameters: &ParameterFacts, role: RowRole) -> fmt::Result {
    let rows: Vec<&TensorRow> = parameters.of_role(role).collect();
    let width = |text: fn(&TensorRow) -> &str| {
        let widths = rows.iter().map(|row| text(row).chars().count()).filter(|&width| width <= NAME_WIDTH);
        widths.max().unwrap_or(0)
    };
    let (names, types) = (width(|row| &row.name), width(|row| &row.ty));
    let mut tied: BTreeMap<&str, Vec<(&TensorRow, &Tie)>> = BTreeMap::new();
    for other in &parameters.tensors {
        let Some(tie) = &other.tied else { continue };
        tied.entry(&tie.data).or_default().push((other, tie));
    }
    for row in &rows {
        let frozen = if row.frozen { "frozen; " } else { "" };
        let (name, ty, reason) = (visible(&row.name), &row.ty, visible(&row.reason));
        writeln!(f, "  {name:names$}  {ty:types$}  {frozen}{reason}")?;
        details(f, row)?;
        for (other, tie) in tied.get(row.name.as_str()).into_iter().flatten() {
            let how = if tie.permutation == [1, 0] { ", transposed" } else { "" };
            writeln!(f, "    tied: {} {}{how}", visible(&other.name), other.ty)?;
        }
    }
    Ok(())
}

/// Other names, and how the tensor becomes states.
pub(super) fn details(f: &mut impl fmt::Write, row: &TensorRow) -> fmt::Result {
    if !row.aliases.is_empty() {
        writeln!(f, "    also called {}", visible(&row.aliases.join(", ")))?;
    }
    if !row.is_plain() {
        for part in &row.states {
            let view = if part.view.is_empty() { String::new() } else { format!(" = {}", part.view) };
            writeln!(f, "    state {} {}{view}", visible(&part.state), part.ty)?;
        }
    }
    Ok(())
}

fn write_program(f: &mut fmt::Formatter<'_>, program: &ProgramFacts, near: &[NearMiss]) -> fmt::Result {
    let patterns = match program.patterns.is_empty() {
        true => "none".into(),
        false => histogram(&program.patterns),
    };
    let nodes = count(program.operators.values().sum(), "node");
    writeln!(f, "\npatterns found: {patterns}")?;
    if let Some(first) = near.first() {
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        near.iter().for_each(|near| *counts.entry(near.pattern.to_owned()).or_default() += 1);
        writeln!(
            f,
            "nearly found: {}; --why {} explains what prevents the match",
            histogram(&counts),
            first.pattern
        )?;
    }
    writeln!(f, "forward program: {nodes}: {}", histogram(&program.operators))
}

fn write_step(f: &mut fmt::Formatter<'_>, step: &StepFacts) -> fmt::Result {
    let samples =
        step.batch.map(|batch| format!(" of {}", count(batch as usize, "sample"))).unwrap_or_default();
    let microbatches = count(step.microbatches as usize, "microbatch").replace("hs", "hes");
    writeln!(f, "\na step of {microbatches}{samples}: {}", flops(step.flops))?;
    for phase in &step.phases {
        let (nodes, operations) = (count(phase.nodes, "node"), flops(phase.flops));
        let (read, written) = (bytes(phase.read), bytes(phase.written));
        writeln!(
            f,
            "  {:8}  {nodes:>12}  {operations:>10}  reads {read:>10}  writes {written:>10}",
            phase.phase
        )?;
    }
    let memory = &step.memory;
    let kinds = [
        ("parameters", memory.parameters),
        ("buffers", memory.buffers),
        ("optimizer", memory.optimizer),
        ("gradients", memory.gradients),
    ];
    let kinds =
        kinds.iter().filter(|(_, size)| *size > 0).map(|(what, size)| format!("{what} {}", bytes(*size)));
    let kinds = kinds.collect::<Vec<_>>().join(", ");
    let Some(mesh) = &step.mesh else {
        writeln!(f, "memory: {} planned; {kinds}", bytes(memory.planned))?;
        write_saving(f, memory)?;
        return write_cluster(f, step);
    };
    let axes: Vec<String> = mesh.axes.iter().map(|(name, size)| format!("{name}={size}")).collect();
    let (axes, devices, planned) = (axes.join(" x "), mesh.devices, bytes(memory.planned));
    let each = if matches!(mesh.each, EachDevice::Alike(_)) { "each plans" } else { "the largest plans" };
    writeln!(f, "\nmesh {axes}: {devices} devices; {each} {planned}")?;
    write_saving(f, memory)?;
    match &mesh.each {
        EachDevice::Alike(DeviceFacts { shares, communication }) => write!(f, "{shares}{communication}")?,
        EachDevice::ByPipelineRank { pipeline_ranks } => {
            writeln!(f, "the whole model: {kinds}")?;
            write_ranks(f, pipeline_ranks)?;
        }
    }
    write_cluster(f, step)
}

/// Writes a line for each pipeline rank, with the bytes that each of its devices holds and sends. Weights of which microbatches read a copy
/// count as memory that only the update reads. The plan of a rank counts these weights as parameters.
fn write_ranks(f: &mut fmt::Formatter<'_>, ranks: &[DeviceFacts]) -> fmt::Result {
    writeln!(f, "\neach device of a pipeline rank holds, and sends in the collectives of a step")?;
    writeln!(f, "  rank  parameters   gradients  update only  activations       sends")?;
    for (rank, DeviceFacts { shares, communication }) in ranks.iter().enumerate() {
        let [parameters, gradients, of_update, activations] =
            shares.named().map(|(_, share)| bytes(share.device));
        let sent = bytes(communication.bytes);
        writeln!(
            f,
            "  {rank:>4}  {parameters:>10}  {gradients:>10}  {of_update:>11}  {activations:>11}  {sent:>10}"
        )?;
    }
    Ok(())
}

/// The bytes beside the device, and those that early updates save on it.
fn write_saving(f: &mut fmt::Formatter<'_>, memory: &MemoryFacts) -> fmt::Result {
    let beside = [(memory.host, "on the host"), (memory.disk, "in a file")];
    let beside = beside.into_iter().filter_map(|(size, place)| Some(format!("{} {place}", bytes(size?))));
    let beside: Vec<String> = beside.collect();
    if !beside.is_empty() {
        writeln!(f, "beside the device: {}", beside.join(", "))?;
    }
    let Some(late) = memory.planned_with_late_updates else { return Ok(()) };
    let saved = bytes(late.saturating_sub(memory.planned));
    writeln!(f, "update: early; {saved} less than the {} of late updates", bytes(late))
}

fn write_cluster(f: &mut fmt::Formatter<'_>, step: &StepFacts) -> fmt::Result {
    step.cluster.iter().try_for_each(|cluster| write!(f, "{cluster}"))
}
