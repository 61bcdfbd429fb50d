//! Parallelism: the mesh of devices, and the tensors that are split over it.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;
use ir::machine::Cluster;
use ir::{AxisRole, Diagnostic, Mesh};
use passes::compress_gradients::{CompressGradients, Method};
use passes::spmd::{AxisSize, Shard, Spmd};
use passes::stage::Stage;
use passes::stage::schedule::ScheduleChoice;
use serde::Serialize;

use super::machine::read_cluster;
use super::nearest::nearest;
use super::shapes::positive_count;
use super::value::{LARGEST_COUNT, ValueError, as_optional_text, as_texts, count_from, serialize_as_text};

/// Flags of the mesh.
#[derive(Args, Clone, Debug, Default, PartialEq, Serialize)]
#[command(next_help_heading = "Parallel")]
#[serde(rename_all = "kebab-case")]
pub struct Parallel {
    /// Mesh of devices, as axes with their sizes, outermost first: pp splits the layers into stages; dp splits the batch; ep splits the batch, and the
    /// experts of a model with experts; tp splits hidden dims, heads and the vocabulary; a suffix distinguishes axes of one kind (dp.outer=2,dp.inner=4) [default: one device]
    #[arg(long, value_name = "AXIS=SIZE,…")]
    pub mesh: Option<MeshAxes>,
    /// ZeRO stage: 1 shards the optimizer states over the data ranks, 2 also the gradients, 3 also the parameters
    #[arg(long, value_name = "0..3", default_value_t = 0, value_parser = zero)]
    pub zero: u64,
    /// Split the sequence over tp in the parts of the model where hidden dims and heads are not split
    #[arg(long)]
    pub sequence_parallel: bool,
    /// Schedule of the pipeline's stages: gpipe, 1f1b, interleaved, zb-h1, zb-v or dualpipev; pipedream or 2bw, which read weights of
    /// earlier updates and never flush; :chunks=V gives each pipeline rank V stages; auto takes the one of the first six that is predicted
    /// to be the fastest within memory [default: auto]
    #[arg(long, value_name = "NAME[:chunks=V]")]
    pub schedule: Option<ScheduleFlag>,
    /// Begin a stage of the pipeline at the first node that matches the glob, by its name in the file or by the name of a parameter that
    /// it reads (`*.h.6.*`); may be repeated, once for each stage but the first [default: stages that take equal times]
    #[arg(long, value_name = "PATTERN")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cut: Vec<String>,
    /// Split the parameters whose name matches the glob; DIMS has an axis, several axes (dp*tp) or none (-) for each dim of
    /// the file's tensor; may be repeated
    #[arg(long, value_name = "PATTERN=DIMS", value_parser = shard)]
    #[serde(skip_serializing_if = "Vec::is_empty", serialize_with = "as_texts")]
    pub shard: Vec<Shard>,
    /// Reduce gradients over dp in another form, and make up for the errors in later steps: powersgd with [:rank=N,min-rate=X], two factors of
    /// N columns in place of each matrix that has more than X times their elements; or bf16 [default: powersgd has rank=4,min-rate=1]
    #[arg(long, value_name = "METHOD[:KEY=X,…]")]
    #[serde(serialize_with = "as_optional_text")]
    pub compress_gradients: Option<Method>,
    /// The cluster, as FILE.toml describes it: the mesh is laid on its links, outermost axes between nodes, and reductions over several
    /// nodes are divided where that is faster. inspect predicts a step on it
    #[arg(long, value_name = "FILE.toml")]
    pub cluster: Option<PathBuf>,
    /// Seconds that a rank waits for other ranks, or for its GPU, before the run ends
    #[arg(long, value_name = "SECONDS", default_value_t = 600, value_parser = positive_count)]
    pub timeout: u64,
}

fn zero(text: &str) -> Result<u64, ValueError> {
    text.parse().ok().filter(|stage| *stage <= 3).ok_or_else(|| {
        ValueError::new(format!(
            "`{text}` is not a ZeRO stage: 0, 1 (optimizer states are sharded), 2 (gradients too) or 3 \
             (parameters too)"
        ))
    })
}

/// `dp=2,tp=2`: axes and their sizes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MeshAxes(Vec<(String, u64)>);

/// The names of axes, without suffixes.
const AXES: [&str; 5] = ["dp", "tp", "pp", "ep", "cp"];

impl MeshAxes {
    /// The axes with their sizes, outermost first.
    pub fn axes(&self) -> impl Iterator<Item = &(String, u64)> {
        self.0.iter()
    }

    /// Adds an axis of data ranks as the outermost axis if the mesh has no data axis, so that the mesh has `ranks` ranks.
    pub fn open_to(&mut self, ranks: u64) {
        let is_data = |(name, _): &(String, u64)| Mesh::role(name) == Some(AxisRole::Data);
        let others: u64 = self.0.iter().map(|(_, size)| size).product();
        if !self.0.iter().any(is_data) && ranks.is_multiple_of(others) {
            self.0.insert(0, ("dp".to_owned(), ranks / others));
        }
    }
}

/// Splits `text` at its commas into axes and sizes.
impl FromStr for MeshAxes {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let mut axes: Vec<(String, u64)> = Vec::new();
        for item in text.split(',') {
            let Some((name, size)) = item.split_once('=') else {
                return Err(ValueError::new(format!("`{item}` is not of the form axis=size, such as dp=2")));
            };
            known_axis(name)?;
            let size =
                count_from(1, size).map_err(|error| ValueError::new(format!("axis `{name}`: {error}")))?;
            if let Some((_, other)) = axes.iter().find(|(other, _)| other == name) {
                return Err(ValueError::new(format!(
                    "axis `{name}` is given twice: with {other} and with {size} devices; suffixes distinguish \
                     two axes: {name}.outer, {name}.inner"
                )));
            }
            axes.push((name.to_owned(), size));
        }
        let devices = axes.iter().try_fold(1u64, |devices, (_, size)| devices.checked_mul(*size));
        match devices.filter(|devices| *devices <= LARGEST_COUNT) {
            Some(_) => Ok(Self(axes)),
            None => Err(ValueError::new(format!("the mesh has more than {LARGEST_COUNT} devices"))),
        }
    }
}

/// Refuses a name that is not the name of an axis, and suggests the nearest name that is.
fn known_axis(name: &str) -> Result<(), ValueError> {
    let is_word = |part: &str| {
        !part.is_empty() && part.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_')
    };
    if Mesh::role(name).is_some() && name.split('.').all(is_word) {
        return Ok(());
    }
    let near = nearest(name.split('.').next().unwrap_or_default(), AXES).unwrap_or_default();
    Err(ValueError::new(format!(
        "`{name}` is not an axis; axes are {}, each also with a suffix (dp.outer); the nearest is `{near}`",
        AXES.join(", ")
    )))
}

impl fmt::Display for MeshAxes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let axes: Vec<String> = self.0.iter().map(|(name, size)| format!("{name}={size}")).collect();
        f.write_str(&axes.join(","))
    }
}

/// Reads the sharding of the parameters that a pattern matches, over axes that a mesh may have.
fn shard(text: &str) -> Result<Shard, ValueError> {
    let shard: Shard = text.parse().map_err(ValueError::new)?;
    shard.dims.iter().flatten().try_for_each(|axis| known_axis(axis))?;
    Ok(shard)
}

/// The schedule that the user asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScheduleFlag {
    /// The synchronous schedule that is predicted to be the fastest within memory.
    Auto,
    /// A schedule by its name.
    Named(ScheduleChoice),
}

/// The name of [`ScheduleFlag::Auto`].
const AUTO: &str = "auto";

impl FromStr for ScheduleFlag {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        match text {
            AUTO => Ok(Self::Auto),
            _ => text
                .parse()
                .map(Self::Named)
                .map_err(|error| ValueError::new(format!("{error}; `{AUTO}` chooses a synchronous one"))),
        }
    }
}

impl fmt::Display for ScheduleFlag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Named(schedule) => schedule.fmt(f),
            Self::Auto => f.write_str(AUTO),
        }
    }
}

serialize_as_text!(MeshAxes, ScheduleFlag);

impl Parallel {
    /// The axes of more than one device with their sizes, outermost first. Empty on one device.
    pub fn axes(&self) -> Vec<(String, u64)> {
        self.named().filter(|(_, size)| *size > 1).cloned().collect()
    }

    /// The axes of a stage.
    fn axes_of_stage(&self) -> Vec<(String, u64)> {
        let mut axes = self.axes();
        axes.retain(|(name, _)| Mesh::role(name) != Some(AxisRole::Pipeline));
        axes
    }

    /// The number of pipeline ranks.
    pub fn pipeline_ranks(&self) -> u64 {
        self.along(|role| role == AxisRole::Pipeline)
    }

    /// The pass that cuts the model into stages, if the mesh has several. The number of microbatches is not known yet.
    pub fn stage(&self) -> Option<Stage> {
        let ranks = u32::try_from(self.pipeline_ranks()).unwrap_or(u32::MAX);
        let schedule = match self.schedule {
            Some(ScheduleFlag::Named(schedule)) => Some(schedule),
            Some(ScheduleFlag::Auto) | None => None,
        };
        (ranks > 1).then(|| Stage { cuts: self.cut.clone(), ..Stage::new(ranks, schedule) })
    }

    /// The number of devices that share the batch: the devices along data axes and expert axes.
    pub fn data_ranks(&self) -> u64 {
        self.along(|role| matches!(role, AxisRole::Data | AxisRole::Expert))
    }

    /// The number of devices.
    pub fn ranks(&self) -> u64 {
        self.along(|_| true)
    }

    /// The number of devices along the axes of some roles.
    fn along(&self, is_counted: impl Fn(AxisRole) -> bool) -> u64 {
        let counted = self.named().filter(|(name, _)| Mesh::role(name).is_some_and(&is_counted));
        counted.map(|(_, size)| size).product()
    }

    /// The user's shardings of parameters, without axes of one device.
    pub fn rules(&self) -> Vec<Shard> {
        let axes = self.axes();
        let splits = |axis: &String| axes.iter().any(|(name, _)| name == axis);
        let mut rules = self.shard.clone();
        rules.iter_mut().flat_map(|rule| &mut rule.dims).for_each(|dim| dim.retain(splits));
        rules
    }

    /// The pass that these flags ask for.
    pub fn pass(&self) -> Spmd {
        let axis = |(name, size)| AxisSize { name, size };
        Spmd {
            mesh: self.axes_of_stage().into_iter().map(axis).collect(),
            zero: self.zero as u8,
            sequence_parallel: self.sequence_parallel,
            shard: self.rules(),
        }
    }

    /// The pass that compresses gradients, if `--compress-gradients` is given.
    pub fn compressed_gradients(&self) -> Option<CompressGradients> {
        self.compress_gradients.map(|method| CompressGradients { method, ranks: self.data_ranks() })
    }

    /// The cluster of `--cluster`, if the mesh has one.
    ///
    /// # Errors
    /// A faulty description; a mesh that is larger than the cluster.
    pub fn cluster(&self) -> Result<Option<Cluster>, Vec<Diagnostic>> {
        self.cluster_for(self.ranks(), &self.described().unwrap_or_default())
    }

    /// As [`Self::cluster`], for a mesh of so many ranks.
    ///
    /// # Errors
    /// As [`Self::cluster`].
    pub fn cluster_for(&self, ranks: u64, mesh: &str) -> Result<Option<Cluster>, Vec<Diagnostic>> {
        let Some(path) = &self.cluster else { return Ok(None) };
        let cluster = read_cluster(path)?;
        let devices = cluster.devices();
        if ranks > devices {
            let nodes =
                if cluster.nodes == 1 { "1 node".to_owned() } else { format!("{} nodes", cluster.nodes) };
            let error = Diagnostic::new(format!(
                "the mesh {mesh} is larger than the cluster, which has {devices} devices: {nodes} of {} devices",
                cluster.node.devices
            ));
            let error = error.at(path.display().to_string());
            return Err(vec![error.note("give a smaller mesh, or more nodes in the description")]);
        }
        Ok(Some(cluster))
    }

    /// The mesh for people: `dp=2 x tp=2, 4 ranks`; `None` on one device.
    pub fn described(&self) -> Option<String> {
        let axes = self.axes();
        let ranks = self.ranks();
        let axes: Vec<String> = axes.iter().map(|(name, size)| format!("{name}={size}")).collect();
        (!axes.is_empty()).then(|| format!("{}, {ranks} ranks", axes.join(" x ")))
    }

    /// The axes as they were given, axes of one device included.
    fn named(&self) -> impl Iterator<Item = &(String, u64)> {
        self.mesh.iter().flat_map(MeshAxes::axes)
    }

    fn has(&self, role: AxisRole) -> bool {
        self.named().any(|(name, _)| Mesh::role(name) == Some(role))
    }

    /// Every rule between these flags that they break.
    pub fn check(&self) -> Vec<Diagnostic> {
        let mut problems: Vec<Diagnostic> = self.named().filter_map(not_yet).collect();
        if self.zero > 0 && !self.has(AxisRole::Data) && !self.has(AxisRole::Expert) {
            let says = format!("--zero {} shards states over data ranks", self.zero);
            problems.push(self.lacks(&says, "data axis", "add a data axis: --mesh dp=2; or remove --zero"));
        }
        if self.sequence_parallel && !self.has(AxisRole::Tensor) {
            let says = "--sequence-parallel splits the sequence over tp";
            let note = "add a tensor axis: --mesh tp=2; or remove --sequence-parallel";
            problems.push(self.lacks(says, "tensor axis", note));
        }
        problems.extend(self.compression());
        problems.extend(self.pipeline());
        problems.extend(self.shard.iter().filter_map(|rule| self.unknown_axis(rule)));
        problems
    }

    /// The error for flags that need an axis which the mesh does not have.
    fn lacks(&self, says: &str, axis: &str, note: &str) -> Diagnostic {
        Diagnostic::new(format!("{says}, and {} no {axis}", self.mesh_has())).note(note)
    }

    /// Rules of the compression of gradients.
    fn compression(&self) -> Vec<Diagnostic> {
        let Some(method) = self.compress_gradients else { return vec![] };
        let flag = format!("--compress-gradients {method}");
        let mut problems = vec![];
        let data = |(name, size): &(String, u64)| Mesh::role(name) == Some(AxisRole::Data) && *size > 1;
        if !self.named().any(data) {
            let says = format!("{flag} compresses what data ranks reduce");
            let axis = "data axis of more than one device";
            let note = "add a data axis: --mesh dp=2; or remove --compress-gradients";
            problems.push(self.lacks(&says, axis, note));
        }
        let is_other = |(name, _): &(String, u64)| {
            matches!(Mesh::role(name), Some(AxisRole::Expert | AxisRole::Pipeline))
        };
        problems.extend(self.axes().into_iter().filter(is_other).map(|(name, size)| {
            let error = Diagnostic::new(format!("{flag} cannot be used with --mesh {name}={size} yet"));
            error.note("use dp and tp axes, or remove --compress-gradients")
        }));
        if self.zero > 0 {
            let error = Diagnostic::new(format!("{flag} cannot be used with --zero {}", self.zero));
            problems.push(error.note(
                "ZeRO gathers whole weights over the same ranks, which sends what the compression saves; remove either",
            ));
        }
        problems
    }

    /// Rules of the pipeline.
    fn pipeline(&self) -> Vec<Diagnostic> {
        let is_stages = |(name, _): &&(String, u64)| Mesh::role(name) == Some(AxisRole::Pipeline);
        let mut problems = vec![];
        let axes: Vec<&str> = self.named().filter(is_stages).map(|(name, _)| name.as_str()).collect();
        if axes.len() > 1 {
            let message =
                format!("a mesh has one axis of stages, and there are {}: {}", axes.len(), axes.join(", "));
            problems.push(Diagnostic::new(message).note("give one axis: --mesh pp=4"));
        }
        let given = [("--schedule", self.schedule.is_some()), ("--cut", !self.cut.is_empty())];
        let given: Vec<&str> =
            given.iter().filter(|(_, is_given)| *is_given).map(|(flag, _)| *flag).collect();
        if self.pipeline_ranks() == 1 && !given.is_empty() {
            let flags = given.join(" and ");
            let says = format!("{flags} needs the stages of a pipeline");
            let note = format!("add the axis: --mesh pp=2; or remove {flags}");
            problems.push(self.lacks(&says, "axis of stages", &note));
        }
        let splits = |rule: &&Shard| rule.dims.iter().flatten().any(|axis| axes.contains(&axis.as_str()));
        problems.extend(self.shard.iter().filter(splits).map(|rule| {
            Diagnostic::new(format!("--shard '{rule}': the stages of a pipeline split no tensor"))
                .note("--cut says where a stage begins")
        }));
        problems
    }

    fn mesh_has(&self) -> String {
        match &self.mesh {
            Some(mesh) => format!("the mesh {mesh} has"),
            None => "without --mesh there is".to_owned(),
        }
    }

    /// A rule that names an axis which the mesh does not have.
    fn unknown_axis(&self, rule: &Shard) -> Option<Diagnostic> {
        let known: Vec<&str> = self.named().map(|(name, _)| name.as_str()).collect();
        let axis = rule.dims.iter().flatten().find(|axis| !known.contains(&axis.as_str()))?;
        let error = Diagnostic::new(format!("--shard '{rule}': {} no axis `{axis}`", self.mesh_has()));
        Some(match nearest(axis, known) {
            Some(near) => error.note(format!("the nearest is `{near}`")),
            None => error.note(format!("add the axis: --mesh {axis}=2")),
        })
    }
}

/// Axes that are known and cannot be used yet.
fn not_yet((name, size): &(String, u64)) -> Option<Diagnostic> {
    let what = match Mesh::role(name)? {
        AxisRole::Data | AxisRole::Tensor | AxisRole::Pipeline | AxisRole::Expert => return None,
        AxisRole::Context => "context parallelism",
    };
    (*size > 1).then(|| {
        Diagnostic::new(format!("--mesh {name}={size}: {what} is not supported yet"))
            .note(format!("only dp, tp, pp and ep can have more than one device; {name}=1 is accepted"))
    })
}
