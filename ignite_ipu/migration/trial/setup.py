"""Setups that factories give to `parity` and `check --run`: a model, its optimizer and loss, and the way to call it."""

from __future__ import annotations

import dataclasses
import inspect
import itertools
from typing import Any, Callable, List, Mapping, NamedTuple, Optional, Tuple

import torch
from torch import nn

from ignite_ipu.errors import ParityError, UserError
from ignite_ipu.torch_names.engines import prepare_batch

_MOST_BATCHES = 64
_ACCEPTED = (
    "(model, optimizer, loss_fn, batches), as `ignite-ipu parity` takes, or (model, inputs) or (model, inputs, "
    "optimizer), as `ignite-ipu plan` takes"
)


@dataclasses.dataclass
class Setup:
    """Result of a factory: as this, as a tuple in this order, or as a mapping with these keys.

    `loss_fn` is None for a model that returns its own loss; `ModelCall` describes the call of a model with a batch.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    loss_fn: Optional[Callable[[Any, Any], torch.Tensor]]
    batches: Any

    @classmethod
    def of(cls, made: Any) -> Setup:
        """Return a factory's result as a `Setup`; other results raise a `ParityError`."""
        names = [field.name for field in dataclasses.fields(cls)]
        if isinstance(made, Mapping) and set(made) == set(names):
            made = cls(**made)
        elif isinstance(made, (tuple, list)) and len(made) == len(names):
            made = cls(*made)
        elif not isinstance(made, cls) and all(hasattr(made, name) for name in names):
            made = cls(*[getattr(made, name) for name in names])
        if not isinstance(made, cls) or not isinstance(made.model, nn.Module):
            raise ParityError(
                f"The factory returned something of type {type(made).__qualname__}; it must return (model, optimizer, "
                "loss_fn, batches), or a mapping or object with these names."
            )
        if not isinstance(made.optimizer, torch.optim.Optimizer):
            raise ParityError(f"The factory's optimizer is a {type(made.optimizer).__qualname__}, not torch.optim's.")
        return made


class ModelCall(NamedTuple):
    """Parts of a batch that a model is given, `x` of `(x, y)` or everything, and how: after "**", "*" or nothing."""

    has_targets: bool
    stars: str

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
        if isinstance(batch, (Mapping, torch.Tensor)):
            return cls.with_inputs(batch)
        if loss_fn is None and isinstance(batch, (tuple, list)) and _takes(model, *batch):
            return cls(False, "*")
        inputs, _ = prepare_batch(batch)
        if isinstance(inputs, Mapping) and not _takes(model, inputs) and _takes(model, **inputs):
            return cls(True, "**")
        several = isinstance(inputs, (tuple, list)) and not _takes(model, inputs) and _takes(model, *inputs)
        return cls(True, "*" if several else "")

    @classmethod
    def with_inputs(cls, inputs: Any) -> ModelCall:
        """Return how a model is called with inputs that no targets belong to: a tensor, a tuple or a mapping."""
        return cls(False, "**" if isinstance(inputs, Mapping) else "*" if isinstance(inputs, tuple) else "")

    def split(self, batch: Any) -> Tuple[Any, Any]:
        """Return the inputs and the targets of a batch; the targets are None where the model is given everything."""
        if not self.has_targets:
            return batch, None
        x, y = prepare_batch(batch)
        return x, y

    def call(self, model: nn.Module, inputs: Any) -> Any:
        if self.stars == "**":
            return model(**inputs)
        return model(*inputs) if self.stars else model(inputs)


def _takes(model: nn.Module, *args: Any, **kwargs: Any) -> bool:
    try:
        inspect.signature(model.forward).bind(*args, **kwargs)
    except (TypeError, ValueError):
        return False
    return True


class Subject(NamedTuple):
    """A model with the inputs and targets of example batches; without an optimizer it is not trained."""

    model: nn.Module
    batches: List[Tuple[Any, Any]]
    how: ModelCall
    optimizer: Optional[torch.optim.Optimizer] = None
    loss_fn: Optional[Callable[[Any, Any], torch.Tensor]] = None

    @classmethod
    def of(cls, made: Any) -> Subject:
        """Return a factory's result as a `Subject`; other results, or no batches, raise a `UserError`."""
        if isinstance(made, tuple) and len(made) in (2, 3) and isinstance(made[0], nn.Module):
            model, inputs, *optimizer = made
            return cls(model, [(inputs, None)], ModelCall.with_inputs(inputs), *optimizer)
        try:
            setup = Setup.of(made)
        except ParityError as error:
            raise UserError(f"{error} The factory has to return {_ACCEPTED}.") from None
        raw = list(itertools.islice(iter(setup.batches), _MOST_BATCHES))
        if not raw:
            raise UserError("the factory's batches are empty, and a model is compiled for an example")
        how = ModelCall.of(setup.model, setup.loss_fn, raw[0])
        return cls(setup.model, [how.split(batch) for batch in raw], how, setup.optimizer, setup.loss_fn)
