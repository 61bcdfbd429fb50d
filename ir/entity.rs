//! Typed ids of everything in a module. Their `Display` is the text syntax.

use cranelift_entity::entity_impl;

/// A value: a program input, the value of a state when the step begins, or a result of a node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ValueId(u32);
entity_impl!(ValueId, "%");

/// A node of the program.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(u32);
entity_impl!(NodeId, "node");

/// A row of the state table.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StateId(u32);
entity_impl!(StateId, "state");

/// A row of the data table: the bytes of a constant, or the initial bytes of a state.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DataId(u32);
entity_impl!(DataId, "data");
