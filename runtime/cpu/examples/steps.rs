//! Times the training steps of a program in text on the CPU, kernel by kernel, on weights and inputs drawn from a seed.
//!
//!     cargo run --release -p cpu --example steps -- FILE.ir [STEPS] [THREADS]

use cpu::Cpu;
use ir::data::Blob;
use ir::interp::{Missing, initial_states};
use ir::{DType, Tensor, random};
use program::device::{Device, ProgramId};
use program::lower::{LowerOptions, lower};
use program::{Microbatches, Program, Section};
use std::collections::BTreeMap;
use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let file = arguments.first().ok_or("give a program in text")?;
    let steps: usize = arguments.get(1).map_or(Ok(20), |text| text.parse())?;
    let threads: Option<usize> = arguments.get(2).map(|text| text.parse()).transpose()?;
    let mut module = ir::text::parse(&std::fs::read_to_string(file)?)?;
    for data in module.data.values_mut().filter(|data| data.bytes().is_none()) {
        // What a file would have: indices and masks of zeros are as good as any for the time they take.
        data.blob = Blob::Inline(vec![0; data.ty.bytes().unwrap_or(0) as usize].into());
    }
    module.outputs.retain(|output| ["loss", "loss.sum", "grad_norm"].contains(&output.name.as_str()));
    let options = LowerOptions { microbatches: Microbatches::One, ..LowerOptions::of(cpu::TARGET) };
    let program = Arc::new(lower(&module, &options)?);
    println!("{:?}, hash {:016x}", program.memory, program.hash);
    let mut cpu = Cpu::new(vec![program.clone()], threads)?;
    let id = ProgramId(0);
    for (index, tensor) in initial_states(&module, 0, Missing::Draw)?.values().enumerate() {
        cpu.write_state(id, index, &tensor.to_bytes())?;
    }
    for (index, input) in program.inputs.iter().enumerate() {
        cpu.write_input(id, index, &drawn(&input.ty, index as u64).to_bytes())?;
    }
    let mut walls = Vec::new();
    for _ in 0..steps {
        let start = Instant::now();
        for (section, _) in Section::ALL {
            cpu.run(id, section)?;
        }
        walls.push(start.elapsed());
    }
    walls.sort();
    println!("median {:.2?}, least {:.2?} of {steps} steps", walls[steps / 2], walls[0]);
    kernels(&mut cpu, &program, steps)
}

/// Small integers, normal floats, ones for bools.
fn drawn(ty: &ir::Type, stream: u64) -> Tensor {
    let sizes: Vec<usize> = ty.sizes().unwrap_or_default().iter().map(|&size| size as usize).collect();
    let normal = (0..sizes.iter().product()).map(|i: usize| random::normal(0, stream, i as u64));
    match ty.dtype {
        DType::Bool => Tensor::splat(ty.dtype, sizes, 1.0),
        dtype if dtype.is_float() => Tensor::float(dtype, sizes, normal.collect()),
        dtype => Tensor::int(dtype, sizes, normal.map(|x| (x.abs() * 20.0) as i64).collect()),
    }
}

/// Prints where the time of a step goes, by kernel and sizes of the first result.
fn kernels(cpu: &mut Cpu, program: &Program, steps: usize) -> Result<(), Box<dyn Error>> {
    let mut times: BTreeMap<String, (Duration, usize)> = BTreeMap::new();
    for _ in 0..steps {
        for (section, name) in Section::ALL {
            let timed = cpu.run_timed(ProgramId(0), section)?;
            for (instruction, time) in program.section(section).iter().zip(timed) {
                let sizes = |views: &[program::View]| {
                    views.first().map(|view| view.layout.sizes.to_vec()).unwrap_or_default()
                };
                let key = format!(
                    "{name} {} {:?} => {:?}",
                    instruction.name(),
                    sizes(&instruction.operands),
                    sizes(&instruction.results)
                );
                let entry = times.entry(key).or_default();
                *entry = (entry.0 + time, entry.1 + 1);
            }
        }
    }
    let mut times: Vec<_> = times.into_iter().collect();
    times.sort_by_key(|(_, (time, _))| std::cmp::Reverse(*time));
    let total: Duration = times.iter().map(|(_, (time, _))| *time).sum();
    println!("{:.2?} a step, instruction by instruction", total / steps as u32);
    for (key, (time, count)) in times.iter().take(40) {
        println!("{:>9.3} ms {:>4} x {key}", time.as_secs_f64() * 1e3 / steps as f64, count / steps);
    }
    Ok(())
}
