"""Training on the host that no captured loop has seen, refused at its first backward pass.

An installed package may compute a loss from weights by operators of PyTorch alone, without a call of the model. Such a
loss belongs to no captured step: its gradients and updates would be the host's. Models that the program has put on a
GPU, and weights that an optimizer holds, are to be trained on the device.
"""

from __future__ import annotations

import os
import weakref
from typing import Any, Callable, List, Optional, Sequence, Set, Union

import torch
from torch import nn

from ignite_ipu.capabilities.traced import GRADIENT, NO_FUNCTION
from ignite_ipu.deferred.graph.owners import held_parameters
from ignite_ipu.deferred.tensor.tensor import DeferredTensor
from ignite_ipu.deferred.tensor.without_graph import is_without_graph
from ignite_ipu.errors import RunError
from ignite_ipu.program.forward.eager import EAGER
from ignite_ipu.program.tensors.differentiated import differentiated
from ignite_ipu.program.traced_places import function_at
from ignite_ipu.running.patches import Substitutes
from ignite_ipu.running.script_code import FileLine
from ignite_ipu.torch_names.modules import all_parameters
from ignite_ipu.torch_names.tensors import DisableTorchFunctionSubclass

_NOT_COMPUTED = (
    "this tensor was not computed by a model that is trained, so it would run on the host. Make the optimizer before "
    "the model is called in evaluation mode, or call the model in training mode with gradients enabled."
)
_WITHOUT_A_CALL = (
    "it is computed from weights, or from copies of them, without a call of their model, so it would run on the host. "
    "Compute the loss from the output of a call of the model. A compiled program has one backward pass: inner updates "
    "that the loss goes backward through, as those of MAML, train on the host alone (IGNITE_IPU_BACKEND=native)."
)


class PlacedModels:
    """The models that a program has put on a GPU, each with the line."""

    def __init__(self) -> None:
        self._lines: weakref.WeakKeyDictionary[nn.Module, Optional[FileLine]] = weakref.WeakKeyDictionary()

    def add(self, model: nn.Module, line: Optional[FileLine]) -> None:
        """Note that a model was put on a GPU at a line."""
        self._lines.setdefault(model, line)

    def named(self, weights: Set[int]) -> Optional[str]:
        """Return the words for a model that has one of some weights, given by their ids, None for no such model."""
        for model, line in list(self._lines.items()):
            with DisableTorchFunctionSubclass():
                if any(id(each) in weights for each in all_parameters(model)):
                    place = "" if line is None else f" at {os.path.basename(line[0])}:{line[1]}"
                    return f"{type(model).__name__}, which was put on a GPU{place}"
        return "a parameter that an optimizer holds" if weights & held_parameters() else None


def refuse_host_training(substitutes: Substitutes, placed: PlacedModels) -> None:
    """Refuse backward passes of the program's own lines, and those of packages that reach weights to be trained."""

    def refused(what: str, line: FileLine, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        tensors = args[0] if args else kwargs.get(_TENSORS[what], ())
        if any(isinstance(each, DeferredTensor) for each in _listed(tensors)) or is_without_graph(_listed(tensors)):
            return original(*args, **kwargs)
        if substitutes.code.owns(line[0]):
            if EAGER.is_on:  # in a forward
                reason = GRADIENT.refusal(function_at(*line) or NO_FUNCTION, what)
                raise substitutes.remembered(RunError(line, reason))
            raise substitutes.refusal(what, _reason(tensors), line)
        if EAGER.is_on:
            return original(*args, **kwargs)
        found = placed.named(set(map(id, _leaves(tensors))))
        if found is None:
            return original(*args, **kwargs)
        raise substitutes.refusal(
            what,
            f"{os.path.basename(line[0])}:{line[1]} computes a loss from the weights of {found}, without a call of the "
            "model, so it would be trained on the host. Call the model, and backward() on a loss of its outputs.",
        )

    for owner, name, what in (
        (torch.Tensor, "backward", "backward()"),
        (torch.autograd, "grad", _GRADIENTS),
        (torch.autograd, "backward", "torch.autograd.backward()"),
    ):
        original = getattr(owner, name)
        substitutes.set(owner, name, substitutes.of_own_calls(original, _bound(refused, what)))


_GRADIENTS = "torch.autograd.grad()"
# The name of the argument with the tensors that go backward.
_TENSORS = {"backward()": "self", _GRADIENTS: "outputs", "torch.autograd.backward()": "tensors"}


def _listed(given: Union[torch.Tensor, Sequence[torch.Tensor]]) -> List[torch.Tensor]:
    return [given] if isinstance(given, torch.Tensor) else list(given)


def _leaves(tensors: Union[torch.Tensor, Sequence[torch.Tensor]]) -> List[torch.Tensor]:
    return differentiated(_listed(tensors))


def _reason(tensors: Union[torch.Tensor, Sequence[torch.Tensor]]) -> str:
    """Return why tensors that the program computed on the host may not go backward."""
    parameters = any(issubclass(type(each), nn.Parameter) for each in _leaves(tensors))
    return _WITHOUT_A_CALL if parameters else _NOT_COMPUTED


def _bound(function: Callable[..., Any], what: str) -> Callable[..., Any]:
    return lambda *args, **kwargs: function(what, *args, **kwargs)
