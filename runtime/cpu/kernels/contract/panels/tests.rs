//! Products in scratch of any length, with operands and results that lie in any way, beside plain sums.

use super::*;
use crate::bf16::Bf16Products;
use ir::ops::contract::Contract;
use program::layout::Layout;

/// Small integers, of which every sum is exact.
fn numbers(count: usize, key: usize) -> Vec<bf16> {
    (0..count).map(|i| bf16::from_f32((i * key % 11) as f32 - 5.0)).collect()
}

/// Returns the offset of the element with these labels' places.
fn offset(labels: &str, sizes: &[usize], places: &[(char, usize)]) -> usize {
    let place = |label: char| places.iter().find(|(other, _)| *other == label).expect("a label").1;
    labels.chars().zip(sizes).fold(0, |offset, (label, size)| offset * size + place(label))
}

#[test]
fn a_product_is_the_same_in_scratch_of_any_length() {
    let size = |label: char| match label {
        'm' => 70,
        'n' => 97,
        'k' => 83,
        _ => 2,
    };
    for text in ["mk,kn->mn", "km,kn->mn", "mk,nk->nm", "amk,kan->mn", "bmk,bkn->mbn"] {
        let contract = Contract::new(text);
        let (operands, out) = text.split_once("->").expect("an arrow");
        let (lhs, rhs) = operands.split_once(',').expect("two operands");
        let sizes = [lhs, rhs, out].map(|labels| labels.chars().map(size).collect::<Vec<_>>());
        let [of_lhs, of_rhs, of_out] = sizes.each_ref().map(|sizes| sizes.iter().product::<usize>());
        let (left, right) = (numbers(of_lhs, 7), numbers(of_rhs, 3));
        let mut sums = vec![0.0; of_out];
        let loops = ['a', 'b'].map(|label| if text.contains(label) { 2 } else { 1 });
        for (a, b) in (0..loops[0]).flat_map(|a| (0..loops[1]).map(move |b| (a, b))) {
            for (m, n) in (0..size('m')).flat_map(|m| (0..size('n')).map(move |n| (m, n))) {
                let places = |k: usize| [('a', a), ('b', b), ('k', k), ('m', m), ('n', n)];
                let product = |k: usize| {
                    let of_left = left[offset(lhs, &sizes[0], &places(k))].to_f32();
                    of_left * right[offset(rhs, &sizes[1], &places(k))].to_f32()
                };
                sums[offset(out, &sizes[2], &places(0))] += (0..size('k')).map(product).sum::<f32>();
            }
        }
        let expected: Vec<bf16> = sums.into_iter().map(bf16::from_f32).collect();
        let plan = ContractionPlan::of(&contract, sizes.each_ref().map(|sizes| Layout::dense(sizes)));
        let whole = Product::of(&plan, [&left, &right], |_, _, _, _| {}).whole();
        assert_eq!((whole.rows, whole.columns), if text.ends_with("nm") { (4, 3) } else { (3, 4) });
        for products in [Bf16Products::Amx, Bf16Products::Avx512] {
            let function = products.multiply().expect("it has instructions");
            for len in [Part::LEAST, 4096, 9000, 12_000, whole.len(), 2 * whole.len()] {
                let mut given = vec![bf16::ZERO; of_out];
                multiply(&plan, [&left, &right], &mut given, &mut vec![u32::MAX; len], function);
                assert!(given == expected, "{text} by {products:?} in scratch of {len}");
            }
        }
    }
}
