"""Exports a family in its variants: FOLDER/FAMILY.VARIANT.onnx, with a .json that says what the module has.

FOLDER/FAMILY.WEIGHTS.pt holds the weights and the batch, FOLDER/FAMILY.npz the batch alone.
"""

import contextlib
import copy
import hashlib
import json
import logging
import os
import sys
import warnings

import numpy
import torch
from family import constructed, perturb
from models import slug

EXPORTERS = ("dynamo", "noopt", "legacy")
WEIGHTS = ("fresh", "random")
# The form of the .json files. Exports of another form are made again.
FORM = 2
VARIANTS = [f"{exporter}-{weights}" for exporter in EXPORTERS for weights in WEIGHTS]


def prepared(name, family, weights):
    """Returns the objective with the given kind of weights, its inputs and the names of those."""
    objective, inputs, names = constructed(family)
    if weights == "random":
        perturb(objective)
    return objective, inputs, names


def described(objective):
    """Returns what the module says of its tensors: the parameters with shapes and ties, the keys of its state."""
    owners = {}
    for key, parameter in objective.named_parameters(remove_duplicate=False):
        owners.setdefault(id(parameter), []).append(key)
    shapes = {key: list(parameter.shape) for key, parameter in objective.named_parameters()}
    ties = {names[0]: names for names in owners.values()}
    return {
        "parameters": [{"name": key, "shape": shape, "ties": ties[key][1:]} for key, shape in shapes.items()],
        "frozen": [key for key, parameter in objective.named_parameters() if not parameter.requires_grad],
        "state": {key: list(value.shape) for key, value in objective.state_dict().items()},
    }


def unused(objective, inputs):
    """Returns the parameters that get no gradient at all."""
    trial = copy.deepcopy(objective)
    trial(*inputs)[1].backward()
    return [key for key, value in trial.named_parameters() if value.requires_grad and value.grad is None]


def save(folder, name, family, weights):
    """Writes what a kind of weights shares between exporters, and returns the objective and its inputs."""
    objective, inputs, names = prepared(name, family, weights)
    torch.save({"state": objective.state_dict(), "inputs": inputs}, folder / f"{slug(name)}.{weights}.pt")
    numpy.savez(folder / f"{slug(name)}.npz", **{key: value.numpy() for key, value in zip(names, inputs)})
    return objective, inputs, names


def digest(objective):
    """Returns a number that changes with the weights."""
    state = objective.state_dict()
    return hashlib.sha256(b"".join(value.numpy().tobytes() for value in state.values())).hexdigest()[:16]


def current(file):
    """Whether an export is there, and in the form that the checks read."""
    return file.exists() and json.loads(file.read_text()).get("form") == FORM


def export(folder, name, family, variants, again=False):
    """Exports the variants that are not there yet."""
    for weights in WEIGHTS:
        wanted = [variant for variant in variants if variant.endswith(f"-{weights}")]
        files = {variant: folder / f"{slug(name)}.{variant}.json" for variant in wanted}
        wanted = [variant for variant in wanted if again or not current(files[variant])]
        if not wanted:
            continue
        for stale in folder.glob(f"{slug(name)}.{weights}.*.pt"):
            stale.unlink()
        objective, inputs, names = save(folder, name, family, weights)
        facts = {**described(objective), "unused": unused(objective, inputs), "inputs": names, "weights": digest(objective), "form": FORM}
        for exporters in (("dynamo", "noopt"), ("legacy",)):
            chosen = [e for e in exporters if f"{e}-{weights}" in wanted]
            paths = {e: folder / f"{slug(name)}.{e}-{weights}.onnx" for e in chosen}
            if not chosen:
                continue
            error = legacy(objective, inputs, names, paths) if exporters == ("legacy",) else dynamo(objective, inputs, names, paths)
            for exporter in chosen:
                path = paths[exporter]
                path.with_suffix(".json").write_text(json.dumps({**facts, "family": name, "error": error}, indent=1))


@contextlib.contextmanager
def silent():
    """Silences the exporters, which print the graphs that they cannot take, also from C++."""
    logging.disable(logging.WARNING)
    sys.stdout.flush()
    kept, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)
        logging.disable(logging.NOTSET)


def dynamo(objective, inputs, names, paths):
    """Writes the files of the newer exporter, and returns its error if there is one."""
    try:
        with silent(), torch.no_grad():
            program = torch.onnx.export(
                copy.deepcopy(objective), inputs, dynamo=True, optimize=False, verbose=False, input_names=names,
                output_names=["output", "loss"],
            )  # fmt: skip
            if "noopt" in paths:
                program.save(paths["noopt"])
            if "dynamo" in paths:
                program.optimize()
                program.save(paths["dynamo"])
    except Exception as error:  # of any kind: the exporter's
        return str(error)[:2000]
    return None


def legacy(objective, inputs, names, paths):
    """Writes the file of the older exporter, and returns its error if there is one."""
    options = {}
    if objective.training:
        options = dict(training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False)
    try:
        with silent(), torch.no_grad():
            torch.onnx.export(
                copy.deepcopy(objective), inputs, paths["legacy"], dynamo=False, input_names=names,
                output_names=["output", "loss"], **options,
            )  # fmt: skip
    except Exception as error:  # of any kind: the exporter's
        return str(error)[:2000]
    return None
