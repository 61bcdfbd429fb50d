//! The problems of an import: each problem once, with the number and the names of the nodes that have it.

use super::call::Call;
use ir::Diagnostic;
use std::collections::BTreeMap;

/// The number of further nodes that are named. All others are only counted.
const NAMED: usize = 8;

/// The problems found so far, in the order of the file.
#[derive(Debug, Default)]
pub(super) struct Report {
    problems: Vec<Shared>,
    /// The index in the list of each operator's problem, by domain, operator, opset and text.
    places: BTreeMap<(String, String, i64, String), usize>,
}

/// A problem, and the other nodes that have it.
#[derive(Debug)]
struct Shared {
    diagnostic: Diagnostic,
    operator: Option<(String, String)>,
    names: Vec<String>,
    others: usize,
}

impl Report {
    /// Adds a problem that does not belong to a node.
    pub(super) fn push(&mut self, diagnostic: Diagnostic) {
        self.problems.push(Shared { diagnostic, operator: None, names: vec![], others: 0 });
    }

    /// Adds a problem of a node. Several nodes of an operator with the same problem are reported once.
    pub(super) fn of_node(&mut self, call: &Call, diagnostic: Diagnostic) {
        let said = [&diagnostic.message].into_iter().chain(&diagnostic.notes);
        let said = said.map(String::as_str).collect::<Vec<_>>().join("\n");
        let (domain, operator) = (call.domain().to_owned(), call.op().to_owned());
        let key = (domain.clone(), operator.clone(), call.opset(), said);
        if let Some(&place) = self.places.get(&key) {
            let shared = &mut self.problems[place];
            shared.others += 1;
            if shared.names.len() < NAMED {
                shared.names.push(call.name());
            }
            return;
        }
        self.places.insert(key, self.problems.len());
        let operator = Some((domain, operator));
        self.problems.push(Shared { diagnostic, operator, names: vec![], others: 0 });
    }

    /// Returns the number of problems, counting every node.
    pub(super) fn len(&self) -> usize {
        self.problems.len() + self.problems.iter().map(|shared| shared.others).sum::<usize>()
    }

    /// Whether there are no problems.
    pub(super) fn is_empty(&self) -> bool {
        self.problems.is_empty()
    }

    /// Drops the problems of operators (domain, operator) for which `told` is true, because they are reported elsewhere.
    pub(super) fn drop_operators(&mut self, told: impl Fn(&str, &str) -> bool) {
        self.places.clear();
        self.problems.retain(|shared| {
            !shared.operator.as_ref().is_some_and(|(domain, operator)| told(domain, operator))
        });
    }

    /// Returns the problems, each with the nodes that have it.
    pub(super) fn into_list(self) -> Vec<Diagnostic> {
        self.problems.into_iter().map(Shared::told).collect()
    }
}

impl Shared {
    fn told(self) -> Diagnostic {
        let Self { diagnostic, names, others, .. } = self;
        match others {
            0 => diagnostic,
            _ => {
                let unnamed = others - names.len();
                let more = if unnamed > 0 { format!(" and {unnamed} more") } else { String::new() };
                let count = others + 1;
                diagnostic.note(format!("{count} nodes have this problem, also {}{more}", names.join(", ")))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Node;

    #[test]
    fn what_many_nodes_have_is_told_once_with_their_number() {
        let mut report = Report::default();
        for i in 0..20 {
            let node = Node { name: format!("n{i}"), op_type: "Foo".into(), opset: 20, ..Node::default() };
            let call = Call::new(&node);
            report.of_node(&call, Diagnostic::new("is not supported").at(call.origin()));
        }
        let node = Node { name: "bar".into(), op_type: "Bar".into(), opset: 20, ..Node::default() };
        report.of_node(&Call::new(&node), Diagnostic::new("is not supported"));
        assert_eq!(report.len(), 21);
        let list = report.into_list();
        assert_eq!(list.len(), 2);
        assert_eq!(list[0].origin.as_deref(), Some("node \"n0\" (Foo, opset 20)"));
        assert!(
            list[0].notes[0].starts_with("20 nodes have this problem, also \"n1\", \"n2\""),
            "{}",
            list[0]
        );
        assert!(list[0].notes[0].ends_with("and 11 more"), "{}", list[0]);
    }
}
