"""Results that code of a trainer's program keeps for other code: in variables, and in attributes of the model."""

from __future__ import annotations

import ast
from typing import Dict, Iterator, List, NamedTuple, Optional, Set, Union

from ignite_ipu.migration.analysis.kinds import Function, Kind, parameters_of
from ignite_ipu.migration.analysis.models import Model
from ignite_ipu.migration.analysis.names import argument, chain_of, dotted, names_bound, walk
from ignite_ipu.migration.analysis.tensor_methods import MUTATORS
from ignite_ipu.migration.analysis.training import Training
from ignite_ipu.program.reached import reached

_HOOKS = ("register_forward_hook", "register_forward_pre_hook")
_REGISTERED = (Kind.BUFFER, Kind.PARAMETER, Kind.MODULE, Kind.MODULES)
_Code = Union[ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda]


class KeptResult(NamedTuple):
    """A node that keeps a result, or reads a kept one, and the fact as a clause."""

    node: ast.AST
    fact: str


def kept_results(training: Training) -> Iterator[KeptResult]:
    """Yield the changes of variables by code that trainers compile, and the reads of attributes that forward sets."""
    if training.trainers:
        yield from _in_variables(training)
        yield from _in_attributes(training)


def _in_variables(training: Training) -> Iterator[KeptResult]:
    for function in _compiled(training):
        nodes = walk(function)
        own = {name.split(".")[0] for node in nodes for name in names_bound(node)} | _given(function)
        tested = {
            name for node in nodes if isinstance(node, ast.If) for name in chain_of(node.test) | _names(node.test)
        }
        for node in nodes:
            for changed in _changed(node):
                name = dotted(changed)
                first = (name or "").split(".")[0]
                if name is None or first in own | tested or first in training.file.names.imports:
                    continue
                yield KeptResult(
                    node, f"{name} is changed by code that runs once, while a trainer's program is compiled"
                )


def _compiled(training: Training) -> Iterator[_Code]:
    """Yield the functions of a file that a trainer's program is compiled from: of models, losses and hooks."""
    file = training.file
    for model in file.models:
        yield from _entered(model)
    losses = {name.rpartition(".")[2] for name in training.loss_functions}
    named: Dict[str, List[Function]] = {}
    for function in file.nodes(ast.FunctionDef):
        named.setdefault(function.name, []).append(function)
    for call, _ in file.method_calls(*_HOOKS):
        hook = argument(call, "hook", 0)
        if isinstance(hook, ast.Lambda):
            yield hook
        losses.add((dotted(hook) or "").rpartition(".")[2])
    for name in sorted(losses & named.keys()):
        yield from (each for each in named[name] if each not in file.traced)


def _entered(model: Model) -> Iterator[Function]:
    """Yield the methods of a model that its forward enters, and forward."""

    def called(name: str) -> Iterator[str]:
        method = model.method(name)
        calls = (node for node in walk(method) if isinstance(node, ast.Call)) if method is not None else ()
        yield from (name[5:] for name in (dotted(call.func) or "" for call in calls) if name.startswith("self."))

    methods = (model.method(name) for name in reached(["forward"], called))
    yield from (method for method in methods if method is not None)


def _given(function: _Code) -> Set[str]:
    """Return the names of parameters, `self` of models and of objects included."""
    if isinstance(function, ast.Lambda):
        return {each.arg for each in (*function.args.posonlyargs, *function.args.args)}
    return {each.arg for each in parameters_of(function)} | {"self"}


def _names(node: ast.AST) -> Set[str]:
    return {each.id for each in walk(node) if isinstance(each, ast.Name)}


def _changed(node: ast.AST) -> Iterator[ast.expr]:
    """Yield the containers and objects that a node changes."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in MUTATORS:
        yield node.func.value
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    if isinstance(node, (ast.Assign, ast.AugAssign)):
        yield from (each.value for each in targets if isinstance(each, (ast.Subscript, ast.Attribute)))


def _in_attributes(training: Training) -> Iterator[KeptResult]:
    file = training.file
    models = {(dotted(argument(call, "model", 0)) or "").rpartition(".")[2] for call in training.trainers} - {""}
    kept: Set[str] = set()
    for model in file.models:
        for method in _entered(model):
            stored = (node for node in walk(method) if isinstance(node, ast.Attribute) and dotted(node.value) == "self")
            kept |= {node.attr for node in stored if isinstance(node.ctx, ast.Store)}
        kept -= {name for name, kind in model.holds.items() if kind in _REGISTERED}
    # A function that calls the model itself has the attributes that this call has set.
    called = [call for call in file.nodes(ast.Call) if (dotted(call.func) or "").rpartition(".")[2] in models]
    callers: Set[Optional[Function]] = set(map(file.function_of, called))
    for node in file.nodes(ast.Attribute) if kept else ():
        read = node.attr in kept and isinstance(node.ctx, ast.Load) and node not in file.traced
        if read and not models.isdisjoint(chain_of(node.value)) and file.function_of(node) not in callers:
            name = dotted(node) or node.attr
            yield KeptResult(node, f"{name} is set by forward, and has no value of the device on the host")
