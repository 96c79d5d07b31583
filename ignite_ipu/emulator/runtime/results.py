"""`Results`: the results of forward, as a call returns them to the caller."""

from __future__ import annotations

from typing import Any, Optional, Sequence

import torch

from ignite_ipu.emulator.compiler.graph import Graph
from ignite_ipu.emulator.errors import python_error
from ignite_ipu.emulator.values.structures import replace_tensors


class Results:
    """Makes the results of the calls of one program, whose `backward()` is refused.

    Args:
        positions: The places of forward's results among the outputs of a call; None for constants.
        training: Whether the program trains.
    """

    def __init__(self, positions: Sequence[Optional[int]], training: bool) -> None:
        # Outputs that are another one's tensor: a write of the caller into one must not show in the other.
        self._again = [
            index for index, place in enumerate(positions) if place is not None and place in positions[:index]
        ]
        self._refuse = _refuse_second_backward if training else _refuse_backward

    def of(self, graph: Graph, outputs: Sequence[torch.Tensor]) -> Any:
        """Return forward's results in its structure, with the tensors of a call."""
        results = [
            graph.frozen[index].clone() if place is None else outputs[place]
            for index, place in enumerate(graph.positions)
        ]
        for index in self._again:
            results[index] = results[index].clone()
        for result in results:
            result.backward = self._refuse  # type: ignore[method-assign]
        if isinstance(graph.structure, torch.Tensor):
            return results[0]
        return replace_tensors(graph.structure, iter(results))


def _refuse_backward(*args: Any, **kwargs: Any) -> None:
    raise python_error(
        "backward() cannot be called on outputs of an inference model: it computes no gradients, and there was no "
        "training step. Wrap the model with poptorch.trainingModel(model, options, optimizer), whose call computes the "
        "gradients of the loss that forward returns and updates the weights."
    )


def _refuse_second_backward(*args: Any, **kwargs: Any) -> None:
    raise python_error(
        "backward() cannot be called explicitly on outputs of a PopTorch model: the compiled training step has already "
        "computed the gradients and updated the weights."
    )
