"""What a written-out loss reads that a function of output and target, compiled once, could not read as it does."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Iterator, Optional, Set

from ignite_ipu.migration.analysis.engine_functions import process_function
from ignite_ipu.migration.analysis.kinds import Function
from ignite_ipu.migration.analysis.models import TENSOR_FACTORIES, Holding
from ignite_ipu.migration.analysis.names import argument, constant, dotted, owner_of, unmoved
from ignite_ipu.migration.steps.names import own_names
from ignite_ipu.migration.steps.plan import Refused

if TYPE_CHECKING:
    from ignite_ipu.migration.program import Program

_DRAWS = ("random.", "numpy.random.")
_DICTIONARY_METHODS = ("get", "items", "keys", "values")


def check_values(program: Program, backward: ast.stmt, loss: ast.expr, per_batch: Set[str]) -> None:
    """Refuse numbers drawn on the host, objects, and tensors that stay on the host.

    Args:
        program: The file.
        backward: The statement that calls backward().
        loss: All that the loss is computed by.
        per_batch: Names in it that come with the batch, as the function's target.
    """
    engines = _engines(program, backward)
    for node in ast.walk(loss):
        drawn = _drawn_from(program, node)
        if drawn is not None:
            raise Refused(node, f"the loss draws a number from {drawn}; draw it in front of the step")
        if isinstance(node, ast.Name) and node.id in engines:
            raise Refused(node, f"the loss reads {node.id!r}, which is no tensor; assign what it reads before the step")
        if _is_of_an_object(node, per_batch):
            raise Refused(node, f"the loss reads {dotted(node)!r} of an object; assign it to a name before the step")
        name = dotted(node)
        if name is not None and name.split(".")[0] not in per_batch and _is_tensor_of_the_host(program, node, name):
            raise Refused(node, f"the loss reads the tensor {name!r} of the host; make it a buffer of a loss module")
        called = dotted(node.func) if isinstance(node, ast.Call) else None
        if called is not None and _holds_tensors(program, called):
            raise Refused(node, f"the loss calls {called!r}, whose tensors stay on the host, among other things")


def tensors_of_the_host(program: Program, function: Function) -> Iterator[ast.Name]:
    """Yield where a function reads tensors that the module around it makes."""
    own = own_names(function)
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and node.id not in own and _is_tensor_of_the_host(program, node, node.id):
            yield node


def check_target(program: Program, backward: ast.stmt, target: ast.expr) -> None:
    """Refuse an engine as the target itself."""
    if isinstance(target, ast.Name) and target.id in _engines(program, backward):
        raise Refused(target, f"the loss is given {target.id!r}, which is no tensor")


def _engines(program: Program, backward: ast.stmt) -> Set[str]:
    """Return the parameter that a process function gets its engine by."""
    function = program.function_of(backward)
    if function is None:
        return set()
    for engine, _ in program.calls("ignite.engine.Engine"):
        process, _ = process_function(program, engine)
        if process is not None and (dotted(process) or "").rsplit(".", 1)[-1] == function.name:
            arguments = [arg.arg for arg in [*function.args.posonlyargs, *function.args.args]]
            return set(arguments[1:2] if arguments[:1] == ["self"] else arguments[:1])
    return set()


def _drawn_from(program: Program, node: ast.AST) -> Optional[str]:
    name = program.names.called(node) or ""
    if name.startswith(_DRAWS):
        return name
    owner = dotted(node.func.value) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else None
    makers = (program.names.called(value) or "" for value in _values_of(program, owner))
    return owner if any(maker.startswith(_DRAWS) for maker in makers) else None


def _is_of_an_object(node: ast.AST, names: Set[str]) -> bool:
    """Whether something is read of one of these names that neither tensors nor dictionaries have."""
    if not isinstance(node, ast.Attribute) or not isinstance(node.value, ast.Name) or node.value.id not in names:
        return False
    # Imported here: most losses have no such attribute, and torch takes a while.
    import torch

    return not hasattr(torch.Tensor, node.attr) and node.attr not in _DICTIONARY_METHODS


def _is_tensor_of_the_host(program: Program, node: ast.AST, name: str) -> bool:
    values = [unmoved(value) for value in _values_of(program, name)]
    if not any(program.names.called(value) in TENSOR_FACTORIES for value in values):
        return False
    # `scale.to(output.device)` makes a constant of the program, which works.
    return owner_of(program.parents.get(program.parents[node]), "to") != name


def _holds_tensors(program: Program, name: str) -> bool:
    """Whether what is called is a module with tensors, which are moved only with the module that is the whole loss."""
    held = {Holding.BUFFER, Holding.PLAIN_TENSOR, Holding.PARAMETER}
    classes = {model.name: model for model in program.models}
    for value in map(unmoved, _values_of(program, name)):
        kind = program.names.called(value) or ""
        if kind.startswith("torch.nn.") and kind.endswith("Loss") and isinstance(value, ast.Call):
            given = [argument(value, "weight", 0), argument(value, "pos_weight")]
            if any(tensor is not None and constant(tensor) is ... for tensor in given):
                return True
        function = value.func if isinstance(value, ast.Call) else None
        if isinstance(function, ast.Name) and function.id in classes:
            return bool(held & set(classes[function.id].holds.values()))
    return False


def _values_of(program: Program, name: Optional[str]) -> Iterator[ast.expr]:
    return (value for target, value in program.training.assigned if target == name)
