//! Names the states, and marks those that the user's patterns freeze.

use super::{Parameters, Row};
use crate::arguments::pattern::matches;
use crate::pass::PassContext;
use ir::{DataId, Diagnostic, Module};
use std::collections::BTreeSet;

/// Gives out names that no state has yet.
pub(super) struct Names<'m> {
    module: &'m Module,
    taken: BTreeSet<String>,
}

impl<'m> Names<'m> {
    pub(super) fn new(module: &'m Module) -> Self {
        Self { module, taken: module.states.values().map(|state| state.name.clone()).collect() }
    }

    /// Returns the name of a tensor's states, without the suffixes of slices: the file's name, or the module path if the exporter invented
    /// the file's name.
    pub(super) fn base(&self, data: DataId, cx: &PassContext) -> String {
        let name = &self.module.data[data].name;
        if let Some(author) = cx.authors.get(name) {
            return author.clone();
        }
        let path = cx.aliases.get(name).and_then(|aliases| aliases.first());
        path.filter(|_| is_made_up(name)).unwrap_or(name).clone()
    }

    /// Returns the name, with a number behind it if the name is taken.
    pub(super) fn unique(&mut self, name: &str) -> String {
        let numbered = (2..).map(|n| format!("{name}.{n}"));
        let free = std::iter::once(name.to_string()).chain(numbered).find(|name| !self.taken.contains(name));
        let free = free.expect("there is always a next number");
        self.taken.insert(free.clone());
        free
    }
}

/// Whether an exporter invented the name by numbering: `val_110`, `onnx::MatMul_596`, `/h.0/Constant_output_0`.
fn is_made_up(name: &str) -> bool {
    let numbered = name.strip_prefix("val_").is_some_and(|rest| rest.bytes().all(|b| b.is_ascii_digit()));
    numbered || name.starts_with("onnx::") || name.starts_with('/')
}

/// Marks the parameters that the user freezes. A pattern matches a tensor by any of its names. Errors: a pattern matches no parameter.
pub(super) fn freeze(
    module: &Module,
    cx: &PassContext,
    rows: &mut [Row],
    options: &Parameters,
) -> Result<(), Diagnostic> {
    let known: Vec<Vec<String>> = rows.iter().map(|row| names(module, cx, row)).collect();
    let fits = |pattern: &str, names: &[String]| names.iter().any(|name| matches(pattern, name));
    let parameters = || rows.iter().zip(&known).filter(|(row, _)| row.finding.is_parameter());
    for pattern in options.freeze.iter().chain(&options.train_only) {
        if !parameters().any(|(_, names)| fits(pattern, names)) {
            let constant = rows.iter().zip(&known).find(|(_, names)| fits(pattern, names));
            // To freeze a constant changes nothing, and is no error.
            if constant.is_some() && options.freeze.contains(pattern) {
                continue;
            }
            let error = Diagnostic::new(format!("no parameter matches `{pattern}`"));
            if let Some((row, names)) = constant {
                let reason = row.finding.reason();
                return Err(error.note(format!("`{}` is not trained: {reason}", names[0])));
            }
            let some: Vec<&str> = parameters().take(5).map(|(_, names)| names[0].as_str()).collect();
            return Err(error.note(format!("parameters are, for example, {}", some.join(", "))));
        }
    }
    for (row, names) in rows.iter_mut().zip(&known).filter(|(row, _)| row.finding.is_parameter()) {
        let wanted = options.train_only.is_empty() || options.train_only.iter().any(|p| fits(p, names));
        row.frozen = !wanted || options.freeze.iter().any(|pattern| fits(pattern, names));
    }
    Ok(())
}

/// Returns all names of a tensor: those of the file, of the module and of its states.
fn names(module: &Module, cx: &PassContext, row: &Row) -> Vec<String> {
    let name = &module.data[row.data].name;
    let mut names = vec![name.clone()];
    names.extend(cx.aliases.get(name).into_iter().flatten().cloned());
    names.extend(row.states.iter().map(|state| state.name.clone()));
    names
}
