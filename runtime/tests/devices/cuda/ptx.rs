//! Kernels by their PTX, as NVRTC compiles them, against the stand-in.
//!
//! `TRAINYARD_CUDA_LIBS=FOLDER cargo test -p runtime --test devices -- --ignored cuda::ptx`

use runtime::cuda::check::StandIn;
use runtime::cuda::check::samples::{self, SampleVariant};
use runtime::cuda::host::{Order, Ptx};

/// The interpreter, whose table shows the launches that agreed.
fn ptx() -> Ptx {
    Ptx::open().unwrap_or_else(|error| panic!("this test needs NVRTC: {error}"))
}

/// At night.
#[test]
#[ignore = "needs NVRTC and a C++ compiler"]
fn every_sample_agrees_by_its_ptx() {
    let ptx = ptx();
    let subject = StandIn { ptx: Some(ptx.clone()), ..StandIn::sound(Order::default()) };
    let report = samples::check(&subject, &samples::all(), &SampleVariant::ALL[..1], true);
    println!("{}", ptx.table());
    assert!(report.failures.is_empty(), "{:#?}", report.failures);
}
