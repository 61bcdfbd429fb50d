//! Shell completions.

use super::*;

fn script(shell: &str) -> String {
    match parse(&format!("completions {shell}")) {
        Ok(Cli { command: Command::Completions(completions), .. }) => completions.script(),
        Ok(other) => panic!("not completions: {other:?}"),
        Err(error) => panic!("{}", text_of(error)),
    }
}

#[test]
fn every_shell_gets_every_subcommand_and_the_flags() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let script = script(shell);
        for word in [
            "compile",
            "inspect",
            "opt",
            "verify",
            "doctor",
            "completions",
            "lr-schedule",
            "global-batch",
            "bisect",
        ] {
            assert!(script.contains(word), "no `{word}` for {shell}");
        }
        // The scripts of these shells also complete the values of flags.
        let completes_values = ["bash", "fish", "zsh"].contains(&shell);
        assert!(!completes_values || script.contains("json"), "no values of --format for {shell}");
        assert_eq!(script, self::script(shell));
    }
}

/// A shell that can leave a flag out does so beside a flag that excludes it.
#[test]
fn flags_that_exclude_each_other_are_not_offered_together() {
    let script = script("zsh");
    assert!(script.contains("'(--recompute)--memory="), "{script}");
    assert!(script.contains("'(--against)--bisect["), "{script}");
}

#[test]
fn another_shell_is_answered_with_those_there_are() {
    let Err(ParseError::Usage(error)) = parse("completions tcsh") else { panic!("it is no shell we know") };
    let text = error.render().to_string();
    assert!(text.contains("[possible values: bash, elvish, fish, powershell, zsh]"), "{text}");
}
