"""Tables of the tensors and modules of a module, which count their changes."""

from __future__ import annotations

import copy
import functools
from collections import OrderedDict
from typing import Any, Callable, Dict, Iterable, Mapping, Tuple, Type

from torch import nn

from ignite_ipu.torch_names.modules import BUFFERS, MODULES, PARAMETERS

_CHANGING = ("__setitem__", "__delitem__", "__ior__", "clear", "pop", "popitem", "setdefault", "update")


class _Changes:
    """The number of changes so far of all tables that are followed."""

    count = 0


CHANGES = _Changes()
"""Those of this process. While their count is the same, no followed module has other tensors or modules than before.

PyTorch's hooks on registrations report less: `layer.bias = None` and `del layer.weight` are not among them.
"""


class _Counting:
    """Marks the classes of tables that count their changes."""

    __slots__ = ()


def follow_tables(modules: Iterable[nn.Module]) -> None:
    """Give modules tables that count their changes in `CHANGES`.

    Copies of modules have PyTorch's own, and files have ordered dictionaries, which any module has in its hooks: files
    need no class that others do not need. The tables of TorchScript's modules stay: their entries are those of the
    compiled code.
    """
    for module in modules:
        own = vars(module)
        for kind in (PARAMETERS, BUFFERS, MODULES):
            table = own.get(kind)
            if isinstance(table, dict) and not isinstance(table, _Counting):
                own[kind] = _counting_class(type(table))(table)


def replace_for_a_while(replaced: Iterable[Tuple[Dict[str, Any], Mapping[str, Any]]]) -> None:
    """Replace entries of tables, for a change that is undone before other code looks at them, which is not counted.

    An entry that a table lacks is added, which counts.
    """
    for table, entries in replaced:
        (dict.update if entries.keys() <= table.keys() else type(table).update)(table, entries)


@functools.lru_cache(maxsize=None)
def _counting_class(base: Type[Dict[Any, Any]]) -> Type[Dict[Any, Any]]:
    """Return the class of dictionaries that behave like `base` and count their changes."""
    members: Dict[str, Any] = {name: _counted(getattr(base, name)) for name in _CHANGING if hasattr(base, name)}
    members["__slots__"] = ()
    members["__reduce_ex__"] = lambda table, protocol: (OrderedDict, (), None, None, iter(table.items()))
    members["__copy__"] = base
    members["__deepcopy__"] = lambda table, memo: copy.deepcopy(base(table), memo)
    return type(base.__name__, (_Counting, base), members)


def _counted(change: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(change)
    def counted(*args: Any, **kwargs: Any) -> Any:
        try:
            return change(*args, **kwargs)
        finally:
            CHANGES.count += 1

    return counted
