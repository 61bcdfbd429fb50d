//! `--format dot`: a program as a graph for Graphviz.

use std::collections::BTreeSet;

use expect_test::expect;
use ir::graphviz;

use super::{inspect, read};

#[test]
fn a_small_program_is_drawn_as_it_is_written() {
    let program = r#"trainyard-ir 1
module @tiny imported {
  data @0 "w" : f32[3, 2]
  func @forward(%0 "x" batched : f32[4, 3]) {
    %1 = constant {data = @0} : f32[3, 2] !{fwd}
    %2 = contract %0, %1 {lhs = bk, rhs = kc, out = bc} : f32[4, 2] !{fwd, origin "/dense"}
  }
  output "y" = %2
}
"#;
    let module = ir::text::parse(program).expect("the text is a program");
    expect![[r#"
        digraph "tiny" {
          node [shape=box, style=rounded, fontname="sans-serif", fontsize=10];
          edge [fontname="sans-serif", fontsize=8];
          input0 [label="x\nf32[4, 3]", shape=ellipse];
          subgraph cluster_fwd {
            label="fwd";
            node0 [label="constant\nf32[3, 2]"];
            node1 [label="contract\nf32[4, 2]\n/dense"];
          }
          output0 [label="y", shape=ellipse];
          input0 -> node1;
          node0 -> node1;
          node1 -> output0;
        }
    "#]]
    .assert_eq(&graphviz(&module));
}

/// The names of nodes, the clusters, and the edges.
fn graph(text: &str) -> (BTreeSet<&str>, Vec<&str>, Vec<(&str, &str)>) {
    let lines = || text.lines().map(str::trim);
    let edges = lines().filter_map(|line| line.split_once(" -> "));
    let edges = edges.map(|(from, to)| (from, to.split([' ', ';']).next().unwrap_or_default())).collect();
    let is_node = |line: &&str| line.contains("[label=") && !line.contains(" -> ");
    let nodes = lines().filter(is_node).filter_map(|line| line.split(' ').next()).collect();
    (nodes, lines().filter_map(|line| line.strip_prefix("subgraph cluster_")).collect(), edges)
}

#[test]
fn a_whole_step_has_its_phases_as_clusters_and_every_edge_two_ends() {
    for flags in [&["--bf16"][..], &["--mesh", "dp=2,tp=2", "--zero", "1"]] {
        let arguments = [&["models/gpt2.dynamo.onnx", "--format", "dot"], flags].concat();
        let text = inspect(&arguments).output().expect("the model can be trained").text;
        assert_eq!(
            text,
            inspect(&arguments).output().expect("again").text,
            "it is a function of the program"
        );
        let (nodes, clusters, edges) = graph(&text);
        let phases: &[&str] = match flags {
            ["--bf16"] => &["prepare {", "fwd {", "bwd {", "update {"],
            _ => &["fwd {", "bwd {", "update {"],
        };
        assert_eq!(clusters, phases, "{flags:?}");
        assert!(edges.len() > nodes.len() / 2, "{} edges of {} nodes", edges.len(), nodes.len());
        for (from, to) in edges {
            assert!(nodes.contains(from) && nodes.contains(to), "{from} -> {to}");
        }
        assert_eq!(text.matches('{').count(), text.matches('}').count());
    }
}

#[test]
fn answers_are_not_drawn() {
    expect![[r#"
        error: --why answers in words, and --format dot draws a program
          = remove one of these flags
    "#]]
    .assert_eq(&read(&["models/mlp.dynamo.onnx", "--format", "dot", "--why", "x"]));
}
