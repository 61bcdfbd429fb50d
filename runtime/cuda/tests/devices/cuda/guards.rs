//! Faults of memory planted in kernels, which the stand-in reports as errors of the command: accesses beside an operand, and
//! packs at addresses that are not aligned.

use super::writer::Writer;
use cuda::check::{StandIn, Subject};
use cuda::host::Order;
use cuda::lower::lower as lower_for_cuda;
use cuda::program::{File, Kernel};
use ir::DType;
use ir::ops::attention::Attention;
use ir::ops::elementwise::Unary;
use ir::ops::softmax::Softmax;
use program::device::{Device, ProgramId};
use program::{Program, Section};
use std::sync::Arc;

/// The error of a program whose kernels were changed; inputs are zeros.
fn error_of(program: Program, change: fn(&mut Kernel)) -> String {
    let subject = StandIn { change, ..StandIn::sound(Order::default()) };
    let cuda = lower_for_cuda(Arc::new(program)).unwrap_or_else(|error| panic!("{error}"));
    let mut device = subject.with(cuda).unwrap_or_else(|error| panic!("{error}"));
    device.run(ProgramId(0), Section::Prepare).expect("nothing is prepared");
    let done = device.run(ProgramId(0), Section::Microbatch).and_then(|()| device.finish());
    done.err().map_or_else(String::new, |error| error.to_string())
}

/// `-x` of so many floats.
fn negation(count: usize) -> Program {
    let mut w = Writer::default();
    let x = w.floats(DType::F32, &[count]);
    w.op(Unary::Neg, &[x]);
    w.lowered()
}

/// A kernel whose text has this instead of that.
fn replace(kernel: &mut Kernel, old: &str, new: &str) {
    assert!(kernel.text.contains(old), "no `{old}` in {}", kernel.text);
    kernel.text = kernel.text.replace(old, new);
}

/// A file with this instead of that, where it is the one of this name.
fn replace_in(kernel: &mut Kernel, name: &str, old: &str, new: &str) {
    for file in kernel.files.iter_mut().filter(|file| file.name == name) {
        assert!(file.text.contains(old), "no `{old}` in {name}");
        let text = Box::leak(file.text.replace(old, new).into_boxed_str());
        *file = Box::leak(Box::new(File { text, ..**file }));
    }
}

/// The value that is read is not used, so no result shows it.
#[test]
#[ignore = "needs a C++ compiler"]
fn a_read_behind_an_operand_is_an_error_that_names_it() {
    let error = error_of(negation(64), |kernel| {
        replace(kernel, "store(", "volatile float beyond = a0[64 + threadIdx.x]; store(");
    });
    assert!(error.contains("reads 1 byte behind operand 0 (bytes "), "{error}");
}

#[test]
#[ignore = "needs a C++ compiler"]
fn a_read_before_an_operand_is_an_error_that_names_it() {
    let error = error_of(negation(64), |kernel| {
        replace(kernel, "store(", "volatile float beyond = a0[-8]; store(");
    });
    assert!(error.contains("reads 32 bytes before operand 0"), "{error}");
}

#[test]
#[ignore = "needs a C++ compiler"]
fn a_write_behind_a_result_is_an_error_that_names_it() {
    let error = error_of(negation(64), |kernel| replace(kernel, "store(a1 + ", "a1[72] = 1, store(a1 + "));
    assert!(error.contains("writes 33 bytes behind result 0"), "{error}");
}

/// Far away, where neither the operands nor their guards are.
#[test]
#[ignore = "needs a C++ compiler"]
fn a_wild_read_is_an_error() {
    let error = error_of(negation(64), |kernel| {
        replace(kernel, "store(", "volatile float wild = *(const float*)64; store(");
    });
    assert!(error.contains("reads at 0x40, where the device has no memory"), "{error}");
}

/// A pack that begins at an odd element: on a device it is an error of the address.
#[test]
#[ignore = "needs a C++ compiler"]
fn a_pack_that_is_not_aligned_is_an_error() {
    let error = error_of(negation(64), |kernel| replace(kernel, "load<4>(a0 + ", "load<4>(a0 + 1 + "));
    assert!(error.contains("chain") && error.contains("not a multiple of its type's alignment"), "{error}");
    let error = error_of(negation(64), |kernel| replace(kernel, "store(a1 + ", "store(a1 + (first == 3) + "));
    assert!(error.contains("not a multiple of its type's alignment"), "{error}");
}

/// Rows of matrices for tensor cores, and asynchronous copies of 16 bytes, begin at multiples of 16 bytes.
#[test]
#[ignore = "needs a C++ compiler"]
fn rows_and_copies_of_tensor_cores_that_are_not_aligned_are_errors() {
    let attention = || {
        let mut w = Writer::default();
        let read = [(); 3].map(|()| w.floats(DType::BF16, &[1, 1, 40, 64]));
        w.op(Attention { scale: 0.1.into(), causal: false }, &read);
        w.lowered()
    };
    let faults: [fn(&mut Kernel); 2] = [
        |kernel| {
            replace_in(kernel, "mma.cuh", "(Place)(column % 64 * 2)) +", "(Place)(column % 64 * 2)) + 2 +")
        },
        |kernel| replace_in(kernel, "mma.cuh", "+ group * 8 : from", "+ group * 8 + 1 : from"),
    ];
    for fault in faults {
        let error = error_of(attention(), fault);
        assert!(error.contains("attention_mma") && error.contains("alignment"), "{error}");
    }
}

/// A pack whose stride its width does not divide does not compile.
#[test]
#[ignore = "needs a C++ compiler"]
fn packs_whose_strides_are_no_multiples_of_their_width_do_not_compile() {
    let mut w = Writer::default();
    let x = w.floats(DType::F32, &[6, 8]);
    w.op(Softmax { dim: 1 }, &[x]);
    let cuda = lower_for_cuda(Arc::new(w.lowered())).unwrap_or_else(|error| panic!("{error}"));
    let change = |kernel: &mut Kernel| {
        replace_in(kernel, "rows.cuh", "static constexpr int N = N_,", "static constexpr int N = 3,");
    };
    let subject = StandIn { change, ..StandIn::sound(Order::default()) };
    let error = subject.with(cuda).err().map_or_else(String::new, |error| error.to_string());
    assert!(error.contains("the packs of a row are not aligned"), "{error}");
}

/// Rows that lie across a partial last block are clamped to the last row. Without the clamp their threads read behind the
/// tensor, and nothing uses the numbers.
#[test]
#[ignore = "needs a C++ compiler"]
fn rows_beyond_the_last_are_found_where_nothing_clamps_them() {
    let mut w = Writer::default();
    let x = w.floats(DType::F32, &[1, 1200, 300]);
    w.op(Softmax { dim: 1 }, &[x]);
    let error = error_of(w.lowered(), |kernel| {
        replace_in(kernel, "rows.cuh", "row < ROWS ? row : ROWS - 1", "row");
    });
    assert!(error.contains("softmax") && error.contains("behind operand 0"), "{error}");
}
