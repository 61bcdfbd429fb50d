//! Groups of parameters: `--group`, and the tables `[[group]]` of a config file.

use super::*;

#[test]
fn tables_of_a_config_file_are_the_flag() {
    let config = "lr = 1e-3\n[[group]]\npattern = \"*.bias\"\nweight-decay = 0\n\n[[group]]\npattern = 'h.*'\nlr = 0.25\nweight-decay = 1e-2\n";
    let from_file = with_config(config, "");
    assert_eq!(
        from_file,
        compile("--lr 1e-3 --group *.bias:weight-decay=0 --group h.*:lr=0.25,weight-decay=0.01").settings
    );
    // As with every flag, the command line wins.
    let settings = with_config(config, "--group *:lr=2");
    assert_eq!(settings.compile.optimizer.group.len(), 1);
    // The `config.toml` that a run writes can be read back.
    let toml = from_file.to_toml().expect("all paths are UTF-8");
    assert!(
        toml.contains("group = [\"*.bias:weight-decay=0.0\", \"h.*:lr=0.25,weight-decay=0.01\"]"),
        "{toml}"
    );
    assert_eq!(with_config(&toml, ""), from_file);
}

#[test]
fn a_table_that_is_no_group_says_why() {
    for (table, expected) in [
        ("[[group]]\nlr = 1", "a group has no `pattern`"),
        ("[[group]]\npattern = 'a'", "the group `a` sets nothing"),
        ("[[group]]\npattern = 'a'\nlr = 'x'", "`lr` of a group must be a number, not the string \"x\""),
        ("[[group]]\npattern = 1\nlr = 1", "`pattern` of a group must be a string, not the number 1"),
        ("[[group]]\npattern = 'a'\nweight_decay = 1", "a group has no key `weight_decay`"),
        ("[[group]]\npattern = 'a'\nlr = -1", "lr is -1; it must be a number that is not negative"),
        (
            "[group]\npattern = 'a'\nlr = 1",
            "`group` is a section, and a config file has only keys and [[group]] tables",
        ),
        ("[[shard]]\npattern = 'a'", "`shard` wants a list of strings, or one string, not a table"),
        ("[[lr]]\npattern = 'a'", "`lr` wants a number, not a list"),
    ] {
        let (_folder, path) = config_file(table);
        let error = parse(&format!("compile m.onnx --config {}", path.display())).expect_err(table);
        let text = text_of(error);
        assert!(
            text.starts_with(&format!("error: {expected}")) || text.contains(expected),
            "{table}\n{text}"
        );
        assert!(text.contains("trainyard.toml:1"), "{table}\n{text}");
    }
}

#[test]
fn wrong_groups_on_the_command_line_are_refused() {
    check_errors(
        &[
            "--group a",
            "--group a:lr",
            "--group a:rate=1",
            "--group a:lr=1,lr=2",
            "--group a:weight-decay=inf",
        ],
        expect![[r#"
            error: invalid value 'a' for '--group <PATTERN:lr=FACTOR,weight-decay=X>': `a` is not of the form PATTERN:lr=FACTOR,weight-decay=X, such as 'h.*.ln_*:weight-decay=0'
            error: invalid value 'a:lr' for '--group <PATTERN:lr=FACTOR,weight-decay=X>': lr: `` is not a number
            error: invalid value 'a:rate=1' for '--group <PATTERN:lr=FACTOR,weight-decay=X>': a group has no setting `rate`; its settings are lr and weight-decay
            error: invalid value 'a:lr=1,lr=2' for '--group <PATTERN:lr=FACTOR,weight-decay=X>': `lr` is given twice in `a:lr=1,lr=2`
            error: invalid value 'a:weight-decay=inf' for '--group <PATTERN:lr=FACTOR,weight-decay=X>': weight-decay is inf; it must be a number that is not negative
        "#]],
    );
}
