//! The binary, run in a folder of its own.
//!
//! The repository's `testdata` is linked into the folder, and every path that is given is relative to it, so that what
//! the binary says of paths is the same wherever the tests run.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Output, Stdio};

/// A folder to run the binary in.
pub(crate) struct Workplace {
    folder: tempfile::TempDir,
}

/// What a run that has ended left behind.
pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    pub(crate) stderr: String,
}

impl Workplace {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder can be made");
        let testdata = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata");
        std::os::unix::fs::symlink(testdata, folder.path().join("testdata")).expect("a link can be made");
        Self { folder }
    }

    /// With `text.txt`, so many bytes of real text.
    pub(crate) fn with_text(bytes: usize) -> Self {
        let place = Self::new();
        let text = place.read("testdata/kjv.txt");
        place.write("text.txt", &text[..bytes]);
        place
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn read(&self, name: &str) -> Vec<u8> {
        fs::read(self.path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    pub(crate) fn write(&self, name: &str, bytes: &[u8]) {
        fs::write(self.path(name), bytes).unwrap_or_else(|error| panic!("{name}: {error}"));
    }

    /// The command `trainyard ARGUMENTS`, the arguments split at spaces.
    pub(crate) fn command(&self, arguments: &str) -> Command {
        self.command_of(Path::new(env!("CARGO_BIN_EXE_trainyard")), arguments)
    }

    /// Another program, in this folder.
    pub(crate) fn command_of(&self, program: &Path, arguments: &str) -> Command {
        let mut command = Command::new(program);
        command.args(arguments.split_whitespace()).current_dir(self.folder.path());
        command.env("NO_COLOR", "1").env_remove("RUST_BACKTRACE").stdin(Stdio::null());
        command
    }

    /// Runs to the end.
    pub(crate) fn run(&self, arguments: &str) -> Ended {
        Ended::of(self.command(arguments).output().expect("the binary can be started"))
    }

    /// Runs to the end, which is a good one.
    #[track_caller]
    pub(crate) fn succeed(&self, arguments: &str) -> Ended {
        let ended = self.run(arguments);
        assert_eq!(ended.status.code(), Some(0), "trainyard {arguments}\n{}", ended.stderr);
        ended
    }

    /// Every file and folder but `testdata`, with the bytes of the files.
    pub(crate) fn contents(&self) -> BTreeMap<String, Option<Vec<u8>>> {
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

    /// The lines of `metrics.jsonl` of a run.
    pub(crate) fn metrics(&self, run: &str) -> Vec<serde_json::Value> {
        let text = String::from_utf8(self.read(&format!("{run}/metrics.jsonl"))).expect("JSON is UTF-8");
        let line = |line: &str| serde_json::from_str(line).unwrap_or_else(|error| panic!("{line}: {error}"));
        text.lines().map(line).collect()
    }

    /// The steps of a run's checkpoints.
    pub(crate) fn checkpoints(&self, run: &str) -> Vec<u64> {
        let Ok(entries) = fs::read_dir(self.path(run).join("checkpoints")) else { return vec![] };
        let step = |name: String| name.strip_prefix("step-")?.parse().ok();
        let names = entries.map(|entry| entry.expect("it can be read").file_name().into_string());
        let mut steps: Vec<u64> = names.filter_map(|name| step(name.expect("it is UTF-8"))).collect();
        steps.sort_unstable();
        steps
    }
}

impl Ended {
    pub(crate) fn of(output: Output) -> Self {
        let stderr = String::from_utf8(output.stderr).expect("what the binary says is UTF-8");
        Self { status: output.status, stderr }
    }

    /// What it said from the first error on.
    pub(crate) fn errors(&self) -> String {
        assert!(!self.stderr.contains("panicked"), "{}", self.stderr);
        let lines = self.stderr.lines().skip_while(|line| !line.starts_with("error"));
        lines.map(|line| format!("{line}\n")).collect()
    }
}
