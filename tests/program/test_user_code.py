"""Lines that messages name: found from an instruction, they are the ones that Python's frames tell."""

from __future__ import annotations

import json
import sys
import sysconfig
import weakref

import torch
from ignite.engine import Engine, Events

import ignite_ipu
from ignite_ipu.program.user_code import Line, Owner, current_line, owner_of, variables_of


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
    """Frames and tracebacks of called code show the original line."""
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


def look():
    """Return the variables of the caller."""
    return dict(variables_of(sys._getframe(1)))


class Held:
    """Something that can be dropped."""


def test_what_a_function_drops_is_gone_though_its_variables_were_looked_at():
    """A frame that has been asked for its variables would keep them, in cells and out of them, until it returns."""
    plain, shared = Held(), Held()
    gone = [weakref.ref(plain), weakref.ref(shared)]

    def closure():
        return shared

    seen = look()
    assert seen["plain"] is plain and seen["shared"] is closure()
    plain = shared = seen = None
    assert [each() for each in gone] == [None, None]


def test_a_look_at_variables_leaves_what_others_see_of_them():
    """Be it by locals(), from exec(), in a debugger that writes variables back, or in a class or module."""
    value = 1
    mine = locals()
    mine["value"] = 2  # as scripts do that take their arguments for a configuration
    look()
    assert mine["value"] == 2
    del mine
    if sys.version_info < (3, 13):
        exec("made = 2")
        look()
        assert locals()["made"] == 2

    class Body:
        attribute = 3
        seen = look()

    assert Body.attribute == Body.seen["attribute"] == 3
    module = {"look": look}
    exec("kept = 4; seen = look()", module)
    assert module["kept"] == module["seen"]["kept"] == 4


def test_a_look_at_variables_while_a_debugger_stands_in_the_function():
    """Python writes a traced function's variables back from the copies in its frame."""

    def traced():
        value = 1
        return value + 1

    def trace(frame, event, arg):
        if frame.f_code is traced.__code__:
            variables_of(frame)
            return trace
        return None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        assert traced() == 2
    finally:
        sys.settrace(before)
