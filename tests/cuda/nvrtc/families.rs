//! The kernels that the tests compile, and a sample with a kernel of every family.
//!
//! The kernels of a family have the same name before the hash, and call the same functions and templates of `kernels/`. The sample has each
//! name, each file and each function in each of f32, f16 and bf16, as far as the listed kernels have them. Every run compiles the sample;
//! the nightly run compiles all listed kernels.

use super::budget::{BUDGETS, faults, own_file};
use super::operators::{self, ARCHITECTURES, nvrtc};
use super::{attention, copies, steps};
use crate::programs;
use cuda::program::{File, Kernel};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

/// The kernels of operators, of small models and of large ones, each once.
pub(crate) static ALL: LazyLock<Vec<Kernel>> = LazyLock::new(|| {
    let mut kernels = operators::kernels();
    kernels.extend(attention::kernels());
    kernels.extend(copies::kernels());
    kernels.extend(steps::of_models());
    kernels.extend(steps::of_ranks());
    kernels.extend(programs::kernels());
    each_once(kernels)
});

/// The kernels that every run compiles: a few kernels that have all features, and of the large models, whose packs are wide, one kernel of
/// each name.
pub(super) static SAMPLE: LazyLock<Vec<Kernel>> = LazyLock::new(|| {
    let large: Vec<Kernel> = programs::kernels().collect();
    let names = |kernel: &Kernel| in_types(kernel, [stem(kernel).to_owned()].into());
    each_once([sample_of(&ALL, features), sample_of(&large, names)].concat())
});

/// Kernels in the order of their names.
fn each_once(kernels: Vec<Kernel>) -> Vec<Kernel> {
    let by_name: BTreeMap<String, Kernel> =
        kernels.into_iter().map(|kernel| (kernel.name.clone(), kernel)).collect();
    by_name.into_values().collect()
}

/// A feature of kernels, in a type of elements: a file, the name before the hash, or a function that they call. The sample has each feature
/// that a listed kernel has.
type Feature = (String, &'static str);

/// The types with kernels of their own. A kernel for halves computes in f32, and reads f32 beside them.
const HALVES: [&str; 2] = ["f16", "bf16"];

/// The types of the elements that a kernel takes.
fn element_types(kernel: &Kernel) -> Vec<&'static str> {
    let is_given = |ty: &&str| {
        let pointer = format!("{ty}*");
        kernel.text.match_indices(&pointer).any(|(at, _)| !kernel.text[..at].ends_with(is_of_word))
    };
    let halves: Vec<&str> = HALVES.into_iter().filter(is_given).collect();
    if halves.is_empty() { vec![if is_given(&"float") { "f32" } else { "other" }] } else { halves }
}

fn is_of_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The functions that a kernel's text calls: each word, with its namespace, before a bracket or the arguments of a template.
fn calls(kernel: &Kernel) -> BTreeSet<String> {
    let body = kernel.text.split_once('{').map_or("", |(_, body)| body);
    let called = body.match_indices(['(', '<']).filter_map(|(at, _)| {
        let before = &body[..at];
        let name = before.rsplit(|c: char| !is_of_word(c) && c != ':').next()?;
        name.starts_with(|c: char| c.is_ascii_alphabetic()).then(|| name.to_owned())
    });
    called.collect()
}

/// A kernel's name before the hash of its text.
pub(crate) fn stem(kernel: &Kernel) -> &str {
    kernel.name.rsplit_once('_').map_or(&kernel.name, |(stem, _)| stem)
}

/// The features of a kernel.
fn features(kernel: &Kernel) -> BTreeSet<Feature> {
    let mut names = calls(kernel);
    names.insert(own_file(kernel).to_owned());
    names.insert(stem(kernel).to_owned());
    in_types(kernel, names)
}

/// Names, each in the types of the kernel's elements.
fn in_types(kernel: &Kernel, names: BTreeSet<String>) -> BTreeSet<Feature> {
    let types = element_types(kernel);
    names.into_iter().flat_map(|name| types.iter().map(move |&ty| (name.clone(), ty))).collect()
}

/// A short list of these kernels that has all of their features. The kernel that adds the most is taken each time, and of several the
/// shortest.
fn sample_of(kernels: &[Kernel], features: impl Fn(&Kernel) -> BTreeSet<Feature>) -> Vec<Kernel> {
    let mut left: Vec<(&Kernel, BTreeSet<Feature>)> =
        kernels.iter().map(|kernel| (kernel, features(kernel))).collect();
    let mut sample = Vec::new();
    loop {
        let order = |(one, own): &&(&Kernel, BTreeSet<Feature>),
                     (other, others): &&(&Kernel, BTreeSet<Feature>)| {
            let length = |kernel: &Kernel| kernel.text.len();
            own.len().cmp(&others.len()).then(length(other).cmp(&length(one))).then(other.name.cmp(&one.name))
        };
        let Some((kernel, new)) = left.iter().max_by(order).cloned() else { break };
        sample.push(kernel.clone());
        for (_, features) in &mut left {
            features.retain(|feature| !new.contains(feature));
        }
        left.retain(|(_, features)| !features.is_empty());
    }
    sample
}

/// The features of these kernels that the sample lacks, each with a kernel that has it.
fn missing(sample: &[Kernel], kernels: &[Kernel]) -> Vec<String> {
    let known: BTreeSet<Feature> = sample.iter().flat_map(features).collect();
    let mut missing = BTreeMap::new();
    for kernel in kernels {
        for feature in features(kernel).difference(&known) {
            missing.entry(feature.clone()).or_insert(&kernel.name);
        }
    }
    let text = |((name, ty), kernel): (&Feature, &&String)| {
        format!("the sample has no kernel with `{name}` of {ty}, as {kernel} has")
    };
    missing.iter().map(text).collect()
}

/// The test runs every time, with the pinned NVRTC and with the oldest supported one.
#[test]
#[ignore = "needs NVRTC of two versions"]
fn a_sample_of_every_family_compiles_within_its_budget() {
    let nvrtc = nvrtc();
    println!("NVRTC {}: {} kernels", nvrtc.version(), SAMPLE.len());
    let faults = faults(&nvrtc, &SAMPLE, &ARCHITECTURES);
    assert!(faults.is_empty(), "{} faults\n{}", faults.len(), faults.join("\n\n"));
}

#[test]
#[ignore = "longer"]
fn every_family_has_a_kernel_in_the_sample() {
    println!("{} of {} kernels are the sample", SAMPLE.len(), ALL.len());
    assert!(ALL.len() > 2000, "{} kernels", ALL.len());
    assert_eq!(missing(&SAMPLE, &ALL), [""; 0]);
    // Each file of `kernels/` that has kernels must be in the sample, also a file that no listed program uses.
    let files: BTreeSet<&str> = SAMPLE.iter().map(own_file).collect();
    let without: Vec<&str> =
        BUDGETS.iter().map(|(file, _)| *file).filter(|file| !files.contains(file)).collect();
    assert_eq!(without, [""; 0], "no kernel of the sample is of these files");
}

/// A kernel with one of its files changed: the text `old` is replaced by `new`.
pub(super) fn with_text(kernel: &Kernel, name: &str, [old, new]: [&str; 2]) -> Kernel {
    let change = |&file: &&'static File| -> &'static File {
        if file.name != name {
            return file;
        }
        assert!(file.text.contains(old), "no `{old}` in {name}");
        let text = Box::leak(file.text.replace(old, new).into_boxed_str());
        Box::leak(Box::new(File { text, ..*file }))
    };
    Kernel { files: kernel.files.iter().map(change).collect(), ..kernel.clone() }
}

/// NVRTC 13.0 refuses a lambda with a parameter of type `auto` in device code.
#[test]
#[ignore = "needs NVRTC"]
fn a_generic_lambda_in_max_pooling_is_found() {
    let lambdas = ["Found<Computed<T>, I> found)", "const auto& found)"];
    for family in ["max_pool", "max_pool_indices", "max_pool_offsets"] {
        let kernel = SAMPLE.iter().find(|kernel| stem(kernel) == family);
        let kernel = kernel.unwrap_or_else(|| panic!("no {family} in the sample"));
        let faults = faults(&nvrtc(), &[with_text(kernel, "pool.cuh", lambdas)], &["sm_90a"]);
        let [fault] = &faults[..] else { panic!("{family}: {faults:#?}") };
        assert!(fault.contains(&format!("the kernel `{}` does not compile", kernel.name)), "{fault}");
    }
}

/// A kernel as lowering writes it, of a file that has no name in common with others.
fn written(name: &str, parameters: &str, body: &str) -> Kernel {
    static FILE: File = File { name: "test.cuh", after: &[], text: "" };
    let text = format!("KERNEL(256) {name}({parameters}) {{\n    {body}\n}}\n");
    Kernel { name: name.into(), files: vec![&FILE], text }
}

#[test]
fn a_family_that_the_sample_lacks_is_named() {
    let single = written("pool_01", "const float* a0, float* a1", "pool::max<List<2, 2>>(a0, a1);");
    let half = written("pool_02", "const bf16* a0, float* a1", "pool::max<List<2, 2>>(a0, a1);");
    let other = written("pool_03", "const float* a0, float* a1", "pool::least<List<2, 2>>(a0, a1);");
    let all = [single.clone(), half.clone(), other.clone()];
    assert_eq!(missing(&all, &all), [""; 0]);
    let of_half = missing(&[single.clone(), other], &all);
    assert!(of_half.contains(&"the sample has no kernel with `pool::max` of bf16, as pool_02 has".into()));
    let of_other = missing(&[single, half], &all);
    assert_eq!(of_other, ["the sample has no kernel with `pool::least` of f32, as pool_03 has"]);
}

#[test]
fn a_sample_has_every_family_once() {
    let kernel = |number: u32| {
        let [name, ty] = [format!("pool_{number:02}"), ["float", "f16", "bf16"][number as usize % 3].into()];
        written(&name, &format!("const {ty}* a0"), &format!("pool::max<{number}>(a0);"))
    };
    let all: Vec<Kernel> = (0..30).map(kernel).collect();
    let sample = sample_of(&all, features);
    assert_eq!(missing(&sample, &all), [""; 0]);
    assert_eq!(sample.len(), 3, "a kernel of each type");
}
