//! Reads the text of a kernel in PTX. A word that is not known is refused with its line, so that no instruction is misread.
//!
//! The grammar is that of the PTX ISA 9.0, as far as NVRTC uses it. A file has variables, functions and the kernel:
//!
//! ```text
//! .global .align 4 .b8 table[8] = {1, 0, 0, 0, 2, 0, 0, 0};
//! .visible .entry scale(.param .u64 scale_param_0) .maxntid 256
//! {
//!     .reg .b32 %r<2>;
//!     ld.param.b64 %rd1, [scale_param_0];
//! $L__BB0_1:
//!     @%p1 bra $L__BB0_1;
//!     ret;
//! }
//! ```

use super::arithmetic::Modifiers;
use super::instruction::{Address, Code, Guard, Instruction, Operand, Operation, Register, Special};
use super::memory::MODULE_WINDOW;
use super::types::Type;
use super::words::Words;
use std::collections::{BTreeMap, BTreeSet};

/// Reads the instructions of a kernel.
///
/// # Errors
/// Words that are not modelled, with their line.
pub(super) fn parse(text: &str, kernel: &str) -> Result<Code, String> {
    let text = without_comments(text);
    let mut parser = Parser { kernel, ..Parser::default() };
    let items = items(&text);
    let (functions, variables): (Vec<_>, Vec<_>) = items.into_iter().partition(|item| item.body.is_some());
    for item in variables {
        let first =
            [".global", ".const", ".shared"].into_iter().filter_map(|space| item.head.find(space)).min();
        if let Some(first) = first {
            parser.variable(&item.head[first..]).map_err(|error| format!("line {}: {error}", item.line))?;
        }
    }
    // The kernel comes first: its parameters are the first slots.
    let is_kernel = |item: &Item| item.head.contains(".entry");
    for item in functions
        .iter()
        .filter(|item| is_kernel(item))
        .chain(functions.iter().filter(|item| !is_kernel(item)))
    {
        parser.function(item)?;
    }
    parser.finish()
}

/// Returns the text without comments; lines keep their numbers.
fn without_comments(text: &str) -> String {
    let lines = text.lines().map(|line| line.split_once("//").map_or(line, |(code, _)| code));
    lines.collect::<Vec<_>>().join("\n")
}

/// A part of a file: the text before the first brace or semicolon, and, for a function, the text in braces.
struct Item<'a> {
    head: &'a str,
    body: Option<&'a str>,
    /// The line of the body, or of the head.
    line: usize,
}

/// Returns the variables and functions of a file.
fn items(text: &str) -> Vec<Item<'_>> {
    let mut items = Vec::new();
    let mut start = 0;
    while let Some(end) = text[start..].find([';', '{']).map(|place| start + place) {
        let line = 1 + text[..end].matches('\n').count();
        let is_function = text.as_bytes()[end] == b'{'
            && [".entry", ".func"].iter().any(|word| text[start..end].contains(word));
        let (item, next) = if is_function {
            let close = matching_brace(text, end);
            (Item { head: &text[start..end], body: Some(&text[end + 1..close]), line }, close + 1)
        } else {
            let close = text[end..].find(';').map_or(text.len(), |place| end + place);
            (Item { head: &text[start..close], body: None, line }, close + 1)
        };
        items.push(item);
        start = next.min(text.len());
    }
    items
}

/// Returns the place of the brace that closes the brace at `open`; the end of the text if there is none.
fn matching_brace(text: &str, open: usize) -> usize {
    let mut depth = 0;
    for (place, byte) in text.bytes().enumerate().skip(open) {
        match byte {
            b'{' => depth += 1,
            b'}' if depth == 1 => return place,
            b'}' => depth -= 1,
            _ => {}
        }
    }
    text.len()
}

/// Returns the parts of a list, which commas outside of all brackets separate.
pub(super) fn list(text: &str) -> Vec<&str> {
    let (mut parts, mut depth, mut start) = (Vec::new(), 0, 0);
    for (place, byte) in text.bytes().enumerate() {
        match byte {
            b'{' | b'[' | b'(' => depth += 1,
            b'}' | b']' | b')' => depth -= 1,
            b',' if depth == 0 => {
                parts.push(text[start..place].trim());
                start = place + 1;
            }
            _ => {}
        }
    }
    parts.push(text[start..].trim());
    parts.retain(|part| !part.is_empty());
    parts
}

/// A function that is called: its first instruction, and the slots of its parameters and of its results.
struct Function {
    start: usize,
    parameters: Vec<usize>,
    results: Vec<usize>,
}

#[derive(Default)]
pub(super) struct Parser<'a> {
    kernel: &'a str,
    instructions: Vec<Instruction>,
    functions: BTreeMap<String, Function>,
    /// The declared names of registers, without their numbers.
    declared: BTreeSet<String>,
    /// Registers, labels and parameters by function and name.
    registers: BTreeMap<String, usize>,
    labels: BTreeMap<String, usize>,
    slots: BTreeMap<String, usize>,
    /// Branches and calls, by their places among the instructions, and the names that they go to.
    branches: Vec<(usize, String)>,
    calls: Vec<(usize, CallNames)>,
    /// Variables by name.
    variables: BTreeMap<String, u64>,
    shared: usize,
    local: usize,
    initialised: Vec<(u64, Vec<u8>)>,
    /// The name of the function that is being read, and the line.
    scope: String,
    line: usize,
}

/// A call before all functions are known.
pub(super) struct CallNames {
    pub(super) function: String,
    pub(super) parameters: Vec<usize>,
    pub(super) results: Vec<usize>,
}

impl Parser<'_> {
    fn function(&mut self, item: &Item) -> Result<(), String> {
        let body = item.body.unwrap_or_default();
        // `.func (.param .b64 result) name (.param .b64 first)`: the kernel has no results.
        let mut lists = Vec::new();
        let mut name = "";
        let mut rest = item.head;
        while let Some((before, after)) = rest.split_once('(') {
            let (inside, after) = after.split_once(')').ok_or("a list of parameters does not end")?;
            name = before.split_whitespace().last().filter(|word| !word.starts_with('.')).unwrap_or(name);
            lists.push((before.trim().ends_with(name) && !name.is_empty(), inside));
            rest = after;
        }
        if lists.is_empty() {
            name = item.head.split_whitespace().rfind(|word| !word.starts_with('.')).unwrap_or_default();
        }
        self.scope = name.to_owned();
        let mut function = Function { start: self.instructions.len(), parameters: vec![], results: vec![] };
        for (are_parameters, inside) in lists {
            let slots = list(inside)
                .into_iter()
                .map(|parameter| self.slot(parameter))
                .collect::<Result<Vec<_>, _>>()?;
            if are_parameters { &mut function.parameters } else { &mut function.results }.extend(slots);
        }
        self.functions.insert(name.to_owned(), function);
        self.body(body, item.line)?;
        // A function that comes to its end returns.
        let text = "}".to_owned();
        self.instructions.push(Instruction {
            operation: Operation::Return,
            guard: None,
            line: self.line,
            text,
        });
        Ok(())
    }

    /// Reads the statements of a body. Braces within it separate them as semicolons do.
    fn body(&mut self, body: &str, line: usize) -> Result<(), String> {
        let mut start = 0;
        while start < body.len() {
            let rest = &body[start..];
            let skipped = rest.len() - rest.trim_start().len();
            self.line = line + body[..start + skipped].matches('\n').count();
            let rest = rest.trim_start();
            start += skipped;
            if rest.starts_with(['{', '}', ';']) {
                start += 1;
                continue;
            }
            if let Some(label) = label(rest) {
                self.labels.insert(format!("{}::{label}", self.scope), self.instructions.len());
                start += label.len() + 1;
                continue;
            }
            let end = rest.find(';').unwrap_or(rest.len());
            let statement = rest[..end].split_whitespace().collect::<Vec<_>>().join(" ");
            if !statement.is_empty() {
                self.statement(&statement)
                    .map_err(|error| format!("line {}: {error}: `{statement}`", self.line))?;
            }
            start += end + 1;
        }
        Ok(())
    }

    fn statement(&mut self, statement: &str) -> Result<(), String> {
        let first = statement.split_whitespace().next().unwrap_or_default();
        match first {
            ".pragma" | ".loc" => return Ok(()),
            ".reg" => {
                // `.reg .b32 %r<9>;` declares `%r0` to `%r8`.
                let names = statement.splitn(3, ' ').nth(2).unwrap_or_default();
                let declared = list(names).into_iter().map(|name| name.split('<').next().unwrap_or(name));
                self.declared.extend(declared.map(|name| format!("{}::{name}", self.scope)));
                return Ok(());
            }
            ".shared" | ".local" => return self.variable(statement),
            ".param" => return self.slot(statement).map(drop),
            _ if first.starts_with('.') => return Err("a directive that is not modelled".into()),
            _ => {}
        }
        let (guard, instruction) = match statement.strip_prefix('@') {
            None => (None, statement),
            Some(guarded) => {
                let (predicate, instruction) = guarded.split_once(' ').ok_or("no instruction")?;
                let (name, is_negated) = match predicate.strip_prefix('!') {
                    Some(name) => (name, true),
                    None => (predicate, false),
                };
                (Some(Guard { predicate: self.register(name)?, is_negated }), instruction)
            }
        };
        let (opcode, operands) = instruction.split_once(' ').unwrap_or((instruction, ""));
        let mut parts = opcode.split('.');
        let name = parts.next().unwrap_or_default();
        let mut words = Words { name, modifiers: Modifiers(parts.collect()), operands: list(operands) };
        let operation = self.operation(&mut words)?;
        if !words.modifiers.0.is_empty() {
            return Err(words.unmodelled());
        }
        if guard.is_some() && matches!(operation, Operation::Barrier) {
            return Err("a barrier under a predicate is not modelled".into());
        }
        self.instructions.push(Instruction { operation, guard, line: self.line, text: statement.to_owned() });
        Ok(())
    }

    /// Returns a branch to a label, whose place is not known yet.
    pub(super) fn branch(&mut self, label: &str) -> Operation {
        self.branches.push((self.instructions.len(), format!("{}::{label}", self.scope)));
        Operation::Branch(0)
    }

    /// Notes the names of a call, which is the next instruction.
    pub(super) fn later(&mut self, call: CallNames) {
        self.calls.push((self.instructions.len(), call));
    }

    /// Returns the slot of a parameter that was declared.
    pub(super) fn known_slot(&self, name: &str) -> Result<usize, String> {
        let slot = self.slots.get(&format!("{}::{name}", self.scope));
        slot.copied().ok_or_else(|| format!("there is no parameter `{name}`"))
    }

    /// Returns the slot of a parameter that is declared here: `.param .b64 first`, or `.param .align 4 .b8 first[8]`. It has 8 bytes.
    fn slot(&mut self, declared: &str) -> Result<usize, String> {
        let name = declared.split_whitespace().last().unwrap_or_default();
        let (name, count) = name.split_once('[').unwrap_or((name, "1"));
        if !count.trim_end_matches(']').parse().is_ok_and(|count: usize| count <= 8) {
            return Err(format!("a parameter of more than 8 bytes is not modelled: `{declared}`"));
        }
        let next = self.slots.len();
        Ok(*self.slots.entry(format!("{}::{name}", self.scope)).or_insert(next))
    }

    pub(super) fn register(&mut self, name: &str) -> Result<Register, String> {
        let known = format!("{}::{name}", self.scope);
        let without_number = known.trim_end_matches(|c: char| c.is_ascii_digit());
        if !self.declared.contains(&known) && !self.declared.contains(without_number) {
            return Err(format!("`{name}` is not modelled, or no register"));
        }
        let next = self.registers.len();
        Ok(Register(*self.registers.entry(known).or_insert(next)))
    }

    /// Returns the register of a result; `None` for `_`.
    pub(super) fn result(&mut self, name: &str) -> Result<Option<Register>, String> {
        if name == "_" { Ok(None) } else { self.register(name).map(Some) }
    }

    pub(super) fn results(&mut self, names: &[&str]) -> Result<Vec<Option<Register>>, String> {
        names.iter().map(|name| self.result(name)).collect()
    }

    /// Reads `%r1, %r2, …`, a known number of registers.
    pub(super) fn registers<const N: usize>(&mut self, text: &str) -> Result<[Register; N], String> {
        let names = list(text);
        let all = names.into_iter().map(|name| self.register(name)).collect::<Result<Vec<_>, _>>()?;
        all.try_into().map_err(|_| format!("{N} registers are expected"))
    }

    /// Reads a known number of operands.
    pub(super) fn all<const N: usize>(&mut self, names: &[&str]) -> Result<[Operand; N], String> {
        let names = names.iter();
        let all = names.into_iter().map(|name| self.operand(name)).collect::<Result<Vec<_>, _>>()?;
        all.try_into().map_err(|_| format!("{N} operands are expected"))
    }

    /// Reads up to three operands; zeros replace missing ones.
    pub(super) fn three(&mut self, texts: &[&str]) -> Result<[Operand; 3], String> {
        let mut all = [Operand::Number(0); 3];
        for (operand, text) in all.iter_mut().zip(texts) {
            *operand = self.operand(text)?;
        }
        Ok(all)
    }

    pub(super) fn operand(&mut self, text: &str) -> Result<Operand, String> {
        if let Some(special) = special(text) {
            return Ok(special);
        }
        if text.starts_with('%') {
            return self.register(text).map(Operand::Register);
        }
        let variable = self.variables.get(text).copied();
        variable
            .or_else(|| number(text))
            .map(Operand::Number)
            .ok_or_else(|| format!("the operand `{text}` is not modelled"))
    }

    /// Reads `[%rd1+16]`.
    pub(super) fn place(&mut self, text: &str) -> Result<Address, String> {
        let inside = text
            .strip_prefix('[')
            .and_then(|rest| rest.strip_suffix(']'))
            .ok_or_else(|| format!("`{text}` is no address"))?;
        let (base, distance) = inside.split_once('+').unwrap_or((inside, "0"));
        let distance = number(distance.trim()).ok_or_else(|| format!("`{text}` is no address"))?;
        Ok(Address { base: self.operand(base.trim())?, distance: distance as i64 })
    }

    /// Reads `.shared .align 4 .b8 name[128]`, or a variable of the module with its first value.
    fn variable(&mut self, text: &str) -> Result<(), String> {
        let (declared, values) = match text.split_once('=') {
            Some((declared, values)) => (declared.trim(), list(values.trim().trim_matches(['{', '}']))),
            None => (text.trim(), vec![]),
        };
        let words: Vec<&str> = declared.split_whitespace().collect();
        let after =
            |word: &str| words.iter().position(|other| *other == word).and_then(|place| words.get(place + 1));
        let alignment = after(".align").and_then(|number| number.parse().ok());
        let alignment = alignment.filter(|alignment: &usize| alignment.is_power_of_two()).unwrap_or(1);
        let ty = words
            .iter()
            .filter_map(|word| Type::of(word.strip_prefix('.')?))
            .next_back()
            .ok_or("a variable has no type")?;
        let (name, count) = match words.last().and_then(|name| name.split_once('[')) {
            Some((name, count)) => {
                (name, count.trim_end_matches(']').parse().map_err(|_| "a variable has no size")?)
            }
            None => (words.last().copied().unwrap_or_default(), 1_usize),
        };
        let bytes = count
            .checked_mul(ty.bytes())
            .filter(|bytes| *bytes < 1 << 30)
            .ok_or("a variable is too large")?;
        let address = match words[0] {
            ".shared" => placed(&mut self.shared, alignment, bytes),
            ".local" => placed(&mut self.local, alignment, bytes),
            _ => {
                let before: usize =
                    self.initialised.iter().map(|(_, bytes)| bytes.len().next_multiple_of(256) + 256).sum();
                let address = MODULE_WINDOW + before as u64;
                let values: Vec<u64> = values
                    .iter()
                    .map(|value| number(value).ok_or(format!("`{value}` is no number")))
                    .collect::<Result<_, _>>()?;
                let mut first: Vec<u8> =
                    values.iter().flat_map(|value| value.to_le_bytes()[..ty.bytes()].to_vec()).collect();
                first.resize(bytes, 0);
                self.initialised.push((address, first));
                address
            }
        };
        self.variables.insert(name.to_owned(), address);
        Ok(())
    }

    fn finish(mut self) -> Result<Code, String> {
        for (place, label) in std::mem::take(&mut self.branches) {
            let to = self.labels.get(&label).ok_or_else(|| format!("there is no label {label}"))?;
            self.instructions[place].operation = Operation::Branch(*to);
        }
        for (place, names) in std::mem::take(&mut self.calls) {
            let function = self.functions.get(&names.function);
            let function = function.ok_or_else(|| format!("there is no function {}", names.function))?;
            let counts = [(&names.parameters, &function.parameters), (&names.results, &function.results)];
            if counts.into_iter().any(|(given, own)| given.len() != own.len()) {
                return Err(format!(
                    "a call gives {} another number of parameters than it has",
                    names.function
                ));
            }
            let pairs = |from: &[usize], to: &[usize]| {
                from.iter().copied().zip(to.iter().copied()).map(|(from, to)| [from, to]).collect()
            };
            self.instructions[place].operation = Operation::Call {
                start: function.start,
                copied: pairs(&names.parameters, &function.parameters),
                returned: pairs(&function.results, &names.results),
            };
        }
        let kernel =
            self.functions.get(self.kernel).ok_or_else(|| format!("there is no kernel {}", self.kernel))?;
        Ok(Code {
            start: kernel.start,
            parameters: kernel.parameters.len(),
            registers: self.registers.len(),
            slots: self.slots.len(),
            shared: self.shared,
            local: self.local,
            variables: self.initialised,
            instructions: self.instructions,
        })
    }
}

/// Adds a variable to a memory, and returns its address there.
fn placed(memory: &mut usize, alignment: usize, bytes: usize) -> u64 {
    let start = memory.next_multiple_of(alignment);
    *memory = start + bytes;
    start as u64
}

/// Returns the label with which a text begins.
fn label(text: &str) -> Option<&str> {
    let end = text.find(|c: char| !c.is_ascii_alphanumeric() && !"_$%".contains(c))?;
    (end > 0 && text.as_bytes()[end] == b':' && !text[end..].starts_with("::")).then(|| &text[..end])
}

/// Reads an integer, or the bits of a floating-point number: `0f3F800000`, `0d3FF0000000000000`.
fn number(text: &str) -> Option<u64> {
    let lower = text.to_ascii_lowercase();
    if let Some(digits) = ["0f", "0d", "0x"].iter().find_map(|prefix| lower.strip_prefix(prefix)) {
        return u64::from_str_radix(digits.trim_end_matches('u'), 16).ok();
    }
    let digits = lower.trim_end_matches('u');
    digits.parse().ok().or_else(|| digits.parse::<i64>().ok().map(|negative| negative as u64))
}

/// Reads a register that the processor sets. The threads of a block lie along x.
fn special(text: &str) -> Option<Operand> {
    let dim = |name: &str| ["x", "y", "z"].iter().position(|dim| *dim == name);
    Some(match text.split_once('.') {
        Some(("%tid", "x")) => Operand::Special(Special::Thread),
        Some(("%tid", "y" | "z")) => Operand::Number(0),
        Some(("%ntid", "x")) => Operand::Special(Special::Threads),
        Some(("%ntid", "y" | "z")) => Operand::Number(1),
        Some(("%ctaid", name)) => Operand::Special(Special::Block(dim(name)?)),
        Some(("%nctaid", name)) => Operand::Special(Special::Blocks(dim(name)?)),
        _ => match text {
            "%laneid" => Operand::Special(Special::Lane),
            "%warpid" => Operand::Special(Special::Warp),
            "WARP_SZ" => Operand::Number(32),
            _ => return None,
        },
    })
}
