//! The parser of types: element types, dims and shardings.

use super::PARTIAL_KINDS;
use super::lexer::Kind;
use super::parser::Parser;
use crate::dim::Dims;
use crate::{AxisId, DType, Diagnostic, Dim, Sharding, Type};
use smallvec::SmallVec;

impl Parser<'_> {
    pub(super) fn dtype(&mut self) -> Result<DType, Diagnostic> {
        let token = self.take();
        token.text.parse().map_err(|_| token.expected("an element type such as `f32`"))
    }

    pub(super) fn ty(&mut self) -> Result<Type, Diagnostic> {
        let place = self.place();
        let dtype = self.dtype()?;
        let mut dims = Dims::new();
        self.expect('[')?;
        self.list(']', |p| {
            dims.push(p.dim()?);
            Ok(())
        })?;
        let mut sharding = Sharding::default();
        if self.accept('{') {
            self.list('}', |p| {
                sharding.dims.push(p.split()?);
                Ok(())
            })?;
            if self.checked && sharding.dims.len() != dims.len() {
                let counts = format!("{} words for {} dims", sharding.dims.len(), dims.len());
                return Err(place.error(format!("a sharding has a word for every dim, not {counts}")));
            }
        }
        if self.accept_word("partial") {
            self.expect('(')?;
            let kind = self.one_of(&PARTIAL_KINDS)?;
            let mut axes = SmallVec::new();
            self.list(')', |p| {
                axes.push(p.axis()?);
                Ok(())
            })?;
            sharding.partial = Some((kind, axes));
        }
        Ok(Type { dtype, dims, sharding })
    }

    /// Parses a product of a number and symbols.
    fn dim(&mut self) -> Result<Dim, Diagnostic> {
        let place = self.place();
        let mut dim = Dim::known(1);
        loop {
            let factor = match self.peek().kind {
                Kind::Number => Dim::known(self.number("a size")?),
                _ => Dim::symbol(&self.name("a size or a symbol")?),
            };
            dim = dim.product(&factor).ok_or_else(|| place.error("this size does not fit in 64 bits"))?;
            if !self.accept('*') {
                return Ok(dim);
            }
        }
    }

    /// Parses the axes of one dim: `-`, or names with `*` between.
    fn split(&mut self) -> Result<SmallVec<[AxisId; 1]>, Diagnostic> {
        let mut axes = SmallVec::new();
        if self.accept('-') {
            return Ok(axes);
        }
        axes.push(self.axis()?);
        while self.accept('*') {
            axes.push(self.axis()?);
        }
        Ok(axes)
    }

    pub(super) fn axis(&mut self) -> Result<AxisId, Diagnostic> {
        let place = self.place();
        let name = self.name("an axis of the mesh, or `-`")?;
        let error = || place.error(format!("the mesh {} has no axis `{name}`", self.module.mesh));
        self.module.mesh.find(&name).ok_or_else(error)
    }
}
