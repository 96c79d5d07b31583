"""Train and evaluate pytorch-ignite and accelerate code on Graphcore IPUs, or on an emulator of PopTorch."""

from __future__ import annotations

import ast
import sys
from importlib import import_module
from pathlib import Path
from typing import Callable, List, Tuple

__version__ = "0.1.0"


def lazy_names(
    package: str, file: str, **unlisted: str
) -> Tuple[List[str], Callable[[str], object], Callable[[], List[str]]]:
    """Return `__all__`, `__getattr__` and `__dir__` of a package: each name is imported when it is first used.

    Its stub, beside its `file`, has the origin of the names, as for type checkers. `unlisted` names are found as well,
    each in its module. (lazy_loader does the same; but `ignite-ipu env` has to work in a broken installation, so this
    needs nothing but Python.)
    """
    stub = ast.parse(Path(file).with_suffix(".pyi").read_text(encoding="utf-8"))
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    homes = {alias.name: f"{'.' * node.level}{node.module}" for node in imports for alias in node.names}

    def get(name: str) -> object:
        home = homes.get(name) or unlisted.get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(home, package), name)
        setattr(sys.modules[package], name, value)
        return value

    return [*homes], get, lambda: sorted({*vars(sys.modules[package]), *homes})


# `%load_ext ignite_ipu` looks for the last two. They are not listed, since an import of `auto` turns it on.
__all__, __getattr__, __dir__ = lazy_names(
    __name__, __file__, load_ipython_extension=".auto", unload_ipython_extension=".auto"
)
__all__ += ["__version__"]
