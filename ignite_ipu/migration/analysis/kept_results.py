"""Results that code of an engine's program keeps for other code: in variables, and in attributes of the model."""

from __future__ import annotations

import ast
import itertools
from typing import Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple, Union

from ignite_ipu.migration.analysis.engines import EVALUATOR_FACTORIES
from ignite_ipu.migration.analysis.kinds import Code, Function, Kind, parameters_of
from ignite_ipu.migration.analysis.names import (
    argument,
    attributes_in,
    chain_of,
    dotted,
    last_of,
    names_bound,
    owner_of,
    targets_of,
    walk,
)
from ignite_ipu.migration.analysis.parsed_file import ParsedFile
from ignite_ipu.migration.analysis.tensor_methods import MUTATORS
from ignite_ipu.migration.analysis.training import Training

_HOOKS = ("register_forward_hook", "register_forward_pre_hook")
_REGISTERED = (Kind.BUFFER, Kind.PARAMETER, Kind.MODULE, Kind.MODULES)


class KeptResult(NamedTuple):
    """A node that keeps a result, or reads a kept one, and the fact as a clause."""

    node: ast.AST
    fact: str


def kept_results(training: Training) -> Iterator[KeptResult]:
    """Yield the changes of variables by code that engines compile, and the reads of attributes that forward sets."""
    engines = [*training.trainers, *(call for call, _ in training.file.calls(*EVALUATOR_FACTORIES))]
    if engines:
        yield from _in_variables(training)
        yield from _in_attributes(training, engines)


def _in_variables(training: Training) -> Iterator[KeptResult]:
    for function in (*_forwards(training), *(_losses(training) if training.trainers else ())):
        for node, name, _ in _outer_changes(training, function):
            yield KeptResult(node, f"{name} is changed by code that runs once, while an engine's program is compiled")


def growing_lists(training: Training) -> Iterator[KeptResult]:
    """Yield the additions of tensors to lists by models and hooks, if no iteration that calls a model clears these."""
    file = training.file
    calls = [*training.backward_calls, *(call for call in file.nodes(ast.Call) if dotted(call.func) in training.models)]
    looped = [call for call in calls if next(file.loops_around(call), None) is not None]
    hooks = [call for call, _ in file.method_calls(*_HOOKS)]
    removed = any(True for _ in file.method_calls("remove"))
    followed = any(_follows(file, call, hook) for call in looped for hook in hooks)
    if not (looped or training.trainers) or (hooks and (removed or not (followed or training.trainers))):
        return  # one call may be all that there are
    per_call = {next(file.loops_around(call), None) for call in calls}
    cleared = set()
    for node, target in _clearings(training):
        loop = next(file.loops_around(node), None)
        if loop in per_call or (loop is None and file.function_of(node) is not None):
            cleared.add(last_of(target))
    for function in _forwards(training):
        for node, name, given in _outer_changes(training, function):
            always = not any(isinstance(above, (ast.If, ast.IfExp)) for above in _within(file, node, function))
            adds = isinstance(node, ast.Call) and owner_of(node, "append", "extend") is not None
            if adds and always and name.rpartition(".")[2] not in cleared and any(_is_tensor(each) for each in given):
                yield KeptResult(node, name)


def _follows(file: ParsedFile, call: ast.Call, hook: ast.Call) -> bool:
    return call.lineno > hook.lineno or file.function_of(call) is not file.function_of(hook)


def _clearings(training: Training) -> Iterator[Tuple[ast.AST, ast.AST]]:
    """Yield the nodes outside of models that clear a list, or put another one in its place, with the list."""
    file = training.file
    for call, _ in file.method_calls("clear", "pop", "popleft"):
        assert isinstance(call.func, ast.Attribute)
        yield call, call.func.value
    statements: List[Union[ast.Assign, ast.Delete]] = [*file.nodes(ast.Assign), *file.nodes(ast.Delete)]
    for node in statements:
        made = file.function_of(node) is not None or next(file.loops_around(node), None) is not None
        for target in node.targets if made else ():
            yield node, target.value if isinstance(target, ast.Subscript) else target


def _is_tensor(node: ast.expr) -> bool:
    """Return whether a value may be a tensor: it is computed, and no number, list or array, or its shape."""
    names = attributes_in(node)
    return bool(_names(node)) and names.isdisjoint(("item", "tolist", "numpy", "shape", "size", "dim", "dtype"))


def _within(file: ParsedFile, node: ast.AST, function: Code) -> Iterator[ast.AST]:
    """Yield the nodes around a node in a function, innermost first."""
    return itertools.takewhile(lambda above: above is not function, file.ancestors(node))


def _outer_changes(training: Training, function: Code) -> Iterator[Tuple[ast.AST, str, List[ast.expr]]]:
    """Yield the changes of variables from outside of a function that it does not test, with names and arguments."""
    nodes = walk(function)
    own = {name.split(".")[0] for node in nodes for name in names_bound(node)} | _given(function)
    tests = [node.test for node in nodes if isinstance(node, ast.If)]
    own |= {name for test in tests for name in chain_of(test) | _names(test)} | training.file.names.imports.keys()
    for node in nodes:
        for changed in _changed(node):
            name = dotted(changed)
            if name is not None and name.split(".")[0] not in own:
                yield node, name, node.args if isinstance(node, ast.Call) else []


def _forwards(training: Training) -> Iterator[Code]:
    """Yield the methods of models that forward enters, and the hooks on calls of layers."""
    file = training.file
    for model in file.models:
        yield from model.entered
    hooks: Set[str] = set()
    for call, _ in file.method_calls(*_HOOKS):
        hook = argument(call, "hook", 0)
        if isinstance(hook, ast.Lambda):
            yield hook
        hooks.add(last_of(hook))
    yield from (each for each in file.nodes(ast.FunctionDef) if each.name in hooks and each not in file.traced)


def _losses(training: Training) -> Iterator[Code]:
    names = {name.rpartition(".")[2] for name in training.loss_functions}
    yield from (each for each in training.file.nodes(ast.FunctionDef) if each.name in names)


def _given(function: Code) -> Set[str]:
    """Return the names of parameters, `self` of models and of objects included."""
    given = {each.arg for each in parameters_of(function)}
    return given if isinstance(function, ast.Lambda) else given | {"self"}


def _names(node: ast.AST) -> Set[str]:
    return {each.id for each in walk(node) if isinstance(each, ast.Name)}


def _changed(node: ast.AST) -> Iterator[ast.expr]:
    """Yield the containers and objects that a node changes."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in MUTATORS:
        yield node.func.value
    if not isinstance(node, ast.AnnAssign):
        yield from (each.value for each in targets_of(node) if isinstance(each, (ast.Subscript, ast.Attribute)))


def _in_attributes(training: Training, engines: Sequence[ast.Call]) -> Iterator[KeptResult]:
    file = training.file
    models = {last_of(argument(call, "model", 0)) for call in engines} - {""}
    kept: Set[str] = set()
    for model in file.models:
        for method in model.entered:
            stored = (node for node in walk(method) if isinstance(node, ast.Attribute) and dotted(node.value) == "self")
            kept |= {node.attr for node in stored if isinstance(node.ctx, ast.Store)}
        kept -= {name for name, kind in model.holds.items() if kind in _REGISTERED}
    # A function that calls the model itself has the attributes that this call has set.
    called = [call for call in file.nodes(ast.Call) if last_of(call.func) in models]
    callers: Set[Optional[Function]] = set(map(file.function_of, called))
    for node in file.nodes(ast.Attribute) if kept else ():
        read = node.attr in kept and isinstance(node.ctx, ast.Load) and node not in file.traced
        if read and not models.isdisjoint(chain_of(node.value)) and file.function_of(node) not in callers:
            name = dotted(node) or node.attr
            yield KeptResult(node, f"{name} is set by forward, and has no value of the device on the host")
