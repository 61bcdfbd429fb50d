//! Chooses cuDNN's plan for a graph: the first engine configuration that cuDNN proposes which computes precisely enough and needs no
//! more than the allowed room.

use super::descriptors::{Descriptor, Handle, Value};
use super::functions::Functions;
use super::graphs::{Described, describe};
use crate::cudnn::Graph;
use crate::driver::DriverError;
use crate::gpu::Single;
use cudarc::cudnn::sys;
use std::sync::Arc;
use sys::cudnnBackendAttributeName_t as Name;
use sys::cudnnBackendDescriptorType_t as Kind;
use sys::cudnnBackendHeurMode_t as Mode;
use sys::cudnnBackendNumericalNote_t as Note;

/// A number above that of the configurations that cuDNN proposes at once.
const MOST_WAYS: usize = 128;

/// The device for which a graph is planned.
#[derive(Clone, Copy)]
pub(super) enum Target<'a> {
    /// The device of a handle.
    Here(&'a Handle),
    /// A device with these properties, which need not be here.
    #[cfg(test)]
    Told(&'a Descriptor),
}

/// A graph with the engine configuration that executes it.
pub(super) struct ExecutionPlan {
    pub(super) descriptor: Descriptor,
    /// The bytes of workspace.
    pub(super) workspace: u64,
    /// The descriptors from which it is made, which live as long.
    _made_from: (Described, Descriptor),
}

/// The descriptor that gets the device.
#[derive(Clone, Copy)]
enum For {
    Graph,
    Ways,
    Plan,
}

impl Target<'_> {
    fn tell(self, which: For, descriptor: &Descriptor) -> Result<(), DriverError> {
        let (name, value) = match (self, which) {
            (Self::Here(handle), For::Graph) => {
                (Name::CUDNN_ATTR_OPERATIONGRAPH_HANDLE, Value::Handle(handle))
            }
            // The graph already has the handle.
            (Self::Here(_), For::Ways) => return Ok(()),
            (Self::Here(handle), For::Plan) => {
                (Name::CUDNN_ATTR_EXECUTION_PLAN_HANDLE, Value::Handle(handle))
            }
            #[cfg(test)]
            (Self::Told(_), For::Graph) => return Ok(()),
            #[cfg(test)]
            (Self::Told(device), For::Ways) => {
                (Name::CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, Value::Descriptor(device))
            }
            #[cfg(test)]
            (Self::Told(device), For::Plan) => {
                (Name::CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, Value::Descriptor(device))
            }
        };
        descriptor.set(name, value)
    }
}

impl ExecutionPlan {
    /// Plans a graph, with at most this number of bytes of room.
    pub(super) fn new(
        functions: &Arc<Functions>,
        target: Target,
        graph: &Graph,
        single: Single,
        room: u64,
    ) -> Result<Self, DriverError> {
        let described = describe(functions, graph, |graph| target.tell(For::Graph, graph))?;
        let mut last = None;
        // First the configurations that cuDNN believes to be the fastest, then those that it has for everything.
        for mode in [Mode::CUDNN_HEUR_MODE_A, Mode::CUDNN_HEUR_MODE_FALLBACK] {
            for way in ways(functions, target, &described, mode)? {
                if !computes_well(&way, graph, single)? {
                    continue;
                }
                if let Some(bytes) = too_large(&way, room) {
                    last = Some(format!("it needs {bytes} additional bytes"));
                    continue;
                }
                // cuDNN may propose a configuration that it cannot run.
                match planned(functions, target, &way) {
                    Ok((descriptor, workspace)) if workspace <= room => {
                        return Ok(Self { descriptor, workspace, _made_from: (described, way) });
                    }
                    Ok((_, workspace)) => last = Some(format!("it needs {workspace} additional bytes")),
                    Err(error) => last = Some(error.to_string()),
                }
            }
        }
        let why = last.map_or_else(String::new, |why| format!(" ({why})"));
        Err(DriverError(format!("cuDNN has no plan for this graph{why}:\n{graph}")))
    }
}

/// Returns the configurations that cuDNN proposes, the best first.
fn ways(
    functions: &Arc<Functions>,
    target: Target,
    described: &Described,
    mode: Mode,
) -> Result<Vec<Descriptor>, DriverError> {
    let heuristics = Descriptor::new(functions, Kind::CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR)?;
    heuristics.set(Name::CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, Value::Descriptor(&described.graph))?;
    heuristics.set(Name::CUDNN_ATTR_ENGINEHEUR_MODE, Value::HeuristicMode(mode))?;
    target.tell(For::Ways, &heuristics)?;
    // cuDNN may have none for a graph, which is no error.
    let Ok(heuristics) = heuristics.finalize("ways") else { return Ok(vec![]) };
    let (name, kind) = (Name::CUDNN_ATTR_ENGINEHEUR_RESULTS, Kind::CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    heuristics.descriptors(name, kind, MOST_WAYS)
}

/// Whether a configuration gives the same numbers each time, and numbers as precise as f32.
fn computes_well(way: &Descriptor, graph: &Graph, single: Single) -> Result<bool, DriverError> {
    let (name, kind) = (Name::CUDNN_ATTR_ENGINECFG_ENGINE, Kind::CUDNN_BACKEND_ENGINE_DESCRIPTOR);
    let engines = way.descriptors(name, kind, 1)?;
    let Some(engine) = engines.first() else { return Ok(false) };
    let mut refused = vec![
        Note::CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC,
        Note::CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION,
        Note::CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS,
    ];
    if graph.multiplies_single() && single == Single::Full {
        // Tensor cores round f32; transforms lose digits.
        refused.extend([
            Note::CUDNN_NUMERICAL_NOTE_TENSOR_CORE,
            Note::CUDNN_NUMERICAL_NOTE_FFT,
            Note::CUDNN_NUMERICAL_NOTE_WINOGRAD,
            Note::CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_4x4,
            Note::CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_6x6,
            Note::CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_13x13,
        ]);
    }
    let notes = engine.notes()?;
    Ok(!refused.into_iter().any(|note| notes.contains(&(note as i32))))
}

/// Returns the workspace of a configuration in bytes, if it is known to exceed the room. Some configurations tell their workspace only
/// once they are planned, which may take a second.
fn too_large(way: &Descriptor, room: u64) -> Option<u64> {
    let bytes = way.integer(Name::CUDNN_ATTR_ENGINECFG_WORKSPACE_SIZE).ok()?;
    u64::try_from(bytes).ok().filter(|bytes| *bytes > room)
}

/// Returns the plan of a configuration, and the bytes of its workspace.
fn planned(
    functions: &Arc<Functions>,
    target: Target,
    way: &Descriptor,
) -> Result<(Descriptor, u64), DriverError> {
    let plan = Descriptor::new(functions, Kind::CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR)?;
    target.tell(For::Plan, &plan)?;
    plan.set(Name::CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, Value::Descriptor(way))?;
    let plan = plan.finalize("a plan")?;
    let workspace = plan.integer(Name::CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE)?;
    Ok((plan, u64::try_from(workspace).unwrap_or_default()))
}
