//! `--why NAME`: the role of a tensor, the search for a pattern, or the fate of an activation, each with its reason.

use super::Inspection;
use super::facts::PATTERNS;
use super::feed_forward::places;
use super::parameters::TensorRow;
use super::recomputed::why_kept;
use super::text::details;
use crate::config::nearest::edit_distance;
use ir::units::grouped;
use ir::{Diagnostic, Role, visible};
use passes::moe;
use passes::reports::{NearMiss, ShardingReport};
use serde::Serialize;
use std::collections::BTreeSet;

/// The number of similar names that an error lists.
const NEAR: usize = 5;

/// The answer for one name.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Answer {
    /// The name in the question.
    pub name: String,
    /// The answer in words.
    pub text: String,
    /// The tensor of the file, if it is a float tensor that the program reads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tensor: Option<TensorRow>,
    /// The sharding of each state that holds the tensor, or of the input.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub shardings: Vec<ShardingReport>,
}

/// Tells the sharding of a state or an input, with its reasons.
fn sharded(ShardingReport { name, sharding, reasons }: &ShardingReport) -> String {
    if reasons.is_empty() {
        return format!("  `{}` is whole on every device\n", visible(name));
    }
    let reasons = reasons.iter().map(|reason| format!("    because {}\n", visible(reason)));
    format!("  `{}` is split {sharding} over the devices\n{}", visible(name), reasons.collect::<String>())
}

impl Inspection {
    /// Explains the tensor, state, input, output or pattern of a name. Module paths are names too. With `--recompute` or `--memory`, a name
    /// may be that of a node, or of a value in the program.
    ///
    /// # Errors
    /// Nothing has this name; the error lists similar names.
    pub fn why(&self, name: &str) -> Result<Answer, Diagnostic> {
        let answer = |mut text: String, tensor: Option<TensorRow>| {
            let held = |sharding: &&ShardingReport| match &tensor {
                Some(row) => row.states.iter().any(|part| part.state == sharding.name),
                None => sharding.name == name,
            };
            let shardings: Vec<ShardingReport> = self.shardings.iter().filter(held).cloned().collect();
            text.extend(shardings.iter().map(sharded));
            Answer { name: name.to_string(), text, tensor, shardings }
        };
        let rows = self.parameters.iter().flat_map(|parameters| &parameters.tensors);
        // A tied tensor has the states of another tensor, so own names are looked up before names of states.
        let by_name =
            rows.clone().find(|row| row.name == name || row.aliases.iter().any(|alias| alias == name));
        if let Some(row) = by_name.or_else(|| rows.clone().find(|row| row.names().any(|other| other == name)))
        {
            return Ok(answer(self.tensor(row), Some(row.clone())));
        }
        let text = self.state(name).or_else(|| self.port(name)).or_else(|| self.stored(name));
        let text = text.or_else(|| self.pattern(name)).or_else(|| self.recomputed(name));
        let text = text.or_else(|| self.node(name));
        text.map(|text| answer(text, None)).ok_or_else(|| self.unknown(name))
    }

    /// Explains a tensor that has a role from the pass `parameters`.
    fn tensor(&self, row: &TensorRow) -> String {
        let frozen = if row.frozen { ", frozen: it is not trained" } else { "" };
        let (name, reason) = (visible(&row.name), visible(&row.reason));
        let mut text = format!("`{name}` {} is a {}{frozen}\n  because: {reason}\n", row.ty, row.role.name());
        if let Some(tie) = &row.tied {
            let transposed = if tie.permutation == [1, 0] { ", transposed" } else { "" };
            text += &format!("    tied to {}{transposed}\n", visible(&tie.data));
        }
        // Writing into a string does not fail.
        let _ = details(&mut text, row);
        let quoted = format!("`{}`", row.name);
        for warning in self.warnings.iter().filter(|warning| warning.message.contains(&quoted)) {
            text += &format!("  warning: {}\n", visible(&warning.message));
            warning.notes.iter().for_each(|note| text += &format!("    {}\n", visible(note)));
        }
        text
    }

    /// Explains a state that holds no tensor of the file.
    fn state(&self, name: &str) -> Option<String> {
        let module = self.module.as_ref()?;
        let state = &module.states[module.state(name)?];
        let role = Role::ALL.iter().find(|(role, _)| *role == state.role).map_or("", |(_, name)| name);
        let why = match state.role {
            Role::Optimizer => "the optimizer keeps this state from step to step",
            Role::Counter if state.output.is_some_and(|new| module.phase_of(new).is_microbatch()) => {
                "the state counts the samples of all microbatches so far"
            }
            Role::Counter => "the state counts steps",
            Role::Version => {
                "the state is an earlier version of a parameter, which a stage of an asynchronous pipeline reads"
            }
            Role::Compression => "the compression of gradients keeps this state from step to step",
            Role::Scaler => "the state is the loss scale, which keeps fp16 gradients within their range",
            _ => "a pass added this state",
        };
        Some(format!("`{}` {} is a state ({role})\n  because: {why}\n", visible(name), state.ty))
    }

    fn port(&self, name: &str) -> Option<String> {
        let ports = [("takes", &self.file.inputs), ("gives", &self.file.outputs)];
        ports.into_iter().find_map(|(what, ports)| {
            let port = ports.iter().find(|port| port.name == name)?;
            let name = visible(name);
            Some(format!(
                "`{name}` {} is neither a parameter nor a constant\n  because: the model {what} it\n",
                port.ty
            ))
        })
    }

    /// Explains a tensor of the file that has no role from the pass `parameters`.
    fn stored(&self, name: &str) -> Option<String> {
        let stored = self.file.stored.get(name)?;
        let why = match (stored.is_float, stored.elements) {
            _ if self.parameters.is_none() => {
                "the model could not be imported, so the use of the tensor is unknown"
            }
            (false, _) => "only floats are trained; integers are shapes, indices and masks",
            (true, 0 | 1) => "a single number is a constant of the program",
            (true, _) => "no output depends on the tensor",
        };
        let (name, elements) = (visible(name), grouped(stored.elements));
        Some(format!("`{name}` {}, {elements} elements, is not a parameter\n  because: {why}\n", stored.ty))
    }

    /// Tells how often a pattern was found, and lists the places where it was nearly found.
    fn pattern(&self, name: &str) -> Option<String> {
        let (found, near, places) = match name {
            moe::PATTERN => {
                let found = self.feed_forward.as_ref()?;
                (found.blocks.len(), &found.near, places(found))
            }
            _ if PATTERNS.contains(&name) => {
                let found = self.program.as_ref()?.patterns.get(name);
                (found.copied().unwrap_or(0), &self.near_misses, String::new())
            }
            _ => return None,
        };
        let near: Vec<&NearMiss> = near.iter().filter(|near| near.pattern == name).collect();
        let nearly = if near.is_empty() { ", and no node nearly matches".into() } else { String::new() };
        let times = match found {
            0 => "was not found".to_string(),
            1 => "was found once".to_string(),
            times => format!("was found {times} times"),
        };
        let near = near.iter().map(|near| near_miss(near));
        Some(format!("`{name}` {times}{nearly}\n{places}{}", near.collect::<String>()))
    }

    /// Tells whether the results of a node, or a value of the program, are kept for backward, and lists the patterns that were nearly found at
    /// the node.
    fn recomputed(&self, name: &str) -> Option<String> {
        let text = why_kept(self.recomputed.as_ref()?, self.module.as_ref()?, name)?;
        Some(text + &self.node(name).unwrap_or_default())
    }

    /// Lists the patterns that were nearly found at a node of the file.
    fn node(&self, name: &str) -> Option<String> {
        let label = format!("node {name:?} ");
        let near = self.near_misses.iter().chain(self.feed_forward.iter().flat_map(|found| &found.near));
        let near: Vec<String> = near.filter(|near| near.origin.starts_with(&label)).map(near_miss).collect();
        (!near.is_empty()).then(|| near.concat())
    }

    fn unknown(&self, name: &str) -> Diagnostic {
        let mut known: BTreeSet<&str> = self.file.stored.keys().map(String::as_str).collect();
        known.extend(self.file.inputs.iter().chain(&self.file.outputs).map(|port| port.name.as_str()));
        known.extend(self.parameters.iter().flat_map(|all| &all.tensors).flat_map(TensorRow::names));
        known.extend(
            self.module.iter().flat_map(|module| module.states.values()).map(|state| state.name.as_str()),
        );
        let contains = |other: &str| !other.contains(name) && !name.contains(other);
        let mut near: Vec<&str> = known.into_iter().collect();
        near.sort_by_key(|other| (contains(other), edit_distance(name, other)));
        near.truncate(NEAR);
        let names: Vec<String> = near.iter().map(|name| format!("`{name}`")).collect();
        let error = Diagnostic::new(format!("--why {name}: the model has no tensor or pattern of this name"));
        if names.is_empty() { error } else { error.note(format!("the nearest are {}", names.join(", "))) }
    }
}

/// Names the place where a pattern was nearly found, and the obstacle.
fn near_miss(near: &NearMiss) -> String {
    let NearMiss { pattern, origin, reason } = near;
    format!("  nearly `{pattern}` at {}\n    but {}\n", visible(origin), visible(reason))
}
