"""Checks one exported file: the set of trained tensors, ten steps beside PyTorch, and the trained file's keys."""

import json
import math
import re
import shutil
import subprocess

import numpy
import reference
from file import held, mentions
from models import slug
from safetensors.numpy import load_file

LOSSES, WEIGHTS = 1e-5, 1e-4
SECONDS = 120


def ran(arguments):
    """Returns how a command ended: its code, its output and its messages."""
    try:
        ended = subprocess.run([str(argument) for argument in arguments], capture_output=True, text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return -1, "", f"it ran for more than {SECONDS} s"
    return ended.returncode, ended.stdout, ended.stderr


def brief(message):
    """Returns the first line of an error."""
    lines = [line for line in message.splitlines() if "error" in line] or message.splitlines() or ["no message"]
    return lines[0][:200]


def size(kind):
    """Returns the number of elements of a type such as `f32[2, 96]`."""
    return math.prod(int(dim) for dim in kind.partition("[")[2].rstrip("]").split(",") if dim.strip())


def listed(names):
    """Returns the first names of a list, and how many more there are."""
    names = list(names)
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


class Check:
    """One file and all that is found out about it. `failures` has a line for each check that fails."""

    def __init__(self, binary, folder, name, family, variant):
        self.binary, self.folder, self.name, self.family, self.variant = binary, folder, name, family, variant
        self.exporter, self.weights = variant.split("-")
        self.path = folder / f"{slug(name)}.{variant}.onnx"
        self.failures, self.notes = [], {}
        self.flags = ["--loss", "model"]

    def result(self):
        """Returns the row's part as it stands in results.json."""
        facts = json.loads(self.path.with_suffix(".json").read_text())
        if facts["error"]:
            return {"exported": False, "reason": facts["error"].splitlines()[0][:200], "failures": []}
        self.held, self.file, self.module = held(self.folder, self.name, self.variant)
        # No exporter records what follows, so the user says it. A pattern that fits nothing would be refused.
        told = [*facts["frozen"], *(self.family.buffers if self.exporter == "legacy" else ())]
        for name in filter(None, map(self.called, told)):
            self.flags += ["--freeze", name]
        self.ask()
        self.folded = sorted(set(self.module.parameters) - self.held)
        self.notes["folded"] = self.folded
        self.notes["unused"] = self.module.facts["unused"]
        try:
            self.checks()
        finally:
            shutil.rmtree(self.run, ignore_errors=True)
        return {"exported": True, "failures": self.failures, **self.notes}

    def ask(self):
        """Asks for the parameters that a message names as left out, as its reader would. The legacy exporter does not record
        which tensors are parameters."""
        _, output, messages = ran([self.binary, "inspect", self.path, *self.flags])
        messages += output
        left_out = [line for line in messages.splitlines() if line.startswith("warning: not trained: ")]
        names = [name for line in left_out for name in re.findall(r"`([^`]+)` \(", line)]
        parameters = [numpy.sort(self.module.state[key].ravel()) for key in self.held]
        self.notes["asked"] = [
            name for name in names if name in self.module.parameters
            or any(numpy.array_equal(numpy.sort(self.file.named[name].ravel()), own) for own in parameters if name in self.file.named)
        ]
        for name in self.notes["asked"]:
            self.flags += ["--train-also", name]
        numbered = any(name.startswith("onnx::") for name in names)
        self.has_computed = numbered or "the exporter computed these tensors, perhaps from parameters" in messages

    def called(self, name):
        """Returns the file's name of a tensor of the module: the same name, or that of an initializer with its value."""
        if name in self.file.names:
            return name
        own = self.module.state[name]
        same = (key for key, value in self.file.named.items() if numpy.array_equal(value.squeeze(), own.squeeze()))
        return next(same, None)

    def checks(self):
        """Makes all checks that apply to the file."""
        for part in (self.exporter, self.variant):
            if part in self.family.lost:
                self.notes["lost"] = self.family.lost[part]
        if self.start():
            self.set_check()
            self.warning_check()
            self.load_check()
            if self.notes.get("lost") != "batch statistics":
                self.loss_check()
            complete = all(key in self.initial and not self.other(key) for key in self.folded)
            if complete and "lost" not in self.notes:
                before = len(self.failures)
                for kind, recipe in reference.KINDS.items():
                    self.steps_check(kind, recipe)
                # A message said that a computation of parameters may be missing: it named the result.
                if len(self.failures) > before and self.has_computed:
                    del self.failures[before:]
                    self.notes = {key: note for key, note in self.notes.items() if key not in reference.KINDS}
                    self.notes["lost"] = "a computation"
                    self.verify_check()
            else:
                self.verify_check()

    @property
    def run(self):
        return self.path.with_suffix(".run")

    def compile(self, optimizer, steps):
        """Trains on the one batch. Returns the metrics and the trained tensors, or None if it failed."""
        batch = self.folder / f"{slug(self.name)}.npz"
        options = [*optimizer, "--steps", steps, "--threads", 1, "--device", "cpu"]
        arguments = ["compile", self.path, *self.flags, "--train", batch, *options]
        code, output, self.messages = ran([self.binary, *arguments, "-o", self.run, "--force"])
        self.messages += output
        if code != 0:
            return None
        metrics = [json.loads(line) for line in (self.run / "metrics.jsonl").read_text().splitlines()]
        losses = [entry["loss"] for entry in metrics if "loss" in entry]
        return losses, load_file(self.run / "model.safetensors")

    def start(self):
        """Takes a step of length zero, which shows what the trained file calls each value. Returns whether that worked."""
        done = self.compile(["--optimizer", "sgd", "--lr", 0, "--weight-decay", 0], 1)
        if done is None:
            self.failures.append(f"compile: {brief(self.messages)}")
            return False
        # A search that reaches its limit leaves the program as it was.
        self.failures += [line for line in self.messages.splitlines() if " stopped after " in line]
        self.first, self.initial = done[0][0], done[1]
        self.matched = {key: key for key in self.initial if key in self.module.state}
        for key, value in self.initial.items():
            if key not in self.matched:
                self.matched[key] = self.equal(value)
        self.owners = {key: self.module.owner(name) or name for key, name in self.matched.items()}
        code, output, messages = ran([self.binary, "inspect", self.path, *self.flags, "--format", "json"])
        if code != 0:
            self.failures.append(f"inspect: {brief(messages)}")
            return False
        self.inspected = json.loads(output)
        return True

    def equal(self, value):
        """Returns the module's key with the same elements that no tensor of the trained file has yet."""
        taken = set(self.matched.values())
        # An exporter renames parameters; buffers keep their names.
        order = sorted(self.module.state, key=lambda key: key not in self.module.parameters)
        left = {key: own for key in order if key not in taken and (own := self.module.state[key]).size == value.size}
        for key, own in left.items():
            if own.shape == value.shape and numpy.array_equal(own, value):
                return key
        ordered = numpy.sort(value.ravel())
        return next((key for key, own in left.items() if numpy.array_equal(numpy.sort(own.ravel()), ordered)), None)

    def twins(self, name):
        """Whether other parameters start with the same elements, so that a value does not tell which of them it is."""
        own = numpy.sort(self.module.state[name].ravel())
        same = [n for n in self.module.parameters if numpy.array_equal(numpy.sort(self.module.state[n].ravel()), own)]
        return len(same) > 1

    def trained(self):
        """Returns the names that `inspect` gives to what is trained, as names of the module where it has them."""
        names = []
        for tensor in self.inspected["parameters"]["tensors"]:
            if tensor["role"] != "parameter" or tensor["frozen"]:
                continue
            author = tensor.get("author")
            own = [author] if isinstance(author, str) else list(author or [])
            known = [name for name in [tensor["name"], *tensor["aliases"]] if name in self.module.state]
            # A packed tensor holds several parameters one after the other. One that was merged stands for the first alone.
            packed = sum(self.module.state[name].size for name in known) == size(tensor["type"])
            own = own or (known if packed else known[:1]) or [name for name in [tensor["name"]] if self.owners.get(name)]
            own = own or [state.get("author") or state["state"] for state in tensor["states"]] or [tensor["name"]]
            names += own
            self.stored.update((name, tensor["name"]) for name in own)
        return names

    def set_check(self):
        """The trained tensors are the parameters that the file holds, by name, up to ties."""
        self.stored = {}
        found = {name: self.module.owner(name) or self.owners.get(name) or name for name in self.trained()}
        self.got = set(found.values())
        missing, extra = sorted(self.held - self.got), sorted(self.got - self.held)
        if missing:
            self.failures.append(f"not trained: {listed(missing)}")
        # What a folded parameter went into is trained in its place.
        # A message names what the exporter computed, which is trained in its place.
        self.computed = [name for name in extra if name not in self.module.state and name in self.messages]
        if self.computed and not self.folded:
            self.notes.setdefault("lost", "a computation")
        if self.folded or "lost" in self.notes:
            wrong = [name for name in extra if name in self.module.state and name not in self.folded]
            self.notes["instead"] = [name for name in extra if name not in wrong]
            extra = wrong
        if extra:
            self.failures.append(f"trained though no parameter: {listed(extra)}")

    def renamed(self, name):
        """Whether the file has a parameter's value without its name: the legacy exporter numbers the matrices that it
        transposes, and the dynamo exporter drops the call of a tensor that it looked up or reshaped in advance."""
        key = self.matched.get(name)
        return key is not None and (not mentions(self.file, key) or f"`{name}` ({key} in another layout)" in self.messages)

    def other(self, key):
        """Whether the trained file has another value for a key than the module before training."""
        return key in self.initial and not numpy.array_equal(self.initial[key], self.module.state[key])

    def warning_check(self):
        """A parameter that the exporter recorded, and that is not trained, is named by a message."""
        absent = [*(key for key in self.folded if key not in self.got or self.other(key)), *self.module.facts["unused"]]
        silent = [key for key in absent if key in self.file.recorded and key not in self.messages]
        if silent:
            self.failures.append(f"no message names: {listed(silent)}")

    def load_check(self):
        """The trained file loads into the module."""
        keys, state = set(self.initial), set(self.module.state)
        unexpected = sorted(keys - state)
        self.notes["renamed"] = [key for key in unexpected if self.renamed(key)]
        # The file does not hold the name, so a message must say what the tensor is called instead.
        silent = [key for key in self.notes["renamed"] if key not in self.messages]
        if silent:
            self.failures.append(f"no message says that the name is not in the file: {listed(silent)}")
        unexpected = [key for key in unexpected if key not in self.notes["renamed"]]
        if self.folded:
            unexpected = [key for key in unexpected if self.owners[key] in self.held]
        # A guess may have named it; the trained file has the file's name for it.
        computed = {*self.computed, *(self.stored[name] for name in self.computed)}
        unexpected = [key for key in unexpected if key not in computed or key not in self.messages]
        if unexpected:
            self.failures.append(f"unexpected keys: {listed(unexpected)}")
        shapes = [key for key in sorted(keys & state) if self.initial[key].shape != self.module.state[key].shape]
        if shapes:
            self.failures.append(f"other shapes: {listed(f'{k} {list(self.initial[k].shape)}' for k in shapes)}")
        values = [key for key in sorted(keys & state) if key not in shapes and key in self.held and self.other(key)]
        if values:
            self.failures.append(f"other values at the start: {listed(values)}")
        loaded = {self.owners.get(key) or key for key in keys & state | set(self.notes["renamed"])}
        self.notes["absent"] = sorted(key for key in state - keys if (self.module.owner(key) or key) not in loaded)
        absent = sorted(self.held - loaded)
        if absent:
            self.failures.append(f"missing keys: {listed(absent)}")

    def loss_check(self):
        """The loss before training is PyTorch's."""
        wanted = reference.trained(self.folder, self.name, self.family, self.weights, reference.KINDS["sgd"])["losses"][0]
        off = abs(self.first - wanted) / abs(wanted)
        if not off <= LOSSES:
            self.failures.append(f"loss: {self.first} at the start, PyTorch's is {wanted}")

    def verify_check(self):
        """A step of a file that cannot be trained as PyTorch would is at least the step of its graph."""
        code, output, messages = ran([self.binary, "verify", self.path, *self.flags])
        self.notes["verify"] = code == 0
        if code != 0:
            self.failures.append(f"verify: exit code {code}, {brief(messages + output)}")

    def steps_check(self, kind, recipe):
        """Ten steps give PyTorch's losses and weights."""
        wanted = reference.trained(self.folder, self.name, self.family, self.weights, recipe)
        done = self.compile(reference.flags(recipe, wanted["settings"]), reference.STEPS)
        if done is None:
            self.failures.append(f"{kind}: {brief(self.messages)}")
            return
        if len(done[0]) != reference.STEPS:
            self.failures.append(f"{kind}: {len(done[0])} losses")
        loss, worst, where = self.beside(done, wanted["losses"], wanted["state"], wanted["idle"])
        self.notes[kind] = {"loss": loss, "weights": worst, "where": where, "noise": wanted["noise"], **wanted["settings"]}
        # Where PyTorch's own rounding is above the tolerance at every learning rate, it takes the tolerance's place.
        rounding = [3 * part for part in wanted["noise"]]
        self.notes[kind]["rounding"] = loss > LOSSES or worst > WEIGHTS
        differs = loss > max(LOSSES, rounding[0]) or worst > max(WEIGHTS, rounding[1]) or not numpy.isfinite(loss + worst)
        if differs and not self.takes_other_side(done, recipe, wanted):
            noise = "{:.1e}, {:.1e}".format(*wanted["noise"])
            self.failures.append(f"{kind}: losses {loss:.1e}, weights {worst:.1e} ({where}); PyTorch's f32 to its f64 {noise}")

    def takes_other_side(self, done, recipe, wanted):
        """Whether a run of PyTorch from weights changed in their last bit has these losses and weights: a kink lies within rounding,
        and both runs take its other side."""
        runs = reference.moved_runs(self.folder, self.name, self.family, self.weights, recipe, wanted["settings"])
        found = (self.beside(done, *run, wanted["idle"]) for run in runs)
        return any(loss <= LOSSES and worst <= WEIGHTS for loss, worst, _ in found)

    def beside(self, done, losses, state, idle):
        """Returns the largest relative distance of a loss, that of a tensor, and the tensor's name."""
        loss = max(abs(a - b) / abs(b) for a, b in zip(done[0], losses))
        return loss, *self.distance(done[1], state, idle)

    def distance(self, tensors, state, idle):
        """Returns the largest relative distance of a trained parameter or statistic from PyTorch's, and its name."""
        worst, where = 0.0, ""
        for key, value in tensors.items():
            name = self.owners.get(key) or key
            statistic = self.family.training and name.endswith(("running_mean", "running_var"))
            if name not in self.module.parameters and not statistic or name in idle:
                continue
            if key not in self.module.state and self.twins(name):
                continue
            own = state[name].double().numpy()
            if statistic and name in self.file.named:
                # Tracing has moved the file's statistics, of which a tenth is lost at each step.
                own = own + 0.9**reference.STEPS * (self.file.named[name] - self.module.state[name])
            if value.shape != own.shape:
                if numpy.squeeze(value).shape == numpy.squeeze(own).shape:
                    value = value.reshape(own.shape)
                elif value.T.shape == own.shape:
                    value = value.T
                else:
                    continue
            elif key not in self.module.state and not numpy.array_equal(self.initial[key], self.module.state[name]):
                value = value.T
            off = numpy.abs(value - own).max() / max(numpy.abs(own).max(), 1e-3 if statistic else 1e-30)
            if off > worst:
                worst, where = float(off), name
        return worst, where
