"""Checks families, each in a process of its own, and prints the table, the failures and results.json."""

import json
import multiprocessing
import time
import traceback

from check import Check
from export import EXPORTERS, WEIGHTS, export
from models import slug

TITLES = {"dynamo": "dynamo", "noopt": "dynamo, optimize=False", "legacy": "legacy"}


def sweep(arguments, families, chosen):
    """Checks the chosen variants of the chosen families. Returns the exit code."""
    started, results, table = time.time(), {}, []
    columns = [exporter for exporter in EXPORTERS if any(v.startswith(f"{exporter}-") for vs in chosen.values() for v in vs)]
    say(table, "| family | " + " | ".join(TITLES[exporter] for exporter in columns) + " |")
    say(table, "| --- " * (len(columns) + 1) + "|")
    waiting, running = list(chosen), {}
    while waiting or running:
        while waiting and len(running) < arguments.jobs:
            name = waiting.pop(0)
            running[name] = begin(arguments, name, families[name], chosen[name])
        for name in list(running):
            process, deadline = running[name]
            process.join(0.2)
            if process.is_alive() and time.time() < deadline:
                continue
            del running[name]
            results[name] = finish(arguments, name, process)
            say(table, row(name, results[name], columns))
    ordered = {name: results[name] for name in chosen}
    (arguments.folder / "results.json").write_text(json.dumps(ordered, indent=1) + "\n")
    (arguments.folder / "table.md").write_text("\n".join(table) + "\n")
    failed = [line for name, result in ordered.items() for line in failures(name, result)]
    seconds = time.time() - started
    count = sum(entry.get("exported", False) for result in ordered.values() for entry in result.values())
    print(f"\n{count} files of {len(chosen)} families in {seconds:.0f} s, {len(failed)} failures")
    print("\n".join(failed))
    known = failing(arguments.known) if arguments.known else set()
    new = [line for name, result in ordered.items() if name not in known for line in failures(name, result)]
    if known and new:
        print("\nnot known to fail:", *new, sep="\n")
    return 1 if new else 0


def failing(document):
    """Returns the families that fail in a table that was kept."""
    rows = (line for line in document.read_text().splitlines() if line.startswith("| ") and "**not" in line)
    return {line.split(" | ")[0].removeprefix("| ") for line in rows}


def say(table, line):
    """Prints a line of the table, and keeps it."""
    table.append(line)
    print(line, flush=True)


def begin(arguments, name, model, variants):
    """Starts a family's process, and returns it with its deadline."""
    process = multiprocessing.get_context("fork").Process(target=family, args=(arguments, name, model, variants))
    process.start()
    return process, time.time() + arguments.timeout


def family(arguments, name, model, variants):
    """Exports and checks one family, and writes the results to a file."""
    results = {}
    kept = arguments.folder / f"{slug(name)}.results.json"
    kept.unlink(missing_ok=True)
    try:
        # The values of a random module tell what a fresh one's file holds.
        needed = {*variants, *(variant.replace("-fresh", "-random") for variant in variants)}
        export(arguments.folder, name, model, sorted(needed), arguments.again)
        for variant in variants:
            try:
                results[variant] = Check(arguments.trainyard, arguments.folder, name, model, variant).result()
            except Exception:  # a fault of this script: reported as a failure of the family
                results[variant] = {"exported": True, "failures": [f"script: {traceback.format_exc().splitlines()[-1]}"]}
                (arguments.folder / f"{slug(name)}.{variant}.log").write_text(traceback.format_exc())
    except Exception:  # from the family's constructor
        results["all"] = {"exported": False, "reason": "not built", "failures": [traceback.format_exc().splitlines()[-1]]}
        (arguments.folder / f"{slug(name)}.log").write_text(traceback.format_exc())
    kept.write_text(json.dumps(results))


def finish(arguments, name, process):
    """Ends a family's process, and returns its results."""
    if process.is_alive():
        process.kill()
        process.join()
        return {"all": {"exported": False, "reason": "", "failures": [f"more than {arguments.timeout} s"]}}
    kept = arguments.folder / f"{slug(name)}.results.json"
    if not kept.exists():
        return {"all": {"exported": False, "reason": "", "failures": [f"the process ended with {process.exitcode}"]}}
    return json.loads(kept.read_text())


def failures(name, results):
    """Returns a line for each failure of a family."""
    return [f"{name}, {variant}: {line}" for variant, entry in results.items() for line in entry["failures"]]


def row(name, results, columns):
    """Returns a family's row of the table."""
    cells = []
    for exporter in columns:
        found = {w: cell(results[f"{exporter}-{w}"]) for w in WEIGHTS if f"{exporter}-{w}" in results}
        if "all" in results:
            cells.append("**not built**")
        elif len(set(found.values())) == 1:
            cells.append(next(iter(found.values())))
        else:
            cells.append("; ".join(f"{weights}: {words}" for weights, words in found.items()))
    return f"| {name} | " + " | ".join(cells) + " |"


def cell(entry):
    """Returns how one file fares, in words."""
    if not entry["exported"]:
        return "not exported"
    if any(line.startswith(("compile", "inspect", "script")) for line in entry["failures"]):
        return "**not compiled**"
    words = []
    parts = {"set": ("not trained", "trained though"), "names": ("unexpected", "missing", "other"), "warning": ("no message",)}
    for part, starts in parts.items():
        if any(line.startswith(starts) for line in entry["failures"]):
            words.append(f"**not {part}**")
        elif part == "set":
            words.append(part)
    if any(line.startswith("loss") for line in entry["failures"]):
        words.append("**not loss**")
    if "verify" in entry:
        words.append("step" if entry["verify"] else "**not step**")
    for kind in ("sgd", "adamw"):
        if any(line.startswith(kind) for line in entry["failures"]):
            words.append(f"**not {kind}**")
        elif kind in entry:
            words.append(f"{kind} (rounding)" if entry[kind]["rounding"] else kind)
    if entry.get("folded"):
        words.append(f"folded: {shortened(entry['folded'])}")
    if entry.get("unused"):
        words.append(f"unused: {shortened(entry['unused'])}")
    if entry.get("renamed"):
        words.append(f"renamed: {len(entry['renamed'])}")
    if entry.get("asked"):
        words.append(f"asked: {len(entry['asked'])}")
    if entry.get("lost"):
        words.append(f"lost: {entry['lost']}")
    return ", ".join(words)


def shortened(names):
    """Returns names without the wrapper's, at most three of them."""
    names = [f"`{name.removeprefix('model.').removeprefix('model.')}`" for name in names]
    return " ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
