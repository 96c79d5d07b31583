"""First calls of a model, made on the host before a program is: what they set up is there then, as natively.

A mask, a table, a layer whose width the first batch tells: made in a trace, it would be the device's, and no code on
the host could go on with it.
"""

from __future__ import annotations

import random
from typing import Any, Dict, Tuple

import numpy as np
import torch
from torch import nn
from torch.nn.parameter import is_lazy

from ignite_ipu.deferred.compiled.guards import HeldBuffers
from ignite_ipu.deferred.compiled.modes import refuse_replaced
from ignite_ipu.deferred.graph.structure import mapped
from ignite_ipu.errors import SessionError
from ignite_ipu.program.forward.eager import EAGER
from ignite_ipu.program.forward.model_libraries import without_generation_cache
from ignite_ipu.program.forward.weight_writes import WeightWriteGuard
from ignite_ipu.program.tensors.raw import named_tensors, plain
from ignite_ipu.session.session import IPUSession

__all__ = ["call_first"]


def call_first(model: nn.Module, args: Tuple[Any, ...], kwargs: Dict[str, Any], session: IPUSession) -> None:
    """Call a model on the host, which leaves tensors that it is given, its buffers and random numbers as they are.

    Before anything is trained it may make weights and buffers, for which random numbers are drawn as natively.

    Args:
        model: The model, or a part of it.
        args, kwargs: What it is called with.
        session: Its session.

    Raises:
        ReplacedError: It has made some, of which the session does not know.
        SessionError: It writes into weights.
    """
    session.weights.to_host()
    before, held = named_tensors(model), HeldBuffers(model)
    buffers = [(plain(each), plain(each).clone()) for each in model.buffers() if not is_lazy(each)]
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    args, kwargs = mapped((args, kwargs), torch.Tensor.clone)
    try:
        with EAGER, without_generation_cache(model), torch.no_grad(), torch._C.DisableTorchFunctionSubclass():
            with WeightWriteGuard(model):
                model(*args, **kwargs)
    except SessionError:
        raise
    except RuntimeError:
        pass  # the host lacks operators in half precision that a device has; else the trace says what is wrong
    for buffer, values in buffers:
        if not torch.equal(buffer, values):
            buffer.copy_(values)
    after = named_tensors(model)
    made = after.keys() != before.keys() or any(after[name] is not each for name, each in before.items())
    if made and session.training is not None:
        held.put_back()  # the trace refuses it
        made = False
    if not made:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])
    refuse_replaced(session.weights, session.model)
