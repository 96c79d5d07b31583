"""Places of a file where `ipu_prepare` makes its loops train on an IPU, as they are written."""

from __future__ import annotations

import ast
from typing import Dict, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple, Union

from ignite_ipu.errors import listed
from ignite_ipu.migration.analysis.engines import TRAINER_FACTORIES
from ignite_ipu.migration.analysis.kinds import Function, Kind, default_of, parameters_of
from ignite_ipu.migration.analysis.names import (
    argument,
    children,
    constant,
    dotted,
    index_of,
    method_calls,
    names_bound,
    unmoved,
    walk,
)
from ignite_ipu.migration.analysis.parsed_file import ParsedFile
from ignite_ipu.migration.analysis.training import Training

Scope = Union[ast.FunctionDef, ast.AsyncFunctionDef, ast.Module]

PREPARE = "ignite_ipu.ipu_prepare"
_TRAINERS = {**dict.fromkeys((*TRAINER_FACTORIES, "ignite_ipu.ipu_train_batch"), 1), "poptorch.trainingModel": 2}
_LISTS = (ast.List, ast.Tuple, ast.ListComp)
_MODULES = "torch.nn.ModuleList"
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


_TWO_STEPS = (
    "A device step makes one update, of the weights that it takes the gradient of. With updates on the host, "
    "ipu_prepare(optimizer, model, config=IPUConfig(update='host')), the loop stays as it is: "
    'docs/loops.md, "Two steps for an update".'
)


class CapturePoint(NamedTuple):
    """A place to prepare something at, and the names of the other arguments of `ipu_prepare`.

    The node is the construction of an optimizer or a model, which becomes the first argument of `ipu_prepare`, or the
    statement in front of which a call of it goes.
    """

    node: Union[ast.Call, ast.stmt]
    names: Tuple[str, ...]


class Unclear(NamedTuple):
    """A call that keeps a loop from being captured by `ipu_prepare`, and why, and the way out where it has its own.

    Attributes:
        on_host: Whether the updates of the loop are made on the host.
    """

    node: ast.Call
    reason: str
    remedy: Optional[str] = None
    on_host: bool = False


def find_captures(training: Training) -> Tuple[List[CapturePoint], Optional[Unclear]]:
    """Return the places to prepare models and optimizers at, and the first obstacle."""
    if training.executors or not training.backwards:
        return [], None
    return _Captures(training).find()


def host_evaluations(training: Training) -> Iterator[ast.Call]:
    """Yield the evaluations of models that nothing puts on an IPU."""
    file = training.file
    if not training.evaluations:
        return
    captures, _ = find_captures(training)
    prepared: Set[Optional[str]] = {name for capture in captures for name in capture.names}
    prepared |= {target for target, value in file.assigned if file.names.called(value) == PREPARE}
    prepared |= {dotted(value) for call, _ in file.calls(PREPARE) for value in call.args} | _given_to_accelerate(file)
    # Averages whose batch statistics are computed by forward passes in training mode, which the host makes.
    prepared |= {dotted(argument(call, "model", 1)) for call, _ in file.calls("torch.optim.swa_utils.update_bn")}
    # Models that are called with gradients where a loss goes backward.
    scopes = {file.function_of(call) for call in training.backwards}
    calls = [call for call in file.nodes(ast.Call) if scopes and file.function_of(call) in scopes]
    prepared |= {dotted(call.func) for call in calls if not file.without_gradients(call)}
    yield from (call for call in training.evaluations if dotted(call.func) not in prepared)


def evaluated_models(training: Training) -> Iterator[ast.Call]:
    """Yield the constructions of these models."""
    names = {dotted(call.func) for call in host_evaluations(training)}
    for target, value in training.file.assigned:
        made = training.file.names.called(unmoved(value)) or ""
        if target in names and isinstance(value, ast.Call) and not made.startswith("torch.jit."):
            yield value


def _given_to_accelerate(file: ParsedFile) -> Set[Optional[str]]:
    calls = file.method_calls("prepare", "prepare_model", "prepare_optimizer")
    return {dotted(value) for call, _ in calls for value in call.args}


class _Captures:
    def __init__(self, training: Training) -> None:
        self.training = training
        self.file = training.file
        self.called = {dotted(call.func) for call in self.file.nodes(ast.Call) if call not in self.file.traced}
        self.made = self._constructions()
        self.made_here: Dict[Tuple[ast.AST, str], bool] = {}
        self.unclear: Optional[Unclear] = None
        self._nodes_of: Dict[Scope, List[ast.AST]] = {}

    def find(self) -> Tuple[List[CapturePoint], Optional[Unclear]]:
        recorded = [function for _, function in self.training.engines.process_functions]
        scopes: Dict[Scope, ast.Call] = {}
        for backward in self.training.backwards:
            scope = self.file.function_of(backward) or self.file.tree
            if getattr(scope, "name", "") not in self.training.engines.captured:
                scopes.setdefault(scope, backward)
        if not scopes:
            return [], None
        captures = [capture for call in self.made for capture in self._at_construction(call)]
        for scope, backward in scopes.items():
            stepped = sorted(self._stepped(scope))
            others = [name for name in stepped if not self._is_made_here(name, scope)]
            if scope in recorded:
                continue  # ipu_step captures the function's arguments
            if others and not all(_is_optimizer(self.file, scope, name) for name in others):
                self._refuse(backward, f"callers in other files give it {listed(others)}")
            elif others:
                captures += self._in_front(scope, others, backward)
            elif not stepped and not self.made and not list(self.file.calls(PREPARE)):
                steps = self._steps_of_another_name(scope)
                if steps:
                    reason = f"its optimizer makes an update by {listed(steps)}, not by step()"
                    self.unclear = self.unclear or Unclear(backward, reason, _TWO_STEPS, on_host=True)
                else:
                    self._refuse(backward, "no optimizer that would update by its gradients is in sight")
        return captures, self.unclear

    def _refuse(self, node: ast.Call, reason: str) -> None:
        self.unclear = self.unclear or Unclear(node, reason)

    def _steps_of_another_name(self, scope: Scope) -> List[str]:
        """Return the methods of optimizers that a function calls and that make a part of an update, as SAM's do."""
        calls = [node for node in self._own_nodes(scope) if isinstance(node, ast.Call)]
        names = [name for name in (dotted(call.func) or "" for call in calls) if name.endswith("_step")]
        found = [name for name in names if self.training.is_optimizer(name.rpartition(".")[0])]
        return [f"{name.rpartition('.')[2]}()" for name in dict.fromkeys(found)]

    # Optimizers that the file makes

    def _constructions(self) -> List[ast.Call]:
        """Return the constructions of torch's optimizers, but for those of trainers, accelerate and the like."""
        trainers = self.file.calls(*_TRAINERS)
        elsewhere = {dotted(argument(call, "optimizer", _TRAINERS[name])) for call, name in trainers}
        elsewhere |= _given_to_accelerate(self.file)
        theirs = {id(call) for name, (call, _) in self.training.optimizers.items() if name in elsewhere}
        calls = [call for call, name in self.training.optimizer_calls if name.startswith("torch.optim.")]
        return [call for call in calls if id(call) not in theirs]

    def _at_construction(self, call: ast.Call) -> Iterator[CapturePoint]:
        if self.file.names.called(self.file.parents[call]) == PREPARE:
            return
        scope = self.file.function_of(call) or self.file.tree
        inside = walk(call)
        # params = [...]: the owners of parameters that were collected in front of the construction.
        before = [node for node in self._own_nodes(scope) if 0 < getattr(node, "lineno", 0) <= call.lineno]
        loops = [loop for node in [*before, *inside] if call not in walk(node) for loop in _loops(node)]
        for nodes in (inside, before):
            models = self._models_of(nodes)
            # for part in (encoder, decoder): after the loop only the elements that it ran over are visible.
            hidden = [loop for loop in loops if names_bound(loop.target) & models]
            models -= {name for loop in hidden for name in names_bound(loop.target)}
            ran_over = {dotted(part) for loop in hidden for part in walk(loop.iter)}
            models |= {name for name in ran_over if name is not None and self._is_model(name)}
            lists = {dotted(loop.iter) for loop in hidden if isinstance(loop.target, ast.Name)}
            models |= {f"*{name}" for name in lists if name is not None and self._is_list(name)}
            if models:
                break
        models = models or {name for name in map(dotted, inside) if name is not None and self._is_model(name)}
        if models:
            yield CapturePoint(call, self._with_parts(models))
        else:
            self._refuse(call, "the file does not show which models this optimizer trains")

    def _models_of(self, nodes: Iterable[ast.AST]) -> Set[str]:
        """Return the models whose parameters are asked for, each as it is called."""
        calls = method_calls(nodes, "parameters", "named_parameters")
        found = {self._as_called(getattr(call.func, "value", None)) for call, _ in calls}
        return {name for name in found if name is not None}

    def _with_parts(self, models: Set[str]) -> Tuple[str, ...]:
        """Return models with the modules in them that the loop calls, itself or by a method other than forward."""
        parts: Set[str] = set()
        for name in self.called:
            owner, _, attribute = (name or "").rpartition(".")
            if owner in models:
                parts.update(f"{owner}.{part}" for part in self._modules_behind(attribute, set()))
        return (*sorted(models, key=lambda name: name.strip("*")), *sorted(parts - models))

    def _modules_behind(self, attribute: str, seen: Set[str]) -> Iterator[str]:
        """Yield the attribute of a model if it is a module, and the modules that it calls if it is a method."""
        seen.add(attribute)
        for model in self.file.models:
            method = model.method(attribute)
            if model.holds.get(attribute) is Kind.MODULE:
                yield attribute
            elif method is not None:
                for call in (node for node in walk(method) if isinstance(node, ast.Call)):
                    owner, _, name = (dotted(call.func) or "").rpartition(".")
                    if owner == "self" and name not in seen:
                        yield from self._modules_behind(name, seen)

    def _as_called(self, module: Optional[ast.expr]) -> Optional[str]:
        while isinstance(module, ast.Subscript):
            if self._is_list(dotted(module.value) or ""):
                fixed = isinstance(index_of(module), ast.Constant)
                return self.file.source_of(module) if fixed else None
            module = module.value
        name = dotted(module)
        parts = (name or "").split(".")
        outer = [".".join(parts[:count]) for count in range(1, len(parts) + 1)]
        known = [each for each in outer if each in self.called]
        return next(iter(known or filter(self._is_model, outer)), name)

    def _is_list(self, name: str) -> bool:
        """Return whether a variable holds several models, of which none is called by that name."""
        values = self.file.values.get(name, [])
        lists = [value for value in values if isinstance(value, _LISTS) or self.file.names.called(value) == _MODULES]
        return bool(values) and lists == values

    def _is_model(self, name: str) -> bool:
        return name in self.training.models and not self._is_list(name)

    # Optimizers that a function is given

    def _stepped(self, scope: Scope) -> Set[str]:
        """Return the optimizers whose `step()`, or that of a scaler with them, a function calls."""
        found = set()
        for call, owner in method_calls(self._own_nodes(scope), "step"):
            found |= {name for name in (owner, *map(dotted, call.args)) if name and self.training.is_optimizer(name)}
        return found

    def _is_made_here(self, name: str, scope: Scope) -> bool:
        """Return whether an optimizer is one that the file makes, and not one that callers of other files may give."""
        key = (scope, name)
        if key not in self.made_here:
            self.made_here[key] = False  # as long as it is only known by way of itself
            if not isinstance(scope, ast.Module) and name in {arg.arg for arg in parameters_of(scope)}:
                self.made_here[key] = self._all_give(scope, name)
            else:
                values = [*self.file.values.get(name, ()), *self._looped(name, scope)]
                self.made_here[key] = any(map(self._makes, values))
        return self.made_here[key]

    def _all_give(self, function: Function, name: str) -> bool:
        """Return whether all calls of a function give it, by a name, an optimizer that the file makes."""
        given = self.file.given(function, name)
        given = [default_of(function, name) if value is None else value for value in given]
        # A call without one, as for an evaluation, steps none.
        optimizers = [value for value in given if value is None or constant(value) is not None]
        return bool(optimizers) and all(value is not None and self._makes(value) for value in optimizers)

    def _makes(self, value: ast.expr) -> bool:
        """Return whether a value is an optimizer that the file makes, or a variable or parameter that is given one."""
        name, scope = dotted(value), self.file.function_of(value) or self.file.tree
        if name is not None:
            return self._is_made_here(name, scope)
        inner = self.training.unwrapped(value)
        if isinstance(inner, _LISTS):
            elements = [inner.elt] if isinstance(inner, ast.ListComp) else inner.elts
            return bool(elements) and all(map(self._makes, elements))
        if isinstance(inner, ast.Subscript):  # **options of a function, by name
            options = None if isinstance(scope, ast.Module) else scope.args.kwarg
            if isinstance(scope, ast.Module) or options is None or options.arg != dotted(inner.value):
                return False
            return self._all_give(scope, str(constant(index_of(inner))))
        makers = {getattr(self.file.function_of(call), "name", None) for call in self.made}
        function = (dotted(inner.func) or "").rsplit(".", 1)[-1] if isinstance(inner, ast.Call) else ""
        if inner in self.made or function in makers:
            return True
        given = [*inner.args, *(keyword.value for keyword in inner.keywords)] if isinstance(inner, ast.Call) else []
        return any(map(self._makes, given))  # a schedule or a wrapper around an optimizer, whose step() calls its

    def _looped(self, name: str, scope: Scope) -> Iterator[ast.expr]:
        """Yield the values that a loop variable takes, part by part for loops over several together."""
        for loop in (each for node in self._own_nodes(scope) for each in _loops(node)):
            pairs = [(loop.target, loop.iter)]
            if isinstance(loop.target, ast.Tuple) and self.file.names.called(loop.iter) == "zip":
                assert isinstance(loop.iter, ast.Call)
                pairs = list(zip(loop.target.elts, loop.iter.args))
            yield from (each for target, each in pairs if dotted(target) == name)

    def _in_front(self, scope: Scope, optimizers: Sequence[str], backward: ast.Call) -> Iterator[CapturePoint]:
        """Yield the call of `ipu_prepare` in front of the first statement that calls a model."""
        known = self.training.models
        known = {name for name in known if not any(name.startswith(f"{other}.") for other in known)}
        models = {
            f"*{name}" if self._is_list(name) else name
            for node in self._own_nodes(scope)
            for name in [dotted(node.func) if isinstance(node, ast.Call) else dotted(node)]
            if name is not None and name in known
        }
        # In front of the loop, a variable of a loop holds none of the loop's elements.
        models -= {
            name for node in self._own_nodes(scope) for loop in _loops(node) for name in names_bound(loop.target)
        }
        if not models:
            self._refuse(backward, f"the file does not show which models {optimizers[0]} trains")
            return
        names = (*optimizers, *self._with_parts(models))
        for statement in scope.body:
            inside = [part for part in walk(statement) if isinstance(part, ast.Call)]
            if self._prepares(statement, names):
                return
            uses = any(dotted(call.func) in models or call in self.training.backwards for call in inside)
            if uses and not isinstance(statement, _DEFINITIONS):
                if {name.split(".")[0] for name in names} & names_bound(statement):
                    break
                yield CapturePoint(statement, names)
                return
        self._refuse(backward, f"{' and '.join(names)} are not in sight in front of the loop")

    def _prepares(self, statement: ast.stmt, names: Sequence[str]) -> bool:
        call = statement.value if isinstance(statement, ast.Expr) else statement
        given = call.args if isinstance(call, ast.Call) and self.file.names.called(call) == PREPARE else []
        return {self.file.source_of(value) for value in given} >= set(names)

    def _own_nodes(self, scope: Scope) -> List[ast.AST]:
        """Return the nodes of a function, or of the module, without those of functions and classes in it."""
        known = self._nodes_of.get(scope)
        if known is None:
            known = self._nodes_of[scope] = self._nodes_in(scope)
        return known

    def _nodes_in(self, scope: Scope) -> List[ast.AST]:
        found: List[ast.AST] = []
        waiting: List[ast.AST] = list(scope.body)
        for node in waiting:  # which grows
            if not isinstance(node, _DEFINITIONS):
                found.append(node)
                waiting += children(node)
        return found


def _is_optimizer(file: ParsedFile, scope: Scope, name: str) -> bool:
    """Return whether a parameter, or the attribute that is set to one, is annotated as an optimizer.

    Otherwise callers may give a wrapper of one, or None.
    """
    places = [(scope, name), *((file.function_of(value), dotted(value)) for value in file.values.get(name, ()))]
    for function, parameter in places:
        given = [] if function is None or isinstance(function, ast.Module) else parameters_of(function)
        annotations = [each.annotation for each in given if each.arg == parameter and each.annotation is not None]
        if any((file.names.resolve(each) or "").startswith("torch.optim.") for each in annotations):
            return True
    return False


def _loops(node: ast.AST) -> Sequence[Union[ast.For, ast.AsyncFor, ast.comprehension]]:
    """Return a loop itself, or those of a comprehension."""
    return [node] if isinstance(node, (ast.For, ast.AsyncFor)) else getattr(node, "generators", [])
