"""Values that a loop samples from its models' outputs, and reads of them before the update has run."""

from __future__ import annotations

import ast
from typing import Sequence

from ignite_ipu.migration.analysis import tensor_methods
from ignite_ipu.migration.analysis.forward import Statements
from ignite_ipu.migration.analysis.kinds import Fact, Kind
from ignite_ipu.migration.analysis.operators import is_refused
from ignite_ipu.migration.analysis.values import CALL, TRAINING, WITH_GRADIENTS, Origin, Value, result
from ignite_ipu.operators.words import word_set

_DISTRIBUTIONS = "torch.distributions."
# Functions and methods that draw numbers by the values of their argument.
_DRAWS = word_set("multinomial bernoulli poisson")
# Those of them, and the method of distributions, whose results never have gradients.
_WITHOUT_GRADIENTS = ("multinomial", "sample")
_READ_METHODS = tensor_methods.HOST_READS - {"cpu"}
_READ_FUNCTIONS = word_set("int float bool numpy.array numpy.asarray")
# The operators that distributions draw by.
_DRAWN_BY = {
    **dict.fromkeys(("Categorical", "OneHotCategorical", "Multinomial"), "multinomial"),
    **{"Bernoulli": "bernoulli", "Poisson": "poisson", "Binomial": "binomial"},
}
# The kinds of the facts behind a value that was drawn, and behind a distribution, and of those about its reads.
DRAWN, DISTRIBUTION, _READ = "drawn", "distribution", "sampled"


class SampledValues(Statements):
    """The statements of a loop's function, of which the reads of sampled values are noted.

    A sample has no gradients: a value that has some is another one, which the host computes. The host also draws the
    samples of outputs in evaluation mode, which an inference program computes.
    """

    def named_call(self, node: ast.Call, name: str, given: Sequence[Value]) -> Value:
        if name in _READ_FUNCTIONS and given:
            self._read(node, name, given[0])
        found = super().named_call(node, name, given)
        last = name.rpartition(".")[2]
        if name.startswith(_DISTRIBUTIONS) and last[:1].isupper():
            made = result(Kind.UNKNOWN, given)
            return made._replace(by=made.by | {Fact(DISTRIBUTION, node, last, "")} if made.by else made.by)
        return _sample(node, last, found) if name.startswith("torch.") and last in _DRAWS else found

    def distribution_method(self, node: ast.Call, name: str, base: Value, given: Sequence[Value]) -> Value:
        """Return the result of a method of a distribution."""
        return self._drawn(node, base) if name == "sample" else result(Kind.TENSOR, [base, *given])

    def _drawn(self, node: ast.Call, base: Value) -> Value:
        """Return a sample of a distribution, with the operator that draws it if that does not compile."""
        found = _sample(node, "sample", base._replace(kind=Kind.TENSOR))
        if all(fact.kind != CALL for fact in found.by):
            return found
        drawn_by = [_DRAWN_BY.get(fact.name) for fact in base.by if fact.kind == DISTRIBUTION]
        names = [f"torch.{each}" for each in drawn_by if each is not None]
        where, sure = self.scope.where, self.scope.sure
        refused = {
            Fact("call", node, each, where, sure and _is_certain(base))
            for each in names
            if is_refused(self.scope.analysis.file, each, node)
        }
        return found._replace(by=found.by | refused)

    def tensor_method(self, node: ast.Call, name: str, base: Value, given: Sequence[Value]) -> Value:
        if name in _READ_METHODS:
            self._read(node, name, base)
        found = super().tensor_method(node, name, base, given)
        return _sample(node, name, found) if name in _DRAWS else found

    def truth(self, node: ast.expr) -> None:
        if not isinstance(node, (ast.BoolOp, ast.UnaryOp)):
            self._read(node, "bool", self.expression(node))
        super().truth(node)

    def _read(self, node: ast.expr, name: str, value: Value) -> None:
        kinds = {fact.kind for fact in value.by}
        if (
            value.is_tensor
            and value.origin is Origin.COMPUTED
            and {DRAWN, CALL} <= kinds
            and WITH_GRADIENTS not in kinds
        ):
            sure = self.scope.sure and _is_certain(value)
            self.scope.analysis.facts.add(Fact(_READ, node, name, self.scope.where, sure))


def is_distribution(value: Value) -> bool:
    """Return whether a value is a distribution of computed values: nothing else that is computed has no kind."""
    return value.kind is Kind.UNKNOWN and bool(value.by) and value.origin is Origin.COMPUTED


def _sample(node: ast.Call, name: str, value: Value) -> Value:
    """Return a value that is drawn by another one: by the host, if all models that this comes from are evaluated."""
    kinds = {fact.kind for fact in value.by}
    if CALL in kinds and TRAINING not in kinds and (name in _WITHOUT_GRADIENTS or WITH_GRADIENTS not in kinds):
        return Value(value.kind)
    by = frozenset(fact for fact in value.by if fact.kind != WITH_GRADIENTS)
    return value._replace(by=by | {Fact(DRAWN, node, name, "")} if by else by)


def _is_certain(value: Value) -> bool:
    """Return whether a value comes from a call of a model that is in training mode for sure."""
    return any(fact.certain for fact in value.by if fact.kind == TRAINING)
