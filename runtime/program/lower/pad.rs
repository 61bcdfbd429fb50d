//! Alignment of the rows of logits. Rows of a half-precision product whose length is no multiple of 16 bytes, such as those of a vocabulary
//! of 50,257, are padded to one. cuBLASLt then finds kernels that read and write 16 bytes at once. Without padding, the three
//! multiplications of a language model's head would use its slowest kernels.
//!
//! Only results that multiplications and cross-entropies read are padded. Other kernels accept no gaps, and would need a copy.

use super::draft::Drafts;
use super::fuse::Item;
use crate::kernel_contract::{OperandLayout, WritableStrides};
use crate::layout::{Layout, Sizes};
use cranelift_entity::EntitySet;
use ir::analysis::Readers;
use ir::{DType, Module, Movement, Op, ValueId};

/// The number of elements of a half type in 16 bytes.
const PACK: usize = 8;

/// The shortest row that is padded. Shorter rows would grow by more than 3 %.
const LEAST: usize = 256;

/// Returns the results whose rows are padded.
pub(super) fn rows(drafts: &Drafts, items: &[Item], readers: &Readers) -> EntitySet<ValueId> {
    let module = drafts.module;
    let mut padded = EntitySet::new();
    for item in items {
        let Some(value) = product(drafts, item, &padded) else { continue };
        let half = matches!(module.ty(value).dtype, DType::F16 | DType::BF16);
        let is_part = drafts.parts[value].is_some();
        if half && !is_part && is_uneven(&drafts.sizes(value)) && is_read_in_rows(drafts, readers, value) {
            padded.insert(value);
        }
    }
    padded
}

/// Returns the layout of a result whose rows are padded.
pub(super) fn layout(sizes: &[usize]) -> Layout {
    let mut padded = Sizes::from_slice(sizes);
    if let Some(last) = padded.last_mut() {
        *last = last.next_multiple_of(PACK);
    }
    Layout { sizes: Sizes::from_slice(sizes), ..Layout::dense(&padded) }
}

/// Returns the result of an item, if a multiplication writes it or it is the gradient of padded logits.
fn product(drafts: &Drafts, item: &Item, padded: &EntitySet<ValueId>) -> Option<ValueId> {
    let module = drafts.module;
    match item {
        Item::Contract(fused) => fused.kept.is_none().then_some(fused.out),
        Item::Node(id) => {
            let node = module.node(*id);
            let made = node.results[0];
            match &node.op {
                Op::Contract(contract) => {
                    let (roles, last) = (contract.roles(), contract.out.0.last()?);
                    let is_alone = |labels: &[u8]| labels == [*last];
                    (is_alone(&roles.columns) || is_alone(&roles.rows)).then_some(made)
                }
                // The gradient of logits is written in the place of the logits.
                _ => {
                    let writes_rows = drafts.kernel_contract(node).can_write(WritableStrides::Rows);
                    let of_logits = padded.contains(source(module, *node.operands.first()?));
                    (writes_rows && of_logits).then_some(made)
                }
            }
        }
        Item::Chain { .. } | Item::Added(_) => None,
    }
}

/// Returns the value behind the reshapes of a value.
fn source(module: &Module, value: ValueId) -> ValueId {
    module.viewed(value, |movement| movement == Movement::Reshaped)
}

/// Returns whether rows along the last dim are long, and their length is no multiple of 16 bytes.
fn is_uneven(sizes: &[usize]) -> bool {
    sizes.len() > 1 && sizes.last().is_some_and(|&last| last >= LEAST && !last.is_multiple_of(PACK))
}

/// Returns whether all readers of a value accept padded rows, also through reshapes that keep the last dim.
fn is_read_in_rows(drafts: &Drafts, readers: &Readers, value: ValueId) -> bool {
    let module = drafts.module;
    let takes = |&reader: &ir::NodeId| {
        let node = module.node(reader);
        match &node.op {
            Op::Contract(_) => true,
            Op::Reshape(_) => {
                let made = node.results[0];
                drafts.sizes(made).last() == drafts.sizes(value).last()
                    && is_read_in_rows(drafts, readers, made)
            }
            _ => {
                let contract = drafts.kernel_contract(node);
                let mut operands = node.operands.iter().enumerate().filter(|(_, operand)| **operand == value);
                operands.all(|(index, _)| contract.reads(index) == OperandLayout::Rows)
            }
        }
    };
    !readers.held.contains(value) && readers.of[value].iter().all(takes)
}
