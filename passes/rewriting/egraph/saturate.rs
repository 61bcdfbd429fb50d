//! Applies rules until they add nothing new, with the same result every time and on every machine.

use super::term::{ENode, Graph, Sound, Symbol, Term};
use egg::Id;
use std::collections::BTreeMap;

/// Pushes a term for every match at a node.
pub(crate) type Find<S, N> = fn(&Graph<S, N>, &ENode<S>, &mut Vec<Term<S>>);

/// A rewrite: terms equal to an e-node, found by a function.
pub(crate) struct Rule<S: Symbol, N: Sound<S>> {
    /// The name, which is kept on the nodes that the rule makes.
    pub(crate) name: &'static str,
    /// The names of the operators at the root of its pattern; none for all nodes.
    pub(crate) roots: &'static [&'static str],
    /// The function that finds the matches.
    pub(crate) find: Find<S, N>,
}

/// Limits of the search. They are counts, never seconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// The number of rounds of search and application.
    pub(crate) iterations: usize,
    /// The number of e-nodes that are made in all.
    pub(crate) nodes: usize,
}

/// The end of the search.
#[derive(Clone, Debug)]
pub(crate) struct Saturation {
    /// Whether the rules add nothing new; if not, a limit was reached.
    pub(crate) complete: bool,
    /// The number of rounds.
    pub(crate) iterations: usize,
    /// The first id that each application of a rule made, with the rule.
    pub(crate) provenance: Vec<(usize, &'static str)>,
}

/// The number of nodes above a change that the next round searches. After a round that finds nothing new, one round searches
/// everywhere, so that deeper patterns are found too, only later.
const REACH: usize = 8;

/// Applies the rules to saturation or to a limit. A rule does not apply where its term is not sound.
pub(crate) fn saturate<S: Symbol, N: Sound<S>>(
    graph: &mut Graph<S, N>,
    rules: &[Rule<S, N>],
    limits: Limits,
) -> Saturation {
    let mut end = Saturation { complete: false, iterations: 0, provenance: Vec::new() };
    graph.rebuild();
    let mut near = None;
    while end.iterations < limits.iterations {
        end.iterations += 1;
        let before = graph.nodes().len();
        let mut changed = Vec::new();
        for Match { rule, class, term } in search(graph, rules, near.as_deref(), limits.nodes) {
            let first = graph.nodes().len();
            let Some(new) = term.add(graph) else { continue };
            if graph.find(class) == graph.find(new) || !N::alike(graph, class, new) {
                continue;
            }
            if graph.nodes().len() > first {
                end.provenance.push((first, rule));
            }
            graph.union(class, new);
            changed.push(class);
            if graph.nodes().len() > limits.nodes {
                graph.rebuild();
                return end;
            }
        }
        graph.rebuild();
        changed.extend((before..graph.nodes().len()).map(Id::from));
        end.complete = changed.is_empty() && near.is_none();
        if end.complete {
            break;
        }
        near = (!changed.is_empty()).then(|| around(graph, changed));
    }
    end
}

/// Returns for every class whether one of these classes is at most [`REACH`] nodes below it.
fn around<S: Symbol, N: Sound<S>>(graph: &Graph<S, N>, mut classes: Vec<Id>) -> Vec<bool> {
    let mut around = vec![false; graph.nodes().len()];
    for _ in 0..=REACH {
        classes.iter_mut().for_each(|class| *class = graph.find(*class));
        classes.retain(|&class| !std::mem::replace(&mut around[usize::from(class)], true));
        classes = classes.iter().flat_map(|&class| graph[class].parents()).collect();
    }
    around
}

/// A term, the name of the rule that made it, and the class that it equals.
struct Match<S> {
    rule: &'static str,
    class: Id,
    term: Term<S>,
}

/// The root of a rule that looks at every node.
const ANY: &str = "*";

/// Returns the nodes whose heads have this name, or all nodes for [`ANY`], each with its class, in the order of classes. With `near`,
/// only nodes of classes that are true in it.
fn nodes_of<'g, S: Symbol, N: Sound<S>>(
    graph: &'g Graph<S, N>,
    root: &'static str,
    near: Option<&[bool]>,
) -> Vec<(Id, &'g ENode<S>)> {
    let mut classes: Vec<Id> = match root {
        ANY => graph.classes().map(|class| class.id).collect(),
        _ => graph.classes_for_op(&root).into_iter().flatten().collect(),
    };
    classes.retain(|&class| near.is_none_or(|near| near[usize::from(class)]));
    classes.sort_unstable();
    let nodes =
        classes.into_iter().flat_map(|class| graph[class].nodes.iter().map(move |node| (class, node)));
    nodes.filter(|(_, node)| root == ANY || node.head.name() == root).collect()
}

/// Returns the matches of all rules that the graph does not hold yet, in the order of rules and classes, at most `most`. With `near`,
/// only those at classes that are true in it.
fn search<S: Symbol, N: Sound<S>>(
    graph: &Graph<S, N>,
    rules: &[Rule<S, N>],
    near: Option<&[bool]>,
    most: usize,
) -> Vec<Match<S>> {
    let mut by_root: BTreeMap<&'static str, Vec<(Id, &ENode<S>)>> = BTreeMap::new();
    let (mut terms, mut matches) = (Vec::new(), Vec::new());
    for rule in rules {
        let roots = if rule.roots.is_empty() { &[ANY] } else { rule.roots };
        for &root in roots {
            for &(class, node) in by_root.entry(root).or_insert_with(|| nodes_of(graph, root, near)).iter() {
                (rule.find)(graph, node, &mut terms);
                // Nearly all terms of a round were found in earlier rounds.
                for term in terms.drain(..).map(|term| term.known(graph)) {
                    if !matches!(term, Term::Class(known) if graph.find(known) == class) {
                        matches.push(Match { rule: rule.name, class, term });
                    }
                }
                if matches.len() >= most {
                    return matches;
                }
            }
        }
    }
    matches
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    struct Name(&'static str);

    impl Symbol for Name {
        fn name(&self) -> &'static str {
            self.0
        }
    }

    impl Sound<Name> for () {
        fn admits(_: &Graph<Name, ()>, _: &ENode<Name>) -> bool {
            true
        }

        fn alike(_: &Graph<Name, ()>, _: Id, _: Id) -> bool {
            true
        }
    }

    /// Returns the leaf below a node, through nodes with one argument.
    fn leaf(graph: &Graph<Name, ()>, node: &ENode<Name>) -> Id {
        let mut class = node.args[0];
        while let Some(&below) = graph[class].nodes[0].args.first() {
            class = below;
        }
        class
    }

    #[test]
    fn what_is_deeper_than_a_round_reaches_is_found_in_the_end() {
        let mut graph = Graph::new(());
        let mut class = graph.add(ENode::new(Name("a"), []));
        for _ in 0..2 * REACH {
            class = graph.add(ENode::new(Name("f"), [class]));
        }
        let top = graph.add(ENode::new(Name("top"), [class]));
        let leaf_is_b =
            Rule { name: "b", roots: &["a"], find: |_, _, out| out.push(Term::Node(Name("b"), vec![])) };
        let top_over_b = Rule {
            name: "found",
            roots: &["top"],
            find: |graph, node, out| {
                let below = &graph[leaf(graph, node)].nodes;
                if below.iter().any(|node| node.head.name() == "b") {
                    out.push(Term::Node(Name("found"), vec![]));
                }
            },
        };
        let end = saturate(&mut graph, &[leaf_is_b, top_over_b], Limits { iterations: 10, nodes: 100 });
        assert!(end.complete);
        assert!(graph[top].nodes.iter().any(|node| node.head.name() == "found"));
    }
}
