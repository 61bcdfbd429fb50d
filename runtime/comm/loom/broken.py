#!/usr/bin/env python3
"""Breaks the meeting of ranks in one place after the other, and fails unless a model fails each time. Needs Python and Rust.

The models of the whole code must pass first. A break that takes too long ends the check with an error.

    python3 runtime/comm/loom/broken.py
"""

import json
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

COMM = Path(__file__).resolve().parent.parent
# The most seconds that the models may take; they take 10.
LONGEST = 100

# For each break: its name, the file, the text that is replaced where it first stands, and the replacement.
BREAKS = [
    (
        "a rank goes while others read what it lent",
        "meeting.rs",
        "while board.meeting(self.group).inside > 0 {",
        "while false {",
    ),
    (
        "a rank that goes wakes nobody",
        "meeting.rs",
        "inside -= 1;\n        self.world.changed.notify_all();",
        "inside -= 1;",
    ),
    (
        "a rank of a complete group ends with an error, and does not stay until the others have read",
        "meeting.rs",
        "if meeting.opened > before {",
        "if meeting.opened > before && ended.is_none() {",
    ),
    (
        "a group is complete one too early",
        "meeting.rs",
        "if meeting.here == group.len() {",
        "if meeting.here + 1 >= group.len() {",
    ),
    (
        "ranks of a complete group still count as waiting",
        "meeting.rs",
        "group.iter().for_each(|&member| self.sit(member, Seat::Busy));",
        "",
    ),
    (
        "nobody looks whether all wait for each other",
        "meeting.rs",
        "if self.ended.is_some() || self.seats.contains(&Seat::Busy) {",
        "if !self.seats.is_empty() {",
    ),
    (
        "a rank that leaves wakes nobody",
        "meeting.rs",
        "board.end_if_stuck();\n        self.changed.notify_all();",
        "board.end_if_stuck();",
    ),
    (
        "a rank that panics ends nobody",
        "at_work.rs",
        "if panicking() {",
        "if false {",
    ),
]


def build(comm, target):
    """Builds the models of a folder, and returns the path of the test program. Raises for code that does not compile."""
    command = ["cargo", "test", "--locked", "--no-run", "--message-format=json"]
    command += ["--manifest-path", str(comm / "loom/Cargo.toml"), "--target-dir", str(target)]
    built = subprocess.run(command, capture_output=True, text=True)
    if built.returncode != 0:
        raise SystemExit(f"it does not compile:\n{built.stderr}")
    programs = [json.loads(line).get("executable") for line in built.stdout.splitlines()]
    return next(program for program in reversed(programs) if program)


def models_pass(program):
    """Returns whether all models pass; the first that fails ends the others. Raises when the time is over."""
    with subprocess.Popen([program], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as tested:
        timer = threading.Timer(LONGEST, tested.kill)
        timer.start()
        failed = any(line.startswith("test ") and "FAILED" in line for line in tested.stdout)
        is_late = not timer.is_alive()
        timer.cancel()
        tested.kill()
    if is_late and not failed:
        raise SystemExit(f"the models took more than {LONGEST} seconds: neither passed nor failed")
    return not failed and tested.returncode == 0


def main():
    missed = []
    with tempfile.TemporaryDirectory() as folder:
        comm, target = Path(folder) / "comm", Path(folder) / "target"
        shutil.copytree(COMM, comm, ignore=shutil.ignore_patterns("target"))
        error = Path("program/device/comm_error.rs")
        (Path(folder) / error).parent.mkdir(parents=True)
        shutil.copy(COMM.parent / error, Path(folder) / error)
        if not models_pass(build(comm, target)):
            raise SystemExit("the models fail where nothing is broken")
        for name, file, text, replacement in BREAKS:
            path = comm / file
            whole = path.read_text()
            if text not in whole:
                raise SystemExit(f"{file} has no place for `{name}`: {text}")
            path.write_text(whole.replace(text, replacement, 1))
            found = not models_pass(build(comm, target))
            print(f"{'found' if found else 'MISSED'}: {name}", flush=True)
            missed += [] if found else [name]
            path.write_text(whole)
    sys.exit(bool(missed))


if __name__ == "__main__":
    main()
