//! Weight decay of norms and slopes whose tensors in the file have more dims than in the module. The step equals PyTorch's.

use super::*;
use checkpoint::TensorFile;
use std::collections::BTreeMap;

#[test]
fn norms_and_slopes_do_not_decay_whatever_dims_the_file_gives_them() {
    let step = std::fs::read(testing::testdata("decay/step.json")).expect("the step is there");
    let step: BTreeMap<String, Vec<f32>> = serde_json::from_slice(&step).expect("JSON");
    let place = Workplace::new(TRAINYARD);
    for model in ["dynamo", "unoptimized"] {
        place.succeed(&format!(
            "compile testdata/decay/{model}.onnx --train testdata/decay/data.npz --lr 0.1 --weight-decay 1 --steps 1 -o {model}"
        ));
        let trained =
            TensorFile::open(&place.path(&format!("{model}/model.safetensors"))).expect("a file of tensors");
        assert_eq!(trained.names().count(), step.len(), "{model}");
        for (name, expected) in &step {
            let bytes = trained
                .read(name)
                .expect("the file is whole")
                .unwrap_or_else(|| panic!("{model} has no {name}"));
            let found =
                bytes.chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().expect("four bytes")));
            let worst =
                found.zip(expected).map(|(found, expected)| (found - expected).abs()).fold(0.0, f32::max);
            assert!(bytes.len() == 4 * expected.len() && worst < 2e-5, "{model}: {name} is off by {worst}");
        }
    }
}
