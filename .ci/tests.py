#!/usr/bin/env python3
"""Runs the ignored tests whose reason is one of those given.

    python3 .ci/tests.py [--program NAME] [--without MODULE]… [--list] REASON… [-- ARGUMENT…]

The reason is the text of `#[ignore = "…"]`. A test is found in the sources by it, and run by its full name. So a test that is renamed
or added is never left out. It fails if a reason has no test, if an ignored test has no reason, or if another number of tests ran.
`--program` takes the tests of one program, such as `devices`; `--without` leaves out those of a module. `--list` prints the names
alone. Arguments behind `--` go to the test programs. A test of this file: `python3 .ci/tests.py --test`.
"""

import argparse
import json
import re
import shlex
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# An attribute with a reason, other attributes and comments, and the function.
IGNORED = re.compile(r'#\[ignore = "([^"]*)"\][^\n]*\n(?:\s*(?:#\[|//)[^\n]*\n)*\s*(?:pub(?:\([^)]*\))? )?fn (\w+)')
# Reasons of tests that no part of `.ci/run` runs: docs/GPU.md and CONTRIBUTING.md say when they were.
ELSEWHERE = {
    "needs a GPU",
    "needs cuDNN",
    "needs a GPU and cuDNN",
    "needs the wheels of testdata/requirements-libraries.txt, 1.5 GB",
    "takes hours",
}


def reasons(main: Path) -> dict[str, list[tuple[str, str]]]:
    """Returns the ignored tests of the program with this main file: by the function's name, the module and the reason of each."""
    # `tests/half.rs` has its modules in `tests/half/`; `main.rs` and `lib.rs` have them beside them.
    folder = main.parent if main.stem in ("main", "lib") else main.with_suffix("")
    found = defaultdict(list)
    for file in {main, *folder.rglob("*.rs")}:
        inner = file.with_suffix("").relative_to(folder).parts if file != main else ()
        module = "::".join(inner[:-1] if inner and inner[-1] == "mod" else inner)
        for reason, name in IGNORED.findall(file.read_text()):
            found[name].append((module, reason))
    return found


def reason(test: str, found: dict[str, list[tuple[str, str]]]) -> str | None:
    """Returns the reason of a test, which is named by its path: that of the function whose module it names, or of the only one."""
    module, _, name = test.rpartition("::")
    # An inline module such as `tests` is not a file.
    fits = [reason for own, reason in found.get(name, []) if own == module or not own or module.startswith(f"{own}::")]
    return fits[0] if len(set(fits)) == 1 else None


def programs(selection: list[str]) -> list[tuple[Path, Path]]:
    """Returns the test programs of the workspace, built, each with its main file."""
    command = ["cargo", "test", "--workspace", *selection, "--no-run", "--message-format=json-render-diagnostics"]
    built = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    messages = [json.loads(line) for line in built.stdout.splitlines() if line.startswith("{")]
    tests = [message for message in messages if message.get("executable") and message["profile"]["test"]]
    return [(Path(test["executable"]), Path(test["target"]["src_path"])) for test in tests]


def ignored(program: Path) -> list[str]:
    """Returns the names of a program's ignored tests."""
    listed = subprocess.run([program, "--list", "--ignored", "--format", "terse"], capture_output=True, text=True, check=True)
    return [line.removesuffix(": test") for line in listed.stdout.splitlines() if line.endswith(": test")]


def chosen(all_programs: list[tuple[Path, Path]], wanted: set[str], without: list[str]) -> list[str]:
    """Returns the names of the tests with these reasons, one for each test, but for those of some modules."""
    names, others, unused = [], set(), set(wanted)
    for program, main in all_programs:
        found = reasons(main)
        for test in ignored(program):
            own = reason(test, found)
            if own is None:
                sys.exit(f"`{test}` of {main.relative_to(ROOT)} is ignored, and no reason was found for it")
            unused.discard(own)
            is_left_out = any(test.startswith(f"{module}::") for module in without)
            if own in wanted and not is_left_out:
                names.append(test)
            else:
                others.add(test)
    if unused:
        sys.exit(f"no test is ignored for: {', '.join(sorted(unused))}")
    if both := others & set(names):
        sys.exit(f"two programs have tests of one name and different reasons: {', '.join(sorted(both))}")
    return names


def run(names: list[str], selection: list[str], arguments: list[str]) -> int:
    """Runs the tests, and returns the exit status."""
    tests = ["--", "--ignored", "--exact", *sorted(set(names)), *arguments]
    command = ["cargo", "test", "--workspace", *selection, "--no-fail-fast", *tests]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    passed = 0
    for line in process.stdout:
        print(line, end="", flush=True)
        if match := re.match(r"test result: .*? (\d+) passed; (\d+) failed", line):
            passed += int(match[1]) + int(match[2])
    status = process.wait()
    if status == 0 and passed != len(names):
        print(f"{passed} tests ran, and {len(names)} have one of these reasons", file=sys.stderr)
        return 1
    return status


def unknown(parts: str, sources: list[str]) -> set[str]:
    """Returns the reasons in sources that no part runs."""
    every = {reason for source in sources for reason, _ in IGNORED.findall(source)}
    run = {word for command in re.findall(r"tests\.py (.*)", parts) for word in shlex.split(command)}
    return every - run - ELSEWHERE


def test() -> None:
    """Checks that reasons are read, that a module of the same function name is told apart, and that parts run all reasons."""
    text = '#[test]\n#[ignore = "longer"] // why\n#[cfg(unix)]\n// A comment.\npub(crate) fn one() {}\n#[ignore]\nfn two() {}\n'
    assert IGNORED.findall(text) == [("longer", "one")]
    found = {"one": [("first", "longer"), ("second", "night: large")], "three": [("", "longer")]}
    assert reason("first::one", found) == "longer"
    assert reason("second::tests::one", found) == "night: large"
    assert reason("tests::three", found) == "longer"
    assert reason("third::one", found) is None and reason("two", found) is None
    listed = subprocess.run(["git", "ls-files", "*.rs"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    sources = [(ROOT / file).read_text() for file in listed]
    parts = (ROOT / ".ci/parts.sh").read_text().replace("\\\n", "")
    assert unknown(parts, sources) == set(), unknown(parts, sources)
    assert unknown(parts.replace("night: large", "night: small"), sources) == {"night: large"}


def main() -> int:
    if sys.argv[1:] == ["--test"]:
        test()
        return 0
    given = sys.argv[1:]
    end = given.index("--") if "--" in given else len(given)
    given, arguments = given[:end], given[end + 1 :]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reasons", nargs="+", metavar="REASON")
    parser.add_argument("--program", metavar="NAME")
    parser.add_argument("--without", metavar="MODULE", action="append", default=[])
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args(given)
    selection = ["--test", options.program] if options.program else []
    names = chosen(programs(selection), set(options.reasons), options.without)
    if options.list:
        print("\n".join(names))
        return 0
    return run(names, selection, arguments)


if __name__ == "__main__":
    sys.exit(main())
