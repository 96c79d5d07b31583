"""A training step whose forward and backward passes are one compiled function; accumulation and update are as ever."""

from __future__ import annotations

import contextlib
import functools
import itertools
from typing import Any, List, Optional, Sequence, Tuple

import torch

from ignite_ipu.emulator.compiler import saved_values
from ignite_ipu.emulator.compiler.inductor import Compiled, own_memory
from ignite_ipu.emulator.runtime.training_step import TrainingStep

Tensors = Sequence[torch.Tensor]


class CompiledTraining(Compiled):
    """Compiled function of one training program, however often it is loaded.

    It takes the factor on the loss gradient and what the graph takes, and returns what the graph returns, and then the
    gradients.

    Attributes:
        used: For each trainable weight, whether the loss depends on it.
        folded: Whether the share of a mean is in the loss gradient.
    """

    used: Tuple[bool, ...] = ()
    folded = False


class CompiledStep(TrainingStep):
    """A `TrainingStep` that goes over to compiled code when that is there.

    Args:
        compiled: What was compiled for the program before; what this step compiles is added.

    The others are those of `TrainingStep`.
    """

    def __init__(self, compiled: CompiledTraining, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._compiled = compiled
        self._graph = graph = self._executable.graph
        places = {name: len(graph.inputs) + place for place, name in enumerate(graph.weights)}
        self._places = [places[name] for name in self._names]

    def run(self, batch: Tensors, replica: int) -> Tuple[torch.Tensor, ...]:
        executable, compiled = self._executable, self._compiled
        if executable.graph is not self._graph:  # somebody watches the operators of this run
            return super().run(batch, replica)
        arguments = (*batch, *executable.arguments[replica])
        if not compiled.is_begun:
            ways = [functools.partial(self._forward_and_backward, copies) for copies in (False, True)]
            compiled.begin(self._graph, ways, (torch.ones(1), *arguments))
        if compiled.run is None:
            return super().run(batch, replica)
        if self._used is None:
            self._used, self._folded = compiled.used, compiled.folded
            self._leaves = tuple(itertools.compress(self._leaves, self._used))
        with torch.no_grad():
            results = compiled.run(torch.tensor([self._scale]), *arguments)
        count = len(results) - len(self._leaves)
        self._add(results[count:])
        return results[:count]

    def _forward_and_backward(self, copies: bool, scale: torch.Tensor, *arguments: torch.Tensor) -> List[torch.Tensor]:
        """Return what the graph returns and the gradients, in operators to be traced, and note which ones there are.

        Args:
            copies: Whether autograd saves copies, because forward writes over what the backward pass needs.
        """
        if self._grouped:
            raise NotImplementedError("parameters differ between replicas")
        values = list(arguments)
        for place in self._places:
            values[place] = values[place].detach().requires_grad_()
        with torch.enable_grad():
            with saved_values.copied() if copies else contextlib.nullcontext():
                results = self._graph.run(*values)
            loss = results[self._loss]
            if not loss.requires_grad:
                raise NotImplementedError("the loss depends on no trainable weight")
            start = torch.ones_like(loss) * scale[0].to(loss.dtype)
            leaves = [values[place] for place in self._places]
            found: Sequence[Optional[torch.Tensor]] = torch.autograd.grad([loss], leaves, [start], allow_unused=True)
        self._compiled.used = tuple(gradient is not None for gradient in found)
        self._compiled.folded = self._foldable and loss.dtype is torch.float32
        return own_memory([*results, *(gradient for gradient in found if gradient is not None)], arguments)
