//! Prints what lies in the arena of a training program at its fullest, largest first.
//!
//!     cargo run -p cpu --example memory -- FILE.ir [one|early|many]
//!
//! `one` (the default) is the program of steps of one microbatch, `early` the same with early updates, `many` that of several.

use ir::analysis::{Lifetime, Lifetimes};
use ir::{Blob, Module, Op};
use program::lower::{LowerOptions, lower};
use program::{Instruction, Microbatches, Program, Region, Section, UpdateTime, View};
use std::collections::BTreeMap;
use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let file = arguments.first().ok_or("give a program in text")?;
    let (microbatches, update) = match arguments.get(1).map(String::as_str) {
        None | Some("one") => (Microbatches::One, UpdateTime::Late),
        Some("early") => (Microbatches::One, UpdateTime::Early),
        Some("many") => (Microbatches::Many, UpdateTime::Late),
        Some(_) => return Err("one, early or many microbatches?".into()),
    };
    let mut module = ir::text::parse(&std::fs::read_to_string(file)?)?;
    fill_constants(&mut module);
    module.outputs.retain(|o| ["loss", "loss.sum", "lr", "grad_norm"].contains(&o.name.as_str()));
    let program = lower(&module, &LowerOptions { microbatches, update, ..LowerOptions::of(cpu::TARGET) })?;
    let memory = program.memory;
    println!("states {} arena {} lower bound {}", memory.states, memory.arena, memory.lower_bound);
    let buffers = buffers(&program);
    let alive = |at: u32| buffers.iter().filter(move |b| b.lifetime.first <= at && at <= b.lifetime.last);
    let end = buffers.iter().map(|b| b.lifetime.last).max().unwrap_or(0);
    let fullest = (0..=end).max_by_key(|&at| alive(at).map(|b| b.bytes).sum::<u64>()).unwrap_or(0);
    let mut there: Vec<&Buffer> = alive(fullest).collect();
    there.sort_by_key(|buffer| std::cmp::Reverse(buffer.bytes));
    let bytes: u64 = there.iter().map(|b| b.bytes).sum();
    println!("{bytes} bytes in {} buffers besides the states at position {fullest} of {end}", there.len());
    if let Some(instruction) = program.sections.iter().flatten().nth(fullest as usize) {
        println!("there: {} {}", instruction.name(), instruction.origin);
    }
    for Buffer { bytes, lifetime: Lifetime { first, last }, what } in there {
        println!("{bytes:>12}  {first:>5}..={last:<5} {what}");
    }
    Ok(())
}

/// Text has no bytes of the model's file, and lowering wants those of constants; where they lie does not hang on them.
fn fill_constants(module: &mut Module) {
    let read = module.nodes().filter_map(|(_, node)| match &node.op {
        Op::Constant(constant) => Some(constant.data),
        _ => None,
    });
    for data in read.collect::<Vec<_>>() {
        let row = &mut module.data[data];
        if row.bytes().is_none() {
            row.blob = Blob::File(Some(vec![0u8; row.ty.bytes().unwrap_or(0) as usize].into()));
        }
    }
}

struct Buffer {
    bytes: u64,
    lifetime: Lifetime,
    what: String,
}

/// What lies behind the states, read back from the places that instructions use.
fn buffers(program: &Program) -> Vec<Buffer> {
    let mut found: Vec<(u64, String)> = Vec::new();
    let mut accesses: Vec<(usize, u32)> = Vec::new();
    let mut carried: Vec<usize> = Vec::new();
    let mut at: BTreeMap<u64, usize> = BTreeMap::new(); // the buffer that begins there
    let planned = |view: &View| view.region == Region::Arena && view.base >= program.memory.states;
    let [prepare, microbatch] =
        [Section::Prepare, Section::Microbatch].map(|s| program.section(s).len() as u32);
    for input in program.inputs.iter().filter_map(|input| Some((input.view.as_ref()?, &input.name))) {
        at.insert(input.0.base, found.len());
        accesses.push((found.len(), prepare));
        found.push((input.0.bytes().end - input.0.base, format!("input {}", input.1)));
    }
    for (position, instruction) in program.sections.iter().flatten().enumerate() {
        let position = position as u32;
        for view in instruction.operands.iter().filter(|view| planned(view)) {
            if let Some(&buffer) = at.get(&view.base) {
                accesses.push((buffer, position));
            }
        }
        let shared = |index: usize| instruction.in_place.iter().any(|pair| pair.1 as usize == index);
        let results = instruction.results.iter().enumerate().filter(|(_, view)| planned(view));
        for (index, view) in results {
            if !shared(index) || !at.contains_key(&view.base) {
                at.insert(view.base, found.len());
                found.push((view.bytes().end - view.base, describe(instruction, view)));
            }
            let buffer = at[&view.base];
            accesses.push((buffer, position));
            if instruction.accumulates {
                carried.push(buffer);
            }
        }
        if let Some(view) = &instruction.scratch {
            accesses.push((found.len(), position));
            found.push((view.bytes().end - view.base, format!("scratch of {}", describe(instruction, view))));
        }
    }
    for output in program.outputs.iter().filter(|output| planned(&output.view)) {
        let end = match output.section {
            Section::Microbatch => prepare + microbatch,
            _ => program.sections.iter().map(Vec::len).sum::<usize>() as u32,
        };
        if let Some(&buffer) = at.get(&output.view.base) {
            accesses.push((buffer, end));
        }
    }
    let mut lifetimes = Lifetimes::new(found.len(), prepare..prepare + microbatch + 1);
    accesses.into_iter().for_each(|(buffer, position)| lifetimes.access(buffer, position));
    carried.into_iter().for_each(|buffer| lifetimes.carry(buffer));
    let lifetimes = lifetimes.finish().into_iter().zip(found);
    lifetimes
        .filter_map(|(lifetime, (bytes, what))| Some(Buffer { bytes, lifetime: lifetime?, what }))
        .collect()
}

fn describe(instruction: &Instruction, view: &View) -> String {
    format!("{} {} {}", instruction.name(), view, instruction.origin)
}
