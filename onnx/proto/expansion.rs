//! Computes the memory that decoding a model takes, by walking its bytes without any allocation.
//!
//! Two encoded bytes (an empty node) become some 300 bytes of structs, so a small hostile file could ask for a hundred times its
//! size. [`expansion`] adds up the structs before any is created.

use std::mem::size_of;

use super::*;

/// The result of [`expansion`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Expansion {
    /// The bytes of the structs to which the messages decode, without text and tensor data (which take about as much memory as in
    /// the file).
    pub struct_bytes: usize,
}

/// Walks an encoded [`ModelProto`]. `Err` says at which byte the file is not valid protobuf.
pub fn expansion(file: &[u8]) -> Result<Expansion, String> {
    let mut total = Expansion::default();
    walk(file, 0, Kind::Model, 0, &mut total)?;
    Ok(total)
}

/// The deepest nesting of messages, as in prost.
const DEPTH_LIMIT: usize = 100;

fn walk(file: &[u8], start: usize, kind: Kind, depth: usize, total: &mut Expansion) -> Result<(), String> {
    if depth > DEPTH_LIMIT {
        return Err(format!("messages are nested more than {DEPTH_LIMIT} levels deep at byte {start}"));
    }
    total.struct_bytes = total.struct_bytes.saturating_add(kind.struct_bytes());
    let mut cursor = Cursor { file, at: start };
    while cursor.at < file.len() {
        let tag_at = cursor.at;
        let tag = cursor.varint()?;
        let field = u32::try_from(tag >> 3).ok().filter(|&field| field != 0);
        let field = field.ok_or_else(|| format!("the tag {tag} at byte {tag_at} belongs to no field"))?;
        match tag & 7 {
            0 => drop(cursor.varint()?),
            1 => drop(cursor.skip(8)?),
            5 => drop(cursor.skip(4)?),
            2 => {
                let length = cursor.varint()?;
                let end = cursor.skip(length)?;
                if let Some(nested) = kind.nested(field) {
                    let begin = end - length as usize;
                    walk(&file[..end], begin, nested, depth + 1, total)?;
                }
            }
            wire_type => {
                return Err(format!("wire type {wire_type} at byte {tag_at} does not occur in ONNX"));
            }
        }
    }
    Ok(())
}

/// A position in the file. `file` ends where the current message ends.
struct Cursor<'a> {
    file: &'a [u8],
    at: usize,
}

impl Cursor<'_> {
    fn varint(&mut self) -> Result<u64, String> {
        let start = self.at;
        let mut value = 0u64;
        for shift in (0..70).step_by(7) {
            let byte = *self
                .file
                .get(self.at)
                .ok_or_else(|| format!("the file ends within the number at byte {start}"))?;
            self.at += 1;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(format!("the number at byte {start} is longer than 10 bytes"))
    }

    /// Skips `length` bytes, and returns the position after them.
    fn skip(&mut self, length: u64) -> Result<usize, String> {
        let left = (self.file.len() - self.at) as u64;
        if length > left {
            return Err(format!(
                "a field at byte {} announces {length} bytes, and {left} bytes are left",
                self.at
            ));
        }
        self.at += length as usize;
        Ok(self.at)
    }
}

/// The kinds of messages that the walk distinguishes. A message of such a kind nests other messages, or occurs in large numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Model,
    OpsetId,
    StringEntry,
    Training,
    Function,
    Graph,
    Node,
    Attribute,
    ValueInfo,
    Annotation,
    Tensor,
    Segment,
    Sparse,
    Type,
    TensorType,
    ElementType,
    MapType,
    Shape,
    Dimension,
    Device,
    NodeDevice,
    Sharding,
    IntList,
    ShardedDim,
    SimpleShardedDim,
}

impl Kind {
    /// Returns the kind of the message in a field of this message; `None` if the field has no message.
    fn nested(self, field: u32) -> Option<Kind> {
        use Kind::*;
        Some(match (self, field) {
            (Model, 8) | (Function, 9) => OpsetId,
            (Model, 7) | (Training, 1 | 2) | (Attribute, 6 | 11) => Graph,
            (Model, 14) | (Training, 3 | 4) | (Function, 14) | (Graph, 16) | (Node, 9) => StringEntry,
            (ValueInfo, 4) | (Tensor, 13 | 16) | (Annotation, 2) => StringEntry,
            (Model, 20) => Training,
            (Model, 25) => Function,
            (Model, 26) => Device,
            (Graph, 1) | (Function, 7) => Node,
            (Node, 5) | (Function, 11) => Attribute,
            (Node, 10) => NodeDevice,
            (Graph, 11..=13) | (Function, 12) => ValueInfo,
            (Graph, 14) => Annotation,
            (Graph, 5) | (Attribute, 5 | 10) | (Sparse, 1 | 2) => Tensor,
            (Graph, 15) | (Attribute, 22 | 23) => Sparse,
            (Tensor, 3) => Segment,
            (Attribute, 14 | 15) | (ValueInfo, 2) | (ElementType, 1) | (MapType, 2) => Type,
            (Type, 1 | 8) => TensorType,
            (Type, 4 | 9) => ElementType,
            (Type, 5) => MapType,
            (TensorType, 2) => Shape,
            (Shape, 1) => Dimension,
            (NodeDevice, 2) => Sharding,
            (Sharding, 3) => IntList,
            (Sharding, 4) => ShardedDim,
            (ShardedDim, 2) => SimpleShardedDim,
            _ => return None,
        })
    }

    fn struct_bytes(self) -> usize {
        match self {
            Kind::Model => size_of::<ModelProto>(),
            Kind::OpsetId => size_of::<OperatorSetIdProto>(),
            Kind::StringEntry => size_of::<StringStringEntryProto>(),
            Kind::Training => size_of::<TrainingInfoProto>(),
            Kind::Function => size_of::<FunctionProto>(),
            Kind::Graph => size_of::<GraphProto>(),
            Kind::Node => size_of::<NodeProto>(),
            Kind::Attribute => size_of::<AttributeProto>(),
            Kind::ValueInfo => size_of::<ValueInfoProto>(),
            Kind::Annotation => size_of::<TensorAnnotation>(),
            Kind::Tensor => size_of::<TensorProto>(),
            Kind::Segment => size_of::<TensorProtoSegment>(),
            Kind::Sparse => size_of::<SparseTensorProto>(),
            Kind::Type => size_of::<TypeProto>(),
            Kind::TensorType => size_of::<TypeProtoTensor>(),
            Kind::ElementType => size_of::<TypeProtoSequence>(),
            Kind::MapType => size_of::<TypeProtoMap>(),
            Kind::Shape => size_of::<TensorShapeProto>(),
            Kind::Dimension => size_of::<TensorShapeProtoDimension>(),
            Kind::Device => size_of::<DeviceConfigurationProto>(),
            Kind::NodeDevice => size_of::<NodeDeviceConfigurationProto>(),
            Kind::Sharding => size_of::<ShardingSpecProto>(),
            Kind::IntList => size_of::<IntIntListEntryProto>(),
            Kind::ShardedDim => size_of::<ShardedDimProto>(),
            Kind::SimpleShardedDim => size_of::<SimpleShardedDimProto>(),
        }
    }
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;

    #[test]
    fn a_file_of_empty_nodes_is_counted_as_the_structs_it_decodes_to() {
        let graph = GraphProto { node: vec![NodeProto::default(); 1000], ..Default::default() };
        let file = ModelProto { graph: Some(graph), ..Default::default() }.encode_to_vec();
        let nodes = 1000 * size_of::<NodeProto>();
        let outer = size_of::<ModelProto>() + size_of::<GraphProto>();
        assert!(file.len() < 2100);
        assert_eq!(expansion(&file).unwrap().struct_bytes, nodes + outer);
    }

    #[test]
    fn a_cut_off_file_is_refused_with_the_place() {
        let graph = GraphProto { name: Some("long name".into()), ..Default::default() };
        let file = ModelProto { graph: Some(graph), ..Default::default() }.encode_to_vec();
        let error = expansion(&file[..file.len() - 1]).unwrap_err();
        assert_eq!(error, "a field at byte 2 announces 11 bytes, and 10 bytes are left");
    }

    #[test]
    fn messages_cannot_nest_without_end() {
        let mut node = NodeProto::default();
        for _ in 0..60 {
            let graph = GraphProto { node: vec![node], ..Default::default() };
            let attribute = AttributeProto { g: Some(Box::new(graph)), ..Default::default() };
            node = NodeProto { attribute: vec![attribute], ..Default::default() };
        }
        let graph = GraphProto { node: vec![node], ..Default::default() };
        let file = ModelProto { graph: Some(graph), ..Default::default() }.encode_to_vec();
        assert!(expansion(&file).unwrap_err().contains("more than 100 levels deep"));
    }
}
