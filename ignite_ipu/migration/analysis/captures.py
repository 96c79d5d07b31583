"""Places of a file where `ipu_prepare` makes its loops train on an IPU, as they are written."""

from __future__ import annotations

import ast
from typing import Iterable, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple, Union

from ignite_ipu.migration.analysis.bindings import names_bound
from ignite_ipu.migration.analysis.engine_functions import captured_functions, training_functions
from ignite_ipu.migration.analysis.kinds import parameters_of
from ignite_ipu.migration.analysis.names import argument, dotted, method_calls, owner_of, unmoved
from ignite_ipu.migration.analysis.parsed_file import ParsedFile
from ignite_ipu.migration.analysis.training import Training

Scope = Union[ast.FunctionDef, ast.AsyncFunctionDef, ast.Module]

PREPARE = "ignite_ipu.ipu_prepare"
_TRAINERS = {
    "ignite.engine.create_supervised_trainer": 1,
    "ignite_ipu.create_ipu_trainer": 1,
    "ignite_ipu.ipu_train_batch": 1,
    "poptorch.trainingModel": 2,
}
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


class Capture(NamedTuple):
    """A place to prepare something at.

    Attributes:
        node: The construction of an optimizer or a model, which becomes the first argument of `ipu_prepare`; or the
            statement in front of which a call of it goes.
        names: What else it is given.
    """

    node: Union[ast.Call, ast.stmt]
    names: Tuple[str, ...]


class Unclear(NamedTuple):
    """A statement or call that keeps a loop from being captured, and why."""

    node: ast.AST
    reason: str


def find_captures(training: Training) -> Tuple[List[Capture], List[Unclear]]:
    """Return where what trains is to be prepared, and what stands in the way."""
    if training.executors or not training.backwards:
        return [], []
    return _Captures(training).find()


def host_evaluations(training: Training) -> Iterator[ast.Call]:
    """Yield the evaluations of models that nothing puts on an IPU."""
    captures, _ = find_captures(training)
    prepared = {name for capture in captures for name in capture.names}
    prepared |= {dotted(value) or "" for call, _ in training.file.calls(PREPARE) for value in call.args}
    prepared |= _given_to_accelerate(training.file)
    prepared |= {target for target, value in training.file.assigned if training.file.names.called(value) == PREPARE}
    yield from (call for call in training.evaluations if dotted(call.func) not in prepared)


def evaluated_models(training: Training) -> Iterator[ast.Call]:
    """Yield the constructions of these models."""
    names = {dotted(call.func) for call in host_evaluations(training)}
    for target, value in training.file.assigned:
        made = training.file.names.called(unmoved(value)) or ""
        if target in names and isinstance(value, ast.Call) and not made.startswith("torch.jit."):
            yield value


def _given_to_accelerate(file: ParsedFile) -> Set[str]:
    calls = method_calls(file.nodes(ast.Call), "prepare", "prepare_model", "prepare_optimizer")
    return {dotted(value) or "" for call, _ in calls for value in call.args}


class _Captures:
    def __init__(self, training: Training) -> None:
        self.training = training
        self.file = training.file
        self.called = {dotted(call.func) for call in self.file.nodes(ast.Call) if call not in self.file.traced}
        self.unclear: List[Unclear] = []

    def find(self) -> Tuple[List[Capture], List[Unclear]]:
        captured = captured_functions(self.file)
        recorded = [function for _, function in training_functions(self.training)]
        scopes: List[Scope] = []
        for backward in self.training.backwards:
            scope = self.file.function_of(backward) or self.file.tree
            if getattr(scope, "name", "") not in captured and scope not in scopes:
                scopes.append(scope)
        if not scopes:
            return [], []
        made = self._constructions()
        captures = [capture for call in made if not self._is_prepared(call) for capture in self._at_construction(call)]
        for scope in scopes:
            stepped = sorted(self._stepped(scope))
            others = [name for name in stepped if not self._is_made_here(name, scope)]
            if scope in recorded:
                continue  # ipu_step captures what the function is given
            if others:
                captures += self._in_front(scope, others)
            elif not stepped and not made and not self._any_prepared():
                self._refuse(scope, "no optimizer that would update by its gradients is in sight")
        return captures, self.unclear

    def _refuse(self, scope: Scope, reason: str) -> None:
        for backward in self.training.backwards:
            if (self.file.function_of(backward) or self.file.tree) is scope:
                self.unclear.append(Unclear(backward, reason))

    # Optimizers that the file makes

    def _constructions(self) -> List[ast.Call]:
        """Return the constructions of torch's optimizers, but for those of trainers, accelerate and the like."""
        elsewhere = {
            dotted(value)
            for call, name in self.file.calls(*_TRAINERS)
            for value in [argument(call, "optimizer", _TRAINERS[name])]
            if value is not None
        }
        elsewhere |= _given_to_accelerate(self.file)
        theirs = {id(call) for name, (call, _) in self.training.optimizers.items() if name in elsewhere}
        calls = [call for call, name in self.training.optimizer_calls if name.startswith("torch.optim.")]
        return [call for call in calls if id(call) not in theirs]

    def _is_prepared(self, call: ast.Call) -> bool:
        return self.file.names.called(self.file.parents[call]) == PREPARE

    def _any_prepared(self) -> bool:
        return any(True for _ in self.file.calls(PREPARE))

    def _at_construction(self, call: ast.Call) -> Iterator[Capture]:
        scope = self.file.function_of(call) or self.file.tree
        before = [node for node in self._own_nodes(scope) if _line(node) <= call.lineno]
        hidden = {name for node in before if call not in ast.walk(node) for name in _loop_variables(node)}
        hidden |= {name for node in ast.walk(call) for name in _loop_variables(node)}
        # params = [...]: what was asked for its parameters in front of the construction.
        for nodes in ([call], before):
            models = self._models_of(nodes)
            if models & hidden:
                mentioned = {name for node in nodes for part in ast.walk(node) for name in [dotted(part)] if name}
                models = (mentioned & self.training.models) - hidden
            if models:
                break
        passed = {dotted(node) for node in ast.walk(call)}
        models = models or {name for name in passed if name is not None and name in self.training.models}
        if models:
            yield Capture(call, tuple(sorted(models)))
        else:
            self.unclear.append(Unclear(call, "the file does not show which models this optimizer trains"))

    def _models_of(self, nodes: Iterable[ast.AST]) -> Set[str]:
        """Return the models whose parameters are asked for, each as it is called."""
        found = set()
        for node in nodes:
            for part in ast.walk(node):
                if owner_of(part, "parameters", "named_parameters") is not None:
                    assert isinstance(part, ast.Call)
                    assert isinstance(part.func, ast.Attribute)
                    found.add(self._as_called(part.func.value))
        return {name for name in found if name is not None}

    def _as_called(self, module: ast.expr) -> Optional[str]:
        while isinstance(module, ast.Subscript):
            module = module.value
        name = dotted(module)
        parts = (name or "").split(".")
        outer = [".".join(parts[:count]) for count in range(1, len(parts) + 1)]
        known = [each for each in outer if each in self.called]
        return next(iter(known or [each for each in outer if each in self.training.models]), name)

    # Optimizers that a function is given

    def _stepped(self, scope: Scope) -> Set[str]:
        """Return the optimizers whose `step()`, or that of a scaler with them, a function calls."""
        found = set()
        for call, owner in method_calls(self._own_nodes(scope), "step"):
            found |= {name for name in (owner, *map(dotted, call.args)) if name and self.training.is_optimizer(name)}
        return found

    def _is_made_here(self, name: str, scope: Scope) -> bool:
        """Whether an optimizer is one that the file makes, and not one that callers of other files may give."""
        parameters = [] if isinstance(scope, ast.Module) else [arg.arg for arg in parameters_of(scope)]
        if isinstance(scope, ast.Module) or name not in parameters:
            return self._is_made(name)
        method = parameters[:1] == ["self"]
        bound = parameters[1:] if method else parameters
        calls = [each for each in self.file.nodes(ast.Call) if _calls(each, scope.name, method)]
        given = [argument(call, name, bound.index(name)) for call in calls]
        return bool(given) and all(value is not None and self._is_made(dotted(value) or "") for value in given)

    def _is_made(self, name: str) -> bool:
        values = [value for target, value in self.file.assigned if target == name]
        return name in self.training.optimizers or any(self.file.names.called(value) == PREPARE for value in values)

    def _in_front(self, scope: Scope, optimizers: Sequence[str]) -> Iterator[Capture]:
        """Yield the call of `ipu_prepare` in front of the first statement that calls a model."""
        models = {
            name
            for node in self._own_nodes(scope)
            for name in [dotted(node.func) if isinstance(node, ast.Call) else dotted(node)]
            if name is not None and name in self.training.models and not _is_part(name, self.training.models)
        }
        if not models:
            self._refuse(scope, f"the file does not show which models {optimizers[0]} trains")
            return
        names = (*optimizers, *sorted(models))
        for statement in scope.body:
            inside = [part for part in ast.walk(statement) if isinstance(part, ast.Call)]
            if self._prepares(statement, names):
                return
            uses = any(dotted(call.func) in models or call in self.training.backwards for call in inside)
            if uses and not isinstance(statement, _DEFINITIONS):
                if {name.split(".")[0] for name in names} & names_bound(statement):
                    break
                yield Capture(statement, names)
                return
        self._refuse(scope, f"{' and '.join(names)} are not in sight in front of the loop")

    def _prepares(self, statement: ast.stmt, names: Sequence[str]) -> bool:
        call = statement.value if isinstance(statement, ast.Expr) else None
        if not isinstance(call, ast.Call) or self.file.names.called(call) != PREPARE:
            return False
        return {dotted(value) for value in call.args} >= set(names)

    def _own_nodes(self, scope: Scope) -> List[ast.AST]:
        """Return the nodes of a function, or of the module, without those of functions and classes in it."""
        found: List[ast.AST] = []
        waiting: List[ast.AST] = list(scope.body)
        while waiting:
            node = waiting.pop(0)
            if not isinstance(node, _DEFINITIONS):
                found.append(node)
                waiting += ast.iter_child_nodes(node)
        return found


def _loop_variables(node: ast.AST) -> Set[str]:
    """Return the names that a loop, or one in a comprehension, binds to one item after the other."""
    return names_bound(node.target) if isinstance(node, (ast.For, ast.AsyncFor, ast.comprehension)) else set()


def _calls(call: ast.Call, name: str, method: bool) -> bool:
    function = call.func
    return function.attr == name if method and isinstance(function, ast.Attribute) else dotted(function) == name


def _is_part(name: str, names: Set[str]) -> bool:
    return any(name.startswith(f"{other}.") for other in names)


def _line(node: ast.AST) -> int:
    return getattr(node, "lineno", 0)
