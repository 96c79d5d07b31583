"""Expressions of traced code: which values are tensors there, where these come from, and their uses."""

from __future__ import annotations

import ast
from functools import reduce
from typing import Dict, List, Mapping, Optional, Sequence, Union, cast

from ignite_ipu.capabilities import LACKED_FORMATS
from ignite_ipu.migration.analysis import tensor_methods
from ignite_ipu.migration.analysis.kinds import Function, Kind, attribute_named, device_test
from ignite_ipu.migration.analysis.models import Model
from ignite_ipu.migration.analysis.names import argument, constant, dotted, index_of, last_of, walk
from ignite_ipu.migration.analysis.operators import constants_of, is_dynamic
from ignite_ipu.migration.analysis.scope import OutsideCall, Scope
from ignite_ipu.migration.analysis.values import (
    COMPUTED,
    MODULE,
    PYTHON,
    UNKNOWN,
    WEIGHT,
    Origin,
    Value,
    combined,
    container,
    join,
    result,
)

_OF_PYTHON = ("torch.jit.", "torch.cuda.", "torch.backends.", "torch.distributed.is_", "torch.distributed.get_")
_WITH_STATES = ("torch.nn.LSTM", "torch.nn.GRU", "torch.nn.RNN", "torch.nn.MultiheadAttention")


def declared(kind: Kind, origin: Origin) -> Value:
    """Return the description of a value of a kind, whose tensors come from an origin."""
    return Value(kind, origin) if kind.has_tensors else PYTHON if kind is Kind.PYTHON else Value(kind)


class Expressions:
    """The expressions of one function, which has the names of a scope."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope

    def assign(self, target: ast.expr, kind: Value, value: Optional[ast.expr]) -> None:
        if isinstance(target, ast.Name):
            self.scope.environment[target.id] = kind
            if isinstance(value, ast.Lambda):
                self.scope.inner[target.id] = self.defined(value, self.scope.where)
            else:
                self.scope.inner.pop(target.id, None)
            if target.id in self.scope.globals:
                self.scope.fact("mutation", target, target.id)
        elif isinstance(target, (ast.Tuple, ast.List)):
            if isinstance(value, (ast.Tuple, ast.List)) and len(value.elts) == len(target.elts):
                for one, part in zip(target.elts, value.elts):
                    self.assign(one, self.expression(part), part)
            else:
                element = kind.element._replace(kind=Kind.TENSOR) if kind.has_tensors else kind
                known = kind.items if kind.items is not None and len(kind.items) == len(target.elts) else None
                for number, one in enumerate(target.elts):
                    by = element.by if known is None else known[number].by
                    self.assign(one, element._replace(by=by), value)
        elif isinstance(target, ast.Starred):
            self.assign(target.value, kind._replace(kind=Kind.TENSORS) if kind.is_tensor else kind, None)
        elif isinstance(target, ast.Attribute):
            if target.attr == "data" and self.expression(target.value).kind is Kind.PARAMETER:
                self.scope.fact("written", target, dotted(target) or "")
            elif self.scope.is_registered(target):
                self.scope.fact("rebound" if self.scope.is_rebound(target, value) else "assigned", target, target.attr)
            elif self.scope.is_own(target) or (value is None and self.scope.is_shared(target)):
                self.scope.mutation(target, dotted(target) or "", kind, value)
        elif isinstance(target, ast.Subscript):
            self.expression(target.value)
            self.expression(index_of(target))
            changed = self.scope.is_own(target.value) or (value is None and self.scope.is_shared(target.value))
            if changed and not self.expression(target.value).is_tensor:
                self.scope.mutation(target, dotted(target.value) or "", kind, value)

    def taken(self, test: ast.expr) -> Optional[bool]:
        """Return the result of a test that decides which code is walked at all, None for one that leaves it open."""
        return device_test(test, self.scope.names)

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
            self.scope.needs_value("truth", node, value.origin)

    def truths(self, node: ast.BoolOp, values: Sequence[ast.expr]) -> None:
        """Evaluate the first operands of `and` or `or`, of which the later ones may not be evaluated."""
        before = self.scope.sure
        for value in values:
            self.truth(value)
            runs = self.scope.runs(value)
            self.scope.sure = self.scope.sure and (runs.if_true if isinstance(node.op, ast.And) else runs.if_false)
        self.scope.sure = before

    def expression(self, node: ast.expr) -> Value:
        if isinstance(node, ast.Constant):
            return PYTHON
        if isinstance(node, ast.Name):
            return self.scope.environment.get(node.id, UNKNOWN)
        if isinstance(node, ast.Attribute):
            return self.attribute(node, self.expression(node.value))
        if isinstance(node, ast.Call):
            given = [self.expression(argument) for argument in node.args]
            keywords = {keyword.arg: self.expression(keyword.value) for keyword in node.keywords}
            return self.call(node, given, keywords)
        if isinstance(node, ast.Subscript):
            return self.subscript(node, self.expression(node.value), list(map(self.expression, _indices(node))))
        if isinstance(node, ast.Compare):
            return self.compare(node)
        if isinstance(node, ast.BinOp):
            left, right = self.expression(node.left), self.expression(node.right)
            masks = left.kind is right.kind is Kind.MASK and isinstance(node.op, (ast.BitAnd, ast.BitOr, ast.BitXor))
            if left.is_tensor or right.is_tensor:
                return result(Kind.MASK if masks else Kind.TENSOR, [left, right])
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
            taken = self.taken(node.test)
            if taken is not None:
                return self.expression(node.body if taken else node.orelse)
            self.truth(node.test)
            runs = self.scope.runs(node.test)
            with self.scope.behind(runs.if_true):
                first = self.expression(node.body)
            with self.scope.behind(runs.if_false):
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
        outer = dict(self.scope.environment)
        for generator in node.generators:
            self.iterate(generator.target, generator.iter)
            for test in generator.ifs:
                self.truth(test)
        element = self.expression(node.value if isinstance(node, ast.DictComp) else node.elt)
        self.scope.environment = outer
        return container([element])

    def iterate(self, target: ast.expr, node: ast.expr) -> None:
        """Assign the elements of an expression."""
        kind = self.expression(node)
        called = node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""
        if called not in ("zip", "enumerate") or not isinstance(node, ast.Call):
            self.assign(target, WEIGHT if self._are_weights(node) else kind.element, None)
            if isinstance(target, ast.Name) and self.scope.is_own(node):
                self.scope.layers_of[target.id] = last_of(node)
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

    def element_of(self, node: ast.expr) -> Value:
        """Return an element of what an expression yields; of `zip` it is a tuple of elements."""
        if isinstance(node, ast.Call) and dotted(node.func) == "zip":
            return container(map(self.element_of, node.args))
        return self.expression(node).element

    def _are_weights(self, node: ast.expr) -> bool:
        """Return whether an expression yields the parameters of the model whose code it is in, or of a part of it."""
        call = node.func if isinstance(node, ast.Call) else None
        if self.scope.model is None or not isinstance(call, ast.Attribute) or call.attr != "parameters":
            return False
        return dotted(call.value) == self.scope.owner or self.scope.is_own(call.value)

    def attribute(self, node: ast.Attribute, base: Value) -> Value:
        if isinstance(node.value, ast.Name) and node.value.id == self.scope.owner and self.scope.owner:
            name = f"{self.scope.owner}.{node.attr}"
            self.scope.read(name)
            kind = self.scope.kind_set(name)
            if kind is not None and kind.has_tensors:
                return Value(kind)
            held = self.scope.model.holds.get(node.attr) if self.scope.model else None
            if held is Kind.UNREGISTERED:
                self.scope.fact("plain", node, node.attr)
            if held is not None:
                written = self.scope.model is not None and node.attr in self.scope.model.written
                constant_here = held is Kind.UNREGISTERED or (held is Kind.BUFFER and not written)
                origin = Origin.CONSTANT if constant_here else Origin.COMPUTED
                return Value(Kind.TENSOR, origin) if held.is_tensor else declared(held, Origin.UNKNOWN)
            return PYTHON if node.attr == "training" else UNKNOWN
        if base.is_tensor:
            if node.attr in tensor_methods.PYTHON_ATTRIBUTES:
                return PYTHON
            if base.kind is Kind.PARAMETER and node.attr == "data":
                return base
            return base._replace(kind=Kind.TENSOR) if node.attr in tensor_methods.TENSOR_ATTRIBUTES else UNKNOWN
        if base.kind is Kind.MODULE and node.attr in ("weight", "bias"):
            return COMPUTED
        return UNKNOWN

    def subscript(self, node: ast.Subscript, base: Value, indices: Sequence[Value]) -> Value:
        if base.is_tensor:
            masks = [each for each in indices if each.kind is Kind.MASK]
            if masks and isinstance(node.ctx, ast.Load):
                self.scope.needs_value("mask", node, combined(masks))
            return result(base.kind, [base, *(each for each in indices if each.is_tensor)])
        place = constant(index_of(node))
        if base.items is not None and type(place) is int and place < len(base.items):
            return base.items[place]
        return base.element

    def compare(self, node: ast.Compare) -> Value:
        values = [node.left, *node.comparators]
        kinds = [self.expression(value) for value in values]
        literals = [constant(value) for value in values]
        identity = any(isinstance(operator, (ast.Is, ast.IsNot)) for operator in node.ops)
        if identity or any(value is None or isinstance(value, str) for value in literals):
            return PYTHON
        if any(isinstance(operator, (ast.In, ast.NotIn)) for operator in node.ops):
            return result(Kind.TENSOR, kinds) if kinds[-1].is_tensor else PYTHON
        if any(kind.is_tensor for kind in kinds):
            return result(Kind.MASK, kinds)
        return PYTHON if all(kind == PYTHON for kind in kinds) else UNKNOWN

    # Calls

    def call(self, node: ast.Call, given: List[Value], keywords: Dict[Optional[str], Value]) -> Value:
        name = self.scope.names.resolve(node.func)
        self.formats(node)
        if name is not None:
            if self.scope.sure and "." in name:
                within = self.scope.model.name if self.scope.model else self.scope.where
                values = (*given, *keywords.values())
                computed = any(value.is_tensor and value.origin is Origin.COMPUTED for value in values)
                self.scope.analysis.outside.add(OutsideCall(within, name, computed))
            return self.named_call(node, name, [*given, *keywords.values()])
        function = node.func
        if isinstance(function, ast.Name):
            if function.id in self.scope.inner:
                return self.enter(self.scope.inner[function.id], given, keywords)
            known = self.scope.analysis.functions.get(function.id)
            if known is not None:
                return self.scope.analysis.call(known, None, given, keywords, self.scope.sure)
            made = self.scope.analysis.constructors.get(function.id)
            if made is not None:
                self.scope.analysis.call(made, None, [UNKNOWN, *given], keywords, self.scope.sure)
                return UNKNOWN
            if self.expression(function).kind is Kind.MODULE:
                return self.layer_call(node, self.layer_named(function), given, keywords)
            return UNKNOWN
        if isinstance(function, ast.Attribute):
            return self.method_call(node, function, self.expression(function.value), given, keywords)
        if isinstance(function, ast.Lambda):
            return self.enter(self.defined(function, self.scope.where), given, keywords)
        if self.expression(function).kind is not Kind.MODULE:
            return UNKNOWN
        return self.layer_call(node, self.layer_named(function), given, keywords)

    def formats(self, node: ast.Call) -> None:
        """Note a number format that an IPU lacks among the arguments of a call, but for `autocast`, another rule's."""
        names = self.scope.names
        named = (names.resolve(each) for each in (*node.args, *(keyword.value for keyword in node.keywords)))
        name = next((each for each in named if each in LACKED_FORMATS), None)
        if isinstance(node.func, ast.Attribute) and f"torch.{node.func.attr}" in LACKED_FORMATS:
            name = f"torch.{node.func.attr}" if self.expression(node.func.value).is_tensor else name
        if name is not None and names.called(node) != "torch.amp.autocast":
            self.scope.fact("format", node, name)

    def enter(self, function: Function, given: Sequence[Value], keywords: Mapping[Optional[str], Value]) -> Value:
        """Analyse a call of a function within this one, which has its variables."""
        return self.scope.analysis.call(function, self.scope.model, given, keywords, self.scope.sure, self.scope)

    def defined(self, node: ast.Lambda, where: str) -> Function:
        """Return a function that does as a lambda; refusals name the function around it."""
        known = self.scope.analysis.lambdas.get(node)
        if known is None:
            body: List[ast.stmt] = [ast.copy_location(ast.Return(node.body), node.body)]
            made = ast.FunctionDef(name=where, args=node.args, body=body, decorator_list=[])
            known = self.scope.analysis.lambdas[node] = ast.copy_location(made, node)
        return known

    def named_call(self, node: ast.Call, name: str, given: Sequence[Value]) -> Value:
        first = given[0] if given else UNKNOWN
        if name == "print" or name.startswith("logging."):
            self.scope.fact("print", node, name)
            return PYTHON
        reads = name in ("int", "float", "bool", "complex", "numpy.asarray", "numpy.array") or name.startswith("math.")
        if reads and first.is_tensor:
            self.scope.needs_value("host", node, first.origin, name)
            return PYTHON
        counts = [value for value in given if value.is_tensor] if name == "range" else []
        if counts:
            self.scope.needs_value("count", node, combined(counts), name)
        if name.startswith(("random.", "numpy.random.")):
            self.scope.fact("random", node, name)
            return PYTHON
        if name in ("map", "filter") and isinstance(node.args[0] if node.args else None, ast.Lambda):
            mapped = self.defined(cast(ast.Lambda, node.args[0]), self.scope.where)
            return container([self.enter(mapped, list(map(self.element_of, node.args[1:])), {})])
        if name in ("max", "min", "sum", "abs", "reversed", "list", "tuple", "sorted"):
            if name in ("list", "tuple", "reversed") and first.is_tensor:
                return first._replace(kind=Kind.TENSORS)
            return result(Kind.TENSOR, given) if any(value.has_tensors for value in given) else first
        if name == "setattr" and len(node.args) == 3 and (dotted(node.args[0]) or "").split(".")[0] == self.scope.owner:
            self.scope.mutation(node, attribute_named(node), given[2], node.args[2])
            return PYTHON
        if name in ("torch.autograd.grad", "torch.autograd.backward"):
            self.scope.fact("gradient", node, name)
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
            self.scope.needs_value("repeat", node, given[1].origin, name)
        if last[:1].isupper():
            return MODULE if name.startswith("torch.nn.") else Value(Kind.UNKNOWN)
        return _operator_result(last, given, alone=len(node.args) == 1)

    def constants(self, node: ast.Call, name: str) -> None:
        """Note tensors that an operator or layer is given where it takes constants."""
        for each, position, _ in constants_of(name):
            given = argument(node, each, position)
            value = UNKNOWN if given is None else self.expression(given)
            if value.is_tensor:
                self.scope.needs_value("varies", node, value.origin, name)

    def operator(self, node: ast.Call, name: str, given: Sequence[Value], by_values: bool) -> None:
        """Note the call of an operator, and whether the size of its result depends on values."""
        self.scope.fact("call", node, name)
        self.constants(node, name)
        if by_values or is_dynamic(name):
            self.scope.needs_value("dynamic", node, combined(given), name)

    def method_call(
        self,
        node: ast.Call,
        function: ast.Attribute,
        base: Value,
        given: List[Value],
        keywords: Dict[Optional[str], Value],
    ) -> Value:
        if self.scope.is_own(function) and isinstance(function.value, ast.Name) and self.scope.model is not None:
            method = self.scope.model.method(function.attr)
            if method is not None:
                return self.scope.analysis.call(method, self.scope.model, given, keywords, self.scope.sure)
            value = self.scope.model.values.get(function.attr)
            if isinstance(value, ast.Lambda):
                made = self.defined(value, f"{self.scope.model.name}.__init__")
                return self.scope.analysis.call(made, None, given, keywords, self.scope.sure)
            held = self.scope.model.holds.get(function.attr)
            return self.layer_call(node, function.attr, given, keywords) if held is Kind.MODULE else UNKNOWN
        if function.attr == "apply" and isinstance(function.value, ast.Name):
            self.scope.fact("custom", node, function.value.id)
            return result(Kind.TENSOR, given)
        if self.scope.generator_of(function.value) is not None:
            self.scope.fact("random", node, dotted(function) or "")
            return PYTHON
        if base.is_tensor:
            return self.tensor_method(node, function.attr, base, [*given, *keywords.values()])
        if function.attr in ("backward", "item", "numpy", "tolist") and base.kind is Kind.UNKNOWN:
            if function.attr == "backward":
                self.scope.fact("gradient", node, function.attr)
            elif function.attr == "item":
                self.scope.needs_value("host", node, base.origin, function.attr)
            return PYTHON
        if base.kind is Kind.MODULE:
            return self.part_method(self.layer_named(function.value), function.attr, given, keywords)
        if function.attr in ("info", "debug", "warning") and (dotted(function.value) or "").lower().find("log") >= 0:
            self.scope.fact("print", node, dotted(function) or "")
            return PYTHON
        kept = self.scope.is_shared(function.value) and not any(value.has_tensors for value in given)
        if (kept or self.scope.is_own(function.value)) and function.attr in tensor_methods.MUTATORS:
            self.scope.mutation(node, dotted(function.value) or "", container(given), None)
            return UNKNOWN
        if function.attr in ("append", "extend") and isinstance(function.value, ast.Name):
            if any(value.has_tensors for value in given):
                current = self.scope.environment.get(function.value.id, UNKNOWN)
                more = [current.element] if current.has_tensors else []
                changed = container([*more, *given])
                self.scope.environment[function.value.id] = changed._replace(by=changed.by | current.by)
            return PYTHON
        if function.attr not in ("values", "items", "pop", "get") or base.kind is not Kind.TENSORS:
            return UNKNOWN
        return base if function.attr in ("values", "items") else base.element

    def layer_named(self, node: ast.expr) -> str:
        """Return the attribute of the model that holds a layer, or the list that it is an element of; "" if unknown."""
        if isinstance(node, ast.Name):
            return self.scope.layers_of.get(node.id, "")
        name = dotted(node.value if isinstance(node, ast.Subscript) else node)
        return (name or "").rpartition(".")[2]

    def parts_in(self, attribute: str) -> List[Model]:
        """Return the file's own models that a layer of the model is made of."""
        models = self.scope.analysis.models
        names = self.scope.model.constructed_in(attribute) if self.scope.model is not None else set()
        return [models[name] for name in sorted(names & models.keys())]

    def part_method(
        self, attribute: str, method: str, given: List[Value], keywords: Dict[Optional[str], Value]
    ) -> Value:
        """Analyse a method of the file's own models in a layer, and return the description of its result."""
        functions = ((part, part.method(method)) for part in self.parts_in(attribute))
        values = [
            self.scope.analysis.call(function, part, given, keywords, self.scope.sure)
            for part, function in functions
            if function is not None
        ]
        return reduce(join, values) if values else UNKNOWN

    def layer_call(
        self, node: ast.Call, attribute: str, given: List[Value], keywords: Dict[Optional[str], Value]
    ) -> Value:
        """Return the result of a layer that the model holds, and analyse the file's own models in it."""
        origin = combined([*given, *keywords.values()])
        value = self.scope.model.values.get(attribute) if self.scope.model else None
        name = self.scope.names.called(value) if value is not None else None
        several = name in _WITH_STATES
        if value is not None:
            self.scope.layers_made(node, value)
        self.constants(node, name or "")
        for inner in self.parts_in(attribute):
            forward = inner.method("forward")
            if forward is not None:
                self.scope.analysis.call(forward, inner, given, keywords, self.scope.sure)
                returned = [each.value for each in walk(forward) if isinstance(each, ast.Return)]
                several |= any(isinstance(each, (ast.Tuple, ast.List, ast.Dict)) for each in returned)
        # Layers of the library have weights, or draw numbers, or keep the origin.
        known = origin is Origin.COMPUTED or (name or "").startswith("torch.nn.")
        return Value(Kind.TENSORS if several else Kind.TENSOR, Origin.COMPUTED if known else Origin.UNKNOWN)

    def tensor_method(self, node: ast.Call, name: str, base: Value, given: Sequence[Value]) -> Value:
        if name in tensor_methods.HOST_READS:
            self.scope.needs_value("host", node, base.origin, name)
            return PYTHON if name != "cpu" else base
        if name == "to" and node.args and isinstance(node.args[0], ast.Constant) and node.args[0].value == "cpu":
            self.scope.needs_value("host", node, base.origin, 'to("cpu")')
            return base
        if name in ("backward", "register_hook", "retain_grad"):
            self.scope.fact("gradient", node, name)
            return PYTHON
        if name in tensor_methods.PYTHON_METHODS:
            return PYTHON
        self.operator(node, f"Tensor.{name}", [base, *given], by_values=False)
        if base.kind is Kind.PARAMETER and name.endswith("_") and name != "requires_grad_":
            self.scope.fact("written", node, dotted(node.func) or "")
        if name.endswith("_") and isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Attribute):
            self.scope.written(node.func.value)
        if name == "repeat_interleave" and any(value.is_tensor for value in given[:1]):
            self.scope.needs_value("repeat", node, given[0].origin, name)
        return _operator_result(name, [base, *given], alone=not given)


def _indices(node: ast.Subscript) -> List[ast.expr]:
    index = index_of(node)
    return list(getattr(index, "elts", [index]))


def _operator_result(operator: str, given: Sequence[Value], alone: bool) -> Value:
    """Return the description of an operator's result.

    Of a tensor `alone`, without a dimension, `max` and `min` give one tensor.
    """
    if operator in tensor_methods.LIKE:
        given = [Value(Kind.TENSOR, Origin.CONSTANT)]
    origin = Origin.COMPUTED if operator in tensor_methods.DRAWN else combined(given)
    if operator in tensor_methods.MASK_RESULTS:
        return result(Kind.MASK, given, origin)
    several = operator in tensor_methods.SEVERAL_RESULTS and not (alone and operator in ("max", "min"))
    return result(Kind.TENSORS if several else Kind.TENSOR, given, origin)
