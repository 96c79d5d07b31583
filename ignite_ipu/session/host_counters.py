"""PopTorch's warnings about integers that the host advances or floating-point numbers carry: none is lost."""

from __future__ import annotations

import contextlib
import logging
from typing import Collection, Iterator

from ignite_ipu.errors import logger
from ignite_ipu.program.forward.integer_buffers import counts_on_host
from ignite_ipu.program.step import BatchStep
from ignite_ipu.torch_names.modules import all_named_modules, buffers_of

_POPTORCH = ("poptorch::python", "poptorch::cpp")
_COMPILED_IN = "downgraded to constant"


@contextlib.contextmanager
def counter_warnings_aside(step: BatchStep, first: bool) -> Iterator[None]:
    """Hold back PopTorch's warnings, one for each counter, that a program has integers as constants.

    They would alarm: the host advances these counters, or the step carries them. The `first` compilation is logged.
    Later ones warn of no integers, since the first has done so.
    """
    modules = all_named_modules(step)
    names = [f"{path}.{name}" for path, each in modules for name in buffers_of(each) if counts_on_host(each, name)]
    aside = _Aside([*names, *step.integers.names], repeated=not first)
    loggers = [logging.getLogger(name) for name in _POPTORCH]
    for each in loggers:
        each.addFilter(aside)
    try:
        yield
    finally:
        for each in loggers:
            each.removeFilter(aside)
    if aside.held and names and first:
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
