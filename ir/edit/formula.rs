//! Formulas over values, written with Rust's operators: `b.build(y * y * dy)?` adds the nodes of `y·y·dy`.

use crate::edit::Builder;
use crate::ops::elementwise::{Binary, Compare, Logical, Select, Unary};
use crate::{DType, Op, TypeError, ValueId};
use std::ops::{Add, Div, Mul, Neg, Sub};

/// A formula over values. It becomes nodes in [`Builder::build`]. A part that occurs twice is built twice, so callers build a shared
/// part first and use its value.
#[derive(Clone, Debug)]
pub enum Formula {
    /// A value of the program.
    Value(ValueId),
    /// A number, of the element type of the last other operand of its operator. The condition of a select does not count.
    Number(f64),
    /// An operator with one result.
    Node(Box<Op>, Vec<Formula>),
    /// A conversion, unless the formula has that type already.
    Cast(Box<Formula>, DType),
}

impl Builder<'_> {
    /// Adds the nodes of a formula in the order in which they are read: operands before operators, from left to right. The numbers
    /// of an operator come after its other operands.
    ///
    /// # Errors
    /// The types of operands do not fit together; an operator has only numbers.
    pub fn build(&mut self, formula: impl Into<Formula>) -> Result<ValueId, TypeError> {
        match formula.into() {
            Formula::Value(value) => Ok(value),
            Formula::Number(number) => Err(TypeError::new(format!("the type of {number} is not known"))),
            Formula::Cast(formula, to) => {
                let value = self.build(*formula)?;
                self.cast(value, to)
            }
            Formula::Node(op, operands) => self.build_node(*op, operands),
        }
    }

    fn build_node(&mut self, op: Op, operands: Vec<Formula>) -> Result<ValueId, TypeError> {
        let others = operands.into_iter().map(|operand| match operand {
            Formula::Number(_) => Ok(operand),
            other => self.build(other).map(Formula::Value),
        });
        let operands = others.collect::<Result<Vec<_>, _>>()?;
        let conditions = usize::from(matches!(op, Op::Select(_)));
        let typed = operands.iter().skip(conditions).rev().find_map(|operand| match operand {
            Formula::Value(value) => Some(*value),
            _ => None,
        });
        let operands = operands.into_iter().map(|operand| match (operand, typed) {
            (Formula::Number(number), Some(typed)) => self.splat_like(typed, number),
            (operand, _) => self.build(operand),
        });
        let operands = operands.collect::<Result<Vec<_>, _>>()?;
        self.one(op, &operands)
    }
}

impl Formula {
    /// Applies an operator with one result.
    pub fn node<const N: usize>(op: impl Into<Op>, operands: [Self; N]) -> Self {
        Self::Node(Box::new(op.into()), operands.into())
    }

    /// Returns the formula converted to an element type.
    pub fn cast(self, to: DType) -> Self {
        Self::Cast(Box::new(self), to)
    }
}

impl From<ValueId> for Formula {
    fn from(value: ValueId) -> Self {
        Self::Value(value)
    }
}

impl From<f64> for Formula {
    fn from(number: f64) -> Self {
        Self::Number(number)
    }
}

impl Unary {
    /// Returns the function of `x`.
    pub fn of(self, x: impl Into<Formula>) -> Formula {
        Formula::node(self, [x.into()])
    }
}

impl Select {
    /// Returns `condition ? x : y`.
    pub fn of(self, condition: impl Into<Formula>, x: impl Into<Formula>, y: impl Into<Formula>) -> Formula {
        Formula::node(self, [condition.into(), x.into(), y.into()])
    }
}

macro_rules! functions_of_two {
    ($($kinds:ty)*) => { $(
        impl $kinds {
            /// Returns the function of `x` and `y`.
            pub fn of(self, x: impl Into<Formula>, y: impl Into<Formula>) -> Formula {
                Formula::node(self, [x.into(), y.into()])
            }
        }
    )* };
}
functions_of_two!(Binary Compare Logical);

macro_rules! arithmetic {
    ($($operator:ident::$function:ident for $left:ty, $right:ty $(, $any:ident)?;)*) => { $(
        impl$(<$any: Into<Formula>>)? $operator<$right> for $left {
            type Output = Formula;

            fn $function(self, other: $right) -> Formula {
                Binary::$operator.of(self, other)
            }
        }
    )* };
    ($($operator:ident::$function:ident)*) => {
        arithmetic! { $(
            $operator::$function for ValueId, T, T;
            $operator::$function for Formula, T, T;
            $operator::$function for f64, ValueId;
            $operator::$function for f64, Formula;
        )* }
    };
}
arithmetic! { Add::add Sub::sub Mul::mul Div::div }

impl Neg for ValueId {
    type Output = Formula;

    fn neg(self) -> Formula {
        Unary::Neg.of(self)
    }
}

impl Neg for Formula {
    type Output = Self;

    fn neg(self) -> Self {
        Unary::Neg.of(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Module, Node, Type};

    /// Returns the operators that a formula over two values adds, in order. The operands are inputs and names of operators.
    fn built(formula: impl FnOnce(ValueId, ValueId) -> Formula) -> Result<Vec<String>, TypeError> {
        let mut module = Module::new("formula");
        let [x, y] = ["x", "y"].map(|name| module.add_input(name, Type::of(DType::F32, &[2]), false));
        let mut b = Builder::new(&mut module, "test");
        b.build(formula(x, y))?;
        b.finish();
        let input = |value: ValueId| if value == x { "x" } else { "y" };
        let name = |&value: &ValueId| module.producer(value).map_or(input(value), |node| node.op.name());
        let text = |node: &Node| {
            let operands: Vec<&str> = node.operands.iter().map(name).collect();
            format!("{}({})", node.op.name(), operands.join(", "))
        };
        Ok(module.nodes().map(|(_, node)| text(node)).collect())
    }

    #[test]
    fn operators_are_added_in_the_order_in_which_they_are_read() {
        let nodes = built(|x, y| -x * Unary::Exp.of(y) - x / y).unwrap();
        assert_eq!(nodes, ["neg(x)", "exp(y)", "mul(neg, exp)", "div(x, y)", "sub(mul, div)"]);
        assert_eq!(built(|x, _| 1.0 - -x).unwrap(), ["neg(x)", "splat()", "sub(splat, neg)"]);
    }

    #[test]
    fn a_number_has_the_type_of_the_operand_beside_it() {
        assert_eq!(built(|x, _| 1.0 - x).unwrap(), ["splat()", "sub(splat, x)"]);
        let nodes = built(|x, y| Select.of(Compare::Less.of(x, y), 0.0, y)).unwrap();
        assert_eq!(nodes, ["less(x, y)", "splat()", "select(less, splat, y)"]);
    }

    #[test]
    fn a_number_does_not_have_the_type_of_a_condition() {
        assert!(built(|x, y| Select.of(Compare::Less.of(x, y), 0.0, 1.0)).is_err());
        let nodes = built(|x, y| Select.of(Compare::Less.of(x, y), Compare::Equal.of(x, y), 0.0)).unwrap();
        assert_eq!(nodes, ["less(x, y)", "equal(x, y)", "splat()", "select(less, equal, splat)"]);
    }

    #[test]
    fn a_conversion_to_the_same_type_is_no_operator() {
        assert_eq!(built(|x, y| (x + y).cast(DType::F32)).unwrap(), ["add(x, y)"]);
        assert_eq!(built(|x, y| (x + y).cast(DType::F64)).unwrap(), ["add(x, y)", "cast(add)"]);
    }

    #[test]
    fn a_formula_of_numbers_alone_has_no_type() {
        assert!(built(|_, _| Binary::Add.of(1.0, 2.0)).is_err());
    }
}
