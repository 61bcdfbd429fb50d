//! Fuzzes the text of a program, parsed, printed and verified.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| testing::fuzzing::run("text", bytes));
