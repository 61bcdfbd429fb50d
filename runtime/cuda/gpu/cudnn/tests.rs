//! Plans for a device that need not be here: cuDNN makes them from the device's properties, and only running them takes a GPU. So a
//! graph that cuDNN refuses, or an attribute of a wrong type, shows on any machine with the libraries:
//!
//! `pip install --no-deps nvidia-cudnn-cu13 nvidia-cublas==13.0.* nvidia-cuda-nvrtc==13.0.*`, then
//! `cargo test -p cuda --lib gpu::cudnn -- --ignored` with that environment active.

use super::*;
use crate::cudnn::testing::{Places, attention, instruction};
use crate::libraries::{self, Library};
use ir::ops::conv::{Conv, ConvGradInput, ConvGradWeight};
use ir::samples::samples;
use ir::{DType, Type};
use smallvec::SmallVec;
use std::collections::HashSet;
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

/// The properties of a device, as cuDNN 9.28 writes them. An older cuDNN ignores the properties that it does not know.
const H200: &str = r#"{
    "deviceName": "NVIDIA H200", "cudaDeviceId": 0, "pciDeviceId": 0, "deviceVer": 900, "driverVer": 13000,
    "maxGridSize": [2147483647, 65535, 65535], "maxBlockSize": [1024, 1024, 64], "regsPerBlock": 65536,
    "multiProcessorCount": 132, "warpSize": 32, "maxSharedMemoryPerBlock": 49152,
    "maxSharedMemoryPerBlockOptin": 232448, "reservedSharedMemoryPerBlock": 1024,
    "oversizedSharedMemoryPerBlock": 0, "maxRegistersPerSM": 65536, "maxCtasPerSM": 32, "maxThreadsPerBlock": 1024,
    "maxThreadsPerSM": 2048, "isTccDriver": 0, "supportCoopLaunch": 1, "totalGlobalMem": 150000000000,
    "smClockRateKHz": 1980000, "memClockRateKHz": 3201000, "memoryBusWidth": 6144, "l2CacheSize": 62914560
}"#;

/// Opens cuDNN. If there is no driver, a driver without a device is opened beneath it.
fn functions() -> Arc<Functions> {
    static OPEN: OnceLock<Arc<Functions>> = OnceLock::new();
    let open = || {
        let folders = Folders::of_process();
        if libraries::open(Library::Driver, &folders).is_err() {
            open_driver_without_device();
        }
        Arc::new(Functions::open(&folders).unwrap_or_else(|error| panic!("this test needs cuDNN: {error}")))
    };
    OPEN.get_or_init(open).clone()
}

/// Opens a driver that answers every question which cuDNN asks while it makes plans.
fn open_driver_without_device() {
    let folder = tempfile::tempdir().expect("a folder");
    let (source, library) = (Path::new("cuda/gpu/cudnn/no_device.c"), folder.path().join("libcuda.so.1"));
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".into());
    let flags = ["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o"];
    let made = Command::new(compiler).args(flags).arg(&library).arg(source).status();
    assert!(made.expect("a C compiler").success());
    libraries::load(&library).expect("it was compiled just now");
}

fn device(functions: &Arc<Functions>) -> Descriptor {
    let device =
        Descriptor::new(functions, Kind::CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR).expect("cuDNN 9.8 has it");
    device.set(Name::CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, Value::Text(H200)).expect("text");
    device.finalize("an H200").unwrap_or_else(|error| panic!("{error}"))
}

fn plan(graph: &Graph, single: Single) -> Result<ExecutionPlan, DriverError> {
    let functions = functions();
    let device = device(&functions);
    ExecutionPlan::new(&functions, Target::Told(&device), graph, single, MOST_ROOM)
}

/// Returns an operator on dense tensors, each `behind` elements after a multiple of 256 bytes.
fn dense(op: Op, dtype: DType, operands: &[Type], results: &[Type], behind: u64) -> Instruction {
    let mut places = Places::default();
    let mut view = |ty: &Type| {
        let sizes: Vec<usize> = ty.sizes().expect("bound").into_iter().map(|size| size as usize).collect();
        places.dense(dtype, &sizes, behind)
    };
    let operands = operands.iter().map(&mut view).collect();
    instruction(op, operands, results.iter().map(&mut view).collect())
}

/// Returns a convolution and its gradients, from the sizes of image and weight, strides, dilations and pads.
fn convolutions([x, weight, strides, dilations, pads]: [&[u64]; 5]) -> Vec<(Op, Vec<Type>, Type)> {
    let (strides, dilations) = (SmallVec::from_slice(strides), SmallVec::from_slice(dilations));
    let pads = SmallVec::<[u64; 6]>::from_slice(pads);
    let [x, weight] = [x, weight].map(|sizes| Type::of(DType::F32, sizes));
    let conv = Conv { strides: strides.clone(), dilations: dilations.clone(), pads: pads.clone() };
    let of_both = [x.clone(), weight.clone()];
    let inference = ir::ops::Inference { operands: &of_both, declared: &[] };
    let y = ir::ops::Operator::infer(&conv, &inference).expect("well-typed").remove(0);
    let input = ConvGradInput { strides: strides.clone(), dilations: dilations.clone(), pads: pads.clone() };
    let of_weight = ConvGradWeight { strides, dilations, pads };
    vec![
        (conv.into(), of_both.to_vec(), y.clone()),
        (input.into(), vec![weight.clone(), y.clone()], x.clone()),
        (of_weight.into(), vec![x, y], weight),
    ]
}

/// The system's loader may find cuDNN or not.
#[test]
fn without_cudnn_it_is_said_where_it_was_looked_for() {
    let folders = Folders { given: vec!["/nowhere".into()], installed: vec![] };
    if let Err(error) = Functions::open(&folders).map(drop) {
        let error = error.to_string();
        assert!(
            ["in /nowhere", "pip install nvidia-", "--device cpu"].iter().all(|part| error.contains(part)),
            "{error}"
        );
    }
}

#[test]
#[ignore = "needs cuDNN"]
fn every_convolution_of_the_samples_has_a_plan_in_every_type() {
    let mut count = 0;
    for sample in samples() {
        if !matches!(sample.op, Op::Conv(_) | Op::ConvGradInput(_) | Op::ConvGradWeight(_)) {
            continue;
        }
        let (operands, results) = (sample.operand_types(), sample.result_types().expect("well-typed"));
        for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
            for shift in [0, 1] {
                let instruction = dense(sample.op.clone(), dtype, &operands, &results, shift);
                if is_of_nothing(&instruction) {
                    continue;
                }
                let graph = Graph::of(&instruction).unwrap_or_else(|error| panic!("{error}"));
                plan(&graph, Single::Full).unwrap_or_else(|error| panic!("{error}"));
                count += 1;
            }
        }
    }
    assert!(count > 200, "{count}");
}

/// Convolutions of ResNet and other models, as large as in training. A plan that needs more than the allowed room must not be chosen.
#[test]
#[ignore = "needs cuDNN"]
fn convolutions_of_large_models_keep_to_their_room() {
    let models: [[&[u64]; 5]; 6] = [
        [&[256, 3, 224, 224], &[64, 3, 7, 7], &[2, 2], &[1, 1], &[3, 3, 3, 3]],
        [&[256, 64, 56, 56], &[64, 64, 3, 3], &[1, 1], &[1, 1], &[1, 1, 1, 1]],
        [&[256, 256, 56, 56], &[512, 256, 1, 1], &[2, 2], &[1, 1], &[0, 0, 0, 0]],
        [&[128, 96, 112, 112], &[96, 1, 3, 3], &[2, 2], &[1, 1], &[0, 0, 1, 1]],
        [&[64, 80, 3000], &[384, 80, 3], &[1], &[1], &[1, 1]],
        [&[8, 32, 32, 64, 64], &[64, 32, 3, 3, 3], &[1, 2, 2], &[1, 1, 1], &[1, 1, 1, 1, 1, 1]],
    ];
    for sizes in models {
        for (op, operands, result) in convolutions(sizes) {
            for (dtype, single) in
                [(DType::F32, Single::Full), (DType::F32, Single::Tf32), (DType::BF16, Single::Full)]
            {
                let instruction = dense(op.clone(), dtype, &operands, std::slice::from_ref(&result), 0);
                let graph = Graph::of(&instruction).unwrap_or_else(|error| panic!("{error}"));
                let plan = plan(&graph, single).unwrap_or_else(|error| panic!("{error}"));
                assert!(plan.workspace <= MOST_ROOM);
                println!("{:18} {dtype} {single:?} {:?} {}", op.name(), sizes[0], plan.workspace);
            }
        }
    }
}

#[test]
#[ignore = "needs cuDNN"]
fn a_result_of_a_wrong_size_is_refused_in_cudnns_words() {
    let (op, operands, _) =
        convolutions([&[2, 4, 8, 8], &[4, 4, 3, 3], &[1, 1], &[1, 1], &[1, 1, 1, 1]]).remove(0);
    let wrong = [Type::of(DType::F32, &[2, 4, 8, 7])];
    let graph = Graph::of(&dense(op, DType::F32, &operands, &wrong, 0)).expect("not its to see");
    let error = plan(&graph, Single::Full).map(drop).unwrap_err().to_string();
    assert!(error.starts_with("cuDNN, a convolution: CUDNN_STATUS_BAD_PARAM"), "{error}");
}

/// The gradient holds all scores. If they need more than the allowed room, the gradient is divided.
#[test]
#[ignore = "needs cuDNN"]
fn attention_and_its_gradient_have_plans() {
    for (sizes, dtype, causal, expected) in [
        ([8, 12, 12, 1024, 64], DType::BF16, true, 1),
        ([4, 32, 8, 2048, 128], DType::F16, true, 4),
        ([16, 16, 16, 2048, 64], DType::BF16, true, 8),
        ([2, 4, 4, 1000, 64], DType::F16, false, 1),
        ([1, 6, 2, 77, 128], DType::BF16, true, 1),
        // The scores of one sample exceed the room.
        ([1, 16, 16, 4096, 64], DType::BF16, true, 2),
        ([2, 16, 4, 4096, 128], DType::BF16, true, 4),
    ] {
        let [forward, gradient] = attention(sizes, dtype, causal);
        for (instruction, expected) in [(forward, 1), (gradient, expected)] {
            let mut graphs = HashSet::new();
            let take = |graph: &Graph| {
                if graphs.insert(graph.clone()) { plan(graph, Single::Full).map(drop) } else { Ok(()) }
            };
            let count = fewest_shares(&instruction, take).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(count, expected, "{sizes:?}");
        }
    }
}
