"""Subject of `check --run` as a factory gives it: a model, its arguments, and what it is trained with, if it is."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any, Callable, List, Optional, Tuple

import torch
from torch import nn

from ignite_ipu.errors import ParityError, UserError
from ignite_ipu.migration.parity.comparison import Setup
from ignite_ipu.migration.parity.model_call import ModelCall

_MOST_BATCHES = 64
_ACCEPTED = (
    "(model, optimizer, loss_fn, batches), as `ignite-ipu parity` takes, or (model, inputs) or (model, inputs, "
    "optimizer), as `ignite-ipu plan` takes"
)


@dataclass
class Subject:
    """A model with example batches.

    Attributes:
        model: The model.
        batches: Inputs and targets of each batch; no targets when the model is not given any.
        call: Calls the model with the inputs.
        optimizer: None when the model is not trained.
        loss_fn: Called with output and targets; None for a model that returns its own loss.
    """

    model: nn.Module
    batches: List[Tuple[Any, Any]]
    call: Callable[[nn.Module, Any], Any]
    optimizer: Optional[torch.optim.Optimizer] = None
    loss_fn: Optional[Callable[[Any, Any], torch.Tensor]] = None

    @classmethod
    def of(cls, made: Any) -> Subject:
        """Return what a factory returned as a `Subject`.

        Raises:
            UserError: It is something else, or there are no batches.
        """
        if isinstance(made, tuple) and len(made) in (2, 3) and isinstance(made[0], nn.Module):
            optimizer = made[2] if len(made) == 3 else None
            return cls(made[0], [(made[1], None)], ModelCall.with_inputs(made[1]).call, optimizer)
        try:
            setup = Setup.of(made)
        except ParityError as error:
            raise UserError(f"{error} What the factory returns has to be {_ACCEPTED}.") from None
        raw = list(itertools.islice(iter(setup.batches), _MOST_BATCHES))
        if not raw:
            raise UserError("the factory's batches are empty, and a model is compiled for an example")
        how = ModelCall.of(setup.model, setup.loss_fn, raw[0])
        return cls(setup.model, [how.split(batch) for batch in raw], how.call, setup.optimizer, setup.loss_fn)
