//! The passes that run, as data.
//!
//! A program is compiled in two halves: [`CompilationPlan::forward`] ends with the loss, and its program determines the
//! inputs of the model; [`CompilationPlan::training`] goes on to the whole step. The step is verified against
//! [`CompilationPlan::reference`]: the same model through as few passes as possible.

use crate::config;
use crate::config::memory::Tiers;
use crate::sizes;
use ir::machine::{Cluster, Device, Link};
use ir::{Axis, AxisRole, DType, Diagnostic, Mesh, Module};
use passes::Pipeline;
use passes::autodiff::Autodiff;
use passes::bind::Bind;
use passes::buckets::Buckets;
use passes::canonicalize::Canonicalize;
use passes::collectives::Collectives;
use passes::compress_activations::CompressActivations;
use passes::compress_gradients::CompressGradients;
use passes::delay::Delay;
use passes::dropout::Dropout;
use passes::fold::Fold;
use passes::hierarchy::Hierarchy;
use passes::initialize::Initialize;
use passes::loss::Loss;
use passes::moe::Moe;
use passes::offload::Offload;
use passes::optimizer::Optimizer;
use passes::parameters::{ParameterSpec, Parameters, Set};
use passes::precision::Precision;
use passes::recompute::Recompute;
use passes::registry::Pass;
use passes::reports::StageReport;
use passes::router_bias::RouterBias;
use passes::simplify::Simplify;
use passes::spmd::{AxisSize, Spmd};
use passes::stage::schedule::Schedule;
use passes::stage::{Stage, StageMemory};
use program::UpdateTime;
use program::{Multiprocessors, Target};
use std::collections::BTreeMap;

/// The options of all passes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CompilationPlan {
    /// Sizes of dims.
    pub bind: Bind,
    /// The dropout ratio.
    pub dropout: Dropout,
    /// The trained parameters.
    pub parameters: Parameters,
    /// The mixtures of experts that feed-forward blocks become.
    pub moe: Option<Moe>,
    /// The loss.
    pub loss: Loss,
    /// The weights before step 0, if they are not the file's.
    pub initialize: Option<Initialize>,
    /// The differentiation of a loss of several classes.
    pub autodiff: Autodiff,
    /// The optimizer.
    pub optimizer: Optimizer,
    /// The element types.
    pub precision: Precision,
    /// The form in which data ranks reduce gradients, if gradients are compressed.
    pub compress_gradients: Option<CompressGradients>,
    /// The stages of a pipeline. The number of microbatches is known when the loss is there: [`CompilationPlan::for_batch`].
    pub stage: Option<Stage>,
    /// The memory that the stages must fit into.
    pub limit: Option<MemoryLimit>,
    /// The delays of trained tensors and states by name, as an asynchronous schedule delays them. The reference has no stages, and reads
    /// the same versions.
    pub delays: Vec<(String, u32)>,
    /// Samples of a step, and the data ranks that share a microbatch.
    pub batch: Batch,
    /// The mesh of devices and the sharding; without axes, one device. In a pipeline, the mesh of a stage.
    pub spmd: Spmd,
    /// The price of kept activations; without it, backward repeats nothing.
    pub recompute: Option<Recompute>,
    /// The forms in which activations wait for backward.
    pub compress_activations: Option<CompressActivations>,
    /// The values that rest beside the device.
    pub offload: Option<Offload>,
    /// The nodes of the cluster between which reductions are divided.
    pub hierarchy: Option<Hierarchy>,
    /// The time of updates. No pass reads it: lowering does.
    pub update: UpdateTime,
}

/// The memory of each device, and the kind of device whose plans are measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryLimit {
    /// Bytes that the programs may take.
    pub bytes: u64,
    /// Whether activations may be computed again if a program is larger.
    pub recomputes: bool,
    /// The kind of the device.
    pub target: Target,
    /// The size of a GPU.
    pub multiprocessors: Multiprocessors,
}

/// The samples of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// Samples of a step; `None` for one microbatch.
    pub global: Option<u64>,
    /// The data ranks that share a microbatch.
    pub data_ranks: u64,
}

impl CompilationPlan {
    /// Makes the plan that flags ask for, with dims of these sizes. A schedule without a length of its own ends with the run's `steps`.
    pub fn new(sizes: BTreeMap<String, u64>, flags: &config::CompileFlags, steps: u64) -> Self {
        Self {
            bind: Bind { sizes },
            dropout: flags.optimizer.dropout(flags.seed.seed),
            parameters: Parameters {
                set: Set::Find,
                untied: flags.optimizer.untied,
                freeze: flags.optimizer.freeze.clone(),
                train_only: flags.optimizer.train_only.clone(),
            },
            moe: flags.experts.pass(flags.seed.seed),
            loss: flags.loss.pass(),
            initialize: flags.init.init.map(|rule| Initialize { rule }),
            autodiff: Autodiff::default(),
            optimizer: flags.optimizer.pass(steps),
            precision: flags.precision.pass(),
            compress_gradients: flags.parallel.compressed_gradients(),
            stage: flags.parallel.stage(),
            limit: None,
            delays: vec![],
            batch: Batch { global: None, data_ranks: flags.parallel.data_ranks() },
            spmd: flags.parallel.pass(),
            recompute: flags.memory.pass(),
            compress_activations: flags.memory.compressed_activations(),
            offload: flags.memory.tiers().filter(Tiers::is_fixed).map(|tiers| tiers.offload),
            update: flags.memory.update,
            hierarchy: None,
        }
    }

    /// The same plan, in which the times of a device decide choices.
    pub fn priced_on(mut self, device: &Device) -> Self {
        self.recompute = self.recompute.map(|recompute| recompute.on(device));
        let link = self.link_of_stages(device.link);
        self.stage = self.stage.map(|stage| stage.on(device).linked_by(link));
        self
    }

    /// The link between stages as the pass `stage` sees it, which prices all devices of a stage as one. Tensor ranks divide the work, but
    /// each of them sends the whole value, unless they divide the sequence.
    fn link_of_stages(&self, link: Link) -> Link {
        let tensor = self.spmd.mesh.iter().filter(|axis| Mesh::role(&axis.name) == Some(AxisRole::Tensor));
        let senders = if self.spmd.sequence_parallel { 1 } else { tensor.map(|axis| axis.size).product() };
        Link { bandwidth: link.bandwidth / senders as f64, ..link }
    }

    /// The same plan for the steps of a global batch, of a program that has its loss, with the schedule and the cut of its stages.
    /// `measured` has for each pipeline rank the bytes of its plan for 1024 bytes of an earlier estimate.
    ///
    /// # Errors
    /// A batch that is no whole number of microbatches; a program that cannot be cut into these stages.
    pub fn for_batch(
        mut self,
        forward: &Module,
        measured: &[u64],
    ) -> Result<(Self, Option<StageReport>), Diagnostic> {
        let Some(mut stage) = self.stage.take() else { return Ok((self, None)) };
        let Batch { global, data_ranks } = self.batch;
        let microbatches = sizes::microbatches(forward, global, data_ranks)?;
        let error =
            || Diagnostic::new(format!("a step of {microbatches} microbatches is too long for a pipeline"));
        stage.microbatches = u32::try_from(microbatches).map_err(|_| error())?;
        if !stage.at.is_empty() {
            // The cut was made before, for another batch.
            return Ok((Self { stage: Some(stage), ..self }, None));
        }
        stage.compute = self.precision.compute;
        stage.recompute = self.recompute.as_ref().map(|recompute| recompute.price);
        stage.memory = self.limit.map(|limit| self.memory_of_stages(limit.bytes, measured));
        let (stage, report) = stage.decided(forward)?;
        Ok((Self { stage: Some(stage), ..self }, Some(report)))
    }

    /// The bytes that weights and activations take on a device, as the passes after `stage` will divide them.
    fn memory_of_stages(&self, limit: u64, measured: &[u64]) -> StageMemory {
        let tensor = self.spmd.mesh.iter().filter(|axis| Mesh::role(&axis.name) == Some(AxisRole::Tensor));
        let (tensor, data): (u64, u64) =
            (tensor.map(|axis| axis.size).product(), self.batch.data_ranks.max(1));
        let is_half = self.precision.compute != DType::F32;
        let zero = self.spmd.zero;
        let sharded = |bytes: u64, from: u8| if zero >= from { bytes / data } else { bytes };
        // A weight that is read only through its cast is sharded like optimizer states, from stage 1 of ZeRO on.
        let weight = sharded(4096, if is_half { 1 } else { 3 });
        let cast = if is_half { sharded(2048, 3) } else { 0 };
        // A layer keeps 34 bytes for each element, of which 10 are in parts where hidden dims and heads are not divided (Korthikanti et
        // al., Reducing Activation Recomputation in Large Transformer Models, arXiv 2205.05198, section 4.2.1).
        let mib = 1 << 20;
        let whole =
            if self.spmd.sequence_parallel { mib / tensor } else { mib * (10 * tensor + 24) / (34 * tensor) };
        StageMemory {
            limit,
            weight: (weight + cast) / tensor,
            gradient: sharded(1024 * self.precision.grad_dtype.bytes(), 2) / tensor,
            optimizer: sharded(1024 * self.optimizer.algorithm.state_bytes(), 1) / tensor,
            activations: (whole / data).max(1),
            measured: measured.to_vec(),
        }
    }

    /// The same plan for the nodes of a cluster. An axis of data ranks that lies across several nodes, with several ranks in each, becomes
    /// two: `dp.nodes` between nodes and `dp.node` inside one. Then reductions can be divided.
    pub fn on_cluster(mut self, cluster: &Cluster) -> Self {
        let asked = |name: &str| {
            self.spmd.shard.iter().any(|rule| rule.dims.iter().flatten().any(|axis| axis == name))
        };
        let mut mesh = Mesh::default();
        for AxisSize { name, size } in &self.spmd.mesh {
            let role = Mesh::role(name).unwrap_or(AxisRole::Data);
            mesh.axes.push(Axis { name: name.clone(), role, size: *size });
        }
        if let Some(id) = mesh.find("dp").filter(|_| !asked("dp")) {
            let (size, in_node) = (mesh.axes[id].size, cluster.ranks_in_node(&mesh, &[id]));
            if (2..size).contains(&in_node) {
                let parts = [("dp.nodes", size / in_node), ("dp.node", in_node)];
                let parts = parts.map(|(name, size)| AxisSize { name: name.into(), size });
                let at = id.as_u32() as usize;
                self.spmd.mesh.splice(at..=at, parts);
            }
        }
        if let Some(stage) = self.stage.take() {
            let devices = mesh.devices().saturating_mul(stage.ranks.into());
            let link = self.link_of_stages(cluster.link_of_stages(devices));
            self.stage = Some(stage.linked_by(link));
        }
        self.hierarchy = Some(Hierarchy::of(cluster));
        self
    }

    /// Whether updates may run before all gradients are there.
    pub fn may_update_early(&self) -> bool {
        self.optimizer.clip.is_none() && self.precision.compute != DType::F16 && self.stage.is_none()
    }

    /// Refuses early updates if an update waits for all gradients anyway, and late updates if the schedule has none.
    pub(crate) fn check_update(&self) -> Result<(), Vec<Diagnostic>> {
        let clips = self.optimizer.clip.is_some().then(|| {
            Diagnostic::new("--update early cannot be used with --clip").note(
                "clipping multiplies each gradient by a factor that depends on all gradients; the norm that is reported \
                 needs no --clip",
            )
        });
        let scales = (self.precision.compute == DType::F16).then(|| {
            Diagnostic::new("--update early cannot be used with fp16").note(
                "fp16 scales the loss, and skips the update if any gradient is not finite; --bf16 needs no loss scale",
            )
        });
        let stages = self.stage.is_some().then(|| {
            Diagnostic::new("--update early cannot be used with the stages of a pipeline")
                .note("a stage has several microbatches at once; remove --update early")
        });
        let mut problems: Vec<Diagnostic> = match self.update {
            UpdateTime::Late => vec![],
            UpdateTime::Early => clips.into_iter().chain(scales).chain(stages).collect(),
        };
        problems.extend(self.asynchronous());
        if problems.is_empty() { Ok(()) } else { Err(problems) }
    }

    /// Problems of a schedule in which stages update their weights without waiting for other stages.
    fn asynchronous(&self) -> Vec<Diagnostic> {
        let schedule = self.stage.as_ref().and_then(|stage| stage.schedule).map(|choice| choice.schedule);
        let Some(schedule) = schedule.filter(|schedule| schedule.is_asynchronous()) else { return vec![] };
        let name = schedule.name();
        let clips = self.optimizer.clip.is_some().then(|| {
            Diagnostic::new(format!("--clip cannot be used with --schedule {name}")).note(
                "clipping needs the norm of all gradients, and a stage updates its weights before other stages have theirs; \
                 remove --clip, or use a synchronous schedule such as 1f1b",
            )
        });
        let scales = (self.precision.compute == DType::F16).then(|| {
            Diagnostic::new(format!("fp16 cannot be used with --schedule {name}")).note(
                "fp16 skips the update if a gradient of any stage is not finite, and a stage updates its weights before other \
                 stages have their gradients; --bf16 needs no loss scale, and synchronous schedules such as 1f1b take fp16",
            )
        });
        let biases = self.router_bias().map(|_| {
            Diagnostic::new(format!("--moe …,bias=X cannot be used with --schedule {name}")).note(
                "forward of the next step begins before the bias has moved; remove bias=X, which leaves the balance loss, or use a \
                 synchronous schedule such as 1f1b",
            )
        });
        let offload = self.offload.as_ref().map(|_| {
            Diagnostic::new(format!("--offload cannot be used with --schedule {name}")).note(
                "stages keep earlier versions of their weights on the device; use a synchronous schedule such as 1f1b",
            )
        });
        clips.into_iter().chain(scales).chain(biases).chain(offload).collect()
    }

    /// The passes from the import to the loss, and the weights before step 0.
    pub fn forward(&self) -> Pipeline {
        let mut forward = self.model();
        forward.passes.push(self.loss.clone().into());
        forward.passes.extend(self.initialize.map(Pass::from));
        forward
    }

    /// The passes from the import to the model with its parameters, before it has a loss.
    fn model(&self) -> Pipeline {
        let mut model = pipeline([
            self.bind.clone().into(),
            self.dropout.clone().into(),
            Fold.into(),
            Canonicalize::default().into(),
            self.parameters.clone().into(),
        ]);
        model.passes.extend(self.moe.clone().map(Pass::from));
        model
    }

    /// The pass that balances the experts of mixtures by a bias, if they have one.
    fn router_bias(&self) -> Option<Pass> {
        let rate = self.moe.as_ref().map_or(0.0, |moe| moe.routing.bias);
        (rate > 0.0).then(|| RouterBias { rate }.into())
    }

    /// The passes from the loss to the whole step.
    pub fn training(&self) -> Pipeline {
        let precision = (self.precision != Precision::default()).then(|| self.precision.clone().into());
        let devices: Vec<Pass> = if self.spmd.mesh.is_empty() {
            vec![]
        } else {
            [self.spmd.clone().into(), Collectives::default().into(), Buckets::default().into()]
                .into_iter()
                .chain(self.hierarchy.clone().map(Pass::from))
                .collect()
        };
        let update = self.router_bias().into_iter().chain(self.compress_gradients.map(Pass::from));
        let update = update.chain([self.optimizer.clone().into(), Simplify.into()]);
        let stage = self.stage.clone().map(Pass::from);
        let passes = stage.into_iter().chain([self.autodiff.clone().into()]);
        let passes = passes.chain(precision).chain(update).chain(devices);
        let passes = passes.chain(self.recompute.clone().map(Pass::from));
        let schedule = self.stage.as_ref().and_then(|stage| stage.schedule).map(|choice| choice.schedule);
        let is_delayed = schedule.is_some_and(Schedule::is_asynchronous);
        let passes = passes.chain(is_delayed.then(|| Delay { states: self.delays.clone() }.into()));
        let passes = passes.chain(self.compress_activations.clone().map(Pass::from));
        let passes = passes.chain(self.offload.clone().map(Pass::from));
        Pipeline { passes: passes.collect() }
    }

    /// Whether the states of the reference are those of the compiled program, and not the tensors of the file.
    pub fn reference_has_states(&self) -> bool {
        self.moe.is_some() || self.optimizer.algorithm.depends_on_cuts() || self.compress_gradients.is_some()
    }

    /// The passes that make the untransformed program's step, with the parameters of the compiled program.
    ///
    /// Feed-forward blocks are found in the canonical form of a model. So with mixtures of experts the reference has the canonical form and
    /// the compiled program's states. The same holds for an optimizer whose rule depends on the cut of the file's tensors into states, and
    /// for compressed gradients, whose factors depend on it. All other programs are compared with the file as it is.
    pub fn reference(&self, parameters: Vec<ParameterSpec>) -> Pipeline {
        let mut reference = self.reference_forward(parameters);
        reference.passes.push(Autodiff::default().into());
        reference.passes.extend(self.router_bias());
        reference.passes.extend(self.compress_gradients.map(Pass::from));
        reference.passes.push(Optimizer { reads_gradients: true, ..self.optimizer.clone() }.into());
        if !self.delays.is_empty() {
            reference.passes.push(Delay { states: self.delays.clone() }.into());
        }
        reference
    }

    /// The passes of [`Self::reference`] up to the loss, which is the part of a step that an evaluation needs.
    pub fn reference_forward(&self, parameters: Vec<ParameterSpec>) -> Pipeline {
        let mut reference = if self.reference_has_states() {
            self.model()
        } else {
            pipeline([
                self.bind.clone().into(),
                self.dropout.clone().into(),
                Fold.into(),
                self.given(parameters).into(),
            ])
        };
        reference.passes.push(self.loss.clone().into());
        reference
    }

    /// The same passes with the casts that the user asked for: a program whose rounding is that of the compiled program.
    pub fn rounded_reference(&self, parameters: Vec<ParameterSpec>) -> Pipeline {
        let mut reference = self.reference(parameters);
        if self.precision != Precision::default() {
            let reads_gradients =
                |pass: &Pass| matches!(pass, Pass::Optimizer(_) | Pass::CompressGradients(_));
            let first = reference.passes.iter().position(reads_gradients).unwrap_or(0);
            reference.passes.insert(first, self.precision.clone().into());
        }
        reference
    }

    /// Returns the fewest passes that turn a program into a whole step after `done` passes of
    /// [`CompilationPlan::forward`] and [`CompilationPlan::training`]. The search for a faulty pass uses it.
    pub fn rest(&self, done: usize, parameters: Vec<ParameterSpec>) -> Pipeline {
        let given: Pass = self.given(parameters).into();
        let mut all: Vec<Pass> =
            self.forward().passes.into_iter().chain(self.training().passes).skip(done).collect();
        // Blocks of experts are found, and states are cut, in the canonical form.
        let is_canonical = self.reference_has_states();
        all.retain(|pass| pass.is_needed() || is_canonical && matches!(pass, Pass::Canonicalize(_)));
        if is_canonical {
            return Pipeline { passes: all };
        }
        for pass in &mut all {
            if matches!(pass, Pass::Parameters(_)) {
                *pass = given.clone();
            }
        }
        Pipeline { passes: all }
    }

    fn given(&self, parameters: Vec<ParameterSpec>) -> Parameters {
        Parameters { set: Set::Only(parameters), ..Parameters::default() }
    }
}

fn pipeline<const N: usize>(passes: [Pass; N]) -> Pipeline {
    Pipeline { passes: passes.into() }
}
