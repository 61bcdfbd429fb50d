//! Tensors that a file keeps off the device, on the host or on a disk. All keys that move tensors are mapped here and nowhere else.

use ir::Diagnostic;

use super::Translation;
use super::document::Leaf;

/// A section of `zero_optimization`, the older switch with the same meaning, and the value of `--offload`.
const OFFLOADED: [(&str, &str, &str); 2] = [
    ("zero_optimization.offload_optimizer", "zero_optimization.cpu_offload", "optimizer"),
    ("zero_optimization.offload_param", "zero_optimization.cpu_offload_param", "parameters"),
];

/// Switches that keep activations on the host: DeepSpeed's and PatrickStar's.
const ACTIVATIONS: [&str; 2] =
    ["activation_checkpointing.cpu_checkpointing", "client.opts.with_activation_offload"];

/// `--offload`, and `--memory disk=DIR`.
pub(super) fn translate(translation: &mut Translation) {
    let document = translation.document;
    let mut folder = None;
    for (section, older, class) in OFFLOADED {
        let device = document.leaf(&format!("{section}.device"));
        match device.and_then(|leaf| Some((leaf, leaf.text()?))) {
            None | Some((_, "none")) => {
                translation.notes.forget_section(section);
                if device.is_none()
                    && let Some(leaf) = document.leaf(older)
                    && document.is_on(leaf.path)
                {
                    translation.set("offload", class, leaf);
                }
            }
            Some((leaf, "cpu")) => translation.set("offload", class, leaf),
            Some((leaf, "nvme")) => {
                translation.set("offload", class, leaf);
                rest_in(translation, leaf, section, &mut folder);
            }
            Some((leaf, other)) => {
                let message = format!("`{}`: there is no device {other:?}", leaf.path);
                translation.refuse(leaf, Diagnostic::new(message).note("there are none, cpu and nvme"));
            }
        }
    }
    let activations = ACTIVATIONS.iter().filter_map(|path| document.leaf(path));
    if let Some(leaf) = activations.into_iter().find(|leaf| document.is_on(leaf.path)) {
        translation.set("offload", "activations", leaf);
    }
    if let Some(leaf) = document.leaf("use_cpu_embedding").filter(|leaf| document.is_on(leaf.path)) {
        translation.set("offload", "embeddings", leaf);
    }
}

/// The folder of a section whose tensors rest on a disk. All sections share one file.
fn rest_in<'a>(
    translation: &mut Translation<'a>,
    device: &Leaf,
    section: &str,
    folder: &mut Option<&'a str>,
) {
    let leaf = translation.document.leaf(&format!("{section}.nvme_path"));
    let Some((leaf, path)) = leaf.and_then(|leaf| Some((leaf, leaf.text()?))) else {
        let message = format!("`{}`: nvme needs `{section}.nvme_path`", device.path);
        translation.refuse(device, Diagnostic::new(message).note("it names the folder of the file"));
        return;
    };
    match *folder {
        None => {
            translation.set("memory", &format!("disk={path}"), leaf);
            *folder = Some(path);
        }
        Some(first) if first != path => {
            translation.drop_leaf(leaf, format!("all tensors on a disk rest in one file, in {first}"));
        }
        Some(_) => {}
    }
}
