"""Analysis of the code of training loops: the operators between the calls of models and the losses that go backward.

A captured step compiles all operations that its losses are computed from, also those that the loop's own code makes.
So each value carries the calls of trained models and the operators that it is computed by (`Value.by`); those of a loss
count once it goes backward. Code that leads to no loss, such as a metric, is computed on the host.
"""

from __future__ import annotations

import ast
import contextlib
from dataclasses import replace
from functools import cached_property
from typing import Dict, FrozenSet, Iterator, List, Optional, Sequence, Set, Tuple

from ignite_ipu.capabilities.traced import NO_FUNCTION
from ignite_ipu.migration.analysis import tensor_methods
from ignite_ipu.migration.analysis.forward import ForwardAnalysis, Statements
from ignite_ipu.migration.analysis.held_functions import HeldFunctions
from ignite_ipu.migration.analysis.kinds import Fact, Function, Kind, parameters_of
from ignite_ipu.migration.analysis.models import Model
from ignite_ipu.migration.analysis.modes import Modes
from ignite_ipu.migration.analysis.names import argument, constant, dotted, is_layer, unmoved, walk
from ignite_ipu.migration.analysis.operators import is_dynamic, is_loss, is_refused
from ignite_ipu.migration.analysis.parsed_file import WITHOUT_GRADIENTS
from ignite_ipu.migration.analysis.sampled_values import DISTRIBUTION, DRAWN, SampledValues, is_distribution
from ignite_ipu.migration.analysis.scope import Environment, Scope
from ignite_ipu.migration.analysis.training import BACKWARD, Training
from ignite_ipu.migration.analysis.transformed_calls import TransformedCalls
from ignite_ipu.migration.analysis.values import (
    CALL,
    MODULE,
    OF_WEIGHTS,
    PYTHON,
    TRAINING,
    UNKNOWN,
    WITH_GRADIENTS,
    Origin,
    Value,
    combined,
    result,
)

_LIBRARIES = ("torch", "numpy", "math", "random", "ignite", "ignite_ipu", "accelerate")
# The kind of the facts behind a value that are calls of functions of other files.
_OUTSIDE = "outside"
_TRAINED = Value(Kind.TENSOR, Origin.COMPUTED)


class LoopAnalysis(ForwardAnalysis):
    """Follows the values of a file's loops from the calls of models to losses.

    `facts` has the operators that losses are computed by, with their layers, and selections by masks that a model
    computes. `losses_outside` has the calls of functions of other files that losses are computed by.
    """

    def __init__(self, training: Training) -> None:
        super().__init__(training.file)
        self.training = training
        self.losses_outside: Set[Fact] = set()
        # Selections by computed masks, each with the calls of models that the mask or the values come from.
        self.selections: Set[Tuple[Fact, FrozenSet[Fact]]] = set()
        # Functions in which a loss goes backward, and those that are being followed.
        self.going_backward: Set[Function] = set()
        self.followed: List[Function] = []
        self.named_models = set(training.models)
        # Attributes that are given a model: self.net = net.
        self.named_models |= {name for name, value in training.file.assigned if dotted(value) in training.models}
        self.modes = Modes(training.file)

    def run_loops(self) -> None:
        """Analyse the code of the module, and each function outside of models with any arguments.

        One that no loss goes backward in may act for one that does, as the step of an engine for a handler.
        """
        roots = self.training.host_functions.above(self.training.backward_calls)
        for each in self.training.host_functions.all if roots else ():
            self.past = frozenset()
            self.call(each, None, (), {})
        if None not in roots:
            return
        self.past = frozenset()
        module = ast.FunctionDef(name=NO_FUNCTION, args=_NO_ARGUMENTS, body=self.file.tree.body, decorator_list=[])
        self.call(module, None, (), {})

    def result_of(self, function: Function) -> FrozenSet[Fact]:
        """Return the operators that a function computes its result by if it is given outputs of a model.

        A function is not followed unless it makes calls that may be refused.
        """
        if function not in self._refusing:
            return frozenset()
        given: Dict[Optional[str], Value] = {arg.arg: _TRAINED for arg in parameters_of(function)}
        return self.call(function, None, (), given).by

    @cached_property
    def _refusing(self) -> Set[Optional[Function]]:
        """The functions that make calls which may be refused, themselves or by what they call."""
        return self.training.host_functions.above(filter(self._may_be_refused, self.file.nodes(ast.Call)))

    def _may_be_refused(self, call: ast.Call) -> bool:
        name = self.names.resolve(call.func)
        if name is None and isinstance(call.func, ast.Attribute):
            name = f"Tensor.{call.func.attr}"
        known = name is not None and name.startswith(("torch.", "Tensor."))
        return known and (is_dynamic(name or "") or is_refused(self.file, name or "", call))

    def walker(
        self, function: Function, model: Optional[Model], environment: Environment, outer: Optional[Scope]
    ) -> Statements:
        return _LoopStatements(_LoopScope(self, function, model, environment, outer), self, function)

    def go_backward(self, value: Value, sure: bool) -> None:
        """Note what a value is computed by that goes backward."""
        self.going_backward.update(self.followed)
        for fact in value.by:
            noted = replace(fact, certain=fact.certain and sure)
            if fact.kind == _OUTSIDE:
                self.losses_outside.add(noted)
            elif fact.kind not in (CALL, WITH_GRADIENTS, TRAINING, OF_WEIGHTS, DRAWN, DISTRIBUTION):
                self.facts.add(noted)
        for fact, calls in self.selections:
            if calls & value.by:
                self.facts.add(replace(fact, certain=fact.certain and sure))


# Python 3.8 gives nodes no attributes for the fields that are left out.
_NO_ARGUMENTS = ast.arguments(
    posonlyargs=[], args=[], vararg=None, kwonlyargs=[], kw_defaults=[], kwarg=None, defaults=[]
)


class _LoopScope(Scope):
    """The names of a function of the loop. Its reads of values, and its changes of Python state, are no facts."""

    def fact(self, kind: str, node: ast.expr, name: str = "") -> None:
        pass

    def needs_value(self, kind: str, node: ast.expr, of: Origin, name: str = "") -> None:
        pass

    def layers_made(self, node: ast.Call, value: ast.expr) -> None:
        pass


class _LoopStatements(SampledValues):
    """The statements of one function of the loop, or of the module."""

    def __init__(self, scope: Scope, analysis: LoopAnalysis, function: Function) -> None:
        super().__init__(scope)
        self.analysis, self.function = analysis, function
        self.is_module = function.name == NO_FUNCTION
        self.held = HeldFunctions(analysis.file, function)
        self.transformed = TransformedCalls(self, analysis.named_models, self.call_of)

    def block(self, statements: Sequence[ast.stmt]) -> None:
        self.analysis.followed.append(self.function)
        try:
            super().block(statements)
        finally:
            self.analysis.followed.pop()

    def statement(self, node: ast.stmt) -> None:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and self.is_module:
            return  # a call by its name finds it
        names = self.scope.names
        items = node.items if isinstance(node, (ast.With, ast.AsyncWith)) else []
        entered = {names.called(item.context_expr) for item in items}
        if isinstance(node, (ast.With, ast.AsyncWith)) and not entered.isdisjoint(WITHOUT_GRADIENTS):
            with self._without_gradients():
                self.block(node.body)
            return
        with self.transformed.within(entered):
            super().statement(node)

    @contextlib.contextmanager
    def _without_gradients(self) -> Iterator[None]:
        before, self.analysis.with_gradients = self.analysis.with_gradients, False
        try:
            yield
        finally:
            self.analysis.with_gradients = before

    def branch(self, node: ast.If) -> None:
        if any(isinstance(each, ast.Name) and each.id == "__name__" for each in walk(node.test)):
            self.block(node.body)
            return
        super().branch(node)

    def taken(self, test: ast.expr) -> Optional[bool]:
        """Return the result of a test that the text decides: a loss has the operators of code that runs alone."""
        found, runs = super().taken(test), self.scope.runs(test)
        return found if runs.if_true is runs.if_false else runs.if_true

    def twice(self, body: Sequence[ast.stmt]) -> None:
        """Walk a loop body until the values assigned at its end are known at its start; it runs at least once."""
        self.block(body)
        self.block(body)

    def assign(self, target: ast.expr, kind: Value, value: Optional[ast.expr]) -> None:
        analysis, name = self.analysis, dotted(target)
        if name in analysis.named_models and value is not None:
            analysis.past = analysis.modes.after_assignment(analysis.past, name, value, self.scope.sure)
        if isinstance(target, ast.Attribute) and dotted(target) is not None:
            self.scope.environment[dotted(target) or ""] = UNKNOWN if value is None else kind
            return
        super().assign(target, kind, value)

    def expression(self, node: ast.expr) -> Value:
        name = dotted(node)
        if name is not None and name in self.scope.environment:
            known = self.scope.environment[name]
            if known != UNKNOWN:
                return known
        if name is not None and (name in self.analysis.named_models or self._made(name) is not None):
            return MODULE
        found = super().expression(node)
        return _of_weights(self, node, found) if isinstance(node, ast.BinOp) else found

    def attribute(self, node: ast.Attribute, base: Value) -> Value:
        if base.kind is Kind.MODULE and self.scope.model is None:
            weight = node.attr in ("weight", "bias") and self.analysis.records_gradients(node)
            return _TRAINED if weight else MODULE
        if base.has_tensors and node.attr in ("data", "grad"):
            return _detached(base) if node.attr == "data" else UNKNOWN
        if base.has_tensors and base.by and node.attr not in tensor_methods.PYTHON_ATTRIBUTES:
            return base.element  # a field of an output, as `output.logits`
        return super().attribute(node, base)

    def subscript(self, node: ast.Subscript, base: Value, indices: Sequence[Value]) -> Value:
        found = super().subscript(node, base, indices)
        return MODULE if base.kind is Kind.MODULE else found

    def _select(self, node: ast.expr, name: str, values: Sequence[Value]) -> None:
        """Note that a result is repeated by values of a step which has not run."""
        calls = frozenset(fact for value in values for fact in value.by if fact.kind == CALL)
        fact = Fact("repeat", node, name, self.scope.where, self.scope.sure)
        if calls:
            self.analysis.selections.add((fact, calls))

    # Calls

    def call(self, node: ast.Call, given: List[Value], keywords: Dict[Optional[str], Value]) -> Value:
        found = super().call(node, given, keywords)
        functions = self.held.behind(node.func) if found == UNKNOWN else []
        if functions:
            results = [self.call_of(each, node, given, keywords) for each in functions]
            found = results[0] if len(results) == 1 else result(Kind.TENSOR, results)
        name = dotted(node.func) or ""
        callee = self.analysis.functions.get(name) or self.analysis.training.host_functions.callee(node)
        if callee in self.analysis.going_backward:
            self._settle()
        return found

    def iterate(self, target: ast.expr, node: ast.expr) -> None:
        super().iterate(target, node)
        self.held.iterate(target, node)

    def call_of(
        self, function: ast.expr, node: ast.Call, given: List[Value], keywords: Dict[Optional[str], Value]
    ) -> Value:
        """Return the result of a call of a function that a name stands for."""
        names = self.scope.names
        if isinstance(function, ast.Call):
            if names.called(function) != "functools.partial" or not function.args:
                return UNKNOWN
            given = [*map(self.expression, function.args[1:]), *given]
            keywords = {**{each.arg: self.expression(each.value) for each in function.keywords}, **keywords}
            return self.call_of(function.args[0], node, given, keywords)
        if isinstance(function, ast.Lambda):
            return self.enter(self.defined(function, self.scope.where), given, keywords)
        name = names.resolve(function) or ""
        known = self.analysis.functions.get(dotted(function) or "")
        if known is not None:
            return self.analysis.call(known, None, given, keywords, self.scope.sure)
        values = [*given, *keywords.values()]
        return self.named_call(node, name, values) if name.startswith("torch.") else UNKNOWN

    def _settle(self) -> None:
        """Take values as known: an update may have run."""
        environment = self.scope.environment
        environment.update(
            (name, value._replace(origin=Origin.UNKNOWN)) for name, value in environment.items() if value.by
        )

    def named_call(self, node: ast.Call, name: str, given: Sequence[Value]) -> Value:
        if name == "torch.autograd.backward":
            return self._go_backward(given[:1])
        if name == "torch.autograd.grad":
            asked = argument(node, "inputs", 1)
            value = UNKNOWN if asked is None else self.expression(asked)
            computed = value.origin is Origin.COMPUTED and any(fact.kind == OF_WEIGHTS for fact in value.by)
            if computed or _is_of_step(value):
                self.analysis.facts.add(_differentiated(self.scope, node, name))
            return UNKNOWN
        self.transformed.call(node, name)
        found = super().named_call(node, name, given)
        outside = "." in name and name.lstrip(".").split(".")[0] not in _LIBRARIES
        if outside and combined(given) is Origin.COMPUTED:
            found = result(Kind.TENSOR, given)
            return found._replace(by=found.by | {Fact(_OUTSIDE, node, name, self.scope.where, self.scope.sure)})
        return found

    def _go_backward(self, values: Sequence[Value]) -> Value:
        for value in values:
            self.analysis.go_backward(value, self.scope.sure)
        self._settle()
        return PYTHON

    def method_call(
        self,
        node: ast.Call,
        function: ast.Attribute,
        base: Value,
        given: List[Value],
        keywords: Dict[Optional[str], Value],
    ) -> Value:
        if function.attr in BACKWARD:
            return self._go_backward([each for each in given if each.has_tensors][:1] or [base])
        if self.scope.model is None and (self._is_model(node) or self._made(dotted(function)) is not None):
            return self.layer_call(node, "", given, keywords)
        if function.attr == "scale" and len(given) == 1 and not base.has_tensors:
            return given[0]  # by a GradScaler
        if base.kind is Kind.MODULE and self.scope.model is None:
            past = self.analysis.modes.after_call(self.analysis.past, node, self.scope.sure)
            self.analysis.past = past
            if function.attr in ("parameters", "named_parameters") and self.analysis.records_gradients(node):
                return Value(Kind.TENSORS, Origin.COMPUTED)
            return UNKNOWN
        callee = None if base.has_tensors else self.analysis.training.host_functions.callee(node)
        if callee is not None:
            own = isinstance(self.analysis.file.parents[callee], ast.ClassDef)
            return self.analysis.call(callee, None, [UNKNOWN] * own + given, keywords, self.scope.sure)
        if is_distribution(base):
            return self.distribution_method(node, function.attr, base, given)
        return super().method_call(node, function, base, given, keywords)

    def _is_model(self, node: ast.Call) -> bool:
        return dotted(node.func) in self.analysis.named_models

    def _made(self, name: Optional[str]) -> Optional[ast.Call]:
        """Return the construction of the layer or loss of a name, if the file shows one alone."""
        value = self.analysis.file.single_value(name)
        made = None if value is None else unmoved(value)
        return made if isinstance(made, ast.Call) and self._is_module(made) else None

    def _is_module(self, made: ast.Call) -> bool:
        return is_layer(self.scope.names.called(made) or "") or dotted(made.func) in self.analysis.models

    def layer_call(
        self, node: ast.Call, attribute: str, given: List[Value], keywords: Dict[Optional[str], Value]
    ) -> Value:
        """Return the output of a trained model, or of a layer or loss that the loop applies to such outputs."""
        values = [*given, *keywords.values()]
        if self.scope.model is not None and attribute:
            found = super().layer_call(node, attribute, given, keywords)
            return result(found.kind, values)
        name = dotted(node.func) or ""
        if self._is_model(node) or self._made(name) is not None:
            self.transformed.note(node, node.func)
        if self._is_model(node):
            known = self.analysis.training.is_trained(name) and self.analysis.records_gradients(node)
            found = result(Kind.TENSOR, values, None if not known else Origin.COMPUTED)
            called = Fact(CALL, node, name, self.scope.where)
            by = found.by | {called, replace(called, kind=WITH_GRADIENTS)}
            mode = self.analysis.modes.of(self.analysis.past, name)
            if mode is not False:
                by |= {replace(called, kind=TRAINING, certain=mode is True)}
            return found._replace(by=by) if found.origin is Origin.COMPUTED else UNKNOWN
        made = self._made(name)
        if isinstance(node.func, ast.Call) and self._is_module(node.func):
            made = node.func
        own = self.analysis.models.get(dotted(made.func) or "") if made is not None else None
        forward = own.method("forward") if own is not None else None
        if forward is not None:
            return self.analysis.call(forward, own, given, keywords, self.scope.sure)
        layer = self.scope.names.called(made) if made is not None else None
        found = result(Kind.TENSOR, values)
        if layer is None or made is None or found.origin is not Origin.COMPUTED:
            return found
        if is_loss(layer) or not is_refused(self.analysis.file, layer, made):
            return found
        return found._replace(by=found.by | {Fact("layer", node, layer, self.scope.where, self.scope.sure, made)})

    def torch_call(self, node: ast.Call, name: str, given: Sequence[Value]) -> Value:
        return self._computed(node, name, given, super().torch_call(node, name, given))

    def tensor_method(self, node: ast.Call, name: str, base: Value, given: Sequence[Value]) -> Value:
        if name == "detach":
            return _detached(base)
        if name == "requires_grad_":
            kept = any(fact.kind == WITH_GRADIENTS for fact in base.by)
            if _is_of_step(base) and not kept and constant(argument(node, "requires_grad", 0)) is not False:
                self.analysis.facts.add(_differentiated(self.scope, node, name))
        if name in ("cpu", "cuda", "to_dense", "requires_grad_"):
            return base
        found = super().tensor_method(node, name, base, given)
        return self._computed(node, f"Tensor.{name}", [base, *given], found)

    def _computed(self, node: ast.Call, name: str, given: Sequence[Value], found: Value) -> Value:
        """Return the result of an operator, with the operator if it does not compile."""
        if not found.has_tensors:
            return found
        if combined(given) is not Origin.COMPUTED:
            return found._replace(origin=Origin.UNKNOWN)
        last, fact = name.rpartition(".")[2], None
        one_argument = name == "torch.where" and len(node.args) + len(node.keywords) == 1
        selects = last == "masked_select"  # by a mask that is read
        if not selects and (is_dynamic(name) or one_argument or last in tensor_methods.READ_IN_LOOPS):
            return Value(found.kind)
        if last == "repeat_interleave" and given[1:] and given[1].is_tensor:
            if given[1].origin is Origin.COMPUTED:
                self._select(node, name, given)
        elif not (selects or is_loss(name)) and is_refused(self.analysis.file, name, node):
            fact = Fact("call", node, name, self.scope.where, self.scope.sure)
        found = _of_weights(self, node, found)
        return found if fact is None else found._replace(by=found.by | {fact})


def _detached(value: Value) -> Value:
    """Return a value without its gradients: a weight's is one of the host, an output still comes with the step."""
    by = frozenset(fact for fact in value.by if fact.kind != WITH_GRADIENTS)
    origin = value.origin if _is_of_step(value) else Origin.UNKNOWN
    return value._replace(origin=origin, by=by)


def _of_weights(statements: _LoopStatements, node: ast.expr, found: Value) -> Value:
    """Return the result of an operation, with a fact about it if its value is computed from weights alone."""
    kinds = {fact.kind for fact in found.by}
    weights = found.origin is Origin.COMPUTED and kinds.isdisjoint((CALL, OF_WEIGHTS))
    if not weights or not statements.analysis.records_gradients(node):
        return found
    return found._replace(by=found.by | {Fact(OF_WEIGHTS, node, "", statements.scope.where)})


def _differentiated(scope: Scope, node: ast.Call, name: str) -> Fact:
    return Fact("differentiated", node, name, scope.where, scope.sure)


def _is_of_step(value: Value) -> bool:
    """Return whether a value comes with a step that has not run."""
    return value.origin is Origin.COMPUTED and any(fact.kind == CALL for fact in value.by)
