"""Updates that ran before their `optimizer.step()`, because somebody read a value that comes with them.

Until that step comes, PyTorch would have the weights of before; the device has those of after.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Callable, List, Optional, Sequence

from ignite_ipu.deferred.graph.operations import Value, reached
from ignite_ipu.deferred.graph.owners import CapturedLoop
from ignite_ipu.deferred.graph.step_graph import CALL, Loss, ancestors
from ignite_ipu.deferred.graph.structure import words
from ignite_ipu.deferred.model.gradients import Entry
from ignite_ipu.deferred.model.history import TakenBack
from ignite_ipu.deferred.tensor.frames import DISTRIBUTIONS, called_by
from ignite_ipu.deferred.tensor.routing import has_gone_backward
from ignite_ipu.errors import CaptureError, EarlyReadError, listed
from ignite_ipu.program.user_code import Line, current_line
from ignite_ipu.torch_names.tensors import DisableTorchFunctionSubclass

_SAMPLING = words("multinomial bernoulli normal poisson binomial")


def _stay(reason: str) -> None:
    """Stay with fused updates."""


@dataclasses.dataclass(eq=False)
class EarlyUpdate:
    """An update that ran early, for the value read at a line; to call it refuses to show what the update has changed.

    Attributes:
        back: The state of before, if the update can be taken back.
        stepped: When the update before ran, by `CLOCK`.
        losses: Losses of the update that had yet to go backward.
        before: Entries of the gradient book as they were before it, if it ran ahead of `backward()`.
        awaited: Whether it ran even before `backward()`, which is still to come.
        uncleared: Where the update before was made, as long as its gradients have not been cleared.
    """

    line: Line
    awaited: bool = False
    uncleared: Optional[Line] = None
    back: Optional[TakenBack] = None
    stepped: int = 0
    before: Sequence[Entry] = ()
    leave: Callable[[str], None] = _stay
    losses: Sequence[Loss] = ()

    def check_confirmed(self) -> None:
        """Refuse to go on without the `backward()` that the update ran ahead of."""
        if self.awaited:
            raise CaptureError(
                f"The value read at {self.line} made the update run before backward(), since in the step before its "
                f"loss went backward next, and now, at {current_line()}, that has not happened: the weights on the "
                "device have an update that PyTorch would not have made. Read values after backward(), or load the "
                "last checkpoint and leave a loop that skips updates to the host."
            )

    def confirm(self) -> None:
        """Take that the loss goes backward for which the update has run already."""
        if self.uncleared is not None:
            raise self.error(
                f"it uses the gradients of the update made at {self.uncleared} again, because nothing has cleared them "
                "since. Call optimizer.zero_grad() after every optimizer.step()."
            )
        self.awaited = False

    @property
    def can_be_taken_back(self) -> bool:
        """True for one of the first updates of a loop that may go on with updates on the host."""
        return self.back is not None

    def error(self, rest: str) -> CaptureError:
        """Return the error for what does not go with the update; `rest` says what it is and what to do."""
        return CaptureError(f"The value read at {self.line} made the update run before optimizer.step(), and {rest}")

    def __call__(self) -> None:
        """Refuse to show weights or the optimizer's state, unless the update can be taken back."""
        if self.back is not None:
            self.leave("Weights or optimizer state are used between a read of the loss and optimizer.step().")
            return
        raise self.error(
            f"now weights or optimizer state are used at {current_line()}, to read, save or evaluate them. PyTorch "
            "would have those of before the update. Call optimizer.step() first, or read the value after "
            "optimizer.step()."
        )


def expected_loss(value: Value, line: Line) -> Optional[Loss]:
    """Return what goes backward next, as far as what was recorded tells.

    It is the last scalar with gradients that is computed by the same calls of the model, and the only such one.
    """

    def following(current: Value) -> List[Value]:
        return [result for each in current.readers() for result in each.values if result.shape.requires_grad]

    given = [result for call in ancestors(value) if call.model is not None for result in call.values]
    last = [
        each
        for each in reached(given, following)
        if max(each.shape.size, default=1) == 1
        and each.shape.requires_grad
        and each.handle() is not None
        and not following(each)
    ]
    last = [each for each in last if each is not value] or last
    return Loss(last[0], ancestors(last[0]), line) if len(last) == 1 else None


def early_read_error(loop: CapturedLoop, value: Value, what: str) -> EarlyReadError:
    """Return the error for a value of an update that is not complete; `what` says in words how it is read."""
    line = current_line()
    operations = ancestors(value)
    if has_gone_backward(operations, loop):
        reason = incomplete(loop)
        return EarlyReadError(
            f"{what} at {line} asks for a value that comes with the weight update, and {reason}. Keep "
            "loss.detach() and read it after the update."
        )
    sampled = next((each for each in operations if each.model is None and each.name in _SAMPLING), None)
    if sampled is not None and not value.shape.requires_grad:
        return EarlyReadError(
            f"{what} at {line} asks for a value of the training step before the step has run: it was sampled from what "
            f"the model computes, by {sampled.name} at {sampled.line}. Where the loop acts on it before there is a "
            "loss, as in reinforcement learning, the graph of the step grows with what happens then, and a device step "
            "is compiled from one graph. Let the model act in eval mode under torch.no_grad(), keep states, actions "
            "and rewards, and train with them in batches of one size, as PPO and DQN do."
        )
    remedy = (
        "It is a check of torch.distributions: leave it out with validate_args=False."
        if called_by(DISTRIBUTIONS)
        else "Move the line after backward (or optimizer.step()); to keep a sum, add loss.detach() and read "
        "the sum later. For a forward pass without training, call model.eval() or use torch.no_grad()."
    )
    return EarlyReadError(
        f"{what} at {line} asks for a value of the training step before the step has run: its loss has "
        f"not gone backward. {remedy}"
    )


def not_frozen(model: Any) -> EarlyReadError:
    """Return the error for a call, with a value of a step that has not run, of a captured model outside of the step."""
    with DisableTorchFunctionSubclass():
        names = [name for name, parameter in model.model.named_parameters() if parameter.requires_grad]
    return EarlyReadError(
        f"{model.name} was called at {current_line()}, in evaluation mode or without gradients, with a value of the "
        f"training step before the step has run, and is not frozen: {listed(names)} requires gradients. Call it "
        "after optimizer.step(); or, as a part of the step, in training mode (layers in it may be in evaluation "
        "mode), or with requires_grad_(False) on all its parameters."
    )


def incomplete(loop: CapturedLoop) -> Optional[str]:
    """Return why an update of what went backward cannot be made yet, None if it can.

    Where an engine's step function has left the last loss, more will follow.
    """
    reason, losses = loop.postponed, loop.updates.pending
    if reason is not None or not losses or losses[-1].call in (None, CALL.get()):
        return reason
    return (
        f"the step function that called backward() at {losses[-1].line} has returned without optimizer.step(), so that "
        "gradients accumulate (handlers read in iterations that make an update, as by "
        "Events.ITERATION_COMPLETED(every=...))"
    )
