//! Checkpoints of several ranks: any layout is read back on any other, and every fault is detected.

use super::super::folders::Checkpoints;
use super::super::load::Checkpoint;
use super::super::testing::description;
use super::super::{DESCRIPTION, Description, StateBytes, StateSource};
use super::*;
use bytes::Bytes;
use files::fault::{Fault, count, inject};
use ir::ViewStep;
use proptest::prelude::*;
use std::borrow::Cow;
use std::fs;

/// The sizes of the states without padding.
const STATES: [(&str, &[u64]); 3] = [("w", &[12, 8]), ("b", &[12]), ("step", &[])];

/// A layout of the states: the mesh, the sharding of each dim of `w` and of `b`, and the rows of padding of `w`.
#[derive(Clone, Debug)]
struct Layout {
    mesh: &'static str,
    w: [&'static str; 2],
    b: &'static str,
    padding: u64,
}

impl Layout {
    fn module(&self) -> Module {
        let rows = 12 + self.padding;
        let text = format!(
            r#"trainyard-ir 1
            module @m placed mesh [{}] {{
              state @w : f32[{rows}, 8] {{{}, {}}} parameter = zeros
              state @b : f32[12] {{{}}} parameter = zeros
              state @step : i64[] counter = zeros
              func @train(%0 = @w, %1 = @b, %2 = @step) {{
              }}
            }}"#,
            self.mesh, self.w[0], self.w[1], self.b
        );
        let mut module = ir::text::parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
        let first = module.states.keys().next().unwrap();
        if self.padding > 0 {
            module.states[first].view.push(ViewStep::Pad { dim: 0, after: self.padding });
        }
        module
    }
}

/// Returns the whole values of the states without padding.
fn whole(number: u8) -> StateBytes {
    let width = |name: &str| if name == "step" { 8 } else { 4 };
    let value = |(name, dims): &(&str, &[u64])| {
        let bytes = dims.iter().product::<u64>() as usize * width(name);
        let bytes: Bytes = (0..bytes).map(|index| (index % 251) as u8 ^ number).collect();
        ((*name).to_owned(), bytes)
    };
    STATES.iter().map(value).collect()
}

/// The rank's parts of these values.
struct PartsOf<'a> {
    module: &'a Module,
    rank: u64,
    whole: &'a StateBytes,
}

impl StateSource for PartsOf<'_> {
    fn state(&self, name: &str) -> Option<Cow<'_, [u8]>> {
        let state = self.module.states.values().find(|state| state.name == name)?;
        let padded = padding::add(state, self.whole[name].clone())?;
        let parts = Parts::of(&state.name, &state.ty, &self.module.mesh).unwrap();
        Some(Cow::Owned(parts.cut(self.rank, &padded).into_owned()))
    }
}

fn described(module: &Module, step: u64) -> Description {
    let of_other = description(step);
    Description::new(module, of_other.position, of_other.data)
}

fn save(
    checkpoints: &Checkpoints,
    module: &Module,
    step: u64,
    whole: &StateBytes,
) -> Result<(), CheckpointError> {
    let temporary = checkpoints.begin(step)?;
    let shard = |rank| {
        let states = PartsOf { module, rank, whole };
        checkpoints.write_shard(&temporary, step, module, rank, &states)
    };
    let shards = (0..module.mesh.devices()).map(shard).collect::<Result<Vec<_>, _>>();
    match shards {
        Ok(shards) => checkpoints.commit(&temporary, &described(module, step), shards).map(drop),
        Err(error) => {
            checkpoints.abandon(&temporary);
            Err(error)
        }
    }
}

/// Returns a folder with the checkpoints of these steps.
fn saved(layout: &Layout, steps: &[u64]) -> (tempfile::TempDir, Checkpoints) {
    let folder = tempfile::tempdir().unwrap();
    let checkpoints = Checkpoints::new(&folder.path().join("checkpoints"));
    for &step in steps {
        save(&checkpoints, &layout.module(), step, &whole(step as u8)).unwrap();
    }
    (folder, checkpoints)
}

const SQUARE: Layout = Layout { mesh: "dp=2, tp=2", w: ["dp", "tp"], b: "dp", padding: 0 };

/// Returns layouts whose dims divide.
fn layouts() -> impl Strategy<Value = Layout> {
    proptest::sample::select(vec![
        SQUARE,
        Layout { mesh: "dp=2, tp=2", w: ["dp*tp", "-"], b: "tp*dp", padding: 0 },
        Layout { mesh: "dp=2, tp=2", w: ["tp", "dp"], b: "-", padding: 2 },
        Layout { mesh: "dp=4", w: ["dp", "-"], b: "dp", padding: 0 },
        // The last rank has only padding.
        Layout { mesh: "dp=4", w: ["dp", "-"], b: "-", padding: 4 },
        Layout { mesh: "dp=3", w: ["dp", "-"], b: "-", padding: 3 },
        Layout { mesh: "tp=2", w: ["-", "tp"], b: "tp", padding: 0 },
        Layout { mesh: "dp=2", w: ["-", "-"], b: "-", padding: 0 },
    ])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn any_layout_is_read_back_on_any_other(from in layouts(), to in layouts()) {
        let (_folder, checkpoints) = saved(&from, &[7]);
        let checkpoint = checkpoints.latest().unwrap().checkpoint.unwrap();
        let module = to.module();
        for (name, value) in checkpoint.load(&module).unwrap() {
            let state = module.states.values().find(|state| state.name == name).unwrap();
            prop_assert_eq!(padding::remove(state, value).unwrap(), whole(7)[&name].clone(), "{}", name);
        }
        for rank in 0..module.mesh.devices() {
            let expected = PartsOf { module: &module, rank, whole: &whole(7) };
            for (name, part) in checkpoint.load_part(&module, rank).unwrap() {
                prop_assert_eq!(&part[..], &expected.state(&name).unwrap()[..], "{} of rank {}", name, rank);
            }
        }
    }
}

#[test]
fn each_file_of_states_that_are_split_over_all_ranks_has_its_share() {
    let layout = Layout { mesh: "dp=4", w: ["dp", "-"], b: "dp", padding: 0 };
    let module = layout.module();
    let bytes: Vec<u64> = (0..4).map(|rank| Owned::of(&module, rank).unwrap().blocks.len() as u64).collect();
    // `step` is whole on all ranks, and only one of them writes it.
    assert_eq!(bytes, [2, 2, 3, 2]);
}

/// After any fault at any operation, the checkpoint before or the one after exists and is whole.
#[test]
fn a_save_of_several_ranks_survives_every_fault_at_every_operation() {
    let module = SQUARE.module();
    let (_folder, checkpoints) = saved(&SQUARE, &[10]);
    let (ended, operations) = count(|| save(&checkpoints, &module, 20, &whole(20)));
    ended.unwrap();
    println!("a save of 4 ranks: {operations} operations");
    for (at, fault) in (0..operations).flat_map(|at| Fault::ALL.map(|fault| (at, fault))) {
        let (_folder, checkpoints) = saved(&SQUARE, &[10]);
        let _ = inject(at, fault, || save(&checkpoints, &module, 20, &whole(20)));
        let found = checkpoints.latest().unwrap();
        assert!(found.damaged.is_empty(), "{fault:?} at {at}: {:?}", found.damaged);
        let found = found.checkpoint.expect("there was one before");
        let step = found.description.step();
        assert_eq!(found.load(&module).unwrap(), whole(step as u8), "{fault:?} at {at}: step {step}");
    }
}

#[test]
fn files_that_are_missing_cut_changed_or_of_another_save_are_named() {
    let file = "state-00002-of-00004.safetensors";
    type Damage = fn(&Path);
    let damages: [(&str, Damage); 4] = [
        ("cannot read", |path| fs::remove_file(path).unwrap()),
        ("was it truncated?", |path| {
            let bytes = fs::read(path).unwrap();
            fs::write(path, &bytes[..bytes.len() - 1]).unwrap();
        }),
        ("do not match their checksum", |path| {
            let mut bytes = fs::read(path).unwrap();
            *bytes.last_mut().unwrap() ^= 1;
            fs::write(path, bytes).unwrap();
        }),
        ("its checksums differ from the checksums in `checkpoint.json`", |path| {
            let other = path.parent().unwrap().with_file_name("step-1").join(path.file_name().unwrap());
            fs::copy(other, path).unwrap();
        }),
    ];
    for (told, damage) in damages {
        let (_folder, checkpoints) = saved(&SQUARE, &[1, 2]);
        damage(&checkpoints.path(2).join(file));
        let loaded = Checkpoint::open(&checkpoints.path(2)).and_then(|found| found.load(&SQUARE.module()));
        let error = ir::Diagnostic::from(loaded.unwrap_err()).to_string();
        assert!(error.contains(told) && error.contains(file), "{error}");
        if told.contains("checksum") && !told.contains("differ") {
            assert!(error.contains("step-1"), "the whole checkpoint is offered: {error}");
        }
        let whole_one = checkpoints.latest().unwrap();
        let step = whole_one.checkpoint.unwrap().description.step();
        assert_eq!(step, if told.contains("match") { 2 } else { 1 }, "{told}");
    }
}

#[test]
fn blocks_that_are_missing_or_there_twice_are_refused() {
    let changes: [fn(&mut Document); 3] = [
        |document| drop(document.shards.pop()),
        |document| {
            let start = document.shards[0].blocks["w"].clone();
            document.shards[1].blocks.insert("w".to_owned(), start);
        },
        |document| {
            document.shards[1].blocks.get_mut("w").unwrap()[1] = 5;
        },
    ];
    for change in changes {
        let (_folder, checkpoints) = saved(&SQUARE, &[3]);
        let path = checkpoints.path(3).join(DESCRIPTION);
        let mut document = Document::of_bytes(&fs::read(&path).unwrap()).unwrap();
        change(&mut document);
        fs::write(&path, document.to_bytes()).unwrap();
        let error = Checkpoint::open(&checkpoints.path(3)).unwrap_err().to_string();
        let told = ["do not make up the sizes [12, 8]", "reaches beyond its sizes [12, 8]"];
        assert!(told.iter().any(|told| error.contains(told)), "{error}");
    }
}
