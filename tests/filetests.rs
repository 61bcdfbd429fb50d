//! Text in, text out: every `.ir` file below `testdata/filetests` is run through the pipeline in its first line.
//!
//! ```text
//! // run: PIPELINE                 (or `run-interp:`, which also interprets the program before and after)
//! // kernels: TARGET                (if a pass writes for the kernels of a target)
//! // What the test is about.
//! module @name … { … }
//! ---- expected
//! the messages of the passes, and the resulting program
//! ```
//!
//! `BLESS=1 cargo test --workspace --test filetests` rewrites the expected text; the diff is for review.

use ir::interp::{self, Missing, Mode, StateValues};
use ir::{Blob, DType, Module, Tensor, Type, random};
use passes::{Manager, PassContext, Pipeline};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use trainyard::cli::opt::target_of;

const SEPARATOR: &str = "---- expected\n";

#[test]
fn every_file_gives_what_it_expects() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/filetests");
    let (mut files, mut failures) = (Vec::new(), Vec::new());
    collect(&root, &mut files);
    files.sort();
    assert!(!files.is_empty(), "no filetests in {}", root.display());
    for file in &files {
        let name = file.strip_prefix(&root).unwrap_or(file).display();
        if let Err(error) = check(file) {
            failures.push(format!("==== {name}\n{error}"));
        }
    }
    assert!(failures.is_empty(), "{} of {} failed\n{}", failures.len(), files.len(), failures.join("\n"));
}

fn collect(dir: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            collect(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "ir") {
            files.push(path);
        }
    }
}

fn check(file: &Path) -> Result<(), String> {
    let text = std::fs::read_to_string(file).map_err(|error| error.to_string())?;
    let (input, expected) = text.split_once(SEPARATOR).unwrap_or((&text, ""));
    let got = run(input)?;
    if got == expected {
        return Ok(());
    }
    if std::env::var_os("BLESS").is_some() {
        let separator = if input.ends_with('\n') { "" } else { "\n" };
        let blessed = format!("{input}{separator}{SEPARATOR}{got}");
        return std::fs::write(file, blessed).map_err(|error| error.to_string());
    }
    Err(difference(expected, &got))
}

#[test]
fn every_rule_of_canonicalize_is_needed_by_some_file() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/filetests/canonicalize");
    let mut files = Vec::new();
    collect(&root, &mut files);
    let texts: Vec<String> =
        files.iter().map(|file| std::fs::read_to_string(file).expect("the file can be read")).collect();
    let tests: Vec<(&str, &str)> = texts.iter().filter_map(|text| text.split_once(SEPARATOR)).collect();
    let needs = |rule: &str| {
        let pass = format!("canonicalize(without={rule:?})");
        tests.iter().any(|(input, expected)| {
            run(&input.replacen("canonicalize", &pass, 1)).is_ok_and(|given| given != *expected)
        })
    };
    let idle: Vec<&str> = passes::canonicalize::rules().filter(|rule| !needs(rule)).collect();
    assert!(idle.is_empty(), "nothing changes without {idle:?}");
}

/// Runs the pipeline of a test, and returns its messages and the resulting program.
fn run(input: &str) -> Result<String, String> {
    let header = input.lines().next().unwrap_or_default();
    let (pipeline, interpret) =
        match (header.strip_prefix("// run: "), header.strip_prefix("// run-interp: ")) {
            (Some(pipeline), _) => (pipeline, false),
            (_, Some(pipeline)) => (pipeline, true),
            _ => return Err("the first line is not `// run: PIPELINE`".into()),
        };
    let pipeline: Pipeline = pipeline.parse()?;
    assert_eq!(pipeline.to_string().parse::<Pipeline>()?, pipeline, "a pipeline's text reads back as itself");
    let before = ir::text::parse(input).map_err(|error| error.to_string())?;
    let target = target_of(input).map_err(|error| error.to_string())?;
    let kernels = target.and_then(|target| target.kernels());
    let (mut module, mut cx) = (before.clone(), PassContext { kernels, ..PassContext::default() });
    let result = Manager::default().run(&pipeline, &mut module, &mut cx, |_, _, _| {});
    let mut out = String::new();
    for warning in &cx.warnings {
        writeln!(out, "warning: {warning}").expect("a string takes all text");
    }
    for near in &cx.reports.near_misses {
        let origin = if near.origin.is_empty() { String::new() } else { format!(" at {}", near.origin) };
        writeln!(out, "nearly {}{origin}: {}", near.pattern, near.reason).expect("as above");
    }
    for report in &cx.reports.parameters {
        let states: Vec<String> =
            report.states.iter().map(|state| format!("{} {:?}", state.state, state.view)).collect();
        let frozen = if report.frozen { " (frozen)" } else { "" };
        let (data, role, reason) = (&report.data, report.role, &report.reason);
        writeln!(out, "{data}: {role:?}{frozen}, {reason} -> [{}]", states.join(", ")).expect("as above");
    }
    if let Some(loss) = &cx.reports.loss {
        writeln!(out, "loss: {}", loss.text).expect("as above");
        if let Some(doubt) = &loss.doubt {
            writeln!(out, "doubt: {doubt}").expect("as above");
        }
    }
    match result {
        Err(failure) => writeln!(out, "error: {failure}").expect("as above"),
        Ok(_) => {
            out += &ir::text::print(&module);
            if interpret {
                compare(before, module)?;
            }
        }
    }
    Ok(out)
}

/// Interprets both programs on the same numbers. Outputs of the same name must be equal.
fn compare(mut before: Module, mut after: Module) -> Result<(), String> {
    let outputs = [&mut before, &mut after].map(|module| {
        fill(module);
        let mut states: StateValues =
            interp::initial_states(module, 1, Missing::Draw).expect("states can be made");
        let microbatches = [microbatch(module, 0), microbatch(module, 1)];
        interp::step(module, Mode::Exact, &mut states, &microbatches).expect("the program runs")
    });
    let [before, after] = outputs;
    for (name, old) in &before {
        let new = after.get(name).ok_or_else(|| format!("the output `{name}` is gone"))?;
        for (old, new) in old.iter().zip(new) {
            let close = old
                .numbers()
                .iter()
                .zip(new.numbers())
                .all(|(a, b)| (a - b).abs() <= 1e-12 * (1.0 + a.abs()));
            if old.sizes != new.sizes || !close {
                return Err(format!("output `{name}` was {old:?}, is {new:?}"));
            }
        }
    }
    Ok(())
}

/// Gives data without bytes numbers that depend only on their name.
fn fill(module: &mut Module) {
    for data in module.data.values_mut().filter(|data| data.bytes().is_none()) {
        data.blob = Blob::File(Some(numbers(&data.ty, &data.name).to_bytes().into()));
    }
}

fn microbatch(module: &Module, index: usize) -> BTreeMap<String, Tensor> {
    let tensor = |input: &ir::Input| numbers(module.ty(input.value), &format!("{} {index}", input.name));
    module.inputs.iter().map(|input| (input.name.clone(), tensor(input))).collect()
}

/// Small random numbers: floats are normal, integers are from 0 to 2, booleans are both values.
fn numbers(ty: &Type, name: &str) -> Tensor {
    let sizes: Vec<usize> = ty.sizes().expect("dims are bound").iter().map(|&size| size as usize).collect();
    let normals =
        (0..sizes.iter().product::<usize>()).map(|i| random::normal(5, random::stream(name), i as u64));
    match ty.dtype {
        DType::Bool => Tensor::bool(sizes, normals.map(|x| x > 0.0).collect()),
        dtype if dtype.is_float() => Tensor::float(dtype, sizes, normals.collect()).rounded(),
        dtype => Tensor::int(dtype, sizes, normals.map(|x| (x.abs() as i64).min(2)).collect()),
    }
}

/// The first lines that differ, with the lines around them.
fn difference(expected: &str, got: &str) -> String {
    let at = expected.lines().zip(got.lines()).take_while(|(a, b)| a == b).count();
    let from = at.saturating_sub(2);
    let part = |text: &str| text.lines().skip(from).take(8).collect::<Vec<_>>().join("\n");
    format!("line {} differs; expected\n{}\ngot\n{}", at + 1, part(expected), part(got))
}
