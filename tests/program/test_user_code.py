"""Lines that messages name: found from an instruction, they are the ones that Python's frames tell."""

from __future__ import annotations

import json
import sys
import sysconfig

import torch
from ignite.engine import Engine, Events

import ignite_ipu
from ignite_ipu.program.user_code import Line, Owner, current_line, owner_of


def both():
    """Return the line of the caller as this library and as Python names it."""
    frame = sys._getframe(1)
    return str(Line((frame.f_code, frame.f_lasti))), f"{frame.f_code.co_filename}:{frame.f_lineno}"


def test_every_kind_of_statement():
    pairs = [both()]
    pairs.append(
        both(),
    )
    pairs += [
        both()
        for _ in range(2)
    ]  # fmt: skip
    for pair in (
        both(),
        both(),
    ):
        pairs.append(pair)
    try:
        pairs.append(both())
        raise ValueError
    except ValueError:
        pairs.append(both())
    finally:
        pairs.append(both())
    with open(__file__) as _:
        pairs.append((lambda: both())())
    pairs.append([both(), len(str(1 + 1)) and both()][1] if pairs else both())
    assert len(pairs) == 11
    assert len({pythons for _, pythons in pairs}) > 8
    for ours, pythons in pairs:
        assert ours == pythons


def test_what_libraries_call_is_the_users_line():
    """A handler is called by Ignite's engine: the line is the handler's."""
    lines = []
    engine = Engine(lambda engine, batch: None)
    engine.add_event_handler(Events.ITERATION_COMPLETED, lambda engine: lines.append(both()))
    engine.add_event_handler(Events.COMPLETED, lambda: lines.append((str(current_line()), both()[1])))
    engine.run([0])
    for ours, pythons in lines:
        assert ours == pythons and __file__ in ours


def test_a_call_as_if_it_stood_at_a_line():
    """Frames and tracebacks of what is called tell the line of before."""
    line = current_line()
    expected = str(line)

    def called(*, depth):
        return f"{sys._getframe(depth).f_code.co_filename}:{sys._getframe(depth).f_lineno}"

    assert line.call(called, (), {"depth": 1}) == expected


def test_whose_a_file_is(tmp_path):
    """Python's, a library's that passes calls on, another package's, or the user's; asked in one place."""
    installed = sysconfig.get_paths()["purelib"]
    assert owner_of(json.__file__) is Owner.PYTHON
    assert owner_of("<frozen runpy>") is Owner.LIBRARY
    assert {owner_of(module.__file__) for module in (torch, ignite_ipu)} == {Owner.LIBRARY}
    assert owner_of(f"{installed}/ignite/engine/engine.py") is Owner.LIBRARY
    assert owner_of(f"{installed}/lightning/trainer.py") is Owner.INSTALLED
    assert owner_of(str(tmp_path / ".venv/lib/python3/site-packages/tool/x.py")) is Owner.INSTALLED
    assert owner_of(str(tmp_path / "train.py")) is owner_of("<ipython-input-1>") is Owner.USER
