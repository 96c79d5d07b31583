"""Iterators and views of dictionaries that a model returns: a program has all their items, with the call."""

from __future__ import annotations

from collections import deque
from collections.abc import ItemsView, Iterator, KeysView, ValuesView
from itertools import islice
from typing import Any, Iterable, List, Optional

from ignite_ipu.errors import CaptureError
from ignite_ipu.program.tensors.trees import Container, Make, opened
from ignite_ipu.program.user_code import current_line

__all__ = ["Items", "opened_items", "with_items"]

_MOST = 4096


class Items(Iterator):  # type: ignore[type-arg]
    """An iterator over known items, in place of one that computes them as it goes."""

    def __init__(self, items: Iterable[Any]) -> None:
        self._left = deque(items)

    def __next__(self) -> Any:
        if not self._left:
            raise StopIteration
        return self._left.popleft()

    @property
    def left(self) -> List[Any]:
        """The items that it has yet to give."""
        return list(self._left)


class _Drawn(Container):
    """An iterator over known items, or a view of a dictionary, with its items for parts."""

    def maker(self) -> Make:
        if isinstance(self.value, ValuesView):
            return lambda parts: dict(enumerate(parts)).values()
        if isinstance(self.value, ItemsView):
            return lambda parts: dict(zip(self.keys, parts)).items()
        if isinstance(self.value, KeysView):
            return lambda parts: dict.fromkeys(parts).keys()
        return Items


def opened_items(value: Any) -> Optional[Container]:
    """Return the parts of `Items`, or of a view of a dictionary; None for another value."""
    if isinstance(value, Items):
        return _Drawn(value, (), value.left)
    if isinstance(value, ItemsView):
        return _Drawn(value, tuple([key for key, _ in value]), [part for _, part in value])
    if isinstance(value, (ValuesView, KeysView)):
        return _Drawn(value, (), list(value))
    return None


def with_items(result: Any) -> Any:
    """Return the result of a call with `Items` in place of generators and Python's other iterators in it.

    They compute as they are drawn from, which has to happen in the call.

    Raises:
        CaptureError: One of them does not end.
    """
    if isinstance(result, Iterator) and type(result).__module__ in ("builtins", "itertools"):
        items = list(islice(result, _MOST + 1))
        if len(items) > _MOST:
            raise CaptureError(
                f"The model that is called at {current_line()} returns a {type(result).__qualname__} of more than "
                f"{_MOST} items. A program returns all of them with the call. Return a list or a tensor."
            )
        return Items(map(with_items, items))
    container = opened(result) if isinstance(result, (list, tuple, dict)) else None
    if container is None:
        return result
    parts = list(map(with_items, container.parts))
    unchanged = all(part is before for part, before in zip(parts, container.parts))
    return result if unchanged else container.maker()(parts)
