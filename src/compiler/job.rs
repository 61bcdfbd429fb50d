//! The description of a compilation, as plain data.

use crate::config::CompileFlags;
use crate::pipeline::{CompilationPlan, MemoryLimit};
use crate::{fit, targets};
use ir::machine::{Cluster, Device, Node};
use program::{Multiprocessors, Target};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The description of a compilation. Equal jobs give equal programs.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    /// The model's file.
    pub model: PathBuf,
    /// The flags of the compilation.
    pub flags: CompileFlags,
    /// Whether the step has the gradients of parameters among its outputs, as `verify` compares them.
    pub keeps_gradients: bool,
    /// The device whose kernels run the programs.
    pub on: On,
    /// The cluster of `--cluster`.
    pub cluster: Option<Cluster>,
    /// The samples of a step. `None` for one microbatch.
    pub global_batch: Option<u64>,
    /// The steps of the run. A learning-rate schedule without a length of its own has this length. The data may determine it.
    pub steps: u64,
    /// The size of a last batch of the evaluation that is smaller, and needs a program of its own. The data determine it.
    pub short_evaluation: Option<u64>,
}

/// The device of a job.
#[derive(Clone, Debug, PartialEq)]
pub struct On {
    /// The kind of the device.
    pub target: Target,
    /// The size of the GPU.
    pub multiprocessors: Multiprocessors,
    /// The description of the device. Its times are the costs of choices.
    pub device: Device,
    /// Whether the description is that of the actual device; otherwise it is assumed, since the device is not known.
    pub is_known: bool,
}

/// The facts that a command line does not have. They come from the machine, from the description of the cluster, and from the checkpoint of
/// a resumed run.
#[derive(Clone, Debug, PartialEq)]
pub struct Facts {
    /// The device.
    pub on: On,
    /// The cluster of `--cluster`.
    pub cluster: Option<Cluster>,
    /// The samples of a step of the resumed run, unless flags give another number.
    pub global_batch: Option<u64>,
}

impl On {
    /// A device with this description.
    pub fn described(device: Device) -> Self {
        Self {
            target: targets::of(device.kind),
            multiprocessors: Multiprocessors(device.multiprocessors),
            device,
            is_known: true,
        }
    }
}

impl Job {
    /// Makes a job from flags and facts. Without a global batch, a step has one microbatch.
    pub fn resolve(model: PathBuf, flags: &CompileFlags, facts: Facts) -> Self {
        let Facts { on, cluster, global_batch } = facts;
        Self {
            model,
            flags: flags.clone(),
            keeps_gradients: false,
            on,
            cluster,
            global_batch: flags.shapes.global_batch.or(global_batch),
            steps: 0,
            short_evaluation: None,
        }
    }

    /// Returns the model's file and the flags that decide how it is read: those of [`crate::compilation::open_asking`].
    pub(super) fn file(&self) -> (&Path, bool, &[String]) {
        let optimizer = &self.flags.optimizer;
        (&self.model, optimizer.untied, &optimizer.train_also)
    }

    /// Returns the number of ranks that share a batch.
    pub fn data_ranks(&self) -> u64 {
        self.flags.parallel.data_ranks()
    }

    /// Returns the node of the device, whose links are the costs of copies.
    pub fn node(&self) -> Node {
        fit::node_of(self.device(), self.cluster.as_ref())
    }

    /// Returns the device by whose times choices are made: the cluster's, or the job's own.
    pub fn device(&self) -> &Device {
        self.cluster.as_ref().map_or(&self.on.device, |cluster| &cluster.node.device)
    }

    /// Returns the memory that stages must fit into: that of `--memory`, or that of a GPU. Ranks on the processor share its memory, and its
    /// free part changes. So no program depends on the free part: a run compares its program with it.
    fn limit(&self) -> Option<MemoryLimit> {
        let On { target, multiprocessors, .. } = self.on;
        let is_described = self.on.is_known || self.cluster.is_some();
        let is_gpu = is_described && !target.is_host() && !targets::of(self.device().kind).is_host();
        let budget = self.flags.memory.device_budget();
        let bytes = budget.or_else(|| is_gpu.then_some(self.device().memory));
        bytes.map(|bytes| MemoryLimit { bytes, recomputes: budget.is_some(), target, multiprocessors })
    }

    /// Returns the options of all passes. `sizes` are those of the dims that the passes bind.
    pub(super) fn plan(&self, sizes: BTreeMap<String, u64>) -> CompilationPlan {
        let plan = CompilationPlan::new(sizes, &self.flags, self.steps).priced_on(self.device());
        let mut plan = self.cluster.iter().fold(plan, CompilationPlan::on_cluster);
        plan.batch.global = self.global_batch;
        plan.limit = self.limit();
        plan.optimizer.keep_gradients = self.keeps_gradients;
        plan
    }
}
