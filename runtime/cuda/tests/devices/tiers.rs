//! Memories beside the device: the processor allocates the bytes of the plan, and each state rests on its tier, on the processor and on the
//! stand-in for a GPU.

use cpu::Cpu;
use cuda::device::Cuda;
use cuda::host::{Host, Order};
use program::Target;
use program::device::{Device, DeviceError, ProgramId, step};
use program::lower::{LowerOptions, lower};
use program::{Program, Region, Section};
use std::path::Path;
use std::sync::Arc;

/// A step whose momentum `u` rests on the host, and whose sum `s`, which is an output too, rests in a file.
const STEP: &str = r#"trainyard-ir 1
    module @m training {
      state @w : f32[1024] parameter = zeros
      state @u : f32[1024] optimizer host = zeros
      state @s : f32[1024] optimizer disk = zeros
      func @train(%0 "x" batched : f32[2, 1024], %1 = @w, %2 = @u, %3 = @s) {
        %4 = mul %0, %1 : f32[2, 1024]
        %5 = reduce %4 {kind = sum, dims = [0, 1], keep = false} : f32[]
        %6 = reduce %0 {kind = sum, dims = [0], keep = false} : f32[1024] !{bwd}
        %7 = accumulate %5 : f32[] !{update}
        %8 = accumulate %6 : f32[1024] !{update}
        %9 = copy %8 {to = host} : f32[1024] !{update}
        %10 = add %2, %9 : f32[1024] !{update, on host}
        %11 = copy %3 {to = host} : f32[1024] !{update}
        %12 = add %11, %10 : f32[1024] !{update, on host}
        %13 = copy %12 {to = disk} : f32[1024] !{update}
        %14 = copy %10 {to = device} : f32[1024] !{update}
        %15 = sub %1, %14 : f32[1024] !{update}
      }
      output "loss" = %7
      output "sum" = %13
      update @w = %15
      update @u = %10
      update @s = %13
    }"#;

const BYTES: u64 = 4 * 1024;

fn f32s(value: f32, count: usize) -> Vec<u8> {
    value.to_le_bytes().repeat(count)
}

#[test]
fn each_memory_has_the_bytes_of_its_plan() {
    let program = lower(&ir::text::parse(STEP).unwrap(), &LowerOptions::of(cpu::TARGET)).unwrap();
    let memory = program.memory;
    assert_eq!([memory.states, memory.host.states, memory.disk.states], [BYTES; 3]);
    let regions: Vec<Region> = program.states.iter().map(|state| state.view.region).collect();
    assert_eq!(regions, [Region::Arena, Region::Host, Region::Disk]);
    // The host holds the gradient and the sum while it adds; the file holds its state alone.
    assert!((2 * BYTES..=4 * BYTES).contains(&memory.host.total), "{memory:?}");
    assert!(memory.host.lower_bound <= memory.host.total);
    assert_eq!(memory.disk.total, BYTES);
    let cpu = Cpu::new(vec![Arc::new(program)], Some(1)).unwrap();
    assert_eq!(cpu.allocated(), memory.arena + memory.constants + memory.host.total);
}

fn program(text: &str, target: Target) -> Arc<Program> {
    let options = LowerOptions::of(target);
    Arc::new(lower(&ir::text::parse(text).unwrap(), &options).unwrap())
}

/// A processor, with its file in a folder.
fn processor(text: &str, folder: &Path) -> Result<Cpu, DeviceError> {
    Cpu::with_file(vec![program(text, cpu::TARGET)], Some(1), Some(folder))
}

/// The stand-in of a GPU, with its file in a folder.
fn stand_in(text: &str, folder: &Path) -> Result<Cuda<Host>, DeviceError> {
    let programs = vec![cuda::lower::lower(program(text, cuda::TARGET)).unwrap()];
    Cuda::alone(Host::new(Order::default()), programs, Some(folder))
}

/// Two steps on a device.
fn check(device: &mut dyn Device) {
    let id = ProgramId(0);
    for (state, value) in [1.0, 2.0, 3.0].into_iter().enumerate() {
        device.write_state(id, state, &f32s(value, 1024)).unwrap();
    }
    let read = |device: &dyn Device, state| device.read_state(id, state).unwrap().into_owned();
    for state in 0..3 {
        assert_eq!(read(device, state), f32s(state as f32 + 1.0, 1024), "state {state} as it was written");
    }
    // The gradient is 1: u is 3 and then 4, s gains both, and w loses both.
    for sum in [6.0, 10.0] {
        let outputs = step(device, id, &[vec![f32s(0.5, 2048)]]).unwrap();
        assert_eq!(outputs["sum"], [f32s(sum, 1024)]);
    }
    let later = device.read_later(id, vec![1, 0]).unwrap();
    assert_eq!(device.collect(later).unwrap()[0], f32s(10.0, 1024));
    for (state, value) in [-6.0, 4.0, 10.0].into_iter().enumerate() {
        assert_eq!(read(device, state), f32s(value, 1024), "state {state}");
    }
}

#[test]
fn states_outlast_steps_in_every_memory() {
    let folder = tempfile::tempdir().unwrap();
    check(&mut processor(STEP, folder.path()).unwrap());
}

#[test]
#[ignore = "needs a C++ compiler"]
fn states_outlast_steps_in_every_memory_of_a_gpu() {
    let folder = tempfile::tempdir().unwrap();
    check(&mut stand_in(STEP, folder.path()).unwrap());
}

#[test]
fn a_folder_that_is_not_there_takes_no_file() {
    let folder = tempfile::tempdir().unwrap().path().join("nowhere");
    for made in [processor(STEP, &folder).map(drop), stand_in(STEP, &folder).map(drop)] {
        let error = made.unwrap_err().to_string();
        assert!(error.starts_with("cannot make a file of 4096 bytes in "), "{error}");
    }
}

/// The host has each value between the device and the file.
#[test]
fn a_gpu_copies_nothing_between_its_memory_and_a_file() {
    let straight = STEP.replace("copy %12 {to = disk}", "copy %8 {to = disk}");
    let error = cuda::lower::lower(program(&straight, cuda::TARGET)).unwrap_err().to_string();
    assert!(error.contains("a GPU copies values between a file and the host alone"), "{error}");
}

/// A weight `t`, whose place in the file is far beyond the end of the device's memory.
const FETCHED: &str = r#"trainyard-ir 1
    module @m training {
      state @large : f32[65536] parameter disk = zeros
      state @t : f32[1024] parameter disk = zeros
      func @train(%0 "x" batched : f32[2, 1024], %1 = @large, %2 = @t) {
        %3 = copy %2 {to = host} : f32[1024]
        %4 = copy %3 {to = device} : f32[1024]
        %5 = add %0, %4 : f32[2, 1024]
        %6 = log %5 : f32[2, 1024]
        %7 = reduce %6 {kind = sum, dims = [0, 1], keep = false} : f32[]
        %8 = accumulate %7 : f32[] !{update}
      }
      output "loss" = %8
    }"#;

/// The logarithm of -1 is told, and neither the copy of an infinity from the file nor its sum.
fn check_cause(device: &mut dyn Device) {
    let id = ProgramId(0);
    let state = [f32s(f32::INFINITY, 1), f32s(0.0, 1023)].concat();
    device.write_state(id, 1, &state).unwrap();
    device.run(id, Section::Prepare).unwrap();
    device.write_input(id, 0, &f32s(-1.0, 2048)).unwrap();
    let found = device.first_non_finite(id).unwrap().expect("a logarithm is NaN");
    // A GPU's kernel has the sum in it.
    assert!(["log", "add+log"].contains(&&*found.operator) && found.infinity.is_none(), "{found:?}");
}

#[test]
fn a_number_that_is_not_finite_is_found_behind_a_file() {
    let folder = tempfile::tempdir().unwrap();
    check_cause(&mut processor(FETCHED, folder.path()).unwrap());
}

#[test]
#[ignore = "needs a C++ compiler"]
fn a_number_that_is_not_finite_is_found_behind_a_file_and_a_gpu() {
    let folder = tempfile::tempdir().unwrap();
    check_cause(&mut stand_in(FETCHED, folder.path()).unwrap());
}
