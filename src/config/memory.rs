//! Memory: the bytes that a device may take, the activations that are made twice so that less is kept, and the time of updates.

mod budget;

use std::path::Path;

use clap::{Args, ValueEnum};
use ir::{DType, Diagnostic};
use passes::compress_activations::CompressActivations;
use passes::offload::{Classes, Offload};
use passes::recompute::Recompute;
use program::UpdateTime;
use serde::{Serialize, Serializer};

use super::value::{name_of, one_of, serialize_name};
pub use budget::{Budget, Budgets, DiskBudget};

/// Flags of memory.
#[derive(Args, Clone, Debug, Default, PartialEq, Serialize)]
#[command(next_help_heading = "Memory")]
#[serde(rename_all = "kebab-case")]
pub struct Memory {
    /// Activations that backward computes again instead of keeping them
    #[arg(long, value_enum, default_value_t)]
    #[serde(skip_serializing_if = "RecomputeChoice::is_none")]
    pub recompute: RecomputeChoice,
    /// Memory that the program may take on each device, such as 6GiB; so that it fits, activations are compressed without loss, and as few
    /// as possible are computed again. With host=BYTES or disk=DIR, or with --offload, values may rest there instead: what is predicted to
    /// take the least time
    #[arg(long, value_name = "BYTES|device=BYTES,host=BYTES,disk=DIR[:BYTES]")]
    pub memory: Option<Budgets>,
    /// Values that rest on the host instead of the device, and come to it where they are read: optimizer (states of the optimizer, which
    /// the host updates, and the weights that are read only as halves), parameters (all weights), gradients (once they are
    /// complete), activations (results of forward, until backward reads them), embeddings (weights whose rows are looked up, by the
    /// host, and which nothing else reads), auto (those with which the program fits --memory)
    #[arg(long, value_name = "WHAT,…", value_delimiter = ',', value_parser = one_of(&OFFLOADS))]
    #[serde(skip_serializing_if = "Vec::is_empty", serialize_with = "serialize_offload")]
    pub offload: Vec<Classes>,
    /// Bytes of the smallest value that leaves the device [default: 16KiB]
    #[arg(long, value_name = "BYTES")]
    pub offload_least: Option<Budget>,
    /// Forms in which activations take fewer bytes until backward reads them: masks (a bit for each element of a mask, and of activations
    /// that backward only compares, such as those of a ReLU), indices (the place of the largest element of each window of a max pooling);
    /// these two change no bit of the results; bf16 or f16 (the other f32 activations, rounded)
    #[arg(long, value_name = "FORM,…", value_delimiter = ',', value_enum)]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub compress_activations: Vec<ActivationForm>,
    /// Bytes of the smallest activation that is compressed [default: 16KiB]
    #[arg(long, value_name = "BYTES")]
    pub compress_least: Option<Budget>,
    /// When an update of a weight runs: `late`, after backward; `early` frees the memory of each gradient during backward if a step has one
    /// microbatch, but a gradient that is not finite then ends the run at its last checkpoint, since the weights have changed; not with
    /// --clip, fp16 or the stages of a pipeline
    #[arg(long, default_value = "late", value_parser = one_of(&UPDATES))]
    #[serde(skip_serializing_if = "is_late", serialize_with = "serialize_update")]
    pub update: UpdateTime,
}

/// The use of memories other than the device's.
#[derive(Clone, Debug, PartialEq)]
pub struct Tiers {
    /// The classes of values that leave the device.
    pub offload: Offload,
    /// Whether other classes may leave as well, if the program fits no other way.
    pub is_open: bool,
    /// The bytes of each memory.
    pub budgets: Budgets,
}

impl Tiers {
    /// A budget of the device alone, which no value leaves.
    pub fn within(device: Option<u64>) -> Self {
        let budgets = Budgets { device: device.map(Budget), ..Budgets::default() };
        Self { offload: Offload::default(), is_open: false, budgets }
    }

    /// Whether values may leave the device.
    pub fn may_leave(&self) -> bool {
        self.is_open || self.offload.classes != Classes::NONE
    }

    /// Whether the classes alone decide which values leave the device, because no program has to fit a budget.
    pub fn is_fixed(&self) -> bool {
        !self.is_open && self.budgets == Budgets::default()
    }
}

/// The value `auto` of `--offload` in [`Memory::offload`]: it names no class itself, and opens all of them, so that the program fits
/// `--memory`.
pub(crate) const AUTO: Classes = Classes::NONE;

/// The values of `--offload`.
const OFFLOADS: [(Classes, &str); 6] = {
    let [optimizer, parameters, gradients, activations, embeddings] = Classes::ALL;
    [optimizer, parameters, gradients, activations, embeddings, (AUTO, "auto")]
};

/// The values of `--update`.
const UPDATES: [(UpdateTime, &str); 2] = [(UpdateTime::Late, "late"), (UpdateTime::Early, "early")];

fn serialize_offload<S: Serializer>(classes: &[Classes], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(classes.iter().map(|classes| name_of(&OFFLOADS, classes)))
}

fn serialize_update<S: Serializer>(update: &UpdateTime, serializer: S) -> Result<S::Ok, S::Error> {
    serialize_name(&UPDATES, update, serializer)
}

fn is_late(update: &UpdateTime) -> bool {
    *update == UpdateTime::Late
}

/// A form in which activations wait for backward.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ActivationForm {
    /// Masks in bits, and the comparisons of activations that backward only compares
    Masks,
    /// Places of largest elements instead of the operands of max pooling
    Indices,
    /// f32 activations in bf16, whose relative error is at most 2^-8
    Bf16,
    /// f32 activations in f16, whose relative error is at most 2^-11 between 6.1e-5 and 65504
    F16,
}

/// The activations that are computed again.
#[derive(ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum RecomputeChoice {
    /// Keep all activations that backward reads
    #[default]
    None,
    /// Compute activations again that take little time for their bytes, such as those of norms and activation functions
    Selective,
    /// Keep only the values between blocks, such as the layers of a transformer
    Full,
}

impl RecomputeChoice {
    fn is_none(&self) -> bool {
        *self == Self::None
    }
}

impl Memory {
    /// The pass that `--recompute` asks for, with the prices of [`ir::machine::Device::assumed`].
    pub fn pass(&self) -> Option<Recompute> {
        match self.recompute {
            RecomputeChoice::None => None,
            RecomputeChoice::Selective => Some(Recompute::SELECTIVE),
            RecomputeChoice::Full => Some(Recompute::FULL),
        }
    }

    /// Refuses two types for activations that wait for backward.
    pub fn check(&self) -> Option<Diagnostic> {
        let has = |form| self.compress_activations.contains(&form);
        (has(ActivationForm::Bf16) && has(ActivationForm::F16)).then(|| {
            Diagnostic::new("--compress-activations bf16,f16: an activation is kept in one type")
                .note("bf16 has the range of f32, f16 has 3 more bits")
        })
    }

    /// The pass that `--compress-activations` asks for.
    pub fn compressed_activations(&self) -> Option<CompressActivations> {
        let has = |form| self.compress_activations.contains(&form);
        let types = [(ActivationForm::Bf16, DType::BF16), (ActivationForm::F16, DType::F16)];
        let dtype = types.into_iter().find(|(form, _)| has(*form)).map(|(_, dtype)| dtype);
        let least = self.compress_least.map_or(CompressActivations::default().least, |Budget(bytes)| bytes);
        let (masks, indices) = (has(ActivationForm::Masks), has(ActivationForm::Indices));
        let compress = CompressActivations { masks, indices, dtype, least };
        (!self.compress_activations.is_empty()).then_some(compress)
    }

    /// The use of other memories that the flags ask for; `None` if everything stays on the device.
    pub fn tiers(&self) -> Option<Tiers> {
        let budgets = self.memory.clone().unwrap_or_default();
        let is_asked = !self.offload.is_empty() || budgets.host.is_some() || budgets.disk.is_some();
        let classes = self.offload.iter().fold(Classes::NONE, |all, &classes| all.with(classes));
        let is_open = self.offload.contains(&AUTO) || self.offload.is_empty();
        let offload = Offload { classes, ..Offload::default() };
        let least = self.offload_least.map_or(offload.least, |Budget(bytes)| bytes);
        is_asked.then_some(Tiers { offload: Offload { least, ..offload }, is_open, budgets })
    }

    /// The folder of the file for values that rest on the disk.
    pub fn folder(&self) -> Option<&Path> {
        self.memory.as_ref()?.disk.as_ref().map(|disk| disk.folder.as_path())
    }

    /// Bytes that programs may take on each device.
    pub fn device_budget(&self) -> Option<u64> {
        self.memory.as_ref()?.device.map(|Budget(bytes)| bytes)
    }
}
