//! Fuzzes a tokenizer and a text for it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use std::panic::{catch_unwind, set_hook};
use std::sync::Mutex;

/// The last panic.
static PANIC: Mutex<String> = Mutex::new(String::new());

// The loader catches panics of the library that reads tokenizers. The hook of libfuzzer-sys would end the process at the
// first of them, so it is replaced: only a panic that nothing catches ends it.
fuzz_target!(
    init: set_hook(Box::new(|panic| *PANIC.lock().unwrap() = panic.to_string())),
    |bytes: &[u8]| {
        if catch_unwind(|| testing::fuzzing::run("tokenizer", bytes)).is_err() {
            eprintln!("{}", PANIC.lock().unwrap());
            std::process::abort();
        }
    }
);
