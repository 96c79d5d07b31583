"""Analysis of the code that an IPU traces: which values are tensors there, and their uses."""

from __future__ import annotations

import ast
from functools import reduce
from typing import Dict, FrozenSet, Iterable, Mapping, Optional, Sequence, Set, Tuple, Union

from ignite_ipu.migration.analysis import tensor_methods
from ignite_ipu.migration.analysis.kinds import (
    Fact,
    Function,
    Kind,
    attribute_named,
    declared_kind,
    device_test,
    join,
    parameters_of,
    reads,
    settled_by,
    used_as_tensor,
)
from ignite_ipu.migration.analysis.models import Model
from ignite_ipu.migration.analysis.names import Names, constant, dotted, index_of, walk

Environment = Dict[str, Kind]
_OF_PYTHON = ("torch.jit.", "torch.cuda.", "torch.backends.", "torch.distributed.is_", "torch.distributed.get_")
_WITH_STATES = ("torch.nn.LSTM", "torch.nn.GRU", "torch.nn.RNN", "torch.nn.MultiheadAttention")


class ForwardAnalysis:
    """Follows tensors through the models and functions of one file; `facts` grows with each run.

    PopTorch runs `forward` once, on tensors without values. So the analysis looks for reads of a tensor's value, and
    for reads and writes of Python state. It follows values through a model's methods and the file's functions, and
    classifies each expression as a tensor, a Python value, or unknown. Unknown is never reported.
    """

    def __init__(self, names: Names, models: Sequence[Model], functions: Dict[str, Function]) -> None:
        self.names = names
        self.models = {model.name: model for model in models}
        self.functions = functions
        self.layers = {name for model in models for name in (*model.values, *model.holds)}
        self.facts: Set[Fact] = set()
        self.visited: Dict[Tuple[object, ...], Kind] = {}

    def run(self, function: Function, model: Optional[Model] = None) -> None:
        """Analyse a function that is traced itself, such as a loss or a model's forward, and its callees."""
        given: Dict[Optional[str], Kind] = {}
        for arg in parameters_of(function)[model is not None :]:
            kind = declared_kind(function, arg)
            tensor = kind is Kind.UNKNOWN and used_as_tensor(function, arg.arg, self.names, self.layers)
            given[arg.arg] = Kind.TENSOR if tensor else kind
        self.call(function, model, (), given)

    def call(
        self, function: Function, model: Optional[Model], kinds: Sequence[Kind], keywords: Mapping[Optional[str], Kind]
    ) -> Kind:
        """Analyse a function for arguments of these kinds and return the kind of its result."""
        parameters = parameters_of(function)
        environment = {arg.arg: keywords.get(arg.arg) or declared_kind(function, arg) for arg in parameters}
        environment.update(zip([arg.arg for arg in parameters[model is not None :]], kinds))
        if model and parameters:
            environment[parameters[0].arg] = Kind.PYTHON
        key = (id(function), model.name if model else "", *environment.values())
        if key in self.visited or len(self.visited) > 2000:
            return self.visited.get(key, Kind.UNKNOWN)
        self.visited[key] = Kind.UNKNOWN
        if function.args.vararg:
            environment[function.args.vararg.arg] = Kind.TENSORS
        walker = _Walker(self, function, model, environment)
        walker.block(function.body)
        self.visited[key] = walker.result or Kind.PYTHON
        return self.visited[key]


class _Walker:
    """Walks one function body and keeps the kind of each local name."""

    def __init__(
        self, analysis: ForwardAnalysis, function: Function, model: Optional[Model], environment: Environment
    ) -> None:
        self.analysis = analysis
        self.names = analysis.names
        self.model = model
        self.where = f"{model.name}.{function.name}" if model else function.name
        parameters = parameters_of(function)
        self.owner = parameters[0].arg if model and parameters else ""
        self.environment = environment
        self.globals: FrozenSet[str] = frozenset()
        self.tested: FrozenSet[str] = frozenset()
        self.result: Optional[Kind] = None

    def fact(self, kind: str, node: ast.expr, name: str = "") -> None:
        self.analysis.facts.add(Fact(kind, node, name, self.where))

    # Statements

    def block(self, statements: Sequence[ast.stmt]) -> None:
        for statement in statements:
            self.statement(statement)

    def statement(self, node: ast.stmt) -> None:
        if isinstance(node, (ast.Assign, ast.AnnAssign)):
            if node.value is not None:
                kind = self.expression(node.value)
                for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                    self.assign(target, kind, node.value)
        elif isinstance(node, ast.AugAssign):
            self.augmented(node)
        elif isinstance(node, ast.If):
            self.branch(node)
        elif isinstance(node, (ast.While, ast.For, ast.AsyncFor)):
            if isinstance(node, ast.While):
                self.truth(node.test)
            else:
                self.iterate(node.target, node.iter)
            self.twice(node.body)
            self.block(node.orelse)
        elif isinstance(node, ast.Assert):
            self.truth(node.test)
        elif isinstance(node, ast.Return):
            kind = self.expression(node.value) if node.value is not None else Kind.PYTHON
            self.result = kind if self.result is None else join(self.result, kind)
        elif isinstance(node, ast.Expr):
            self.expression(node.value)
        elif isinstance(node, (ast.With, ast.AsyncWith)):
            for item in node.items:
                kind = self.expression(item.context_expr)
                if item.optional_vars is not None:
                    self.assign(item.optional_vars, kind, None)
            self.block(node.body)
        elif isinstance(node, ast.Try):
            for body in (node.body, *(handler.body for handler in node.handlers), node.orelse, node.finalbody):
                self.block(body)
        elif isinstance(node, (ast.Global, ast.Nonlocal)):
            self.globals |= frozenset(node.names)
        # A raise ends the trace with any message; nested functions are followed only when called.

    def twice(self, body: Sequence[ast.stmt]) -> None:
        """Walk a loop body until the kinds assigned at its end are known at its start."""
        before = dict(self.environment)
        for _ in range(2):
            self.block(body)
            self.merge(before, self.environment)

    def branch(self, node: ast.If) -> None:
        on_device = device_test(node.test, self.names)
        if on_device is not None:
            self.block(node.body if on_device else node.orelse)
            return
        self.truth(node.test)
        before, tested = dict(self.environment), self.tested
        self.tested = tested | settled_by(node)
        self.block(node.body)
        after_body, self.tested = self.environment, tested
        self.environment = dict(before)
        self.block(node.orelse)
        self.merge(after_body, self.environment)

    def merge(self, first: Environment, second: Environment) -> None:
        both = {name: join(first[name], second[name]) for name in first.keys() & second.keys()}
        self.environment = {**first, **second, **both}

    def assign(self, target: ast.expr, kind: Kind, value: Optional[ast.expr]) -> None:
        if isinstance(target, ast.Name):
            self.environment[target.id] = kind
            if target.id in self.globals:
                self.fact("mutation", target, target.id)
        elif isinstance(target, (ast.Tuple, ast.List)):
            if isinstance(value, (ast.Tuple, ast.List)) and len(value.elts) == len(target.elts):
                for one, part in zip(target.elts, value.elts):
                    self.assign(one, self.expression(part), part)
            else:
                for one in target.elts:
                    self.assign(one, Kind.TENSOR if kind.has_tensors else kind, value)
        elif isinstance(target, ast.Starred):
            self.assign(target.value, Kind.TENSORS if kind.is_tensor else kind, None)
        elif isinstance(target, ast.Attribute):
            if self.is_registered(target):
                self.fact("buffer", target, target.attr)
            elif self.is_own(target):
                self.mutation(target, dotted(target) or "", kind, value)
        elif isinstance(target, ast.Subscript):
            self.expression(target.value)
            self.expression(index_of(target))
            if self.is_own(target.value) and not self.expression(target.value).is_tensor:
                self.mutation(target, dotted(target.value) or "", kind, value)

    def is_registered(self, node: ast.Attribute) -> bool:
        """Return whether an attribute of the model itself is a buffer or a parameter."""
        held = self.model.holds.get(node.attr) if self.model and self.is_own(node) else None
        return held in (Kind.BUFFER, Kind.PARAMETER)

    def mutation(self, node: ast.expr, name: str, kind: Kind, value: Optional[ast.expr]) -> None:
        """Note a change of Python state.

        A value that is made if it is missing, unfit or already known is the same in every call. So are tensors that are
        stored for other code to read.
        """
        own = value is None or reads(value, name)
        left = kind.is_tensor and self.model is not None and not self.model.reads(name.rpartition(".")[2])
        settled = not own and (kind is Kind.PYTHON or name in self.tested or left)
        self.fact("settled" if settled else "mutation", node, name)

    def is_own(self, node: ast.AST) -> bool:
        """Return whether a chain of names starts at the model itself."""
        name = dotted(node)
        return bool(self.owner) and name is not None and name.split(".")[0] == self.owner and "." in name

    def augmented(self, node: ast.AugAssign) -> None:
        kind, target = self.expression(node.value), node.target
        if isinstance(target, ast.Name):
            current = self.environment.get(target.id, Kind.UNKNOWN)
            self.assign(target, Kind.TENSOR if current.is_tensor else join(current, kind), None)
        elif isinstance(target, ast.Subscript) or not self.is_registered(target):
            # `self.buffer += x` changes the buffer in place, which an IPU keeps.
            self.assign(target, Kind.UNKNOWN, None)

    # Expressions

    def truth(self, node: ast.expr) -> None:
        """Evaluate an expression whose truth value Python asks for."""
        if isinstance(node, ast.BoolOp):
            for value in node.values:
                self.truth(value)
            return
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            self.truth(node.operand)
            return
        if self.expression(node).is_tensor:
            self.fact("truth", node)

    def expression(self, node: ast.expr) -> Kind:
        if isinstance(node, ast.Constant):
            return Kind.PYTHON
        if isinstance(node, ast.Name):
            return self.environment.get(node.id, Kind.UNKNOWN)
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
            if left is Kind.MASK and right is Kind.MASK and isinstance(node.op, (ast.BitAnd, ast.BitOr, ast.BitXor)):
                return Kind.MASK
            if left.is_tensor or right.is_tensor:
                return Kind.TENSOR
            return Kind.PYTHON if left is right is Kind.PYTHON else join(left, right)
        if isinstance(node, ast.UnaryOp):
            if isinstance(node.op, ast.Not):
                self.truth(node.operand)
                return Kind.PYTHON
            return self.expression(node.operand)
        if isinstance(node, ast.BoolOp):
            for value in node.values[:-1]:
                self.truth(value)
            return reduce(join, map(self.expression, node.values))
        if isinstance(node, ast.IfExp):
            on_device = device_test(node.test, self.names)
            if on_device is not None:
                return self.expression(node.body if on_device else node.orelse)
            self.truth(node.test)
            return join(self.expression(node.body), self.expression(node.orelse))
        if isinstance(node, (ast.List, ast.Tuple, ast.Set, ast.Dict)):
            return _container(map(self.expression, node.values if isinstance(node, ast.Dict) else node.elts))
        if isinstance(node, (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)):
            return self.comprehension(node)
        if isinstance(node, ast.Starred):
            return self.expression(node.value)
        if isinstance(node, ast.NamedExpr):
            kind = self.expression(node.value)
            self.assign(node.target, kind, node.value)
            return kind
        return Kind.UNKNOWN

    def comprehension(self, node: Union[ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp]) -> Kind:
        outer = dict(self.environment)
        for generator in node.generators:
            self.iterate(generator.target, generator.iter)
            for test in generator.ifs:
                self.truth(test)
        element = self.expression(node.value if isinstance(node, ast.DictComp) else node.elt)
        self.environment = outer
        return _container([element])

    def iterate(self, target: ast.expr, node: ast.expr) -> None:
        """Assign the elements of an expression."""
        kind = self.expression(node)
        called = node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""
        if called not in ("zip", "enumerate") or not isinstance(node, ast.Call):
            self.assign(target, kind.element, None)
            return
        parts = target.elts if isinstance(target, (ast.Tuple, ast.List)) else []
        if called == "enumerate" and node.args and len(parts) == 2:
            self.assign(parts[0], Kind.PYTHON, None)
            self.iterate(parts[1], node.args[0])
        elif called == "zip" and len(parts) == len(node.args):
            for part, argument in zip(parts, node.args):
                self.iterate(part, argument)
        else:
            found = any(self.expression(argument).has_tensors for argument in node.args)
            self.assign(target, Kind.TENSORS if found else Kind.UNKNOWN, None)

    def attribute(self, node: ast.Attribute) -> Kind:
        if isinstance(node.value, ast.Name) and node.value.id == self.owner and self.owner:
            held = self.model.holds.get(node.attr) if self.model else None
            if held is Kind.UNREGISTERED:
                self.fact("plain", node, node.attr)
            if held is not None:
                return Kind.TENSOR if held.is_tensor else held
            return Kind.PYTHON if node.attr == "training" else Kind.UNKNOWN
        base = self.expression(node.value)
        if base.is_tensor:
            if node.attr in tensor_methods.PYTHON_ATTRIBUTES:
                return Kind.PYTHON
            return Kind.TENSOR if node.attr in tensor_methods.TENSOR_ATTRIBUTES else Kind.UNKNOWN
        if base is Kind.MODULE and node.attr in ("weight", "bias"):
            return Kind.TENSOR
        return Kind.UNKNOWN

    def subscript(self, node: ast.Subscript) -> Kind:
        base, index = self.expression(node.value), self.expression(index_of(node))
        if base.is_tensor:
            parts = getattr(index_of(node), "elts", None)
            masks = [index] if parts is None else map(self.expression, parts)
            if Kind.MASK in masks and isinstance(node.ctx, ast.Load):
                self.fact("mask", node)
            return base
        return base.element

    def compare(self, node: ast.Compare) -> Kind:
        values = [node.left, *node.comparators]
        kinds = [self.expression(value) for value in values]
        literals = [constant(value) for value in values]
        identity = any(isinstance(operator, (ast.Is, ast.IsNot)) for operator in node.ops)
        if identity or any(value is None or isinstance(value, str) for value in literals):
            return Kind.PYTHON
        if any(isinstance(operator, (ast.In, ast.NotIn)) for operator in node.ops):
            return Kind.TENSOR if kinds[-1].is_tensor else Kind.PYTHON
        if any(kind.is_tensor for kind in kinds):
            return Kind.MASK
        return Kind.PYTHON if all(kind is Kind.PYTHON for kind in kinds) else Kind.UNKNOWN

    # Calls

    def call(self, node: ast.Call) -> Kind:
        kinds = [self.expression(argument) for argument in node.args]
        keywords = {keyword.arg: self.expression(keyword.value) for keyword in node.keywords}
        name = self.names.resolve(node.func)
        if name is not None:
            return self.named_call(node, name, kinds)
        function = node.func
        if isinstance(function, ast.Name):
            if function.id in self.analysis.functions:
                return self.analysis.call(self.analysis.functions[function.id], None, kinds, keywords)
            return Kind.UNKNOWN
        if isinstance(function, ast.Attribute):
            return self.method_call(node, function, kinds, keywords)
        base = self.expression(function)
        return Kind.TENSOR if base is Kind.MODULE else Kind.UNKNOWN

    def named_call(self, node: ast.Call, name: str, kinds: Sequence[Kind]) -> Kind:
        first = kinds[0] if kinds else Kind.UNKNOWN
        if name == "print" or name.startswith("logging."):
            self.fact("print", node, name)
            return Kind.PYTHON
        if name in ("int", "float", "bool", "complex", "numpy.asarray", "numpy.array") and first.is_tensor:
            self.fact("host", node, name)
            return Kind.PYTHON
        if name == "range" and any(kind.is_tensor for kind in kinds):
            self.fact("count", node, name)
        if name.startswith(("random.", "numpy.random.")):
            self.fact("random", node, name)
            return Kind.PYTHON
        if name in ("max", "min", "sum", "abs", "reversed", "list", "tuple", "sorted"):
            if name in ("list", "tuple", "reversed") and first.is_tensor:
                return Kind.TENSORS
            return Kind.TENSOR if any(kind.has_tensors for kind in kinds) else first
        if name == "setattr" and len(node.args) == 3 and (dotted(node.args[0]) or "").split(".")[0] == self.owner:
            self.mutation(node, attribute_named(node), kinds[2], node.args[2])
            return Kind.PYTHON
        if name in ("torch.autograd.grad", "torch.autograd.backward"):
            self.fact("gradient", node, name)
            return Kind.TENSORS
        if name.startswith("torch."):
            return self.torch_call(node, name, kinds)
        return Kind.PYTHON if name in tensor_methods.PYTHON_BUILTINS else Kind.UNKNOWN

    def torch_call(self, node: ast.Call, name: str, kinds: Sequence[Kind]) -> Kind:
        last = name.rsplit(".", 1)[1]
        if name in tensor_methods.PYTHON_FUNCTIONS or name.startswith(_OF_PYTHON):
            return Kind.PYTHON
        self.fact("call", node, name)
        if last == "repeat_interleave" and any(kind.is_tensor for kind in kinds[1:2]):
            self.fact("repeat", node, name)
        if last[:1].isupper():
            return Kind.MODULE if name.startswith("torch.nn.") else Kind.UNKNOWN
        return _result(last, alone=len(node.args) == 1)

    def method_call(
        self, node: ast.Call, function: ast.Attribute, kinds: Sequence[Kind], keywords: Dict[Optional[str], Kind]
    ) -> Kind:
        if self.is_own(function) and isinstance(function.value, ast.Name) and self.model is not None:
            method = self.model.method(function.attr)
            if method is not None:
                return self.analysis.call(method, self.model, kinds, keywords)
            held = self.model.holds.get(function.attr)
            return self.module_result(function.attr) if held is Kind.MODULE else Kind.UNKNOWN
        if function.attr == "apply" and isinstance(function.value, ast.Name):
            self.fact("custom", node, function.value.id)
            return Kind.TENSOR
        base = self.expression(function.value)
        if base.is_tensor:
            return self.tensor_method(node, function.attr, kinds)
        if function.attr in ("backward", "item", "numpy", "tolist") and base is Kind.UNKNOWN:
            if function.attr in ("backward", "item"):
                self.fact("gradient" if function.attr == "backward" else "host", node, function.attr)
            return Kind.PYTHON
        if base is Kind.MODULE:
            return Kind.UNKNOWN
        if function.attr in ("info", "debug", "warning") and (dotted(function.value) or "").lower().find("log") >= 0:
            self.fact("print", node, dotted(function) or "")
            return Kind.PYTHON
        if self.is_own(function.value) and function.attr in tensor_methods.MUTATORS:
            self.fact("mutation", node, dotted(function.value) or "")
            return Kind.UNKNOWN
        if function.attr in ("append", "extend") and isinstance(function.value, ast.Name):
            if any(kind.has_tensors for kind in kinds):
                self.environment[function.value.id] = Kind.TENSORS
            return Kind.PYTHON
        of_tensors = {"values": Kind.TENSORS, "items": Kind.TENSORS, "pop": Kind.TENSOR, "get": Kind.TENSOR}
        return of_tensors.get(function.attr, Kind.UNKNOWN) if base is Kind.TENSORS else Kind.UNKNOWN

    def module_result(self, attribute: str) -> Kind:
        value = self.model.values.get(attribute) if self.model else None
        name = self.names.called(value) if value is not None else None
        model = self.analysis.models.get(dotted(value.func) or "") if isinstance(value, ast.Call) else None
        forward = model.method("forward") if model else None
        returns = [] if forward is None else [node.value for node in walk(forward) if isinstance(node, ast.Return)]
        several = any(isinstance(returned, (ast.Tuple, ast.List, ast.Dict)) for returned in returns)
        return Kind.TENSORS if several or name in _WITH_STATES else Kind.TENSOR

    def tensor_method(self, node: ast.Call, name: str, kinds: Sequence[Kind]) -> Kind:
        if name in tensor_methods.HOST_READS:
            self.fact("host", node, name)
            return Kind.PYTHON if name != "cpu" else Kind.TENSOR
        if name == "to" and node.args and isinstance(node.args[0], ast.Constant) and node.args[0].value == "cpu":
            self.fact("host", node, 'to("cpu")')
            return Kind.TENSOR
        if name in ("backward", "register_hook", "retain_grad"):
            self.fact("gradient", node, name)
            return Kind.PYTHON
        if name in tensor_methods.PYTHON_METHODS:
            return Kind.PYTHON
        self.fact("call", node, f"Tensor.{name}")
        if name == "repeat_interleave" and any(kind.is_tensor for kind in kinds[:1]):
            self.fact("repeat", node, name)
        return _result(name, alone=not kinds and not node.keywords)


def _container(kinds: Iterable[Kind]) -> Kind:
    found = list(kinds)
    if any(kind.has_tensors for kind in found):
        return Kind.TENSORS
    return Kind.PYTHON if all(kind is Kind.PYTHON for kind in found) else Kind.UNKNOWN


def _result(operator: str, alone: bool) -> Kind:
    """Return the kind of an operator's result.

    Of a tensor `alone`, without a dimension, `max` and `min` give one tensor.
    """
    if operator in tensor_methods.MASK_RESULTS:
        return Kind.MASK
    several = operator in tensor_methods.SEVERAL_RESULTS and not (alone and operator in ("max", "min"))
    return Kind.TENSORS if several else Kind.TENSOR
