"""A partial is followed where it is all that uses its function."""

from __future__ import annotations

import pytest

from ignite_ipu.migration.analysis.partials import find_partial
from ignite_ipu.migration.program import Program
from ignite_ipu.migration.source.file import Source

HEAD = "from functools import partial\ndef step(engine, batch, model, *, optimizer): pass\n"


def found(code):
    program = Program(Source("code.py", HEAD + code))
    process = program.tree.body[-1].value.args[0]
    partial = find_partial(program, process)
    return None if partial is None else partial.given(program.functions["step"])


def test_what_the_parameters_are_given():
    assert found("Engine(partial(step, model=net, optimizer=self.opt))") == {"model": "net", "optimizer": "self.opt"}
    assert found("p = partial(step, optimizer=make())\nEngine(p)") == {"optimizer": None}


@pytest.mark.parametrize(
    "code",
    [
        "Engine(step)",
        "Engine(partial(step, **options))",
        "Engine(partial(other.made()))",
        "step(a, b)\nEngine(partial(step, model=net))",
        "p = partial(step, model=net)\np(a, b)\nEngine(p)",
        "p = partial(step, model=net)\np = partial(step, model=other)\nEngine(p)",
    ],
)
def test_other_functions_and_shared_ones(code):
    assert found(code) is None
