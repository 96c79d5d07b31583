"""`DeviceSwap` and `DeviceRelease`: IPUs that training and evaluation take turns on, or give back as a run ends."""

from __future__ import annotations

from ignite.engine import Engine, Events

from ignite_ipu.errors import SessionError
from ignite_ipu.poptorch_types import Executor
from ignite_ipu.session.session import session_of

__all__ = ["DeviceRelease", "DeviceSwap"]


class DeviceSwap:
    """Gives the IPUs to the evaluation while it runs, and back to the training, for PopTorch loops of your own.

    Each executor normally keeps IPUs of its own. With half of the IPUs, or with a model that takes all of them, they
    have to take turns. Each turn costs one load of a program and one transfer of weights. The engines of this library
    do the same with `IPUConfig(share_ipus=True)`::

        DeviceSwap(training_model, inference_model).attach(trainer, evaluator)

    Args:
        training: The executor that trains.
        inference: The executor that evaluates, over the same model. It sees the newest weights: leaving the training
            executor downloads them, and taking the IPUs again uploads the host's.
    """

    def __init__(self, training: Executor, inference: Executor) -> None:
        self._training = training
        self._inference = inference

    def attach(self, trainer: Engine, evaluator: Engine) -> None:
        """Swap when either engine is about to make a step and the other's executor has the IPUs."""
        trainer.add_event_handler(Events.ITERATION_STARTED, self.to_training)
        evaluator.add_event_handler(Events.ITERATION_STARTED, self.to_inference)

    def to_training(self) -> None:
        """Give the IPUs to the training executor."""
        _swap(self._inference, self._training)

    def to_inference(self) -> None:
        """Give the IPUs to the inference executor."""
        _swap(self._training, self._inference)


def _swap(leaving: Executor, entering: Executor) -> None:
    if leaving.isAttachedToDevice():
        leaving.detachFromDevice()
    # One that was never compiled attaches by itself, with its first call.
    if entering.isCompiled() and not entering.isAttachedToDevice():
        entering.attachToDevice()


class DeviceRelease:
    """Gives all IPUs of an engine's session back when its run is completed or terminated.

    Without it programs stay loaded, so that another run goes on without compiling; exceptions release them either way.
    """

    def attach(self, engine: Engine) -> None:
        """Release when this engine's runs end.

        Raises:
            SessionError: The engine is none of this library.
        """
        session = session_of(engine)
        if session is None:
            raise SessionError("DeviceRelease needs an engine that this library has returned.")
        engine.add_event_handler(Events.COMPLETED, session.release)
