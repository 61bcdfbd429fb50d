//! Fuzzes a table of numbers, opened and read.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzz::run("csv", bytes));
