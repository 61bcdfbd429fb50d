//! Applying rules until nothing new comes: the same result every time, on every machine.

use egg::{Analysis, EGraph, Id, Language};

/// What a rule says a class is equal to.
pub(crate) trait Equal<L: Language, N: Analysis<L>> {
    /// Adds it, and says which class it is. `None` when it is ill-typed: then the rule does not apply.
    fn add(&self, graph: &mut EGraph<L, N>) -> Option<Id>;
}

/// A rewrite: terms equal to an e-node, found by a function.
pub(crate) struct Rule<L: Language, N: Analysis<L>, T> {
    /// Name, kept on the nodes it made.
    pub(crate) name: &'static str,
    /// Names of the operators it looks at; none: all nodes.
    pub(crate) roots: &'static [&'static str],
    /// Pushes a term for every match.
    pub(crate) find: fn(&EGraph<L, N>, &L, &mut Vec<T>),
}

/// Limits on the search; counts, never seconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Rounds of search and apply.
    pub(crate) iterations: usize,
    /// E-nodes ever made.
    pub(crate) nodes: usize,
}

/// How the search ended.
#[derive(Clone, Debug)]
pub(crate) struct Saturation {
    /// Whether nothing new was left; else a limit was hit.
    pub(crate) complete: bool,
    /// Rounds run.
    pub(crate) iterations: usize,
    /// First id made by each application, with the rule: what made a node.
    pub(crate) provenance: Vec<(usize, &'static str)>,
}

/// Applies the rules to saturation or to a limit. `alike` says whether a term's class may be one with the class it was
/// found for; a rule whose term may not does not hold there.
pub(crate) fn saturate<L, N, T>(
    graph: &mut EGraph<L, N>,
    rules: &[Rule<L, N, T>],
    limits: Limits,
    alike: impl Fn(&EGraph<L, N>, Id, Id) -> bool,
) -> Saturation
where
    L: Language<Discriminant = &'static str>,
    N: Analysis<L>,
    T: Equal<L, N>,
{
    let mut end = Saturation { complete: false, iterations: 0, provenance: Vec::new() };
    graph.rebuild();
    while end.iterations < limits.iterations {
        end.iterations += 1;
        let before = graph.nodes().len();
        let mut changed = false;
        let (places, terms) = search(graph, rules);
        for (&(rule, class), term) in places.iter().zip(&terms) {
            let first = graph.nodes().len();
            let Some(new) = term.add(graph) else { continue };
            if graph.find(class) == graph.find(new) || !alike(graph, class, new) {
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

/// A rule's name, and the class it was found for.
type Place = (&'static str, Id);

/// All matches of all rules, in the order of rules and classes: for each where it was found, and the term.
fn search<L, N, T>(graph: &EGraph<L, N>, rules: &[Rule<L, N, T>]) -> (Vec<Place>, Vec<T>)
where
    L: Language<Discriminant = &'static str>,
    N: Analysis<L>,
{
    let sorted = |mut classes: Vec<Id>| {
        classes.sort_unstable();
        classes
    };
    let every = || sorted(graph.classes().map(|class| class.id).collect());
    let all = if rules.iter().any(|rule| rule.roots.is_empty()) { every() } else { Vec::new() };
    // Terms are large: each is written once, to where it stays.
    let (mut places, mut terms) = (Vec::new(), Vec::new());
    for rule in rules {
        let mut visit = |classes: &[Id], root: Option<&str>| {
            for &class in classes {
                let nodes = graph[class].nodes.iter();
                for node in nodes.filter(|node| root.is_none_or(|root| node.discriminant() == root)) {
                    (rule.find)(graph, node, &mut terms);
                    places.resize(terms.len(), (rule.name, class));
                }
            }
        };
        if rule.roots.is_empty() {
            visit(&all, None);
        }
        for root in rule.roots {
            visit(&sorted(graph.classes_for_op(root).into_iter().flatten().collect()), Some(root));
        }
    }
    (places, terms)
}
