//! Applying rules until nothing new comes: the same result every time, on every machine.

use super::graph::{ENode, Graph};
use super::term::Term;
use egg::Id;

/// A rewrite: terms equal to an e-node, found by a function.
pub(super) struct Rule {
    /// Name, kept on the nodes it made.
    pub(super) name: &'static str,
    /// Names of the operators it looks at.
    pub(super) roots: &'static [&'static str],
    /// Pushes a term for every match.
    pub(super) find: fn(&Graph, &ENode, &mut Vec<Term>),
}

/// Limits on the search; counts, never seconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Rounds of search and apply.
    pub(super) iterations: usize,
    /// E-nodes ever made.
    pub(super) nodes: usize,
}

/// How the search ended.
#[derive(Clone, Debug)]
pub(super) struct Saturation {
    /// Whether nothing new was left; else a limit was hit.
    pub(super) complete: bool,
    /// Rounds run.
    pub(super) iterations: usize,
    /// First id made by each application, with the rule: what made a node.
    pub(super) provenance: Vec<(usize, &'static str)>,
}

/// Applies the rules to saturation or to a limit.
pub(super) fn saturate(graph: &mut Graph, rules: &[Rule], limits: Limits) -> Saturation {
    let mut end = Saturation { complete: false, iterations: 0, provenance: Vec::new() };
    graph.rebuild();
    while end.iterations < limits.iterations {
        end.iterations += 1;
        let before = graph.nodes().len();
        let mut changed = false;
        for (rule, class, term) in search(graph, rules) {
            let first = graph.nodes().len();
            let Some(new) = term.add(graph) else { continue };
            // Without a stretched operand the result may be narrower: then the rule does not hold here.
            if graph[class].data.types != graph[new].data.types {
                continue;
            }
            if graph.nodes().len() > first {
                end.provenance.push((first, rule));
            }
            changed |= graph.union(class, new);
            if graph.nodes().len() > limits.nodes {
                graph.rebuild();
                return end;
            }
        }
        graph.rebuild();
        if !changed && graph.nodes().len() == before {
            end.complete = true;
            break;
        }
    }
    end
}

/// All matches of all rules, in the order of rules and classes.
fn search(graph: &Graph, rules: &[Rule]) -> Vec<(&'static str, Id, Term)> {
    let mut found = Vec::new();
    let mut terms = Vec::new();
    for rule in rules {
        for root in rule.roots {
            let mut classes: Vec<Id> = graph.classes_for_op(root).into_iter().flatten().collect();
            classes.sort_unstable();
            for class in classes {
                for node in
                    graph[class].nodes.iter().filter(|node| node.op().is_some_and(|op| op.name() == *root))
                {
                    (rule.find)(graph, node, &mut terms);
                    found.extend(terms.drain(..).map(|term| (rule.name, class, term)));
                }
            }
        }
    }
    found
}
