"""Names of a package, each imported from its module when it is first used."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Callable, List, Mapping, Tuple


def exports(
    package: str, modules: Mapping[str, str]
) -> Tuple[List[str], Callable[[str], object], Callable[[], List[str]]]:
    """Return `__all__`, `__getattr__` and `__dir__` of a package.

    Args:
        package: The package's name. For type checkers it has the same imports under `TYPE_CHECKING`.
        modules: Names, with spaces between them, by the module of the package that defines them.
    """
    homes = {name: module for module, names in modules.items() for name in names.split()}

    def get(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(f".{homes[name]}", package), name)
        setattr(sys.modules[package], name, value)
        return value

    return [*homes], get, lambda: sorted({*vars(sys.modules[package]), *homes})
