//! Lists the attention and the convolutions of a program that do not go to cuDNN even where it is installed.

use super::Graph;
use ir::Op;
use program::backend::Declined;
use program::{Instruction, Kernel, Program, Section};
use std::collections::BTreeMap;

/// The work that goes to cuDNN where it is installed, in one line for the user.
pub const TAKEN: &str = "convolutions, and attention in f16 and bf16, causal or without a mask; our kernels run all other attention";

/// Returns the instructions of a program that do not go to cuDNN: one entry for each kind and reason.
pub(crate) fn declined(program: &Program) -> Vec<Declined> {
    let mut counts: BTreeMap<(&'static str, String), usize> = BTreeMap::new();
    let all = Section::ALL.iter().flat_map(|(section, _)| program.section(*section));
    for instruction in all {
        if let Some(kind) = kind(instruction)
            && let Err(reason) = Graph::or_reason(instruction)
        {
            *counts.entry((kind, reason)).or_default() += 1;
        }
    }
    counts.into_iter().map(|((kind, reason), count)| Declined { kind, reason, count }).collect()
}

/// Returns the kind of an instruction that cuDNN might run.
fn kind(instruction: &Instruction) -> Option<&'static str> {
    match &instruction.kernel {
        Kernel::Op(Op::Attention(_)) => Some("attention"),
        Kernel::Op(Op::AttentionGrad(_)) => Some("gradient of attention"),
        Kernel::Op(Op::Conv(_) | Op::ConvGradInput(_) | Op::ConvGradWeight(_)) => Some("convolution"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use program::lower::{LowerOptions, lower};

    fn found(nodes: &str) -> Vec<Declined> {
        let text = format!("trainyard-ir 1\nmodule @m imported {{\n  func @forward({nodes}\n}}\n");
        let module = ir::text::parse(&text).unwrap_or_else(|error| panic!("{error}"));
        let options = LowerOptions::of(crate::TARGET);
        declined(&lower(&module, &options).unwrap_or_else(|error| panic!("{error}")))
    }

    fn attention(dtype: &str, mask: &str) -> Vec<Declined> {
        let (input, operand) = match mask {
            "" => (String::new(), ""),
            mask => (format!(", %9 \"mask\" : {mask}"), ", %9"),
        };
        let call = |q: u32, out: u32| {
            format!(
                "    %{out}, %{} = attention %{q}, %1, %2{operand} {{scale = 0.25, causal = false}} : {dtype}[2, 4, 8, 16], f32[2, 4, 8] !{{fwd}}\n",
                out + 1
            )
        };
        found(&format!(
            "%0 \"q\" : {dtype}[2, 4, 8, 16], %1 \"k\" : {dtype}[2, 4, 8, 16], %2 \"v\" : {dtype}[2, 4, 8, 16]{input}) {{\n{}{}  }}\n  output \"y\" = %12",
            call(0, 10),
            call(10, 12),
        ))
    }

    #[test]
    fn attention_that_is_not_for_cudnn_is_counted_by_its_reason() {
        let of = |reason: &str| vec![Declined { kind: "attention", reason: reason.into(), count: 2 }];
        assert_eq!(attention("bf16", ""), []);
        assert_eq!(attention("f32", ""), of("f32 (cuDNN is used for attention in f16 and bf16)"));
        assert_eq!(attention("bf16", "bf16[2, 4, 8, 8]"), of("a mask (cuDNN is used only for causal masks)"));
    }

    #[test]
    fn a_convolution_that_cudnn_does_not_do_is_counted() {
        let conv = |dims: &str, ones: &str, zeros: &str, out: &str| {
            found(&format!(
                "%0 \"x\" : f32[1, 2, {dims}], %1 \"w\" : f32[3, 2, {ones}]) {{\n    %2 = conv %0, %1 {{strides = [{ones}], dilations = [{ones}], pads = [{zeros}]}} : f32[1, 3, {out}] !{{fwd}}\n  }}\n  output \"y\" = %2"
            ))
        };
        assert_eq!(conv("4, 4", "1, 1", "0, 0, 0, 0", "4, 4"), []);
        let reason = "cuDNN supports convolutions over at most 3 spatial dims, not over 4".into();
        let four = conv("4, 4, 4, 4", "1, 1, 1, 1", "0, 0, 0, 0, 0, 0, 0, 0", "4, 4, 4, 4");
        assert_eq!(four, [Declined { kind: "convolution", reason, count: 1 }]);
    }
}
