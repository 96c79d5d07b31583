"""Operators that count as losses, and the one of a graph that the gradient is taken of."""

from __future__ import annotations

from typing import Any, Collection, Mapping, Sequence, Set

import torch
from torch import fx

from ignite_ipu.emulator.errors import backend_error
from ignite_ipu.emulator.trace.operators import table

# The functional name of each recognised loss; the loss modules of torch.nn all arrive here too.
RECOGNISED = frozenset(table.GROUPS["losses"]) - {"multilabel_soft_margin_loss", "triplet_margin_with_distance_loss"}


def is_loss(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Tell whether a call is a loss: cross entropy with class probabilities is none, PyTorch composes it."""
    if name not in RECOGNISED:
        return False
    target = args[1] if len(args) > 1 else kwargs.get("target")
    return name != "cross_entropy" or not (isinstance(target, torch.Tensor) and target.is_floating_point())


def final_loss(losses: Sequence[fx.Node]) -> fx.Node:
    """Return the loss that the gradient is taken of: the one that no other loss consumes."""
    if not losses:
        raise backend_error(
            "Couldn't find a loss in graph: a training model's forward must call one of PyTorch's recognised losses, "
            "or poptorch.identity_loss on a loss of its own. Cross entropy with class probabilities and others that "
            "PyTorch composes of several operators are none: pass them to poptorch.identity_loss."
        )
    candidates = set(losses)
    for loss in losses:
        candidates -= ancestors(loss)
    if len(candidates) > 1:
        names = ", ".join(sorted(node.name for node in candidates))
        raise backend_error(
            f"Multiple independent losses found in graph: {names}. Combine them, for example with "
            'poptorch.identity_loss(loss1 + loss2, reduction="sum").'
        )
    return candidates.pop()


def ancestors(node: fx.Node, stop: Collection[fx.Node] = ()) -> Set[fx.Node]:
    """Return what `node` depends on, through arguments or memory written before it; not beyond the nodes in `stop`."""
    found: Set[fx.Node] = set()
    pending = [node]
    while pending:
        current = pending.pop()
        for source in (*current.all_input_nodes, *current.meta.get("after", ())):
            if source not in found:
                found.add(source)
                if source not in stop:
                    pending.append(source)
    return found
