//! Values in memory of the host, beside a GPU: the stand-in's losses are PyTorch's in every order of the streams, and a copy or an
//! update that comes too early shows.

use crate::planted::{NEAR, all_races, distance_of};
use crate::stages::check;
use ir::DType;
use passes::offload::{Classes, Offload};
use passes::precision::Precision;
use runtime::cuda::host::Order;
use runtime::cuda::launches::Launches;
use runtime::cuda::lower::lower;
use runtime::cuda::program::{Command, CudaProgram, Place, Stream, Task};
use runtime::lower::{LowerOptions, Target};
use runtime::program::{Instruction, Part, Program, Section};
use std::sync::Arc;
use testing::models::losses::{check_losses, optimizers};
use testing::models::{self, adamw, done, split};
use trainyard::lowering;
use trainyard::pipeline::CompilationPlan;
use trainyard::verification::Mode;

/// Every value of these classes rests on the host, however small it is.
fn offload(classes: Classes) -> Option<Offload> {
    Some(Offload { classes, least: 1, ..Offload::default() })
}

fn all() -> Option<Offload> {
    offload(Classes::ALL.into_iter().map(|(class, _)| class).fold(Classes::NONE, Classes::with))
}

fn lowered(program: Program) -> CudaProgram {
    done(lower(Arc::new(program)))
}

/// An order of the streams, of which one is served first.
fn first(stream: Stream) -> Order {
    Order { threads: 0, first: Some(stream) }
}

fn commands(cuda: &mut CudaProgram) -> impl Iterator<Item = &mut Command> {
    cuda.sections.iter_mut().flatten()
}

#[test]
#[ignore = "needs a C++ compiler"]
fn every_class_of_values_may_rest_on_the_host() {
    // The head of this model is the embedding, which stays then.
    for (class, name) in Classes::ALL.into_iter().filter(|(class, _)| !class.embeddings) {
        let counted = |program| {
            let cuda = lowered(program);
            assert_eq!(all_races(&cuda), 0, "{name}");
            let launches = Section::ALL.map(|(section, _)| cuda.launches(section));
            let sum = |of: fn(&Launches) -> usize| launches.iter().map(of).sum::<usize>();
            assert!(sum(|launches| launches.copies) > 0, "{name} is copied");
            // Activations are not updated.
            assert_eq!(sum(|launches| launches.on_host) > 0, name != "activations", "{name}");
            cuda
        };
        assert!(distance_of(offload(class), Order::default(), counted) <= NEAR, "{name}");
    }
}

#[test]
#[ignore = "needs a C++ compiler"]
fn the_streams_of_the_host_may_run_first_or_last() {
    for stream in Stream::ALL {
        let ordered = |program| {
            let cuda = lowered(program);
            assert_eq!(all_races(&cuda), 0);
            cuda
        };
        assert!(distance_of(all(), first(stream), ordered) <= NEAR, "{stream:?} first");
    }
}

/// The main stream reads a weight before it has come.
#[test]
#[ignore = "needs a C++ compiler"]
fn a_copy_that_comes_too_late_shows() {
    let forget = |program| {
        let mut cuda = lowered(program);
        let uploads: Vec<_> = commands(&mut cuda)
            .filter(|command| command.stream == Stream::Upload)
            .filter_map(|command| command.records)
            .collect();
        assert!(!uploads.is_empty());
        let computing = commands(&mut cuda).filter(|command| command.stream != Stream::Upload);
        computing.for_each(|command| command.waits.retain(|event| !uploads.contains(event)));
        assert!(all_races(&cuda) > 0);
        cuda
    };
    assert!(distance_of(all(), first(Stream::Main), forget) > NEAR);
}

/// A weight is fetched into memory that an earlier kernel still reads.
#[test]
#[ignore = "needs a C++ compiler"]
fn a_slot_that_is_filled_before_its_last_use_shows() {
    let forget = |program| {
        let mut cuda = lowered(program);
        let uploads = commands(&mut cuda).filter(|command| command.stream == Stream::Upload);
        uploads.for_each(|command| command.waits.clear());
        assert!(all_races(&cuda) > 0);
        cuda
    };
    assert!(distance_of(all(), first(Stream::Upload), forget) > NEAR);
}

/// The host updates a weight whose gradient is still on its way.
#[test]
#[ignore = "needs a C++ compiler"]
fn an_update_before_its_gradient_shows() {
    let forget = |program| {
        let mut cuda = lowered(program);
        let updates = commands(&mut cuda).filter(|command| matches!(command.task, Task::Host));
        updates.for_each(|command| command.waits.clear());
        assert!(all_races(&cuda) > 0);
        cuda
    };
    assert!(distance_of(all(), first(Stream::Host), forget) > NEAR);
}

/// Commands touch the host by copies and by instructions there alone, and those of the device lie on it.
#[test]
#[ignore = "needs a C++ compiler"]
fn kernels_touch_the_device_alone() {
    let placed = |program| {
        let mut cuda = lowered(program);
        for command in commands(&mut cuda) {
            let on_host = |place: &Place| place.region.is_on_host();
            let touched = command.reads.iter().chain(&command.writes).filter(|place| on_host(place)).count();
            match command.task {
                Task::Copy(_) => assert_eq!(touched, 1, "{command:?}"),
                Task::Host => assert!(touched > 0 && command.writes.iter().all(on_host), "{command:?}"),
                _ => assert_eq!(touched, 0, "{command:?}"),
            }
        }
        cuda
    };
    assert!(distance_of(all(), Order::default(), placed) <= NEAR);
}

/// Ranks that share weights and states, and bf16, whose casts of weights the host has no part in: all 20 losses, captured as graphs.
#[test]
#[ignore = "needs a C++ compiler"]
fn values_of_each_rank_rest_on_the_host() {
    let (model, key) = (&models::GPT2_DYNAMO, "losses_adamw_f32");
    let (_, optimizer, bounds) = optimizers(&model.bounds, Mode::Cuda).into_iter().next().expect("two");
    for spmd in ["mesh=dp:2, zero=3", "mesh=dp:2*tp:2, zero=1"] {
        let (optimizer, offload) = (optimizer.clone(), all());
        let plan = CompilationPlan { optimizer, offload, spmd: split(spmd), ..CompilationPlan::default() };
        check_losses(model, &model.compiled(model.batch, plan), Mode::Cuda, key, bounds);
    }
    let precision = Precision { compute: DType::BF16, ..Precision::default() };
    let (optimizer, offload) = (optimizer.clone(), all());
    let plan = CompilationPlan { optimizer, offload, precision, ..CompilationPlan::default() };
    check_losses(model, &model.compiled(model.batch, plan), Mode::Cuda, key, [4e-3; 2]);
}

/// Microbatches of a pipeline keep their activations on the host, each in a slot of its own; clipping and fp16 look at gradients there, and
/// rows of an embedding are looked up there.
#[test]
#[ignore = "needs a C++ compiler"]
fn stages_and_guarded_updates_have_values_on_the_host() {
    let classes = "--offload optimizer,parameters,gradients,activations,embeddings --offload-least 1B";
    check(&format!("gpt2.dynamo {classes} --mesh pp=2 --global-batch 8"));
    check(&format!("llama.dynamo {classes} --clip 0.01 --recompute full --global-batch 4"));
    check(&format!("mlp.dynamo {classes} --fp16 --global-batch 4"));
}

/// A loop looks at the gradient's norm before the states change, so the update can be run up to each of its outputs.
#[test]
fn the_update_may_stop_behind_each_output() {
    let precision = Precision { compute: DType::F16, ..Precision::default() };
    let plan =
        CompilationPlan { optimizer: adamw(), offload: all(), precision, ..CompilationPlan::default() };
    let subject = models::GPT2_DYNAMO.compiled(models::GPT2_DYNAMO.batch, plan);
    let options = LowerOptions { target: Target::Cuda, ..LowerOptions::default() };
    let cuda = lowered(done(lowering::lower(&subject.compilation.training, &options)));
    let update = cuda.program.section(Section::Update);
    for output in cuda.program.outputs.iter().filter(|output| output.section == Section::Update) {
        let place = Place::of(&output.view);
        let makes = |own: &Instruction| own.results.iter().any(|result| Place::of(result).meets(&place));
        // Some outputs are constants.
        let Some(made) = update.iter().rposition(makes) else { continue };
        assert!(cuda.of_instructions(Part::Update, &(0..made + 1)).is_some(), "{}", output.name);
    }
}
