//! The table of flags in the README is the one that the flags' definition gives; `BLESS=1` writes it.

use std::path::Path;

use trainyard::cli::reference::flags_table;

const START: &str = "<!-- flags: generated, `BLESS=1 cargo test --test readme` -->\n";
const END: &str = "<!-- end of flags -->\n";

#[test]
fn the_flags_in_the_readme_are_those_of_the_program() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md");
    let readme = std::fs::read_to_string(&path).expect("there is a README");
    let (before, rest) = readme.split_once(START).expect("the README marks where the flags start");
    let (written, after) = rest.split_once(END).expect("the README marks where the flags end");
    let table = flags_table();
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, format!("{before}{START}{table}{END}{after}"))
            .expect("the README can be written");
        return;
    }
    let only_in = |one: &str, other: &str| -> Vec<String> {
        one.lines().filter(|line| !other.lines().any(|o| o == *line)).map(str::to_owned).collect()
    };
    assert!(
        written == table,
        "the README's flags are out of date: BLESS=1 cargo test --test readme\nmissing: {:#?}\ntoo much: {:#?}",
        only_in(&table, written),
        only_in(written, &table)
    );
}
