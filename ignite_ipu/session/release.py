"""Brings what only IPUs have to the host and gives them back, whatever fails on the way."""

from __future__ import annotations

import contextlib
import logging
from typing import Iterable, List, Sequence, Tuple

from ignite_ipu.errors import SessionError
from ignite_ipu.session.program import Program
from ignite_ipu.session.weights.tracker import Weights

__all__ = ["Lost", "give_back", "refuse_losses"]

_logger = logging.getLogger("ignite_ipu")
Lost = Tuple[str, Exception]
"""What could not be brought to the host, and why."""


def give_back(weights: Weights, programs: Iterable[Program]) -> List[Lost]:
    """Bring the newest weights and the programs' states to the host and destroy the programs; return what was lost."""
    lost: List[Lost] = []
    try:
        weights.to_host()
    except Exception as error:
        lost.append(("the newest weights", error))
    for program in programs:
        try:
            program.destroy()
        except Exception as error:
            if program.training:
                lost.append(("the state of the training program", error))
            else:
                # It has nothing but copies of weights.
                _logger.warning("An inference program was given up: %s: %s", type(error).__name__, error)
            with contextlib.suppress(Exception):
                program.abandon()
                program.destroy()
    return lost


def refuse_losses(lost: Sequence[Lost]) -> None:
    """Refuse to go on as if nothing had been lost.

    Raises:
        SessionError: Something was.
    """
    if lost:
        what = ", ".join(f"{what} ({type(error).__name__}: {error})" for what, error in lost)
        raise SessionError(
            f"The IPUs were given back, but could not be asked for {what}: the model and its optimizer have what was "
            "copied to the host before. Load the newest checkpoint; a handlers.Recovery makes copies that fail good."
        ) from lost[0][1]
