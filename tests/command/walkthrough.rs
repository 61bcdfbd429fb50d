//! Every command of `docs/walkthrough.md` prints the block below it. `UPDATE_EXPECT=1` rewrites the blocks.
//!
//! The page's commands run in the page's order in one temporary folder, so that a later command can read the files that an
//! earlier one wrote.

use std::path::Path;
use std::process::Command;

use expect_test::expect_file;

const PAGE: &str = include_str!("../../docs/walkthrough.md");
const COMMAND: &str = "    $ ";
const INDENT: &str = "    ";

/// Runs a line of the page in bash, with the tested `trainyard` first in the search path. Returns its standard output.
fn output_of(line: &str, folder: &Path) -> String {
    let binary = Path::new(crate::TRAINYARD);
    let mut path = binary.parent().expect("the binary lies in a folder").as_os_str().to_owned();
    path.push(":");
    path.push(std::env::var_os("PATH").unwrap_or_default());
    let output = Command::new("bash")
        .args(["-o", "pipefail", "-c", line])
        .current_dir(folder)
        .env("PATH", path)
        .env("NO_COLOR", "1")
        .output()
        .expect("bash can be started");
    assert!(output.status.success(), "{line}\n{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("programs are UTF-8")
}

/// Returns the page with each command's output in place of the lines that stand below the command, and the number of commands.
fn rendered(page: &str, folder: &Path) -> (String, usize) {
    let mut text = String::new();
    let mut commands = 0;
    let mut lines = page.lines().peekable();
    while let Some(line) = lines.next() {
        text += line;
        text.push('\n');
        let Some(command) = line.strip_prefix(COMMAND) else { continue };
        commands += 1;
        while lines.next_if(|next| next.starts_with(INDENT) && !next.starts_with(COMMAND)).is_some() {}
        for printed in output_of(command, folder).lines() {
            assert!(!printed.is_empty(), "`{command}` prints an empty line, which would end its block");
            text = text + INDENT + printed + "\n";
        }
    }
    (text, commands)
}

#[test]
fn every_command_of_the_walkthrough_prints_the_block_below_it() {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let testdata = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata");
    std::os::unix::fs::symlink(testdata, folder.path().join("testdata")).expect("a link can be made");
    let (text, commands) = rendered(PAGE, folder.path());
    assert!(commands >= 12, "the page has {commands} commands");
    expect_file!["../../docs/walkthrough.md"].assert_eq(&text);
}
