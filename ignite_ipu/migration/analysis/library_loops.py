"""Loops of installed packages that train a file's models: engines, trainers and `fit` methods.

No rewrite reaches such a loop, because it is in files that a package manager installed.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import os
import re
import sys
from typing import Iterator, List, Optional, Set, Tuple

from ignite_ipu.migration.analysis.names import dotted, unmoved
from ignite_ipu.migration.analysis.parsed_file import ParsedFile
from ignite_ipu.migration.analysis.training import Training
from ignite_ipu.program.user_code import Owner, owner_of

# Loops of these packages are captured in migrated programs, or they have none.
_KNOWN = frozenset({"accelerate", "builtins", "ignite", "ignite_ipu", "numpy", "popdist", "poptorch", "torch"})
_TRAINS = re.compile(r"\w*(trainer|learner|estimator|train|fit|fit_\w+|fine_?tune\w*|learn)", re.IGNORECASE)
_SCHEDULES = re.compile(r"\w*(sched|warm_?up|anneal)\w*", re.IGNORECASE)
_MODEL_ARGUMENTS = frozenset({"model", "module", "net", "network"})
_PROJECT = (".git", "pyproject.toml", "setup.py", "setup.cfg")


def library_loops(file: ParsedFile, training: Training) -> Iterator[Tuple[ast.AST, str]]:
    """Yield the places where a package's loop gets a model or an optimizer, with the dotted name of the receiver.

    Classes that extend a package's trainer count, too. A call that gets an optimizer is no loop if the file steps the
    optimizer itself, or the object that the call returns, as those of schedules.
    """
    for node in file.nodes(ast.ClassDef):
        steps = any(isinstance(each, ast.FunctionDef) and each.name == "training_step" for each in node.body)
        for base in node.bases:
            name = file.names.resolve(base)
            if name is not None and _is_foreign(file, name) and (steps or _trains(name)):
                yield base, name
    stepped = _stepped(file)
    made = {id(call) for call, _ in training.optimizer_calls}
    targets = {id(value): target for target, value in file.assigned}
    for call in file.nodes(ast.Call):
        name = _foreign_name(file, call)
        if name is None or _SCHEDULES.fullmatch(name.rpartition(".")[2]):
            continue
        given = [unmoved(each) for each in (*call.args, *(keyword.value for keyword in call.keywords))]
        optimizers = [each for each in given if id(each) in made or dotted(each) in training.optimizers]
        unstepped = [each for each in optimizers if dotted(each) not in stepped]
        loops = targets.get(id(call)) not in stepped if unstepped else not optimizers and _trains(name)
        if loops and (unstepped or _gets_model(call, given, training)):
            yield call.func, name


def _gets_model(call: ast.Call, given: List[ast.expr], training: Training) -> bool:
    named = any(keyword.arg in _MODEL_ARGUMENTS for keyword in call.keywords)
    own = {model.name for model in training.file.models}
    made = any(isinstance(each, ast.Call) and dotted(each.func) in own for each in given)
    return named or made or any(dotted(each) in training.models for each in given)


def _trains(name: str) -> bool:
    return _TRAINS.fullmatch(name.rpartition(".")[2]) is not None


def _stepped(file: ParsedFile) -> Set[Optional[str]]:
    """Return the variables whose `step` is called, or that are given to another's, as to that of a GradScaler."""
    found: Set[Optional[str]] = set()
    for call, owner in file.method_calls("step"):
        found |= {owner, *map(dotted, call.args)}
    return found


def _foreign_name(file: ParsedFile, call: ast.Call) -> Optional[str]:
    """Return the dotted name of a package's function or class that is called, or of the method of an object of one."""
    name = file.names.resolve(call.func)
    if name is not None:
        return name if _is_foreign(file, name) else None
    if not isinstance(call.func, ast.Attribute):
        return None
    for value in file.values.get(dotted(call.func.value) or "", ()):
        kind = file.names.called(value)
        if kind is not None and _is_foreign(file, kind):
            return f"{kind}.{call.func.attr}"
    return None


def _is_foreign(file: ParsedFile, name: str) -> bool:
    """Return whether a dotted name is of a package that is neither the program's own nor one that is known."""
    package, dot, _ = name.partition(".")
    if not dot or not package or package in _KNOWN or _is_standard(package):
        return False
    return not _lies_beside(os.path.abspath(file.source.path), package)


@functools.lru_cache(maxsize=None)
def _is_standard(package: str) -> bool:
    standard = getattr(sys, "stdlib_module_names", None)  # since Python 3.10
    if standard is not None:
        return package in standard
    spec = importlib.util.find_spec(package)
    return spec is not None and (spec.origin in ("built-in", "frozen") or owner_of(str(spec.origin)) is Owner.PYTHON)


@functools.lru_cache(maxsize=4096)
def _lies_beside(path: str, module: str) -> bool:
    """Return whether a module lies in a folder that Python searches for a program's own: up to the project's root."""
    folder = os.path.dirname(path)
    for above in _folders(folder):
        for place in (above, os.path.join(above, "src")):
            if os.path.isfile(os.path.join(place, f"{module}.py")) or os.path.isdir(os.path.join(place, module)):
                return True
    return False


def _folders(folder: str) -> Iterator[str]:
    """Yield a file's folder and those above it: to the project's root, else to the folder of its outermost package."""
    above = [folder]
    while not any(os.path.exists(os.path.join(above[-1], name)) for name in _PROJECT):
        if os.path.dirname(above[-1]) == above[-1]:
            count = next(number for number, each in enumerate(above) if not _is_package(each))
            above = above[: count + 1]
            break
        above.append(os.path.dirname(above[-1]))
    return iter(above)


def _is_package(folder: str) -> bool:
    return os.path.isfile(os.path.join(folder, "__init__.py"))
