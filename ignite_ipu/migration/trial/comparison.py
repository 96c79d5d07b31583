"""Two traces of the same model and batch: where they differ, a value of the host changes from call to call."""

from __future__ import annotations

import math
from typing import Any, Dict, Iterator, Tuple

import torch
from torch import fx

from ignite_ipu.emulator.inspection import Trace, leaves


def differences(first: Trace, second: Trace) -> Iterator[Tuple[str, str]]:
    """Yield the name of each node or constant of the first trace that the second has otherwise, and how.

    Two traces that go different ways are compared as far as they go together.
    """
    for (name, one), other in zip(first.constant_values.items(), second.constant_values.values()):
        if one.shape != other.shape or one.dtype != other.dtype:
            yield name, f"a tensor of shape {tuple(one.shape)} and then of shape {tuple(other.shape)}"
        elif not torch.equal(torch.nan_to_num(one), torch.nan_to_num(other)):
            yield name, "one tensor and then another"
    numbers_first, numbers_second = _numbers(first), _numbers(second)
    nodes = [node for node in first.graph.nodes if node.op == "call_function"]
    others = [node for node in second.graph.nodes if node.op == "call_function"]
    for node, twin in zip(nodes, others):
        if _operator(node) != _operator(twin):
            yield node.name, f"{_operator(node)} and then {_operator(twin)}: forward takes another way"
            return
        mine = [_leaf(leaf, numbers_first) for leaf in leaves((list(node.args), dict(node.kwargs)))]
        theirs = [_leaf(leaf, numbers_second) for leaf in leaves((list(twin.args), dict(twin.kwargs)))]
        for value, other_value in zip(mine, theirs):
            if value != other_value:
                yield node.name, f"{_said(value)} and then {_said(other_value)}"
                break
    if len(nodes) != len(others):
        longer = nodes if len(nodes) > len(others) else others
        extra = longer[min(len(nodes), len(others))]
        last = nodes[min(len(nodes), len(others)) - 1].name if nodes and others else extra.name
        yield (extra.name if longer is nodes else last), f"{_operator(extra)} in one call and not in the other"


def _numbers(capture: Trace) -> Dict[fx.Node, int]:
    return {node: number for number, node in enumerate(capture.graph.nodes)}


def _operator(node: fx.Node) -> str:
    return str(node.meta.get("operator", node.name))


def _leaf(value: Any, numbers: Dict[fx.Node, int]) -> Any:
    if isinstance(value, fx.Node):
        return ("node", numbers[value])
    if isinstance(value, float) and math.isnan(value):
        return "nan"
    # Generators, functions and the like are compared by what they are, not by where they lie.
    return value if isinstance(value, (int, float, bool, str, type(None))) else type(value).__name__


def _said(value: Any) -> str:
    return "another tensor" if isinstance(value, tuple) else repr(value)
