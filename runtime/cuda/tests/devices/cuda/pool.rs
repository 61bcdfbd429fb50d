//! Pooling: windows that overlap, that leave gaps, that reach into padding, by threads and by warps.

use super::writer::{FLOATS, Writer};
use ir::ops::pool::{
    AvgPool, AvgPoolGrad, MaxPool, MaxPoolGrad, MaxPoolGradAt, MaxPoolIndices, MaxPoolOffsets, Window,
    Windows,
};
use ir::{DType, Type, ValueId};

fn window(size: u64, stride: u64, dilation: u64, before: u64, after: u64) -> Window {
    Window { size, stride, dilation, before, after }
}

/// Every pooling of `x`, and its gradient.
fn pools(w: &mut Writer, dtype: DType, x: ValueId, sizes: &[usize], windows: &[Window]) {
    let windows = Windows::from_slice(windows);
    let mut pooled = sizes.to_vec();
    let leading = sizes.len() - windows.len();
    for (size, window) in pooled[leading..].iter_mut().zip(&windows) {
        *size = window.positions(*size as u64).expect("the window fits") as usize;
    }
    let dy = w.floats(dtype, &pooled);
    let ty = Type::of(dtype, &sizes.iter().map(|&size| size as u64).collect::<Vec<_>>());
    w.op(MaxPool { windows: windows.clone() }, &[x]);
    w.op(MaxPoolIndices { windows: windows.clone() }, &[x]);
    w.op(MaxPoolGrad { windows: windows.clone() }, &[x, dy]);
    let offsets = w.op(MaxPoolOffsets { windows: windows.clone() }, &[x])[0];
    w.typed(MaxPoolGradAt { windows: windows.clone() }, &[offsets, dy], std::slice::from_ref(&ty));
    for count_padding in [false, true] {
        w.op(AvgPool { windows: windows.clone(), count_padding }, &[x]);
        let gradient = AvgPoolGrad { windows: windows.clone(), count_padding };
        w.typed(gradient, &[dy], std::slice::from_ref(&ty));
    }
}

#[test]
#[ignore = "needs a C++ compiler"]
fn windows_of_any_kind_are_pooled() {
    let cases = [
        (&[2, 3, 9, 11][..], vec![window(3, 2, 1, 1, 1); 2]),
        (&[3, 8, 8], vec![window(2, 2, 1, 0, 0); 2]),
        (&[2, 30], vec![window(3, 1, 4, 5, 2)]),
        // Gaps between windows, and windows of padding alone.
        (&[2, 7, 9], vec![window(2, 4, 1, 3, 3), window(1, 3, 9, 2, 2)]),
        (&[2, 4, 5, 6], vec![window(2, 1, 2, 1, 1), window(3, 2, 1, 0, 1), window(2, 3, 2, 2, 0)]),
        // A warp a window: all of a plane, and large ones that overlap.
        (&[5, 3, 12, 9], vec![Window::of(12), Window::of(9)]),
        (&[3, 20, 21], vec![window(9, 5, 1, 4, 3), window(9, 4, 2, 4, 2)]),
        (&[70, 5, 5], vec![Window::of(5); 2]),
    ];
    for (order, dtype) in FLOATS.into_iter().enumerate() {
        let mut w = Writer::default();
        for (i, (sizes, windows)) in cases.iter().enumerate() {
            // Every other one has many elements that are equal, and some that are no numbers.
            let rough = |x: f64| if x > 2.0 { f64::NAN } else { x.round() };
            let x = w.numbers(dtype, sizes, |x| if i % 2 == 0 { x } else { rough(x) });
            pools(&mut w, dtype, x, sizes, windows);
        }
        w.check(order as u32);
    }
}
