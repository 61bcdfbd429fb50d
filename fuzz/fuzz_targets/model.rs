//! Fuzzes an ONNX file, from its bytes to the lowered program.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| testing::fuzzing::run("model", bytes));
