"""Process functions of Ignite engines that train, and whether `ipu_step` runs one as a device step.

`ipu_step` records what the function does, whatever its shape: several models, several calls of one, several losses,
several calls of backward. What has to be in sight is that each call makes one update by one optimizer of all the models
that it calls, and that nothing asks for a value before that.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Dict, Iterator, List, Optional, Set, Tuple, Union

from ignite_ipu.migration.analysis.bindings import names_bound
from ignite_ipu.migration.analysis.evaluations import without_gradients
from ignite_ipu.migration.analysis.names import argument, dotted, method_calls, owner_of
from ignite_ipu.migration.analysis.partials import Partial, find_partial

if TYPE_CHECKING:
    from ignite_ipu.migration.program import Program

Function = Union[ast.FunctionDef, ast.AsyncFunctionDef]

_READS = ("item", "tolist", "numpy", "cpu")
_READING = ("float", "int", "bool", "print", "str", "round")
_DECISIONS = (ast.If, ast.While, ast.Assert, ast.IfExp, ast.Try, ast.Return, ast.Yield, ast.YieldFrom, ast.Await)


def process_function(program: Program, engine: ast.Call) -> Tuple[Optional[ast.expr], bool]:
    """Return what an `Engine(...)` calls for each batch, and whether `ipu_step` is around it."""
    process = argument(engine, "process_function", 0)
    if process is not None and program.names.called(process) == "ignite_ipu.ipu_step":
        assert isinstance(process, ast.Call)
        return argument(process, "train_step", 0), True
    return process, False


def captured_functions(program: Program) -> Set[str]:
    """Return the names of the functions that the file gives to `ipu_step`."""
    given = (argument(call, "train_step", 0) for call, _ in program.calls("ignite_ipu.ipu_step"))
    functions = (_behind(program, process)[0] for process in given if process is not None)
    return {(dotted(function) or "").rsplit(".", 1)[-1] for function in functions}


def capturable_engines(program: Program) -> Iterator[Tuple[ast.expr, ast.FunctionDef]]:
    """Yield what is given to engines that `ipu_step` runs, each with the definition of the process function in it."""
    for engine, _ in program.calls("ignite.engine.Engine"):
        process, wrapped = process_function(program, engine)
        if process is None or wrapped:
            continue
        inside, partial = _behind(program, process)
        function = _definition(program, inside)
        if function is not None:
            given = {} if partial is None else partial.given(function)
            if _is_capturable(program, function, given):
                yield process, function


def _behind(program: Program, process: ast.expr) -> Tuple[ast.expr, Optional[Partial]]:
    partial = find_partial(program, process)
    return (process, None) if partial is None else (partial.function, partial)


def _definition(program: Program, process: ast.expr) -> Optional[ast.FunctionDef]:
    name = dotted(process)
    if name is None or name.count(".") > 1 or (name.count(".") == 1 and not name.startswith("self.")):
        return None
    last = name.rsplit(".", 1)[-1]
    found = [node for node in program.nodes(ast.FunctionDef) if node.name == last]
    return found[0] if len(found) == 1 else None


def _is_capturable(program: Program, function: Function, given: Dict[str, Optional[str]]) -> bool:
    steps = [step for step in program.training.steps if step.function is function]
    # A step that is understood becomes one call, without anything being recorded.
    if not steps or any(step.plan is not None or "is carried" in step.reason for step in steps):
        return False
    updates = _updates(program, function)
    if len(updates) != 1:
        return False
    update, optimizer = updates[0]
    models = _models(program, function)
    outer_models = {_outside(function, model, given) for model in models}
    outer_optimizer = _outside(function, optimizer, given)
    if not models or None in outer_models or outer_optimizer is None:
        return False
    if len(models) > 1 and any(True for _ in method_calls(ast.walk(function), "detach")):
        return False  # one of them may be updated without gradients
    # A model of several clears its own gradients only.
    owners = {optimizer, *models} if len(models) == 1 else {optimizer}
    return (
        _is_plain(program, function, update)
        and _clears(function, owners, update, [step.backward for step in steps])
        and _updates_all(program, outer_optimizer, outer_models)
    )


def _updates(program: Program, function: Function) -> List[Tuple[ast.Call, str]]:
    """Return the calls of step() in a function, without those of schedules."""
    calls = method_calls(ast.walk(function), "step")
    return [(call, owner) for call, owner in calls if owner not in program.training.schedulers]


def _models(program: Program, function: Function) -> Set[str]:
    """Return the models that a function calls with gradients."""
    called = {
        dotted(node.func)
        for node in ast.walk(function)
        if isinstance(node, ast.Call) and not without_gradients(program, node)
    }
    return {name for name in called if name is not None and name in program.training.models}


def _outside(function: Function, name: str, given: Dict[str, Optional[str]]) -> Optional[str]:
    """Return what an object of a function is called outside of it, where the function is given to its engine."""
    if name in given:
        return given[name]
    return None if _is_own(function, name) else name


def _is_own(function: Function, name: str) -> bool:
    """Whether a function's own names hide an object from whoever looks for it from outside."""
    arguments = {arg.arg for arg in [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]}
    root = name.split(".")[0]
    bound = {bound_name for statement in function.body for bound_name in names_bound(statement)}
    return root != "self" and root in arguments | bound


def _is_plain(program: Program, function: Function, update: ast.Call) -> bool:
    """Whether a function goes one way to its update, which is a statement of its own, and asks for no value before."""
    statement = program.parents.get(update)
    if not isinstance(statement, ast.Expr) or program.parents.get(statement) is not function:
        return False
    if update.args or update.keywords or isinstance(function, ast.AsyncFunctionDef):
        return False
    for node in ast.walk(function):
        if isinstance(node, (ast.With, ast.AsyncWith)) and not without_gradients(program, node.body[0]):
            return False
        if getattr(node, "lineno", update.lineno) >= update.lineno or node is function:
            continue
        if isinstance(node, _DECISIONS) or owner_of(node, *_READS) is not None:
            return False
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _READING:
            return False
    return True


def _clears(function: Function, owners: Set[str], update: ast.Call, backwards: List[ast.Call]) -> bool:
    """Whether gradients are cleared in every call, before the first backward or after the update."""
    if any(call.args or call.keywords for call in backwards) or max(b.lineno for b in backwards) > update.lineno:
        return False
    places = [
        statement.lineno
        for statement in function.body
        if isinstance(statement, ast.Expr) and owner_of(statement.value, "zero_grad") in owners
    ]
    every = [call for call, _ in method_calls(ast.walk(function), "zero_grad")]
    first = min(call.lineno for call in backwards)
    return len(places) == len(every) == 1 and (places[0] < first or places[0] > update.lineno)


def _updates_all(program: Program, optimizer: str, models: Set[Optional[str]]) -> bool:
    """Whether an optimizer is seen to hold the weights of these models, and of no other."""
    known = program.training.optimizers.get(optimizer)
    owners = {
        owner
        for part in ast.walk(known[0] if known is not None else ast.Module([], []))
        for owner in [owner_of(part, "parameters", "named_parameters")]
        if owner is not None
    }
    return owners == models
