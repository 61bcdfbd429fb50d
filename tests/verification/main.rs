//! `trainyard verify`: the compiled step of every kind of model, on one device and on meshes, equals the step of the untransformed graph,
//! and planted faults are found.

mod batch_norm;
mod compressed_activations;
mod dropout;
mod evaluation;
mod expert_faults;
mod experts;
mod mesh;
mod mesh_faults;
mod offload;
mod pairs;
mod random;
mod recurrent;
mod stages;
mod verify;

/// The binary.
const TRAINYARD: &str = env!("CARGO_BIN_EXE_trainyard");
