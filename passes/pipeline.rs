//! Pipelines as text: `bind(batch=8) fold loss(next-token, ignore=-1) optimizer(adamw, lr=1e-3)`.

use crate::arguments::Reader;
use crate::registry::Pass;
use std::fmt;
use std::str::FromStr;

/// Passes in the order in which they run. The text of a pipeline parses back to an equal one.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Pipeline {
    /// The passes.
    pub passes: Vec<Pass>,
}

impl Pipeline {
    /// Whether a pass of this name is among the passes.
    pub fn has(&self, name: &str) -> bool {
        self.passes.iter().any(|pass| pass.name() == name)
    }
}

impl<P: Into<Pass>> From<P> for Pipeline {
    fn from(pass: P) -> Self {
        Self { passes: vec![pass.into()] }
    }
}

impl FromStr for Pipeline {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut reader = Reader::new(text);
        let mut passes = Vec::new();
        while !reader.is_at_end() {
            let (name, mut arguments) = reader.pass()?;
            let pass =
                Pass::parse(&name, &mut arguments).map_err(|error| format!("pass `{name}`: {error}"))?;
            if let Some(unknown) = arguments.first_left() {
                return Err(format!("pass `{name}` does not take `{unknown}`"));
            }
            passes.push(pass);
        }
        Ok(Self { passes })
    }
}

impl fmt::Display for Pipeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let passes: Vec<String> = self.passes.iter().map(Pass::to_string).collect();
        f.write_str(&passes.join(" "))
    }
}
