//! Copies in packs and by tiles. The samples of operators are too small for them.

use super::budget::faults;
use super::operators::{ARCHITECTURES, nvrtc};
use cuda::program::Kernel;
use ir::{Builder, DType, Dim, Module, Type};
use program::lower::{LowerOptions, lower};
use std::sync::Arc;

/// A case for every method of `lower/copy.rs`: sizes and a permutation.
const CASES: [([u64; 3], [u32; 3]); 5] = [
    ([64, 16, 128], [1, 0, 2]),
    ([64, 16, 127], [1, 0, 2]),
    ([4, 768, 3072], [0, 2, 1]),
    ([4, 769, 3071], [0, 2, 1]),
    ([64, 512, 4], [0, 2, 1]),
];

/// The kernel of a transposed tensor in one row.
fn kernels_of(dtype: DType, sizes: [u64; 3], permutation: [u32; 3]) -> Vec<Kernel> {
    let mut module = Module::new("copy");
    let x = module.add_input("x", Type::of(dtype, &sizes), false);
    let mut b = Builder::new(&mut module, "test");
    let x = b.transpose(x, &permutation).expect("a permutation");
    let x = b.reshape(x, [Dim::known(sizes.iter().product())]).expect("as many elements");
    b.finish();
    module.add_output("x", x);
    let program = lower(&module, &LowerOptions::of(cuda::TARGET));
    cuda::lower::lower(Arc::new(program.expect("it lowers"))).expect("it has kernels").kernels
}

/// The kernels of every method, for elements of each size, as a copy and as a sum.
pub(super) fn kernels() -> Vec<Kernel> {
    let mut kernels: Vec<Kernel> = Vec::new();
    for dtype in [DType::F64, DType::F32, DType::BF16, DType::I8] {
        for (sizes, permutation) in CASES {
            kernels.extend(kernels_of(dtype, sizes, permutation));
        }
    }
    // The same methods as sums of bf16 and f32, whose parameters are `bf16*` and `float*`.
    let sums = kernels.iter().filter_map(|kernel| {
        let ty =
            [("u16*", "bf16*"), ("u32*", "float*")].into_iter().find(|(word, _)| kernel.text.contains(word));
        let (word, number) = ty?;
        let text = kernel.text.replace(word, number).replace("a1, 0)", "a1, 1)");
        let name = kernel.name.replace("copy", "sum");
        Some(Kernel { text: text.replace(&kernel.name, &name), name, ..kernel.clone() })
    });
    kernels.iter().cloned().chain(sums).collect()
}

#[test]
#[ignore = "needs NVRTC"]
fn every_copy_compiles_within_its_budget() {
    let all = kernels();
    let tiles = all.iter().filter(|kernel| kernel.text.contains("copying::transpose<")).count();
    assert_eq!((all.len(), tiles), (30, 12));
    let faults = faults(&nvrtc(), &all, &ARCHITECTURES);
    assert!(faults.is_empty(), "{} faults\n{}", faults.len(), faults.join("\n\n"));
}
