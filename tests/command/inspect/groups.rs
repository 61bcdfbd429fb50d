//! `--group`: the parameters whose learning rate or decay differs.

use expect_test::expect;

use super::{json, read};

const MODEL: &str = "models/mlp.dynamo.onnx";

/// The part of the output that is about groups.
fn groups(arguments: &[&str]) -> String {
    let text = read(&[&[MODEL], arguments].concat());
    let lines =
        text.lines().skip_while(|line| !line.starts_with("group ")).take_while(|line| !line.is_empty());
    lines.flat_map(|line| [line, "\n"]).collect()
}

#[test]
fn groups_are_listed_with_their_parameters() {
    expect![[r#"
        group *:lr=0.5: 4 parameters
          m.net.0.weight: rate x 0.5
          m.net.0.bias: rate x 2, weight decay 0
          m.net.2.weight: rate x 0.5
          m.net.2.bias: rate x 2, weight decay 0
        group *bias:lr=2.0,weight-decay=0.0: 2 parameters
          m.net.0.bias: rate x 2, weight decay 0
          m.net.2.bias: rate x 2, weight decay 0
    "#]]
    .assert_eq(&groups(&["--group=*:lr=0.5", "--group=*bias:weight-decay=0,lr=2", "--freeze=*.4.*"]));
    let facts = json(&[MODEL, "--group=*net.0.*:weight-decay=0.3"]);
    assert_eq!(facts["groups"][0]["group"], "*net.0.*:weight-decay=0.3");
    assert_eq!(facts["groups"][0]["parameters"][0]["weight_decay"], 0.3);
    assert_eq!(facts["groups"][0]["parameters"][0]["lr"], 1.0);
    assert!(groups(&[]).is_empty());
}

#[test]
fn a_group_without_a_parameter_is_told() {
    let text = read(&[MODEL, "--group=*.wieght:lr=0.1"]);
    for part in [
        "no trained parameter matches the pattern `*.wieght` of a group",
        "for example, m.net.0.weight, m.net.0.bias",
    ] {
        assert!(text.contains(part), "no `{part}` in\n{text}");
    }
}
