//! Tensors that a file keeps off the device, on the host or on a disk. All keys that move tensors are mapped here and nowhere else.

use super::Translation;
use super::document::Document;

/// A section of `zero_optimization`, the switch that stood for it before, and the value of `--offload`.
const OFFLOADED: [(&str, &str, &str); 2] = [
    ("zero_optimization.offload_optimizer", "zero_optimization.cpu_offload", "optimizer"),
    ("zero_optimization.offload_param", "zero_optimization.cpu_offload_param", "parameters"),
];

/// A flag that a key stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) path: String,
    pub(super) flag: &'static str,
    pub(super) value: String,
}

/// `--offload`, and `--memory disk=DIR`.
pub(super) fn translate(translation: &mut Translation) {
    let document = translation.document;
    for (section, ..) in OFFLOADED {
        if document.text(&format!("{section}.device")).is_none_or(|device| device == "none") {
            translation.notes.forget_section(section);
        }
    }
    for Wanted { path, flag, value } in wanted(document) {
        let Some(leaf) = document.leaf(&path) else { continue };
        translation.set(flag, &value, leaf);
    }
}

/// The flags that a file asks for.
pub(super) fn wanted(document: &Document) -> Vec<Wanted> {
    let mut wanted = vec![];
    let mut add = |path: &str, flag, value: &str| {
        wanted.push(Wanted { path: path.to_owned(), flag, value: value.to_owned() });
    };
    for (section, older, value) in OFFLOADED {
        let (device, disk) = (format!("{section}.device"), format!("{section}.nvme_path"));
        match document.text(&device) {
            Some("none") => continue,
            Some("nvme") => {
                add(&device, "offload", value);
                add(&disk, "memory", &format!("disk={}", document.text(&disk).unwrap_or("/local_nvme")));
            }
            Some(_) => add(&device, "offload", value),
            None if document.is_on(older) => add(older, "offload", value),
            None => {}
        }
    }
    wanted
}
