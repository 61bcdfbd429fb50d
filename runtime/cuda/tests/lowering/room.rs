//! The memory that values on the host take.

use program::Program;
use program::lower::{LowerOptions, lower};
use program::room::{DeviceMemory, check, check_host};

/// A program with 4 KiB on the host and fewer on the device.
fn program() -> Program {
    let text = r#"trainyard-ir 1
        module @m training {
          state @u : f32[1024] optimizer host = zeros
          func @train(%0 "x" batched : f32[2], %1 = @u) {
            %2 = neg %1 : f32[1024] !{update, on host}
          }
          update @u = %2
        }"#;
    lower(&ir::text::parse(text).expect("it parses"), &LowerOptions::of(cpu::TARGET)).expect("it lowers")
}

#[test]
fn values_on_the_host_take_memory_of_a_processor_and_none_of_a_gpu() {
    let program = program();
    assert!(program.memory.host.total >= 4096 && program.memory.peak() < 4096, "{:?}", program.memory);
    let place = |is_host| DeviceMemory { device: "it".into(), free: 4000, beside: 0, ranks: 1, is_host };
    assert_eq!(check([&program].into_iter(), &place(false)), Ok(()));
    let error = check([&program].into_iter(), &place(true)).expect_err("there is no room");
    assert!(error.to_string().contains("4.0 KiB states and values on the host"), "{error}");
}

#[test]
fn a_host_that_is_too_small_is_told_with_the_number_of_its_ranks() {
    assert!(check_host([&program()].into_iter(), 1).is_ok());
    let Err(error) = check_host([&program()].into_iter(), u64::MAX) else { panic!("memory has an end") };
    assert!(error.to_string().contains("--memory host=BYTES"), "{error}");
}
