//! The parser of a module's function: its parameters and its nodes.

use super::function_name;
use super::lexer::{Kind, TextPlace};
use super::parser::Parser;
use crate::lowered;
use crate::module::{Definition, Node, Value};
use crate::ops::{Inference, Op};
use crate::{Diagnostic, EVERY_STAGE, Phase, Tier, Type, ValueId};
use smallvec::SmallVec;
use std::collections::BTreeSet;
use std::sync::Arc;

/// The parsed text of a node.
struct Line {
    results: Vec<(TextPlace, u32)>,
    op: Op,
    operands: SmallVec<[ValueId; 4]>,
    types: Vec<Type>,
}

impl Parser<'_> {
    pub(super) fn function(&mut self) -> Result<(), Diagnostic> {
        self.expect_word("func")?;
        self.expect('@')?;
        self.expect_word(function_name(self.module.level))?;
        self.parameters()?;
        self.expect('{')?;
        while !self.accept('}') {
            self.node()?;
        }
        Ok(())
    }

    /// Parses the parameters: inputs, and the values of all states.
    fn parameters(&mut self) -> Result<(), Diagnostic> {
        let mut seen = BTreeSet::new();
        self.expect('(')?;
        self.list(')', |p| {
            let (place, number) = p.new_value()?;
            let value = if p.accept('=') {
                let state = p.state()?;
                if !seen.insert(state) {
                    return Err(
                        place.error(format!("state `{}` is listed twice here", p.module.states[state].name))
                    );
                }
                p.module.states[state].input
            } else {
                let name = p.string("the input's name in quotes, or `=` and a state")?;
                let batched = p.accept_word("batched");
                p.expect(':')?;
                let ty = p.ty()?;
                p.module.add_input(name, ty, batched)
            };
            p.define(place, number, value)
        })?;
        match self.module.states.iter().find(|(id, _)| !seen.contains(id)) {
            Some((_, state)) => Err(self
                .place()
                .error(format!("state `{}` is not among the function's parameters", state.name))),
            None => Ok(()),
        }
    }

    /// Parses the number of a value that is being defined.
    fn new_value(&mut self) -> Result<(TextPlace, u32), Diagnostic> {
        let token = self.take();
        match token.kind {
            Kind::Value(number) => Ok((token.place, number)),
            _ => Err(token.expected("a value such as `%0`")),
        }
    }

    fn define(&mut self, place: TextPlace, number: u32, value: ValueId) -> Result<(), Diagnostic> {
        match self.values.insert(number, value) {
            None => Ok(()),
            Some(_) => Err(place.error(format!("%{number} is defined twice"))),
        }
    }

    /// Parses a value that was defined before.
    pub(super) fn value(&mut self) -> Result<ValueId, Diagnostic> {
        let (place, number) = self.new_value()?;
        let value = self.values.get(&number).copied();
        value.ok_or_else(|| place.error(format!("%{number} is not defined before it is used")))
    }

    fn node(&mut self) -> Result<(), Diagnostic> {
        let place = self.place();
        let line = self.line()?;
        let line = if self.checked { self.inferred(place, line)? } else { line };
        if line.types.len() != line.results.len() {
            let (types, results) = (line.types.len(), line.results.len());
            return Err(place.error(format!(
                "a node must have one type for each result; there are {types} types for {results} results"
            )));
        }
        let id = self.module.nodes.next_key();
        let mut results = SmallVec::new();
        for (i, ((place, number), ty)) in line.results.into_iter().zip(line.types).enumerate() {
            let value = self.module.values.push(Value { ty, definition: Definition::Node(id, i as u32) });
            self.define(place, number, value)?;
            results.push(value);
        }
        let mut node = Node {
            op: line.op,
            operands: line.operands,
            results,
            phase: Phase::Forward,
            stage: 0,
            copy: 0,
            place: Tier::Device,
            origin: Arc::from(""),
            by: Arc::from(""),
        };
        if self.accept('!') {
            self.provenance(&mut node)?;
        }
        self.module.nodes.push(node);
        self.module.order.push(id);
        Ok(())
    }

    fn line(&mut self) -> Result<Line, Diagnostic> {
        let mut results = Vec::new();
        if matches!(self.peek().kind, Kind::Value(_)) {
            results.push(self.new_value()?);
            while self.accept(',') {
                results.push(self.new_value()?);
            }
            self.expect('=')?;
        }
        let place = self.place();
        let name = self.word("an operator, a value to define, or `}`")?;
        let mut operands = SmallVec::new();
        if matches!(self.peek().kind, Kind::Value(_)) {
            operands.push(self.value()?);
            while self.accept(',') {
                operands.push(self.value()?);
            }
        }
        let attributes = if self.accept('{') { self.attributes()? } else { Vec::new() };
        let op = Op::parse(name, &attributes).map_err(|message| {
            if Op::names().contains(&name) {
                place.error(message)
            } else {
                place.error(format!("there is no operator `{name}`"))
            }
        })?;
        let mut types = Vec::new();
        if self.accept(':') {
            types.push(self.ty()?);
            while self.accept(',') {
                types.push(self.ty()?);
            }
        }
        Ok(Line { results, op, operands, types })
    }

    /// Checks that the operator accepts these operands and gives these result types. Returns the line with these types.
    fn inferred(&self, place: TextPlace, line: Line) -> Result<Line, Diagnostic> {
        let operands: Vec<Type> = line.operands.iter().map(|&id| self.module.ty(id).clone()).collect();
        let (level, given) = (self.module.level, Inference { operands: &operands, declared: &line.types });
        let inferred = lowered::infer(level, &line.op, &given).map_err(|error| place.error(error.message))?;
        let fits = |(inferred, ty): (&Type, &Type)| lowered::fits(level, ty, inferred);
        if inferred.len() != line.types.len() || !inferred.iter().zip(&line.types).all(fits) {
            let list = |types: &[Type]| types.iter().map(Type::to_string).collect::<Vec<_>>().join(", ");
            let (name, gives, says) = (line.op.name(), list(&inferred), list(&line.types));
            return Err(place.error(format!("`{name}` has the result type {gives}, and the text has {says}")));
        }
        Ok(line)
    }

    fn attributes(&mut self) -> Result<Vec<(String, String)>, Diagnostic> {
        let mut attributes: Vec<(String, String)> = Vec::new();
        self.list('}', |p| {
            let place = p.place();
            let name = p.word("the name of an attribute")?;
            if attributes.iter().any(|(other, _)| other == name) {
                return Err(place.error(format!("attribute `{name}` is given twice")));
            }
            p.expect('=')?;
            let mut text = String::new();
            if p.accept('[') {
                text.push('[');
                p.list(']', |p| {
                    text.push_str(if text.len() > 1 { ", " } else { "" });
                    text.push_str(&p.attribute()?);
                    Ok(())
                })?;
                text.push(']');
            } else {
                text = p.attribute()?;
            }
            attributes.push((name.to_string(), text));
            Ok(())
        })?;
        Ok(attributes)
    }

    /// Parses an attribute: a word, a number with its sign, or `@` and the number of a data row, which is replaced by the row's
    /// id.
    fn attribute(&mut self) -> Result<String, Diagnostic> {
        if self.accept('@') {
            let place = self.place();
            let number: u32 = self.number("the number of a data row")?;
            let row =
                self.row_of(number).ok_or_else(|| place.error(format!("there is no data @{number}")))?;
            return Ok(format!("@{}", row.as_u32()));
        }
        let sign = if self.accept('-') { "-" } else { "" };
        let token = self.take();
        match token.kind {
            Kind::Word | Kind::Number => Ok(format!("{sign}{}", token.text)),
            _ => Err(token.expected("the value of an attribute")),
        }
    }

    /// Parses the rest of `every stage`.
    pub(super) fn every_stage(&mut self) -> Result<u32, Diagnostic> {
        self.expect_word("stage")?;
        Ok(EVERY_STAGE)
    }

    /// Parses the rest of `on host`.
    fn host(&mut self) -> Result<Tier, Diagnostic> {
        self.expect_word("host")?;
        Ok(Tier::Host)
    }

    /// Parses `{fwd, stage 1, copy 1, on host, origin "…", by PASS}`.
    fn provenance(&mut self, node: &mut Node) -> Result<(), Diagnostic> {
        self.expect('{')?;
        node.phase = self.one_of(&Phase::ALL)?;
        if !self.accept(',') && !self.is_sign('}') {
            return Err(self.peek().expected("`,` or `}`"));
        }
        self.list('}', |p| {
            let token = p.take();
            match token.text {
                "stage" => node.stage = p.number("the number of a stage")?,
                "every" => node.stage = p.every_stage()?,
                "copy" => node.copy = p.number("the number of a copy")?,
                "on" => node.place = p.host()?,
                "origin" => node.origin = p.string("the origin, in quotes")?.into(),
                "by" => node.by = p.name("the name of a pass")?.into(),
                _ => return Err(token.expected("one of `stage`, `every`, `copy`, `on`, `origin`, `by`")),
            }
            Ok(())
        })
    }
}
