//! Values in the memory of the host and in a file, beside a GPU. The stand-in's losses are PyTorch's whichever stream runs first, and a
//! copy or an update that comes too early changes them.

use crate::planted::{NEAR, all_races, distance_of};
use crate::stages::check;
use cuda::host::Order;
use cuda::launches::Launches;
use cuda::lower::{lower, races};
use cuda::program::{Command, CudaProgram, Stream, Task, TouchedBytes};
use ir::{DType, Tier};
use passes::offload::{Classes, Offload};
use passes::precision::Precision;
use program::lower::LowerOptions;
use program::{Instruction, Part, Program, Region, Section};
use std::collections::BTreeSet;
use std::sync::Arc;
use testing::models::losses::{check_losses, optimizers};
use testing::models::{self, adamw, done, split};
use trainyard::lowering;
use trainyard::pipeline::{Batch, CompilationPlan};
use trainyard::verification::Mode;

/// Options that move every value of these classes to the host, however small it is.
fn offload(classes: Classes) -> Option<Offload> {
    Some(Offload { classes, least: 1, ..Offload::default() })
}

fn all() -> Option<Offload> {
    offload(Classes::ALL.into_iter().map(|(class, _)| class).fold(Classes::NONE, Classes::with))
}

/// Options that move everything, with room on the host for `host` bytes of states. The other states rest in a file.
fn in_file(host: u64) -> Option<Offload> {
    all().map(|offload| Offload { host: Some(host), ..offload })
}

/// Bytes of about a third of the states: the host has room for these.
const SOME: u64 = 400 << 10;

fn lowered(program: Program) -> CudaProgram {
    done(lower(Arc::new(program)))
}

/// An order in which this stream runs first.
fn first(stream: Stream) -> Order {
    Order { threads: 0, first: Some(stream) }
}

fn commands(cuda: &mut CudaProgram) -> impl Iterator<Item = &mut Command> {
    cuda.sections.iter_mut().flatten()
}

#[test]
#[ignore = "needs a C++ compiler"]
fn every_class_of_values_may_rest_on_the_host() {
    // The head of this model is the embedding, so the embedding stays on the device.
    for (class, name) in Classes::ALL.into_iter().filter(|(class, _)| !class.embeddings) {
        let counted = |program| {
            let cuda = lowered(program);
            assert_eq!(all_races(&cuda), 0, "{name}");
            let launches = Section::ALL.map(|(section, _)| cuda.launches(section));
            let sum = |of: fn(&Launches) -> usize| launches.iter().map(of).sum::<usize>();
            assert!(sum(|launches| launches.copies) > 0, "{name} is copied");
            // Activations have no update on the host.
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

/// The same kernels run on the same numbers. So the losses are those of a program whose values rest on the host.
#[test]
#[ignore = "needs a C++ compiler"]
fn states_rest_in_a_file_whichever_stream_runs_first() {
    let on_host = distance_of(all(), Order::default(), lowered);
    assert!(on_host <= NEAR);
    let in_file_with = |host, order| {
        let counted = |program: Program| {
            let states = program.memory.disk.states;
            assert_eq!(program.memory.host.states > 0, host > 0);
            let cuda = lowered(program);
            assert_eq!(all_races(&cuda), 0);
            let copies = Section::ALL.map(|(section, _)| cuda.launches(section).with_file);
            assert!(states > 0 && copies[Section::Microbatch as usize] > 0, "{copies:?}");
            assert!(copies[Section::Update as usize] > 0, "{copies:?}");
            cuda
        };
        distance_of(in_file(host), order, counted)
    };
    for stream in Stream::ALL {
        assert_eq!(in_file_with(0, first(stream)), on_host, "{stream:?} first");
    }
    assert_eq!(in_file_with(SOME, Order::default()), on_host);
}

/// Planted: the device fetches a weight that the host has not read from the file yet.
#[test]
#[ignore = "needs a C++ compiler"]
fn a_read_of_a_file_that_comes_too_late_shows() {
    let forget = |program| {
        let mut cuda = lowered(program);
        let read: Vec<_> = commands(&mut cuda)
            .filter(|command| matches!(command.task, Task::Disk))
            .filter_map(|command| command.records)
            .collect();
        assert!(!read.is_empty());
        let fetches = commands(&mut cuda).filter(|command| command.stream == Stream::Upload);
        fetches.for_each(|command| command.waits.retain(|event| !read.contains(event)));
        assert!(all_races(&cuda) > 0);
        cuda
    };
    assert!(distance_of(in_file(0), first(Stream::Upload), forget) > NEAR);
}

/// Planted: the file receives a state that the host has not computed yet.
#[test]
#[ignore = "needs a C++ compiler"]
fn a_write_of_a_file_that_comes_too_early_shows() {
    let forget = |program| {
        let mut cuda = lowered(program);
        let writes = commands(&mut cuda).filter(|command| command.writes.iter().any(is_in_file));
        writes.for_each(|command| command.waits.clear());
        assert!(all_races(&cuda) > 0);
        cuda
    };
    assert!(distance_of(in_file(0), first(Stream::Disk), forget) > NEAR);
}

fn is_in_file(place: &TouchedBytes) -> bool {
    place.region == Region::Disk
}

/// A state in a file gets the value of a state on the host, and that state adds the old value of the first. Only the place in the file
/// orders the two copies.
const SWAP: &str = r#"trainyard-ir 1
    module @m training {
      state @s : f32[1024] optimizer disk = zeros
      state @t : f32[1024] optimizer host = zeros
      func @train(%0 = @s, %1 = @t) {
        %2 = copy %0 {to = host} : f32[1024] !{update}
        %3 = copy %1 {to = disk} : f32[1024] !{update}
        %4 = add %2, %1 : f32[1024] !{update, on host}
      }
      update @s = %3
      update @t = %4
    }"#;

/// One stream keeps the copies in order. If each direction had its own stream, the place in the file would order them.
#[test]
fn a_state_is_read_from_its_file_before_it_is_written_there() {
    let options = LowerOptions::of(cuda::TARGET);
    let module = ir::text::parse(SWAP).expect("it parses");
    let mut cuda = lowered(program::lower::lower(&module, &options).expect("it lowers"));
    let update = Section::Update as usize;
    assert_eq!(all_races(&cuda), 0);
    let disk = |command: &Command| command.stream == Stream::Disk;
    assert_eq!(cuda.sections[update].iter().map(disk).collect::<Vec<_>>(), [true, true, false]);
    cuda.sections[update][0].stream = Stream::Side;
    assert!(races(&cuda.sections[update]).contains(&(0, 1)));
}

/// Planted: the main stream reads a weight before it has arrived.
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

/// Planted: a weight is fetched into memory that an earlier kernel still reads.
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

/// Planted: the host updates a weight before the gradient has arrived.
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

/// Only copies and instructions on the host access the host's memory, and only copies with the host access the file. All other commands
/// access the device.
#[test]
#[ignore = "needs a C++ compiler"]
fn kernels_touch_the_device_alone() {
    let placed = |program| {
        let mut cuda = lowered(program);
        for command in commands(&mut cuda) {
            let on_host = |place: &TouchedBytes| place.region.is_on_host();
            let all = || command.reads.iter().chain(&command.writes);
            let touched = all().filter(|place| on_host(place)).count();
            assert_eq!(all().any(is_in_file), matches!(command.task, Task::Disk), "{command:?}");
            match command.task {
                Task::Disk => assert_eq!((all().count(), touched), (2, 1), "{command:?}"),
                Task::Copy(_) => assert_eq!(touched, 1, "{command:?}"),
                Task::Host => assert!(touched > 0 && command.writes.iter().all(on_host), "{command:?}"),
                _ => assert_eq!(touched, 0, "{command:?}"),
            }
        }
        cuda
    };
    assert!(distance_of(in_file(SOME), Order::default(), placed) <= NEAR);
}

/// All 20 losses of two microbatches, and of two devices that share states, each with a file of its own.
#[test]
#[ignore = "needs a C++ compiler"]
fn states_of_each_rank_rest_in_a_file_of_its_own() {
    let model = &models::GPT2_DYNAMO;
    let (_, optimizer, bounds) =
        optimizers(&model.bounds, Mode::On(cuda::TARGET)).into_iter().next().expect("two");
    let check = |plan: CompilationPlan, rows| {
        let plan = CompilationPlan { optimizer: optimizer.clone(), ..plan };
        let subject = model.compiled(rows, plan);
        let states = subject.compilation.training.states.values();
        let tiers: BTreeSet<Tier> = states.map(|state| state.tier).collect();
        assert_eq!(tiers.len(), 3, "{tiers:?}");
        check_losses(model, &subject, Mode::On(cuda::TARGET), "losses_adamw_f32", bounds);
    };
    let batch = Batch { global: Some(model.batch), data_ranks: 1 };
    let microbatches = CompilationPlan { offload: in_file(SOME), batch, ..CompilationPlan::default() };
    check(microbatches, model.batch / 2);
    let spmd = split("mesh=dp:2, zero=3");
    check(CompilationPlan { offload: in_file(SOME / 2), spmd, ..CompilationPlan::default() }, model.batch);
}

/// Ranks that share weights and states, and bf16, whose casts of weights stay on the device: all 20 losses, captured as graphs.
#[test]
#[ignore = "needs a C++ compiler"]
fn values_of_each_rank_rest_on_the_host() {
    let (model, key) = (&models::GPT2_DYNAMO, "losses_adamw_f32");
    let (_, optimizer, bounds) =
        optimizers(&model.bounds, Mode::On(cuda::TARGET)).into_iter().next().expect("two");
    for spmd in ["mesh=dp:2, zero=3", "mesh=dp:2*tp:2, zero=1"] {
        let (optimizer, offload) = (optimizer.clone(), all());
        let plan = CompilationPlan { optimizer, offload, spmd: split(spmd), ..CompilationPlan::default() };
        check_losses(model, &model.compiled(model.batch, plan), Mode::On(cuda::TARGET), key, bounds);
    }
    let precision = Precision { compute: DType::BF16, ..Precision::default() };
    let (optimizer, offload) = (optimizer.clone(), all());
    let plan = CompilationPlan { optimizer, offload, precision, ..CompilationPlan::default() };
    check_losses(model, &model.compiled(model.batch, plan), Mode::On(cuda::TARGET), key, [4e-3; 2]);
}

/// Microbatches of a pipeline keep their activations on the host, each in its own slot. Clipping and fp16 read gradients there, and rows of
/// an embedding are looked up there.
#[test]
#[ignore = "needs a C++ compiler"]
fn stages_and_guarded_updates_have_values_on_the_host() {
    let classes = "--offload optimizer,parameters,gradients,activations,embeddings --offload-least 1B";
    check(&format!("gpt2.dynamo {classes} --mesh pp=2 --global-batch 8"));
    check(&format!("llama.dynamo {classes} --clip 0.01 --recompute full --global-batch 4"));
    check(&format!("mlp.dynamo {classes} --fp16 --global-batch 4"));
}

/// The same with the flags of the command line: several microbatches on a mesh, stages and half precision. States for which the host has no
/// room rest in files.
#[test]
#[ignore = "needs a C++ compiler"]
fn states_in_files_compose_with_meshes_microbatches_and_stages() {
    let folder = std::env::temp_dir();
    let classes = "--offload optimizer,parameters,gradients,activations --offload-least 1B --global-batch 8";
    for (model, flags, host) in [
        ("gpt2.dynamo", "--mesh dp=2 --zero 3", "2400KiB"),
        ("gpt2.dynamo", "--mesh pp=2 --clip 0.01", "4000KiB"),
        ("llama.dynamo", "--bf16", "4000KiB"),
    ] {
        check(&format!("{model} {classes} {flags} --memory host={host},disk={}", folder.display()));
    }
}

/// The training loop reads the gradient's norm before the states change, so the update can be run up to each of its outputs.
#[test]
fn the_update_may_stop_behind_each_output() {
    let precision = Precision { compute: DType::F16, ..Precision::default() };
    let plan =
        CompilationPlan { optimizer: adamw(), offload: all(), precision, ..CompilationPlan::default() };
    let subject = models::GPT2_DYNAMO.compiled(models::GPT2_DYNAMO.batch, plan);
    let options = LowerOptions::of(cuda::TARGET);
    let cuda = lowered(done(lowering::lower(&subject.compilation.training, &options)));
    let update = cuda.program.section(Section::Update);
    for output in cuda.program.outputs.iter().filter(|output| output.section == Section::Update) {
        let place = TouchedBytes::of(&output.view);
        let makes =
            |own: &Instruction| own.results.iter().any(|result| TouchedBytes::of(result).meets(&place));
        // Some outputs are constants.
        let Some(made) = update.iter().rposition(makes) else { continue };
        assert!(cuda.of_instructions(Part::Update, &(0..made + 1)).is_some(), "{}", output.name);
    }
}
