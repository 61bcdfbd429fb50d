//! The README: its table of flags is the one that the flags' definition gives (`BLESS=1` writes it); its runs on several
//! devices go as it says.

use crate::TRAINYARD;
use std::path::{Path, PathBuf};

use testing::workplace::Workplace;
use trainyard::cli::reference::flags_table;

const START: &str = "<!-- flags: generated, `BLESS=1 cargo test --test command readme` -->\n";
const END: &str = "<!-- end of flags -->\n";

fn readme() -> (PathBuf, String) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md");
    let readme = std::fs::read_to_string(&path).expect("there is a README");
    (path, readme)
}

#[test]
fn the_flags_in_the_readme_are_those_of_the_program() {
    let (path, readme) = readme();
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
        "the README's flags are out of date: BLESS=1 cargo test --test command readme\nmissing: {:#?}\ntoo much: {:#?}",
        only_in(&table, written),
        only_in(written, &table)
    );
}

/// The commands on a quarter of the samples, a hundredth of the steps, and little of the text.
#[test]
fn a_run_on_four_ranks_goes_on_on_one_device_and_on_four_others() {
    let (_, readme) = readme();
    let commands = readme.lines().filter_map(|line| line.strip_prefix("    trainyard "));
    let commands: Vec<String> = commands
        .filter(|command| command.ends_with("-o ranks") || command.contains("--resume=ranks"))
        .map(|command| {
            let cut = [
                ("testdata/kjv.txt", "text.txt"),
                ("00 ", " "),
                ("--microbatch 4 ", "--microbatch 1 "),
                (" 16 ", " 4 "),
            ];
            cut.iter().fold(format!("{command} "), |command, (from, to)| command.replace(from, to))
        })
        .collect();
    let [ranks, one, four] = commands.as_slice() else { panic!("{commands:?}") };
    assert!(ranks.contains("--mesh dp=2,tp=2 --zero 1 --bf16"), "{ranks}");
    assert!(!one.contains("--mesh") && four.contains("--mesh dp=4"), "{one} {four}");

    let place = Workplace::with_text(TRAINYARD, 8_000);
    let losses = |run: &str, command: &str| -> Vec<f64> {
        place.succeed(command);
        place.metrics(run).iter().map(|line| line["loss"].as_f64().expect("a loss")).collect()
    };
    let whole = losses("whole", &one.replace("--resume=ranks -o one", "-o whole"));
    assert_eq!(whole.len(), 6);
    assert!(whole[5] < whole[0], "{whole:?}");
    for (run, command, expected) in
        [("ranks", ranks, &whole[..3]), ("one", one, &whole[3..]), ("four", four, &whole[3..])]
    {
        let losses = losses(run, command);
        assert_eq!(losses.len(), 3, "{run}");
        let apart = losses.iter().zip(expected).map(|(loss, expected)| (loss - expected).abs());
        let worst = apart.fold(0.0, f64::max);
        assert!(worst < 2e-3, "{run}: {losses:?}, not {expected:?}");
    }
}
