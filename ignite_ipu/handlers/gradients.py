"""`Gradients`: the weight gradients of a training step as `parameter.grad`, for loggers that show them."""

from __future__ import annotations

import math
from typing import Callable, Dict, Optional

import torch
from ignite.engine import Engine, Events

from ignite_ipu.errors import SessionError
from ignite_ipu.optimizers.link import OptimizerLink
from ignite_ipu.program.tensors.raw import set_gradient
from ignite_ipu.session.anchored_gradients import AnchoredGradients
from ignite_ipu.session.gradients import gradient_reader, log_cost
from ignite_ipu.session.returned_gradients import read_gradients
from ignite_ipu.session.session import IPUSession, session_of
from ignite_ipu.torch_names.engines import event_handlers_of
from ignite_ipu.torch_names.tensors import DisableTorchFunctionSubclass

__all__ = ["Gradients"]


class Gradients:
    """Brings gradients back from the device with every call, and shows them as `parameter.grad`.

    On an IPU gradients never leave the device by themselves. This handler anchors them, so that they are found by code
    that reads them. A trainer does so itself when a run starts with handlers that read `.grad`, such as Ignite's
    `GradsScalarHandler` and `GradsHistHandler`. Attach this one to choose some gradients, or for code that the trainer
    does not find::

        trainer = create_ipu_trainer(model, optimizer, loss_fn)
        Gradients(lambda name, parameter: name.startswith("head.")).attach(trainer)

    They are the gradients of the last weight update of the call, averaged over its micro-batches, and clipped if the
    update clips by `max_grad_norm`. Each call copies as many bytes as the chosen weights have, or as all trained ones
    have where gradients are clipped. Choose few, or attach it only while you look for something. It has to be attached
    before the first step, because anchors are compiled in.

    Args:
        choose: Called with a parameter's name and the parameter; whether to bring its gradient back. All by default.
        allow_unused: Leave the gradient of a parameter that the loss does not depend on at None, as PyTorch does,
            instead of raising `SessionError` after the first step.
    """

    def __init__(
        self, choose: Optional[Callable[[str, torch.nn.Parameter], bool]] = None, allow_unused: bool = False
    ) -> None:
        self._choose = choose or (lambda name, parameter: True)
        self._allow_unused = allow_unused
        self._chosen: Dict[str, torch.nn.Parameter] = {}
        self._max_norm: Optional[float] = None

    def attach(self, engine: Engine) -> None:
        """Show the gradients of this trainer's steps from the next iteration on.

        Raises:
            SessionError: The engine is no trainer of this library, its program is compiled already, or no gradient of
                the model was chosen.
        """
        session = session_of(engine)
        if session is None or session.training is None:
            raise SessionError("Gradients needs a trainer that create_ipu_trainer has returned.")
        if session.training.compiled:
            raise SessionError(
                "Gradients were asked for after the model was compiled, and anchors are part of the program. Attach "
                "the handler before the first step, or call trainer.ipu.release(), after which it is compiled again."
            )
        for name, parameter in session.model.named_parameters():
            if parameter.requires_grad and self._choose(name, parameter):
                self._chosen[name] = parameter
        if not self._chosen:
            raise SessionError("Gradients was attached, but `choose` accepts none of the model's trainable parameters.")
        if session.trainers.required().updates_on_host:
            return  # gradients are PyTorch's
        self._max_norm = _clipping_norm(session)
        # The norm is that of all gradients.
        chosen = [f"model.{name}" for name in self._chosen]
        session.training.kind.gradients = AnchoredGradients(chosen if self._max_norm is None else None)
        session.hooks.show_gradients()
        engine.add_event_handler(Events.ITERATION_COMPLETED, self._show, session)

    @staticmethod
    def attach_where_read(trainer: Engine) -> None:
        """Show all gradients of a trainer before its handlers run, if these or code around the run read some."""
        session = session_of(trainer)
        trained = None if session is None else session.trained
        if session is None or trained is None or session.hooks.shows_gradients or trained.updates_on_host:
            return
        reader = gradient_reader((trainer,))
        with DisableTorchFunctionSubclass():
            parameters = [parameter for parameter in session.model.parameters() if parameter.requires_grad]
        if reader is None or not parameters:
            return
        log_cost(reader, parameters)
        if trained.program.compiled:
            trained.compile_again()
        Gradients(allow_unused=True).attach(trainer)
        handlers = event_handlers_of(trainer)[Events.ITERATION_COMPLETED]
        handlers.insert(0, handlers.pop())

    def _show(self, engine: Engine, session: IPUSession) -> None:
        program = session.training  # read at every call: others may replace it
        if program is None or program.executor is None:
            raise SessionError(
                "The gradients of this iteration are gone: a handler of ITERATION_COMPLETED has closed, released or "
                "replaced the training program before Gradients read them. Attach that handler after Gradients."
            )
        found = read_gradients(program)
        if self._max_norm is not None and found:
            norm = torch.stack([gradient.float().norm() for gradient in found.values()]).norm()
            factor = self._max_norm / norm.clamp(min=self._max_norm)
            found = {name: gradient * factor.to(gradient.dtype) for name, gradient in found.items()}
        for name, parameter in self._chosen.items():
            gradient = found.get(f"model.{name}")
            if gradient is None and not self._allow_unused:
                raise SessionError(
                    f"The compiled step has no gradient of {name!r}: the loss does not depend on it. Leave it out, "
                    f"for example Gradients(choose=lambda name, parameter: name != {name!r}), or leave it at None "
                    "with Gradients(allow_unused=True)."
                )
            with DisableTorchFunctionSubclass():
                # Asked in the ordinary way, a wrapped parameter would fetch all weights first.
                set_gradient(parameter, gradient)


def _clipping_norm(session: IPUSession) -> Optional[float]:
    """Return the norm that the update on the device clips gradients to, None for none."""
    link = session.trainers.required().link
    norm = getattr(link.conversion.optimizer, "max_grad_norm", None) if isinstance(link, OptimizerLink) else None
    return None if norm is None or math.isinf(norm) else float(norm)
