"""Replays steps with the memory plan that `trainyard compile --memory-plan FILE` writes, and finds its faults.

    python3 tests/python/replay_plan.py FILE

The replay knows the bytes of each memory by the value that was written there last. It finds a read of bytes that hold another value or
none, results that lie over operands or over each other, memory that is beyond a plan's total or a budget, and states that overlap. It
needs no packages, and shares no code with the planner. `check_plans.py` plants faults that it must find.
"""

import argparse
import bisect
import json
import sys
from pathlib import Path

from gpu_order import Beside, Race

# The version of the files that this program reads.
FORMAT = 2

# Microbatches that are replayed of a step with more: the first, one in between and the last differ.
MICROBATCHES = 3


class Fault(Exception):
    """A fault of the plan."""


def union(intervals, added):
    """The intervals, sorted and apart, with others added."""
    result = []
    for start, end in sorted([*intervals, *added]):
        if result and start <= result[-1][1]:
            result[-1] = (result[-1][0], max(result[-1][1], end))
        else:
            result.append((start, end))
    return result


def remove(intervals, start, end):
    """Removes the bytes from `start` to `end` from intervals that are sorted and apart."""
    first = max(bisect.bisect_right(intervals, (start, start)) - 1, 0)
    last = bisect.bisect_left(intervals, (end,))
    parts = []
    for low, high in intervals[first:last]:
        parts += [(low, min(high, start)), (max(low, end), high)]
    intervals[first:last] = [(low, high) for low, high in parts if low < high]


def sharing(places):
    """The pairs of places that share a byte of their memory. A place is a memory, a first and a last byte, and what the caller likes."""
    running = []
    for place in sorted(places, key=lambda place: place[:3]):
        running = [other for other in running if other[0] == place[0] and other[2] > place[1]]
        for other in running:
            yield other, place
        if place[1] < place[2]:
            running.append(place)


def first_missing(intervals, wanted):
    """The first wanted run that is not within the intervals, which are sorted and apart."""
    starts = [start for start, _ in intervals]
    for start, end in wanted:
        index = bisect.bisect_right(starts, start) - 1
        if start < end and (index < 0 or intervals[index][1] < end):
            return start, end
    return None


class Content:
    """A value in memory: the bytes that were written and hold it still."""

    def __init__(self, key, memory):
        self.key, self.memory = key, memory
        self.written = []
        self.lost = []


class Memory:
    """Which content owns which bytes."""

    def __init__(self, name, total):
        self.name, self.total = name, total
        self.starts, self.owned = [], []

    def claim(self, start, end, content, writer):
        """Gives bytes to a content. Other contents lose them."""
        first = bisect.bisect_right(self.starts, start) - 1
        if first < 0 or self.owned[first][1] <= start:
            first += 1
        last, kept = first, []
        while last < len(self.owned) and self.owned[last][0] < end:
            low, high, other = self.owned[last]
            if low < start:
                kept.append((low, start, other))
            if high > end:
                kept.append((end, high, other))
            if other is not content:
                remove(other.written, start, end)
                other.lost.append((max(low, start), min(high, end), writer))
            last += 1
        kept.append((start, end, content))
        kept.sort(key=lambda piece: piece[0])
        self.owned[first:last] = kept
        self.starts[first:last] = [piece[0] for piece in kept]


class Replay:
    """The memories of one device, while its programs run."""

    def __init__(self, plan, pipeline_rank, device):
        self.plan, self.device = plan, device
        self.programs = {program["name"]: program["ranks"][pipeline_rank] for program in plan["programs"]}
        self.where = f"pipeline rank {pipeline_rank}, device {device}"
        self.check_totals()
        training = self.programs["training"]
        self.memories = {
            name: Memory(name, max(program["memories"][name] for program in self.programs.values()))
            for name in ["device", "host", "disk"]
        }
        self.live = {}
        self.blocks = []
        self.check_apart("state", training["states"])
        for program in self.programs.values():
            if self.places(program["states"]) != self.places(training["states"]):
                raise Fault("the programs have states in different places")
        for state in training["states"]:
            self.write(state, (state["value"],), "the start of the run")

    def check_totals(self):
        """Compares the memories of the programs with the budgets. Programs share everything but their constants."""
        programs = self.programs.values()
        for name, budget in self.plan["budgets"].items():
            total = max(program["memories"][name] for program in programs)
            if name == "device":
                total += sum(program["memories"]["constants"] for program in programs)
            if total > budget:
                raise Fault(f"the plan has {total} bytes of the memory `{name}`, and its budget is {budget}")

    @staticmethod
    def places(named):
        return {one["name"]: (one["memory"], one["offset"], one["bytes"]) for one in named}

    def check_apart(self, kind, named):
        """Checks that places that live at all times do not overlap."""
        for memory in ["device", "host", "disk", "constants"]:
            own = sorted((one["offset"], one["offset"] + one["bytes"]) for one in named if one["memory"] == memory)
            for before, after in zip(own, own[1:]):
                if after[0] < before[1]:
                    raise Fault(f"two {kind}s overlap in the memory `{memory}`, at byte {after[0]}")

    # Places.

    def start(self, place):
        start = place["offset"]
        if "block" in place:
            base = self.blocks[place["block"]]
            if base is None:
                raise Fault("an access of a block that is not alive")
            start += base
        if place.get("shift"):
            start += place["shift"][self.device]
        return start

    def span(self, place):
        start = self.start(place)
        return start, start + place["bytes"]

    def runs(self, place):
        """The bytes of a place, without its gaps."""
        start, end = self.span(place)
        if "runs" not in place:
            return [(start, end)]
        starts = [start]
        for count, distance in reversed(place["runs"]["repeats"]):
            starts = [first + index * distance for first in starts for index in range(count)]
        return [(first, first + place["runs"]["bytes"]) for first in sorted(starts)]

    def overlap(self, one, other):
        """Whether two places share a byte."""
        if one["memory"] != other["memory"]:
            return False
        (low, high), (start, end) = self.span(one), self.span(other)
        if min(high, end) <= max(low, start):
            return False
        if "runs" not in one and "runs" not in other:
            return True
        runs = union(self.runs(one), [])
        starts = [low for low, _ in runs]
        for low, high in self.runs(other):
            index = bisect.bisect_left(starts, high) - 1
            if index >= 0 and runs[index][1] > low:
                return True
        return False

    def within(self, place, total):
        start, end = self.span(place)
        if start < 0 or end > total:
            raise Fault(f"bytes {start} to {end} of the memory `{place['memory']}`, which has {total}")

    # Contents.

    def read(self, place, key):
        if place["memory"] == "constants":
            return self.read_constant(place)
        memory = self.memories[place["memory"]]
        self.within(place, memory.total)
        if place["bytes"] == 0:
            return
        content = self.live.get(key)
        if content is None:
            raise Fault(f"a read of value {place['value']}, which was not written")
        if content.memory is not memory:
            raise Fault(f"a read of value {place['value']} in `{memory.name}`, and it lies in `{content.memory.name}`")
        missing = first_missing(content.written, self.runs(place))
        if missing:
            start, end = missing
            writers = [writer for low, high, writer in content.lost if low < end and start < high]
            cause = f"have been overwritten by {writers[-1]}" if writers else "were not written"
            raise Fault(f"a read of value {place['value']}, whose bytes {start} to {end} of `{memory.name}` {cause}")

    def read_constant(self, place):
        self.within(place, self.program["memories"]["constants"])
        constants = [one for one in self.program["constants"] if one["value"] == place["value"]]
        start, end = self.span(place)
        if not any(one["offset"] <= start and end <= one["offset"] + one["bytes"] for one in constants):
            raise Fault(f"a read of constant {place['value']} beyond its bytes")

    def write(self, place, key, writer):
        if place["memory"] == "constants":
            raise Fault("a result lies among the constants")
        memory = self.memories[place["memory"]]
        self.within(place, memory.total)
        content = self.live.get(key)
        if content is None or content.memory is not memory:
            content = self.live[key] = Content(key, memory)
        if place["bytes"] == 0:
            return
        memory.claim(*self.span(place), content, writer)
        content.written = union(content.written, self.runs(place))

    # Programs.

    def run(self, name, microbatches, renew):
        """Runs a program. With `renew`, the step before has written the results of the first instructions of `prepare`."""
        self.program = program = self.programs[name]
        self.check_apart("constant", program["constants"])
        self.new_of = dict(program["renewals"])
        kept = {place["value"] for own in program["prepare"][: program["renewed"]] for place in own["writes"]}
        states = {state["value"] for state in program["states"]}
        self.lasting = states | set(self.new_of) | kept
        for own in program["prepare"]:
            self.lasting |= {place["value"] for place in own["writes"]}
        for own in [*program["microbatch"], *program["update"]]:
            if own.get("accumulates"):
                self.lasting |= {place["value"] for place in own["writes"]}
        for own in program["update"]:
            if not own.get("every_microbatch"):
                self.lasting |= {place["value"] for place in own["writes"]}
        of_run = states | (kept if renew else set())
        self.live = {key: content for key, content in self.live.items() if len(key) == 1 and key[0] in of_run}
        self.blocks = []
        self.microbatch = 0
        self.execute("prepare", range(program["renewed"] if renew else 0, len(program["prepare"])))
        self.report("prepare", None)
        if "turns" in program:
            self.run_turns()
        else:
            self.run_microbatches(microbatches)
        self.execute("update", range(len(program["update"])))
        self.renew_states()
        self.report("update", None)
        self.microbatch = None
        for state in program["states"]:
            self.checked(f"state `{state['name']}` at the end of the step", lambda: self.read(state, (state["value"],)))

    def run_microbatches(self, microbatches):
        rest = [index for index, own in enumerate(self.program["update"]) if own.get("every_microbatch")]
        for self.microbatch in range(microbatches):
            self.live = {key: content for key, content in self.live.items() if len(key) == 1}
            self.feed(None)
            self.execute("microbatch", range(len(self.program["microbatch"])))
            self.renew_states()
            self.report("microbatch", None)
            if self.microbatch + 1 < microbatches:
                self.execute("update", rest, "rest_of_microbatch")
                self.renew_states()

    def run_turns(self):
        for turn in self.program["turns"]:
            self.microbatch, self.blocks = turn["microbatch"], turn["blocks"]
            self.feed(turn["part"])
            self.execute("microbatch", range(*turn["instructions"]))
            self.renew_states()
            self.report("microbatch", turn["part"])
        self.blocks = []

    def key(self, place):
        value = place["value"]
        return (value,) if value in self.lasting else (value, self.microbatch)

    def checked(self, what, action):
        try:
            return action()
        except (Fault, Race) as fault:
            raise Fault(f"{self.where}, {what}: {fault}") from None

    def feed(self, part):
        inputs = [own for own in self.program["inputs"] if own.get("part") == part]
        for own in inputs:
            what = f"input `{own['name']}`"
            self.checked(what, lambda: self.write(own, self.key(own), what))

    def report(self, section, part):
        for own in self.program["outputs"]:
            if own["section"] == section and own.get("part") == part:
                self.checked(f"output `{own['name']}`", lambda: self.read(own, self.key(own)))

    def renew_states(self):
        """New values that were written over their states are the states from now on."""
        states = {state["value"]: state for state in self.program["states"]}
        for new, old in self.new_of.items():
            content = self.live.get((new,))
            if content is None or not content.written:
                continue
            state = states.get(old)
            if state is None:
                raise Fault(f"value {new} renews a state that the program does not have")
            what = f"the new value of state `{state['name']}`"
            self.checked(what, lambda: self.read({**state, "value": new}, (new,)))
            del self.live[(new,)]
            content.key = (old,)
            self.live[(old,)] = content

    def execute(self, section, indices, part=None):
        flying = []
        commands = self.program.get("commands")
        beside = commands and Beside(commands[part or section], indices, self.span, self.overlap)
        for index in indices:
            own = self.program[section][index]
            what = f"{section} {index} ({own['kernel']}{', ' + own['origin'] if own.get('origin') else ''})"
            flying = [(until, other) for until, other in flying if until >= index]
            self.checked(what, lambda: self.instruction(own, what, flying))
            if beside:
                self.checked(what, lambda: beside.instruction(index, own, what))
            if own.get("until", index) > index:
                flying.append((own["until"], own))

    def instruction(self, own, what, flying):
        reads, writes = own["reads"], own["writes"]
        scratch = [own["scratch"]] if "scratch" in own else []
        if "until" not in own:
            self.check_beside(own, [*writes, *scratch], flying)
        for place in reads:
            self.read(place, self.key(place))
        pairs = {tuple(pair) for pair in own.get("in_place", [])}
        self.check_within(own, pairs)
        for operand, number in pairs:
            # A gather has its operand within the result.
            if own["kernel"] != "all_gather" and self.runs(reads[operand]) != self.runs(writes[number]):
                raise Fault(f"operand {operand} and result {number} are in place, and do not have the same bytes")
        for place in scratch:
            self.write(place, ("scratch", place["value"], 0), what)
        for place in writes:
            if own.get("accumulates") and self.microbatch > 0:
                self.read(place, self.key(place))
            self.write(place, self.key(place), what)

    def check_within(self, own, pairs):
        """Checks that the results and the scratch of an instruction lie apart from each other and from its operands, but for pairs in place."""
        kinds = [("operand", own["reads"]), ("result", own["writes"]), ("scratch", [own["scratch"]] if "scratch" in own else [])]
        places = [(place["memory"], *self.span(place), kind, number, place) for kind, all in kinds for number, place in enumerate(all)]
        for one, other in sharing(places):
            # By their kinds: an operand comes first.
            (*_, kind, number, place), (*_, other_kind, other_number, other_place) = sorted([one, other], key=lambda place: place[3:5])
            if kind == other_kind == "operand" or (kind == "operand" and (number, other_number) in pairs and other_kind == "result"):
                continue
            if self.overlap(place, other_place):
                raise Fault(f"{kind} {number} and {other_kind} {other_number} lie over each other")

    def check_beside(self, own, written, flying):
        """Checks an instruction against the collectives that may still be carried out."""
        for _, other in flying:
            touched = [*other["reads"], *other["writes"], *([other["scratch"]] if "scratch" in other else [])]
            if any(self.overlap(one, place) for one in written for place in touched):
                raise Fault(f"it writes a place of {other['kernel']}, which may still be carried out")
            if any(self.overlap(one, place) for one in own["reads"] for place in other["writes"]):
                raise Fault(f"it reads a result of {other['kernel']}, which may still be carried out")


def devices_that_differ(program):
    """The devices whose parts lie in places of their own: the first alone, if all places are alike."""
    own = [one for section in ["prepare", "microbatch", "update"] for one in program[section]]
    places = [place for one in own for place in [*one["reads"], *one["writes"]]] + program["outputs"]
    return range(program["devices"]) if any(place.get("shift") for place in places) else range(1)


def replay(plan):
    """Replays three steps with evaluations between them, on every rank. Returns the number of instructions of a plan."""
    if plan["format"] != FORMAT:
        sys.exit(f"the format is {plan['format']}, and this script knows {FORMAT}")
    microbatches = min(plan["microbatches"], MICROBATCHES)
    evaluations = [program["name"] for program in plan["programs"] if program["name"] != "training"]
    training = next(program for program in plan["programs"] if program["name"] == "training")
    for rank, program in enumerate(training["ranks"]):
        for device in devices_that_differ(program):
            memories = Replay(plan, rank, device)
            memories.run("training", microbatches, renew=False)
            memories.run("training", microbatches, renew=True)
            for name in evaluations:
                memories.run(name, 1, renew=False)
            memories.run("training", microbatches, renew=False)
    return sum(len(program[section]) for program in training["ranks"] for section in ["prepare", "microbatch", "update"])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("plan", type=Path)
    plan = json.loads(parser.parse_args().plan.read_text())
    try:
        print(f"{replay(plan)} instructions, no fault")
    except Fault as fault:
        sys.exit(f"fault: {fault}")


if __name__ == "__main__":
    main()
