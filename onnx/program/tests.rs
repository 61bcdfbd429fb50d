//! Tests that write programs and read them back.

mod programs;
mod round_trips;
mod samples;

use ir::interp::{self, Missing, Mode};
use ir::{Module, Tensor};
use std::collections::BTreeMap;

/// Returns the outputs of a forward pass in exact mode.
fn outputs(module: &Module, inputs: &BTreeMap<String, Tensor>) -> BTreeMap<String, Vec<Tensor>> {
    let mut states =
        interp::initial_states(module, 1, Missing::Refuse).unwrap_or_else(|error| panic!("{error}"));
    interp::step(module, Mode::Exact, &mut states, std::slice::from_ref(inputs))
        .unwrap_or_else(|error| panic!("{error}"))
}

/// Compares the outputs of two programs, up to 1e-12 of the largest element of each output.
fn assert_equal_outputs(name: &str, before: &Module, after: &Module, inputs: &BTreeMap<String, Tensor>) {
    let (expected, found) = (outputs(before, inputs), outputs(after, inputs));
    assert_eq!(expected.keys().collect::<Vec<_>>(), found.keys().collect::<Vec<_>>(), "{name}");
    for (output, expected) in &expected {
        let (expected, found) = (&expected[0], &found[output][0]);
        assert_eq!(expected.ty(), found.ty(), "{name}: {output}");
        let (expected, found) = (expected.numbers(), found.numbers());
        let finite = expected.iter().filter(|number| number.is_finite());
        let scale = finite.fold(1e-3, |largest: f64, number| largest.max(number.abs()));
        for (i, (expected, found)) in expected.iter().zip(&found).enumerate() {
            let is_equal = expected == found || expected.is_nan() && found.is_nan();
            assert!(
                is_equal || (expected - found).abs() <= 1e-12 * scale,
                "{name}: {output}[{i}]: {expected}, {found}"
            );
        }
    }
}
