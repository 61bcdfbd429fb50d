//! Gradients at kinks and at other special points are those of PyTorch (docs/kinks.md).

use crate::archive;
use std::fs;
use testing::testdata;
use testing::verification::passing;

/// Files of the legacy exporter that are left out. They have no record of calls, and their gradients at kinks differ from PyTorch's.
const WITHOUT_RECORD: &[&str] = &["max(p,dim)/legacy.onnx", "std(p)/legacy.onnx"];

#[test]
fn gradients_at_kinks_are_pytorchs() {
    let archive = fs::read(testdata("kinks.tar.gz")).expect("the archive is there");
    let functions = archive::unpack(&archive).expect("the archive is whole");
    let mut compared = 0;
    for (function, files) in &functions {
        let folder = tempfile::tempdir().expect("a temporary folder can be made");
        for (name, content) in files {
            fs::write(folder.path().join(name), content).expect("the folder takes files");
        }
        let models = files.keys().filter(|name| name.ends_with(".onnx"));
        for model in models.filter(|model| !WITHOUT_RECORD.contains(&&*format!("{function}/{model}"))) {
            for mode in ["exact", "cpu"] {
                let flags =
                    format!("--against {} --mode {mode}", folder.path().join("reference.npz").display());
                passing(&folder.path().join(model), &flags);
                compared += 1;
            }
        }
    }
    assert_eq!(compared, 2 * 76, "models in the archive");
}
