//! The shape of the code: the dependencies between packages, the imports between modules of a package, small files, and a purpose at the
//! top of each file.

mod modules;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// The only allowed dependencies between packages of this workspace.
const ARROWS: [(&str, &[&str]); 15] = [
    ("checkpoint", &["comm", "data", "files", "ir", "program", "ranks"]),
    ("comm", &["files", "ir", "program"]),
    ("cpu", &["comm", "files", "ir", "program", "ranks"]),
    ("cuda", &["comm", "cpu", "files", "ir", "program", "ranks"]),
    ("data", &["files", "ir"]),
    ("files", &[]),
    ("ir", &[]),
    ("onnx", &["files", "ir"]),
    ("passes", &["ir"]),
    ("program", &["files", "ir"]),
    ("ptx", &["cuda", "ir"]),
    ("ranks", &["comm", "ir", "program"]),
    (
        "testing",
        &[
            "checkpoint",
            "comm",
            "cpu",
            "cuda",
            "data",
            "files",
            "ir",
            "onnx",
            "passes",
            "program",
            "ranks",
            "train",
            "trainyard",
        ],
    ),
    ("train", &["checkpoint", "comm", "data", "files", "ir", "program", "ranks"]),
    (
        "trainyard",
        &[
            "checkpoint",
            "comm",
            "cpu",
            "cuda",
            "data",
            "files",
            "ir",
            "onnx",
            "passes",
            "program",
            "ranks",
            "train",
        ],
    ),
];

/// Further dependencies that only tests have.
const ARROWS_OF_TESTS: [(&str, &[&str]); 3] =
    [("cuda", &["ptx"]), ("train", &["cpu", "cuda"]), ("trainyard", &["ptx", "testing"])];

/// The most lines of a file.
const LONGEST_FILE: usize = 800;

/// Names of files that say nothing about their contents.
const EMPTY_NAMES: [&str; 6] = ["utils", "util", "common", "helpers", "helper", "misc"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The dependencies of each package, as `cargo metadata` lists them; with `of_tests`, the dependencies that only its tests have.
fn dependencies(of_tests: bool) -> BTreeMap<String, BTreeSet<String>> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--no-deps", "--offline"])
        .current_dir(root())
        .output()
        .expect("cargo can be run");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("cargo metadata is JSON");
    let name = |value: &Value| value["name"].as_str().expect("everything has a name").to_owned();
    let list = |value: &Value| value.as_array().expect("a list").clone();
    let dependencies = |package: &Value| {
        let all = list(&package["dependencies"]).into_iter();
        let asked = all.filter(|dependency| (dependency["kind"] == "dev") == of_tests);
        asked.map(|dependency| name(&dependency)).collect()
    };
    list(&metadata["packages"]).iter().map(|package| (name(package), dependencies(package))).collect()
}

/// The dependencies between packages of the workspace that are not allowed.
fn forbidden_arrows(
    packages: &BTreeMap<String, BTreeSet<String>>,
    allowed: &[(&str, &[&str])],
) -> Vec<String> {
    let allowed: BTreeMap<&str, &[&str]> = allowed.iter().copied().collect();
    let mut forbidden = Vec::new();
    for (package, dependencies) in packages {
        let allowed = allowed.get(package.as_str()).copied().unwrap_or_default();
        for dependency in dependencies {
            if packages.contains_key(dependency) && !allowed.contains(&dependency.as_str()) {
                forbidden.push(format!("{package} -> {dependency}"));
            }
        }
    }
    forbidden
}

#[test]
fn packages_depend_on_each_other_only_along_the_arrows() {
    let packages = dependencies(false);
    let known: Vec<&str> = ARROWS.iter().map(|(package, _)| *package).collect();
    assert_eq!(packages.keys().collect::<Vec<_>>(), known, "a package was added: give it a row in ARROWS");
    assert_eq!(forbidden_arrows(&packages, &ARROWS), Vec::<String>::new());
    assert_eq!(forbidden_arrows(&dependencies(true), &ARROWS_OF_TESTS), Vec::<String>::new());
}

#[test]
fn a_forbidden_arrow_would_be_seen() {
    let packages = [("ir", vec!["half"]), ("onnx", vec!["ir", "passes"]), ("passes", vec!["ir"])];
    let packages = packages
        .into_iter()
        .map(|(name, dependencies)| (name.to_owned(), dependencies.into_iter().map(str::to_owned).collect()))
        .collect();
    assert_eq!(forbidden_arrows(&packages, &ARROWS), ["onnx -> passes"]);
}

/// Every `.rs` file of the packages, sorted.
fn sources() -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> = ["files", "ir", "onnx", "passes", "runtime", "src", "testing", "tests"]
        .map(|name| root().join(name))
        .into();
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a source folder can be read") {
            let path = entry.expect("an entry can be read").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                files.push(path);
            }
        }
    }
    files.sort();
    assert!(files.len() > 20, "only {} source files were found", files.len());
    files
}

/// The faults of a source file.
fn faults(path: &Path, text: &str) -> Vec<String> {
    let mut faults = Vec::new();
    let lines = text.lines().count();
    if lines > LONGEST_FILE {
        faults.push(format!("{}: {lines} lines, more than {LONGEST_FILE}: split it", path.display()));
    }
    if !text.starts_with("//!") {
        faults.push(format!("{}: does not open with //! and what it is for", path.display()));
    }
    if path.file_name().is_some_and(|name| name == "mod.rs") {
        faults.push(format!("{}: the file of `module` is module.rs, beside its folder", path.display()));
    }
    let is_test = path.components().any(|part| part.as_os_str() == "tests");
    if is_test && text.lines().any(|line| line.trim_start().starts_with("#[path")) {
        faults.push(format!("{}: has #[path]: shared support belongs to testing/", path.display()));
    }
    let names = path.components().filter_map(|part| Path::new(part.as_os_str()).file_stem()?.to_str());
    for name in names.filter(|name| EMPTY_NAMES.contains(name)) {
        faults.push(format!("{}: `{name}` does not say what is inside", path.display()));
    }
    faults
}

/// Tests that have a file `tests/NAME.rs` and a folder `tests/NAME`.
fn divided_tests(paths: &[PathBuf]) -> Vec<String> {
    let is_divided = |path: &&PathBuf| {
        let folder = path.with_extension("");
        let is_target = path.parent().is_some_and(|parent| parent.ends_with("tests"));
        is_target && paths.iter().any(|other| other.starts_with(&folder))
    };
    let fault =
        |path: &PathBuf| format!("{}: a test of several files begins in tests/NAME/main.rs", path.display());
    paths.iter().filter(is_divided).map(fault).collect()
}

#[test]
fn source_files_are_short_and_open_with_what_they_are_for() {
    let sources = sources();
    let below_root = |path: &PathBuf| path.strip_prefix(root()).expect("it is below the root").to_owned();
    let paths: Vec<PathBuf> = sources.iter().map(below_root).collect();
    let mut all = divided_tests(&paths);
    for (source, path) in sources.iter().zip(&paths) {
        let text = std::fs::read_to_string(source).expect("a source file is text");
        all.extend(faults(path, &text));
    }
    assert_eq!(all, Vec::<String>::new());
}

#[test]
fn a_module_or_a_test_in_another_place_would_be_seen() {
    assert_eq!(
        faults(Path::new("src/a/mod.rs"), "//! A.\n"),
        ["src/a/mod.rs: the file of `module` is module.rs, beside its folder"]
    );
    assert_eq!(
        faults(Path::new("passes/tests/a.rs"), "//! A.\n#[path = \"b/c.rs\"]\nmod c;\n"),
        ["passes/tests/a.rs: has #[path]: shared support belongs to testing/"]
    );
    assert_eq!(faults(Path::new("runtime/a.rs"), "//! A.\n#[path = \"b/c.rs\"]\nmod c;\n"), [""; 0]);
    let paths =
        ["tests/a.rs", "tests/a/b.rs", "tests/c/main.rs", "tests/c/d.rs", "tests/c/d/e.rs", "tests/f.rs"];
    assert_eq!(
        divided_tests(&paths.map(PathBuf::from)),
        ["tests/a.rs: a test of several files begins in tests/NAME/main.rs"]
    );
}

#[test]
fn a_long_file_a_silent_file_and_an_empty_name_would_be_seen() {
    let long = "//! Long.\n".repeat(LONGEST_FILE + 1);
    assert_eq!(faults(Path::new("src/a.rs"), &long), ["src/a.rs: 801 lines, more than 800: split it"]);
    assert_eq!(
        faults(Path::new("passes/utils/edges.rs"), "fn f() {}\n"),
        [
            "passes/utils/edges.rs: does not open with //! and what it is for",
            "passes/utils/edges.rs: `utils` does not say what is inside"
        ]
    );
    assert_eq!(faults(Path::new("runtime/common.rs"), "//! C.\n").len(), 1);
}
