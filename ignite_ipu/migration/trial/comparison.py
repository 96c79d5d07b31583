"""Two traces of the same model and batch: where they differ, a value of the host changes from call to call."""

from __future__ import annotations

import itertools
import math
from typing import Any, Iterator, List, Optional, Tuple

import torch
from torch import fx

from ignite_ipu.emulator.inspection import Trace, leaves


def differences(first: Trace, second: Trace) -> Iterator[Tuple[str, str]]:
    """Yield the name of each node or constant of the first trace that the second has otherwise, and how.

    Two traces that go different ways are compared as far as they go together.
    """
    for (constant, one), other in zip(first.constant_values.items(), second.constant_values.values()):
        if one.shape != other.shape or one.dtype != other.dtype:
            yield constant.name, f"a tensor of shape {tuple(one.shape)} and then of shape {tuple(other.shape)}"
        elif not torch.equal(torch.nan_to_num(one), torch.nan_to_num(other)):
            yield constant.name, "one tensor and then another"
    last: Optional[fx.Node] = None
    for node, twin in itertools.zip_longest(_operators(first), _operators(second)):
        if node is None or twin is None:
            place = node if node is not None else last if last is not None else twin
            yield place.name, f"{_operator(node or twin)} in one call and not in the other"
            return
        if _operator(node) != _operator(twin):
            yield node.name, f"{_operator(node)} and then {_operator(twin)}: forward takes another way"
            return
        changed = ((mine, theirs) for mine, theirs in zip(_arguments(node), _arguments(twin)) if mine != theirs)
        for mine, theirs in itertools.islice(changed, 1):
            yield node.name, f"{_said(mine)} and then {_said(theirs)}"
        last = node


def _operators(trace: Trace) -> List[Any]:
    for number, node in enumerate(trace.graph.nodes):
        node.meta["number"] = number
    return [node for node in trace.graph.nodes if node.op == "call_function"]


def _operator(node: fx.Node) -> str:
    return str(node.meta.get("operator", node.name))


def _arguments(node: fx.Node) -> List[Any]:
    return [_comparable(leaf) for leaf in leaves((list(node.args), dict(node.kwargs)))]


def _comparable(value: Any) -> Any:
    if isinstance(value, fx.Node):
        return ("node", value.meta["number"])
    if isinstance(value, float) and math.isnan(value):
        return "nan"
    # Generators, functions and the like are compared by what they are, not by where they lie.
    return value if isinstance(value, (int, float, bool, str, type(None))) else type(value).__name__


def _said(value: Any) -> str:
    return "another tensor" if isinstance(value, tuple) else repr(value)
