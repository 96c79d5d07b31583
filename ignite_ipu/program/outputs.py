"""The output of a model, and the parts of it that PopTorch can bring back from the device."""

from __future__ import annotations

import itertools
import operator
from typing import Any, Iterator, Mapping, Tuple

import torch

from ignite_ipu.errors import OutputError
from ignite_ipu.program.tensors.trees import Attribute, opened, opened_record, tensors_in


def known_to_poptorch(output: Any) -> Any:
    """Return an output with dictionaries in place of mappings of other kinds, in which PopTorch finds no tensors."""
    container = None if isinstance(output, torch.Tensor) else opened(output)
    if container is None:
        return output
    if not isinstance(output, (dict, list, tuple)):
        return {key: known_to_poptorch(part) for key, part in output.items()}
    parts = list(map(known_to_poptorch, container.parts))
    return output if all(map(operator.is_, parts, container.parts)) else container.maker()(parts)


def check_output(output: Any) -> None:
    """Refuse an output that would come back without its tensors, or that has none."""
    for held, attribute in _not_found(output):
        raise OutputError(
            f"The model's output contains a {type(held).__qualname__}, whose tensors PopTorch does not find"
            f"{attribute and ' in its attribute '}{attribute}. Take them out with model_transform, for example "
            "model_transform=lambda output: output.logits."
        )
    if not tensors_in(output):
        raise OutputError(
            f"The model's output is {describe_value(output)}, in which there is no tensor, so nothing can come back "
            "from the device. Return a tensor or a tuple, list or dict of tensors (model_transform can convert it)."
        )


def _not_found(output: Any) -> Iterator[Tuple[Any, str]]:
    """Yield objects with tensors that PopTorch does not find, each with the attribute that has them if it is known."""
    if isinstance(output, torch.Tensor):
        return
    container = opened(output)
    if container is None:
        if opened_record(output) is not None:
            yield output, ""
        return
    for key, part in zip(container.keys or itertools.repeat(None), container.parts):
        if type(key) is not Attribute:
            yield from _not_found(part)
        elif tensors_in(part):
            yield output, key.name


def describe_value(value: Any) -> str:
    """Return the description of a value in messages."""
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    if isinstance(value, (tuple, list)):
        return f"a {type(value).__name__} of {len(value)} items ({', '.join(describe_value(item) for item in value)})"
    if isinstance(value, Mapping):
        return f"a {type(value).__name__} with the keys {list(value)}"
    return f"a {type(value).__name__}" if value is not None else "None"
