//! The updates of optimizers on the processor, beside the memory bandwidth that `doctor --write` measures.
//!
//!     cargo bench --bench optimizers -- [THREADS…]
//!
//! An update reads and writes each byte of its state once, so its share of the bandwidth says how near it is to the fastest update
//! that there can be. The bandwidth and the updates are measured in turns; the ratio is that of the medians.

use cpu::{Cpu, rates};
use ir::Module;
use passes::optimizer::{Algorithm, Moments, Optimizer};
use passes::{PassContext, Transform};
use program::device::{Device, ProgramId};
use program::lower::{LowerOptions, lower};
use program::{Microbatches, Section};
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

/// Elements of the parameter: far more than any cache has.
const ELEMENTS: u64 = 1 << 25;

/// Turns, in each of which everything is measured once.
const TURNS: usize = 5;

/// Runs of an update in a turn, of which the median counts.
const RUNS: usize = 3;

/// An update rule, and the bytes that it reads and writes for each element, for a parameter and a gradient in f32.
struct Rule {
    name: &'static str,
    moments: String,
    algorithm: Algorithm,
    bytes: f64,
}

fn rules() -> Vec<Rule> {
    // The gradient is read; the parameter and the moments are read and written.
    let (gradient, parameter) = (4.0, 8.0);
    let rule = |name: &'static str, moments: &str, bytes: f64| {
        let given =
            |word: &'static str| (word == "moments" && !moments.is_empty()).then(|| moments.to_owned());
        let algorithm = Algorithm::named(name).and_then(|named| named.with_words(given).ok());
        let algorithm = algorithm.unwrap_or_else(|| panic!("there is no {name} with moments in {moments}"));
        Rule { name, moments: moments.to_owned(), algorithm, bytes: gradient + parameter + bytes }
    };
    vec![
        rule("adamw", "f32", 16.0),
        rule("adamw", "bf16", 8.0),
        // With a number of four bytes for each block.
        rule("adamw", "8bit", 4.0 + 16.0 / Moments::BLOCK as f64),
        rule("lion", "", 8.0),
        // Its moments are those of rows and columns.
        rule("adafactor", "", 0.0),
    ]
}

fn main() -> Result<(), Box<dyn Error>> {
    let given = std::env::args().skip(1).filter_map(|argument| argument.parse().ok());
    let mut threads: Vec<usize> = given.collect();
    if threads.is_empty() {
        threads = vec![1, std::thread::available_parallelism()?.get()];
        threads.dedup();
    }
    for threads in threads {
        measure(threads)?;
    }
    Ok(())
}

fn measure(threads: usize) -> Result<(), Box<dyn Error>> {
    let rules = rules();
    let mut devices = rules.iter().map(|rule| device(rule, threads)).collect::<Result<Vec<_>, _>>()?;
    let (mut memory, mut updates) = (vec![], vec![vec![]; rules.len()]);
    for _ in 0..TURNS {
        for (device, seconds) in devices.iter_mut().zip(&mut updates) {
            seconds.push(update(device)?);
        }
        memory.push(rates::memory(&rates::Sizes::default(), Some(threads))?);
    }
    let memory = median(memory);
    println!("{threads} threads: memory {:.1} GB/s", memory * 1e-9);
    for (rule, seconds) in rules.iter().zip(updates) {
        let seconds = median(seconds);
        let rate = rule.bytes * ELEMENTS as f64 / seconds;
        let (ns, share) = (seconds * 1e9 / ELEMENTS as f64, 100.0 * rate / memory);
        println!(
            "  {:10} {:4} {ns:.2} ns an element, {:.1} GB/s, {share:.0} %",
            rule.name,
            rule.moments,
            rate * 1e-9
        );
    }
    Ok(())
}

/// A device with a parameter, its moments and its gradient.
fn device(rule: &Rule, threads: usize) -> Result<Cpu, Box<dyn Error>> {
    let mut module = step();
    let optimizer = Optimizer { algorithm: rule.algorithm, weight_decay: 0.01, ..Optimizer::default() };
    optimizer.run(&mut module, &mut PassContext::default())?;
    // The outputs of a run are no part of the update.
    module.outputs.clear();
    let options = LowerOptions { microbatches: Microbatches::One, ..LowerOptions::of(cpu::TARGET) };
    let mut cpu = Cpu::new(vec![Arc::new(lower(&module, &options)?)], Some(threads))?;
    let gradient: Vec<f32> = (0..4099).map(|index| ir::random::normal(1, 0, index) as f32).collect();
    let bytes: Vec<u8> = gradient.iter().flat_map(|number| number.to_le_bytes()).collect();
    let bytes: Vec<u8> = bytes.into_iter().cycle().take(4 * ELEMENTS as usize).collect();
    cpu.write_input(ProgramId(0), 0, &bytes)?;
    cpu.run(ProgramId(0), Section::Microbatch)?;
    // The first run meets pages that were never touched.
    cpu.run(ProgramId(0), Section::Update)?;
    Ok(cpu)
}

/// Seconds of an update.
fn update(cpu: &mut Cpu) -> Result<f64, Box<dyn Error>> {
    let mut times = vec![];
    for _ in 0..RUNS {
        times.push(cpu.run_timed(ProgramId(0), Section::Update)?.iter().sum::<Duration>().as_secs_f64());
    }
    Ok(median(times))
}

/// A step whose only parameter has the negated input as its gradient.
fn step() -> Module {
    let ty = format!("f32[{}, 4096]", ELEMENTS / 4096);
    let text = format!(
        "trainyard-ir 1
module @update training {{
  state @w : {ty} parameter = zeros
  func @train(%0 \"gradient\" : {ty}, %1 = @w) {{
    %2 = neg %0 : {ty} !{{bwd}}
    %3 = accumulate %2 : {ty} !{{update}}
  }}
  output \"grad.w\" = %3
}}
"
    );
    ir::text::parse(&text).unwrap_or_else(|error| panic!("{error}"))
}

fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}
