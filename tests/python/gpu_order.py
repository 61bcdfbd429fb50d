"""The order of a GPU's commands in a memory plan, and the places that commands touch while others may still run (`replay_plan.py`).

A command begins when the commands before it on its stream have ended, and those that it waits for. Every other command may run beside
it: a copy may begin long before its place in the list, and end long after it. So of two commands that touch the same bytes, of which one
writes them, one must surely end before the other begins.
"""

import bisect


class Race(Exception):
    """Two commands that may run at once touch the same bytes, and one of them writes them."""


class Commands:
    """The commands of some instructions of a part, and which of them surely ended before others begin."""

    def __init__(self, commands, instructions):
        self.commands = commands
        # For each instruction its commands, and its wave in each of them: the instructions of a wave run at once.
        self.of = {}
        # For each command and stream, the last command of the stream that has surely ended before it begins.
        self.ended = {}
        last = {}
        for number, command in enumerate(commands):
            own = [index for wave in command["instructions"] for index in wave]
            present = [index in instructions for index in own]
            if not any(present):
                # The streams have waited for all others since it ran, or will do before it runs.
                continue
            if not all(present):
                raise Race(f"command {number} runs instructions of which some run apart from the others")
            waits = [wait for wait in command.get("waits", []) if wait in self.ended]
            before = {}
            for earlier in [*waits, *([last[command["stream"]]] if command["stream"] in last else [])]:
                for stream, ended in [*self.ended[earlier].items(), (commands[earlier]["stream"], earlier)]:
                    before[stream] = max(before.get(stream, -1), ended)
            self.ended[number] = before
            last[command["stream"]] = number
            for wave, indices in enumerate(command["instructions"]):
                for index in indices:
                    self.of.setdefault(index, []).append((number, wave))

    def is_before(self, one, other):
        """Whether an access has surely ended before another one begins. Each is of a command, a wave in it and an instruction."""
        (number, wave, instruction), (later, later_wave, later_instruction) = one, other
        if number == later:
            return instruction == later_instruction or wave < later_wave
        return self.ended[later].get(self.commands[number]["stream"], -1) >= number


class Touched:
    """For each byte of a memory, the accesses that later ones must wait for."""

    def __init__(self):
        self.starts, self.pieces = [], []

    def take(self, start, end):
        """Takes the pieces between two bytes out. The bytes that no piece has are one too."""
        first = max(bisect.bisect_right(self.starts, start) - 1, 0)
        last = bisect.bisect_left(self.starts, end)
        taken, kept, at = [], [], start
        for low, high, accesses in self.pieces[first:last]:
            if high <= start:
                kept.append((low, high, accesses))
                continue
            if low < start:
                kept.append((low, start, accesses))
            if max(low, start) > at:
                taken.append((at, max(low, start), []))
            at = min(high, end)
            taken.append((max(low, start), at, accesses))
            if high > end:
                kept.append((end, high, accesses))
        if at < end:
            taken.append((at, end, []))
        self.replace(first, last, kept)
        return taken

    def put(self, pieces):
        at = bisect.bisect_left(self.starts, pieces[0][0])
        self.replace(at, at, pieces)

    def replace(self, first, last, pieces):
        self.pieces[first:last] = pieces
        self.starts[first:last] = [piece[0] for piece in pieces]


class Beside:
    """The accesses of a part of a step, whose commands run in any order that the streams allow.

    `span` and `overlap` are functions of a replay: the bytes of a place, and whether two places share a byte.
    """

    def __init__(self, commands, instructions, span, overlap):
        self.commands = Commands(commands, set(instructions))
        self.span, self.overlap = span, overlap
        self.memories = {}

    def instruction(self, index, own, what):
        """The accesses of an instruction, by each of its commands."""
        commands = self.commands.of.get(index, [])
        scratch = [own["scratch"]] if "scratch" in own else []
        if not commands and any(place["bytes"] > 0 for place in own["writes"]):
            raise Race("no command runs it")
        for number, wave in commands:
            command = self.commands.commands[number]
            reads, writes = command.get("reads", own["reads"]), command.get("writes", [*own["writes"], *scratch])
            for is_write, places in [(False, reads), (True, writes)]:
                for place in places:
                    if place["memory"] != "constants" and place["bytes"] > 0:
                        self.access((number, wave, index), is_write, place, what)

    def access(self, by, is_write, place, what):
        memory = self.memories.setdefault(place["memory"], Touched())
        start, end = self.span(place)
        pieces = memory.take(start, end)
        stream = self.commands.commands[by[0]]["stream"]
        # An access of all bytes of a piece stands for those before it, which have ended.
        runs = (start, end, str(place["runs"])) if "runs" in place else None
        after = []
        for low, high, accesses in pieces:
            kept = []
            for access in accesses:
                other, wrote, there, whole, its_stream, its_name = access
                is_conflict = is_write or wrote
                if is_conflict and not self.commands.is_before(other, by) and self.overlap(there, place):
                    how = "writes" if is_write else "reads"
                    raise Race(
                        f"it {how} bytes {max(low, start)} to {min(high, end)} of `{place['memory']}` while {its_name}"
                        f" may still {'write' if wrote else 'read'} there"
                    )
                is_covered = runs is None or whole == runs
                is_over = is_write or (not wrote and its_stream == stream and other[0] != by[0])
                if not (is_covered and is_over):
                    kept.append(access)
            kept.append((by, is_write, place, runs, stream, what))
            after.append((low, high, kept))
        if is_write and runs is None:
            after = [(start, end, [(by, is_write, place, runs, stream, what)])]
        memory.put(after)
