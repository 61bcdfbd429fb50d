//! The imports between the top-level modules of a package, read from the paths `crate::…` and `super::…` in its source files.
//!
//! The files are found as the compiler finds them, starting from `lib.rs`. Items under `#[cfg(test)]` are left out, since a test may use
//! more modules than the code that it tests.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::root;

/// Imports that no package may have: the folder of the package, the importing module, and the modules that it must not import. `*` stands
/// for every module that is not among the latter.
const FORBIDDEN: [(&str, &str, &[&str]); 1] = [
    // The library does not know the command line.
    ("src", "*", &["cli"]),
];

/// The folders of packages whose modules import each other in no circle.
const WITHOUT_CIRCLES: [&str; 13] = [
    "files",
    "onnx",
    "passes",
    "testing",
    "testing/ptx",
    "runtime/checkpoint",
    "runtime/comm",
    "runtime/cpu",
    "runtime/cuda",
    "runtime/data",
    "runtime/program",
    "runtime/ranks",
    "runtime/train",
];

/// The imports of the only circle of `ir`. The gradient of an operator adds nodes with the builder, which changes a module. The nodes of a
/// module have operators.
const CIRCLE_OF_IR: [&str; 4] = ["edit -> module", "edit -> ops", "module -> ops", "ops -> edit"];

/// The modules of `passes` that are not passes.
const BESIDE_PASSES: [&str; 9] =
    ["analysis", "arguments", "causality", "manager", "pass", "pipeline", "registry", "reports", "rewriting"];

/// The imports of the only circle of the driver. A compilation makes the stages of a pipeline again until their programs fit into memory. So
/// `compilation` asks `fit`, which lowers the programs of a compilation by `training` and measures them.
const CIRCLE_OF_DRIVER: [&str; 4] =
    ["compilation -> fit", "fit -> compilation", "fit -> training", "training -> compilation"];

/// The top-level modules of a package, each with the modules that it imports.
type Imports = BTreeMap<String, BTreeSet<String>>;

/// Splits code into identifiers and single characters. Comments, strings, characters in quotes, and items under `#[cfg(test)]` are left
/// out.
fn tokens(text: &str) -> Vec<String> {
    let mut tokens: Vec<String> = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let word = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
        let length = match passed_over(rest) {
            Some(length) => length,
            None if word > 0 => {
                tokens.push(rest[..word].to_owned());
                word
            }
            None => {
                tokens.push(first.to_string());
                first.len_utf8()
            }
        };
        rest = &rest[length..];
    }
    without_tests(&tokens)
}

/// The length of the space, comment, string or quoted character at the beginning of the text.
fn passed_over(text: &str) -> Option<usize> {
    let first = text.chars().next()?;
    let after =
        |start: usize, end: &str| text[start..].find(end).map_or(text.len(), |at| start + at + end.len());
    if first.is_whitespace() {
        return Some(first.len_utf8());
    }
    if text.starts_with("//") {
        return Some(after(2, "\n"));
    }
    if text.starts_with("/*") {
        return Some(after(2, "*/"));
    }
    if let Some(raw) = text.strip_prefix("br").or(text.strip_prefix('r')) {
        let hashes = raw.len() - raw.trim_start_matches('#').len();
        if raw[hashes..].starts_with('"') {
            return Some(after(text.len() - raw.len() + hashes + 1, &format!("\"{}", "#".repeat(hashes))));
        }
    }
    if first == '"' {
        let mut escaped = false;
        let end = text[1..].find(|c| {
            let ends = c == '"' && !escaped;
            escaped = c == '\\' && !escaped;
            ends
        });
        return Some(end.map_or(text.len(), |end| end + 2));
    }
    let quoted = text.strip_prefix('\'')?;
    if quoted.starts_with('\\') {
        return Some(after(3, "'"));
    }
    let length = 1 + quoted.chars().next()?.len_utf8();
    // Otherwise the quote begins a lifetime.
    text[length..].starts_with('\'').then_some(length + 1)
}

/// The tokens without the items under `#[cfg(test)]`.
fn without_tests(tokens: &[String]) -> Vec<String> {
    let attribute = ["#", "[", "cfg", "(", "test", ")", "]"];
    let mut kept = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        if !tokens[at..].iter().map(String::as_str).take(attribute.len()).eq(attribute) {
            kept.push(tokens[at].clone());
            at += 1;
            continue;
        }
        let mut depth = 0;
        let end = tokens[at..].iter().position(|token| {
            depth += i32::from(token == "{") - i32::from(token == "}");
            depth == 0 && (token == ";" || token == "}")
        });
        at = end.map_or(tokens.len(), |end| at + end + 1);
    }
    kept
}

/// Whether `::` follows at an index.
fn is_path_at(tokens: &[String], at: usize) -> bool {
    tokens.get(at..at + 2).is_some_and(|pair| pair.iter().all(|token| token == ":"))
}

/// The first segments of the paths at an index: one segment, or those in braces.
fn heads(tokens: &[String], at: usize) -> Vec<String> {
    if tokens.get(at).is_none_or(|token| token != "{") {
        return tokens.get(at).cloned().into_iter().collect();
    }
    let (mut depth, mut heads) = (0, Vec::new());
    for (index, token) in tokens.iter().enumerate().skip(at) {
        match token.as_str() {
            "{" => depth += 1,
            "}" => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            break;
        }
        if depth == 1 && (token == "," || index == at) {
            heads.extend(tokens.get(index + 1).cloned());
        }
    }
    heads
}

/// The top-level names of the package that code imports. `depth` is the number of segments of the code's module.
fn imported(tokens: &[String], depth: usize) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for start in 0..tokens.len() {
        let continues = start > 1 && is_path_at(tokens, start - 2);
        if continues || !is_path_at(tokens, start + 1) {
            continue;
        }
        let (mut at, mut supers) = (start, 0);
        while tokens.get(at).is_some_and(|token| token == "super") && is_path_at(tokens, at + 1) {
            (at, supers) = (at + 3, supers + 1);
        }
        match tokens[start].as_str() {
            "crate" => names.extend(heads(tokens, start + 3)),
            "super" if supers == depth => names.extend(heads(tokens, at)),
            _ => {}
        }
    }
    names
}

/// The modules that the code declares, without those of tests.
fn declared(tokens: &[String]) -> Vec<String> {
    let declarations = tokens.windows(3).filter(|window| window[0] == "mod" && window[2] == ";");
    declarations.map(|window| window[1].clone()).collect()
}

/// The names that `lib.rs` re-exports from its modules, with the module of each.
fn reexported(tokens: &[String]) -> BTreeMap<String, String> {
    let uses = (0..tokens.len()).filter(|&at| tokens[at] == "use" && is_path_at(tokens, at + 2));
    uses.flat_map(|at| heads(tokens, at + 4).into_iter().map(move |name| (name, tokens[at + 1].clone())))
        .collect()
}

/// The modules of a package: the path of each, and its code. `read` returns the text of a file by its path from the folder of `lib.rs`.
fn modules(read: &dyn Fn(&Path) -> Option<String>) -> Vec<(PathBuf, Vec<String>)> {
    let library = tokens(&read(Path::new("lib.rs")).expect("a package has a lib.rs"));
    let mut open: Vec<PathBuf> = declared(&library).iter().map(PathBuf::from).collect();
    let mut modules = vec![(PathBuf::new(), library)];
    while let Some(module) = open.pop() {
        let path = module.with_extension("rs");
        let text = read(&path).unwrap_or_else(|| panic!("{} is declared and not there", path.display()));
        let tokens = tokens(&text);
        open.extend(declared(&tokens).into_iter().map(|name| module.join(name)));
        modules.push((module, tokens));
    }
    modules
}

/// The imports of a package. `read` returns the text of a file by its path from the folder of `lib.rs`.
fn imports(read: &dyn Fn(&Path) -> Option<String>) -> Imports {
    let modules = modules(read);
    let (_, library) = &modules[0];
    let reexported = reexported(library);
    let mut imports: Imports = declared(library).into_iter().map(|name| (name, BTreeSet::new())).collect();
    for (module, tokens) in &modules[1..] {
        let top = module.iter().next().expect("a module has a name").to_string_lossy().into_owned();
        for name in imported(tokens, module.iter().count()) {
            let module = reexported.get(&name).unwrap_or(&name);
            if *module != top && imports.contains_key(module) {
                imports.entry(top.clone()).or_default().insert(module.clone());
            }
        }
    }
    imports
}

/// A function that returns the text of a file, given its path within a package of this workspace.
fn files_of(folder: &str) -> impl Fn(&Path) -> Option<String> {
    let folder = root().join(folder);
    move |path| std::fs::read_to_string(folder.join(path)).ok()
}

/// The imports of a package of this workspace.
fn imports_of(folder: &str) -> Imports {
    imports(&files_of(folder))
}

/// The imports that a row of [`FORBIDDEN`] does not allow.
fn forbidden(imports: &Imports, from: &str, to: &[&str]) -> Vec<String> {
    let mut forbidden = Vec::new();
    for (module, imported) in imports {
        let is_bound = if from == "*" { !to.contains(&module.as_str()) } else { from == module };
        let imported = imported.iter().filter(|name| is_bound && to.contains(&name.as_str()));
        forbidden.extend(imported.map(|name| format!("{module} -> {name}")));
    }
    forbidden
}

/// The imports that are part of a cycle, or lie between cycles.
fn circles(imports: &Imports) -> Vec<String> {
    let mut left = imports.clone();
    loop {
        let is_imported = |name: &String| left.values().any(|imported| imported.contains(name));
        let ends = left.iter().filter(|(name, imported)| imported.is_empty() || !is_imported(name));
        let ends: BTreeSet<String> = ends.map(|(name, _)| name.clone()).collect();
        if ends.is_empty() {
            break;
        }
        left.retain(|name, _| !ends.contains(name));
        left.values_mut().for_each(|imported| imported.retain(|name| !ends.contains(name)));
    }
    left.iter().flat_map(|(from, to)| to.iter().map(move |to| format!("{from} -> {to}"))).collect()
}

/// The modules in the list of passes: `Bind(bind::Bind)` has the module `bind`.
fn listed_passes(registry: &str) -> BTreeSet<String> {
    let tokens = tokens(registry);
    let rows = tokens.windows(7).filter(|window| {
        window[1] == "(" && window[3] == ":" && window[4] == ":" && window[5] == window[0] && window[6] == ")"
    });
    rows.map(|window| window[2].clone()).collect()
}

/// The modules of `passes` that are neither listed nor in [`BESIDE_PASSES`], and the names in these lists that are not modules.
fn strays(imports: &Imports, registry: &str) -> Vec<String> {
    let mut expected = listed_passes(registry);
    expected.extend(BESIDE_PASSES.map(str::to_owned));
    let found: BTreeSet<String> = imports.keys().cloned().collect();
    found.symmetric_difference(&expected).cloned().collect()
}

#[test]
fn modules_import_each_other_only_along_the_arrows() {
    for (folder, from, to) in FORBIDDEN {
        let imports = imports_of(folder);
        let named = to.iter().chain([&from]).filter(|name| **name != "*");
        named.for_each(|name| assert!(imports.contains_key(*name), "{folder} has no module `{name}`"));
        assert_eq!(forbidden(&imports, from, to), [""; 0], "in {folder}");
    }
    let mut found = 0;
    for folder in WITHOUT_CIRCLES {
        let imports = imports_of(folder);
        assert_eq!(circles(&imports), [""; 0], "in {folder}");
        found += imports.values().map(BTreeSet::len).sum::<usize>();
    }
    assert!(found > 100, "only {found} imports were found");
    assert_eq!(circles(&imports_of("ir")), CIRCLE_OF_IR);
    assert_eq!(circles(&imports_of("src")), CIRCLE_OF_DRIVER);
}

/// The functions that are steps of a compilation, by the last two segments of their paths.
const RECIPE: [[&str; 2]; 5] = [
    ["compilation", "open_asking"],
    ["sizes", "bindings"],
    ["sizes", "require_bound"],
    ["CompilationPlan", "new"],
    ["fit", "fit_memory"],
];

/// The modules of the driver, apart from `compiler`, that call a step of a compilation.
fn cooks(modules: &[(PathBuf, Vec<String>)]) -> Vec<String> {
    let is_step = |window: &[String]| {
        is_path_at(window, 1) && RECIPE.iter().any(|[first, last]| window[0] == *first && window[3] == *last)
    };
    let outside = modules.iter().filter(|(module, _)| !module.starts_with("compiler"));
    let cooking = outside.filter(|(_, tokens)| tokens.windows(4).any(is_step));
    cooking.map(|(module, _)| module.display().to_string()).collect()
}

#[test]
fn only_the_compiler_calls_the_steps_of_the_recipe() {
    let modules = modules(&files_of("src"));
    assert_eq!(cooks(&modules), [""; 0]);
    let of_compiler = |(module, _): &&(PathBuf, Vec<String>)| module.starts_with("compiler");
    let moved = modules.iter().filter(of_compiler).map(|(_, tokens)| ("moved".into(), tokens.clone()));
    assert!(!cooks(&moved.collect::<Vec<_>>()).is_empty(), "no step of the recipe was found");
}

/// The packages of backends.
const BACKENDS: [&str; 2] = ["cpu", "cuda"];

/// The modules of the driver that name the package of a backend, because they show or check GPUs of NVIDIA.
const NAMING_BACKENDS: [&str; 7] = [
    "cli/compile/kernels",
    "cli/doctor",
    "cli/doctor/check",
    "cli/doctor/description",
    "cli/doctor/facts",
    "cli/doctor/part",
    "plan/listing/commands",
];

/// The modules that name the package of a backend in a path, sorted.
fn naming_backends(modules: &[(PathBuf, Vec<String>)]) -> Vec<String> {
    let names = |tokens: &[String]| {
        let is_word = |token: &String| token != "use" && token.chars().all(char::is_alphanumeric);
        let is_head = |at: usize| at < 3 || !is_path_at(tokens, at - 2) || !is_word(&tokens[at - 3]);
        let is_named = |at: usize| BACKENDS.contains(&tokens[at].as_str()) && is_path_at(tokens, at + 1);
        (0..tokens.len()).any(|at| is_named(at) && is_head(at))
    };
    let naming = modules.iter().filter(|(_, tokens)| names(tokens));
    let mut naming: Vec<String> = naming.map(|(module, _)| module.display().to_string()).collect();
    naming.sort();
    naming
}

#[test]
fn a_backend_is_named_in_the_list_of_backends_and_where_its_hardware_is_shown() {
    let naming = naming_backends(&modules(&files_of("src")));
    let listed = NAMING_BACKENDS.into_iter().chain(["targets"]);
    assert_eq!(naming, listed.collect::<Vec<_>>());
    // The packages between the backends and the driver do not depend on them: `ARROWS`.
}

#[test]
fn a_module_that_names_a_backend_would_be_seen() {
    let of = |text: &str| naming_backends(&[(PathBuf::from("training"), tokens(text))]);
    assert_eq!(of("use cuda::gpu::gpus;"), ["training"]);
    assert_eq!(of("fn f() { g(::cpu::TARGET) }"), ["training"]);
    assert_eq!(of("use crate::cpu::f; mod cuda; // cuda::gpu\nfn g(cpu: u8) {}"), [""; 0]);
}

#[test]
fn a_module_of_passes_is_a_pass_or_known_to_be_none() {
    let registry =
        std::fs::read_to_string(root().join("passes/registry.rs")).expect("the list of passes is text");
    assert!(listed_passes(&registry).len() > 10, "{:?}", listed_passes(&registry));
    assert_eq!(strays(&imports_of("passes"), &registry), [""; 0]);
}

#[test]
fn a_module_that_is_neither_a_pass_nor_known_is_named_and_so_is_a_pass_without_a_module() {
    let modules = BESIDE_PASSES.into_iter().chain(["bind", "helpers"]);
    let imports: Imports = modules.map(|name| (name.to_owned(), BTreeSet::new())).collect();
    let registry = "passes! { Bind(bind::Bind), Fold(fold::Fold) }";
    assert_eq!(strays(&imports, registry), ["fold", "helpers"]);
}

/// The imports of a package with these files.
fn planted(files: &[(&str, &str)]) -> Imports {
    imports(&|path| files.iter().find(|(name, _)| Path::new(name) == path).map(|(_, text)| text.to_string()))
}

#[test]
fn an_arrow_to_the_command_line_would_be_seen() {
    let imports = planted(&[
        ("lib.rs", "pub mod cli;\npub mod training;\nmod verification;"),
        ("cli.rs", "mod report;\nuse crate::training::run;"),
        ("cli/report.rs", "use super::super::verification;"),
        (
            "training.rs",
            "fn f(_: crate::verification::A) { let text = \"crate::verification\"; crate::cli::report::tell(text) }",
        ),
        ("verification.rs", "mod compare;"),
        ("verification/compare.rs", "use super::super::{cli::verify::Mode, training};"),
    ]);
    assert_eq!(forbidden(&imports, "*", &["cli"]), ["training -> cli", "verification -> cli"]);
    assert_eq!(
        forbidden(&imports, "verification", &["cli", "training"]),
        ["verification -> cli", "verification -> training"]
    );
    assert_eq!(imports["training"], BTreeSet::from(["cli", "verification"].map(str::to_owned)));
    assert_eq!(imports["cli"], BTreeSet::from(["training", "verification"].map(str::to_owned)));
}

#[test]
fn an_arrow_of_a_test_a_comment_or_a_string_is_none() {
    let imports = planted(&[
        ("lib.rs", "mod cuda;\nmod train;\n"),
        ("cuda.rs", ""),
        (
            "train.rs",
            "//! As [`crate::cuda`].\n#[cfg(test)]\nmod tests;\n/* crate::cuda */ mod step;\n\
             #[cfg(test)]\nuse crate::cuda::{Graph, Stream};\n\
             const TEXT: &str = r#\"a \" crate::cuda\"#;\nfn f<'a>(_: &'a str) -> char { '\"' }",
        ),
        ("train/step.rs", "use super::f;\n#[cfg(test)]\nmod tests { fn g() { crate::cuda::run() } }"),
    ]);
    assert_eq!(forbidden(&imports, "train", &["cuda"]), [""; 0]);
}

#[test]
fn a_circle_would_be_seen() {
    let files = [
        (
            "lib.rs",
            "mod loss;\nmod pass;\nmod registry;\nmod reports;\npub use pass::{PassContext, Transform};",
        ),
        ("loss.rs", "mod own;\nuse crate::reports::Report;"),
        ("loss/own.rs", "use crate::PassContext;"),
        ("pass.rs", "use crate::{reports::{Report, loss}};"),
        ("registry.rs", "use crate::{loss, pass};"),
        ("reports.rs", ""),
    ];
    assert_eq!(circles(&planted(&files)), [""; 0]);
    let mut circular = files;
    circular[3].1 = "use super::loss::Report;";
    assert_eq!(circles(&planted(&circular)), ["loss -> pass", "pass -> loss"]);
}

#[test]
fn the_list_of_passes_is_read() {
    let registry =
        "use crate::loss;\npasses! {\n    Bind(bind::Bind)\n    Loss(loss::Loss)\n}\nfn f() { Some(a::B) }";
    assert_eq!(listed_passes(registry), BTreeSet::from(["bind", "loss"].map(str::to_owned)));
}
