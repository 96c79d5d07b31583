"""`WeightSync`: an evaluation sees the newest weights, for one copy each way and only when there are newer ones."""

from __future__ import annotations

from typing import Any, Dict, Optional, Tuple, Union

from ignite.engine import Engine, Events
from torch import nn

from ignite_ipu.errors import OptionsError, did_you_mean
from ignite_ipu.poptorch_types import Executor
from ignite_ipu.session.weights.tracker import Weights

__all__ = ["WeightSync"]

_ENDS = (Events.COMPLETED, Events.TERMINATE, Events.INTERRUPT)
_POLICIES: Dict[str, Tuple[Any, ...]] = {
    "on demand": (),
    "run": _ENDS,
    "epoch": (Events.EPOCH_COMPLETED, *_ENDS),
    "eager": (Events.ITERATION_COMPLETED, *_ENDS),
}


class WeightSync:
    """Copies weights between the host, a training program and an inference program when one of them is stale.

    The engines of this library attach one by themselves. With hand-written PopTorch loops, give it the two executors::

        sync = WeightSync.between(training_model, inference_model, model)
        sync.attach(trainer, evaluator)

    Args:
        weights: Who holds the newest weights, as in `session.weights`.
        policy: When training brings the newest weights to the host: one of `IPUConfig.weight_sync`'s names, or events
            of Ignite's such as `Events.EPOCH_COMPLETED(every=5)`. A read returns the newest weights in any case.

    Raises:
        OptionsError: There is no policy of this name.
    """

    def __init__(self, weights: Weights, policy: Union[str, Any] = "run") -> None:
        if isinstance(policy, str) and policy not in _POLICIES:
            raise OptionsError(f"There is no policy {policy!r}.{did_you_mean(policy, _POLICIES)}")
        self.weights = weights
        self._events = _POLICIES[policy] if isinstance(policy, str) else (policy,)
        self._counts_steps = False

    @classmethod
    def between(
        cls, training: Executor, inference: Optional[Executor], model: nn.Module, policy: Union[str, Any] = "run"
    ) -> WeightSync:
        """Make one for executors of your own.

        Args:
            training: The executor that trains.
            inference: The executor that evaluates; None when only the host's copy matters.
            model: The user's model, the one whose parameters both executors have.
            policy: As above.
        """
        weights = Weights(model)
        weights.add(training, training=True)
        if inference is not None:
            weights.add(inference, training=False)
        sync = cls(weights, policy)
        sync._counts_steps = True
        return sync

    def attach(self, trainer: Optional[Engine] = None, evaluator: Optional[Engine] = None) -> None:
        """Sync when an evaluation starts, and bring the newest weights to the host at the times of the policy.

        Engines over a session upload values of the host with the next call. For executors of your own this handler does
        so, at the start of an epoch.

        Args:
            evaluator: Engine that evaluates; call again for each further one.
        """
        if trainer is not None:
            for event in self._events:
                trainer.add_event_handler(event, self.to_host)
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
