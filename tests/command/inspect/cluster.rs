//! `--cluster`: the mesh on the links of a cluster, and the time of a step's collectives there.

use std::path::Path;

use serde_json::Value;

use super::{json, read};

const SMALL: &str = "models/gpt2.dynamo.onnx";

/// Writes a description of a cluster.
fn described(folder: &Path, text: &str) -> String {
    let path = folder.join("cluster.toml");
    std::fs::write(&path, text).expect("it is written");
    path.display().to_string()
}

/// `inspect --cluster` of the small model on four devices, as JSON.
fn priced(text: &str) -> Value {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = described(folder.path(), text);
    json(&[SMALL, "--mesh", "dp=2,tp=2", "--cluster", &path])["step"].clone()
}

#[test]
fn the_outermost_axis_lies_between_nodes_and_every_byte_is_priced() {
    let step = priced("preset = 'h100'\nnodes = 2\n[node]\ndevices = 2\n");
    let cluster = &step["cluster"];
    assert_eq!(cluster["axes"][0]["link"], "nodes");
    assert_eq!(cluster["axes"][1]["link"], "devices of a node");
    let priced = cluster["collectives"].as_array().expect("they are a list");
    let sum = |key: &str| priced.iter().filter_map(|one| one[key].as_f64()).sum::<f64>();
    assert_eq!(Some(sum("bytes")), step["mesh"]["communication"]["bytes"].as_f64());
    let total = cluster["collectives_ms"].as_f64().expect("it is a number");
    assert!((sum("ms") - total).abs() < 1e-9 && total > 0.0, "{total}");
}

#[test]
fn slower_links_make_longer_collectives() {
    let time = |text: &str| priced(text)["cluster"]["collectives_ms"].as_f64().expect("it is a number");
    let one_node = time("preset = 'h100'\n");
    let two_nodes = time("preset = 'h100'\nnodes = 2\n[node]\ndevices = 2\n");
    let slow = time("preset = 'h100'\nnodes = 2\n[node]\ndevices = 2\n[network]\nlatency = 1e-3\n");
    assert!(one_node < two_nodes && two_nodes < slow, "{one_node} {two_nodes} {slow}");
}

#[test]
fn a_cluster_is_described_in_words() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = described(folder.path(), "preset = 'a100'\nnodes = 2\n[node]\ndevices = 2\n");
    let text = read(&[SMALL, "--mesh", "dp=2,tp=2", "--cluster", &path]);
    let expected = [
        "\na cluster of 2 nodes with 2 A100 SXM 80 GB each: 1.6 kW, 13.72 dollars per hour\n",
        "\n  between devices of a node       252.0 GB/s     1.0 µs\n",
        "\n  between nodes                    21.0 GB/s     5.0 µs\n",
        "\n  axis dp=2 lies between nodes\n",
        "\n  axis tp=2 lies between devices of a node\n",
        "\n  collectives take ",
        "\n    forward   all_reduce ",
    ];
    for expected in expected {
        assert!(text.contains(expected), "no `{expected}` in\n{text}");
    }
}

#[test]
fn data_ranks_in_several_nodes_reduce_inside_them_first() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let of_nodes = |devices: u64| {
        let path =
            described(folder.path(), &format!("preset = 'h100'\nnodes = 4\n[node]\ndevices = {devices}\n"));
        json(&[SMALL, "--mesh", "dp=4", "--cluster", &path])["step"]["cluster"].clone()
    };
    let divided = of_nodes(2);
    let axes: Vec<_> = [0, 1]
        .map(|axis| (divided["axes"][axis]["name"].clone(), divided["axes"][axis]["link"].clone()))
        .into();
    let expected = [("dp.nodes", "nodes"), ("dp.node", "devices of a node")];
    assert_eq!(axes, expected.map(|(name, link)| (Value::from(name), Value::from(link))));
    let sent =
        |cluster: &Value, link: usize| cluster["sent"][link]["bytes"].as_u64().expect("it is a number");
    // A ring over all four devices sends 2 · 3/4 of each gradient. If the reduction is divided, a device sends half of a gradient in each
    // part.
    let [whole, alone] = [of_nodes(1), of_nodes(4)];
    assert_eq!((sent(&whole, 0), sent(&alone, 1)), (0, 0));
    assert_eq!(sent(&alone, 0), sent(&whole, 1));
    assert!(sent(&divided, 1) * 2 < sent(&whole, 1), "{divided} {whole}");
}

#[test]
fn the_collectives_of_a_pipeline_are_those_of_its_slowest_rank() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = described(folder.path(), "preset = 'h100'\nnodes = 4\n[node]\ndevices = 2\n");
    let flags = ["--mesh", "dp=2,tp=2,pp=2", "--schedule", "1f1b", "--global-batch", "8", "--cluster", &path];
    let step = json(&[&[SMALL], &flags[..]].concat())["step"].clone();
    let (mesh, cluster) = (&step["mesh"], &step["cluster"]);
    assert_eq!(mesh["devices"], 8);
    let axes = cluster["axes"].as_array().expect("they are a list").iter();
    let axes: Vec<[&str; 2]> =
        axes.map(|axis| ["name", "link"].map(|key| axis[key].as_str().expect("text"))).collect();
    assert_eq!(axes, [["pp", "nodes"], ["dp", "nodes"], ["tp", "devices of a node"]]);
    let rank = cluster["pipeline_rank"].as_u64().expect("it is a number") as usize;
    let sent = |rank: usize| mesh["pipeline_ranks"][rank]["communication"]["bytes"].as_u64().expect("bytes");
    let of_cluster = cluster["collectives"].as_array().expect("they are a list").iter();
    let of_cluster: u64 = of_cluster.filter_map(|one| one["bytes"].as_u64()).sum();
    assert_eq!(of_cluster, sent(rank));
    assert!(sent(0) > 0 && sent(1) > 0, "{mesh}");
}

#[test]
fn a_mesh_larger_than_the_cluster_and_a_faulty_description_are_refused() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let refused = |text: &str| {
        let path = described(folder.path(), text);
        read(&[SMALL, "--mesh", "dp=16", "--cluster", &path])
    };
    let larger = refused("preset = 'h100'\n");
    assert!(
        larger.contains(
            "the mesh dp=16, 16 ranks is larger than the cluster, which has 8 devices: 1 node of 8 devices"
        ),
        "{larger}"
    );
    let faulty = refused("preset = 'h100'\nnods = 2\n[nett]\n");
    for expected in ["unknown key `nods`", "key is `nodes`", "unknown key `nett`"] {
        assert!(faulty.contains(expected), "no `{expected}` in\n{faulty}");
    }
}

#[test]
fn a_device_is_read_from_a_file_and_a_processor_is_predicted_by_its_own_kernels() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path =
        described(folder.path(), "preset = 'h200'\nname = 'half an H200'\nmemory-bandwidth = 2.4e12\n");
    let step = |target: &str| json(&[SMALL, "--microbatch", "64", "--target", target])["prediction"].clone();
    let (half, whole, processor) = (step(&path), step("h200"), step("cpu"));
    assert_eq!(half["device"], "half an H200");
    let ms = |step: &Value| step["step_ms"].as_f64().expect("it is a number");
    assert!(
        ms(&half) > ms(&whole) && ms(&processor) > 10.0 * ms(&whole),
        "{} {} {}",
        ms(&half),
        ms(&whole),
        ms(&processor)
    );
    let kinds = processor["kinds"].as_array().expect("they are a list");
    assert!(kinds.iter().any(|kind| kind["kind"] == "contract"), "{kinds:?}");
    // The processor has one queue, so each command waits for the command before it.
    assert!((ms(&processor) - processor["in_turn_ms"].as_f64().expect("it is a number")).abs() < 1e-6);
}

/// The prediction of the small model on four devices of two nodes, as JSON.
fn predicted(text: &str) -> Value {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = described(folder.path(), text);
    json(&[SMALL, "--mesh", "dp=2,tp=2", "--cluster", &path])["prediction"].clone()
}

#[test]
fn a_step_on_a_cluster_has_collectives_that_are_not_hidden_and_a_price() {
    let cluster = "preset = 'a100'\nnodes = 2\n[node]\ndevices = 2\n";
    let fast = predicted(cluster);
    let exchanges = fast["exchanges"].as_array().expect("they are a list");
    assert!(
        exchanges.iter().any(|one| one["axes"][0] == "tp")
            && exchanges.iter().any(|one| one["axes"][0] == "dp")
    );
    for one in exchanges {
        let [ms, open] = ["ms", "not_hidden_ms"].map(|key| one[key].as_f64().expect("it is a number"));
        assert!(ms > 0.0 && open <= ms * (1.0 + 1e-9), "{one}");
    }
    let number = |of: &Value, key: &str| of[key].as_f64().expect("it is a number");
    // Four A100, each with 400 W and 3.43 dollars per hour.
    let seconds = number(&fast, "step_ms") / 1e3;
    assert!((number(&fast, "joules") / (1600.0 * seconds) - 1.0).abs() < 1e-9);
    assert!((number(&fast, "dollars") / (4.0 * 3.43 / 3600.0 * seconds) - 1.0).abs() < 1e-9);
    let slow = predicted(&format!("{cluster}[network]\nbandwidth = 1e6\n"));
    assert!(number(&slow, "step_ms") > 2.0 * number(&fast, "step_ms"));
}

#[test]
fn the_classes_of_memory_are_all_of_it() {
    let found = predicted("preset = 'a100'\n");
    let classes = found["memory"].as_object().expect("it is a table");
    let total: u64 = classes.values().filter_map(Value::as_u64).sum();
    assert_eq!(Some(total), found["planned"].as_u64());
    for class in ["parameters", "optimizer", "activations"] {
        assert!(classes[class].as_u64() > Some(0), "{class}");
    }
}

#[test]
fn gradients_and_activations_are_counted_by_their_formulas() {
    let memory = |flags: &[&str]| {
        json(&[&[SMALL, "--target", "a100"], flags].concat())["prediction"]["memory"].clone()
    };
    let bytes = |memory: &Value, class: &str| memory[class].as_u64().expect("a number of bytes");
    // With two microbatches, all gradients are summed in buffers as large as the parameters. AdamW has two states for each parameter.
    let summed = memory(&["--global-batch", "4"]);
    let parameters = bytes(&summed, "parameters");
    let is_near = |size: u64, expected: u64| size.abs_diff(expected) < expected / 100;
    assert!(is_near(bytes(&summed, "gradients"), parameters), "{summed}");
    assert!(is_near(bytes(&summed, "optimizer"), 2 * parameters), "{summed}");
    // A batch of 64 keeps much more than its gradients, and twice as much as a batch of 32.
    let [half, whole] = ["32", "64"].map(|batch| bytes(&memory(&["--microbatch", batch]), "activations"));
    assert!(is_near(whole, 2 * half) && half > parameters, "{half} {whole} {parameters}");
}

#[test]
fn a_program_that_is_larger_than_the_memory_of_the_device_is_warned_of() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = described(folder.path(), "preset = 'a100'\nmemory = 1048576\n");
    let text = read(&[SMALL, "--target", &path]);
    assert!(text.contains("warning: the program takes ") && text.contains("has 1.00 MiB"), "{text}");
    assert!(text.contains("--memory 1MiB computes activations again"), "{text}");
}
