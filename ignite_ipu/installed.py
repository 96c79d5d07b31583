"""Which files are Python's, an installed package's or this package's, and so none of the user's own."""

from __future__ import annotations

import functools
import os
import site
import sysconfig
from typing import List

import torch

__all__ = ["is_installed", "is_users_file"]


@functools.lru_cache(maxsize=None)
def is_installed(file: str) -> bool:
    """Tell whether a file of code belongs to a library."""
    return os.path.abspath(file).startswith(_FOLDERS)


def is_users_file(file: str) -> bool:
    """Tell whether a file of code is the user's own; code without a file, as in a notebook, is, too."""
    return not file.startswith("<frozen") and not is_installed(file)


def _folders() -> List[str]:
    paths = sysconfig.get_paths()
    found = [paths["stdlib"], paths["platstdlib"], paths["purelib"], paths["platlib"]]
    found += [*site.getsitepackages(), site.getusersitepackages(), os.path.dirname(torch.__file__)]
    # In a virtual environment the standard library is elsewhere.
    return [*found, os.path.dirname(os.__file__), os.path.dirname(__file__)]


_FOLDERS = tuple(os.path.abspath(folder) + os.sep for folder in _folders())
