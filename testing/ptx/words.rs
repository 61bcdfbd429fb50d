//! The words of an instruction, as its text has them.

use super::arithmetic::Modifiers;
use super::types::Type;

/// An instruction that is decoded: `ld.global.v2.b32 {%r1, %r2}, [%rd1+8]`. A function takes the modifiers that it understands.
pub(super) struct Words<'a> {
    /// `ld`
    pub(super) name: &'a str,
    /// `global`, `v2`, `b32`
    pub(super) modifiers: Modifiers<'a>,
    /// `{%r1, %r2}`, `[%rd1+8]`
    pub(super) operands: Vec<&'a str>,
}

impl<'a> Words<'a> {
    pub(super) fn operand(&self, index: usize) -> Result<&'a str, String> {
        self.operands.get(index).copied().ok_or_else(|| format!("`{}` has no operand {index}", self.name))
    }

    /// Returns the error of words that are left over.
    pub(super) fn unmodelled(&self) -> String {
        format!("`{}.{}` is not modelled", self.name, self.modifiers.0.join("."))
    }

    /// Takes the type.
    pub(super) fn take_type(&mut self) -> Result<Type, String> {
        self.modifiers.take_type().ok_or_else(|| self.unmodelled())
    }

    /// Takes one of these words; one must be there.
    pub(super) fn take_one(&mut self, words: &[&'static str]) -> Result<&'static str, String> {
        self.modifiers.take_one(words).ok_or_else(|| self.unmodelled())
    }

    /// Takes all words, which must be these.
    pub(super) fn take_all(&mut self, words: &str) -> Result<(), String> {
        if self.modifiers.0.join(".") != words {
            return Err(self.unmodelled());
        }
        self.modifiers.0.clear();
        Ok(())
    }

    /// Returns the operand in memory and the other operand, of a load or a store.
    pub(super) fn place_and_number(&self) -> Result<[&'a str; 2], String> {
        let [first, second] = [self.operand(0)?, self.operand(1)?];
        Ok(if self.name == "ld" { [second, first] } else { [first, second] })
    }
}
