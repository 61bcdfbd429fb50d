//! Programs as text.

use ir::{Level, Module, verify};
use program::lower::{LowerOptions, lower};

/// Reads a program as text. A program that the parser accepts must be printed as text with the same meaning. A program that the verifier
/// accepts must be lowered or refused. Programs of level `lowered` are left out: a pass makes them for the kernels of one target, and users
/// do not write them.
pub(super) fn text(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok(module) = ir::text::parse_unchecked(text) {
        round_trip(&module, ir::text::parse_unchecked);
        let _ = verify::verify(&module);
    }
    if let Ok(module) = ir::text::parse(text) {
        round_trip(&module, ir::text::parse);
        if verify::verify(&module).is_ok() && module.level < Level::Lowered {
            let _ = lower(&module, &LowerOptions::of(cpu::TARGET));
        }
    }
}

fn round_trip(module: &Module, parse: impl FnOnce(&str) -> Result<Module, ir::Diagnostic>) {
    let printed = ir::text::print(module);
    let again =
        parse(&printed).unwrap_or_else(|error| panic!("what was printed is refused: {error}\n{printed}"));
    assert_eq!(ir::text::print(&again), printed, "printing and parsing changed the program");
}
