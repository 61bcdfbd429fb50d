#!/usr/bin/env python3
"""Breaks the meeting of ranks in one place after the other, and fails unless a model fails each time. Needs Python and Rust.

    python3 runtime/comm/loom/broken.py
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

COMM = Path(__file__).resolve().parent.parent
# Seconds after which a break counts as not found.
LONGEST = 100

# What is broken, the file, the text that is replaced where it first stands, and its replacement.
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
        "a rank that panics inside breaks no meeting",
        "meeting.rs",
        "board.meeting(self.group).broken = true;",
        "",
    ),
    (
        "a broken meeting stays broken",
        "meeting.rs",
        "(meeting.middle, meeting.middle_agenda, meeting.broken) = (0, None, false);",
        "(meeting.middle, meeting.broken) = (0, false);",
    ),
    (
        "the middle is over when the first has come to it",
        "meeting.rs",
        "if meeting.middle == self.group.len() {",
        "if meeting.middle == 1 {",
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
        "a rank that fails wakes nobody",
        "meeting.rs",
        "board.ended.get_or_insert(CommError::Ended { rank });\n        self.changed.notify_all();",
        "board.ended.get_or_insert(CommError::Ended { rank });",
    ),
    (
        "a rank that panics ends nobody",
        "at_work.rs",
        "if panicking() {",
        "if false {",
    ),
]


def models_pass(comm):
    """Whether the models of a folder pass. Raises for code that does not compile."""
    command = ["cargo", "test", "--locked", "--manifest-path", str(comm / "loom/Cargo.toml")]
    built = subprocess.run([*command, "--no-run"], capture_output=True, text=True)
    if built.returncode != 0:
        raise SystemExit(f"it does not compile:\n{built.stderr}")
    try:
        tested = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST)
    except subprocess.TimeoutExpired:
        return True
    return tested.returncode == 0


def main():
    missed = []
    with tempfile.TemporaryDirectory() as folder:
        comm = Path(folder) / "comm"
        shutil.copytree(COMM, comm, ignore=shutil.ignore_patterns("target"))
        os.environ.setdefault("CARGO_TARGET_DIR", str(COMM / "loom/target"))
        for name, file, text, replacement in BREAKS:
            path = comm / file
            whole = path.read_text()
            if text not in whole:
                raise SystemExit(f"{file} has no place for `{name}`: {text}")
            path.write_text(whole.replace(text, replacement, 1))
            found = not models_pass(comm)
            print(f"{'found' if found else 'MISSED'}: {name}", flush=True)
            missed += [] if found else [name]
            path.write_text(whole)
    sys.exit(bool(missed))


if __name__ == "__main__":
    main()
