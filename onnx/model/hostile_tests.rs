//! Tests with hostile files: no bytes may make loading panic, or take memory out of proportion to the file.

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

/// The system's allocator, with counters of the bytes that each thread holds.
struct Counting;

fn count(change: isize) {
    // A thread that ends may free memory after its counters are gone; this memory need not be counted.
    let _ = LIVE.try_with(|live| {
        live.set(live.get() + change);
        let _ = PEAK.try_with(|peak| peak.set(peak.get().max(live.get())));
    });
}

// SAFETY: every call is passed on unchanged to the system's allocator.
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

/// Returns the most bytes that `work` held at once, beyond those held before.
fn peak_of(work: impl FnOnce()) -> usize {
    let before = LIVE.get();
    PEAK.set(before);
    work();
    (PEAK.get() - before) as usize
}

/// Returns a model with all kinds of content: functions, subgraphs, constants, typed and raw data.
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
    // Names, nodes and messages of such a small file take some memory of their own.
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
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testdata/models/gpt2.dynamo.onnx");
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
    assert!(message.contains("bytes of the file would need"), "{message}");
    assert!(peak < 100_000, "{peak} bytes");
}

#[test]
fn sizes_that_a_tensor_only_claims_are_not_allocated() {
    let mut model = model(vec![node("Add", &["x", "w"], &["y"])]);
    let mut claims = tensor("w", &[1 << 20, 1 << 20], &[1.0]);
    model.graph.as_mut().unwrap().initializer = vec![claims.clone()];
    assert!(only_problem(&model).contains("4 bytes of data, and f32[1048576, 1048576] needs 4398046511104"));
    (claims.raw_data, claims.float_data) = (None, vec![1.0]);
    model.graph.as_mut().unwrap().initializer = vec![claims];
    let file = Bytes::from(model.encode_to_vec());
    assert!(peak_of(|| drop(Model::from_bytes(file, None))) < 100_000);
}

/// A number of fields so large that handling each of them slowly, or repeatedly, would be noticed.
const MANY: usize = 10_000_000;

/// Returns the encoded field of a message with this content.
fn field(number: u8, content: &[u8]) -> Vec<u8> {
    let mut bytes = vec![number << 3 | 2];
    prost::encoding::encode_varint(content.len() as u64, &mut bytes);
    bytes.extend_from_slice(content);
    bytes
}

/// Returns a valid model with these bytes appended to its graph.
fn with_graph_bytes(appended: &[u8]) -> Bytes {
    let mut model = model(vec![node("Relu", &["x"], &["y"])]);
    let mut graph = model.graph.take().unwrap().encode_to_vec();
    graph.extend_from_slice(appended);
    let mut file = model.encode_to_vec();
    file.extend(field(7, &graph));
    file.into()
}

/// Returns the problems of a file as text, and checks the memory that loading takes.
fn said_within_bounds(file: Bytes) -> String {
    let size = file.len();
    let mut said = String::new();
    let peak =
        peak_of(|| said = Model::from_bytes(file, None).map_or_else(|e| e.to_string(), |_| "loads".into()));
    // The checker admits this much memory for structs, and vectors grow by doubling.
    assert!(peak < 64 * size, "{peak} bytes for a file of {size}: {said}");
    assert!(said.len() < 100_000, "{} bytes are said", said.len());
    said
}

#[test]
fn ten_million_fields_of_any_kind_are_read_or_refused_in_bounded_memory() {
    // Empty nodes, initializers, inputs and value types: two bytes each, and hundreds of bytes when decoded.
    for number in [1, 5, 11, 13] {
        let said = said_within_bounds(with_graph_bytes(&[number << 3 | 2, 0].repeat(MANY)));
        assert!(said.contains("bytes of the file would need"), "{said}");
    }
    // Metadata without keys: all of it is one entry.
    let said = said_within_bounds(with_graph_bytes(&[0x82, 0x01, 0].repeat(MANY)));
    assert!(said == "loads" || said.contains("bytes of the file would need"), "{said}");
    // A node with ten million empty inputs.
    let inputs = [0x0a, 0].repeat(MANY);
    let said = said_within_bounds(with_graph_bytes(&field(1, &[&inputs[..], &field(4, b"Sum")].concat())));
    assert_eq!(said, "loads");
    // A tensor of ten million dims, packed and unpacked.
    let tensor = |dims: Vec<u8>| field(5, &[dims, field(8, b"w"), vec![2 << 3, 1]].concat());
    for dims in [field(1, &vec![1; MANY]), [1 << 3, 1].repeat(MANY)] {
        let said = said_within_bounds(with_graph_bytes(&tensor(dims)));
        assert!(said.contains("has 10000000 dims; at most 64 are supported"), "{said}");
    }
    // The same node many times: each copy defines the same value.
    let again = field(1, &node("Relu", &["x"], &["y"]).encode_to_vec()).repeat(MANY / 100);
    let said = said_within_bounds(with_graph_bytes(&again));
    assert!(said.contains("value \"y\" is defined twice") && said.contains("more problems"), "{said}");
}

#[test]
fn ten_million_nested_messages_are_refused() {
    // Written backwards, because each level is put in front of the one inside it.
    let mut reversed: Vec<u8> = Vec::new();
    for level in 0..MANY {
        // A node in a graph in an attribute of a node, and so on.
        let number = [1, 6, 5][level % 3];
        let mut head = vec![number << 3 | 2];
        prost::encoding::encode_varint(reversed.len() as u64, &mut head);
        reversed.extend(head.iter().rev());
    }
    reversed.reverse();
    let said = said_within_bounds(with_graph_bytes(&reversed));
    assert!(said.contains("messages are nested more than 100 levels deep"), "{said}");
}

#[test]
fn names_that_are_not_utf8_are_refused_with_the_field() {
    for (number, content) in [(2, b"\xff\xfe".to_vec()), (1, field(3, b"\xc3")), (5, field(8, b"\x80w"))] {
        let said = said_within_bounds(with_graph_bytes(&field(number, &content)));
        assert!(said.contains("data is not UTF-8 encoded") && said.contains("ModelProto.graph"), "{said}");
    }
}
