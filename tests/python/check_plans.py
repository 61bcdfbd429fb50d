"""Replays memory plans of all kinds (`replay_plan.py`), and plants faults that the replay must find.

    python3 tests/python/check_plans.py --trainyard target/release/trainyard [--faults 4]

Each plan must be without a fault. Then one place of it is changed, or the order of a GPU's commands, so many times for each kind of
fault.
"""

import argparse
import copy
import json
import random
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from replay_plan import Fault, replay

TESTDATA = Path(__file__).resolve().parents[2] / "testdata"
GPT2, RESNET = TESTDATA / "gpt2-bytes.onnx", TESTDATA / "models/resnet.legacy-trainmode.onnx"

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


def late_read(plan, program, rng):
    """A value is read after a result has taken its place."""
    found = [
        (section, index, operand)
        for section, index, own in instructions(program)
        for operand, _ in own.get("in_place", [])
        if (section == "update" or "turns" not in program) and own["reads"][operand]["bytes"] and index + 1 < len(program[section])
    ]
    # Half of the faults are of reductions, if some are in place.
    reductions = [one for one in found if program[one[0]][one[1]]["kernel"] == "all_reduce"]
    if not found:
        return None
    section, index, operand = rng.choice(reductions if reductions and rng.random() < 0.5 else found)
    place = program[section][index]["reads"][operand]
    reader = rng.randrange(index + 1, len(program[section]))
    program[section][reader]["reads"].append(place)
    return f"{section} {reader} reads value {place['value']}, whose place {section} {index} has written"


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


# Planted faults in the order of a GPU's commands. They take the order from the edges between commands, as the replay does not.


def parts(plan, program):
    """The parts of a step with the commands of each, and the instructions of its section. None of a plan for the processor."""
    sections = {"prepare": "prepare", "microbatch": "microbatch", "update": "update"}
    if plan["microbatches"] > 1:
        sections["rest_of_microbatch"] = "update"
    return [(part, program["commands"][part], program[section]) for part, section in sections.items() if "commands" in program]


def edges(commands):
    """For each command those that it waits for, and the one before it on its stream."""
    last, edges = {}, []
    for number, command in enumerate(commands):
        edges.append({*command.get("waits", []), *({last[command["stream"]]} if command["stream"] in last else {})})
        last[command["stream"]] = number
    return edges


def reaches(edges, first, command):
    """Whether a command has surely ended before another one begins."""
    open_, seen = [command], set()
    while open_:
        for earlier in edges[open_.pop()]:
            if earlier == first:
                return True
            if earlier > first and earlier not in seen:
                seen.add(earlier)
                open_.append(earlier)
    return False


def touched(instructions, command):
    """The places that a command reads and writes."""
    own = [instructions[index] for wave in command["instructions"] for index in wave]
    scratch = [one["scratch"] for one in own if "scratch" in one]
    reads = command.get("reads", [place for one in own for place in one["reads"]])
    return reads, command.get("writes", [place for one in own for place in one["writes"]] + scratch)


def meet(one, other):
    """Whether two places surely share a byte."""
    is_plain = one["bytes"] and other["bytes"] and "runs" not in one and "runs" not in other
    is_same = one["memory"] == other["memory"] != "constants" and one.get("block") == other.get("block")
    return is_plain and is_same and one["offset"] < other["offset"] + other["bytes"] and other["offset"] < one["offset"] + one["bytes"]


def depend(one, other):
    """Whether two commands, given by the places that they read and write, must keep their order."""
    (reads, writes), (other_reads, other_writes) = one, other
    pairs = [(writes, other_writes), (writes, other_reads), (reads, other_writes)]
    return any(meet(place, there) for places, others in pairs for place in places for there in others)


def missing_wait(plan, program, rng):
    """A command does not wait for one whose bytes it touches."""
    found = []
    for part, commands, own in parts(plan, program):
        places = [touched(own, command) for command in commands]
        order = edges(commands)
        turns = [turn["instructions"] for turn in program.get("turns", [])] if part == "microbatch" else []
        turn_of = {index: number for number, (start, end) in enumerate(turns) for index in range(start, end)}
        for number, command in enumerate(commands):
            for wait in command.get("waits", []):
                ends = [turn_of.get(commands[one]["instructions"][0][0]) for one in (wait, number)]
                if ends[0] != ends[1] or not depend(places[wait], places[number]):
                    continue
                others = [*order[:number], order[number] - {wait}, *order[number + 1 :]]
                if not reaches(others, wait, number):
                    found.append((part, number, wait))
    if not found:
        return None
    part, number, wait = rng.choice(found)
    program["commands"][part][number]["waits"].remove(wait)
    return f"command {number} of {part} does not wait for command {wait}"


def early_copy(plan, program, rng):
    """A value dies where a copy fills its place, in the order of the list; but the copy may begin earlier."""
    found, candidates = lives(program), []
    for part, commands, instructions_of_part in parts(plan, program):
        if part != "microbatch" or "turns" in program:
            continue
        order, first = edges(commands), len(program["prepare"])
        of = {index: number for number, command in enumerate(commands) for wave in command["instructions"] for index in wave}
        for number, command in enumerate(commands):
            if command["stream"] != "upload stream":
                continue
            (index,) = command["instructions"][0]
            (place,) = instructions_of_part[index]["writes"]
            for value, life in found.items():
                accesses = [*life["writes"], *life["reads"]]
                is_plain = all("runs" not in one and one["memory"] == "device" and one["bytes"] <= place["bytes"] for one in life["places"])
                if not (is_plain and len(life["writes"]) == 1 and first <= min(accesses) and max(accesses) < first + index):
                    continue
                last = of.get(max(accesses) - first)
                if last is not None and len({one["offset"] for one in life["places"]}) == 1 and not reaches(order, last, number):
                    candidates.append((value, place["offset"], number))
    rng.shuffle(candidates)
    for value, offset, number in candidates[:TRIES]:
        before = [place["offset"] for place in found[value]["places"]]
        for place in found[value]["places"]:
            place["offset"] = offset
        if not finds(without_commands(plan)):
            return f"value {value} moved to the place that the copy of command {number} fills, at byte {offset}"
        for place, old in zip(found[value]["places"], before):
            place["offset"] = old
    return None


# Moves of a value that are tried until one is a fault of the order alone.
TRIES = 50


def without_commands(plan):
    """The plan of a device that runs one instruction after the other."""
    programs = [{**one, "ranks": [{**rank, "commands": None} for rank in one["ranks"]]} for one in plan["programs"]]
    return {**plan, "programs": programs}


def unrun(plan, program, rng):
    """An instruction has no command."""
    found = []
    for part, commands, own in parts(plan, program):
        waves = [(wave, index) for command in commands for wave in command["instructions"] for index in wave]
        counts = Counter(index for _, index in waves)
        writes = {index for index, one in enumerate(own) if any(place["bytes"] for place in one["writes"])}
        found += [(part, wave, index) for wave, index in waves if counts[index] == 1 and index in writes]
    if not found:
        return None
    part, wave, index = rng.choice(found)
    wave.remove(index)
    return f"no command runs instruction {index} of {part}"


FAULTS = [moved_result, moved_value, absent, late_read, small_total, small_budget, states_overlap, missing_wait, early_copy, unrun]


def finds(plan):
    """Whether the replay finds a fault."""
    try:
        replay(plan)
        return False
    except Fault:
        return True


def plant(plan, times):
    """Plants faults of each kind. Returns the number of each kind, and the descriptions of the faults that were not found."""
    missed, planted = [], Counter()
    for kind in FAULTS:
        for seed in range(times):
            broken = copy.deepcopy(plan)
            rng = random.Random(f"{kind.__name__} {seed}")
            training = next(program for program in broken["programs"] if program["name"] == "training")
            described = kind(broken, rng.choice(training["ranks"]), rng)
            if described is None:
                break
            planted[kind.__name__] += 1
            if not finds(broken):
                missed.append(f"{kind.__name__}, seed {seed}: {described}")
    return planted, missed


# Flags of plans of all kinds for the processor. The model is GPT-2, unless the flags name one.
CASES = {
    "plain": "--microbatch 8",
    "several microbatches": "--microbatch 2 --global-batch 8",
    "recomputation": "--microbatch 8 --recompute full",
    "bf16": "--microbatch 8 --bf16",
    "bf16, several microbatches": "--microbatch 2 --global-batch 8 --bf16",
    "early updates": "--microbatch 8 --update early",
    "early updates, several microbatches": "--microbatch 2 --global-batch 8 --update early",
    "data ranks, several microbatches": "--microbatch 2 --global-batch 8 --mesh dp=2",
    "ZeRO 1": "--microbatch 8 --mesh dp=2 --zero 1",
    "ZeRO 3, bf16": "--microbatch 8 --mesh dp=2 --zero 3 --bf16",
    "tensor ranks": "--microbatch 8 --mesh tp=2",
    "pipeline": "--microbatch 2 --global-batch 8 --mesh pp=2",
    "pipeline, values on the host": "--microbatch 2 --global-batch 8 --mesh pp=2 --offload optimizer,activations",
    "everything offloaded": "--microbatch 8 --offload optimizer,parameters,gradients,activations",
    "three memories": "--microbatch 8 --memory device=10MiB,host=6MiB,disk=DISK",
    "three memories, several microbatches": "--microbatch 2 --global-batch 8 --memory device=10MiB,host=4MiB,disk=DISK",
    "three memories, bf16, ZeRO 3": "--microbatch 8 --mesh dp=2 --zero 3 --bf16 --memory device=8MiB,host=2MiB,disk=DISK",
    "compressed activations": f"{RESNET} --compress-activations masks,indices,bf16 --compress-least 1B --offload activations",
    "compressed gradients": "--microbatch 2 --global-batch 8 --mesh dp=2 --compress-gradients powersgd",
}

# The same for a GPU, which need not be here.
GPU_CASES = {
    "GPU": "--microbatch 8",
    "GPU, everything offloaded": "--microbatch 8 --fp16 --offload optimizer,parameters,gradients,activations",
    "GPU, everything offloaded, several microbatches": "--microbatch 2 --global-batch 8 --offload optimizer,parameters,gradients,activations",
    "GPU, three memories": "--microbatch 8 --memory device=10MiB,host=5MiB,disk=DISK",
    "GPU, data ranks, several microbatches": "--microbatch 2 --global-batch 8 --mesh dp=2",
    "GPU, early updates": "--microbatch 8 --update early --offload optimizer,parameters",
    "GPU, two memories, bf16, ZeRO 3": "--microbatch 8 --mesh dp=2 --zero 3 --bf16 --memory device=6MiB,host=12MiB",
    "GPU, pipeline, values on the host": "--microbatch 2 --global-batch 8 --mesh pp=2 --offload optimizer,parameters,activations",
    "GPU, compressed activations": f"{RESNET} --compress-activations masks,indices,bf16 --compress-least 1B --offload activations",
    "GPU, compressed gradients": "--microbatch 8 --mesh dp=2 --compress-gradients powersgd",
}


def check_cases(trainyard, times):
    failed = False
    of_kind = Counter()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "plan.json"
        on_processor = ["compile", "-o", f"{folder}/run", "--force"]
        for name, flags in [*CASES.items(), *GPU_CASES.items()]:
            arguments = flags.replace("DISK", folder).split()
            model = [] if arguments[0].endswith(".onnx") else [GPT2]
            command = ["inspect", "--target", "v100"] if name in GPU_CASES else on_processor
            run = subprocess.run([trainyard, *command, "--memory-plan", file, *model, *arguments], capture_output=True, text=True)
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
            print(f"{name}: {count} instructions, bytes {', '.join(sizes)}; {planted.total()} planted faults, {len(missed)} not found")
            for fault in missed:
                print(f"  not found: {fault}")
            failed |= bool(missed) or planted.total() == 0
            of_kind += planted
    for kind in FAULTS:
        if of_kind[kind.__name__] == 0:
            print(f"no plan has a place for a fault of the kind {kind.__name__}")
            failed = True
    sys.exit(failed)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trainyard", required=True)
    parser.add_argument("--faults", type=int, default=4, help="the number of planted faults of each kind")
    arguments = parser.parse_args()
    check_cases(arguments.trainyard, arguments.faults)


if __name__ == "__main__":
    main()
