"""`reached`: starting points, and everything that they lead to."""

from __future__ import annotations

from typing import Callable, Dict, Iterable, TypeVar

_T = TypeVar("_T")


def reached(start: Iterable[_T], following: Callable[[_T], Iterable[_T]]) -> Dict[_T, None]:
    """Return the start nodes and everything reachable from them by `following`, which is called once for each."""
    found = dict.fromkeys(start)
    waiting = list(found)
    while waiting:
        for each in following(waiting.pop()):
            if each not in found:
                found[each] = None
                waiting.append(each)
    return found
