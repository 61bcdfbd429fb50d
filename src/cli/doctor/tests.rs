//! The text and JSON of `doctor` for machines that are made up. Every failure must show.

use super::*;
use crate::diagnostics::{Severity, render};
use cuda::check::rates::Rate;
use cuda::check::search;
use cuda::gpu::links::Link;
use cuda::libraries::{NotOpened, Opened};
use cuda::probe::{DeviceFacts, Driver, NEEDED, Unavailable};
use expect_test::expect;

fn opened(library: Library, folder: &str, version: Option<&str>) -> Opened {
    let path = format!("{folder}{}", library.file()).into();
    Opened { library, path, version: version.map(str::to_owned) }
}

fn missing(library: Library) -> NotOpened {
    NotOpened::Missing { library, looked: vec![] }
}

fn device(name: &str) -> DeviceFacts {
    DeviceFacts { name: name.into(), capability: (9, 0), memory: 150_754_820_096, multiprocessors: 132 }
}

/// A GPU that kernels do not run on.
fn old_device() -> DeviceFacts {
    DeviceFacts { name: "Tesla T4".into(), capability: (7, 5), memory: 16 << 30, multiprocessors: 40 }
}

/// Two GPUs, one of which does not report its free memory; all libraries but one.
fn machine() -> Facts {
    machine_of(vec![device("NVIDIA H200"), device("NVIDIA H200")])
}

fn machine_of(devices: Vec<DeviceFacts>) -> Facts {
    let driver = Driver { opened: opened(Library::Driver, "", None), version: NEEDED, devices };
    let folders = Folders { given: vec![], installed: vec!["/env/nvidia/cu13/lib".into()] };
    let nvrtc = opened(Library::Nvrtc, "/env/nvidia/cu13/lib/", Some("13.0"));
    let probe = Probe {
        driver: Ok(driver),
        libraries: vec![(Library::Nvrtc, Ok(nvrtc)), (Library::Nccl, Err(missing(Library::Nccl)))],
    };
    let memory = |gpu: usize| match gpu {
        0 => Ok((149_000_000_000, 150_754_820_096)),
        _ => Err("no context can be created on the GPU: it is another's alone".into()),
    };
    let link = |from, to| Link { from, to, peer_access: true, native_atomics: true, performance_rank: 0 };
    let links = vec![link(0, 1), link(1, 0)];
    Facts::of((16, vec!["cpu", "cpu-amx"]), &folders, &probe, Some("580.95.05".into()), memory, links)
}

fn written(json: bool, facts: Facts, checks: Option<Vec<Check>>) -> String {
    let doctor = Doctor { check: checks.is_some(), gpu: vec![], json, part: None, write: None };
    doctor.written(&Report { facts, checks }).unwrap_or_else(|_| panic!("it can be written"))
}

#[test]
fn a_machine_with_gpus_is_described() {
    expect![[r#"
        processor      16 threads, --device cpu, cpu-amx
        NVIDIA driver  580.95.05, CUDA 13.0, libcuda.so.1
          GPU 0        NVIDIA H200, compute capability 9.0, 132 multiprocessors, 140 GiB, 139 GiB free
          GPU 1        NVIDIA H200, compute capability 9.0, 132 multiprocessors, 140 GiB, no context can be created on the GPU: it is another's alone
          links        direct, with atomics: NVLink, rank 0: 0-1 1-0
        NVRTC          13.0, /env/nvidia/cu13/lib/libnvrtc.so.13
        NCCL           libnccl.so.2 was not found: pip install nvidia-nccl-cu13

        libraries were searched in the system's folders, /env/nvidia/cu13/lib; TRAINYARD_CUDA_LIBS=FOLDER:FOLDER adds folders
        programs run on the processor; --device cuda runs them on a GPU
    "#]]
    .assert_eq(&written(false, machine(), None));
}

#[test]
fn a_gpu_that_is_too_old_is_listed_with_the_reason() {
    let facts = machine_of(vec![old_device(), device("NVIDIA H200")]);
    let text = facts.text();
    let line = text.lines().find(|line| line.contains("Tesla T4")).unwrap();
    assert!(
        line.ends_with("139 GiB free, too old: its compute capability is 7.5, and kernels need 8.0 or newer"),
        "{line}"
    );
    assert_eq!(facts.gpus[0].free_bytes, Some(149_000_000_000));
    assert!(facts.gpus[0].error.as_ref().unwrap().starts_with("too old"));
}

/// A GPU that is too old is left out if the user asks for no GPU, and refused if the user asks for it or there is no other GPU.
#[test]
fn a_gpu_that_is_too_old_is_not_checked() {
    let gpus = [old_device(), device("NVIDIA H200")];
    assert_eq!(chosen(&[], &gpus).unwrap(), [1]);
    assert_eq!(chosen(&[1], &gpus).unwrap(), [1]);
    let refusal =
        "--check: GPU 0 (Tesla T4) is too old: its compute capability is 7.5, and kernels need 8.0 or newer";
    assert_eq!(chosen(&[0, 1], &gpus).unwrap_err().to_string(), refusal);
    assert_eq!(chosen(&[], &gpus[..1]).unwrap_err().to_string(), refusal);
}

/// The keys are documented in docs/GPU.md: others may be added, these stay.
#[test]
fn json_has_all_of_it_under_keys_that_stay() {
    expect![[r#"
        {
          "threads": 16,
          "devices": [
            "cpu",
            "cpu-amx"
          ],
          "driver": {
            "name": "NVIDIA driver",
            "file": "libcuda.so.1",
            "version": "580.95.05",
            "path": "libcuda.so.1",
            "cuda": "13.0"
          },
          "gpus": [
            {
              "gpu": 0,
              "name": "NVIDIA H200",
              "compute_capability": "9.0",
              "multiprocessors": 132,
              "total_bytes": 150754820096,
              "free_bytes": 149000000000
            },
            {
              "gpu": 1,
              "name": "NVIDIA H200",
              "compute_capability": "9.0",
              "multiprocessors": 132,
              "total_bytes": 150754820096,
              "error": "no context can be created on the GPU: it is another's alone"
            }
          ],
          "links": [
            {
              "from": 0,
              "to": 1,
              "peer_access": true,
              "native_atomics": true,
              "performance_rank": 0
            },
            {
              "from": 1,
              "to": 0,
              "peer_access": true,
              "native_atomics": true,
              "performance_rank": 0
            }
          ],
          "libraries": [
            {
              "name": "NVRTC",
              "file": "libnvrtc.so.13",
              "version": "13.0",
              "path": "/env/nvidia/cu13/lib/libnvrtc.so.13"
            },
            {
              "name": "NCCL",
              "file": "libnccl.so.2",
              "error": "libnccl.so.2 was not found: pip install nvidia-nccl-cu13"
            }
          ],
          "looked_in": [
            "/env/nvidia/cu13/lib"
          ],
          "checks": [
            {
              "gpu": 0,
              "passed": false,
              "samples": {
                "passed": 1200,
                "skipped": 8,
                "failures": [
                  {
                    "operator": "Softmax(Softmax { dim: 1 })",
                    "operands": [
                      "bf16[2, 4]"
                    ],
                    "way": "from inputs",
                    "problem": "result.0: element 3 is 1.5, and it should be 0.25",
                    "part": "gpu:0/bf16/inputs/17"
                  }
                ]
              },
              "rates": [
                {
                  "name": "copy_to_device",
                  "sizes": "268435456 bytes",
                  "unit": "GB/s",
                  "value": 55.25
                },
                {
                  "name": "copy_from_device",
                  "sizes": "268435456 bytes",
                  "unit": "GB/s",
                  "error": "of its 10 bytes 1 are free"
                }
              ],
              "seconds": 61.5
            }
          ]
        }
    "#]]
    .assert_eq(&written(true, machine(), Some(vec![failed()])));
}

#[test]
fn a_machine_without_a_gpu_says_why() {
    for (error, expected) in [
        (Unavailable::NoDevice, "NVIDIA driver  the NVIDIA driver finds no GPU\n"),
        (
            Unavailable::Library(missing(Library::Driver)),
            "NVIDIA driver  libcuda.so.1 was not found: install NVIDIA's driver, 580 or newer\n",
        ),
    ] {
        let probe = Probe { driver: Err(error), libraries: vec![] };
        let memory = |_| Err("there is none".into());
        let facts = Facts::of((2, vec!["cpu"]), &Folders::default(), &probe, None, memory, vec![]);
        let text = written(false, facts, None);
        assert!(text.contains(expected), "{text}");
    }
}

/// The text names the work that goes to cuDNN, and the work that is not done without cuDNN.
#[test]
fn the_work_of_cudnn_is_named() {
    let text = |opened: Result<Opened, NotOpened>| {
        let probe = Probe { driver: Err(Unavailable::NoDevice), libraries: vec![(Library::Cudnn, opened)] };
        let memory = |_| Err("there is none".into());
        Facts::of((2, vec!["cpu"]), &Folders::default(), &probe, None, memory, vec![]).text()
    };
    let found = text(Ok(opened(Library::Cudnn, "/env/", Some("9.19.1"))));
    let expected = [
        "cuDNN          9.19.1, /env/libcudnn.so.9\n  cuDNN runs   convolutions, and attention in f16 and bf16, ",
        "causal or without a mask; our kernels run all other attention\n",
    ];
    assert!(found.contains(&expected.concat()), "{found}");
    let without = text(Err(missing(Library::Cudnn)));
    let expected = "\n  no cuDNN     convolutions cannot run on a GPU; attention runs in our own kernels\n";
    assert!(without.contains(expected), "{without}");
}

/// A check of which one sample and one rate fail.
fn failed() -> Check {
    let failure = search::Failure {
        operator: "Softmax(Softmax { dim: 1 })".into(),
        operands: vec!["bf16[2, 4]".into()],
        way: "from inputs",
        problem: "result.0: element 3 is 1.5, and it should be 0.25".into(),
        part: "gpu:0/bf16/inputs/17".into(),
    };
    let rate = |name: &str, value, error| Rate {
        name: name.into(),
        sizes: "268435456 bytes".into(),
        unit: "GB/s".into(),
        value,
        error,
    };
    Check {
        gpu: 0,
        passed: false,
        samples: search::Report { passed: 1200, skipped: 8, failures: vec![failure] },
        rates: vec![
            rate("copy_to_device", Some(55.25), None),
            rate("copy_from_device", None, Some("of its 10 bytes 1 are free".into())),
        ],
        seconds: 61.5,
    }
}

#[test]
fn a_check_has_a_line_for_what_fails_and_a_summary() {
    expect![[r#"

        GPU 0
          wrong: Softmax(Softmax { dim: 1 }) on bf16[2, 4], from inputs: result.0: element 3 is 1.5, and it should be 0.25
          to run the first failed sample again: trainyard doctor --part gpu:0/bf16/inputs/17
          1200 samples of operators agree with the interpreter, 1 do not, 8 were not run
          copy_to_device                    55.2 GB/s  268435456 bytes
          copy_from_device             of its 10 bytes 1 are free  268435456 bytes
          FAILED in 62 s
    "#]]
    .assert_eq(&failed().text());
}

#[test]
fn the_gpus_asked_for_are_checked_and_others_refused() {
    let gpus = [device("NVIDIA H200"), device("NVIDIA H200"), device("NVIDIA H200")];
    assert_eq!(chosen(&[], &gpus).unwrap(), [0, 1, 2]);
    assert_eq!(chosen(&[2, 0, 2], &gpus).unwrap(), [0, 2]);
    assert_eq!(chosen(&[3], &gpus).unwrap_err().to_string(), "there is no GPU 3\n  = there are 0 to 2");
}

#[test]
fn a_check_without_a_gpu_says_what_is_missing_and_where_it_was_looked_for() {
    let folders = Folders { given: vec!["/opt/cuda/lib".into()], installed: vec![] };
    let driver = Err(Unavailable::Library(missing(Library::Driver)));
    let probe = Probe { driver, libraries: vec![] };
    let doctor = Doctor { check: true, gpu: vec![], json: false, part: None, write: None };
    let failure = Failure::from(doctor.checks(&folders, &probe).unwrap_err());
    assert_eq!(failure.exit_code(), 2);
    expect![[r#"
        error: --check: libcuda.so.1 was not found in the system's folders
          = install NVIDIA's driver, 580 or newer
          = libraries were searched in the system's folders, /opt/cuda/lib; TRAINYARD_CUDA_LIBS=FOLDER:FOLDER adds folders
          = --device cpu trains on the processor; `trainyard doctor` lists the GPUs and libraries of this machine
    "#]]
    .assert_eq(&render(Severity::Error, &failure.diagnostics(), false));
}
