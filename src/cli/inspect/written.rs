//! Writes the output of `inspect` to standard output or to a file. A program as an ONNX model is bytes and not text.

use std::io::{IsTerminal as _, Write as _};

use files::Replacement;
use ir::{Diagnostic, Module};
use onnx::program::{Header, save, shown};
use onnx::proto::ModelProto;

use super::{Format, Inspect, Output};
use crate::cli::report;
use crate::failure::Failure;

impl Output {
    /// An answer in text.
    pub(super) fn of_text(text: String) -> Self {
        Self { text, ..Self::default() }
    }

    /// A program as an ONNX model.
    ///
    /// # Errors
    /// A size that ONNX cannot express.
    pub(super) fn of_program(program: &Module, header: &Header) -> Result<Self, Failure> {
        Ok(Self { model: Some(Box::new(shown(program, header)?)), ..Self::default() })
    }
}

impl Inspect {
    /// Writes the answer.
    ///
    /// # Errors
    /// A file that cannot be written; a model that is to go to a terminal.
    pub(super) fn write(&self, output: &Output) -> Result<(), Failure> {
        if output.model.is_none() && output.text.is_empty() {
            return Ok(()); // The model cannot be imported, and the reasons are told.
        }
        match (&self.output, &output.model) {
            (Some(path), Some(model)) => save(ModelProto::clone(model), path)
                .map_err(|error| Diagnostic::of_lines(&error.to_string()).into()),
            (Some(path), None) => Replacement::write(path, output.text.as_bytes())
                .map_err(|error| Diagnostic::new(format!("cannot write {}: {error}", path.display())).into()),
            (None, Some(model)) => write_model(model),
            (None, None) if self.format == Format::Text => report::write_text(&output.text),
            // Programs read the other formats, each of which has its own escapes.
            (None, None) => report::write_out(&output.text),
        }
    }
}

/// Writes a model to standard output.
fn write_model(model: &ModelProto) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    if out.is_terminal() {
        return Err(Diagnostic::new("--format onnx writes bytes, and standard output is a terminal")
            .note("give a file: -o FILE.onnx")
            .into());
    }
    report::written(out.write_all(&onnx::program::bytes(model)).and_then(|()| out.flush()))
}
