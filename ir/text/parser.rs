//! The recursive-descent parser of modules and tables. [`super::types`] parses types, [`super::function`] nodes.

use super::lexer::{Kind, TextPlace, Token, tokens};
use super::literal::{element_bits, from_hexadecimal};
use super::{AXIS_ROLES, VERSION};
use crate::timetable::{Task, Timetable};
use crate::{
    Axis, Blob, Claim, DType, Data, DataId, Diagnostic, Initializer, Level, Mesh, Module, Role, StageTable,
    State, StateId, Tier, Type, ValueId, View, ViewStep,
};
use bytes::Bytes;
use smallvec::SmallVec;
use std::collections::{BTreeMap, BTreeSet};
use std::str::FromStr;

/// Parses the module of a text. If `checked`, the type of each result is compared with the type that its operator infers.
pub(super) fn parse(text: &str, checked: bool) -> Result<Module, Diagnostic> {
    let mut parser = Parser {
        tokens: tokens(text)?,
        next: 0,
        checked,
        module: Module::new(""),
        values: BTreeMap::new(),
        data: BTreeMap::new(),
        states: BTreeMap::new(),
    };
    parser.module()?;
    Ok(parser.module)
}

pub(super) struct Parser<'t> {
    tokens: Vec<Token<'t>>,
    next: usize,
    pub(super) checked: bool,
    pub(super) module: Module,
    /// The value of each number.
    pub(super) values: BTreeMap<u32, ValueId>,
    pub(super) data: BTreeMap<u32, DataId>,
    pub(super) states: BTreeMap<String, StateId>,
}

/// Access to tokens.
impl<'t> Parser<'t> {
    pub(super) fn peek(&self) -> &Token<'t> {
        // The last token is the end of the text, and parsing never goes past it.
        &self.tokens[self.next]
    }

    pub(super) fn place(&self) -> TextPlace {
        self.peek().place
    }

    pub(super) fn take(&mut self) -> Token<'t> {
        let token = self.peek().clone();
        if token.kind != Kind::End {
            self.next += 1;
        }
        token
    }

    pub(super) fn is_sign(&self, sign: char) -> bool {
        self.peek().kind == Kind::Sign(sign)
    }

    pub(super) fn is_word(&self, word: &str) -> bool {
        self.peek().kind == Kind::Word && self.peek().text == word
    }

    /// Takes the sign if it is the next token. Returns whether it was.
    pub(super) fn accept(&mut self, sign: char) -> bool {
        let found = self.is_sign(sign);
        self.next += usize::from(found);
        found
    }

    /// Takes the word if it is the next token. Returns whether it was.
    pub(super) fn accept_word(&mut self, word: &str) -> bool {
        let found = self.is_word(word);
        self.next += usize::from(found);
        found
    }

    pub(super) fn expect(&mut self, sign: char) -> Result<(), Diagnostic> {
        if self.accept(sign) { Ok(()) } else { Err(self.peek().expected(&format!("`{sign}`"))) }
    }

    pub(super) fn expect_word(&mut self, word: &str) -> Result<(), Diagnostic> {
        if self.accept_word(word) { Ok(()) } else { Err(self.peek().expected(&format!("`{word}`"))) }
    }

    pub(super) fn word(&mut self, what: &str) -> Result<&'t str, Diagnostic> {
        let token = self.take();
        if token.kind == Kind::Word { Ok(token.text) } else { Err(token.expected(what)) }
    }

    pub(super) fn number<T: FromStr>(&mut self, what: &str) -> Result<T, Diagnostic> {
        let token = self.take();
        let number = (token.kind == Kind::Number).then(|| token.text.parse().ok()).flatten();
        number.ok_or_else(|| token.expected(what))
    }

    /// Parses a word or a string.
    pub(super) fn name(&mut self, what: &str) -> Result<String, Diagnostic> {
        let token = self.take();
        match token.kind {
            Kind::Word => Ok(token.text.to_string()),
            Kind::String(name) => Ok(name),
            _ => Err(token.expected(what)),
        }
    }

    pub(super) fn string(&mut self, what: &str) -> Result<String, Diagnostic> {
        let token = self.take();
        match token.kind {
            Kind::String(string) => Ok(string),
            _ => Err(token.expected(what)),
        }
    }

    /// Parses a name of a table, and returns its item.
    pub(super) fn one_of<T: Copy>(&mut self, table: &[(T, &str)]) -> Result<T, Diagnostic> {
        let token = self.take();
        let found = table.iter().find(|(_, name)| token.kind == Kind::Word && token.text == *name);
        let names: Vec<_> = table.iter().map(|(_, name)| format!("`{name}`")).collect();
        found.map(|(item, _)| *item).ok_or_else(|| token.expected(&format!("one of {}", names.join(", "))))
    }

    /// Parses items between commas up to and including the closing sign. A comma after the last item is allowed.
    pub(super) fn list(
        &mut self,
        close: char,
        mut item: impl FnMut(&mut Self) -> Result<(), Diagnostic>,
    ) -> Result<(), Diagnostic> {
        while !self.accept(close) {
            item(self)?;
            if !self.accept(',') && !self.is_sign(close) {
                return Err(self.peek().expected(&format!("`,` or `{close}`")));
            }
        }
        Ok(())
    }

    /// Parses the text of an element: a number, or a word of floats or bools, with its sign.
    fn element_text(&mut self) -> Result<String, Diagnostic> {
        let sign = if self.accept('-') { "-" } else { "" };
        let token = self.take();
        let word = matches!(token.text, "inf" | "NaN" | "true" | "false");
        match token.kind {
            Kind::Number => Ok(format!("{sign}{}", token.text)),
            Kind::Word if word => Ok(format!("{sign}{}", token.text)),
            _ => Err(token.expected("a number")),
        }
    }

    fn element(&mut self, dtype: DType) -> Result<u64, Diagnostic> {
        let place = self.place();
        let text = self.element_text()?;
        element_bits(dtype, &text)
            .ok_or_else(|| place.error(format!("`{text}` is not a number of type {dtype}")))
    }
}

/// The parser of the module and its tables.
impl Parser<'_> {
    fn module(&mut self) -> Result<(), Diagnostic> {
        self.expect_word("trainyard")
            .and_then(|()| self.expect('-'))
            .and_then(|()| self.expect_word("ir"))?;
        let version = self.take();
        if version.text != VERSION.to_string() {
            return Err(version
                .expected(&format!("format version {VERSION}, the only version that this compiler reads")));
        }
        self.expect_word("module")?;
        self.expect('@')?;
        self.module.name = self.name("the module's name")?;
        self.module.level = self.one_of(&Level::ALL)?;
        if self.accept_word("mesh") {
            self.mesh()?;
        }
        self.expect('{')?;
        if self.accept_word("pipeline") {
            self.module.pipeline = Some(self.stage_table()?);
        }
        while self.accept_word("data") {
            self.data()?;
        }
        self.states()?;
        self.function()?;
        self.roots()?;
        self.expect('}')?;
        match self.peek().kind {
            Kind::End => Ok(()),
            _ => Err(self.peek().expected("the end of the text")),
        }
    }

    fn mesh(&mut self) -> Result<(), Diagnostic> {
        let mut devices = 1u64;
        self.expect('[')?;
        self.list(']', |p| {
            let place = p.place();
            let name = p.name("the name of an axis")?;
            p.expect('=')?;
            let size: u64 = p.number("the size of the axis")?;
            let role = match Mesh::role(&name) {
                _ if p.peek().kind == Kind::Word => p.one_of(&AXIS_ROLES)?,
                Some(role) => role,
                None => return Err(place.error(format!("axis `{name}` needs its role after its size"))),
            };
            let fits = devices.checked_mul(size).filter(|&devices| devices > 0);
            devices =
                fits.ok_or_else(|| place.error(format!("a mesh cannot have {size} devices along `{name}`")))?;
            if p.module.mesh.find(&name).is_some() {
                return Err(place.error(format!("axis `{name}` occurs twice in the mesh")));
            }
            p.module.mesh.axes.push(Axis { name, role, size });
            Ok(())
        })
    }

    /// Parses `NAME microbatches N stages [0, 1] { rank F0.0 … rank F1.0 … }`.
    fn stage_table(&mut self) -> Result<StageTable, Diagnostic> {
        let schedule = self.name("the name of a schedule")?;
        self.expect_word("microbatches")?;
        let microbatches = self.number("the number of microbatches")?;
        self.expect_word("stages")?;
        let placement = self.numbers::<u32, 4>("the pipeline rank of a stage")?.into_vec();
        let delays = if self.accept_word("delays") {
            self.numbers::<u32, 4>("the delay of a stage")?.into_vec()
        } else {
            vec![]
        };
        let mut timetable = Timetable::default();
        self.expect('{')?;
        while self.accept_word("rank") {
            let mut tasks = vec![];
            while self.peek().kind == Kind::Word && !self.is_word("rank") {
                let token = self.take();
                let error = |_| token.expected("a task such as `F0.0`: forward, stage 0, microbatch 0");
                tasks.push(token.text.parse::<Task>().map_err(error)?);
            }
            timetable.ranks.push(tasks);
        }
        self.expect('}')?;
        Ok(StageTable { schedule, microbatches, placement, delays, timetable })
    }

    /// Parses `stage 1`, `every stage`, or nothing for stage 0.
    fn stage(&mut self) -> Result<u32, Diagnostic> {
        if self.accept_word("every") {
            return self.every_stage();
        }
        if self.accept_word("stage") { self.number("the number of a stage") } else { Ok(0) }
    }

    fn data(&mut self) -> Result<(), Diagnostic> {
        self.expect('@')?;
        let place = self.place();
        let number = self.number("the number of the data row")?;
        let name = self.string("the name of the tensor, in quotes")?;
        self.expect(':')?;
        let ty = self.ty()?;
        let claim = Claim::ALL.iter().find(|(_, word)| self.accept_word(word)).map(|(claim, _)| *claim);
        let blob = if self.accept('=') { Blob::Inline(self.bytes(&ty)?) } else { Blob::File(None) };
        let id = self.module.add_data(Data { name, ty, blob, claim });
        match self.data.insert(number, id) {
            None => Ok(()),
            Some(_) => Err(place.error(format!("data @{number} is defined twice"))),
        }
    }

    fn bytes(&mut self, ty: &Type) -> Result<Bytes, Diagnostic> {
        let place = self.place();
        let mut bytes = Vec::new();
        if self.accept_word("hex") {
            let digits = self.string("the bytes as a string of hexadecimal digits")?;
            let error = || place.error("the bytes must be pairs of hexadecimal digits");
            bytes = from_hexadecimal(&digits).ok_or_else(error)?;
        } else {
            self.expect('[')?;
            let width = ty.dtype.bytes() as usize;
            self.list(']', |p| {
                bytes.extend_from_slice(&p.element(ty.dtype)?.to_le_bytes()[..width]);
                Ok(())
            })?;
        }
        if self.checked && ty.bytes() != Some(bytes.len() as u64) {
            return Err(place.error(format!("{} bytes are not a tensor of type {ty}", bytes.len())));
        }
        Ok(bytes.into())
    }

    fn states(&mut self) -> Result<(), Diagnostic> {
        let mut copies = Vec::new();
        while self.accept_word("state") {
            self.expect('@')?;
            let place = self.place();
            let name = self.name("the state's name")?;
            self.expect(':')?;
            let ty = self.ty()?;
            let role = self.one_of(&Role::ALL)?;
            let tier = match () {
                () if self.accept_word("host") => Tier::Host,
                () if self.accept_word("disk") => Tier::Disk,
                () => Tier::Device,
            };
            let stage = self.stage()?;
            self.expect('=')?;
            let initializer = self.initializer(&mut copies)?;
            let view = if self.accept_word("view") { self.view()? } else { View::new() };
            let id = self.module.add_state(name.clone(), ty, role, initializer);
            let state: &mut State = &mut self.module.states[id];
            (state.tier, state.view, state.stage) = (tier, view, stage);
            if self.states.insert(name.clone(), id).is_some() {
                return Err(place.error(format!("state `{name}` is defined twice")));
            }
        }
        // A state may be named before it is defined, so copies are resolved last.
        for (place, copy, name) in copies {
            let error = || place.error(format!("there is no state `{name}` to copy"));
            let source = *self.states.get(&name).ok_or_else(error)?;
            self.module.states[copy].initializer = Initializer::CopyOf(source);
        }
        Ok(())
    }

    /// Parses an initializer. The source of a copy is added to `copies` and looked up when all states are known.
    fn initializer(
        &mut self,
        copies: &mut Vec<(TextPlace, StateId, String)>,
    ) -> Result<Initializer, Diagnostic> {
        let token = self.take();
        Ok(match token.text {
            "data" => Initializer::Data(self.row()?),
            "zeros" => Initializer::Zeros,
            "splat" => Initializer::Splat(self.element(DType::F64)?),
            "copy" => {
                self.expect('@')?;
                let name = self.name("the state's name")?;
                copies.push((token.place, self.module.states.next_key(), name));
                Initializer::Zeros
            }
            "normal" => {
                let std = self.element(DType::F64)?;
                let data = if self.accept_word("data") { Some(self.row()?) } else { None };
                Initializer::Normal { std, data }
            }
            "fill" => {
                let value = self.element(DType::F64)?;
                self.expect_word("data")?;
                Initializer::Fill { value, data: self.row()? }
            }
            "noisy" => {
                let std = self.element(DType::F64)?;
                self.expect_word("data")?;
                Initializer::Noisy { std, data: self.row()? }
            }
            _ => {
                return Err(
                    token.expected("one of `data`, `zeros`, `splat`, `copy`, `normal`, `fill`, `noisy`")
                );
            }
        })
    }

    /// Parses `@3`, a row of the data table.
    fn row(&mut self) -> Result<DataId, Diagnostic> {
        self.expect('@')?;
        let place = self.place();
        let number: u32 = self.number("the number of a data row")?;
        self.row_of(number).ok_or_else(|| place.error(format!("there is no data @{number}")))
    }

    pub(super) fn row_of(&self, number: u32) -> Option<DataId> {
        self.data.get(&number).copied()
    }

    fn view(&mut self) -> Result<View, Diagnostic> {
        let mut view = View::new();
        self.expect('[')?;
        self.list(']', |p| {
            let token = p.take();
            view.push(match token.text {
                "reshape" => ViewStep::Reshape(p.numbers("a size")?),
                "transpose" => ViewStep::Transpose(p.numbers("a dim")?),
                "slice" => {
                    let dim = p.number("the dim")?;
                    ViewStep::Slice { dim, start: p.number("the start")?, length: p.number("the length")? }
                }
                "pad" => ViewStep::Pad { dim: p.number("the dim")?, after: p.number("the elements added")? },
                "cast" => ViewStep::Cast(p.dtype()?),
                "repeat" => ViewStep::Repeat(p.number("the number of times")?),
                _ => {
                    return Err(
                        token.expected("one of `reshape`, `transpose`, `slice`, `pad`, `cast`, `repeat`")
                    );
                }
            });
            Ok(())
        })?;
        Ok(view)
    }

    fn numbers<T: FromStr, const N: usize>(&mut self, what: &str) -> Result<SmallVec<[T; N]>, Diagnostic>
    where
        [T; N]: smallvec::Array<Item = T>,
    {
        let mut numbers = SmallVec::new();
        self.expect('[')?;
        self.list(']', |p| {
            numbers.push(p.number(what)?);
            Ok(())
        })?;
        Ok(numbers)
    }

    pub(super) fn state(&mut self) -> Result<StateId, Diagnostic> {
        self.expect('@')?;
        let place = self.place();
        let name = self.name("the state's name")?;
        self.states.get(&name).copied().ok_or_else(|| place.error(format!("there is no state `{name}`")))
    }

    fn roots(&mut self) -> Result<(), Diagnostic> {
        while self.accept_word("output") {
            let name = self.string("the output's name, in quotes")?;
            self.expect('=')?;
            let value = self.value()?;
            self.module.add_output(name, value);
        }
        let mut updated = BTreeSet::new();
        while self.accept_word("update") {
            let place = self.place();
            let state = self.state()?;
            self.expect('=')?;
            self.module.states[state].output = Some(self.value()?);
            if !updated.insert(state) {
                let name = &self.module.states[state].name;
                return Err(place.error(format!("state `{name}` is updated twice")));
            }
        }
        Ok(())
    }
}
