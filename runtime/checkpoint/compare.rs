//! The differences between the state table of a checkpoint and that of a program.

use super::description::StateRow;
use ir::visible;
use std::collections::BTreeMap;

/// The differing rows of two state tables.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Differences {
    /// States of the program that the checkpoint does not have.
    pub missing: Vec<StateRow>,
    /// States of the checkpoint that the program does not have.
    pub unexpected: Vec<StateRow>,
    /// States with the same name and different types or views: the program's row, then the checkpoint's.
    pub different: Vec<(StateRow, StateRow)>,
}

impl Differences {
    /// Returns the differences that prevent a program with the states `wanted` from resuming with the states `found`.
    pub fn between(wanted: &[StateRow], found: &[StateRow]) -> Self {
        let by_name = |rows: &[StateRow]| -> BTreeMap<String, StateRow> {
            rows.iter().map(|row| (row.name.clone(), row.clone())).collect()
        };
        let (wanted, mut found) = (by_name(wanted), by_name(found));
        let mut differences = Self::default();
        for (name, row) in wanted {
            match found.remove(&name) {
                None => differences.missing.push(row),
                Some(other) if other != row => differences.different.push((row, other)),
                Some(_) => {}
            }
        }
        differences.unexpected = found.into_values().collect();
        differences
    }

    /// Returns a note for each kind of difference.
    pub fn notes(&self) -> Vec<String> {
        let rows = |rows: &[StateRow]| rows.iter().map(StateRow::to_string).collect::<Vec<_>>();
        let other = |(wanted, found): &(StateRow, StateRow)| {
            format!(
                "`{}` is {} in this program and {} in the checkpoint",
                visible(&wanted.name),
                wanted.what(),
                found.what()
            )
        };
        let notes = [
            list("missing in the checkpoint", &rows(&self.missing)),
            list("not in this program", &rows(&self.unexpected)),
            list("different", &self.different.iter().map(other).collect::<Vec<_>>()),
        ];
        notes.into_iter().flatten().collect()
    }

    /// Returns whether the tables agree.
    pub fn is_empty(&self) -> bool {
        self.missing.is_empty() && self.unexpected.is_empty() && self.different.is_empty()
    }
}

/// The largest number of rows that are listed for each kind of difference.
const LISTED: usize = 8;

fn list(title: &str, rows: &[String]) -> Option<String> {
    let more = rows.len().saturating_sub(LISTED);
    let more = if more > 0 { format!(", and {more} more") } else { String::new() };
    (!rows.is_empty()).then(|| format!("{title}: {}{more}", rows[..rows.len().min(LISTED)].join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &str, dims: &[u64]) -> StateRow {
        let (dtype, role) = ("f32".to_owned(), "parameter".to_owned());
        StateRow { name: name.to_owned(), dtype, dims: dims.to_vec(), role, view: String::new() }
    }

    #[test]
    fn missing_unexpected_and_different_states_are_told_apart() {
        let wanted = [row("a", &[2]), row("b", &[2, 3]), row("c", &[4])];
        let found = [row("c", &[4]), row("b", &[3, 2]), row("d", &[5])];
        let differences = Differences::between(&wanted, &found);
        let text = differences.notes().join("\n");
        assert!(text.contains("missing in the checkpoint: `a` f32[2]"), "{text}");
        assert!(text.contains("not in this program: `d` f32[5]"), "{text}");
        assert!(
            text.contains(
                "`b` is f32[2, 3] parameter in this program and f32[3, 2] parameter in the checkpoint"
            ),
            "{text}"
        );
        assert!(Differences::between(&wanted, &wanted).is_empty());
    }

    #[test]
    fn a_long_list_is_cut_and_says_how_much() {
        let wanted: Vec<StateRow> = (0..20).map(|i| row(&format!("layer.{i}"), &[1])).collect();
        let text = Differences::between(&wanted, &[]).notes().join("\n");
        assert!(text.ends_with("and 12 more"), "{text}");
    }
}
