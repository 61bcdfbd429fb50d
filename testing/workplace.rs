//! The binary, run in a folder of its own.
//!
//! The repository's `testdata` is linked into the folder, and every path that is given is relative to it, so that what
//! the binary says of paths is the same wherever the tests run.

use crate::testdata;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Output, Stdio};

/// A folder to run the binary in.
pub struct Workplace {
    folder: tempfile::TempDir,
    binary: PathBuf,
}

/// The end of a run.
pub struct Ended {
    /// The exit status of the process.
    pub status: ExitStatus,
    /// All of standard output, if it was collected and is text.
    pub stdout: String,
    /// All of standard error.
    pub stderr: String,
}

impl Workplace {
    /// An empty folder for runs of this binary, which is `env!("CARGO_BIN_EXE_trainyard")` in a test of the main package.
    pub fn new(binary: impl Into<PathBuf>) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder can be made");
        std::os::unix::fs::symlink(testdata(""), folder.path().join("testdata")).expect("a link can be made");
        Self { folder, binary: binary.into() }
    }

    /// The same with `text.txt`, so many bytes of real text.
    pub fn with_text(binary: impl Into<PathBuf>, bytes: usize) -> Self {
        let place = Self::new(binary);
        let text = place.read("testdata/kjv.txt");
        place.write("text.txt", &text[..bytes]);
        place
    }

    /// The path of a file of the folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Reads a file of the folder.
    pub fn read(&self, name: &str) -> Vec<u8> {
        fs::read(self.path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    /// The files with the states of a checkpoint of a run, in one: those of all ranks in their order.
    pub fn states(&self, run: &str, step: u64) -> Vec<u8> {
        let folder = format!("{run}/checkpoints/step-{step}");
        let entries = fs::read_dir(self.path(&folder)).unwrap_or_else(|error| panic!("{folder}: {error}"));
        let names = entries.map(|entry| entry.expect("the folder can be read").file_name());
        let mut names: Vec<String> = names.map(|name| name.to_string_lossy().into_owned()).collect();
        names.retain(|name| name.starts_with("state"));
        names.sort();
        names.iter().flat_map(|name| self.read(&format!("{folder}/{name}"))).collect()
    }

    /// Writes a file of the folder.
    pub fn write(&self, name: &str, bytes: &[u8]) {
        fs::write(self.path(name), bytes).unwrap_or_else(|error| panic!("{name}: {error}"));
    }

    /// The command `trainyard ARGUMENTS`, the arguments split at spaces.
    pub fn command(&self, arguments: &str) -> Command {
        self.command_of(&self.binary, arguments)
    }

    /// Another program, in this folder.
    pub fn command_of(&self, program: &Path, arguments: &str) -> Command {
        let mut command = Command::new(program);
        command.args(arguments.split_whitespace()).current_dir(self.folder.path());
        command.env("NO_COLOR", "1").env_remove("RUST_BACKTRACE").stdin(Stdio::null());
        command
    }

    /// Runs the binary to its end.
    pub fn run(&self, arguments: &str) -> Ended {
        Ended::of(self.command(arguments).output().expect("the binary can be started"))
    }

    /// Runs the binary to its end within limits: commands of a shell, of which the last may be one that runs another, such as
    /// `ulimit -v 1000000; exec timeout 60`.
    pub fn run_within(&self, limits: &str, arguments: &str) -> Ended {
        let mut command = self.command_of(Path::new("bash"), "-c");
        command.arg(format!("{limits} \"$0\" \"$@\"")).arg(&self.binary).args(arguments.split_whitespace());
        Ended::of(command.output().expect("bash can be started"))
    }

    /// Runs the binary to its end, which must be a success.
    #[track_caller]
    pub fn succeed(&self, arguments: &str) -> Ended {
        let ended = self.run(arguments);
        assert_eq!(ended.status.code(), Some(0), "trainyard {arguments}\n{}", ended.stderr);
        ended
    }

    /// Every file and folder but `testdata`, with the bytes of the files.
    pub fn contents(&self) -> BTreeMap<String, Option<Vec<u8>>> {
        let mut found = BTreeMap::new();
        let mut folders = vec![self.folder.path().to_owned()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).expect("the folder can be read") {
                let path = entry.expect("the folder can be read").path();
                let name =
                    path.strip_prefix(self.folder.path()).expect("it is in the folder").display().to_string();
                match (name.as_str(), path.is_dir()) {
                    ("testdata", _) => continue,
                    (_, true) => folders.push(path),
                    (_, false) => drop(found.insert(name.clone(), Some(self.read(&name)))),
                }
                found.entry(name).or_insert(None);
            }
        }
        found
    }

    /// The programs in a folder of `--dump`, by the names of their files.
    pub fn dumped(&self, folder: &str) -> BTreeMap<String, Vec<u8>> {
        let entries = fs::read_dir(self.path(folder)).expect("the command dumps programs");
        let file = |entry: std::io::Result<fs::DirEntry>| {
            let name = entry.expect("the folder can be read").file_name().to_string_lossy().into_owned();
            let program = self.read(&format!("{folder}/{name}"));
            (name, program)
        };
        entries.map(file).collect()
    }

    /// The lines of the steps in `metrics.jsonl` of a run.
    pub fn metrics(&self, run: &str) -> Vec<serde_json::Value> {
        let text = String::from_utf8(self.read(&format!("{run}/metrics.jsonl"))).expect("JSON is UTF-8");
        let line = |line: &str| serde_json::from_str(line).unwrap_or_else(|error| panic!("{line}: {error}"));
        text.lines().map(line).filter(|line: &serde_json::Value| line.get("counting").is_none()).collect()
    }

    /// The steps of a run's checkpoints.
    pub fn checkpoints(&self, run: &str) -> Vec<u64> {
        let Ok(entries) = fs::read_dir(self.path(run).join("checkpoints")) else { return vec![] };
        let step = |name: String| name.strip_prefix("step-")?.parse().ok();
        let names = entries.map(|entry| entry.expect("it can be read").file_name().into_string());
        let mut steps: Vec<u64> = names.filter_map(|name| step(name.expect("it is UTF-8"))).collect();
        steps.sort_unstable();
        steps
    }
}

impl Ended {
    /// The end of a process whose output was collected.
    pub fn of(output: Output) -> Self {
        let stderr = String::from_utf8(output.stderr).expect("standard error is UTF-8");
        let stdout = String::from_utf8(output.stdout).unwrap_or_default();
        Self { status: output.status, stdout, stderr }
    }

    /// Standard error from the first error on.
    pub fn errors(&self) -> String {
        assert!(!self.stderr.contains("panicked"), "{}", self.stderr);
        let lines = self.stderr.lines().skip_while(|line| !line.starts_with("error"));
        lines.map(|line| format!("{line}\n")).collect()
    }
}
