//! The order of a mesh's commands on three streams: two commands that access the same memory never run at once.

use cuda::device::Cuda;
use cuda::host::{Host, Order};
use cuda::lower::{Libraries, lower, lower_with, races};
use cuda::program::{CudaProgram, Stream};
use passes::buckets::Buckets;
use passes::{Manager, PassContext, Pipeline};
use program::lower::LowerOptions;
use program::{Part, Program, UpdateTime};
use ranks::Ranks;
use std::sync::Arc;
use testing::models::losses::{losses, numbers};
use testing::models::{self, adamw, done, split};
use trainyard::lowering;
use trainyard::verification::against;
use trainyard::verification::execute::Machine;

/// A GPT-2 whose gradients are reduced in several buckets. `spmd` has the mesh, as options of the pass.
fn gpt2(spmd: &str, update: UpdateTime) -> CudaProgram {
    let fixture = &models::GPT2_DYNAMO;
    let mut module = fixture.subject(fixture.batch, adamw()).compilation.training;
    let passes = vec![split(spmd).into(), Buckets { bytes: 1 << 14 }.into()];
    let ran =
        Manager::default().run(&Pipeline { passes }, &mut module, &mut PassContext::default(), |_, _, _| {});
    ran.unwrap_or_else(|failure| panic!("{spmd}: {failure}"));
    let options = LowerOptions { update, ..LowerOptions::of(cuda::TARGET) };
    done(lower(Arc::new(done(lowering::lower(&module, &options)))))
}

const MESHES: [&str; 6] = [
    "mesh=dp:2",
    "mesh=tp:2",
    "mesh=dp:2, zero=1",
    "mesh=dp:2, zero=2",
    "mesh=dp:2, zero=3",
    "mesh=dp:2*tp:2, zero=1, sequence-parallel",
];

#[test]
fn nothing_races_with_an_exchange_in_any_part_of_a_step() {
    for spmd in MESHES {
        for update in [UpdateTime::Late, UpdateTime::Early] {
            let cuda = gpt2(spmd, update);
            for (part, name) in Part::ALL {
                let found = races(cuda.part(part));
                assert!(found.is_empty(), "{spmd}, {update:?}, {name}: {found:?}");
            }
        }
    }
}

/// Shows that the check above finds faults.
#[test]
fn commands_race_without_the_waits_of_exchanges_or_the_waits_for_them() {
    for spmd in ["mesh=dp:2", "mesh=dp:2, zero=2"] {
        let cuda = gpt2(spmd, UpdateTime::Late);
        let commands = cuda.part(Part::Update);
        for of_exchanges in [true, false] {
            let mut commands = commands.to_vec();
            let changed =
                commands.iter_mut().filter(|command| (command.stream == Stream::Exchange) == of_exchanges);
            changed.for_each(|command| command.waits.clear());
            assert!(!races(&commands).is_empty(), "{spmd}");
        }
    }
}

/// A device with `TRAINYARD_SIDE_STREAM=0`.
struct WithoutSideStream;

impl Libraries for WithoutSideStream {
    fn has_side_stream(&self) -> bool {
        false
    }
}

fn on_side_stream(cuda: &CudaProgram) -> usize {
    let commands = Part::ALL.iter().flat_map(|(part, _)| cuda.part(*part));
    commands.filter(|command| command.stream == Stream::Side).count()
}

#[test]
#[ignore = "needs a C++ compiler"]
fn without_a_side_stream_all_products_run_on_the_main_stream_and_losses_are_the_same() {
    let fixture = &models::MLP_DYNAMO;
    let subject = fixture.subject(fixture.batch, adamw());
    let module = &subject.compilation.training;
    let numbers = numbers(fixture, &subject, "train");
    let inputs = done(against::microbatches(module, &numbers, done(against::label_name(module)).as_deref()));
    let losses_by = |lowered: &dyn Fn(Arc<Program>) -> CudaProgram| -> (usize, Vec<f64>) {
        let mut aside = 0;
        let mut machine = done(Machine::on(module, cuda::TARGET, inputs.len(), &subject.start, |programs| {
            let cuda = lowered(programs.first().clone());
            aside = on_side_stream(&cuda);
            for (part, name) in Part::ALL {
                assert_eq!(races(cuda.part(part)), [], "{name}");
            }
            let host = Host::new(Order { first: Some(Stream::Side), ..Order::default() });
            Ok(Ranks::alone(Box::new(Cuda::with(host.checked(), vec![cuda])?)))
        }));
        let losses = (0..4).map(|_| done(machine.step(&inputs)).loss().expect("a step has a loss")).collect();
        (aside, losses)
    };
    let (aside, with) = losses_by(&|program| done(lower(program)));
    let (none, without) = losses_by(&|program| done(lower_with(program, &mut WithoutSideStream)));
    assert!(aside > 0 && none == 0, "{aside} commands on the side stream, and {none} without it");
    assert_eq!(with, without);
    assert!((with[0] - losses(fixture, "losses_adamw_f32")[0]).abs() < 1e-5, "{with:?}");
}
