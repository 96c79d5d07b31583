"""Installed packages that are built on PopTorch: those whose code imports it."""

from __future__ import annotations

import importlib.machinery
import os
import re
import sysconfig
from typing import Iterable, Iterator, List, Optional

_IMPORT = re.compile(rb"^[ \t]*(?:import|from)[ \t]+poptorch\b", re.MULTILINE)
# Their own code is known, and large.
_NOT_BUILT_ON_IT = frozenset({"accelerate", "ignite", "ignite_ipu", "numpy", "poptorch", "torch"})


def any_built_on_poptorch(modules: Iterable[str]) -> bool:
    """Tell whether one of these modules of installed packages, or one below it, imports `poptorch`.

    Their source is searched; nothing is imported for that.

    Args:
        modules: Dotted names. A last part that is no module is taken as a name defined in the one before.
    """
    places = {_place(module) for module in modules if module.split(".")[0] not in _NOT_BUILT_ON_IT}
    return any(_imports_poptorch(file) for place in places if place is not None for file in _sources(place))


def _place(module: str) -> Optional[str]:
    """Return the directory or the file of a module outside the standard library."""
    first, *rest = module.split(".")
    try:
        spec = importlib.machinery.PathFinder.find_spec(first)
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    locations: List[str] = list(spec.submodule_search_locations or [])
    if not locations:
        return None if spec.origin is None or _is_of_the_standard_library(spec.origin) else spec.origin
    if all(map(_is_of_the_standard_library, locations)):
        return None
    for part in rest:
        below = [os.path.join(location, part) for location in locations]
        packages = [each for each in below if os.path.isdir(each)]
        if not packages:
            files = [f"{each}.py" for each in below if os.path.isfile(f"{each}.py")]
            return files[0] if files else locations[0]
        locations = packages
    return locations[0]


def _is_of_the_standard_library(path: str) -> bool:
    inside = os.path.abspath(path).startswith(sysconfig.get_paths()["stdlib"] + os.sep)
    return inside and "site-packages" not in path and "dist-packages" not in path


def _sources(place: str) -> Iterator[str]:
    if os.path.isfile(place):
        yield place
    for folder, _, files in os.walk(place):
        yield from (os.path.join(folder, file) for file in files if file.endswith(".py"))


def _imports_poptorch(file: str) -> bool:
    try:
        with open(file, "rb") as opened:
            text = opened.read()
    except OSError:
        return False
    return b"poptorch" in text and _IMPORT.search(text) is not None
