//! Tests of a rank whose device fails at any call, also where bytes are read or written, as a GPU does, which reports errors late; and of a
//! rank that gets no thread. All ranks end, with its error and its number.

use super::*;
use crate::Cpu;
use comm::local::Local;
use program::Section;
use program::device::{Later, NonFinite};
use ranks::{Rank, Ranks};
use std::borrow::Cow;
use std::ops::Range;
use std::sync::Mutex;
use std::thread;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Call {
    WriteState,
    ReadState,
    WriteInput,
    ReadOutput,
    ReadLater,
    Collect,
    RunAhead,
    Settle,
}

/// A device that fails at one of these calls.
struct Late {
    cpu: Cpu,
    fails_at: Option<Call>,
}

impl Late {
    fn come_to(&self, call: Call) -> Result<(), DeviceError> {
        let failed = || DeviceError::driver("an illegal address");
        if self.fails_at == Some(call) { Err(failed()) } else { Ok(()) }
    }
}

impl Device for Late {
    fn program(&self, program: ProgramId) -> &Arc<Program> {
        self.cpu.program(program)
    }

    fn write_state(&mut self, program: ProgramId, state: usize, bytes: &[u8]) -> Result<(), DeviceError> {
        self.come_to(Call::WriteState)?;
        self.cpu.write_state(program, state, bytes)
    }

    fn read_state(&self, program: ProgramId, state: usize) -> Result<Cow<'_, [u8]>, DeviceError> {
        self.come_to(Call::ReadState)?;
        self.cpu.read_state(program, state)
    }

    fn write_input(&mut self, program: ProgramId, input: usize, bytes: &[u8]) -> Result<(), DeviceError> {
        self.come_to(Call::WriteInput)?;
        self.cpu.write_input(program, input, bytes)
    }

    fn run(&mut self, program: ProgramId, section: Section) -> Result<(), DeviceError> {
        self.cpu.run(program, section)
    }

    fn end_microbatch(&mut self, program: ProgramId) -> Result<(), DeviceError> {
        self.cpu.end_microbatch(program)
    }

    fn run_update(&mut self, program: ProgramId, instructions: Range<usize>) -> Result<(), DeviceError> {
        self.cpu.run_update(program, instructions)
    }

    fn read_output(&self, program: ProgramId, output: usize) -> Result<Vec<u8>, DeviceError> {
        self.come_to(Call::ReadOutput)?;
        self.cpu.read_output(program, output)
    }

    fn read_later(&mut self, program: ProgramId, outputs: Vec<usize>) -> Result<Later, DeviceError> {
        self.come_to(Call::ReadLater)?;
        self.cpu.read_later(program, outputs)
    }

    fn collect(&mut self, later: Later) -> Result<Vec<Vec<u8>>, DeviceError> {
        self.come_to(Call::Collect)?;
        self.cpu.collect(later)
    }

    fn run_ahead(&mut self, program: ProgramId) -> Result<bool, DeviceError> {
        self.come_to(Call::RunAhead)?;
        self.cpu.run_ahead(program)
    }

    fn allocated(&self) -> u64 {
        self.cpu.allocated()
    }

    fn settle(&mut self) -> Result<(), DeviceError> {
        self.come_to(Call::Settle)?;
        self.cpu.settle()
    }

    fn first_non_finite(&mut self, program: ProgramId) -> Result<Option<NonFinite>, DeviceError> {
        self.cpu.first_non_finite(program)
    }
}

const FIRST: ProgramId = ProgramId(0);

/// Returns two ranks, of which the second fails at this call, and the ranks that were reported as failed.
fn ranks(fails_at: Option<Call>) -> (Ranks, Arc<Mutex<Vec<u64>>>) {
    let text = r#"trainyard-ir 1
        module @m placed mesh [dp=2] {
          state @w : f32[4] {dp} parameter = zeros
          func @train(%0 = @w, %1 "x" : f32[4] {dp}) {
            %2 = add %1, %0 : f32[4] {dp}
            %3 = all_gather %2 : f32[4]
          }
          output "y" = %3
        }"#;
    let module = ir::text::parse(text).unwrap();
    let programs = vec![Arc::new(lower(&module, &LowerOptions::of(crate::TARGET)).unwrap())];
    let local = Local::new(2);
    let device = |rank| {
        let cpu =
            Cpu::with(programs.clone(), Some(1), Some(Arc::new(local.communicator(rank))), None).unwrap();
        Box::new(Late { cpu, fails_at: fails_at.filter(|_| rank == 1) }) as Box<dyn Device + Send>
    };
    let devices = (0..2).map(device).collect();
    let ended = Arc::new(Mutex::new(vec![]));
    let told = ended.clone();
    let abort = Box::new(move |rank| told.lock().unwrap().push(rank));
    (Ranks::of(devices, local, abort), ended)
}

/// Runs a step in which every call happens on every rank.
fn every_call(ranks: &mut Ranks) -> Result<(), DeviceError> {
    let x: Vec<u8> = [1f32, 2.0, 3.0, 4.0].into_iter().flat_map(f32::to_le_bytes).collect();
    let step = |mut rank: Rank<'_>, ()| {
        rank.device.run_ahead(FIRST)?;
        rank.write_whole_state(FIRST, 0, &[0; 16])?;
        rank.write_rows(FIRST, 0, &x, 0..4)?;
        rank.device.run(FIRST, Section::Prepare)?;
        rank.device.run(FIRST, Section::Microbatch)?;
        let later = rank.device.read_later(FIRST, vec![0])?;
        assert_eq!(rank.device.read_output(FIRST, 0)?, x);
        assert_eq!(rank.device.collect(later)?, [&x[..]]);
        assert_eq!(*rank.device.read_state(FIRST, 0)?, [0; 8]);
        Ok(())
    };
    ranks.run(vec![(), ()], step).map(drop)
}

#[test]
fn a_rank_whose_device_fails_at_any_call_ends_all_with_its_number() {
    let (mut sound, ended) = ranks(None);
    every_call(&mut sound).unwrap();
    assert!(ended.lock().unwrap().is_empty());
    use Call::{Collect, ReadLater, ReadOutput, ReadState, RunAhead, Settle, WriteInput, WriteState};
    for call in [WriteState, ReadState, WriteInput, ReadOutput, ReadLater, Collect, RunAhead, Settle] {
        let (mut failing, ended) = ranks(Some(call));
        let error = every_call(&mut failing).unwrap_err().to_string();
        assert_eq!((error.as_str(), ended.lock().unwrap()[0]), ("rank 1: an illegal address", 1), "{call:?}");
        assert!(matches!(every_call(&mut failing), Err(DeviceError::Ended)), "{call:?}");
        assert!(matches!(failing.read_state(FIRST, 0), Err(DeviceError::Ended)), "{call:?}");
    }
}

#[test]
fn a_rank_that_gets_no_thread_ends_all() {
    let (mut ranks, ended) = ranks(None);
    // No machine has this much memory for a stack.
    let thread = |rank| thread::Builder::new().stack_size(if rank == 1 { 1 << 60 } else { 1 << 20 });
    let begun = Mutex::new(false);
    let run = |rank: Rank<'_>, ()| {
        *begun.lock().unwrap() = true;
        rank.device.run(FIRST, Section::Microbatch)
    };
    let error = ranks.on_threads(thread, vec![(), ()], run).unwrap_err().to_string();
    assert!(error.starts_with("rank 1: cannot start 1 threads"), "{error}");
    assert!(*begun.lock().unwrap() && ended.lock().unwrap().contains(&1));
    assert!(matches!(ranks.read_state(FIRST, 0), Err(DeviceError::Ended)));
}
