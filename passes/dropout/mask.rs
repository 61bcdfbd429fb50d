//! Finds dropouts that a model computes itself: random numbers are compared with the share that is kept, and the kept elements are
//! divided by that share. Stochastic depth (Huang et al., 2016) does so with one number for each sample.
//!
//! A mask of all elements of a value is a dropout of that value; PyTorch's dynamo exporter writes every dropout so. Any other mask,
//! divided by its share, is a dropout of ones. It drops as before; an evaluation, which drops nothing, computes `x · 1`, and
//! `--dropout off` removes it. A mask that is not divided by its share stays as it is: the program does not tell what the model would
//! compute without it.

use cranelift_entity::SecondaryMap;
use ir::ops::Float;
use ir::ops::dropout::Dropout;
use ir::ops::elementwise::{Binary, Compare, Unary};
use ir::ops::random::RandomUniform;
use ir::{At, Builder, Module, Node, NodeId, Op, TypeError, ValueId};
use smallvec::SmallVec;

/// A mask that a dropout of ones can replace.
#[derive(Clone, Debug, PartialEq)]
pub struct Mask {
    /// The node that computes 1 where an element is kept, and 0 elsewhere.
    pub node: NodeId,
    /// The random numbers that decide which elements are kept.
    pub draws: RandomUniform,
    /// The share of elements that is kept.
    pub keep: f64,
    /// The products that the mask's readers compute.
    pub products: Vec<Product>,
}

/// A value that is a product with the mask, divided by the share that is kept.
#[derive(Clone, Debug, PartialEq)]
pub struct Product {
    /// The value.
    pub value: ValueId,
    /// The node before which the nodes of the new product are inserted.
    pub node: NodeId,
    /// The other factor, if there is one.
    pub factor: Option<ValueId>,
}

/// Finds the masks.
pub fn decide(module: &Module) -> Vec<Mask> {
    let graph = Graph { module, uses: module.uses() };
    module.nodes().filter_map(|(_, node)| graph.mask(node)).collect()
}

/// Replaces each divided mask by a dropout of ones. The nodes that are no longer needed stay, without readers.
pub fn apply(b: &mut Builder, masks: &[Mask]) -> Result<(), TypeError> {
    for mask in masks {
        let node = b.module().node(mask.node);
        let (result, origin) = (node.results[0], node.origin.clone());
        let RandomUniform { id, seed, dim } = mask.draws;
        b.origin(origin).at(At::Before(mask.node));
        let op = Dropout { ratio: dropped(mask.keep), id, seed, dim };
        let ones = b.splat(b.ty(result).clone(), 1.0)?;
        let kept = b.one(op.clone(), &[ones])?;
        for Product { value, node, factor } in &mask.products {
            let ty = b.ty(*value).clone();
            let kept = b.at(At::Before(*node)).cast(kept, ty.dtype)?;
            let product = match *factor {
                Some(x) if b.ty(x).same_shape(&ty) && b.ty(result).dims == ty.dims => {
                    b.one(op.clone(), &[x])?
                }
                Some(x) => b.build(x * kept)?,
                None => kept,
            };
            // The share may have been broadcast to more dims than the mask has.
            let product = b.broadcast(product, ty.dims)?;
            b.replace(*value, product);
        }
    }
    Ok(())
}

/// Returns the share that is dropped: the shortest decimal that identifies it in f32, so that 1 - 0.9 is 0.1.
fn dropped(keep: f64) -> Float {
    let share = 1.0 - keep;
    Float::new((share as f32).to_string().parse().unwrap_or(share))
}

struct Graph<'m> {
    module: &'m Module,
    uses: SecondaryMap<ValueId, SmallVec<[NodeId; 2]>>,
}

impl Graph<'_> {
    fn mask(&self, node: &Node) -> Option<Mask> {
        let Op::RandomUniform(draws) = &node.op else { return None };
        if !node.operands.is_empty() {
            return None;
        }
        let numbers = node.results[0];
        let (_, reader) = self.only_reader(numbers)?;
        let (id, keep) = match &reader.op {
            // floor(number + keep) is 1 where the number is at least 1 - keep, the share that is dropped.
            Op::Binary(Binary::Add) => {
                let keep = self.module.splat_number(other(reader, numbers)?)?;
                let (floor, node) = self.only_reader(reader.results[0])?;
                matches!(node.op, Op::Unary(Unary::Floor)).then_some((floor, keep))?
            }
            Op::Compare(compare) => {
                let limit = self.module.splat_number(other(reader, numbers)?)?;
                let below = match compare {
                    Compare::Less | Compare::LessEqual => true,
                    Compare::Greater | Compare::GreaterEqual => false,
                    _ => return None,
                } == (reader.operands[0] == numbers);
                let (cast, node) = self.only_reader(reader.results[0])?;
                let keep = if below { limit } else { 1.0 - limit };
                matches!(node.op, Op::Cast(_)).then_some((cast, keep))?
            }
            _ => return None,
        };
        let mask = self.module.node(id).results[0];
        let possible =
            self.module.ty(mask).dtype.is_float() && 0.0 < keep && keep <= 1.0 && !self.is_output(mask);
        let readers = self.uses[mask].iter().filter(|_| possible);
        let products = readers.map(|&reader| self.product(mask, reader, keep)).collect::<Option<Vec<_>>>()?;
        (!products.is_empty()).then(|| Mask { node: id, draws: draws.clone(), keep, products })
    }

    /// Returns the product that a reader computes from the mask: `m / keep`, alone or times `x`, `x / keep · m` or `x · m / keep`.
    fn product(&self, mask: ValueId, reader: NodeId, keep: f64) -> Option<Product> {
        let node = self.module.node(reader);
        let value = node.results[0];
        if self.divides(node, mask, keep) {
            let alone = Product { value, node: reader, factor: None };
            return Some(self.multiplied(value).unwrap_or(alone));
        }
        let x = other(node, mask).filter(|_| matches!(node.op, Op::Binary(Binary::Mul)))?;
        // Look for the division after the product first: another dropout may have divided `x` by the same share.
        if let Some((id, after)) = self.only_reader(value)
            && self.divides(after, value, keep)
        {
            return Some(Product { value: after.results[0], node: id, factor: Some(x) });
        }
        let before = self.module.producer(x)?;
        let whole = before.operands.iter().find(|&&operand| self.divides(before, operand, keep))?;
        Some(Product { value, node: reader, factor: Some(*whole) })
    }

    /// Returns the product that is the only reader of a value.
    fn multiplied(&self, value: ValueId) -> Option<Product> {
        let (id, node) = self.only_reader(value)?;
        let factor = other(node, value).filter(|_| matches!(node.op, Op::Binary(Binary::Mul)))?;
        Some(Product { value: node.results[0], node: id, factor: Some(factor) })
    }

    /// Whether a node is `x / keep`, or `x · (1 / keep)`.
    fn divides(&self, node: &Node, x: ValueId, keep: f64) -> bool {
        let expected = match node.op {
            Op::Binary(Binary::Div) if node.operands[0] == x => keep,
            Op::Binary(Binary::Mul) => 1.0 / keep,
            _ => return false,
        };
        let number = other(node, x).and_then(|other| self.module.splat_number(other));
        number.is_some_and(|number| (number - expected).abs() <= 1e-6 * expected.abs())
    }

    /// Returns the only node that reads a value; `None` if the value is an output.
    fn only_reader(&self, value: ValueId) -> Option<(NodeId, &Node)> {
        let &[reader] = &self.uses[value][..] else { return None };
        (!self.is_output(value)).then(|| (reader, self.module.node(reader)))
    }

    fn is_output(&self, value: ValueId) -> bool {
        self.module.roots().any(|root| root == value)
    }
}

/// Returns the other operand of a node with two operands.
fn other(node: &Node, one: ValueId) -> Option<ValueId> {
    match node.operands[..] {
        [x, y] if x == one && y != one => Some(y),
        [x, y] if y == one && x != one => Some(x),
        _ => None,
    }
}
