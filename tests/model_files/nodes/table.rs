//! The page of the results of each operator's tests.

use super::TESTS;
use super::case::{Case, Outcome};
use super::gradients;
use super::rules::RULES;
use std::collections::BTreeMap;
use std::fmt::Write;

/// The tests of an operator, counted.
#[derive(Clone, Copy, Default)]
struct Counts {
    passed: usize,
    excluded: usize,
    failed: usize,
}

impl Counts {
    fn add(&mut self, outcome: &Outcome) {
        *match outcome {
            Outcome::Passed => &mut self.passed,
            Outcome::Excluded(_) => &mut self.excluded,
            Outcome::Failed(_) => &mut self.failed,
        } += 1;
    }

    fn row(&self, name: &str) -> String {
        let number = |n: usize| if n == 0 { String::new() } else { n.to_string() };
        let [passed, excluded, failed] = [self.passed, self.excluded, self.failed].map(number);
        format!("| {name} | {passed} | {excluded} | {failed} |\n")
    }
}

/// The operator that a test is about: that of its first node. If a test's operator is expanded into its function (`_expanded`), that of the
/// test it was made from.
fn operator<'a>(case: &Case, by_name: &BTreeMap<&str, &'a Case>, own: &'a Case) -> &'a str {
    let made_from = case.name.find("_expanded").and_then(|at| by_name.get(&case.name[..at]));
    let of = made_from.copied().unwrap_or(own);
    of.graph().node.first().map_or("(none)", |node| node.op_type())
}

/// Returns the page, in Markdown.
pub(crate) fn render(cases: &[Case], outcomes: &[Outcome], gradients: &[gradients::Outcome]) -> String {
    let by_name: BTreeMap<&str, &Case> = cases.iter().map(|case| (case.name.as_str(), case)).collect();
    let mut operators: BTreeMap<&str, Counts> = BTreeMap::new();
    let mut rules: BTreeMap<&str, usize> = BTreeMap::new();
    let mut failures: BTreeMap<(&str, &str), Vec<&str>> = BTreeMap::new();
    let mut total = Counts::default();
    for (case, outcome) in cases.iter().zip(outcomes) {
        let operator = operator(case, &by_name, case);
        operators.entry(operator).or_default().add(outcome);
        total.add(outcome);
        match outcome {
            Outcome::Passed => {}
            Outcome::Excluded(rule) => *rules.entry(rule).or_default() += 1,
            Outcome::Failed(reason) => {
                failures.entry((operator, reason)).or_default().push(&case.name);
            }
        }
    }
    let mut page = format!(
        "# ONNX operators: the standard's own tests\n\n\
         This page is generated: `BLESS=1 cargo test --test model_files nodes`. Each of the {TESTS} backend node tests of ONNX 1.23.2 is\n\
         imported and interpreted in f64. If floats become integers, the interpreter uses the types' own precision. The outputs\n\
         are compared as ONNX's runner compares them: integers exactly, and floats with 1e-3 relative and 1e-7 absolute. Floats may\n\
         also differ by 2⁻²³ of the largest element, because the files' own numbers are f32 and have this error if terms cancel. For\n\
         bf16 the limit is two units in the last place. A test whose operator is written out as its function counts for that operator.\n\n\
         | operator | passed | excluded | failed |\n| --- | ---: | ---: | ---: |\n"
    );
    page += &total.row("**all**");
    operators.iter().for_each(|(name, counts)| page += &counts.row(name));
    page += "\n## Excluded\n\n| rule | why | tests |\n| --- | --- | ---: |\n";
    for rule in RULES {
        let count = rules.get(rule.name).copied().unwrap_or(0);
        writeln!(page, "| {} | {} | {count} |", rule.name, rule.why).expect("a string takes everything");
    }
    page += "\n## Failed\n\n| operator | tests | message | first test |\n| --- | ---: | --- | --- |\n";
    for ((operator, reason), names) in &failures {
        let reason = reason.lines().next().unwrap_or_default().replace('|', "\\|");
        writeln!(page, "| {operator} | {} | {reason} | `{}` |", names.len(), names[0])
            .expect("a string takes everything");
    }
    page + &rendered_gradients(cases, gradients)
}

/// The section of the page on gradients.
fn rendered_gradients(cases: &[Case], outcomes: &[gradients::Outcome]) -> String {
    let right = |first_alone| {
        outcomes.iter().filter(|&outcome| *outcome == gradients::Outcome::Right { first_alone }).count()
    };
    let (first, all) = (right(true), right(false));
    let mut page = format!(
        "\n## Gradients\n\n\
         The float inputs of {all} tests become parameters. The test compares the derivatives of a random sum of the float outputs\n\
         in two random directions with central finite differences, whose steps shrink until two agree. For {first} tests only the\n\
         first output is compared, because nothing is trained through the others, which are statistics of norms. The other tests:\n\n\
         | rule | why | tests |\n| --- | --- | ---: |\n"
    );
    for rule in gradients::RULES {
        let by_it = |outcome: &&gradients::Outcome| **outcome == gradients::Outcome::Left(rule.name);
        let count = outcomes.iter().filter(by_it).count();
        writeln!(page, "| {} | {} | {count} |", rule.name, rule.why).expect("a string takes everything");
    }
    let wrong = cases.iter().zip(outcomes).filter_map(|(case, outcome)| match outcome {
        gradients::Outcome::Wrong(reason) => {
            Some(format!("| `{}` | {} |\n", case.name, reason.replace('|', "\\|")))
        }
        _ => None,
    });
    let wrong: String = wrong.collect();
    if !wrong.is_empty() {
        page += &format!("\n| wrong | message |\n| --- | --- |\n{wrong}");
    }
    page
}
