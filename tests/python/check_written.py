#!/usr/bin/env python3
"""Checks the ONNX files that `trainyard inspect --format onnx` writes, with tools that are not Trainyard's.

    check_written.py --trainyard BINARY [--folder FOLDER] [MODEL.onnx…]

Without models, those of testdata that cover the operators of its importers.

1. The program after the import, after `canonicalize`, and after the loss pass: the official onnx checker accepts the file, shape inference
   included. After the first two, ONNX Runtime computes the outputs of the original file, max|a - b| <= 1e-5 * max|b|.
2. The training step on several devices, after `spmd` and after the last pass: the checker accepts the file, and each sharding in it names
   tensors of its node and devices of the mesh, one for each shard.

Exits 1 with the differences found.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy
import onnx
import onnxruntime

TOLERANCE = 1e-5
TESTDATA = Path(__file__).parents[2] / "testdata"
SIZES = {"batch": 2, "seq": 6}
# One model of each kind that ONNX Runtime runs as it is.
MODELS = [
    "gpt2-bytes.onnx",
    "recurrent.onnx",
    "models/bert.dynamo.onnx",
    "models/bert.legacy-dyn.onnx",
    "models/gpt2.dynamo.onnx",
    "models/gpt2.dynamo-dyn.onnx",
    "models/gpt2.dynamo-op23.onnx",
    "models/gpt2.legacy-mask.onnx",
    "models/gpt2-fp16.dynamo.onnx",
    "models/gpt2-loss.dynamo.onnx",
    "models/llama.dynamo.onnx",
    "models/llama.dynamo-dyn.onnx",
    "models/llama.dynamo-op23.onnx",
    "models/mixtral.dynamo.onnx",
    "models/mlp.dynamo-dyn.onnx",
    "models/mlp-loss.dynamo.onnx",
    "models/mlp.legacy.onnx",
    "models/resnet.dynamo.onnx",
    "models/smoothed-loss.dynamo.onnx",
    "models/t5.dynamo.onnx",
    "models/t5.dynamo-dyn.onnx",
    "models/weighted-loss.dynamo.onnx",
]
# Steps on several devices: the model, and the flags.
STEPS = [
    ("models/gpt2.dynamo.onnx", ["--mesh", "dp=2,tp=2", "--zero", "1"]),
    ("models/mixtral.dynamo.onnx", ["--mesh", "dp=2"]),
    ("models/gpt2.dynamo.onnx", ["--mesh", "pp=2", "--global-batch", "8", "--microbatch", "2"]),
    ("models/gpt2.dynamo.onnx", ["--bf16"]),
    ("models/resnet.legacy-trainmode.onnx", ["--mesh", "dp=2"]),
]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", type=Path, metavar="MODEL.onnx")
    parser.add_argument("--trainyard", required=True, metavar="BINARY")
    parser.add_argument("--folder", type=Path, help="keep the written files here")
    return parser.parse_args()


def sizes_of(model: onnx.ModelProto) -> dict[str, int]:
    """A size for each named dim of the inputs."""
    dims = [dim.dim_param for value in model.graph.input for dim in value.type.tensor_type.shape.dim]
    return {name: next((size for key, size in SIZES.items() if key in name), 3) for name in dims if name}


def write(arguments: argparse.Namespace, model: Path, flags: list[str], target: Path) -> list[str]:
    command = [arguments.trainyard, "inspect", str(model), *flags, "--format", "onnx", "-o", str(target)]
    run = subprocess.run(command, capture_output=True, text=True)
    return [] if run.returncode == 0 else [f"{' '.join(command)}: {run.stderr.strip()}"]


def refused(path: Path) -> list[str]:
    """What the official checker says."""
    try:
        onnx.checker.check_model(str(path), full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        return [f"the onnx checker refuses {path}: {error}"]
    return []


def random_inputs(model: onnx.ModelProto, sizes: dict[str, int]) -> dict[str, numpy.ndarray]:
    """Normal numbers, and small integers, which are indices of every vocabulary."""
    generator = numpy.random.default_rng(7)
    stored = {tensor.name for tensor in model.graph.initializer}
    inputs = {}
    for value in model.graph.input:
        if value.name in stored:
            continue
        tensor = value.type.tensor_type
        shape = [sizes[dim.dim_param] if dim.dim_param else dim.dim_value for dim in tensor.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        is_float = numpy.issubdtype(dtype, numpy.floating)
        numbers = generator.standard_normal(shape) if is_float else generator.integers(0, 2, shape)
        inputs[value.name] = numpy.asarray(numbers).astype(dtype)
    return inputs


def run(path: Path, inputs: dict[str, numpy.ndarray]) -> dict[str, numpy.ndarray]:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    wanted = {each.name for each in session.get_inputs()}
    return dict(zip(names, session.run(names, {name: inputs[name] for name in wanted})))


def differences(original: Path, written: Path, inputs: dict[str, numpy.ndarray]) -> list[str]:
    expected, found = run(original, inputs), run(written, inputs)
    if expected.keys() != found.keys():
        return [f"{written} has the outputs {sorted(found)}, and the original {sorted(expected)}"]
    problems = []
    for name, value in expected.items():
        other = found[name]
        # Passes may raise the type of an output, from half precision to f32.
        if value.shape != other.shape:
            problems.append(f"{written}: {name} has the dims {other.shape}, not {value.shape}")
            continue
        tolerance = 1e-2 if value.dtype == numpy.float16 else TOLERANCE
        difference = numpy.abs(value.astype(float) - other.astype(float)).max(initial=0)
        largest = numpy.abs(value.astype(float)).max(initial=0)
        if not difference <= tolerance * largest:
            problems.append(f"{written}: {name} differs by {difference}; the largest element is {largest}")
    return problems


def check_forward(arguments: argparse.Namespace, folder: Path, path: Path) -> list[str]:
    model = onnx.load(str(path))
    sizes = sizes_of(model)
    inputs = random_inputs(model, sizes)
    bound = ["--bind", ",".join(f"{name}={size}" for name, size in sizes.items())] if sizes else []
    problems = []
    for after in ("import", "canonicalize", "loss"):
        written = folder / f"{path.stem}.{after}.onnx"
        faults = write(arguments, path, [*bound, "--after", after], written) or refused(written)
        if not faults and after != "loss":
            faults = differences(path, written, inputs)
        problems += faults
    return problems


def wrong_shardings(path: Path) -> list[str]:
    model = onnx.load(str(path))
    devices = {configuration.name: configuration.num_devices for configuration in model.configuration}
    problems, count = [], 0
    for node in model.graph.node:
        for configuration in node.device_configurations:
            if configuration.configuration_id not in devices:
                problems.append(f"{path}: {node.name} is on {configuration.configuration_id}, which is not there")
                continue
            for spec in configuration.sharding_spec:
                count += 1
                groups = {entry.key: list(entry.value) for entry in spec.index_to_device_group_map}
                held = [device for shard in spec.device for device in groups.get(shard, [shard])]
                shards = numpy.prod([dim.simple_sharding[0].num_shards for dim in spec.sharded_dim])
                is_known = spec.tensor_name in [*node.input, *node.output]
                is_placed = all(0 <= device < devices[configuration.configuration_id] for device in held)
                if not (is_known and is_placed and len(set(held)) == len(held) and len(spec.device) == shards):
                    problems.append(f"{path}: {node.name} has a wrong sharding of {spec.tensor_name}")
    if devices and not count and not any(node.device_configurations for node in model.graph.node):
        problems.append(f"{path} has devices, and no node is on them")
    return problems


def check_step(arguments: argparse.Namespace, folder: Path, name: str, flags: list[str], place: int) -> list[str]:
    problems = []
    for after in (["--after", "optimizer"], ["--after", "spmd"], []):
        if after == ["--after", "spmd"] and not any(flag.startswith("dp") for flag in flags):
            continue
        written = folder / f"step-{place}.{after[1] if after else 'last'}.onnx"
        faults = write(arguments, TESTDATA / name, [*flags, *after], written)
        problems += faults or refused(written) + wrong_shardings(written)
    return problems


def main() -> int:
    arguments = parse_arguments()
    onnxruntime.set_default_logger_severity(4)
    problems = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        models = arguments.models or [TESTDATA / name for name in MODELS]
        for path in models:
            faults = check_forward(arguments, folder, path)
            print(f"{path.name}: {'differs' if faults else 'the same after each pass'}")
            problems += faults
        for place, (name, flags) in enumerate([] if arguments.models else STEPS):
            faults = check_step(arguments, folder, name, flags, place)
            print(f"{name} {' '.join(flags)}: {'refused' if faults else 'accepted'}")
            problems += faults
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
