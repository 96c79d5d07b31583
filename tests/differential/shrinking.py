"""`shortest`: the least program that still fails, found by taking features away."""

from __future__ import annotations

import dataclasses
from typing import Callable, Iterator

from tests.differential.program import Program, sound


def shortest(program: Program, fails: Callable[[Program], bool], tries: int = 300) -> Program:
    """Return a program that fails and of which nothing can be taken away.

    Args:
        program: One that fails.
        fails: Whether a simpler one fails in the same way.
        tries: How many programs may be run for it.
    """
    seen = {program}
    progress = True
    while progress:
        progress = False
        for simpler in _simpler(program):
            if simpler in seen or tries <= 0:
                continue
            seen.add(simpler)
            tries -= 1
            if fails(simpler):
                program, progress = simpler, True
                break
    return program


def _simpler(program: Program) -> Iterator[Program]:
    for field in dataclasses.fields(program):
        value = getattr(program, field.name)
        if value == field.default:
            continue
        changes = [field.default]
        if isinstance(value, tuple):
            changes += [value[:place] + value[place + 1 :] for place in range(len(value))]
            changes += [
                (*value[:place], dataclasses.replace(edit, number=1), *value[place + 1 :])
                for place, edit in enumerate(value)
                if field.name == "edits" and edit.number > 1
            ]
        elif isinstance(value, int) and field.name != "seed":
            changes.append(value - 1)
        for change in changes:
            found = sound(dataclasses.replace(program, **{field.name: change}))
            if found.size() <= program.size() and found != program:
                yield found
