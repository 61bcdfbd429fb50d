//! When commands ran, as a profile has it.

use cuda::device::Cuda;
use cuda::host::{Host, Order};
use cuda::lower::lower as lower_for_cuda;
use ir::{DType, Tensor};
use program::Section;
use program::device::{ProgramId, step};
use program::lower::{LowerOptions, lower};
use program::profile::Profile;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A layer whose weight's gradient goes aside.
const LAYER: &str = r#"
trainyard-ir 1
module @layer training {
  data @0 "w" : f32[8, 16]
  state @w : f32[8, 16] parameter = data @0
  func @train(%0 "x" batched : f32[5, 8], %1 = @w) {
    %2 = contract %0, %1 {lhs = mk, rhs = kn, out = mn} : f32[5, 16] !{fwd}
    %3 = tanh %2 : f32[5, 16] !{fwd}
    %4 = contract %0, %3 {lhs = mk, rhs = mn, out = kn} : f32[8, 16] !{bwd}
    %5 = contract %3, %1 {lhs = mn, rhs = kn, out = mk} : f32[5, 8] !{bwd}
    %6 = reduce %5 {kind = sum, dims = [0, 1], keep = false} : f32[] !{bwd}
    %7 = accumulate %4 : f32[8, 16] !{update}
    %8 = tanh %7 : f32[8, 16] !{update}
  }
  output "sum" = %6
  output "step" = %8
}
"#;

#[test]
#[ignore = "needs a C++ compiler"]
fn a_profile_has_each_command_of_the_newest_step_in_its_place() {
    let module = ir::text::parse(LAYER).unwrap_or_else(|error| panic!("{error}"));
    let options = LowerOptions::of(cuda::TARGET);
    let program = Arc::new(lower(&module, &options).unwrap_or_else(|error| panic!("{error}")));
    let commands = lower_for_cuda(program.clone()).unwrap_or_else(|error| panic!("{error}"));
    let mut device = Cuda::new(Host::new(Order::default()), vec![program.clone()])
        .unwrap_or_else(|error| panic!("{error}"));
    let profile = Profile::default();
    device.record([(ProgramId(0), profile.clone())].into());
    let x = Tensor::splat(DType::F32, vec![5, 8], 0.5).to_bytes();
    for _ in 0..3 {
        step(&mut device, ProgramId(0), &[vec![x.clone()]]).unwrap_or_else(|error| panic!("{error}"));
    }

    let timeline = profile.timeline(&program);
    let events = timeline["traceEvents"].as_array().expect("there are events");
    let mut tracks: BTreeMap<u64, Vec<[f64; 2]>> = BTreeMap::new();
    for event in events.iter().filter(|event| event["ph"] == "X") {
        let [start, time] = ["ts", "dur"].map(|key| event[key].as_f64().expect("a number"));
        assert!(start > 0.0 && time > 0.0, "{event}");
        tracks.entry(event["tid"].as_u64().expect("a track")).or_default().push([start, start + time]);
    }
    let names = events.iter().filter(|event| event["ph"] == "M");
    let names: Vec<_> = names.map(|event| event["args"]["name"].as_str().expect("a name")).collect();
    assert_eq!(names, ["main stream", "side stream"]);
    let given: usize = Section::ALL.iter().map(|(section, _)| commands.section(*section).len()).sum();
    assert_eq!(tracks.values().map(Vec::len).sum::<usize>(), given);
    for spans in tracks.values() {
        assert!(spans.windows(2).all(|pair| pair[0][1] <= pair[1][0] + 1e-3), "{spans:?}");
    }
}
