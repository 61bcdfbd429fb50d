//! Fuzzes a table of numbers, opened and read.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| testing::fuzzing::run("csv", bytes));
