//! The folder of a path, derived from the path alone: the disk is not asked.

use std::path::Path;

/// Returns the folder that contains a path.
pub fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        Some(_) => Path::new("."),
        None => path,
    }
}
