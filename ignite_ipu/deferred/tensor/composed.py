"""Models whose code is the loop's: each of its functions is recorded, or computed by the host.

A program runs no Python code, and has the tensors of other models as constants. The code of a model that needs either
runs in each call, as the loop does around it.
"""

from __future__ import annotations

import contextlib
from typing import Any, Callable, Iterable, Iterator, Optional

from torch import nn

from ignite_ipu.errors import CaptureError, ForwardError, IPUError, logger
from ignite_ipu.program.forward.state_before import StateBefore
from ignite_ipu.program.module_state import RUN_BY_PYTHON
from ignite_ipu.program.traced_places import changes_in_every_call, refused_code


class ComposedError(CaptureError):
    """A call of a model whose code is to be the loop's."""


class ComposedCode:
    """Decision on the code of one captured model, which a program has, or the loop.

    Args:
        model: The model.
        modules: Returns the modules whose code is the loop's, then: it, and those in it that are not captured.
        awaits: Returns whether an update is still to come of an earlier call, which a program makes.
        update: The kind of updates that the settings of the loop name. With "device", a forward that no program can run
            is refused.

    Attributes:
        is_composed: Whether it is the loop's from now on.
        may_begin: Whether the settings allow for it where no program can run the code.
        is_apart: Whether programs have no constants of the code any more, as no update awaits an earlier call.
    """

    def __init__(
        self,
        model: nn.Module,
        modules: Callable[[], Iterable[nn.Module]],
        awaits: Callable[[], bool],
        update: Optional[str] = None,
    ) -> None:
        self.is_composed = self.is_apart = False
        self.may_begin = update in ("auto", "host")
        self._model, self._modules, self._awaits = model, modules, awaits

    def begin(self, reason: str, remedy: str = "") -> None:
        """Let the code be the loop's, and log the reason and what to do instead."""
        self.is_composed = True
        RUN_BY_PYTHON.update(added=self._modules(), in_programs=True)
        self.follow()
        logger.warning(
            "%s Each function of %s is recorded by itself while weights are trained, and the host computes "
            "evaluations, with a copy of the weights.%s",
            reason,
            type(self._model).__name__,
            remedy,
        )

    def follow(self) -> None:
        """Take the code out of programs, unless an update is still to come of an earlier call."""
        self.is_apart = not self._awaits()
        if self.is_apart:
            RUN_BY_PYTHON.update(added=self._modules())

    @contextlib.contextmanager
    def found_out(self, given: Any) -> Iterator[StateBefore]:
        """Have calls on the host in the `with` block, which find out whether programs can run the code.

        They have the `given` arguments. If no program can, the state is as it was before them.

        Raises:
            ComposedError: The code is the loop's.
            ForwardError, poptorch.Error: It cannot be, as the settings or the state do not allow for that.
        """
        before = StateBefore(self._model, given)
        try:
            yield before
        except ComposedError:
            before.put_back()
            raise
        except Exception as error:
            reason = str(error) if isinstance(error, ForwardError) else refused_code(error)
            if reason is None and not isinstance(error, IPUError):
                # The code's own error, which may be one of a later call alone.
                changed = before.changed()
                reason = changes_in_every_call(self._model, changed) if changed else None
            if reason is None or before.put_back() or not self.may_begin:
                raise
            self.begin(reason)
            raise ComposedError from error
