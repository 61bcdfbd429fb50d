//! Dropout. In inference form it is the identity. The attribute `is_test` tells the form up to opset 6, and the input
//! `training_mode` from opset 12 on; in between all dropouts of a file are in inference form.

use super::call::Call;
use super::context::{Context, Entry, Outputs, Problem, one};
use ir::ops::Float;
use ir::ops::dropout::Dropout;
use ir::{DType, Diagnostic};

/// The dropouts of a model.
#[derive(Clone, Debug, Default)]
pub(super) struct Dropouts {
    /// The number of dropouts that are on.
    on: u32,
    /// The number of dropouts that are off although their ratio is above 0.
    off: u32,
    /// The place of the first dropout that is off.
    first_off: String,
}

impl Dropouts {
    /// Warns that some dropouts do nothing, although others of the same model are on.
    pub(super) fn warning(&self) -> Option<Diagnostic> {
        let Self { on, off, first_off } = self;
        let warning = (*on > 0 && *off > 0).then(|| {
            Diagnostic::new(format!("{off} of the model's {} dropouts are off in the file", on + off))
        })?;
        Some(warning.at(first_off).note(
            "PyTorch's TorchScript exporter leaves the training mode out of scaled_dot_product_attention; \
             an eager attention keeps it",
        ))
    }
}

/// The ids of operators that draw random numbers. They are consecutive from 0.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Ids(u32);

impl Ids {
    /// Returns the next id.
    pub(super) fn next(&mut self) -> u32 {
        let id = self.0;
        self.0 = id.wrapping_add(1);
        id
    }
}

/// Dropout. The second output is the mask of kept elements.
pub(super) fn dropout(cx: &mut Context, call: &Call) -> Outputs {
    let training = match call.opset() {
        ..=6 => call.int("is_test") == Some(0),
        7..=11 => false,
        _ => {
            let flag = cx.numbers(call, 2, "training_mode")?;
            flag.is_some_and(|flag| flag.first() == Some(&1))
        }
    };
    let ratio = match cx.optional(call, 1)? {
        Some(ratio) => super::constant_number(cx, ratio),
        None => call.float("ratio").or(Some(0.5)),
    };
    match ratio {
        Some(0.0) => off(cx, call),
        Some(ratio) if training => on(cx, call, ratio),
        None if training => Err(Problem::new("the dropout ratio is computed from data")
            .note("export with a constant ratio, or in eval mode")),
        _ => {
            let dropouts = &mut cx.dropouts;
            dropouts.off += 1;
            if dropouts.off == 1 {
                dropouts.first_off = call.origin();
            }
            off(cx, call)
        }
    }
}

/// Returns the input itself, and a mask that keeps all elements.
fn off(cx: &mut Context, call: &Call) -> Outputs {
    let x = cx.entry(call, 0)?.clone();
    if call.output(1).is_none() {
        return Ok(vec![x]);
    }
    let value = cx.value(call, 0)?;
    let ty = cx.ty(value).with_dtype(DType::Bool);
    let mask = cx.b.splat(ty, 1.0)?;
    Ok(vec![x, Entry::Value(mask)])
}

/// Builds a dropout. The mask is made by the same dropout of ones.
fn on(cx: &mut Context, call: &Call, ratio: f64) -> Outputs {
    let x = cx.value(call, 0)?;
    // The shortest decimal that rounds to the file's f32, so that 0.1 is 0.1.
    let ratio = Float::new((ratio as f32).to_string().parse().unwrap_or(ratio));
    let op = Dropout { ratio, id: cx.draws.next(), seed: 0, dim: 0 };
    cx.dropouts.on += 1;
    let dropped = cx.b.one(op.clone(), &[x])?;
    if call.output(1).is_none() {
        return one(dropped);
    }
    let ones = cx.b.splat(cx.ty(x).clone(), 1.0)?;
    let kept = cx.b.one(op, &[ones])?;
    let mask = cx.b.cast(kept, DType::Bool)?;
    Ok(vec![Entry::Value(dropped), Entry::Value(mask)])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::import::integers::{Int, Ints};
    use crate::{Attribute, Node};
    use ir::{Builder, Module, Op, Type};
    use std::collections::BTreeMap;

    /// Imports a dropout of `x`, with ratio `r` and `train`; `None` means that `train` is computed.
    fn imported(node: &Node, train: Option<i64>) -> (Vec<Op>, Vec<Entry>, Option<Diagnostic>) {
        let mut module = Module::new("m");
        let x = module.add_input("x", Type::of(DType::F32, &[2, 3]), true);
        let data = module.add_input("data", Type::scalar(DType::F32), false);
        let mut b = Builder::new(&mut module, "import");
        let share = b.scalar(DType::F32, f64::from(0.1f32)).unwrap();
        let mut entries: BTreeMap<String, Entry> = [("x", x), ("r", share), ("data", data)]
            .map(|(name, value)| (name.into(), Entry::Value(value)))
            .into();
        let flag = |flag| Entry::Ints(Ints::scalar(Int::Known(flag)), DType::Bool);
        entries.insert("train".into(), train.map_or(Entry::Value(data), flag));
        let mut cx = Context::new(b, entries);
        let outputs = dropout(&mut cx, &Call::new(node)).unwrap_or_default();
        // Another dropout is on, so that a dropout that is off causes the warning.
        let other = Node { inputs: ["x", "r", "on"].map(String::from).into(), ..node.clone() };
        cx.entries.insert("on".into(), flag(1));
        dropout(&mut cx, &Call::new(&Node { opset: 20, outputs: vec!["z".into()], ..other })).unwrap();
        let warning = cx.dropouts.warning();
        cx.b.finish();
        let mut ops: Vec<Op> = module.nodes().map(|(_, node)| node.op.clone()).collect();
        ops.retain(|op| !matches!(op, Op::Splat(_)));
        ops.pop();
        (ops, outputs, warning)
    }

    fn node(opset: i64, inputs: &[&str], outputs: &[&str], attributes: &[(&str, Attribute)]) -> Node {
        let texts = |names: &[&str]| names.iter().map(|name| name.to_string()).collect();
        Node {
            op_type: "Dropout".into(),
            opset,
            inputs: texts(inputs),
            outputs: texts(outputs),
            attributes: attributes.iter().map(|(name, value)| (name.to_string(), value.clone())).collect(),
            ..Node::default()
        }
    }

    fn share(op: &Op) -> f64 {
        let Op::Dropout(dropout) = op else { panic!("{op:?} is no dropout") };
        dropout.ratio.get()
    }

    #[test]
    fn every_opset_says_in_its_own_way_that_it_is_on() {
        let attribute = |share: f32| ("ratio", Attribute::Float(share));
        let is_test = |value| ("is_test", Attribute::Int(value));
        for (node, expected) in [
            (node(13, &["x", "r", "train"], &["y"], &[]), Some(0.1)),
            (node(12, &["x", "", "train"], &["y"], &[]), Some(0.5)),
            (node(20, &["x", "r"], &["y"], &[]), None),
            (node(10, &["x"], &["y"], &[attribute(0.3)]), None),
            (node(6, &["x"], &["y"], &[attribute(0.3), is_test(0)]), Some(0.3)),
            (node(6, &["x"], &["y"], &[attribute(0.3), is_test(1)]), None),
        ] {
            let (ops, outputs, warning) = imported(&node, Some(1));
            assert_eq!(ops.first().map(share), expected, "{node:?}");
            assert_eq!((outputs.len(), warning.is_none()), (1, expected.is_some()), "{node:?}");
        }
        let (ops, _, warning) = imported(&node(13, &["x", "r", "train"], &["y"], &[]), Some(0));
        assert!(
            ops.is_empty() && warning.unwrap().message.starts_with("1 of the model's 2 dropouts are off")
        );
    }

    #[test]
    fn a_mask_is_drawn_from_the_same_numbers() {
        let (ops, outputs, _) = imported(&node(13, &["x", "r", "train"], &["y", "mask"], &[]), Some(1));
        assert_eq!(outputs.len(), 2);
        assert!(ops[0] == ops[1] && share(&ops[0]) == 0.1 && matches!(ops[2], Op::Cast(_)), "{ops:?}");
        let (ops, outputs, _) = imported(&node(13, &["x", "r"], &["y", "mask"], &[]), Some(1));
        assert!(ops.is_empty() && outputs.len() == 2);
    }

    #[test]
    fn what_is_computed_from_data_is_refused() {
        for inputs in [["x", "data", "train"], ["x", "r", "train"]] {
            let node = node(13, &inputs, &["y"], &[]);
            let (ops, outputs, _) = imported(&node, (inputs[1] == "data").then_some(1));
            assert!(ops.is_empty() && outputs.is_empty(), "{inputs:?}");
        }
    }
}
