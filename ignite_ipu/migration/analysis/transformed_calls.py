"""Calls of a loop's models that PyTorch transforms: by `torch.func`, with other weights, or with a cache of weights."""

from __future__ import annotations

import ast
import contextlib
from typing import Callable, Container, ContextManager, Dict, Iterator, List, Optional, Set

from ignite_ipu.capabilities.transforms import FUNCTIONAL_CALLS, TRANSFORMS
from ignite_ipu.migration.analysis.forward import Statements
from ignite_ipu.migration.analysis.kinds import Fact, Kind
from ignite_ipu.migration.analysis.names import argument, dotted, has_weights, unmoved
from ignite_ipu.migration.analysis.values import Value

# The kinds of the facts about these calls.
_TRANSFORMED, _OTHER_WEIGHTS, _CACHED = "transformed", "weights", "cached"
_CACHE, _PARAMETRIZATIONS = "torch.nn.utils.parametrize.cached", "torch.nn.utils.parametrizations."
# Methods that return the tensor itself where it has the format and the device already.
_SAME = frozenset(["to", "cuda", "cpu", "float", "requires_grad_"])


# Follows a call of a function that an expression stands for: with the call, its values and keywords.
_Follow = Callable[[ast.expr, ast.Call, List[Value], Dict[Optional[str], Value]], Value]


class TransformedCalls:
    """The calls of a loop's function that call a model in such a way, which it notes as facts.

    Args:
        statements: The statements of the function.
        models: The names of the file's models.
        follow: Follows a function of the loop that is transformed.
    """

    def __init__(self, statements: Statements, models: Set[str], follow: _Follow) -> None:
        self._statements, self._scope, self._analysis = statements, statements.scope, statements.scope.analysis
        self._file, self._models, self._follow = self._analysis.file, models, follow

    def within(self, entered: Container[Optional[str]]) -> ContextManager[None]:
        """Context of the body of a `with` statement that enters the results of some functions."""
        return self._transforming(_CACHED) if _CACHE in entered else contextlib.nullcontext()

    def call(self, node: ast.Call, name: str) -> None:
        """Note the models that a function of this name calls in such a way."""
        function = argument(node, "func", 0) if name in TRANSFORMS else None
        if function is not None:
            with self._transforming(_TRANSFORMED):
                self._transform(node, function)
        elif name in FUNCTIONAL_CALLS:
            self._call_with_weights(node)

    @contextlib.contextmanager
    def _transforming(self, kind: str) -> Iterator[None]:
        """Context in which the models that are called are transformed in one way more."""
        before, self._analysis.transforms = self._analysis.transforms, self._analysis.transforms | {kind}
        try:
            yield
        finally:
            self._analysis.transforms = before

    def _transform(self, node: ast.Call, function: ast.expr) -> None:
        """Follow a function that `torch.func` calls within a transform, which may be a model."""
        inner = self._scope.inner.get(dotted(function) or "")
        if self._statements.expression(function).kind is Kind.MODULE:
            self.note(node, function)
        elif inner is not None:
            self._statements.enter(inner, [], {})
        elif not (self._scope.names.resolve(function) or "").startswith("torch."):
            self._follow(function, node, [], {})

    def _call_with_weights(self, node: ast.Call) -> None:
        """Note a call of a model by `functional_call`, within a transform or with weights that are computed for it."""
        module, weights = argument(node, "module", 0), argument(node, "parameter_and_buffer_dicts", 1)
        if module is None or self._statements.expression(module).kind is not Kind.MODULE:
            return
        if _TRANSFORMED in self._analysis.transforms:
            self.note(node, module)
        elif weights is not None and self._are_computed(weights):
            self._add(_OTHER_WEIGHTS, node, module)

    def _are_computed(self, weights: ast.expr) -> bool:
        """Return whether a dictionary has tensors that no model holds as a parameter or buffer."""
        value = self._file.single_value(dotted(weights)) if dotted(weights) is not None else weights
        if isinstance(value, (ast.Tuple, ast.List)):
            return any(map(self._are_computed, value.elts))
        if isinstance(value, ast.Call):
            first = value.args[:1] if self._scope.names.resolve(value.func) == "dict" else []
            own_state = isinstance(value.func, ast.Attribute) and value.func.attr == "state_dict"
            return own_state or any(map(self._are_computed, first))
        tensors = (
            [value.value] if isinstance(value, ast.DictComp) else value.values if isinstance(value, ast.Dict) else []
        )
        return any(
            isinstance(each, ast.BinOp) or _makes_tensor(each) or self._statements.expression(each).by
            for each in tensors
        )

    def note(self, node: ast.Call, model: ast.expr) -> None:
        """Note the ways in which a called model is transformed; a loss or another layer without weights may be."""
        kinds, name = self._analysis.transforms, dotted(model)
        made = self._file.single_value(name)
        if name not in self._models and not has_weights(self._file.names.called(unmoved(made)) or "" if made else ""):
            return
        if _TRANSFORMED in kinds:
            self._add(_TRANSFORMED, node, model)
        elif _CACHED in kinds and self._analysis.records_gradients(node) and self._is_parametrized(name or ""):
            self._add(_CACHED, node, model)

    def _add(self, kind: str, node: ast.Call, model: ast.expr) -> None:
        self._analysis.facts.add(Fact(kind, node, dotted(model) or "", self._scope.where, self._scope.sure))

    def _is_parametrized(self, model: str) -> bool:
        """Return whether the file parametrizes a weight of a model."""
        calls = self._file.calls("torch.nn.utils.parametrize.register_parametrization", f"{_PARAMETRIZATIONS}*")
        modules = [argument(call, "module", 0) for call, _ in calls]
        names = [dotted(each.value if isinstance(each, ast.Subscript) else each) for each in modules]
        return any(f"{each}.".startswith(f"{model}.") for each in names if each is not None)


def _makes_tensor(node: ast.expr) -> bool:
    """Return whether an expression is a method call that makes another tensor of one, such as `clone()`."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr not in _SAME
