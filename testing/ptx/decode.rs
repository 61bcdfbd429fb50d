//! Decodes instructions by their names: returns the operation of each instruction, with its operands.

use super::arithmetic::{Evaluate, Modifiers, evaluate, insert_field, operands};
use super::conversion::conversion;
use super::instruction::{Operand, Operation, Shuffle, Space};
use super::memory::{LOCAL_WINDOW, SHARED_WINDOW};
use super::parse::{CallNames, Parser, list};
use super::types::Type;
use super::words::Words;

/// Returns the function of an instruction that computes a number; `None` if it is not modelled.
pub(super) fn function(name: &str, modifiers: &mut Modifiers) -> Option<Evaluate> {
    if name == "cvt" { conversion(modifiers) } else { evaluate(name, modifiers) }
}

/// Returns the text inside of braces, brackets or parentheses.
fn inside(text: &str) -> &str {
    text.trim_matches(['{', '}', '[', ']', '(', ')'])
}

impl Parser<'_> {
    /// Returns the operation of an instruction.
    pub(super) fn operation(&mut self, words: &mut Words) -> Result<Operation, String> {
        match words.name {
            "ld" | "st" if words.modifiers.take("param") => self.parameter(words),
            "ld" | "st" => self.load_or_store(words),
            "cvta" => self.converted_address(words),
            "mov" if words.operands.iter().any(|operand| operand.starts_with('{')) => self.packed(words),
            "bra" | "call" | "ret" | "trap" => self.control(words),
            "bar" | "shfl" => self.of_warp(words),
            "ldmatrix" | "mma" => self.of_matrices(words),
            "cp" => self.copy(words),
            "bfi" => self.inserted_field(words),
            _ => self.computed(words),
        }
    }

    fn parameter(&mut self, words: &mut Words) -> Result<Operation, String> {
        let ty = words.take_type()?;
        let [at, number] = words.place_and_number()?.map(inside);
        let (name, byte) = at.split_once('+').unwrap_or((at, "0"));
        let slot = self.known_slot(name.trim())?;
        let byte = byte.trim().parse().map_err(|_| format!("the address `{at}` is not modelled"))?;
        match words.name {
            "ld" => Ok(Operation::LoadParameter { ty, to: self.register(number)?, slot, byte }),
            _ if byte == 0 => Ok(Operation::StoreParameter { slot, of: self.operand(number)? }),
            _ => Err(format!("the address `{at}` is not modelled")),
        }
    }

    /// Takes the memory that an instruction names.
    fn space(words: &mut Words) -> Space {
        match words.modifiers.take_one(&["global", "const", "shared", "local"]) {
            Some("global" | "const") => Space::Global,
            Some("shared") => Space::Shared,
            Some(_) => Space::Local,
            None => Space::Generic,
        }
    }

    fn load_or_store(&mut self, words: &mut Words) -> Result<Operation, String> {
        let space = Self::space(words);
        // `nc`: no thread of the launch writes there. `weak`: other threads see a store after a wait.
        words.modifiers.drop(&["nc", "weak"]);
        let count = match words.modifiers.take_one(&["v2", "v4"]) {
            Some("v2") => 2,
            Some(_) => 4,
            None => 1,
        };
        let ty = words.take_type()?;
        let [at, numbers] = words.place_and_number()?;
        let (place, numbers) = (self.place(at)?, list(inside(numbers)));
        if numbers.len() != count {
            return Err(format!("{count} numbers are expected"));
        }
        if words.name == "ld" {
            return Ok(Operation::Load { space, ty, to: self.results(&numbers)?, from: place });
        }
        let of = numbers.into_iter().map(|number| self.operand(number)).collect::<Result<_, _>>()?;
        Ok(Operation::Store { space, ty, to: place, of })
    }

    /// Converts between an address of a memory and a generic address.
    fn converted_address(&mut self, words: &mut Words) -> Result<Operation, String> {
        let is_narrowed = words.modifiers.take("to");
        let window = match Self::space(words) {
            Space::Shared => SHARED_WINDOW,
            Space::Local => LOCAL_WINDOW,
            Space::Global | Space::Generic => 0,
        };
        words.take_type()?;
        let evaluate = Box::new(
            move |[x, ..]: [u64; 3]| {
                if is_narrowed { x.wrapping_sub(window) } else { x.wrapping_add(window) }
            },
        );
        let of = self.three(&[words.operand(1)?])?;
        Ok(Operation::Compute { to: self.register(words.operand(0)?)?, of, evaluate })
    }

    /// `mov.b32 %r1, {%rs1, %rs2}`, and the reverse.
    fn packed(&mut self, words: &mut Words) -> Result<Operation, String> {
        let ty = words.take_type()?;
        let [to, of] = [words.operand(0)?, words.operand(1)?];
        let splits = to.starts_with('{');
        let parts = list(inside(if splits { to } else { of }));
        if !matches!(parts.len(), 2 | 4) {
            return Err(format!("{} parts are not modelled", parts.len()));
        }
        let bits = ty.bits() / parts.len() as u32;
        if splits {
            return Ok(Operation::Split { to: self.results(&parts)?, of: self.operand(of)?, bits });
        }
        let parts = parts.into_iter().map(|part| self.operand(part)).collect::<Result<_, _>>()?;
        Ok(Operation::Join { to: self.register(to)?, parts, bits })
    }

    fn control(&mut self, words: &mut Words) -> Result<Operation, String> {
        words.modifiers.take("uni");
        match words.name {
            "bra" => {
                let label = words.operand(0)?;
                Ok(self.branch(label))
            }
            "call" => self.call(&words.operands),
            "trap" => Ok(Operation::Trap),
            _ => Ok(Operation::Return),
        }
    }

    /// `(results), function, (parameters)`.
    fn call(&mut self, parts: &[&str]) -> Result<Operation, String> {
        let name = parts.iter().position(|part| !part.starts_with('(')).ok_or("no function is called")?;
        let slots = |part: Option<&&str>| -> Result<Vec<usize>, String> {
            list(part.map_or("", |part| inside(part))).into_iter().map(|name| self.known_slot(name)).collect()
        };
        let results = slots(if name > 0 { parts.first() } else { None })?;
        let parameters = slots(parts.get(name + 1))?;
        self.later(CallNames { function: parts[name].to_owned(), parameters, results });
        Ok(Operation::Call { start: 0, copied: vec![], returned: vec![] })
    }

    fn of_warp(&mut self, words: &mut Words) -> Result<Operation, String> {
        if words.name == "bar" {
            if words.modifiers.0 == ["warp", "sync"] {
                words.take_all("warp.sync")?;
                return Ok(Operation::WarpBarrier { mask: self.operand(words.operand(0)?)? });
            }
            words.take_all("sync")?;
            let is_first = words.operands == ["0"];
            return if is_first {
                Ok(Operation::Barrier)
            } else {
                Err("a barrier but the first is not modelled".into())
            };
        }
        words.take_one(&["sync"])?;
        let (to, is_within) = words
            .operand(0)?
            .split_once('|')
            .map_or((words.operand(0)?, None), |(to, within)| (to, Some(within)));
        let to = self.register(to)?;
        let kind = match words.take_one(&["bfly", "idx"])? {
            "bfly" => Shuffle::Butterfly,
            _ => Shuffle::Index,
        };
        words.take_all("b32")?;
        let is_within = is_within.map(|name| self.register(name)).transpose()?;
        let [of, by, clamp, mask] = self.all(words.operands.get(1..).unwrap_or_default())?;
        Ok(Operation::Shuffle { kind, to, is_within, of, by, clamp, mask })
    }

    fn of_matrices(&mut self, words: &mut Words) -> Result<Operation, String> {
        let to = self.registers(inside(words.operand(0)?))?;
        if words.name == "ldmatrix" {
            let is_transposed = words.modifiers.take("trans");
            let from = self.place(words.operand(1)?)?;
            Self::space(words);
            words.take_all("sync.aligned.m8n8.x4.b16")?;
            return Ok(Operation::LoadMatrices { to, from, is_transposed });
        }
        let ty = if words.modifiers.0.contains(&"bf16") { Type::BF16 } else { Type::F16 };
        let half = if ty == Type::BF16 { "bf16" } else { "f16" };
        words.take_all(&format!("sync.aligned.m16n8k16.row.col.f32.{half}.{half}.f32"))?;
        let [lhs, addend] =
            [self.all(&list(inside(words.operand(1)?)))?, self.all(&list(inside(words.operand(3)?)))?];
        let rhs = self.all(&list(inside(words.operand(2)?)))?;
        Ok(Operation::MultiplyMatrices { ty, to, lhs, rhs, addend })
    }

    /// Asynchronous copies to shared memory, and waits for them.
    fn copy(&mut self, words: &mut Words) -> Result<Operation, String> {
        match words.modifiers.0.get(1).copied() {
            Some("commit_group") => words.take_all("async.commit_group").map(|()| Operation::CloseCopies),
            Some("wait_all") => words.take_all("async.wait_all").map(|()| Operation::WaitForAllCopies),
            Some("wait_group") => {
                words.take_all("async.wait_group")?;
                let but = words.operand(0)?.parse().map_err(|_| "the number of groups is no number")?;
                Ok(Operation::WaitForCopies { but })
            }
            _ => {
                words.take_all("async.cg.shared.global")?;
                if words.operand(2)? != "16" {
                    return Err("a copy of another size than 16 bytes is not modelled".into());
                }
                let bytes = words.operands.get(3).copied().unwrap_or("16");
                let [to, from] = [self.place(words.operand(0)?)?, self.place(words.operand(1)?)?];
                Ok(Operation::CopyLater { to, from, bytes: self.operand(bytes)? })
            }
        }
    }

    /// `bfi`, the only instruction of four operands: its number of bits has to be a constant.
    fn inserted_field(&mut self, words: &mut Words) -> Result<Operation, String> {
        let ty = words.take_type()?;
        let Operand::Number(count) = self.operand(words.operand(4)?)? else {
            return Err("a number of bits that is no constant is not modelled".into());
        };
        let evaluate =
            Box::new(move |[value, base, first]: [u64; 3]| insert_field(ty, value, base, [first, count]));
        let of = self.three(&[words.operand(1)?, words.operand(2)?, words.operand(3)?])?;
        Ok(Operation::Compute { to: self.register(words.operand(0)?)?, of, evaluate })
    }

    fn computed(&mut self, words: &mut Words) -> Result<Operation, String> {
        let (unmodelled, count) = (words.unmodelled(), operands(words.name, &words.modifiers));
        let evaluate = function(words.name, &mut words.modifiers).ok_or(unmodelled)?;
        let of = words.operands.get(1..).unwrap_or_default();
        if of.len() != count {
            return Err(format!("`{}` is not modelled with {} operands", words.name, of.len()));
        }
        Ok(Operation::Compute { to: self.register(words.operand(0)?)?, of: self.three(of)?, evaluate })
    }
}
