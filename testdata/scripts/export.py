"""What the scripts that export a model share: one way to call PyTorch's exporter, and to make its output reproducible."""

import logging
import os
import warnings
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ["CUDA_VISIBLE_DEVICES"] = ""
warnings.filterwarnings("ignore")
logging.disable(logging.WARNING)

import onnx
import torch

PERTURBATION_SEED = 7
PERTURBATION_STANDARD_DEVIATION = 1e-3


def make_constant_parameters_distinct(model: torch.nn.Module) -> None:
    """Adds a little noise to the parameters that are all ones or all zeros (scales and biases).

    The exporter's optimizer merges initializers with equal bytes and drops biases that are zero, so without this the scales
    of all norms of an untrained model would be one parameter, and most biases would be gone.
    """
    generator = torch.Generator().manual_seed(PERTURBATION_SEED)
    with torch.no_grad():
        for parameter in model.parameters():
            if bool((parameter == parameter.flatten()[0]).all()):
                noise = torch.randn(parameter.shape, generator=generator)
                parameter.add_(PERTURBATION_STANDARD_DEVIATION * noise)


def export_model(
    model: torch.nn.Module | torch.export.ExportedProgram,
    inputs: dict[str, torch.Tensor],
    output: Path,
    small: bool = False,
    **options,
) -> None:
    """Exports `model`, checks the file, and writes it without the stack traces of this machine.

    `small` keeps of what is said of a node nothing but the module that it came from. `options` are the exporter's.
    """
    torch.onnx.export(
        model,
        tuple(inputs.values()),
        str(output),
        dynamo=True,
        external_data=False,
        input_names=list(inputs),
        verbose=False,
        **{"output_names": ["logits"], **options},
    )
    exported = onnx.load(str(output))
    for node in exported.graph.node:
        kept = [entry for entry in node.metadata_props if not is_left_out(entry.key, small)]
        del node.metadata_props[:]
        node.metadata_props.extend(kept)
    if small:
        del exported.graph.value_info[:]
    onnx.checker.check_model(exported, full_check=True)
    output.write_bytes(exported.SerializeToString(deterministic=True))
    print(f"{output}: {len(exported.graph.node)} nodes, {output.stat().st_size} bytes")


def is_left_out(key: str, small: bool) -> bool:
    """Whether an entry of this key is left out of what is said of a node."""
    return key != "pkg.torch.onnx.name_scopes" if small else key == "pkg.torch.onnx.stack_trace"
