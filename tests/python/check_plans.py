"""Replays memory plans of all kinds (`replay_plan.py`), and plants faults that the replay must find.

    python3 tests/python/check_plans.py --trainyard target/release/trainyard [--faults 4]

Each plan of GPT-2 must be without a fault. Then one place of it is changed, so many times for each kind of fault.
"""

import argparse
import copy
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

from replay_plan import Fault, replay

MODEL = Path(__file__).resolve().parents[2] / "testdata/gpt2-bytes.onnx"

# Planted faults. Each returns a changed plan, or none where the plan has no place for it.


def instructions(program):
    return [(section, index, own) for section in ["prepare", "microbatch", "update"] for index, own in enumerate(program[section])]


def lives(program):
    """For each result the places that access it, and the instructions that write and read it, in the order of the program."""
    lives = {}
    for order, (_, _, own) in enumerate(instructions(program)):
        for kind, places in [("writes", own["writes"]), ("reads", own["reads"])]:
            for place in places:
                life = lives.setdefault(place["value"], {"places": [], "writes": [], "reads": []})
                life["places"].append(place)
                life[kind].append(order)
    return lives


def moved_result(plan, program, rng):
    """One result lies elsewhere, and its readers do not know."""
    results = [
        place
        for life in lives(program).values()
        for place in life["places"]
        if len(life["writes"]) == 1 and life["reads"] and max(life["reads"]) > life["writes"][0] and place["bytes"] > 0
    ]
    place = rng.choice(results)
    place["offset"] += place["bytes"] if rng.random() < 0.5 or place["offset"] < place["bytes"] else -place["bytes"]
    return f"an access of value {place['value']} moved to byte {place['offset']}"


def moved_value(plan, program, rng):
    """A whole value lies over another one that is written before it and read after it: the fault of a planner."""
    found, chosen = lives(program), []
    single = {value: life for value, life in found.items() if len(life["writes"]) == 1 and life["reads"]}
    reported = {place["value"] for place in program["outputs"]}
    for value, life in single.items():
        # Only whole values of one place each: these can be moved by one distance.
        if value in reported or len({(place["offset"], place["bytes"]) for place in life["places"]}) > 1:
            continue
        written = life["writes"][0]
        for other, around in single.items():
            ends = [other_place for other_place in around["places"] if other_place["memory"] == life["places"][0]["memory"]]
            if other == value or not ends or ends[0].get("block") != life["places"][0].get("block"):
                continue
            if around["writes"][0] < written and max(around["reads"]) > max(written, min(life["reads"])):
                chosen.append((value, ends[0]["offset"]))
    if not chosen:
        return None
    value, offset = rng.choice(chosen)
    for place in found[value]["places"]:
        place["offset"] = offset
    return f"value {value} moved over a value that is read later, to byte {offset}"


def absent(plan, program, rng):
    """An instruction is missing."""
    found = lives(program)
    removable = [
        (section, index)
        for section, index, own in instructions(program)
        if section != "prepare"
        and "turns" not in program
        and any(len(found[place["value"]]["writes"]) == 1 and found[place["value"]]["reads"] for place in own["writes"])
    ]
    if not removable:
        return None
    section, index = rng.choice(removable)
    program[section][index]["writes"] = []
    program[section][index]["in_place"] = []
    return f"{section} {index} writes nothing"


def small_total(plan, program, rng):
    """A memory ends before its last value."""
    names = [name for name in ["device", "host", "disk"] if program["memories"][name] > 0]
    name = rng.choice(names)
    for other in plan["programs"]:
        for own in other["ranks"]:
            own["memories"][name] = min(own["memories"][name], program["memories"][name] // 2)
    return f"the memory `{name}` has half of its bytes"


def small_budget(plan, program, rng):
    name = rng.choice([name for name in ["device", "host", "disk"] if program["memories"][name] > 0])
    plan["budgets"][name] = program["memories"][name] - 1
    return f"the budget of `{name}` is a byte too small"


def states_overlap(plan, program, rng):
    states = [state for state in program["states"] if state["memory"] == "device" and state["bytes"] > 0]
    if len(states) < 2:
        return None
    one, other = rng.sample(states, 2)
    for own in plan["programs"]:
        for rank in own["ranks"]:
            for state in rank["states"]:
                if state["name"] == one["name"]:
                    state["offset"] = other["offset"]
    return f"the states `{one['name']}` and `{other['name']}` lie over each other"


FAULTS = [moved_result, moved_value, absent, small_total, small_budget, states_overlap]


def plant(plan, times):
    """Plants faults of each kind, and returns the descriptions of those that were not found."""
    missed, planted = [], 0
    for kind in FAULTS:
        for seed in range(times):
            broken = copy.deepcopy(plan)
            rng = random.Random(f"{kind.__name__} {seed}")
            training = next(program for program in broken["programs"] if program["name"] == "training")
            described = kind(broken, rng.choice(training["ranks"]), rng)
            if described is None:
                break
            planted += 1
            try:
                replay(broken)
                missed.append(f"{kind.__name__}, seed {seed}: {described}")
            except Fault:
                pass
    return planted, missed


# Flags of plans of all kinds, beside those of a training step.
CASES = {
    "plain": "--microbatch 8",
    "several microbatches": "--microbatch 2 --global-batch 8",
    "recomputation": "--microbatch 8 --recompute full",
    "bf16": "--microbatch 8 --bf16",
    "bf16, several microbatches": "--microbatch 2 --global-batch 8 --bf16",
    "early updates": "--microbatch 8 --update early",
    "early updates, several microbatches": "--microbatch 2 --global-batch 8 --update early",
    "ZeRO 1": "--microbatch 8 --mesh dp=2 --zero 1",
    "ZeRO 3, bf16": "--microbatch 8 --mesh dp=2 --zero 3 --bf16",
    "tensor ranks": "--microbatch 8 --mesh tp=2",
    "pipeline": "--microbatch 2 --global-batch 8 --mesh pp=2",
    "pipeline, values on the host": "--microbatch 2 --global-batch 8 --mesh pp=2 --offload optimizer,activations",
    "everything offloaded": "--microbatch 8 --offload optimizer,parameters,gradients,activations",
    "three memories": "--microbatch 8 --memory device=10MiB,host=12MiB,disk=DISK",
    "three memories, several microbatches": "--microbatch 2 --global-batch 8 --memory device=10MiB,host=12MiB,disk=DISK",
    "three memories, bf16, ZeRO 3": "--microbatch 8 --mesh dp=2 --zero 3 --bf16 --memory device=8MiB,host=8MiB,disk=DISK",
}


def check_cases(trainyard, times):
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        for name, flags in CASES.items():
            file = Path(folder) / "plan.json"
            arguments = flags.replace("DISK", folder).split()
            command = [trainyard, "compile", str(MODEL), "-o", f"{folder}/run", "--force", "--memory-plan", str(file)]
            run = subprocess.run([*command, *arguments], capture_output=True, text=True)
            if run.returncode != 0:
                sys.exit(f"{name}: {' '.join(arguments)} failed:\n{run.stderr}")
            plan = json.loads(file.read_text())
            try:
                count = replay(plan)
            except Fault as fault:
                print(f"{name}: {fault}")
                failed = True
                continue
            planted, missed = plant(plan, times)
            ranks = plan["programs"][0]["ranks"]
            sizes = [f"{max(rank['memories'][memory] for rank in ranks)} on the {memory}" for memory in ["device", "host", "disk"]]
            print(f"{name}: {count} instructions, bytes {', '.join(sizes)}; {planted} planted faults, {len(missed)} not found")
            for fault in missed:
                print(f"  not found: {fault}")
            failed |= bool(missed) or planted == 0
    sys.exit(failed)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trainyard", required=True)
    parser.add_argument("--faults", type=int, default=4, help="the number of planted faults of each kind")
    arguments = parser.parse_args()
    check_cases(arguments.trainyard, arguments.faults)


if __name__ == "__main__":
    main()
