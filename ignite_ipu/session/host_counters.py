"""Counters of batches, which the host advances: `num_batches_tracked`, and `n_averaged` of averaged models."""

from __future__ import annotations

import contextlib
import logging
from typing import Collection, Iterator

from torch import nn
from torch.optim.swa_utils import AveragedModel

from ignite_ipu.errors import logger
from ignite_ipu.torch_names.modules import NormWithStatistics, buffers_of

_POPTORCH = ("poptorch::python", "poptorch::cpp")
_COMPILED_IN = "downgraded to constant"


def counts_on_host(module: nn.Module, name: str) -> bool:
    """Return whether a buffer is a counter from which a program computes nothing."""
    if isinstance(module, NormWithStatistics) and name == "num_batches_tracked":
        return module.momentum is not None
    return isinstance(module, AveragedModel) and name == "n_averaged"


@contextlib.contextmanager
def counter_warnings_aside(model: nn.Module, first: bool) -> Iterator[None]:
    """Hold back PopTorch's warnings, one for each counter, that a program has integers as constants.

    They would alarm: the host advances these counters. The `first` compilation is logged. Later ones warn of no
    integers, since the first has done so.
    """
    modules = model.named_modules()
    names = [f"{path}.{name}" for path, each in modules for name in buffers_of(each) if counts_on_host(each, name)]
    aside = _Aside(names, repeated=not first)
    loggers = [logging.getLogger(name) for name in _POPTORCH]
    for each in loggers:
        each.addFilter(aside)
    try:
        yield
    finally:
        for each in loggers:
            each.removeFilter(aside)
    if aside.held and first:
        kinds = ", ".join(sorted({name.rpartition(".")[2] for name in names}))
        logger.info("%s: counted on the host, in %d layers; a program has integers as constants.", kinds, len(names))


class _Aside(logging.Filter):
    """Holds back the warnings that name a counter, or all, if they are `repeated`."""

    def __init__(self, names: Collection[str], repeated: bool) -> None:
        super().__init__()
        self._names, self._repeated, self.held = frozenset(names), repeated, 0

    def filter(self, record: logging.LogRecord) -> bool:
        text = record.getMessage()
        about_counters = _COMPILED_IN in text and (self._repeated or not self._names.isdisjoint(text.split()))
        self.held += about_counters
        return not about_counters
