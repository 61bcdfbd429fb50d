//! Each pack that a kernel loads or stores is one access of the machine code, which nvdisasm shows.
//!
//! A kernel declares its packs itself: `load` and `store` of `kernels/prelude.cuh` have a macro, which is defined here as a comment of
//! inline assembler. The PTX has the comment wherever a call of them is inlined or unrolled. The accesses in the PTX and in the machine
//! code are counted by their width. Two accesses may become a wider one; a narrower one is a pack that was split.

use super::MOST_USED;
use super::accesses::{Access, Kind, by_kernel, claimed, entry, in_machine_code, in_ptx, section};
use super::budget::own_file;
use super::families::{ALL, SAMPLE, stem, with_text};
use super::operators::nvrtc;
use super::units::{CompilationUnit, for_each_unit};
use cuda::libraries::FOLDERS;
use cuda::nvrtc::Nvrtc;
use cuda::program::{File, Kernel};
use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The file before the other files of a kernel.
static CLAIM: File = File {
    name: "claim.cuh",
    after: &[],
    text: "#define TOUCH(access, address, bytes) asm volatile(\"// \" #access \" %0\" : : \"n\"((int)(bytes)))\n",
};

/// The widths of accesses, in bytes, that packs may need. Accesses of 2 bytes are left out, since they are not split where it matters.
const WIDTHS: [u32; 3] = [16, 8, 4];

/// Families of kernels that also read neighbours one by one, and not as a pack: `experts_grad` adds to the sums of weights in f32. If
/// columns beyond the matrix let the compiler drop loads of packs, such reads look like the parts of a pack. So the loads of these families
/// are not counted.
const PLAIN_NEIGHBOURS: [&str; 1] = ["experts_grad"];

/// The architecture that every run compiles for.
const EVERY_RUN: &str = "sm_90a";

/// All kinds of accesses; loads are the last.
const KINDS: [Kind; 3] = [Kind::Store, Kind::SharedStore, Kind::Load];

/// NVIDIA's disassembler. It is beside the folder of NVRTC in a Python environment, or in the search path.
fn nvdisasm() -> PathBuf {
    let folders = env::var_os(FOLDERS);
    let folders = folders.iter().flat_map(env::split_paths);
    let beside = folders.map(|folder| folder.join("../bin/nvdisasm")).find(|file| file.exists());
    beside.unwrap_or_else(|| "nvdisasm".into())
}

/// The machine code of a cubin, as text.
fn disassembled(nvdisasm: &Path, cubin: &[u8]) -> String {
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    fs::write(file.path(), cubin).expect("it is written");
    let output = Command::new(nvdisasm).arg("--print-code").arg("--no-dataflow").arg(file.path()).output();
    let output = output.unwrap_or_else(|error| {
        panic!("this test needs {} (testdata/requirements-nvrtc.txt): {error}", nvdisasm.display())
    });
    assert!(output.status.success(), "nvdisasm: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("nvdisasm writes text")
}

/// The bytes of accesses of this kind that have at least this width.
fn bytes(accesses: &[Access<'_>], kind: Kind, width: u32) -> u32 {
    let wide = accesses.iter().filter(|access| access.kind == kind && access.bytes >= width);
    wide.map(|access| access.bytes).sum()
}

/// The bytes that loads narrower than `width` read in runs of neighbouring offsets from one base, where a run has at least `width` bytes.
fn bytes_of_runs(accesses: &[Access<'_>], width: u32) -> u32 {
    let mut by_base: BTreeMap<&str, BTreeSet<(i64, u32)>> = BTreeMap::new();
    for access in accesses.iter().filter(|access| access.kind == Kind::Load && access.bytes < width) {
        by_base.entry(access.base).or_default().insert((access.offset, access.bytes));
    }
    let mut all = 0;
    for places in by_base.into_values() {
        let mut end = i64::MIN;
        let mut run = 0;
        for (offset, bytes) in places.into_iter().chain([(i64::MAX, 0)]) {
            if offset != end {
                all += if run >= width { run } else { 0 };
                run = 0;
            }
            run += bytes;
            end = offset.saturating_add(i64::from(bytes));
        }
    }
    all
}

/// Describes the packs that are split; `None` if each is one access.
///
/// No compiler drops a store, so each pack of a store must be found. A compiler drops or narrows a load whose elements are not used. So
/// packs of loads count as split only if runs of narrower loads read as many bytes as are missing.
fn split(kinds: &[Kind], claims: &[Access<'_>], found: &[Access<'_>], place: &str) -> Option<String> {
    let kinds = kinds.iter().copied().flat_map(|kind| WIDTHS.map(|width| (kind, width)));
    let mut lost = kinds.filter_map(|(kind, width)| {
        let [claimed, at_once] = [claims, found].map(|accesses| bytes(accesses, kind, width));
        let missing = claimed.saturating_sub(at_once);
        let (verb, is_split) = match kind {
            Kind::Load => ("loads", missing > 0 && bytes_of_runs(found, width) >= missing),
            Kind::Store => ("stores", missing > 0),
            Kind::SharedStore => ("stores to shared memory", missing > 0),
        };
        is_split.then(|| {
            format!("{verb} {claimed} bytes in packs of {width} or more, and {at_once} of them at once in its {place}")
        })
    });
    lost.next()
}

/// The kernels of a unit whose packs are split, and the kernels that do not compile.
fn faults_of(unit: &CompilationUnit<'_>, nvrtc: &Nvrtc, nvdisasm: &Path) -> Vec<String> {
    let cubin = match unit.compile_after(&CLAIM, nvrtc) {
        Ok(cubin) => cubin,
        Err(error) if unit.kernels.len() == 1 => return vec![error.to_string()],
        Err(_) => return unit.of_each().iter().flat_map(|unit| faults_of(unit, nvrtc, nvdisasm)).collect(),
    };
    let code = disassembled(nvdisasm, &cubin.bytes);
    let claims = by_kernel(&cubin.ptx, entry, claimed);
    let in_ptx = by_kernel(&cubin.ptx, entry, in_ptx);
    let in_code = by_kernel(&code, section, in_machine_code);
    let fault = |kernel: &&Kernel| {
        let name = kernel.name.as_str();
        let [claims, in_ptx, in_code] =
            [&claims, &in_ptx, &in_code].map(|all| all.get(name).map_or(&[][..], |own| &own[..]));
        if in_code.is_empty() {
            return Some(format!("{name} for {} has no accesses of memory", unit.architecture));
        }
        let kinds = if PLAIN_NEIGHBOURS.contains(&stem(kernel)) { &KINDS[..2] } else { &KINDS[..] };
        let split =
            split(kinds, claims, in_ptx, "PTX").or_else(|| split(kinds, claims, in_code, "machine code"))?;
        Some(format!("{name} for {} {split}\n{}", unit.architecture, kernel.text))
    };
    unit.kernels.iter().filter_map(fault).collect()
}

/// The kernels whose packs are split on these architectures.
fn faults(kernels: &[Kernel], architectures: &[&str]) -> Vec<String> {
    let (nvrtc, nvdisasm) = (nvrtc(), nvdisasm());
    for_each_unit(kernels, architectures, |unit| faults_of(unit, &nvrtc, &nvdisasm))
}

/// Checks kernels: those of the sample on one architecture in every run, and all kernels at night.
fn check(kernels: &[Kernel], architectures: &[&str]) {
    let faults = faults(kernels, architectures);
    assert!(faults.is_empty(), "{} faults\n{}", faults.len(), faults.join("\n\n"));
}

#[test]
#[ignore = "needs NVRTC and nvdisasm"]
fn every_pack_of_the_sample_is_one_access() {
    check(&SAMPLE, &[EVERY_RUN]);
}

#[test]
#[ignore = "night: accesses"]
fn every_pack_of_every_listed_kernel_is_one_access() {
    check(&ALL, &MOST_USED);
}

/// If the struct of a pack were assigned member by member, kernels of each of these families would write runs of 2 bytes.
#[test]
#[ignore = "needs NVRTC and nvdisasm"]
fn packs_that_are_stored_as_structs_are_found() {
    let files = ["loss.cuh", "softmax.cuh", "norm.cuh", "attention_mma.cuh", "attention_mma_grad.cuh"];
    let kernels: Vec<Kernel> =
        SAMPLE.iter().filter(|kernel| files.contains(&own_file(kernel))).cloned().collect();
    let planted = |kernel: &Kernel| {
        with_text(kernel, "prelude.cuh", ["store_whole((Pack<T, N>*)to, pack);", "*(Pack<T, N>*)to = pack;"])
    };
    let planted: Vec<Kernel> = kernels.iter().map(planted).collect();
    let faults = faults(&planted, &[EVERY_RUN]);
    let named = |file: &&str| {
        let own = kernels.iter().filter(|kernel| own_file(kernel) == *file);
        let start = |kernel: &Kernel| format!("{} for {EVERY_RUN} stores ", kernel.name);
        own.clone().any(|kernel| faults.iter().any(|fault| fault.starts_with(&start(kernel))))
    };
    let silent: Vec<&str> = files.into_iter().filter(|file| !named(file)).collect();
    assert_eq!(silent, [""; 0], "no kernel of these files is named");
}

fn loads(accesses: &[(u32, &'static str, i64)]) -> Vec<Access<'static>> {
    let load = |&(bytes, base, offset)| Access { kind: Kind::Load, bytes, base, offset };
    accesses.iter().map(load).collect()
}

#[test]
fn loads_in_a_run_are_a_split_pack_and_unused_elements_are_not() {
    let claims = loads(&[(16, "", 0), (16, "", 0)]);
    let whole = loads(&[(16, "R2", 0), (16, "R2", 16), (4, "R4", 0)]);
    assert_eq!(split(&KINDS, &claims, &whole, "PTX"), None);
    let merged = loads(&[(32, "R2", 0)]);
    assert_eq!(split(&KINDS, &claims, &merged, "PTX"), None);
    let one_is_split = loads(&[(16, "R2", 0), (8, "R2", 24), (4, "R2", 16), (4, "R2", 20)]);
    let fault = split(&KINDS, &claims, &one_is_split, "PTX").expect("the second pack is three loads");
    assert_eq!(fault, "loads 32 bytes in packs of 16 or more, and 16 of them at once in its PTX");
    // The last four bytes of a pack are unused, and no other loads are near.
    let narrowed = loads(&[(16, "R2", 0), (8, "R2", 16), (4, "R2", 24), (4, "R4", 28), (4, "R2", 64)]);
    assert_eq!(split(&KINDS, &claims, &narrowed, "PTX"), None);
}

#[test]
fn a_store_that_is_missing_is_a_split_pack() {
    let store = |bytes, offset| Access { kind: Kind::Store, bytes, base: "R2", offset };
    let claims = [store(8, 0), store(4, 0)];
    assert_eq!(split(&KINDS, &claims, &[store(8, 0), store(4, 32)], "PTX"), None);
    let fault = split(&KINDS, &claims, &[store(8, 0), store(2, 32), store(2, 34)], "PTX");
    let text = "stores 12 bytes in packs of 4 or more, and 8 of them at once in its PTX";
    assert_eq!(fault.as_deref(), Some(text));
}
