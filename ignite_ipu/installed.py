"""Which files are Python's, an installed package's or this package's, and so none of the user's own."""

from __future__ import annotations

import functools
import importlib.util
import os
import site
import sys
import sysconfig
from typing import List, Optional

import torch

__all__ = ["found_instead", "is_installed", "is_users_file"]


@functools.lru_cache(maxsize=None)
def is_installed(file: str) -> bool:
    """Tell whether a file of code belongs to a library."""
    return os.path.abspath(file).startswith(_FOLDERS)


def is_users_file(file: str) -> bool:
    """Tell whether a file of code is the user's own; code without a file, as in a notebook, is, too."""
    return not file.startswith("<frozen") and not is_installed(file)


def found_instead(package: str) -> Optional[str]:
    """Return the user's own file that Python imports under the name of a package; None when there is none."""
    module = sys.modules.get(package)
    spec = getattr(module, "__spec__", None) if module is not None else importlib.util.find_spec(package)
    file = None if spec is None else spec.origin
    return file if file is not None and is_users_file(file) else None


def _folders() -> List[str]:
    paths = sysconfig.get_paths()
    found = [paths["stdlib"], paths["platstdlib"], paths["purelib"], paths["platlib"]]
    found += [*site.getsitepackages(), site.getusersitepackages(), os.path.dirname(torch.__file__)]
    # In a virtual environment the standard library is elsewhere.
    return [*found, os.path.dirname(os.__file__), os.path.dirname(__file__)]


_FOLDERS = tuple(os.path.abspath(folder) + os.sep for folder in _folders())
