//! Groups of parameters with a learning rate or a weight decay of their own, and their members.

use ir::units::count;
use ir::visible;
use passes::optimizer::{Group, settings};
use passes::reports::{ParameterReport, RowRole};
use serde::Serialize;
use std::fmt;

/// A group.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GroupFacts {
    /// The group, as it is written on the command line.
    pub group: String,
    /// The parameters whose names match its pattern.
    pub parameters: Vec<GroupMember>,
}

/// A parameter of a group. Its settings follow from all groups that it belongs to.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GroupMember {
    /// The tensor's name in the file.
    pub name: String,
    /// The factor on its learning rate.
    pub lr: f64,
    /// Its weight decay, if a group sets it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight_decay: Option<f64>,
}

impl GroupFacts {
    /// The groups of a model, each with its parameters.
    pub(super) fn of(groups: &[Group], reports: &[ParameterReport]) -> Vec<Self> {
        let trained = |report: &&ParameterReport| {
            report.role == RowRole::Parameter && !report.frozen && report.tied.is_none()
        };
        let member = |group: &Group, report: &ParameterReport| {
            let names: Vec<&str> =
                std::iter::once(&report.data).chain(&report.aliases).map(String::as_str).collect();
            let (lr, weight_decay) = settings(groups, &names);
            group.fits(names).then(|| GroupMember { name: report.data.clone(), lr, weight_decay })
        };
        let facts = |group: &Group| Self {
            group: group.to_string(),
            parameters: reports.iter().filter(trained).filter_map(|report| member(group, report)).collect(),
        };
        groups.iter().map(facts).collect()
    }
}

impl fmt::Display for GroupFacts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "group {}: {}", visible(&self.group), count(self.parameters.len(), "parameter"))?;
        for GroupMember { name, lr, weight_decay } in &self.parameters {
            let decay = weight_decay.map(|decay| format!(", weight decay {decay}")).unwrap_or_default();
            writeln!(f, "  {}: rate x {lr}{decay}", visible(name))?;
        }
        Ok(())
    }
}
