//! The README and the pages that it opens: the tables of flags in `docs/flags.md` and of DeepSpeed's keys in `docs/deepspeed.md` are
//! those of the program (`BLESS=1` writes them), the runs on several devices in `docs/training.md` go as the page says, and links lead to files.

use crate::TRAINYARD;
use std::path::{Path, PathBuf};

use testing::workplace::Workplace;
use trainyard::cli::reference::flags_table;
use trainyard::config::deepspeed::keys_table;

/// A generated part of a page: the page, and the names that its marks have.
struct Generated {
    page: &'static str,
    name: &'static str,
}

impl Generated {
    /// Asserts that the page has this text between its marks. With `BLESS`, the text is written there.
    fn check(&self, text: &str) {
        let (path, page) = page(self.page);
        let start =
            format!("<!-- {}: generated, `BLESS=1 cargo test --test command readme` -->\n", self.name);
        let end = format!("<!-- end of {} -->\n", self.name);
        let (before, rest) = page.split_once(&start).expect("the page marks the start of the table");
        let (written, after) = rest.split_once(&end).expect("the page marks the end of the table");
        if std::env::var_os("BLESS").is_some() {
            std::fs::write(&path, format!("{before}{start}{text}{end}{after}"))
                .expect("the page can be written");
            return;
        }
        let only_in = |one: &str, other: &str| -> Vec<String> {
            one.lines().filter(|line| !other.lines().any(|o| o == *line)).map(str::to_owned).collect()
        };
        assert!(
            written == text,
            "{} is out of date: BLESS=1 cargo test --test command readme\nmissing: {:#?}\ntoo much: {:#?}",
            self.page,
            only_in(text, written),
            only_in(written, text)
        );
    }
}

fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns the path and the text of a page, by its path in the repository.
fn page(name: &str) -> (PathBuf, String) {
    let path = repository().join(name);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{name}: {error}"));
    (path, text)
}

#[test]
fn the_flags_in_the_documents_are_those_of_the_program() {
    Generated { page: "docs/flags.md", name: "flags" }.check(&flags_table());
}

#[test]
fn the_keys_of_deepspeed_in_the_documents_are_those_of_the_program() {
    Generated { page: "docs/deepspeed.md", name: "keys" }.check(&keys_table());
}

/// The commands run on a quarter of the samples, with a hundredth of the steps, and on little of the text.
#[test]
fn a_run_on_four_ranks_goes_on_on_one_device_and_on_four_others() {
    let (_, training) = page("docs/training.md");
    let commands = training.lines().filter_map(|line| line.strip_prefix("    trainyard "));
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
    assert!(ranks.contains("--mesh dp=2,tp=2 --zero 1 "), "{ranks}");
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

/// The lines of a page that a command prints; they stand after the command's mark.
struct Printed<'p> {
    page: &'p str,
    command: &'p str,
    lines: Vec<&'p str>,
}

/// The blocks of a page with such a mark.
fn printed<'p>(page: &'p str, text: &'p str) -> Vec<Printed<'p>> {
    const MARK: &str = "<!-- printed by: trainyard ";
    let block = |rest: &'p str| {
        let (command, after) = rest.split_once(" -->\n").expect("the mark ends");
        let lines = after.lines().skip_while(|line| line.is_empty());
        let lines = lines.take_while(|line| line.is_empty() || line.starts_with("    "));
        let lines: Vec<&str> = lines.filter_map(|line| line.strip_prefix("    ")).collect();
        assert!(!lines.is_empty(), "{page}: no lines stand after the mark of `{command}`");
        Printed { page, command, lines }
    };
    text.split(MARK).skip(1).map(block).collect()
}

/// Whether a line of output equals a line of the page, apart from its indentation. `…` in the page stands for any text.
fn is_line(line: &str, shown: &str) -> bool {
    let (line, shown) = (line.trim_start(), shown.trim_start());
    let mut parts = shown.split('…');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = line.strip_prefix(first) else { return false };
    let mut is_whole = true;
    for part in parts {
        let Some(at) = rest.find(part) else { return false };
        is_whole = part.is_empty();
        rest = if is_whole { "" } else { &rest[at + part.len()..] };
    }
    !is_whole || rest.is_empty() || shown.ends_with('…')
}

#[test]
fn every_output_in_the_pages_is_printed_by_its_command() {
    let pages = ["README.md", "docs/inspect.md", "docs/memory.md", "docs/training.md"];
    let texts = pages.map(|name| page(name).1);
    let blocks: Vec<Printed> =
        pages.iter().zip(&texts).flat_map(|(page, text)| printed(page, text)).collect();
    assert!(blocks.len() >= 9, "{} blocks have a mark", blocks.len());
    for Printed { page, command, lines } in blocks {
        let place = Workplace::new(TRAINYARD);
        let output = place.command(command).output().expect("the binary can be started");
        let text = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
        let mut found = text.iter().flat_map(|text| text.lines());
        for shown in lines {
            assert!(
                found.any(|line| is_line(line, shown)),
                "{page}: `trainyard {command}` does not print, after the lines before it:\n{shown}\nbut:\n{}",
                text.concat()
            );
        }
    }
}

#[test]
fn the_flags_of_the_design_are_those_of_the_program() {
    let (_, design) = page("docs/DESIGN.md");
    let place = Workplace::new(TRAINYARD);
    let help = ["compile", "inspect", "opt", "verify", "doctor"].map(|name| {
        let output = place.command(&format!("{name} --help")).output().expect("the binary can be started");
        String::from_utf8_lossy(&output.stdout).into_owned()
    });
    let is_of_flag = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let flags = design.match_indices("--").filter_map(|(at, _)| {
        let flag = &design[at..];
        let flag = &flag[..flag.find(|c| !is_of_flag(c)).unwrap_or(flag.len())];
        let begins = design[..at].chars().next_back().is_none_or(|before| !is_of_flag(before));
        (begins && flag[2..].starts_with(|c: char| c.is_ascii_lowercase())).then_some(flag)
    });
    let known = help.concat();
    for flag in flags {
        let is_known =
            known.match_indices(flag).any(|(at, _)| !known[at + flag.len()..].starts_with(is_of_flag));
        assert!(is_known, "docs/DESIGN.md has the flag {flag}, which no command takes");
    }
}

/// `.ci/run` takes the two commands of the quick start from the README: the first two indented lines.
#[test]
fn the_first_two_indented_lines_of_the_readme_train_and_test() {
    let (_, readme) = page("README.md");
    let commands: Vec<&str> = readme.lines().filter_map(|line| line.strip_prefix("    ")).take(2).collect();
    let [train, test] = commands.as_slice() else { panic!("{commands:?}") };
    assert!(
        train.starts_with("cargo run --release -- compile testdata/gpt2-bytes.onnx --train testdata/"),
        "{train}"
    );
    assert_eq!(*test, "cargo test --workspace");
}

/// The links of a page to files of the repository: path and heading. Links to other sites are left out.
fn links(text: &str) -> Vec<(&str, &str)> {
    let targets = text.split("](").skip(1).filter_map(|rest| Some(rest.split_once(')')?.0));
    let own = targets.filter(|target| !target.contains("://"));
    own.map(|target| target.split_once('#').unwrap_or((target, ""))).collect()
}

/// The name under which a heading can be linked to.
fn anchor(heading: &str) -> String {
    let kept = heading
        .to_lowercase()
        .chars()
        .filter(|c| c.is_alphanumeric() || " -_".contains(*c))
        .collect::<String>();
    kept.replace(' ', "-")
}

#[test]
fn links_between_documents_lead_to_files_and_headings() {
    let mut pages: Vec<PathBuf> = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"]
        .map(|name| repository().join(name))
        .into();
    for folder in ["docs", "docs/adr"] {
        let entries = std::fs::read_dir(repository().join(folder)).expect("the folder can be read");
        let paths = entries.map(|entry| entry.expect("the folder can be read").path());
        pages.extend(paths.filter(|path| path.extension().is_some_and(|extension| extension == "md")));
    }
    let mut followed = 0;
    for path in &pages {
        let text = std::fs::read_to_string(path).expect("the page can be read");
        for (file, heading) in links(&text) {
            let linked =
                if file.is_empty() { path.clone() } else { path.parent().expect("a folder").join(file) };
            assert!(linked.exists(), "{}: there is no {file}", path.display());
            if !heading.is_empty() {
                let text = std::fs::read_to_string(&linked).expect("the linked page can be read");
                let mut headings = text.lines().filter(|line| line.starts_with('#'));
                let found = headings.any(|line| anchor(line.trim_start_matches('#').trim()) == heading);
                assert!(found, "{}: {file} has no heading #{heading}", path.display());
            }
            followed += 1;
        }
    }
    assert!(followed >= 20, "{followed} links");
}
