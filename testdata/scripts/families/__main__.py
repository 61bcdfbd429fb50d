#!/usr/bin/env python3
"""Exports small models of many families by PyTorch's exporters and trains each beside PyTorch: docs/families.md.

    python testdata/scripts/families FOLDER [--trainyard BINARY] [--only NAME …] [--variant VARIANT …] [--subset ci] [--held-back]

Prints the table of docs/families.md, then a line for each failure. FOLDER keeps the exports, so that a second run exports nothing
again, and gets table.md and results.json.
The exit code is 1 if a check fails. Needs what testdata/requirements.txt lists.
"""

import argparse
import os
import sys
import warnings
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

from export import VARIANTS  # noqa: E402
from held_back import FAMILIES as HELD_BACK  # noqa: E402
from models import CI, FAMILIES  # noqa: E402
from table import sweep  # noqa: E402

ROOT = Path(__file__).resolve().parents[3]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--trainyard", default=ROOT / "target/release/trainyard", help="the binary to check")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="families whose name contains one of these")
    parser.add_argument("--variant", nargs="+", choices=VARIANTS, default=VARIANTS, metavar="VARIANT")
    parser.add_argument("--subset", choices=["ci"], help="the files that CI checks")
    parser.add_argument("--held-back", action="store_true", help="the families of held_back.py, which are not in the table")
    parser.add_argument("--jobs", type=int, default=1, help="families that are checked at the same time")
    parser.add_argument("--timeout", type=int, default=900, help="seconds for a family")
    parser.add_argument("--known", type=Path, metavar="FILE", help="a kept table: families that fail there may fail")
    parser.add_argument("--again", action="store_true", help="export again what is there")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    arguments.folder.mkdir(parents=True, exist_ok=True)
    chosen = {}
    families = HELD_BACK if arguments.held_back else FAMILIES
    for name in families:
        if arguments.only and not any(part.lower() in name.lower() for part in arguments.only):
            continue
        variants = [v for v in arguments.variant if arguments.subset is None or v in CI.get(name, [])]
        if variants:
            chosen[name] = variants
    sys.exit(sweep(arguments, families, chosen))


if __name__ == "__main__":
    main()
