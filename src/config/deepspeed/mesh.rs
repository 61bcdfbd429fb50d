//! The mesh, and the states that are sharded over its data ranks.

use ir::{AxisRole, Mesh};

use super::super::parallel::{MeshAxes, Parallel};
use super::Translation;
use super::document::{Document, Leaf};

/// The key of the ZeRO stage.
const STAGE: &str = "zero_optimization.stage";

/// `--mesh`, from the sizes that the file gives. Returns the number of data ranks: the command line's mesh wins, and a launcher's
/// processes become data ranks.
pub(super) fn translate(translation: &mut Translation) -> u64 {
    let (document, line) = (translation.document, translation.line);
    let axes = axes(document);
    let text: Vec<String> = axes.iter().map(|(axis, size, _)| format!("{axis}={size}")).collect();
    let from_file = axes.first().map(|(_, _, leaf)| (text.join(","), *leaf));
    let given: Option<MeshAxes> = line.value("mesh");
    if let Some(given) = &given {
        for (axis, size, leaf) in &axes {
            let found = ranks(given, Mesh::role(axis));
            if found != *size {
                let reason = format!(
                    "--mesh {given} on the command line, which wins, has {axis}={found} and not {size}"
                );
                translation.drop_leaf(leaf, reason);
            }
        }
    } else if let Some((text, leaf)) = &from_file {
        translation.set("mesh", text, leaf);
    }
    let mesh = given.or_else(|| from_file.and_then(|(text, _)| text.parse().ok()));
    let mut mesh = mesh.unwrap_or_default();
    if let Some(ranks) = line.ranks() {
        mesh.open_to(ranks);
    }
    Parallel { mesh: Some(mesh), ..Parallel::default() }.data_ranks()
}

/// The axes of more than one device that the file asks for, outermost first.
fn axes<'a>(document: &'a Document) -> Vec<(&'static str, u64, &'a Leaf)> {
    let is_moe = document.is_on("expert_parallel.enabled");
    let experts = document.leaf("expert_parallel.autoep_size").filter(|_| is_moe);
    let tensor = ["tensor_parallel.autotp_size", "tensor_parallel.tp.tp_size", "tensor_parallel.tp_size"];
    let tensor = tensor.iter().find_map(|path| document.leaf(path));
    let axes = [("pp", document.leaf("pipeline.stages")), ("ep", experts), ("tp", tensor)];
    let axis = |(name, leaf): (&'static str, Option<&'a Leaf>)| {
        let leaf = leaf?;
        Some((name, leaf.count().filter(|size| *size > 1)?, leaf))
    };
    axes.into_iter().filter_map(axis).collect()
}

/// The number of ranks along the axes of a role.
fn ranks(mesh: &MeshAxes, role: Option<AxisRole>) -> u64 {
    mesh.axes().filter(|(name, _)| Mesh::role(name) == role).map(|(_, size)| size).product()
}

/// `--zero`. PatrickStar spreads parameters, gradients and states over all processes, as stage 3 does.
pub(super) fn zero(translation: &mut Translation, data_ranks: u64) {
    let document = translation.document;
    let stage = document.leaf(STAGE).map(|leaf| (leaf, leaf.count().unwrap_or_default()));
    let older = document.leaf("zero_optimization").filter(|_| document.is_on("zero_optimization"));
    let chunks = document.leaf("default_chunk_size");
    let stage = stage.or(older.map(|leaf| (leaf, 1))).or(chunks.map(|leaf| (leaf, 3)));
    let Some((leaf, stage)) = stage.filter(|(_, stage)| *stage > 0) else { return };
    if data_ranks > 1 || stage > 3 {
        translation.set("zero", &stage.to_string(), leaf);
    } else if !translation.line.gives("zero") && leaf.path != "default_chunk_size" {
        translation
            .drop_leaf(leaf, "the mesh has one data rank, which holds all states; --mesh dp=N gives more");
    }
}
