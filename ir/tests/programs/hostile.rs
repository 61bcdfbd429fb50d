//! Text is untrusted: for any attributes and types of an operator, parser and verifier must return and not panic.

use ir::testing::Choices;
use ir::{Inference, Op, Operator, Type, text, verify};
use std::collections::{BTreeMap, BTreeSet};
use std::panic::catch_unwind;

const PROGRAMS: u64 = 30_000;

const VALUES: &[&str] = &[
    "0",
    "1",
    "2",
    "3",
    "7",
    "-1",
    "4294967295",
    "9223372036854775807",
    "-9223372036854775808",
    "0.5",
    "NaN",
    "inf",
    "true",
    "false",
    "f32",
    "bf16",
    "i64",
    "_",
    "ab",
    "bc",
    "abc",
    "ba",
    "aa",
    "abcdefgh",
    "sum",
    "mean",
    "max",
    "min",
    "host",
    "lstm",
    "gru",
    "rnn",
    "rnn_relu",
    "[]",
    "[0]",
    "[1, 0]",
    "[0, 1]",
    "[0, 0]",
    "[2, 0, 1]",
    "[4294967295]",
    "@0",
];

const TYPES: &[&str] = &[
    "f32[]",
    "f32[0]",
    "f32[1]",
    "f32[2]",
    "f32[2, 4]",
    "f32[4, 2]",
    "f32[2, 4] {dp, -}",
    "f32[2, 4] {-, tp*dp}",
    "f32[2, 4] partial(sum tp)",
    "f32[2, 3, 4]",
    "f32[3, 2, 8]",
    "f32[8, 2]",
    "f32[2, 2]",
    "f32[2, 2, 4, 6]",
    "f32[2, 2, 4] {dp, -, tp}",
    "f64[]",
    "f64[2, 4]",
    "i64[]",
    "i64[2]",
    "i64[2, 4]",
    "i64[2, 4, 1]",
    "i64[2, 0]",
    "bool[2, 4]",
    "bool[2, 2, 4, 4]",
    "bf16[2, 4]",
    "f32[2, 2, 4, 4]",
    "f32[4]",
    "f32[8]",
    "f32[4294967295, 4294967295, 4294967295]",
    "i64[18446744073709551615]",
    "f32[18446744073709551615, 2]",
    "f32[n, 4]",
    "f32[4*n, m]",
];

const SHARDINGS: &[&str] =
    &["", " {dp}", " {-, tp}", " {dp, -, -}", " {tp*dp, -}", " partial(sum tp)", " partial(max dp)"];

/// Returns the attributes of an operator, each with a value that it can parse.
fn attributes(name: &str, choices: &mut Choices) -> String {
    let mut given: Vec<(String, String)> = Vec::new();
    let quoted = |message: &str, after: &str| {
        message.split(after).nth(1).and_then(|rest| rest.split('`').nth(1)).map(str::to_string)
    };
    // The error names the missing attribute, or the value that cannot be parsed.
    for tries in 0.. {
        assert!(tries < 10_000, "the list of values has none for an attribute of `{name}`");
        let value = choices.of(VALUES).to_string();
        let Err(message) = Op::parse(name, &given) else { break };
        if let Some(missing) = quoted(&message, "needs the attribute") {
            given.push((missing, value));
        } else {
            given.last_mut().expect("a value is not read").1 = value;
        }
    }
    let given: Vec<_> = given.iter().map(|(name, value)| format!("{name} = {value}")).collect();
    if given.is_empty() { String::new() } else { format!("{{{}}}", given.join(", ")) }
}

/// A node with the types of its operands and results.
struct Line {
    name: &'static str,
    attributes: String,
    operands: Vec<String>,
    results: Vec<String>,
}

impl Line {
    /// Draws any operator, with operands of a few types.
    fn random(choices: &mut Choices) -> Self {
        let names = Op::names();
        let name = names[choices.below(names.len())];
        let palette = [choices.of(TYPES), choices.of(TYPES), choices.of(TYPES)];
        let mut types = |most: usize| {
            let few = 1 + choices.below(palette.len());
            (0..choices.below(most + 1)).map(|_| choices.of(&palette[..few]).to_string()).collect::<Vec<_>>()
        };
        let (operands, results) = (types(7), types(2));
        Self { name, attributes: attributes(name, choices), operands, results }
    }

    /// Returns a module of level placed with this node.
    fn text(&self) -> String {
        let list = |count: usize, from: usize| {
            (from..from + count).map(|i| format!("%{i}")).collect::<Vec<_>>().join(", ")
        };
        let inputs: Vec<_> =
            self.operands.iter().enumerate().map(|(i, ty)| format!("%{i} \"x{i}\" : {ty}")).collect();
        let (inputs, types) = (inputs.join(", "), self.results.join(", "));
        let (equals, colon) = if self.results.is_empty() { ("", "") } else { ("=", ":") };
        let (results, operands) = (list(self.results.len(), 10), list(self.operands.len(), 0));
        let (name, attributes) = (self.name, &self.attributes);
        format!(
            "trainyard-ir 1 module @m placed mesh [dp=2, tp=2] {{
               data @0 \"d\" : f32[2, 4]
               func @train({inputs}) {{
                 {results} {equals} {name} {operands} {attributes} {colon} {types} !{{fwd}}
                 %50 = splat {{value = 0.0}} : f32[] !{{update}}
               }}
               output \"loss\" = %50
             }}"
        )
    }
}

/// Parses and verifies a text in every way. Returns the correct types of its first node's results.
fn answer(text: &str) -> Option<Vec<Type>> {
    let _ = text::parse(text);
    let module = text::parse_unchecked(text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    let _ = verify::verify(&module);
    let (_, node) = module.nodes().next()?;
    let signature = module.signature(node);
    node.op.infer(&Inference { operands: &signature.operands, declared: &signature.results }).ok()
}

#[test]
fn no_attributes_and_types_make_an_operator_panic() {
    let (mut panicking, mut typed) = (BTreeMap::new(), BTreeSet::new());
    for seed in 0..PROGRAMS {
        let mut choices = Choices::new(seed);
        let mut line = Line::random(&mut choices);
        let Ok(inferred) = catch_unwind(|| answer(&line.text())) else {
            panicking.insert(line.name, line.text());
            continue;
        };
        // With the correct types, the node reaches the checks of shardings.
        let Some(inferred) = inferred else { continue };
        typed.insert(line.name);
        for _ in 0..4 {
            let sharded = |ty: &Type, choices: &mut Choices| format!("{ty}{}", choices.of(SHARDINGS));
            line.results = inferred.iter().map(|ty| sharded(ty, &mut choices)).collect();
            if catch_unwind(|| answer(&line.text())).is_err() {
                panicking.insert(line.name, line.text());
            }
        }
    }
    let names: Vec<_> = panicking.keys().collect();
    assert!(
        panicking.is_empty(),
        "{names:?} panic, the first on\n{}",
        panicking.values().next().expect("one")
    );
    assert!(typed.len() > 50, "only {typed:?} got past their types");
}
