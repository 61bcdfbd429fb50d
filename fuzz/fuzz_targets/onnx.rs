//! Fuzzes an ONNX file by its fields, from the import to one step of training.
#![no_main]

use libfuzzer_sys::{fuzz_crossover, fuzz_mutator, fuzz_target, fuzzer_mutate};
use testing::fuzzing::choices::Choices;
use testing::fuzzing::mutate;

fuzz_target!(|bytes: &[u8]| testing::fuzzing::run("onnx", bytes));

fuzz_mutator!(|bytes: &mut [u8], size: usize, longest: usize, seed: u32| {
    let mut choices = Choices::new(seed.into());
    match mutate::changed(&bytes[..size], longest, &mut choices) {
        // Bytes that are no field that is known are changed now and then, too.
        Some(changed) if !choices.once_in(20) => {
            bytes[..changed.len()].copy_from_slice(&changed);
            changed.len()
        }
        _ => fuzzer_mutate(bytes, size, longest),
    }
});

fuzz_crossover!(|first: &[u8], second: &[u8], out: &mut [u8], seed: u32| {
    let crossed = mutate::crossed(first, second, out.len(), &mut Choices::new(seed.into()));
    let crossed = crossed.as_deref().unwrap_or(&first[..first.len().min(out.len())]);
    out[..crossed.len()].copy_from_slice(crossed);
    crossed.len()
});
