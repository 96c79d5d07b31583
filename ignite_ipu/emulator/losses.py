"""Which operators count as losses, and which of the losses in a graph the gradient is taken of."""

from __future__ import annotations

from typing import Any, Collection, Dict, Mapping, Sequence, Set, Tuple

from torch import fx

from ignite_ipu.emulator.errors import backend_error

# The functional name of each recognised loss; the loss modules of torch.nn all arrive here too.
RECOGNISED = frozenset(
    {
        "l1_loss",
        "mse_loss",
        "cross_entropy",
        "nll_loss",
        "binary_cross_entropy",
        "binary_cross_entropy_with_logits",
        "kl_div",
        "poisson_nll_loss",
        "hinge_embedding_loss",
        "smooth_l1_loss",
        "soft_margin_loss",
        "cosine_embedding_loss",
        "margin_ranking_loss",
        "triplet_margin_loss",
        "ctc_loss",
    }
)

_UNSUPPORTED = frozenset({"huber_loss"})
_WITH_CLASS_WEIGHTS = frozenset({"cross_entropy", "nll_loss"})
_LABEL_SMOOTHING = 7  # its position among cross_entropy's arguments
_CTC_REDUCTION = 5
_NO_REDUCTION = ("none", 0)


def check_arguments(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Refuse what the compiler cannot lower in the loss operator `name`.

    Raises:
        Error: The operator is not supported, has class weights, or is a CTC loss without reduction.
    """
    if name in _UNSUPPORTED:
        raise backend_error(f"Unsupported ops found in compiled model: [aten::{name}]. Use smooth_l1_loss instead.")
    if name in _WITH_CLASS_WEIGHTS and _argument(args, kwargs, 2, "weight") is not None:
        raise backend_error(
            f'Parameter "weight" is unsupported in {name}: the compiled loss has no class weights. Use '
            'reduction="none", multiply by the weights yourself and pass the result to poptorch.identity_loss.'
        )
    if name == "ctc_loss" and _argument(args, kwargs, _CTC_REDUCTION, "reduction") in _NO_REDUCTION:
        raise backend_error('ctc_loss with reduction "none" is currently not supported; use "sum" or "mean".')


def without_label_smoothing(
    args: Tuple[Any, ...], kwargs: Dict[str, Any]
) -> Tuple[Tuple[Any, ...], Dict[str, Any], float]:
    """Return `cross_entropy`'s arguments as the device reads them, and the label smoothing that it does not read."""
    smoothing = float(_argument(args, kwargs, _LABEL_SMOOTHING, "label_smoothing") or 0.0)
    if not smoothing:
        return args, kwargs, 0.0
    if len(args) > _LABEL_SMOOTHING:
        return (*args[:_LABEL_SMOOTHING], 0.0, *args[_LABEL_SMOOTHING + 1 :]), kwargs, smoothing
    return args, {**kwargs, "label_smoothing": 0.0}, smoothing


def final_loss(losses: Sequence[fx.Node]) -> fx.Node:
    """Return the loss that the gradient is taken of: the one that no other loss consumes.

    Raises:
        Error: There is no loss, or there are several that do not depend on one another.
    """
    if not losses:
        raise backend_error(
            "Couldn't find a loss in graph: a training model's forward must call one of PyTorch's recognised losses, "
            "or poptorch.identity_loss on a loss of its own."
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


def _argument(args: Sequence[Any], kwargs: Mapping[str, Any], position: int, name: str) -> Any:
    return args[position] if len(args) > position else kwargs.get(name)
