"""Expressions of traced code: which values are tensors there, where these come from, and their uses."""

from __future__ import annotations

import ast
import contextlib
import re
from functools import reduce
from typing import Dict, FrozenSet, Iterator, List, Mapping, Optional, Protocol, Sequence, Set, Tuple, Union, cast

from ignite_ipu.migration.analysis import tensor_methods
from ignite_ipu.migration.analysis.conditions import Conditions, Runs
from ignite_ipu.migration.analysis.kinds import (
    Fact,
    Function,
    Kind,
    attribute_named,
    device_test,
    parameters_of,
    reads,
)
from ignite_ipu.migration.analysis.models import Model
from ignite_ipu.migration.analysis.names import Names, constant, dotted, index_of, walk
from ignite_ipu.migration.analysis.operators import is_dynamic
from ignite_ipu.migration.analysis.values import (
    COMPUTED,
    MODULE,
    PYTHON,
    UNKNOWN,
    Origin,
    Value,
    combined,
    container,
    join,
)

Environment = Dict[str, Value]
_OF_PYTHON = ("torch.jit.", "torch.cuda.", "torch.backends.", "torch.distributed.is_", "torch.distributed.get_")
# Functions whose result has another shape than their argument, or is a parameter.
_OF_OTHER_SHAPE = frozenset(["cat", "concat", "concatenate", "stack", "hstack", "vstack", "dstack", "pad", "Parameter"])
_GENERATORS = ("random.Random", "numpy.random.RandomState", "numpy.random.default_rng", "numpy.random.Generator")
_WITH_STATES = ("torch.nn.LSTM", "torch.nn.GRU", "torch.nn.RNN", "torch.nn.MultiheadAttention")


class Followed(Protocol):
    """The file that expressions are a part of, and the facts found in it."""

    names: Names
    models: Dict[str, Model]
    functions: Dict[str, Function]
    conditions: Conditions
    facts: Set[Fact]
    outside: Set[Tuple[str, str]]
    lambdas: Dict[ast.Lambda, Function]
    shared: Dict[str, ast.expr]

    def call(
        self,
        function: Function,
        model: Optional[Model],
        given: Sequence[Value],
        keywords: Mapping[Optional[str], Value],
        sure: bool = True,
        outer: Optional[Expressions] = None,
    ) -> Value:
        """Analyse a function for arguments like these and return the description of its result."""


def declared(kind: Kind, origin: Origin) -> Value:
    """Return the description of a value of a kind, whose tensors come from an origin."""
    return Value(kind, origin) if kind.has_tensors else PYTHON if kind is Kind.PYTHON else Value(kind)


class Expressions:
    """The expressions of one function, with the description of each local name."""

    def __init__(
        self,
        analysis: Followed,
        function: Function,
        model: Optional[Model],
        environment: Environment,
        outer: Optional[Expressions] = None,
    ) -> None:
        self.analysis = analysis
        self.names = analysis.names
        self.model = model
        self.where = f"{model.owner_of(function)}.{function.name}" if model and outer is None else function.name
        parameters = parameters_of(function)
        own = parameters[0].arg if model and parameters else ""
        self.owner: str = own if outer is None else outer.owner
        self.environment = environment
        self.globals: FrozenSet[str] = frozenset()
        self.tested: FrozenSet[str] = frozenset()
        # Whether the code that is walked runs for sure, and the attribute that a loop over layers runs over.
        self.sure = True
        self.layers_of: Dict[str, str] = {}
        # The functions that are defined within it.
        self.inner: Dict[str, Function] = dict(outer.inner) if outer is not None else {}

    def fact(self, kind: str, node: ast.expr, name: str = "") -> None:
        self.analysis.facts.add(Fact(kind, node, name, self.where, self.sure))

    def needs_value(self, kind: str, node: ast.expr, of: Origin, name: str = "") -> None:
        """Note that code needs the values of a tensor, which it has got of constants."""
        if of is not Origin.CONSTANT:
            self.analysis.facts.add(Fact(kind, node, name, self.where, self.sure and of is Origin.COMPUTED))

    @contextlib.contextmanager
    def behind(self, sure: bool) -> Iterator[None]:
        """Context in which code is walked that may not run."""
        before, self.sure = self.sure, self.sure and sure
        try:
            yield
        finally:
            self.sure = before

    def runs(self, test: ast.expr) -> Runs:
        return self.analysis.conditions.runs(test, self.model, self.owner)

    def assign(self, target: ast.expr, kind: Value, value: Optional[ast.expr]) -> None:
        if isinstance(target, ast.Name):
            self.environment[target.id] = kind
            if isinstance(value, ast.Lambda):
                self.inner[target.id] = self.defined(value, self.where)
            else:
                self.inner.pop(target.id, None)
            if target.id in self.globals:
                self.fact("mutation", target, target.id)
        elif isinstance(target, (ast.Tuple, ast.List)):
            if isinstance(value, (ast.Tuple, ast.List)) and len(value.elts) == len(target.elts):
                for one, part in zip(target.elts, value.elts):
                    self.assign(one, self.expression(part), part)
            else:
                for one in target.elts:
                    self.assign(one, Value(Kind.TENSOR, kind.element.origin) if kind.has_tensors else kind, value)
        elif isinstance(target, ast.Starred):
            self.assign(target.value, kind._replace(kind=Kind.TENSORS) if kind.is_tensor else kind, None)
        elif isinstance(target, ast.Attribute):
            if self.is_registered(target):
                self.fact("rebound" if self.is_rebound(target, value) else "assigned", target, target.attr)
            elif self.is_own(target) or (value is None and self.is_shared(target)):
                self.mutation(target, dotted(target) or "", kind, value)
        elif isinstance(target, ast.Subscript):
            self.expression(target.value)
            self.expression(index_of(target))
            changed = self.is_own(target.value) or (value is None and self.is_shared(target.value))
            if changed and not self.expression(target.value).is_tensor:
                self.mutation(target, dotted(target.value) or "", kind, value)

    def written(self, node: ast.Attribute) -> None:
        """Note a write in place into a buffer of the model that has whole numbers."""
        if self.model is not None and self.is_own(node) and _is_whole(self.model.buffers.get(node.attr), self.names):
            self.fact("whole", node, node.attr)

    def is_registered(self, node: ast.Attribute) -> bool:
        """Return whether an attribute of the model itself is a buffer or a parameter."""
        held = self.model.holds.get(node.attr) if self.model and self.is_own(node) else None
        return held in (Kind.BUFFER, Kind.PARAMETER)

    def is_rebound(self, node: ast.Attribute, value: Optional[ast.expr]) -> bool:
        """Return whether an assignment puts a parameter, or a tensor of another shape, where a registered one is."""
        assert self.model is not None
        names = set() if value is None else {(dotted(each) or "").rpartition(".")[2] for each in ast.walk(value)}
        return self.model.holds.get(node.attr) is Kind.PARAMETER or not names.isdisjoint(_OF_OTHER_SHAPE)

    def mutation(self, node: ast.expr, name: str, kind: Value, value: Optional[ast.expr]) -> None:
        """Note a change of Python state.

        A value that is made if it is missing, unfit or already known is the same in every call. So are tensors that are
        stored for other code to read.
        """
        own = value is None or reads(value, name)
        left = kind.is_tensor and self.model is not None and not self.model.reads(name.rpartition(".")[2])
        settled = not own and (kind.kind is Kind.PYTHON or name in self.tested or left)
        self.fact("settled" if settled else "mutation", node, name)

    def is_own(self, node: ast.AST) -> bool:
        """Return whether a chain of names starts at the model itself."""
        name = dotted(node)
        return bool(self.owner) and name is not None and name.split(".")[0] == self.owner and "." in name

    def is_shared(self, node: ast.AST) -> bool:
        """Return whether a chain of names starts at a variable of the module."""
        first = (dotted(node) or "").split(".")[0]
        return first in self.analysis.shared and first not in self.environment

    def generator_of(self, node: ast.expr) -> Optional[str]:
        """Return the class of a random generator of Python's or numpy's that an attribute or a variable holds."""
        name = (dotted(node) or "").rpartition(".")[2]
        value = self.model.values.get(name) if self.model and self.is_own(node) else None
        value = self.analysis.shared.get(name) if value is None and self.is_shared(node) else value
        made = None if value is None else self.names.called(value)
        return made if made in _GENERATORS else None

    def truth(self, node: ast.expr) -> None:
        """Evaluate an expression whose truth value Python asks for."""
        if isinstance(node, ast.BoolOp):
            self.truths(node, node.values)
            return
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            self.truth(node.operand)
            return
        value = self.expression(node)
        if value.is_tensor:
            self.needs_value("truth", node, value.origin)

    def truths(self, node: ast.BoolOp, values: Sequence[ast.expr]) -> None:
        """Evaluate the first operands of `and` or `or`, of which the later ones may not be evaluated."""
        before = self.sure
        for value in values:
            self.truth(value)
            runs = self.runs(value)
            self.sure = self.sure and (runs.if_true if isinstance(node.op, ast.And) else runs.if_false)
        self.sure = before

    def expression(self, node: ast.expr) -> Value:
        if isinstance(node, ast.Constant):
            return PYTHON
        if isinstance(node, ast.Name):
            return self.environment.get(node.id, UNKNOWN)
        if isinstance(node, ast.Attribute):
            return self.attribute(node)
        if isinstance(node, ast.Call):
            return self.call(node)
        if isinstance(node, ast.Subscript):
            return self.subscript(node)
        if isinstance(node, ast.Compare):
            return self.compare(node)
        if isinstance(node, ast.BinOp):
            left, right = self.expression(node.left), self.expression(node.right)
            masks = left.kind is right.kind is Kind.MASK and isinstance(node.op, (ast.BitAnd, ast.BitOr, ast.BitXor))
            if left.is_tensor or right.is_tensor:
                return Value(Kind.MASK if masks else Kind.TENSOR, combined([left, right]))
            return join(left, right)
        if isinstance(node, ast.UnaryOp):
            if isinstance(node.op, ast.Not):
                self.truth(node.operand)
                return PYTHON
            return self.expression(node.operand)
        if isinstance(node, ast.BoolOp):
            self.truths(node, node.values[:-1])
            return reduce(join, map(self.expression, node.values))
        if isinstance(node, ast.IfExp):
            on_device = device_test(node.test, self.names)
            if on_device is not None:
                return self.expression(node.body if on_device else node.orelse)
            self.truth(node.test)
            runs = self.runs(node.test)
            with self.behind(runs.if_true):
                first = self.expression(node.body)
            with self.behind(runs.if_false):
                return join(first, self.expression(node.orelse))
        if isinstance(node, (ast.List, ast.Tuple, ast.Set, ast.Dict)):
            return container(map(self.expression, node.values if isinstance(node, ast.Dict) else node.elts))
        if isinstance(node, (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)):
            return self.comprehension(node)
        if isinstance(node, ast.Starred):
            return self.expression(node.value)
        if isinstance(node, ast.NamedExpr):
            kind = self.expression(node.value)
            self.assign(node.target, kind, node.value)
            return kind
        return UNKNOWN

    def comprehension(self, node: Union[ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp]) -> Value:
        outer = dict(self.environment)
        for generator in node.generators:
            self.iterate(generator.target, generator.iter)
            for test in generator.ifs:
                self.truth(test)
        element = self.expression(node.value if isinstance(node, ast.DictComp) else node.elt)
        self.environment = outer
        return container([element])

    def iterate(self, target: ast.expr, node: ast.expr) -> None:
        """Assign the elements of an expression."""
        kind = self.expression(node)
        called = node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""
        if called not in ("zip", "enumerate") or not isinstance(node, ast.Call):
            self.assign(target, kind.element, None)
            if isinstance(target, ast.Name) and self.is_own(node):
                self.layers_of[target.id] = (dotted(node) or "").rpartition(".")[2]
            return
        parts = target.elts if isinstance(target, (ast.Tuple, ast.List)) else []
        if called == "enumerate" and node.args and len(parts) == 2:
            self.assign(parts[0], PYTHON, None)
            self.iterate(parts[1], node.args[0])
        elif called == "zip" and len(parts) == len(node.args):
            for part, argument in zip(parts, node.args):
                self.iterate(part, argument)
        else:
            found = container(self.expression(argument).element for argument in node.args)
            self.assign(target, found if found.has_tensors else UNKNOWN, None)

    def attribute(self, node: ast.Attribute) -> Value:
        if isinstance(node.value, ast.Name) and node.value.id == self.owner and self.owner:
            held = self.model.holds.get(node.attr) if self.model else None
            if held is Kind.UNREGISTERED:
                self.fact("plain", node, node.attr)
            if held is not None:
                written = self.model is not None and node.attr in self.model.written
                constant_here = held is Kind.UNREGISTERED or (held is Kind.BUFFER and not written)
                origin = Origin.CONSTANT if constant_here else Origin.COMPUTED
                return Value(Kind.TENSOR, origin) if held.is_tensor else declared(held, Origin.UNKNOWN)
            return PYTHON if node.attr == "training" else UNKNOWN
        base = self.expression(node.value)
        if base.is_tensor:
            if node.attr in tensor_methods.PYTHON_ATTRIBUTES:
                return PYTHON
            return base._replace(kind=Kind.TENSOR) if node.attr in tensor_methods.TENSOR_ATTRIBUTES else UNKNOWN
        if base.kind is Kind.MODULE and node.attr in ("weight", "bias"):
            return COMPUTED
        return UNKNOWN

    def subscript(self, node: ast.Subscript) -> Value:
        base, index = self.expression(node.value), self.expression(index_of(node))
        if base.is_tensor:
            parts = getattr(index_of(node), "elts", None)
            indices = [index] if parts is None else list(map(self.expression, parts))
            masks = [each for each in indices if each.kind is Kind.MASK]
            if masks and isinstance(node.ctx, ast.Load):
                self.needs_value("mask", node, combined(masks))
            return base._replace(origin=combined([base, *(each for each in indices if each.is_tensor)]))
        return base.element

    def compare(self, node: ast.Compare) -> Value:
        values = [node.left, *node.comparators]
        kinds = [self.expression(value) for value in values]
        literals = [constant(value) for value in values]
        identity = any(isinstance(operator, (ast.Is, ast.IsNot)) for operator in node.ops)
        if identity or any(value is None or isinstance(value, str) for value in literals):
            return PYTHON
        if any(isinstance(operator, (ast.In, ast.NotIn)) for operator in node.ops):
            return Value(Kind.TENSOR, combined(kinds)) if kinds[-1].is_tensor else PYTHON
        if any(kind.is_tensor for kind in kinds):
            return Value(Kind.MASK, combined(kinds))
        return PYTHON if all(kind == PYTHON for kind in kinds) else UNKNOWN

    # Calls

    def call(self, node: ast.Call) -> Value:
        given = [self.expression(argument) for argument in node.args]
        keywords = {keyword.arg: self.expression(keyword.value) for keyword in node.keywords}
        name = self.names.resolve(node.func)
        if name is not None:
            if self.sure and "." in name:
                self.analysis.outside.add((self.model.name if self.model else self.where, name))
            return self.named_call(node, name, [*given, *keywords.values()])
        function = node.func
        if isinstance(function, ast.Name):
            if function.id in self.inner:
                return self.enter(self.inner[function.id], given, keywords)
            known = self.analysis.functions.get(function.id)
            if known is not None:
                return self.analysis.call(known, None, given, keywords, self.sure)
            if self.expression(function).kind is Kind.MODULE:
                return self.layer_call(self.layers_of.get(function.id, ""), given, keywords)
            return UNKNOWN
        if isinstance(function, ast.Attribute):
            return self.method_call(node, function, given, keywords)
        if isinstance(function, ast.Lambda):
            return self.enter(self.defined(function, self.where), given, keywords)
        if self.expression(function).kind is not Kind.MODULE:
            return UNKNOWN
        owner = dotted(function.value) if isinstance(function, ast.Subscript) else None
        return self.layer_call((owner or "").rpartition(".")[2], given, keywords)

    def enter(self, function: Function, given: Sequence[Value], keywords: Mapping[Optional[str], Value]) -> Value:
        """Analyse a call of a function within this one, which has its variables."""
        return self.analysis.call(function, self.model, given, keywords, self.sure, self)

    def defined(self, node: ast.Lambda, where: str) -> Function:
        """Return a function that does as a lambda; refusals name the function around it."""
        known = self.analysis.lambdas.get(node)
        if known is None:
            body: List[ast.stmt] = [ast.copy_location(ast.Return(node.body), node.body)]
            made = ast.FunctionDef(name=where, args=node.args, body=body, decorator_list=[])
            known = self.analysis.lambdas[node] = ast.copy_location(made, node)
        return known

    def named_call(self, node: ast.Call, name: str, given: Sequence[Value]) -> Value:
        first = given[0] if given else UNKNOWN
        if name == "print" or name.startswith("logging."):
            self.fact("print", node, name)
            return PYTHON
        reads = name in ("int", "float", "bool", "complex", "numpy.asarray", "numpy.array") or name.startswith("math.")
        if reads and first.is_tensor:
            self.needs_value("host", node, first.origin, name)
            return PYTHON
        counts = [value for value in given if value.is_tensor] if name == "range" else []
        if counts:
            self.needs_value("count", node, combined(counts), name)
        if name.startswith(("random.", "numpy.random.")):
            self.fact("random", node, name)
            return PYTHON
        if name in ("map", "filter") and isinstance(node.args[0] if node.args else None, ast.Lambda):
            mapped = self.defined(cast(ast.Lambda, node.args[0]), self.where)
            return container([self.enter(mapped, [each.element for each in given[1:]], {})])
        if name in ("max", "min", "sum", "abs", "reversed", "list", "tuple", "sorted"):
            if name in ("list", "tuple", "reversed") and first.is_tensor:
                return first._replace(kind=Kind.TENSORS)
            return Value(Kind.TENSOR, combined(given)) if any(value.has_tensors for value in given) else first
        if name == "setattr" and len(node.args) == 3 and (dotted(node.args[0]) or "").split(".")[0] == self.owner:
            self.mutation(node, attribute_named(node), given[2], node.args[2])
            return PYTHON
        if name in ("torch.autograd.grad", "torch.autograd.backward"):
            self.fact("gradient", node, name)
            return Value(Kind.TENSORS, Origin.COMPUTED)
        if name.startswith("torch."):
            return self.torch_call(node, name, given)
        return PYTHON if name in tensor_methods.PYTHON_BUILTINS else UNKNOWN

    def torch_call(self, node: ast.Call, name: str, given: Sequence[Value]) -> Value:
        last = name.rsplit(".", 1)[1]
        if name in tensor_methods.PYTHON_FUNCTIONS or name.startswith(_OF_PYTHON):
            return PYTHON
        self.operator(node, name, given, by_values=name == "torch.where" and len(node.args) + len(node.keywords) == 1)
        if last == "repeat_interleave" and any(value.is_tensor for value in given[1:2]):
            self.needs_value("repeat", node, given[1].origin, name)
        if last[:1].isupper():
            return MODULE if name.startswith("torch.nn.") else Value(Kind.UNKNOWN)
        return _result(last, given, alone=len(node.args) == 1)

    def operator(self, node: ast.Call, name: str, given: Sequence[Value], by_values: bool) -> None:
        """Note the call of an operator, and whether the size of its result depends on values."""
        self.fact("call", node, name)
        if by_values or is_dynamic(name):
            self.needs_value("dynamic", node, combined(given), name)

    def method_call(
        self, node: ast.Call, function: ast.Attribute, given: List[Value], keywords: Dict[Optional[str], Value]
    ) -> Value:
        if self.is_own(function) and isinstance(function.value, ast.Name) and self.model is not None:
            method = self.model.method(function.attr)
            if method is not None:
                return self.analysis.call(method, self.model, given, keywords, self.sure)
            value = self.model.values.get(function.attr)
            if isinstance(value, ast.Lambda):
                made = self.defined(value, f"{self.model.name}.__init__")
                return self.analysis.call(made, None, given, keywords, self.sure)
            held = self.model.holds.get(function.attr)
            return self.layer_call(function.attr, given, keywords) if held is Kind.MODULE else UNKNOWN
        if function.attr == "apply" and isinstance(function.value, ast.Name):
            self.fact("custom", node, function.value.id)
            return Value(Kind.TENSOR, combined(given))
        if self.generator_of(function.value) is not None:
            self.fact("random", node, dotted(function) or "")
            return PYTHON
        base = self.expression(function.value)
        if base.is_tensor:
            return self.tensor_method(node, function.attr, base, [*given, *keywords.values()])
        if function.attr in ("backward", "item", "numpy", "tolist") and base.kind is Kind.UNKNOWN:
            if function.attr == "backward":
                self.fact("gradient", node, function.attr)
            elif function.attr == "item":
                self.needs_value("host", node, base.origin, function.attr)
            return PYTHON
        if base.kind is Kind.MODULE:
            return UNKNOWN
        if function.attr in ("info", "debug", "warning") and (dotted(function.value) or "").lower().find("log") >= 0:
            self.fact("print", node, dotted(function) or "")
            return PYTHON
        kept = self.is_shared(function.value) and not any(value.has_tensors for value in given)
        if (kept or self.is_own(function.value)) and function.attr in tensor_methods.MUTATORS:
            self.fact("mutation", node, dotted(function.value) or "")
            return UNKNOWN
        if function.attr in ("append", "extend") and isinstance(function.value, ast.Name):
            if any(value.has_tensors for value in given):
                current = self.environment.get(function.value.id, UNKNOWN)
                more = [current.element] if current.has_tensors else []
                self.environment[function.value.id] = container([*more, *given])
            return PYTHON
        if function.attr not in ("values", "items", "pop", "get") or base.kind is not Kind.TENSORS:
            return UNKNOWN
        return base if function.attr in ("values", "items") else base.element

    def layer_call(self, attribute: str, given: List[Value], keywords: Dict[Optional[str], Value]) -> Value:
        """Return the result of a layer that the model holds, and analyse the file's own models in it."""
        model, origin = self.model, combined([*given, *keywords.values()])
        value = model.values.get(attribute) if model else None
        name = self.names.called(value) if value is not None else None
        several = name in _WITH_STATES
        for part in sorted(model.constructed_in(attribute) & self.analysis.models.keys() if model else ()):
            inner = self.analysis.models[part]
            forward = inner.method("forward")
            if forward is not None:
                self.analysis.call(forward, inner, given, keywords, self.sure)
                returned = [node.value for node in walk(forward) if isinstance(node, ast.Return)]
                several |= any(isinstance(each, (ast.Tuple, ast.List, ast.Dict)) for each in returned)
        # Layers of the library have weights, or draw numbers, or keep the origin.
        known = origin is Origin.COMPUTED or (name or "").startswith("torch.nn.")
        return Value(Kind.TENSORS if several else Kind.TENSOR, Origin.COMPUTED if known else Origin.UNKNOWN)

    def tensor_method(self, node: ast.Call, name: str, base: Value, given: Sequence[Value]) -> Value:
        if name in tensor_methods.HOST_READS:
            self.needs_value("host", node, base.origin, name)
            return PYTHON if name != "cpu" else base
        if name == "to" and node.args and isinstance(node.args[0], ast.Constant) and node.args[0].value == "cpu":
            self.needs_value("host", node, base.origin, 'to("cpu")')
            return base
        if name in ("backward", "register_hook", "retain_grad"):
            self.fact("gradient", node, name)
            return PYTHON
        if name in tensor_methods.PYTHON_METHODS:
            return PYTHON
        self.operator(node, f"Tensor.{name}", [base, *given], by_values=False)
        if name.endswith("_") and isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Attribute):
            self.written(node.func.value)
        if name == "repeat_interleave" and any(value.is_tensor for value in given[:1]):
            self.needs_value("repeat", node, given[0].origin, name)
        return _result(name, [base, *given], alone=not given)


def _is_whole(value: Optional[ast.expr], names: Names) -> bool:
    """Return whether a tensor is made of whole numbers or booleans, by the call that makes it."""
    if not isinstance(value, ast.Call):
        return False
    dtype = next((names.resolve(keyword.value) for keyword in value.keywords if keyword.arg == "dtype"), None)
    if dtype is not None or (isinstance(value.func, ast.Attribute) and value.func.attr in ("long", "int", "bool")):
        return dtype is None or re.search(r"torch\.(u?int\d*|long|short|bool)$", dtype) is not None
    literals = [node.value for each in value.args for node in walk(each) if isinstance(node, ast.Constant)]
    whole = bool(literals) and all(isinstance(each, int) for each in literals)
    return whole and names.called(value) in ("torch.tensor", "torch.arange", "torch.as_tensor")


def _result(operator: str, given: Sequence[Value], alone: bool) -> Value:
    """Return the description of an operator's result.

    Of a tensor `alone`, without a dimension, `max` and `min` give one tensor.
    """
    origin = Origin.COMPUTED if operator in tensor_methods.DRAWN else combined(given)
    if operator in tensor_methods.LIKE:
        origin = Origin.CONSTANT
    if operator in tensor_methods.MASK_RESULTS:
        return Value(Kind.MASK, origin)
    several = operator in tensor_methods.SEVERAL_RESULTS and not (alone and operator in ("max", "min"))
    return Value(Kind.TENSORS if several else Kind.TENSOR, origin)
