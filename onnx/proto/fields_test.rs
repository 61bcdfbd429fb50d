//! Compares the derived messages with `fields.txt`, the official descriptors.

use std::fmt::Debug;

use prost::Message;

use super::*;

const FIELDS: &str = include_str!("fields.txt");

/// A line of `fields.txt`.
struct Field<'a> {
    message: &'a str,
    name: &'a str,
    number: u32,
    repeated: bool,
    kind: &'a str,
    packed: bool,
}

fn fields() -> impl Iterator<Item = Field<'static>> {
    FIELDS.lines().filter(|line| !line.starts_with(['#', 'e'])).map(|line| {
        let [message, name, number, label, kind, _, _, packing] = line.split(' ').collect::<Vec<_>>()[..]
        else {
            panic!("fields.txt: {line}");
        };
        let number = number.parse().unwrap();
        Field { message, name, number, repeated: label == "repeated", kind, packed: packing == "packed" }
    })
}

/// Returns the encoding of a message that has only this field, with a value other than its default.
fn wire(field: &Field) -> Vec<u8> {
    let (wire_type, value): (u32, Vec<u8>) = match field.kind {
        "int32" | "int64" | "uint64" | "enum" => (0, vec![1]),
        "float" => (5, 1f32.to_le_bytes().to_vec()),
        "double" => (1, 1f64.to_le_bytes().to_vec()),
        "string" | "bytes" => (2, vec![1, b'x']),
        "message" => (2, vec![0]),
        other => panic!("type {other}"),
    };
    let (wire_type, mut value) =
        if field.packed { (2, [vec![value.len() as u8], value].concat()) } else { (wire_type, value) };
    let mut out = Vec::new();
    prost::encoding::encode_varint(u64::from(field.number << 3 | wire_type), &mut out);
    out.append(&mut value);
    out
}

/// Decodes a message, encodes it again, and returns the encoding and the text of its set fields.
fn round_trip<M: Message + Default + Debug>(bytes: &[u8]) -> (Vec<u8>, String) {
    let message = M::decode(bytes).unwrap();
    (message.encode_to_vec(), format!("{message:?}"))
}

fn round_trip_of(message: &str, bytes: &[u8]) -> (Vec<u8>, String) {
    macro_rules! by_name {
        ($($name:ident)*) => {
            match message {
                $(stringify!($name) => round_trip::<$name>(bytes),)*
                other => panic!("no message {other}"),
            }
        };
    }
    by_name!(AttributeProto ValueInfoProto NodeProto IntIntListEntryProto NodeDeviceConfigurationProto
        ShardingSpecProto ShardedDimProto SimpleShardedDimProto TrainingInfoProto ModelProto
        DeviceConfigurationProto StringStringEntryProto TensorAnnotation GraphProto TensorProto
        TensorProtoSegment SparseTensorProto TensorShapeProto TensorShapeProtoDimension TypeProto
        TypeProtoTensor TypeProtoSequence TypeProtoMap TypeProtoOptional TypeProtoSparseTensor
        TypeProtoOpaque OperatorSetIdProto FunctionProto)
}

fn camel_case(name: &str) -> String {
    name.split('_').map(|word| word[..1].to_uppercase() + &word[1..]).collect()
}

#[test]
fn every_official_field_has_the_same_number_type_and_name_here() {
    let mut count = 0;
    for field in fields() {
        let bytes = wire(&field);
        let (again, shown) = round_trip_of(field.message, &bytes);
        let place = format!("{}.{}", field.message, field.name);
        assert_eq!(again, bytes, "{place} does not survive decoding and encoding");
        // The text first differs from that of an empty message at the field that was set.
        let (_, empty) = round_trip_of(field.message, &[]);
        let shared = shown.bytes().zip(empty.bytes()).take_while(|(a, b)| a == b).count();
        assert_eq!(shown[..shared].ends_with('['), field.repeated, "{place}: {shown}");
        let before = shown[..shared].trim_end_matches('[').trim_end_matches(": ");
        let set = before.rsplit(' ').next().unwrap().trim_start_matches("r#");
        let chosen = shown[shared..].starts_with(&format!("Some({}(", camel_case(field.name)));
        assert!(set == field.name || chosen, "{place} = {} is another field: {shown}", field.number);
        count += 1;
    }
    assert_eq!(count, 134);
}

#[test]
fn no_message_has_fields_that_the_official_one_lacks() {
    // Every field is printed, so a message prints as many names as its descriptor has fields; a oneof counts once.
    let known: std::collections::BTreeSet<&str> = fields().map(|field| field.message).collect();
    for message in known {
        let (_, shown) = round_trip_of(message, &[]);
        let printed = shown.matches(": ").count();
        let lines = FIELDS.lines().filter(|line| line.split(' ').next() == Some(message));
        let (alone, grouped): (Vec<_>, Vec<_>) = lines.partition(|line| line.split(' ').nth(6) == Some("-"));
        assert_eq!(printed, alone.len() + usize::from(!grouped.is_empty()), "{message}: {shown}");
    }
}

#[test]
fn attribute_types_have_the_official_numbers() {
    let official = FIELDS.lines().filter_map(|line| line.strip_prefix("enum AttributeProto AttributeType "));
    let mut count = 0;
    for (name, number) in official.filter_map(|line| line.split_once(' ')) {
        let ours = AttributeType::try_from(number.parse::<i32>().unwrap()).unwrap();
        assert_eq!(format!("{ours:?}").to_uppercase(), name.replace('_', ""));
        count += 1;
    }
    assert_eq!(count, 15);
}
