//! The contracts of all kernels fit their operators.

use ir::samples::samples;

#[test]
fn contracts_fit_their_operators() {
    for target in [cpu::TARGET, cuda::TARGET] {
        for sample in samples() {
            let results = sample.result_types().expect("samples are well-typed");
            let contract = target.kernel_contract(&sample.op, sample.operands.len());
            assert_eq!(
                contract.misfit(&sample.operand_types(), &results),
                None,
                "{:?} for {target:?}",
                sample.op
            );
        }
    }
}
