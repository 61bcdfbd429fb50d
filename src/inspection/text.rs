//! An inspection as text.

use super::compressed::{compressed_activations, compressed_gradients};
use super::facts::{FileFacts, Port, ProgramFacts};
use super::feed_forward::feed_forward;
use super::parameters::{ParameterFacts, TensorRow};
use super::recomputed::recomputed;
use super::shares::SharesText;
use super::stages::{chosen_schedule, other_schedules};
use super::step::{DeviceFacts, EachDevice, MemoryFacts, MeshFacts, PhaseCost, StepFacts};
use super::{Inspection, Support, bind_hint};
use crate::diagnostics::{Severity, render};
use ir::units::{bytes, count, flops, grouped, sizes};
use ir::visible;
use passes::Timing;
use passes::reports::{NearMiss, PrecisionReport, RowRole, Tie};
use std::collections::BTreeMap;
use std::fmt;

/// Names longer than this do not move the columns behind them.
const NAME_WIDTH: usize = 44;

impl fmt::Display for Inspection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let groups = self.groups.iter().map(ToString::to_string).collect::<String>();
        let ms = |time: &Timing| time.time.as_secs_f64() * 1e3;
        let passes = self.passes.iter().map(|time| format!("{} {:.1} ms", time.pass, ms(time)));
        let passes = passes.collect::<Vec<_>>().join(", ");
        let open = self.support != Support::Trainable && !self.unbound.is_empty();
        let sections = [
            self.parameters.as_ref().map(ToString::to_string),
            (!groups.is_empty()).then(|| format!("\n{groups}")),
            self.program.as_ref().map(|program| program_text(program, &self.near_misses)),
            self.feed_forward.as_ref().map(feed_forward),
            self.loss.as_ref().map(|loss| format!("\nloss: {}\n", visible(&loss.text))),
            self.step.as_ref().map(ToString::to_string),
            self.schedule.as_ref().map(|it| format!("\n{}\n{}\n", chosen_schedule(it), other_schedules(it))),
            self.pipeline.as_ref().map(ToString::to_string),
            self.recomputed.as_ref().map(|report| format!("\n{}", recomputed(report))),
            self.compressed_activations.as_ref().map(|it| format!("\n{}\n", compressed_activations(it))),
            self.compressed_gradients.as_ref().map(|it| format!("\n{}\n", compressed_gradients(it))),
            self.precision.as_ref().map(precision),
            self.fit.as_ref().map(|fit| format!("{fit}\n")),
            self.prediction.as_ref().map(ToString::to_string),
            (!passes.is_empty()).then(|| format!("\npasses: {passes}\n")),
            open.then(|| unbound(&self.unbound)),
            (!self.warnings.is_empty())
                .then(|| format!("\n{}", render(Severity::Warning, &self.warnings, false))),
        ];
        write!(f, "{}: {}\n{}", visible(&self.file.path), self.verdict(), self.file)?;
        sections.into_iter().flatten().try_for_each(|section| f.write_str(&section))
    }
}

/// The operators in half precision and in f32, with the number of their nodes.
fn precision(report: &PrecisionReport) -> String {
    let PrecisionReport { half, in_half, in_f32 } = report;
    let list = |counts: &BTreeMap<&str, usize>| {
        counts.iter().map(|(name, count)| format!("{count} {name}")).collect::<Vec<_>>().join(", ")
    };
    format!("\nprecision\n  {half:<5} {}\n  f32   {}\n", list(in_half), list(in_f32))
}

/// The line about dims without a size.
fn unbound(names: &[String]) -> String {
    let quoted: Vec<String> = names.iter().map(|name| format!("`{}`", visible(name))).collect();
    let hint = bind_hint(names);
    format!("\ndims without a size: {}; for more details, {}\n", quoted.join(", "), visible(&hint))
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

impl fmt::Display for FileFacts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sets = self.opsets.iter().map(|(name, version)| format!("{} {version}", visible(name)));
        let producer = if self.producer.is_empty() { "unnamed".into() } else { visible(&self.producer) };
        let (version, sets) = (self.ir_version, sets.collect::<Vec<_>>().join(", "));
        writeln!(f, "  made by  {producer}; IR version {version}; operator sets {sets}")?;
        writeln!(f, "  takes    {}\n  gives    {}", ports(&self.inputs), ports(&self.outputs))?;
        let absent =
            if self.absent > 0 { format!(", {} of them missing", self.absent) } else { String::new() };
        let tensors = format!("{} ({}{absent})", count(self.tensors, "tensor"), bytes(self.bytes));
        let nodes = count(self.nodes, "node");
        writeln!(f, "  holds    {tensors}, {nodes}: {}", histogram(&self.operators))
    }
}

fn ports(ports: &[Port]) -> String {
    let ports: Vec<String> =
        ports.iter().map(|port| format!("{} {}", visible(&port.name), port.ty)).collect();
    if ports.is_empty() { "nothing".into() } else { ports.join(", ") }
}

/// The names with their counts, the most frequent first.
fn histogram(counts: &BTreeMap<String, usize>) -> String {
    let mut counts: Vec<(&String, usize)> = counts.iter().map(|(name, count)| (name, *count)).collect();
    counts.sort_by_key(|(name, count)| (std::cmp::Reverse(*count), *name));
    counts.iter().map(|(name, count)| format!("{count} {}", visible(name))).collect::<Vec<_>>().join(", ")
}

impl fmt::Display for ParameterFacts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let frozen = match self.frozen {
            0 => String::new(),
            elements => format!(", {} frozen", grouped(elements)),
        };
        let trained = grouped(self.trained);
        writeln!(f, "\n{}, {trained} elements trained{frozen}", count(self.count, "parameter"))?;
        rows(f, self, RowRole::Parameter)?;
        for role in [RowRole::Buffer, RowRole::Constant] {
            let number = self.of_role(role).count();
            if number > 0 {
                writeln!(f, "\n{}, not trained", count(number, role.name()))?;
                rows(f, self, role)?;
            }
        }
        Ok(())
    }
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

/// The patterns that were found and nearly found in the forward program, and its operators.
fn program_text(program: &ProgramFacts, near: &[NearMiss]) -> String {
    let patterns = if program.patterns.is_empty() { "none".into() } else { histogram(&program.patterns) };
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    near.iter().for_each(|near| *counts.entry(near.pattern.to_owned()).or_default() += 1);
    let nearly = near.first().map(|first| {
        let (counts, pattern) = (histogram(&counts), first.pattern);
        format!("nearly found: {counts}; --why {pattern} explains what prevents the match\n")
    });
    let (nodes, operators) = (count(program.operators.values().sum(), "node"), histogram(&program.operators));
    let nearly = nearly.unwrap_or_default();
    format!("\npatterns found: {patterns}\n{nearly}forward program: {nodes}: {operators}\n")
}

impl fmt::Display for StepFacts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let samples = self.batch.map(|batch| format!(" of {}", count(batch as usize, "sample")));
        let microbatches = count(self.microbatches as usize, "microbatch").replace("hs", "hes");
        let (samples, operations) = (samples.unwrap_or_default(), flops(self.flops));
        writeln!(f, "\na step of {microbatches}{samples}: {operations}")?;
        for PhaseCost { phase, nodes, flops: operations, read, written } in &self.phases {
            let (nodes, operations) = (count(*nodes, "node"), flops(*operations));
            let [read, written] = [read, written].map(|size| bytes(*size));
            writeln!(
                f,
                "  {phase:8}  {nodes:>12}  {operations:>10}  reads {read:>10}  writes {written:>10}"
            )?;
        }
        let memory = &self.memory;
        let kinds = [
            ("parameters", memory.parameters),
            ("buffers", memory.buffers),
            ("optimizer", memory.optimizer),
            ("gradients", memory.gradients),
        ];
        let (planned, kinds) = (bytes(memory.planned), sizes(kinds));
        match &self.mesh {
            None => writeln!(f, "memory: {planned} planned; {kinds}")?,
            Some(MeshFacts { axes, devices, each }) => {
                let axes: Vec<String> = axes.iter().map(|(name, size)| format!("{name}={size}")).collect();
                let is_alike = matches!(each, EachDevice::Alike(_));
                let each = if is_alike { "each plans" } else { "the largest plans" };
                writeln!(f, "\nmesh {}: {devices} devices; {each} {planned}", axes.join(" x "))?;
            }
        }
        write_saving(f, memory)?;
        match self.mesh.as_ref().map(|mesh| &mesh.each) {
            None => {}
            Some(EachDevice::Alike(DeviceFacts { shares, communication })) => {
                write!(f, "{}{communication}", SharesText(shares))?;
            }
            Some(EachDevice::ByPipelineRank { pipeline_ranks }) => {
                writeln!(f, "the whole model: {kinds}")?;
                write_ranks(f, pipeline_ranks)?;
            }
        }
        self.cluster.as_ref().map_or(Ok(()), |cluster| write!(f, "{cluster}"))
    }
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
