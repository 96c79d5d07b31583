"""`WeightSync`: an evaluation sees the newest weights, for one copy each way and only when there are newer ones."""

from __future__ import annotations

from typing import Optional

from ignite.engine import Engine, Events
from torch import nn

from ignite_ipu.poptorch_types import Executor
from ignite_ipu.session.weights.tracker import Weights

__all__ = ["WeightSync"]


class WeightSync:
    """Copies weights between the host, a training program and an inference program when one of them is stale.

    The engines of this library attach one by themselves. With hand-written PopTorch loops, give it the two executors::

        sync = WeightSync.between(training_model, inference_model, model)
        sync.attach(trainer, evaluator)

    Args:
        weights: Who holds the newest weights, as in `session.weights`.
    """

    def __init__(self, weights: Weights) -> None:
        self.weights = weights
        self._counts_steps = False

    @classmethod
    def between(cls, training: Executor, inference: Optional[Executor], model: nn.Module) -> WeightSync:
        """Make one for executors of your own.

        Args:
            training: The executor that trains.
            inference: The executor that evaluates; None when only the host's copy matters.
            model: The user's model, the one whose parameters both executors have.
        """
        weights = Weights(model)
        weights.add(training, training=True)
        if inference is not None:
            weights.add(inference, training=False)
        sync = cls(weights)
        sync._counts_steps = True
        return sync

    def attach(self, trainer: Optional[Engine] = None, evaluator: Optional[Engine] = None) -> None:
        """Sync when an evaluation starts; when training ends or is interrupted, bring the newest weights to the host.

        Engines over a session upload what the host has set with the next call; over executors of your own that is done
        here, at the start of an epoch.

        Args:
            trainer: Engine that trains.
            evaluator: Engine that evaluates; call again for each further one.
        """
        if trainer is not None:
            trainer.add_event_handler(Events.COMPLETED | Events.TERMINATE | Events.INTERRUPT, self.to_host)
            if self._counts_steps:
                trainer.add_event_handler(Events.STARTED | Events.EPOCH_STARTED, self.before_training)
                trainer.add_event_handler(Events.ITERATION_COMPLETED, self.weights.trained)
        if evaluator is not None:
            evaluator.add_event_handler(Events.STARTED, self.before_evaluation)

    def before_training(self) -> None:
        """Upload weights that were set on the host since the last step."""
        self.weights.notice_edits()
        self.weights.to_training()

    def before_evaluation(self) -> None:
        """Give the inference program the newest weights."""
        self.weights.notice_edits()
        self.weights.to_inference()

    def to_host(self) -> None:
        """Give the host the newest weights."""
        self.weights.to_host()
