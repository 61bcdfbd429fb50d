//! The order of a mesh's commands on three streams: no two that touch the same memory run at once.

use passes::buckets::Buckets;
use passes::{Manager, PassContext, Pipeline};
use runtime::cuda::lower::{lower, races};
use runtime::cuda::program::{CudaProgram, Stream};
use runtime::lower::{LowerOptions, Target};
use runtime::program::{Part, UpdateTime};
use std::sync::Arc;
use testing::models::{self, adamw, done, split};
use trainyard::lowering;

/// A GPT-2 whose gradients travel in several buckets, on a mesh given as the options of the pass `spmd`.
fn gpt2(spmd: &str, update: UpdateTime) -> CudaProgram {
    let fixture = &models::GPT2_DYNAMO;
    let mut module = fixture.subject(fixture.batch, adamw()).compilation.training;
    let passes = vec![split(spmd).into(), Buckets { bytes: 1 << 14 }.into()];
    let ran =
        Manager::default().run(&Pipeline { passes }, &mut module, &mut PassContext::default(), |_, _, _| {});
    ran.unwrap_or_else(|failure| panic!("{spmd}: {failure}"));
    let options = LowerOptions { target: Target::Cuda, update, ..LowerOptions::default() };
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

/// Shows that the check above can fail.
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
