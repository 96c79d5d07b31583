"""Optimizers and the arguments of their constructors."""

from __future__ import annotations

from typing import FrozenSet, Optional

from ignite_ipu.capabilities.table import Capability, Table, Treatment

TORCH, POPTORCH = "torch.optim", "poptorch.optim"
ON_THE_HOST = "With IPUConfig(update='host') PyTorch makes the updates, by any optimizer, with gradients of the device."
_MADE = "torch.optim.SGD(model.parameters(), lr=0.1)"
_HAVE = ("SGD", "Adam", "AdamW", "RMSprop")
_OF_PYTORCH = "chooses how PyTorch computes the update; the device has one way"
_IGNORED = "PopTorch ignores it without a word"
_OTHER = "PopTorch has no such update"

OPTIMIZERS = Table(
    [
        *[Capability(f"{TORCH}.{name}", Treatment.DEVICE, "PopTorch's own update") for name in _HAVE],
        *[Capability(f"{POPTORCH}.{name}", Treatment.DEVICE, "PopTorch's own update") for name in (*_HAVE, "LAMB")],
        Capability(
            f"{TORCH}.LBFGS",
            Treatment.UPDATES_ON_HOST,
            "it evaluates the loss several times in a step, which a compiled step cannot",
            ON_THE_HOST,
        ),
        Capability(
            f"{TORCH}.SparseAdam",
            Treatment.UPDATES_ON_HOST,
            "gradients are dense on an IPU; torch.optim.Adam computes the same from dense gradients, except that it "
            "also decays the moments of rows that were not used",
            ON_THE_HOST,
        ),
    ]
)
"""Optimizers by class; `optimizer_capability` knows the others, too."""

ARGUMENTS = Table(
    [
        Capability(
            f"{TORCH}.Optimizer(amsgrad)",
            Treatment.UPDATES_ON_HOST,
            "the device has no such variant",
            "Use amsgrad=False",
            replaces=_MADE,
            example="torch.optim.Adam(model.parameters(), lr=0.1, amsgrad=True)",
        ),
        Capability(
            f"{TORCH}.Optimizer(differentiable)",
            Treatment.UPDATES_ON_HOST,
            "nothing can be differentiated through an update on the device",
            "Use differentiable=False",
        ),
        Capability(
            f"{TORCH}.Optimizer(maximize)",
            Treatment.DEVICE,
            "the device minimises the negated loss",
            replaces=_MADE,
            example="torch.optim.SGD(model.parameters(), lr=0.01, maximize=True)",
        ),
        Capability(f"{TORCH}.Optimizer(decoupled_weight_decay)", Treatment.DEVICE, "Adam becomes AdamW"),
        *[
            Capability(
                f"{TORCH}.Optimizer({name})",
                Treatment.LEFT_OUT,
                _OF_PYTORCH,
                replaces=_MADE,
                example=f"torch.optim.Adam(model.parameters(), lr=0.1, {name}=False)",
            )
            for name in ("foreach", "fused", "capturable")
        ],
        Capability(f"{POPTORCH}.Optimizer(amsgrad)", Treatment.REFUSED, "PopTorch refuses it", "Use amsgrad=False"),
        *[
            Capability(f"{POPTORCH}.Optimizer({name})", Treatment.REFUSED, _IGNORED, f"Use {name}=False")
            for name in ("maximize", "differentiable", "decoupled_weight_decay")
        ],
        *[
            Capability(f"{POPTORCH}.Optimizer({name})", Treatment.LEFT_OUT, _OF_PYTORCH)
            for name in ("foreach", "fused", "capturable")
        ],
    ]
)
"""Arguments that are more than numbers of the update, and given when they are neither False nor None."""


def optimizer_capability(name: str) -> Capability:
    """Return the entry of an optimizer's class by its dotted name; updates on the host if the table has none."""
    known = {entry.name: entry for entry in OPTIMIZERS}
    return known.get(name) or Capability(name, Treatment.UPDATES_ON_HOST, _OTHER, ON_THE_HOST, listed=False)


def argument_capability(optimizer: str, argument: str) -> Optional[Capability]:
    """Return the entry of an argument of an optimizer, given by its dotted name; None for a plain number."""
    package = POPTORCH if optimizer.startswith(POPTORCH) else TORCH
    return next((entry for entry in ARGUMENTS if entry.name == f"{package}.Optimizer({argument})"), None)


def left_out_arguments() -> FrozenSet[str]:
    """Return the arguments that choose the implementation of an update, not its result."""
    return frozenset(entry.argument for entry in ARGUMENTS.with_treatment(Treatment.LEFT_OUT))
