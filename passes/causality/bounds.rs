//! Bounds of the elements of masks and of masked scores, over the last two dims.
//!
//! A mask is built of constants and, with padding, of inputs. Interval arithmetic over rows and columns finds the scores that are hidden
//! for all inputs: their upper bound is so low that e to that power is 0.

use crate::analysis::constants::{Constants, Constness};
use ir::ops::elementwise::{Binary, Compare, Logical, Unary};
use ir::{Definition, Module, Node, Op, Tensor, ValueId};
use std::collections::BTreeMap;
use std::rc::Rc;

/// The assumed limit of computed scores: they lie between `-ORDINARY` and `ORDINARY`. A mask of -1e4 or less hides them.
const ORDINARY: f32 = 4999.0;
/// The highest score that is hidden.
const HIDDEN: f32 = -5000.0;
/// The most elements of a table.
const MOST_ELEMENTS: usize = 1 << 22;
/// The most elements of all tables that are kept for later questions.
const MOST_KEPT: usize = 1 << 24;

/// The lowest and the highest value of an element.
type Interval = (f32, f32);

/// The interval of any number.
const UNBOUNDED: Interval = (f32::NEG_INFINITY, f32::INFINITY);

/// The intervals of a value over its last two dims, at any index of the others.
#[derive(Clone, Debug)]
struct Table {
    rows: usize,
    columns: usize,
    elements: Vec<Interval>,
}

/// The pairs of a row and a column that are hidden.
#[derive(Clone, Debug)]
pub(super) enum Hiding {
    Nothing,
    /// The pairs by row and column. A dim of size one broadcasts.
    Pairs {
        rows: usize,
        columns: usize,
        hidden: Vec<bool>,
    },
}

impl Hiding {
    pub(super) fn hides(&self, row: usize, column: usize) -> bool {
        match self {
            Self::Nothing => false,
            Self::Pairs { rows, columns, hidden } => hidden[row % rows * columns + column % columns],
        }
    }

    fn of(table: Option<&Table>, is_hidden: impl Fn(Interval) -> bool) -> Self {
        let Some(table) = table else { return Self::Nothing };
        let hidden: Vec<bool> = table.elements.iter().map(|&element| is_hidden(element)).collect();
        if !hidden.contains(&true) {
            return Self::Nothing;
        }
        Self::Pairs { rows: table.rows, columns: table.columns, hidden }
    }
}

/// The bounds of the values of a program.
pub(super) struct Bounds<'m> {
    module: &'m Module,
    constants: Constants<'m>,
    /// Tables of masks, which layers share.
    known: BTreeMap<ValueId, Option<Rc<Table>>>,
}

impl<'m> Bounds<'m> {
    pub(super) fn new(module: &'m Module) -> Self {
        Self { module, constants: Constants::new(module), known: BTreeMap::new() }
    }

    /// Returns the scores that a softmax turns into zero.
    pub(super) fn hidden_scores(&mut self, scores: ValueId) -> Hiding {
        Hiding::of(self.asked(scores).as_deref(), |(_, high)| high <= HIDDEN)
    }

    /// Returns the scores that an attention's mask hides.
    pub(super) fn hidden_by_mask(&mut self, mask: ValueId) -> Hiding {
        let is_bool = self.module.ty(mask).dtype == ir::DType::Bool;
        let highest = if is_bool { 0.0 } else { HIDDEN };
        Hiding::of(self.asked(mask).as_deref(), |(_, high)| high <= highest)
    }

    /// Returns the elements that are zero.
    pub(super) fn zeros(&mut self, value: ValueId) -> Hiding {
        Hiding::of(self.asked(value).as_deref(), |element| element == (0.0, 0.0))
    }

    /// Returns the intervals of a value for the analysis. Drops the tables of earlier layers if they take too much room.
    fn asked(&mut self, value: ValueId) -> Option<Rc<Table>> {
        let kept: usize = self.known.values().flatten().map(|table| table.elements.len()).sum();
        if kept > MOST_KEPT {
            self.known.clear();
        }
        self.table(value)
    }

    /// Returns the intervals of a value; `None` if nothing is known about it.
    fn table(&mut self, value: ValueId) -> Option<Rc<Table>> {
        if let Some(known) = self.known.get(&value) {
            return known.clone();
        }
        // A value that is being computed is not computed again.
        self.known.insert(value, None);
        let table = self.computed(value).map(Rc::new);
        self.known.insert(value, table.clone());
        table
    }

    fn computed(&mut self, value: ValueId) -> Option<Table> {
        let (rows, columns) = self.last_two(value)?;
        if rows.checked_mul(columns)? > MOST_ELEMENTS {
            return None;
        }
        if self.constants.known(value) != Constness::Nothing {
            return of_tensor(self.constants.value(value)?, rows, columns);
        }
        let Definition::Node(id, 0) = self.module.value(value).definition else { return None };
        let node = self.module.node(id);
        self.of_node(node, rows, columns)
    }

    /// Returns the last two sizes of a value; missing dims have size one.
    fn last_two(&self, value: ValueId) -> Option<(usize, usize)> {
        let sizes = self.module.ty(value).sizes()?;
        let size = |from_end: usize| sizes.len().checked_sub(from_end).map_or(1, |dim| sizes[dim] as usize);
        Some((size(2), size(1)))
    }

    fn of_node(&mut self, node: &Node, rows: usize, columns: usize) -> Option<Table> {
        let make = |element: &dyn Fn(usize, usize) -> Interval| {
            let places = (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column)));
            Some(Table {
                rows,
                columns,
                elements: places.map(|(row, column)| element(row, column)).collect(),
            })
        };
        match &node.op {
            Op::Cast(_) | Op::Detach(_) | Op::Broadcast(_) | Op::Dropout(_) => {
                let table = self.table(node.operands[0])?;
                make(&|row, column| table.at(row, column))
            }
            // Only leading dims change.
            Op::Reshape(_) if self.last_two(node.operands[0])? == (rows, columns) => {
                let table = self.table(node.operands[0])?;
                make(&|row, column| table.at(row, column))
            }
            Op::Transpose(transpose) => {
                let order = &transpose.permutation;
                let last = order.len().checked_sub(2)?;
                let table = self.table(node.operands[0])?;
                match order[last..]
                    .iter()
                    .map(|&dim| dim as usize - last.min(dim as usize))
                    .collect::<Vec<_>>()[..]
                {
                    [0, 1] if order[last] as usize == last => make(&|row, column| table.at(row, column)),
                    [1, 0] if order[last + 1] as usize == last => make(&|row, column| table.at(column, row)),
                    _ => None,
                }
            }
            Op::Slice(slice) => {
                let table = self.table(node.operands[0])?;
                let ndim = self.module.ty(node.operands[0]).ndim();
                let at = |index: usize| (slice.start + slice.step * index as i64) as usize;
                match ndim - slice.dim as usize {
                    1 => make(&|row, column| table.at(row, at(column))),
                    2 => make(&|row, column| table.at(at(row), column)),
                    _ => make(&|row, column| table.at(row, column)),
                }
            }
            Op::Concat(concat) => self.concat(node, concat.dim as usize, rows, columns),
            Op::Select(_) => {
                let [condition, yes, no] = [0, 1, 2].map(|operand| self.operand(node, operand));
                make(&|row, column| match condition.at(row, column) {
                    (low, _) if low > 0.0 => yes.at(row, column),
                    (_, high) if high <= 0.0 => no.at(row, column),
                    _ => {
                        let (yes, no) = (yes.at(row, column), no.at(row, column));
                        (yes.0.min(no.0), yes.1.max(no.1))
                    }
                })
            }
            Op::Softmax(_) => {
                let scores = self.table(node.operands[0])?;
                make(&|row, column| if scores.at(row, column).1 <= HIDDEN { (0.0, 0.0) } else { (0.0, 1.0) })
            }
            Op::Binary(kind) => {
                let kind = *kind;
                let [x, y] = [0, 1].map(|operand| self.operand(node, operand));
                make(&|row, column| of_binary(kind, x.at(row, column), y.at(row, column)))
            }
            Op::Logical(kind) => {
                let kind = *kind;
                let [x, y] = [0, 1].map(|operand| self.operand(node, operand));
                make(&|row, column| of_logical(kind, x.at(row, column), y.at(row, column)))
            }
            Op::Compare(kind) => {
                let kind = *kind;
                let [x, y] = [0, 1].map(|operand| self.operand(node, operand));
                make(&|row, column| of_compare(kind, x.at(row, column), y.at(row, column)))
            }
            Op::Unary(Unary::Neg) => {
                let x = self.operand(node, 0);
                make(&|row, column| {
                    let (low, high) = x.at(row, column);
                    (-high, -low)
                })
            }
            Op::Unary(Unary::Not) => {
                let x = self.operand(node, 0);
                make(&|row, column| {
                    let (low, high) = x.at(row, column);
                    (1.0 - high, 1.0 - low)
                })
            }
            _ => None,
        }
    }

    fn concat(&mut self, node: &Node, dim: usize, rows: usize, columns: usize) -> Option<Table> {
        let ndim = self.module.ty(node.results[0]).ndim();
        let parts: Vec<Operand> =
            (0..node.operands.len()).map(|operand| self.operand(node, operand)).collect();
        let sizes = node.operands.iter().map(|&value| self.last_two(value)).collect::<Option<Vec<_>>>()?;
        let mut elements = Vec::with_capacity(rows * columns);
        for row in 0..rows {
            for column in 0..columns {
                let (mut row, mut column) = (row, column);
                let mut parts = parts.iter().zip(&sizes);
                let element = match ndim - dim {
                    1 | 2 => loop {
                        let (part, size) = parts.next()?;
                        let (index, size) =
                            if ndim - dim == 1 { (&mut column, size.1) } else { (&mut row, size.0) };
                        if *index < size {
                            break part.at(row, column);
                        }
                        *index -= size;
                    },
                    _ => parts
                        .map(|(part, _)| part.at(row, column))
                        .reduce(|x, y| (x.0.min(y.0), x.1.max(y.1)))?,
                };
                elements.push(element);
            }
        }
        Some(Table { rows, columns, elements })
    }

    fn operand(&mut self, node: &Node, operand: usize) -> Operand {
        let value = node.operands[operand];
        let unknown = match self.module.ty(value).dtype {
            ir::DType::Bool => (0.0, 1.0),
            dtype if dtype.is_float() => (-ORDINARY, ORDINARY),
            _ => UNBOUNDED,
        };
        Operand { table: self.table(value), unknown }
    }
}

/// An operand: its table if it is known, and the bounds of its type.
struct Operand {
    table: Option<Rc<Table>>,
    unknown: Interval,
}

impl Operand {
    fn at(&self, row: usize, column: usize) -> Interval {
        self.table.as_ref().map_or(self.unknown, |table| table.at(row, column))
    }
}

impl Table {
    /// Returns the interval of an element; a dim of size one broadcasts.
    fn at(&self, row: usize, column: usize) -> Interval {
        self.elements[row % self.rows * self.columns + column % self.columns]
    }
}

/// Returns the intervals of a constant.
fn of_tensor(tensor: &Tensor, rows: usize, columns: usize) -> Option<Table> {
    let numbers = tensor.numbers();
    let size = rows.checked_mul(columns).filter(|&size| size > 0)?;
    let mut elements = vec![(f32::INFINITY, f32::NEG_INFINITY); size];
    for table in numbers.chunks_exact(size) {
        for (element, &number) in elements.iter_mut().zip(table) {
            *element = (element.0.min(number as f32), element.1.max(number as f32));
        }
    }
    Some(Table { rows, columns, elements })
}

/// Returns the interval of these corners; unbounded if a corner is NaN.
fn hull(corners: [f32; 4]) -> Interval {
    if corners.iter().any(|corner| corner.is_nan()) {
        return UNBOUNDED;
    }
    let least = corners.iter().copied().fold(f32::INFINITY, f32::min);
    (least, corners.iter().copied().fold(f32::NEG_INFINITY, f32::max))
}

fn of_binary(kind: Binary, x: Interval, y: Interval) -> Interval {
    let corners = |of: fn(f32, f32) -> f32| hull([of(x.0, y.0), of(x.0, y.1), of(x.1, y.0), of(x.1, y.1)]);
    match kind {
        Binary::Add => corners(|x, y| x + y),
        Binary::Sub => corners(|x, y| x - y),
        Binary::Mul if x == (0.0, 0.0) || y == (0.0, 0.0) => (0.0, 0.0),
        Binary::Mul => corners(|x, y| x * y),
        Binary::Div if x == (0.0, 0.0) => (0.0, 0.0),
        Binary::Div if y.0 > 0.0 || y.1 < 0.0 => corners(|x, y| x / y),
        Binary::Max => corners(f32::max),
        Binary::Min => corners(f32::min),
        _ => UNBOUNDED,
    }
}

fn of_logical(kind: Logical, x: Interval, y: Interval) -> Interval {
    match kind {
        Logical::And => (x.0.min(y.0), x.1.min(y.1)),
        Logical::Or => (x.0.max(y.0), x.1.max(y.1)),
        Logical::Xor if x.0 == x.1 && y.0 == y.1 => ((x.0 - y.0).abs(), (x.0 - y.0).abs()),
        Logical::Xor => (0.0, 1.0),
    }
}

fn of_compare(kind: Compare, x: Interval, y: Interval) -> Interval {
    let less = |x: Interval, y: Interval, or_equal: bool| {
        let is = |x: f32, y: f32| f32::from(u8::from(x < y || or_equal && x == y));
        (is(x.1, y.0), is(x.0, y.1))
    };
    match kind {
        Compare::Less => less(x, y, false),
        Compare::LessEqual => less(x, y, true),
        Compare::Greater => less(y, x, false),
        Compare::GreaterEqual => less(y, x, true),
        Compare::Equal if x.0 == x.1 && x == y => (1.0, 1.0),
        Compare::Equal if x.1 < y.0 || y.1 < x.0 => (0.0, 0.0),
        Compare::Equal => (0.0, 1.0),
    }
}
