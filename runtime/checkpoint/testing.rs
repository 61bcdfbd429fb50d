//! A small state table and its values, for the tests of this folder.

use super::{Checkpoints, DataFingerprint, Description, StateBytes};
use data::DataPosition;
use ir::{DType, Initializer, Module, Role, Type};

pub(super) fn module_with(states: &[(&str, DType, &[u64])]) -> Module {
    let mut module = Module::new("tiny");
    for &(name, dtype, sizes) in states {
        let role = if dtype.is_float() { Role::Parameter } else { Role::Counter };
        module.add_state(name, Type::of(dtype, sizes), role, Initializer::Zeros);
    }
    module
}

/// Returns a module with states of wide, narrow and no elements, the wide ones last.
pub(super) fn module() -> Module {
    module_with(&[
        ("half", DType::BF16, &[3]),
        ("weight", DType::F32, &[2, 3]),
        ("empty", DType::F32, &[0, 4]),
        ("step", DType::I64, &[]),
    ])
}

pub(super) fn values(fill: u8) -> StateBytes {
    let sizes = [("half", 6), ("weight", 24), ("empty", 0), ("step", 8)];
    let value = |(name, size): (&str, usize)| {
        (name.to_owned(), (0..size).map(|i| fill.wrapping_add(i as u8)).collect::<Vec<_>>().into())
    };
    sizes.into_iter().map(value).collect()
}

pub(super) fn data() -> DataFingerprint {
    DataFingerprint { bytes: 64, hash: "0123456789abcdef".to_owned(), ..DataFingerprint::synthetic() }
}

pub(super) fn description(step: u64) -> Description {
    let (epoch, batch_in_epoch) = (step / 12, step % 12);
    let position = DataPosition {
        step,
        epoch,
        batch_in_epoch,
        samples: 100,
        global_batch: 8,
        seed: 7,
        labels_from: None,
    };
    Description::new(&module(), position, data())
}

/// Returns a folder with the checkpoints of these steps.
pub(super) fn saved(steps: &[u64]) -> (tempfile::TempDir, Checkpoints) {
    let folder = tempfile::tempdir().unwrap();
    let checkpoints = Checkpoints::new(&folder.path().join("checkpoints"));
    for &step in steps {
        checkpoints.save(&module(), &description(step), &values(step as u8)).unwrap();
    }
    (folder, checkpoints)
}
