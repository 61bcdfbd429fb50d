//! Tests of the whole pass on programs with blocks.

use super::*;
use ir::ops::contract::Contract;
use ir::ops::elementwise::Unary;
use ir::{At, Builder, DType, Phase, Type, ValueId};

/// Makes `count` layers `x + tanh(x · w)`, each with the backward nodes that read their activations.
fn layers(count: usize) -> Module {
    let mut module = Module::new("layers");
    let ty = Type::of(DType::F32, &[64, 64]);
    let input = module.add_input("x", ty.clone(), true);
    let weights: Vec<ValueId> = (0..count)
        .map(|layer| {
            let name = format!("w{layer}");
            let w = module.add_state(name, ty.clone(), ir::Role::Parameter, ir::Initializer::Zeros);
            module.states[w].input
        })
        .collect();
    let mut b = Builder::new(&mut module, "test");
    let (mut read, mut x) = (Vec::new(), b.one(Unary::Exp, &[input]).unwrap());
    for w in weights {
        let product = b.one(Contract::new("ik,kj->ij"), &[x, w]).unwrap();
        let active = b.one(Unary::Tanh, &[product]).unwrap();
        read.push((x, product, active));
        x = b.build(x + active).unwrap();
    }
    let loss = b.one(Contract::new("ij,ij->"), &[x, x]).unwrap();
    b.tables().add_output("loss", loss);
    let mut gradient = b.one(Unary::Neg, &[x]).unwrap();
    b.at(At::End(Phase::Backward));
    for (x, product, active) in read.into_iter().rev() {
        let all = b.build(product * active).unwrap();
        let all = b.build(all * x).unwrap();
        gradient = b.build(gradient * all).unwrap();
    }
    b.tables().add_output("gradient", gradient);
    b.finish();
    module.level = ir::Level::Training;
    module
}

#[test]
fn each_layer_is_a_block_that_may_be_repeated() {
    let decision = decide(&layers(4), &Recompute::FULL);
    assert_eq!(decision.blocks.len(), 5, "the loss behind the layers is the last block");
    assert_eq!(decision.kept(), 0, "{decision}");
}

#[test]
fn a_price_of_zero_repeats_nothing() {
    let mut module = layers(4);
    let decision = decide(&module, &Recompute { price: 0, ..Recompute::FULL });
    assert_eq!(decision.picoseconds(), 0);
    assert_eq!(apply(&mut module, &decision), Ok(Changed::No));
}

#[test]
fn copies_stand_in_backward_and_compute_the_same() {
    let before = layers(4);
    let mut after = before.clone();
    let decision = decide(&before, &Recompute::FULL);
    assert_eq!(apply(&mut after, &decision), Ok(Changed::Yes));
    ir::verify::verify(&after).expect("the program is whole");
    let copies: Vec<_> = after.nodes().filter(|(_, node)| node.copy == 1).collect();
    assert_eq!(copies.len(), 8, "a product and its tanh of each layer");
    assert!(copies.iter().all(|(_, node)| node.phase == Phase::Backward));
}

#[test]
fn the_first_blocks_alone_take_the_price() {
    let decision = decide(&layers(4), &Recompute { first: Some(2), ..Recompute::FULL });
    let repeated: Vec<usize> = decision.blocks.iter().map(|block| block.repeated.len()).collect();
    assert_eq!(repeated, [0, 2, 0, 0, 0]);
}

#[test]
fn equal_layers_share_a_network() {
    let module = layers(6);
    let choices = Choices::of(&module, &Recompute::FULL.rates());
    assert_eq!(choices.networks.len(), 7);
    assert!(choices.shapes.len() <= 3, "{choices:?}");
}

#[test]
fn every_decision_is_found_with_its_lowest_price() {
    let module = layers(4);
    let choices = Choices::of(&module, &Recompute::FULL.rates());
    let at = |price: u64| Recompute { price, ..Recompute::FULL };
    let prices = choices.prices(&at(0), &Recompute::FULL);
    assert!(prices.len() >= 2, "{} prices", prices.len());
    assert!(prices.is_sorted_by_key(|(options, _)| options.price));
    for pair in prices.windows(2) {
        let [(lower, kept), (higher, repeated)] = pair else { panic!("two neighbours") };
        assert_eq!(choices.decide(lower), *kept);
        assert_eq!(choices.decide(&at(higher.price - 1)), *kept, "up to the next price");
        assert_eq!(choices.decide(higher), *repeated);
        assert!(repeated.kept() < kept.kept() && repeated.picoseconds() > kept.picoseconds());
    }
    assert_eq!(prices[prices.len() - 1].1, choices.decide(&Recompute::FULL));
}

#[test]
fn a_price_on_another_device_is_as_many_moved_bytes() {
    let device = ir::machine::Preset::H200.device();
    let selective = Recompute::SELECTIVE.on(&device);
    assert_eq!(selective.price, 1536 * 3_000_000 / 4_320_000);
    assert_eq!(Recompute::FULL.on(&device).price, Recompute::FULL.price);
    let pipeline = crate::Pipeline::from(selective);
    assert_eq!(pipeline.to_string(), "recompute(price=1066, device=h200)");
    assert_eq!(pipeline.to_string().parse(), Ok(pipeline));
}
