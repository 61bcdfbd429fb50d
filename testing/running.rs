//! A run of the binary in progress, which tests watch, stop or kill.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::workplace::Ended;

/// The most time of a run in a test, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(300);

/// A run in progress.
pub struct Running {
    child: Child,
    errors: BufReader<ChildStderr>,
    text: String,
}

impl Running {
    /// Starts a command. It receives the signals that the tests may have been started to ignore, as in the background of a shell.
    #[allow(unsafe_code)]
    pub fn start(mut command: Command) -> Self {
        let reset = || {
            for signal in [libc::SIGHUP, libc::SIGINT] {
                // SAFETY: the call sets a signal to its default, and is allowed between fork and exec.
                unsafe { libc::signal(signal, libc::SIG_DFL) };
            }
            Ok(())
        };
        // SAFETY: the function makes two calls to the system, and neither allocates nor locks.
        unsafe { command.pre_exec(reset) };
        let mut child =
            command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("it can be started");
        let errors = BufReader::new(child.stderr.take().expect("standard error is piped"));
        Self { child, errors, text: String::new() }
    }

    /// Waits until standard error has a line with this beginning.
    pub fn wait_for_line(&mut self, beginning: &str) {
        loop {
            let before = self.text.len();
            let read = self.errors.read_line(&mut self.text).expect("standard error can be read");
            assert!(read > 0, "it ended before it said {beginning:?}:\n{}", self.text);
            if self.text[before..].starts_with(beginning) {
                return;
            }
        }
    }

    /// Waits until the metrics of a run have `steps` steps.
    pub fn wait_for_steps(&mut self, file: &Path, steps: usize) {
        // The first line names the counting of the steps.
        let lines = || fs::read(file).map_or(0, |bytes| bytes.iter().filter(|byte| **byte == b'\n').count());
        self.wait_until(|| lines() > steps, &format!("{} has no {steps} steps", file.display()));
    }

    /// Waits until a checkpoint is whole. It is written beside the training, so on a busy machine some steps later.
    pub fn wait_for_checkpoint(&mut self, folder: &Path) {
        self.wait_until(|| folder.is_dir(), &format!("there is no {}", folder.display()));
    }

    /// Waits until something holds, which it must while the run goes on.
    fn wait_until(&mut self, holds: impl Fn() -> bool, otherwise: &str) {
        let begun = Instant::now();
        while !holds() {
            let ended = self.child.try_wait().expect("the process can be asked for");
            assert!(ended.is_none() && begun.elapsed() < PATIENCE, "{otherwise}");
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Sends a signal that the run can catch.
    pub fn signal(&self, name: &str) {
        // `kill` is built into the shell; a small system may have no other.
        let sent = Command::new("sh").args(["-c", &format!("kill -{name} {}", self.child.id())]).status();
        assert!(sent.expect("sh can be started").success());
    }

    /// Kills the run in the middle of its work.
    pub fn kill(mut self) {
        self.child.kill().expect("it can be killed");
        assert_eq!(self.wait().status.signal(), Some(9), "it ended before it was killed");
    }

    /// Kills it unless it has ended.
    pub fn kill_if_running(mut self) -> Ended {
        self.child.kill().expect("it can be killed");
        self.wait()
    }

    /// A line of /proc/PID/status, in bytes; `None` when the process has ended.
    pub fn memory(&self, field: &str) -> Option<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
        let kibibytes: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
        Some(kibibytes << 10)
    }

    /// The resident bytes of its maps of a file; `None` when it maps no such file.
    pub fn resident_of(&self, file: &str) -> Option<u64> {
        let maps = fs::read_to_string(format!("/proc/{}/smaps", self.child.id())).ok()?;
        let (mut is_of_file, mut found) = (false, None);
        for line in maps.lines() {
            // A map begins with a line that ends with its file, if it has one. The lines of its numbers end with another word.
            is_of_file = line.ends_with(file) || is_of_file && line.contains(" kB");
            if let Some(resident) = line.strip_prefix("Rss:").filter(|_| is_of_file) {
                let kibibytes: u64 = resident.trim().strip_suffix(" kB")?.parse().ok()?;
                found = Some(found.unwrap_or(0) + (kibibytes << 10));
            }
        }
        found
    }

    /// Whether it is still running.
    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("the process can be asked for").is_none()
    }

    /// Waits for its end.
    pub fn wait(mut self) -> Ended {
        self.errors.read_to_string(&mut self.text).expect("standard error can be read");
        let status = self.child.wait().expect("the process can be waited for");
        Ended { status, stdout: String::new(), stderr: self.text }
    }
}
