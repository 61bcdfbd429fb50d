//! Random flags of a compilation, from lists that several test files draw from.

use ir::random::philox;

/// Flags that change the numbers: the run on one device has them too.
const SHARED: [&[&str]; 4] = [
    &["", "", "--bf16", "--fp16 --loss-scale 128"],
    &[
        "--optimizer sgd",
        "--optimizer momentum",
        "--optimizer adamw",
        "--optimizer adafactor",
        "--optimizer lion",
        "--optimizer adagrad:eps=1e-4",
        "--optimizer adam:moments=8bit",
        "--optimizer adam:moments=bf16",
    ],
    &["", "", "--clip 0.1"],
    &["", "", "--weight-decay 0.1", "--weight-decay 0.1 --decay matrices"],
];

/// Meshes, each with the number of its data ranks.
pub const MESHES: [(&str, u64); 13] = [
    ("", 1),
    ("dp=2", 2),
    ("dp=4", 4),
    ("tp=2", 1),
    ("tp=2,dp=2", 2),
    ("pp=2", 1),
    ("pp=3", 1),
    ("pp=2,dp=2", 2),
    ("pp=2,tp=2", 1),
    ("pp=2,tp=2,dp=2", 2),
    // Meshes for mixtures of experts only.
    ("ep=2", 2),
    ("ep=2,dp=2", 4),
    ("ep=2,pp=2", 2),
];

/// Flags that may change only the last bits.
const ALONE: [&[&str]; 6] = [
    &["", "--zero 0", "--zero 1", "--zero 2", "--zero 3"],
    &[
        "",
        "--schedule gpipe",
        "--schedule 1f1b",
        "--schedule interleaved",
        "--schedule zb-h1",
        "--schedule zb-v",
        "--schedule dualpipev",
    ],
    &["", "--recompute full", "--recompute selective"],
    &[
        "",
        "",
        "--compress-activations masks,indices --compress-least 1B",
        "--compress-activations masks --compress-least 1B",
    ],
    &[
        "",
        "",
        "--offload optimizer --offload-least 1B",
        "--offload gradients --offload-least 1B",
        "--offload parameters,optimizer --offload-least 1B",
        "--offload activations --offload-least 1B",
    ],
    &["", "", "--sequence-parallel", "--update early"],
];

/// The models.
const MODELS: [&str; 9] = [
    "models/mlp.dynamo",
    "models/parted-loss.dynamo",
    "models/quotient-loss.dynamo",
    "models/gpt2.dynamo",
    "models/gpt2-fp16.dynamo",
    "models/llama.dynamo",
    "models/mixtral.dynamo",
    "models/bert.dynamo",
    "models/resnet.legacy-trainmode",
];

/// The batch sizes, which all models accept.
const BATCHES: [u64; 2] = [4, 8];

/// Flags that only some models take, and the batch.
const OTHERS: [&[&str]; 5] = [
    &["", "", "--global-batch 8", "--global-batch 16"],
    &["", "", "--init gpt2", "--init kaiming"],
    &["", "", "--dropout 0.1", "--lr-schedule cosine:warmup=2,steps=8"],
    &["", "", "--memory 1GiB", "--moe experts=2,top=1"],
    &["", "", "--cluster node.toml", "--cluster nodes.toml"],
];

/// The files of `--cluster`: one node, and two nodes that large meshes do not fit into.
pub const CLUSTERS: [(&str, &str); 2] = [
    ("node.toml", "preset = 'h100'\nnodes = 1\n[node]\ndevices = 8\n"),
    ("nodes.toml", "preset = 'a100'\nnodes = 2\n[node]\ndevices = 2\n"),
];

/// Random flags of a compilation, from all lists.
pub struct RandomFlags {
    /// The model: a file below `testdata`, without its ending.
    pub model: &'static str,
    /// The mesh, as `--mesh` takes it. Empty for one device.
    pub mesh: &'static str,
    /// The samples of a microbatch of all data ranks.
    pub batch: u64,
    /// All flags. A file of `--cluster` is one of [`CLUSTERS`].
    pub flags: String,
}

impl RandomFlags {
    /// The flags of a seed.
    pub fn of(seed: u64) -> Self {
        let mut drawn = 0;
        let mut draw = |count: usize| {
            drawn += 1;
            philox(seed, [drawn, 0, 0, 12])[0] as usize % count
        };
        let model = MODELS[draw(MODELS.len())];
        let shared = draw_shared(&mut draw);
        let (mesh, data_ranks) =
            MESHES[draw(if model.contains("mixtral") { MESHES.len() } else { MESHES.len() - 3 })];
        let own = draw_alone((mesh, data_ranks), &shared, &mut draw).join(" ");
        let batch = BATCHES[draw(BATCHES.len())];
        let others: Vec<&str> = OTHERS.iter().map(|axis| axis[draw(axis.len())]).collect();
        let flags = format!(
            "{} {own} {} --microbatch {} --seed {}",
            shared.join(" "),
            others.join(" "),
            batch / data_ranks,
            draw(100)
        );
        Self { model, mesh, batch, flags }
    }

    /// The flags without `name` and its value, and whether they had it.
    pub fn without(&self, name: &str) -> (String, bool) {
        let words: Vec<&str> = self.flags.split_whitespace().collect();
        let Some(at) = words.iter().position(|word| *word == name) else {
            return (self.flags.clone(), false);
        };
        ([&words[..at], &words[at + 2..]].concat().join(" "), true)
    }
}

/// Draws shared flags, one of each axis. They change the numbers, and the run on one device has them too.
pub fn draw_shared(draw: &mut impl FnMut(usize) -> usize) -> Vec<&'static str> {
    SHARED.iter().map(|axis| axis[draw(axis.len())]).collect()
}

/// Draws flags that may change only the last bits, and that fit a mesh and the shared flags. Drawing from all six axes at once would
/// mostly give commands that are refused.
pub fn draw_alone(
    (mesh, data_ranks): (&str, u64),
    shared: &[&str],
    draw: &mut impl FnMut(usize) -> usize,
) -> Vec<String> {
    let mut own: Vec<String> = if mesh.is_empty() { vec![] } else { vec![format!("--mesh {mesh}")] };
    own.extend(ALONE.iter().filter_map(|axis| {
        let flag = axis[draw(axis.len())];
        let fits = match flag {
            _ if draw(3) == 0 => false,
            flag if flag.starts_with("--zero") => data_ranks > 1 || flag == "--zero 0",
            flag if flag.starts_with("--schedule") => mesh.contains("pp"),
            "--sequence-parallel" => mesh.contains("tp"),
            "--update early" => !mesh.contains("pp") && shared[0].is_empty() && shared[2].is_empty(),
            _ => true,
        };
        (fits && !flag.is_empty()).then(|| flag.to_owned())
    }));
    own
}
