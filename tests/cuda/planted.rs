//! Faults planted in a GPU's program, each with the check that finds it: the order of commands, numbers that differ from PyTorch's, or
//! memory that a command accesses without declaring it.

use cuda::device::Cuda;
use cuda::host::{Host, Order};
use cuda::lower::{lower, races};
use cuda::program::{Command, CudaProgram, File, Kernel, Stream, Task};
use passes::offload::Offload;
use program::{Instruction, Program, Section, StagePrograms, View};
use ranks::Ranks;
use std::sync::Arc;
use testing::models::losses::{losses, numbers};
use testing::models::{self, adamw, done};
use trainyard::diagnostics::{Severity, render};
use trainyard::failure::Failure;
use trainyard::lowering;
use trainyard::pipeline::CompilationPlan;
use trainyard::verification::against;
use trainyard::verification::execute::Machine;

/// The number of steps whose losses are compared.
const STEPS: usize = 4;

/// The largest distance of a changed program's first losses from PyTorch's; infinite if the program does not run.
fn distance(order: Order, change: impl Fn(Program) -> CudaProgram) -> f64 {
    distance_of(None, order, change)
}

/// As [`distance`], for a program with values in other memories.
pub(super) fn distance_of(
    offload: Option<Offload>,
    order: Order,
    change: impl Fn(Program) -> CudaProgram,
) -> f64 {
    let worst = run(offload, Host::new(order), STEPS, change).unwrap_or(f64::INFINITY);
    println!("{worst:.1e} from PyTorch's losses");
    worst
}

/// The largest distance of the first losses from PyTorch's, or the reason why the program does not run.
fn run(
    offload: Option<Offload>,
    host: Host,
    steps: usize,
    change: impl Fn(Program) -> CudaProgram,
) -> Result<f64, String> {
    let fixture = &models::GPT2_DYNAMO;
    let plan = CompilationPlan { optimizer: adamw(), offload, ..CompilationPlan::default() };
    let subject = fixture.compiled(fixture.batch, plan);
    let module = &subject.compilation.training;
    let numbers = numbers(fixture, &subject, "train");
    let label = done(against::label_name(module));
    let inputs = done(against::microbatches(module, &numbers, label.as_deref()));
    let make = |programs: StagePrograms| {
        let cuda = change(Program::clone(programs.first()));
        Cuda::with(host, vec![cuda]).map(|cuda| Ranks::alone(Box::new(cuda)))
    };
    let mut machine = done(Machine::on(module, cuda::TARGET, inputs.len(), &subject.start, make));
    let mut worst = 0.0f64;
    for expected in losses(fixture, "losses_adamw_f32").iter().take(steps) {
        let failed = |failure: Failure| render(Severity::Error, &failure.diagnostics(), false);
        let execution = machine.step(&inputs).map_err(failed)?;
        let loss = execution.loss().expect("a step has a loss");
        worst = if loss.is_nan() { f64::INFINITY } else { worst.max((loss - expected).abs()) };
    }
    Ok(worst)
}

/// The bound of the losses without a fault.
pub(super) const NEAR: f64 = 2e-5;

fn lowered(program: Program) -> CudaProgram {
    done(lower(Arc::new(program)))
}

pub(super) fn all_races(cuda: &CudaProgram) -> usize {
    Section::ALL.iter().map(|(section, _)| races(cuda.section(*section)).len()).sum()
}

#[test]
#[ignore = "needs a C++ compiler"]
fn where_nothing_is_planted_nothing_is_found_in_any_order() {
    for (threads, first) in [(0, Stream::Main), (1, Stream::Side), (2, Stream::Side)] {
        let order = Order { threads, first: Some(first) };
        let check = |program| {
            let cuda = lowered(program);
            assert_eq!(all_races(&cuda), 0);
            cuda
        };
        assert!(distance(order, check) <= NEAR);
    }
}

/// The check names the commands. If the side stream runs first, its commands read values that are not there yet.
#[test]
#[ignore = "needs a C++ compiler"]
fn a_missing_wait_between_streams_is_a_race_and_shows() {
    let forget = |program| {
        let mut cuda = lowered(program);
        let commands = &mut cuda.sections[Section::Microbatch as usize];
        let side = commands.iter_mut().filter(|command| command.stream == Stream::Side);
        side.for_each(|command| command.waits.clear());
        assert!(all_races(&cuda) > 0);
        cuda
    };
    assert!(distance(Order { threads: 0, first: Some(Stream::Side) }, forget) > NEAR);
}

/// Two tensors that live at the same time get the same place, so a kernel reads another value than was written.
#[test]
#[ignore = "needs a C++ compiler"]
fn two_tensors_at_one_place_show() {
    let overlap = |mut program: Program| {
        let (from, to) = both_alive(program.section(Section::Microbatch));
        for instruction in program.sections.iter_mut().flatten() {
            let all = instruction.operands.iter_mut().chain(&mut instruction.results);
            all.filter(|view| view.base == from.base && view.region == from.region)
                .for_each(|view| view.base = to.base);
        }
        lowered(program)
    };
    assert!(distance(Order::default(), overlap) > NEAR);
}

/// A result of an instruction and a result of a later one. The first is still read after the second was made.
fn both_alive(instructions: &[Instruction]) -> (View, View) {
    let made_once = |view: &View| {
        let same = |other: &&View| other.base == view.base;
        instructions.iter().flat_map(|i| &i.results).filter(same).count() == 1
    };
    for (index, instruction) in instructions.iter().enumerate() {
        for later in &instructions[index + 1..] {
            let [first, second] = [&instruction.results[0], &later.results[0]];
            let after = instructions.iter().skip_while(|i| !std::ptr::eq(*i, later)).skip(1);
            let is_read = { after }.any(|i| i.operands.iter().any(|operand| operand.base == first.base));
            let alike = first.bytes().end - first.bytes().start == second.bytes().end - second.bytes().start;
            if is_read && alike && first.base != second.base && made_once(first) && made_once(second) {
                return (second.clone(), first.clone());
            }
        }
    }
    panic!("no two tensors are alive at once")
}

/// The kernel of a chain is off by a few elements, but stays within the memory of the program.
#[test]
#[ignore = "needs a C++ compiler"]
fn a_wrong_index_shows() {
    let shift = |program| {
        let mut cuda = lowered(program);
        let is_chain =
            |kernel: &&mut Kernel| kernel.name.starts_with("chain") && kernel.text.contains("store(a");
        let chain = cuda.kernels.iter_mut().find(is_chain).expect("a chain");
        chain.text = chain.text.replacen("store(a", "store(8 + a", 1);
        cuda
    };
    assert!(distance(Order::default(), shift) > NEAR);
}

/// A barrier is removed from the function that all sums over a block use. Some order of threads shows the fault.
#[test]
#[ignore = "needs a C++ compiler"]
fn a_missing_barrier_shows_in_some_order_of_threads() {
    let forget = |program| {
        let mut cuda = lowered(program);
        for kernel in &mut cuda.kernels {
            for file in &mut kernel.files {
                *file = without_barrier(file);
            }
        }
        cuda
    };
    let found = (0..4).any(|threads| distance(Order { threads, first: None }, forget) > NEAR);
    assert!(found);
}

/// The prelude without the barrier before the sums of warps are read; other files as they are.
fn without_barrier(file: &'static File) -> &'static File {
    const BARRIER: &str = "of_warps[warp] = x;\n    __syncthreads();";
    let text = file.text.replace(BARRIER, "of_warps[warp] = x;");
    if text == file.text {
        return file;
    }
    Box::leak(Box::new(File { text: Box::leak(text.into_boxed_str()), ..*file }))
}

/// Checks the first step of a changed program: the stand-in compares the accesses of each command with its declared accesses.
fn checked(change: impl Fn(Program) -> CudaProgram) -> Result<f64, String> {
    run(None, Host::new(Order::default()).checked(), 1, change)
}

/// The program with a changed line in an elementwise kernel of floats.
fn with_line(program: Program, old: &str, new: impl Fn(&str) -> String) -> CudaProgram {
    let mut cuda = lowered(program);
    let is_it = |kernel: &&mut Kernel| {
        let text = &kernel.text;
        kernel.name.starts_with("chain_") && text.contains("(const float* a0") && text.contains(old)
    };
    let kernel = cuda.kernels.iter_mut().find(is_it).expect("there is a chain of floats");
    let start = kernel.text.find(old).expect("it has the line");
    let end = start + kernel.text[start..].find(';').expect("a line ends");
    let made = new(&kernel.text[start..end]);
    kernel.text.replace_range(start..end, &made);
    cuda
}

/// The elements beside an operand are multiplied by zero. No loss shows the fault until one of them is not finite.
#[test]
#[ignore = "needs a C++ compiler"]
fn a_kernel_that_reads_beside_its_operand_is_told() {
    let beside = |program| with_line(program, "const float x0 = ", |line| format!("{line} + 0.0f * a0[-1]"));
    assert!(distance(Order::default(), beside) <= NEAR);
    let error = checked(beside).expect_err("it reads what is not its own");
    assert!(error.contains("chain_") && error.contains("reads 4 bytes before operand"), "{error}");
}

#[test]
#[ignore = "needs a C++ compiler"]
fn a_kernel_that_writes_beside_its_result_is_told() {
    let written = |line: &str| {
        let (result, _) = line["store(".len()..].split_once(' ').expect("a place in the result");
        format!("{line}, {result}[-1] = r0.at[0]")
    };
    let beside = |program| with_line(program, "store(a", written);
    let error = checked(beside).expect_err("it writes what is not its own");
    assert!(error.contains("chain_") && error.contains("which it does not declare as written"), "{error}");
}

/// Waits between streams follow from the accesses that commands declare. A command that declares too little is a race that `races` cannot
/// find.
#[test]
#[ignore = "needs a C++ compiler"]
fn a_command_that_does_not_say_all_that_it_reads_is_told() {
    let silent = |program| {
        let mut cuda = lowered(program);
        let commands = &mut cuda.sections[Section::Microbatch as usize];
        let multiplies = |command: &&mut Command| matches!(command.task, Task::Multiply(_));
        let command = commands.iter_mut().find(multiplies).expect("there is a multiplication");
        command.reads.remove(0);
        cuda
    };
    let error = checked(silent).expect_err("it reads what it does not say");
    assert!(error.contains("a multiplication [") && error.contains("does not declare as read"), "{error}");
}

/// The section of a microbatch has work for both streams, so the faults above can occur.
#[test]
fn gradients_of_weights_run_aside() {
    let fixture = &models::GPT2_DYNAMO;
    let subject = fixture.subject(fixture.batch, adamw());
    let options = program::lower::LowerOptions::of(cuda::TARGET);
    let cuda = lowered(done(lowering::lower(&subject.compilation.training, &options)));
    let microbatch = cuda.section(Section::Microbatch);
    let aside = microbatch.iter().filter(|command| command.stream == Stream::Side);
    assert!({ aside }.all(|command| matches!(command.task, Task::Multiply(_))));
    assert!(microbatch.iter().any(|command| command.stream == Stream::Side));
    assert!(microbatch.iter().any(|command| !command.waits.is_empty()));
}
