//! A command line with other flags, and as text for a shell.

use super::Flag;
use std::ffi::OsString;

/// Flags that a change replaces or that exclude it, and whether each has a value: `--precision` is the long form of `--bf16`.
const REPLACED: [(&str, &[(&str, bool)]); 3] = [
    ("bf16", &[("bf16", false), ("fp16", false), ("precision", true)]),
    ("memory", &[("memory", true), ("recompute", true)]),
    ("offload", &[("offload", true)]),
];

/// The arguments with these flags. Each flag replaces the flags that [`REPLACED`] lists for it. A flag without an entry there has a value.
pub(super) fn edited(arguments: &[OsString], flags: &[Flag]) -> Vec<OsString> {
    let mut kept = arguments.to_vec();
    for (name, _) in flags {
        let replaced = REPLACED.iter().find(|(flag, _)| flag == name).map(|(_, others)| *others);
        for &(other, has_value) in replaced.unwrap_or(&[(name, true)]) {
            kept = without(kept, other, has_value);
        }
    }
    for (name, value) in flags {
        kept.push(format!("--{name}").into());
        kept.extend(value.iter().map(OsString::from));
    }
    kept
}

/// The arguments without a flag, wherever it stands.
fn without(arguments: Vec<OsString>, flag: &str, has_value: bool) -> Vec<OsString> {
    let (alone, with_value) = (format!("--{flag}"), format!("--{flag}="));
    let mut kept = vec![];
    let mut arguments = arguments.into_iter();
    while let Some(argument) = arguments.next() {
        if argument.to_str() == Some(&alone) {
            if has_value {
                arguments.next();
            }
        } else if !argument.to_string_lossy().starts_with(&with_value) {
            kept.push(argument);
        }
    }
    kept
}

/// The command for a shell: `trainyard` and the arguments behind the program's name, in quotes where a shell would read more into them.
pub(super) fn pasted(arguments: &[OsString]) -> String {
    let words = arguments.iter().skip(1).map(|argument| quoted(&argument.to_string_lossy()));
    [String::from("trainyard")].into_iter().chain(words).collect::<Vec<_>>().join(" ")
}

fn quoted(word: &str) -> String {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-_./=,:@%+".contains(letter);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edit(line: &str, flags: &[(&'static str, Option<&str>)]) -> String {
        let arguments: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        let flags: Vec<Flag> = flags.iter().map(|(name, value)| (*name, value.map(str::to_owned))).collect();
        pasted(&edited(&arguments, &flags))
    }

    #[test]
    fn a_flag_replaces_its_own_value_and_the_flags_that_exclude_it() {
        let line = "target/trainyard compile a.onnx --microbatch 8 --precision=fp32 --recompute full -o out";
        assert_eq!(
            edit(line, &[("microbatch", Some("4")), ("global-batch", Some("8"))]),
            "trainyard compile a.onnx --precision=fp32 --recompute full -o out --microbatch 4 --global-batch 8"
        );
        assert_eq!(
            edit(line, &[("bf16", None), ("memory", Some("device=1GiB"))]),
            "trainyard compile a.onnx --microbatch 8 -o out --bf16 --memory device=1GiB"
        );
        assert_eq!(
            edit("t compile --offload=optimizer --offload gradients a", &[("offload", Some("auto"))]),
            "trainyard compile a --offload auto"
        );
    }

    #[test]
    fn words_are_quoted_for_a_shell() {
        let quote =
            |words: &[&str]| pasted(&[&["t"], words].concat().iter().map(OsString::from).collect::<Vec<_>>());
        assert_eq!(quote(&["--shard", "*.weight=tp,-"]), "trainyard --shard '*.weight=tp,-'");
        assert_eq!(quote(&["it's", ""]), r"trainyard 'it'\''s' ''");
    }
}
