//! No bytes make loading panic, or take memory out of proportion.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::path::Path;

use bytes::Bytes;
use proptest::prelude::*;
use prost::Message;

use super::samples::*;
use super::*;
use crate::proto::{GraphProto, ModelProto};

thread_local! {
    static LIVE: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

/// The system's allocator, which also counts what each thread holds.
struct Counting;

fn count(change: isize) {
    // Threads that end free memory after their counters are gone; those need no count.
    let _ = LIVE.try_with(|live| {
        live.set(live.get() + change);
        let _ = PEAK.try_with(|peak| peak.set(peak.get().max(live.get())));
    });
}

// SAFETY: every call is passed on to the system's allocator as it is.
#[allow(unsafe_code)]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Bytes that `work` held at once, at most, beyond what was held before.
fn peak_of(work: impl FnOnce()) -> usize {
    let before = LIVE.get();
    PEAK.set(before);
    work();
    (PEAK.get() - before) as usize
}

/// A model with a bit of everything: functions, subgraphs, constants, typed and raw data.
fn varied() -> Vec<u8> {
    let inner = body(vec![node("Neg", &["x"], &["inner"])], "inner");
    let f = function("F", &["a"], &["r"], vec![node("Neg", &["a"], &["t"]), call("G", &["t"], &["r"])]);
    let g = function("G", &["a"], &["r"], vec![node("Relu", &["a"], &["r"])]);
    let mut model = model_with(
        vec![
            with(node("Constant", &[], &["c"]), int("value_int", 3)),
            call("F", &["x"], &["m"]),
            with(node("If", &["c"], &["n"]), graph_attribute("then_branch", inner)),
            node("Sum", &["m", "n", "w", "v"], &["y"]),
        ],
        vec![f, g],
    );
    let mut typed = tensor("v", &[2, 3], &[]);
    (typed.raw_data, typed.float_data) = (None, vec![1.0; 6]);
    model.graph.as_mut().unwrap().initializer = vec![tensor("w", &[4], &[1.0; 4]), typed];
    load(&model).unwrap();
    model.encode_to_vec()
}

fn loads_within_bounds(file: Vec<u8>) {
    let size = file.len();
    let file = Bytes::from(file);
    let peak = peak_of(|| drop(Model::from_bytes(file, None)));
    // Names, nodes and messages of so small a file take some room of their own.
    assert!(peak < 10 * size + (256 << 10), "{peak} bytes for a file of {size}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn changed_bytes_never_panic_and_take_little_memory(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..12),
        cut in any::<prop::sample::Index>(),
        cuts in prop::bool::weighted(0.1),
    ) {
        let mut file = varied();
        for (at, byte) in changes {
            let at = at.index(file.len());
            file[at] = byte;
        }
        if cuts {
            file.truncate(cut.index(file.len()));
        }
        loads_within_bounds(file);
    }

    #[test]
    fn exchanged_pieces_never_panic(
        from in any::<prop::sample::Index>(), to in any::<prop::sample::Index>(), length in 1usize..60,
    ) {
        let mut file = varied();
        let length = length.min(file.len());
        let piece = file[from.index(file.len() - length + 1)..][..length].to_vec();
        let to = to.index(file.len() - length + 1);
        file[to..to + length].copy_from_slice(&piece);
        loads_within_bounds(file);
    }

    #[test]
    fn random_bytes_never_panic(file in prop::collection::vec(any::<u8>(), 0..300)) {
        loads_within_bounds(file);
    }
}

#[test]
fn a_real_model_takes_less_than_its_size_beside_the_map() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/models/gpt2.dynamo.onnx");
    let size = std::fs::metadata(&path).unwrap().len() as usize;
    let peak = peak_of(|| drop(Model::load(&path).unwrap()));
    assert!(peak < size, "{peak} bytes for a file of {size}");
}

#[test]
fn a_file_of_empty_nodes_is_refused_before_they_are_made() {
    let graph = GraphProto { node: vec![Default::default(); 1 << 20], ..Default::default() };
    let file = Bytes::from(ModelProto { graph: Some(graph), ..Default::default() }.encode_to_vec());
    let mut message = String::new();
    let peak = peak_of(|| message = Model::from_bytes(file.clone(), None).unwrap_err().to_string());
    assert!(message.contains("bytes would take"), "{message}");
    assert!(peak < 100_000, "{peak} bytes");
}

#[test]
fn sizes_that_a_tensor_only_claims_are_not_allocated() {
    let mut model = model(vec![node("Add", &["x", "w"], &["y"])]);
    let mut claims = tensor("w", &[1 << 20, 1 << 20], &[1.0]);
    model.graph.as_mut().unwrap().initializer = vec![claims.clone()];
    assert!(
        only_problem(&model).contains("4 bytes of data, where f32[1048576, 1048576] needs 4398046511104")
    );
    (claims.raw_data, claims.float_data) = (None, vec![1.0]);
    model.graph.as_mut().unwrap().initializer = vec![claims];
    let file = Bytes::from(model.encode_to_vec());
    assert!(peak_of(|| drop(Model::from_bytes(file, None))) < 100_000);
}
