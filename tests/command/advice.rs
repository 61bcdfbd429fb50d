//! The advice if a program does not fit into memory: each command that is printed fits.

use crate::TRAINYARD;
use testing::workplace::Workplace;

const GPT2: &str =
    "compile testdata/gpt2-fresh.onnx --train text.txt --microbatch 8 --steps 1 -o run --force";

/// A row of the advice.
#[derive(Debug)]
struct Row {
    /// The predicted milliseconds of a step.
    milliseconds: f64,
    /// The whole line.
    says: String,
    /// The arguments after the program's name.
    command: String,
}

/// The rows of the advice for a command that does not fit.
fn advice(place: &Workplace, command: &str) -> Vec<Row> {
    let ended = place.run(command);
    assert_eq!(ended.status.code(), Some(2), "{}", ended.stderr);
    let mut lines = ended.stderr.lines().skip_while(|line| !line.contains("these commands fit")).skip(1);
    let mut rows = vec![];
    while let (Some(says), Some(command)) = (lines.next(), lines.next()) {
        let (time, _) = says.trim_start_matches("  = ").split_once(", ").expect("a row begins with its time");
        let (number, unit) = time.split_once(' ').expect("a time has a unit");
        let scale = [("s", 1e3), ("ms", 1.0), ("µs", 1e-3)].into_iter().find(|(name, _)| *name == unit);
        let milliseconds = number.parse::<f64>().expect("a number") * scale.expect("a unit of time").1;
        let command = command.strip_prefix("  =   trainyard ").expect("a row has a command").to_owned();
        rows.push(Row { milliseconds, says: says.to_owned(), command });
    }
    assert!(rows.len() <= 10 && rows.is_sorted_by_key(|row| row.milliseconds), "{rows:?}\n{}", ended.stderr);
    rows
}

/// Runs the command of each row. Each must fit into `budget` bytes.
fn check_rows(place: &Workplace, rows: &[Row], budget: u64) {
    for row in rows {
        place.succeed(&row.command);
        let plan: serde_json::Value = serde_json::from_slice(&place.read("run/plan.json")).expect("JSON");
        let peak = plan["memory"]["peak"].as_u64().expect("a number of bytes");
        assert!(peak <= budget, "{row:?} takes {peak}");
        assert_eq!(plan["memory"]["host"].as_u64() > Some(0), row.says.contains("on the host"), "{row:?}");
    }
}

/// Whether a row has these flags in its command, and the line does or does not say that losses change.
fn has(rows: &[Row], flags: &str, changes: bool) -> bool {
    let flags: Vec<&str> = flags.split("--").map(str::trim).collect();
    let own = |row: &Row| {
        let given: Vec<&str> = row.command.split("--").map(str::trim).collect();
        flags.iter().all(|flag| flag.is_empty() || given.contains(flag))
    };
    rows.iter().any(|row| own(row) && row.says.contains("the losses change") == changes)
}

/// The smallest budget that recomputation alone fits into.
fn smallest(place: &Workplace, flags: &str) -> u64 {
    let stderr = place.run(&format!("{GPT2} {flags} --memory 1KiB")).stderr;
    let (_, text) = stderr.split_once("the smallest budget that fits is --memory ").expect("it is named");
    let number: String = text.chars().take_while(char::is_ascii_digit).collect();
    let unit = if text[number.len()..].starts_with("KiB") { 1 << 10 } else { 1 };
    number.parse::<u64>().expect("a number") * unit
}

#[test]
fn each_command_of_the_advice_fits() {
    let place = Workplace::with_text(TRAINYARD, 20_000);
    let budget = smallest(&place, "") * 95 / 100;
    let rows = advice(&place, &format!("{GPT2} --memory device={budget}B"));
    check_rows(&place, &rows, budget);
    assert!(has(&rows, "--offload auto", false), "{rows:?}");
    assert!(has(&rows, "--microbatch 1 --global-batch 8", false), "{rows:?}");
    assert!(has(&rows, "--optimizer adamw:moments=8bit", true), "{rows:?}");
}

#[test]
fn states_are_divided_over_data_ranks_where_there_are_some() {
    let place = Workplace::with_text(TRAINYARD, 20_000);
    let budget = smallest(&place, "--mesh dp=2") * 95 / 100;
    let rows = advice(&place, &format!("{GPT2} --mesh dp=2 --memory {budget}B"));
    check_rows(&place, &rows, budget);
    assert!(has(&rows, "--zero 3", false), "{rows:?}");
}

#[test]
fn a_pipeline_gets_commands_that_fit() {
    let place = Workplace::with_text(TRAINYARD, 20_000);
    let stages = "--mesh pp=2 --global-batch 32";
    let budget = smallest(&place, stages) * 95 / 100;
    let rows = advice(&place, &format!("{GPT2} {stages} --memory {budget}B"));
    check_rows(&place, &rows, budget);
    assert!(has(&rows, "--mesh pp=2 --microbatch 4 --global-batch 32", false), "{rows:?}");
}

/// If no single change fits, the rows combine several.
#[test]
fn changes_are_combined_where_one_does_not_do() {
    let place = Workplace::with_text(TRAINYARD, 20_000);
    let budget = smallest(&place, "") * 15 / 100;
    let rows = advice(&place, &format!("{GPT2} --memory {budget}B"));
    check_rows(&place, &rows, budget);
    assert!(has(&rows, "--offload auto --microbatch 1 --global-batch 8", false), "{rows:?}");
    // A change that is not needed is left out.
    assert!(!has(&rows, "--offload auto --microbatch 1 --global-batch 8", true), "{rows:?}");
}

/// A command has the settings of the config file, with those that the advice changes.
#[test]
fn flags_of_a_config_file_are_kept() {
    let place = Workplace::with_text(TRAINYARD, 20_000);
    place.write("own.toml", b"microbatch = 8\nclip = 0.5\n");
    let command = GPT2.replace("--microbatch 8", "--config own.toml");
    let budget = smallest(&place, "--clip 0.5") * 95 / 100;
    let rows = advice(&place, &format!("{command} --memory={budget}B"));
    check_rows(&place, &rows, budget);
    assert!(has(&rows, "--microbatch 1 --global-batch 8", false), "{rows:?}");
    assert!(!has(&rows, "--update early", false), "clipping waits for all gradients: {rows:?}");
    assert!(rows.iter().all(|row| row.command.contains("--clip 0.5")), "{rows:?}");
}

/// A command has the settings of DeepSpeed's JSON as flags, and not a flag that excludes one of the advice.
#[test]
fn flags_that_a_change_excludes_are_left_out() {
    let place = Workplace::with_text(TRAINYARD, 20_000);
    place.write("ds.json", br#"{"train_micro_batch_size_per_gpu": 8, "gradient_clipping": 0.5}"#);
    let command = GPT2.replace("--microbatch 8", "--config ds.json --precision fp32");
    let budget = smallest(&place, "--clip 0.5") * 70 / 100;
    let rows = advice(&place, &format!("{command} --memory {budget}B"));
    check_rows(&place, &rows, budget);
    assert!(has(&rows, "--microbatch 8 --clip 0.5 --bf16", true), "{rows:?}");
    assert!(has(&rows, "--precision fp32 --offload auto", false), "{rows:?}");
    let is_excluded = |row: &Row| row.command.contains("--precision") == row.command.contains("--bf16");
    assert!(!rows.iter().any(is_excluded), "{rows:?}");
    assert!(!rows.iter().any(|row| row.command.contains("--config")), "{rows:?}");
}

#[test]
fn a_budget_that_nothing_fits_has_no_command() {
    let place = Workplace::with_text(TRAINYARD, 20_000);
    let ended = place.run(&format!("{GPT2} --memory 1KiB"));
    assert_eq!(ended.status.code(), Some(2));
    assert!(ended.stderr.contains("= no other flags that were tried make it fit"), "{}", ended.stderr);
}
