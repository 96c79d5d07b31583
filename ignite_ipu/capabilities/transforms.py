"""Calls of models that PyTorch transforms: by `torch.func`, or with other weights than their own."""

from __future__ import annotations

from typing import FrozenSet

from ignite_ipu.capabilities.traced import Restriction

FUNCTIONAL_CALLS: FrozenSet[str] = frozenset(
    (
        "torch.func.functional_call",
        "torch.nn.utils.stateless.functional_call",
    )
)
"""Functions that call a model with weights that they are given."""
_NAMES = ("grad", "grad_and_value", "hessian", "jacfwd", "jacrev", "jvp", "linearize", "vjp", "vmap")
TRANSFORMS: FrozenSet[str] = frozenset(
    ("torch.vmap", *(f"{module}.{name}" for module in ("torch.func", "functorch") for name in _NAMES))
)
"""Functions that call another one, their first argument, within a transform."""
TRANSFORMED = Restriction(
    "A model is called within a transform of torch.func, such as grad, vmap or jacrev: PyTorch makes it of operations "
    "on the host, and a compiled program has none",
    "Transform a copy that is not captured, copy.deepcopy(model) in a loop with ipu_prepare, or put the transform's "
    "computation into the model's forward.",
)
OTHER_WEIGHTS = Restriction(
    "A model is called by functional_call with other weights than its own, and its program is compiled for those on "
    "the device",
    "Call a copy that is not captured, copy.deepcopy(model) in a loop with ipu_prepare; or write the weights into the "
    "model with load_state_dict.",
)
COMPUTED_ONCE = Restriction(
    "A model goes on from a tensor that an earlier call has computed from weights and kept",
    "In eager PyTorch gradients flow through it to the weights. Here each step is a program of its own, and would have "
    "it as a constant, also if the loop clears it before each step. Compute it in each call; or keep it without "
    "gradients (detach()).",
)
