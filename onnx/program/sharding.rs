//! The layout of a program over devices, in the multi-device annotations of the standard.
//!
//! The mesh is one device configuration. A node has a sharding for each tensor that it reads or writes and that is split: along
//! each split dim the number of shards, and the devices in row-major order of the shards. Devices that hold the same shard form a
//! group with a negative number. The standard cannot express a value of which each device holds an addend; such a value is an
//! entry in the node's metadata, `trainyard.partial.NAME`.

use super::draft::{Draft, DraftNode, TensorId};
use super::finish::fact;
use crate::proto::{
    DeviceConfigurationProto, IntIntListEntryProto, NodeDeviceConfigurationProto, NodeProto, ShardedDimProto,
    ShardingSpecProto, SimpleShardedDimProto, SimpleShardedDimProtoDim,
};
use ir::{Diagnostic, EVERY_STAGE, Mesh, Module, PartialKind, Type};
use std::collections::BTreeMap;

/// The name of the configuration.
const MESH: &str = "mesh";

/// The most devices of a file. The list is limited because each tensor of each node names the devices that hold it.
const MOST_DEVICES: u64 = ir::interp::MOST_RANKS;

/// Returns the devices of a program; empty for a single device.
///
/// # Errors
/// The program has more than [`MOST_DEVICES`] devices.
pub(super) fn configuration(module: &Module) -> Result<Vec<DeviceConfigurationProto>, Diagnostic> {
    let count = module.ranks();
    if count == 1 {
        return Ok(vec![]);
    }
    if count > MOST_DEVICES {
        let message = format!("the program has {count} devices, and a file names at most {MOST_DEVICES}");
        return Err(Diagnostic::new(message).note("write the program for a smaller mesh"));
    }
    let device = |rank: u64| {
        let place = module.mesh.coordinates(module.place_in_mesh(rank));
        let stage = module.pipeline.as_ref().map(|_| format!("pp={}", rank / module.mesh.devices()));
        let axes = module.mesh.axes.iter().map(|(id, axis)| format!("{}={}", axis.name, place[id]));
        stage.into_iter().chain(axes).collect::<Vec<_>>().join(",")
    };
    let device = (0..count).map(device).collect();
    Ok(vec![DeviceConfigurationProto {
        name: Some(MESH.to_owned()),
        num_devices: Some(count as i32),
        device,
    }])
}

/// Returns the first rank of the devices that have a stage. Ranks are numbered by pipeline ranks.
fn first_rank(module: &Module, stage: u32) -> u64 {
    let pipeline_rank = module.pipeline.as_ref().and_then(|pipeline| pipeline.placement.get(stage as usize));
    pipeline_rank.map_or(0, |&rank| u64::from(rank) * module.mesh.devices())
}

/// Adds to a node the layouts of its tensors, and its stage.
pub(super) fn annotate(draft: &Draft, node: &DraftNode, names: &[String], message: &mut NodeProto) {
    let module = draft.module;
    let Some(origin) = node.node.map(|id| module.node(id)) else { return };
    let is_staged = module.pipeline.is_some() && origin.stage != EVERY_STAGE;
    // A node of every stage names the devices of the first pipeline rank.
    let first = first_rank(module, origin.stage);
    let tensors = node.inputs.iter().flatten().chain(&node.outputs);
    let mut specs: Vec<ShardingSpecProto> = Vec::new();
    for &tensor in tensors {
        let Some(ty) = draft.tensors[tensor.index()].ty.as_ref() else { continue };
        let name = &names[tensor.index()];
        if specs.iter().any(|spec| spec.tensor_name.as_ref() == Some(name)) {
            continue;
        }
        specs.extend(spec(&module.mesh, ty, name, first));
        message.metadata_props.extend(partial(&module.mesh, ty, tensor, names));
    }
    if is_staged || !specs.is_empty() {
        message.device_configurations = vec![NodeDeviceConfigurationProto {
            configuration_id: Some(MESH.to_owned()),
            sharding_spec: specs,
            pipeline_stage: is_staged.then_some(origin.stage as i32),
        }];
    }
}

/// Returns the sharding of a tensor, if it is split. `first` is the rank of the first device of its stage.
fn spec(mesh: &Mesh, ty: &Type, name: &str, first: u64) -> Option<ShardingSpecProto> {
    let split: Vec<usize> = (0..ty.ndim()).filter(|&dim| !ty.sharding.axes(dim).is_empty()).collect();
    if split.is_empty() {
        return None;
    }
    let shards = |dim: usize| mesh.size(ty.sharding.axes(dim));
    // The devices that hold each shard. Shards are numbered row-major through the split dims.
    let mut holders: BTreeMap<u64, Vec<i64>> = BTreeMap::new();
    for rank in 0..mesh.devices() {
        let shard =
            split.iter().fold(0, |shard, &dim| shard * shards(dim) + mesh.place(rank, ty.sharding.axes(dim)));
        holders.entry(shard).or_default().push((first + rank) as i64);
    }
    let is_replicated = holders.values().any(|devices| devices.len() > 1);
    let groups = |(shard, devices): (&u64, &Vec<i64>)| IntIntListEntryProto {
        key: Some(-1 - *shard as i64),
        value: devices.clone(),
    };
    Some(ShardingSpecProto {
        tensor_name: Some(name.to_owned()),
        device: if is_replicated {
            holders.keys().map(|shard| -1 - *shard as i64).collect()
        } else {
            holders.values().map(|devices| devices[0]).collect()
        },
        index_to_device_group_map: if is_replicated { holders.iter().map(groups).collect() } else { vec![] },
        sharded_dim: split.iter().map(|&dim| sharded(ty, dim, shards(dim))).collect(),
    })
}

fn sharded(ty: &Type, dim: usize, shards: u64) -> ShardedDimProto {
    let size = match ty.dims[dim].size() {
        Some(size) => SimpleShardedDimProtoDim::DimValue(size as i64),
        None => SimpleShardedDimProtoDim::DimParam(ty.dims[dim].to_string()),
    };
    ShardedDimProto {
        axis: Some(dim as i64),
        simple_sharding: vec![SimpleShardedDimProto { dim: Some(size), num_shards: Some(shards as i64) }],
    }
}

/// Returns the metadata of a partial value, of which each device holds an addend or a candidate.
fn partial(
    mesh: &Mesh,
    ty: &Type,
    tensor: TensorId,
    names: &[String],
) -> Option<crate::proto::StringStringEntryProto> {
    let (kind, axes) = ty.sharding.partial.as_ref()?;
    let kind = match kind {
        PartialKind::Sum => "sum",
        PartialKind::Max => "max",
        PartialKind::Min => "min",
    };
    let axes: Vec<&str> = axes.iter().map(|&axis| mesh.axes[axis].name.as_str()).collect();
    Some(fact(&format!("partial.{}", names[tensor.index()]), format!("{kind} over {}", axes.join("*"))))
}
