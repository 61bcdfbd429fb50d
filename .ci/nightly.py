#!/usr/bin/env python3
"""Runs a command as a part of `.ci/run nightly`, and records it in docs/nightly.md.

    python3 .ci/nightly.py PART COMMAND ARGUMENT…

The part's row of the table is replaced, or added at the end. The other rows stay as they are, so that the parts of a night can be
run on several days. Exits with the status of the command. A test of this file: `python3 .ci/nightly.py --test`.
"""

import fcntl
import os
import re
import resource
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/nightly.md"
# Lines of a log that say why a part failed. The first kind that a log has is shown.
REASONS = [
    r"panicked at|^not known to fail",
    r"^error|Traceback \(most recent call last\)",
    r"FAILED|[Ff]ailed|differs?\b|\b[A-Z]\w*Error\b",
    r".",
]
# Lines in which cargo says its progress, right-aligned: they are no reasons.
PROGRESS = re.compile(r"^ +(?:Adding|Blocking|Building|Checking|Compiling|Doc-tests|Documenting|Downloaded|Downloading|Executable|Finished|"
    r"Fresh|Installing|Locking|Running|Updating) ")
# Lines after the first one, and characters of a line.
LINES, WIDTH = 2, 240


def processor() -> str:
    """Returns the name and the number of processors of this machine."""
    names = re.findall(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return f"{os.cpu_count()} × {names[0] if names else os.uname().machine}"


def commit() -> str:
    """Returns the commit that is checked out; `-dirty` if tracked files other than the record have changes."""
    git = lambda *words: subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True)
    changed = git("diff", "--quiet", "HEAD", "--", ":!docs/nightly.md").returncode != 0
    return git("rev-parse", "--short=8", "HEAD").stdout.strip() + ("-dirty" if changed else "")


def reason(log: str, status: int) -> list[str]:
    """Returns the failed tests of a log, and the first lines of its first failure."""
    # Paths of this machine mean nothing to a reader of the record.
    log = re.sub(r"/tmp/[\w.+-]*/?", "", log.replace(f"{ROOT}/", ""))
    lines = [line.strip() for line in log.splitlines() if line.strip() and not PROGRESS.match(line)]
    tests = re.findall(r"^test (\S+)(?: - should panic)? \.\.\. FAILED$", log, re.MULTILINE)
    found = [f"exit status {status}" + (": time limit" if status in (124, 137) else "")] + tests
    # A process that the limit kills has given no reason.
    if status in (124, 137) and not tests:
        return found + lines[-1 - LINES :]
    for pattern in REASONS:
        first = next((at for at, line in enumerate(lines) if re.search(pattern, line)), None)
        if first is not None:
            return found + lines[first : first + 1 + LINES]
    return found


def row(part: str, source: str, seconds: float, busy: float, result: str) -> str:
    """Returns a row of the table. `busy` is the time of all processors together."""
    date = time.strftime("%Y-%m-%d %H:%M", time.gmtime())
    return f"| {part} | {date} | {source} | {seconds:.0f} | {busy:.0f} | {processor()} | {result} |"


def cell(lines: list[str]) -> str:
    """Returns lines as one cell of a table in Markdown."""
    code = [line[:WIDTH].replace("`", "'").replace("|", "\\|") for line in lines]
    return "FAILED: " + "<br>".join(f"`{line}`" for line in code)


def replaced(page: str, part: str, new: str) -> str:
    """Returns the page with the part's row of the first table replaced, or added below the table's last row."""
    lines = page.splitlines()
    first = next(at for at, line in enumerate(lines) if line.startswith("| "))
    end = next((at for at in range(first, len(lines)) if not lines[at].startswith("| ")), len(lines))
    own = [at for at in range(first, end) if lines[at].startswith(f"| {part} |")]
    if own:
        lines[own[0]] = new
    else:
        lines.insert(end, new)
    return "\n".join(lines) + "\n"


def record(part: str, new: str) -> None:
    """Replaces a row of docs/nightly.md. Parts that run at the same time take turns."""
    with PAGE.open("r+") as page:
        fcntl.flock(page, fcntl.LOCK_EX)
        text = replaced(page.read(), part, new)
        page.seek(0)
        page.truncate()
        page.write(text)


def run(part: str, command: list[str]) -> int:
    """Runs the command, shows its output, and records its result. Returns its exit status."""
    # The sources that the command reads are those of its start.
    source = commit()
    start = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    log = []
    for line in process.stdout:
        sys.stdout.write(line)
        sys.stdout.flush()
        log.append(line)
    status = process.wait()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    result = "passed" if status == 0 else cell(reason("".join(log), status))
    record(part, row(part, source, time.monotonic() - start, used.ru_utime + used.ru_stime, result))
    return status


def test() -> None:
    """Checks the rows and reasons that a log gives, that `.ci/run` and the page have the same parts, and that each part has a
    function."""
    page = "# Night\n\n| part | result |\n| --- | --- |\n| a | old |\n| ab | old |\n\n| c | other |\n"
    assert replaced(page, "a", "| a | new |") == page.replace("| a | old |", "| a | new |")
    assert replaced(page, "c", "| c | new |") == page.replace("| ab | old |\n", "| ab | old |\n| c | new |\n")
    log = "test x::y ... FAILED\ntest x::z ... ok\nthread 'x::y' panicked at src/a.rs:1:2:\nleft: 1 | 2\n\nnote: more\nlast\n"
    found = reason(log, 101)
    assert found == ["exit status 101", "x::y", "thread 'x::y' panicked at src/a.rs:1:2:", "left: 1 | 2", "note: more"], found
    assert cell(found[:1] + found[3:4]) == "FAILED: `exit status 101`<br>`left: 1 \\| 2`"
    assert reason("one\ntwo FAILED\nthree\n", 1) == ["exit status 1", "two FAILED", "three"]
    assert reason("error: early\nlate\n", 124) == ["exit status 124: time limit", "error: early", "late"]
    assert reason("Traceback (most recent call last)\nnot known to fail:\nx\n", 1)[1:] == ["not known to fail:", "x"]
    assert reason("", 1) == ["exit status 1"]
    log = "    Blocking waiting for file lock\n    Finished `release` profile in 0.3s\nError: no folder\n  Downloading a\nlast\n"
    assert reason(log, 1) == ["exit status 1", "Error: no folder", "last"], reason(log, 1)
    assert reason("   Compiling a v1\n     Running tests/a.rs (a-1)\n", 124) == ["exit status 124: time limit"]
    script = (ROOT / ".ci/run").read_text()
    parts = {name: re.search(rf"^{name}=\((.*)\)$", script, re.MULTILINE)[1].split() for name in ("quick", "longer", "commands", "night")}
    rows = re.findall(r"^\| (\S+) \|", PAGE.read_text(), re.MULTILINE)
    assert rows == 2 * ["part", "---", *parts["night"]], rows
    functions = re.findall(r"^check_(\S+)\(\) \{$", (ROOT / ".ci/parts.sh").read_text(), re.MULTILINE)
    assert functions == [part for group in parts.values() for part in group], functions


if __name__ == "__main__":
    if sys.argv[1:] == ["--test"]:
        test()
    elif len(sys.argv) > 2:
        sys.exit(run(sys.argv[1], sys.argv[2:]))
    else:
        sys.exit(__doc__)
