"""Calls of a model with a batch, where only a factory tells of them: the rule of `parity` and `check --run`."""

from __future__ import annotations

import inspect
from typing import Any, Callable, Mapping, NamedTuple, Optional, Tuple

import torch
from ignite.engine import _prepare_batch
from torch import nn

__all__ = ["ModelCall"]

Call = Callable[[nn.Module, Any], Any]


class ModelCall(NamedTuple):
    """Parts of a batch that a model is given, and how.

    Attributes:
        split: Returns the inputs and the targets of a batch; the targets are None where the model is given everything.
        call: Calls a model with the inputs.
    """

    split: Callable[[Any], Tuple[Any, Any]]
    call: Call

    @classmethod
    def of(cls, model: nn.Module, loss_fn: Optional[Callable[..., Any]], batch: Any) -> ModelCall:
        """Return how `model` is called with batches such as `batch`.

        A mapping is given by keyword and a tensor as it is. Of `(x, y)` the model gets `x`, and `loss_fn` gets `y`.
        Without a `loss_fn` the model computes the loss, so it gets the items of the batch one by one if its `forward`
        takes that many. Inputs that are a tuple or a mapping themselves become several arguments where `forward` does
        not take a single one.

        Raises:
            ValueError: The batch is a sequence of other than two items, and a loss is computed from its targets.
        """
        if isinstance(batch, Mapping):
            return cls(_whole, _by_keyword)
        if isinstance(batch, torch.Tensor):
            return cls(_whole, _as_one)
        if loss_fn is None and isinstance(batch, (tuple, list)) and _takes(model, *batch):
            return cls(_whole, _spread)
        inputs, _ = _pair(batch)
        if isinstance(inputs, Mapping) and not _takes(model, inputs) and _takes(model, **inputs):
            return cls(_pair, _by_keyword)
        if isinstance(inputs, (tuple, list)) and not _takes(model, inputs) and _takes(model, *inputs):
            return cls(_pair, _spread)
        return cls(_pair, _as_one)

    @classmethod
    def with_inputs(cls, inputs: Any) -> ModelCall:
        """Return how a model is called with inputs that no targets belong to: a tensor, a tuple or a mapping."""
        if isinstance(inputs, Mapping):
            return cls(_whole, _by_keyword)
        return cls(_whole, _spread if isinstance(inputs, tuple) else _as_one)


def _takes(model: nn.Module, *args: Any, **kwargs: Any) -> bool:
    try:
        inspect.signature(model.forward).bind(*args, **kwargs)
    except (TypeError, ValueError):
        return False
    return True


def _whole(batch: Any) -> Tuple[Any, Any]:
    return batch, None


def _pair(batch: Any) -> Tuple[Any, Any]:
    x, y = _prepare_batch(batch)
    return x, y


def _by_keyword(model: nn.Module, inputs: Any) -> Any:
    return model(**inputs)


def _spread(model: nn.Module, inputs: Any) -> Any:
    return model(*inputs)


def _as_one(model: nn.Module, inputs: Any) -> Any:
    return model(inputs)
