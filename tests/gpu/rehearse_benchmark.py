#!/usr/bin/env python3
"""Rehearses the benchmark on a processor with contenders that fail: the others' rows are there, and each row says why.

    rehearse_benchmark.py [--all]     with the Python that has PyTorch; TRAINYARD names the binary, as for run.sh

A run takes 20 seconds, most of which PyTorch needs to start: without --all there is one.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent


def rows(planted: dict[str, str]) -> tuple[dict[str, dict], dict]:
    """The rows of a rehearsal with these faults, by their contenders, and all that it wrote."""
    with tempfile.TemporaryDirectory(prefix="rehearsal-") as folder:
        faults = ", ".join(f"{contender}={fault}" for contender, fault in planted.items())
        environment = {key: value for key, value in os.environ.items() if key != "OUT"}
        done = subprocess.run(
            ["bash", str(HERE / "run.sh"), "124m", "--rehearse", "--sequence", "32", "--output", f"{folder}/results"],
            env=environment | {"PYTHON": sys.executable, "PLANT": faults},
            capture_output=True,
            text=True,
        )
        found = json.loads((Path(folder) / "results/124m.json").read_text())
        assert done.returncode == 1 and not found["passed"], done.stdout
        assert (Path(folder) / "results.tar.gz").exists()
    return {f"{row['program'].removeprefix('PyTorch ')} {row['precision']}": row for row in found["rows"]}, found


def check(planted: dict[str, str], errors: dict[str, str], survivors: dict[str, int]) -> None:
    """Each row with a fault has its error; each survivor has so many turns."""
    found, all_found = rows(planted)
    assert set(found) == set(errors) | set(survivors), f"rows {list(found)}"
    for contender, error in errors.items():
        row = found[contender]
        assert error in (row["error"] or "") and row["tokens_per_s"] is None, f"{contender}: {row}"
        label = f"{row['model']}, sequence {row['sequence']}: {row['program']}, {row['precision']}"
        failed = [made for made in all_found["checks"] if not made["passed"] and made["name"] == label]
        # Too little memory is a result.
        assert len(failed) == (0 if planted.get(contender) == "memory" else 1), f"{contender}: {all_found['checks']}"
    for contender, turns in survivors.items():
        row = found[contender]
        assert row["error"] is None and row["tokens_per_s"] > 0 and len(row["turns"]) == turns, f"{contender}: {row}"
    print(f"ok     {planted}: {survivors} measured", flush=True)


if __name__ == "__main__":
    check(
        {"eager autocast": "raise", "compiled autocast": "die", "compiled bf16": "memory"},
        {"eager autocast": "ValueError: planted", "compiled autocast": "ended by SIGKILL", "compiled bf16": "allocate memory"},
        {"Trainyard bf16": 2, "eager bf16": 2},
    )
    if "--all" in sys.argv:
        check(
            {"trainyard": "raise", "eager autocast": "die", "compiled autocast": "raise", "compiled bf16": "raise"},
            {
                "Trainyard bf16": "planted",
                "eager autocast": "ended by SIGKILL",
                "compiled autocast": "ValueError: planted",
                "compiled bf16": "ValueError: planted",
            },
            {"eager bf16": 2},
        )
