"""Writes into arguments that PyTorch does not count: the running statistics of normalisations."""

from __future__ import annotations

from typing import Any, Dict, List, Tuple

from ignite_ipu.emulator.trace.traced_tensor import IpuTensor

# The argument that says whether the statistics are updated, by operator.
_FLAGS = {"batch_norm": "training", "instance_norm": "use_input_stats"}
_STATISTICS = ("running_mean", "running_var")
_NAMES = ("input", *_STATISTICS, "weight", "bias")
# `torch.batch_norm` and `torch.instance_norm` take them in another order, and always all nine arguments.
_NAMES_OF_NINE = ("input", "weight", "bias", *_STATISTICS)
_Arguments = Tuple[Tuple[Any, ...], Dict[str, Any]]


def hidden_writes(name: str, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> List[IpuTensor]:
    """Return the traced arguments that operator `name` writes into without PyTorch's version counters noticing."""
    named = _updated(name, args, kwargs)
    return [named[each] for each in _STATISTICS if isinstance(named.get(each), IpuTensor)]


def without_hidden_writes(name: str, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> _Arguments:
    """Return arguments with which operator `name` computes the same and writes no statistics.

    That is how an inference program normalises with a batch's own statistics.
    """
    if not _updated(name, args, kwargs):
        return args, kwargs
    names = _names(args, kwargs)
    args = tuple(None if each in _STATISTICS else value for each, value in zip(names, args)) + args[len(names) :]
    return args, {each: value for each, value in kwargs.items() if each not in _STATISTICS}


def _updated(name: str, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Dict[str, Any]:
    """Return the arguments by name if the operator updates statistics, else none."""
    flag = _FLAGS.get(name)
    if flag is None:
        return {}
    named = {**dict(zip((*_names(args, kwargs), flag), args)), **kwargs}
    return named if named.get(flag, flag == "use_input_stats") else {}


def _names(args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Tuple[str, ...]:
    return _NAMES_OF_NINE if len(args) + len(kwargs) == 9 else _NAMES
