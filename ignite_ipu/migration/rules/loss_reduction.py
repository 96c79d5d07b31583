"""Losses with reduction="sum" or "none", or summed by hand, that a trainer or ipu_train_batch trains with.

Gradients of the micro-batches are averaged over accumulation steps and replicas, so a summed loss weighs differently
from one large batch on a GPU. The device minimises the sum of a loss with reduction="none". A loop that ipu_prepare
captures adds gradients up as PyTorch does.

Remedy: Use reduction="mean" or .mean(), or set
options.Training.accumulationAndReplicationReductionType(poptorch.ReductionType.Sum).

Example:
      import torch
      from ignite_ipu import create_ipu_trainer
      from torch import nn

      model = nn.Linear(4, 2)
      optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    - trainer = create_ipu_trainer(model, optimizer, nn.CrossEntropyLoss(reduction="sum"))
    + trainer = create_ipu_trainer(model, optimizer, nn.CrossEntropyLoss())
"""

from __future__ import annotations

import ast
from typing import Iterator, List, Set, Tuple

from ignite_ipu.migration.analysis.names import (
    argument,
    attributes_in,
    constant,
    dotted,
    names_bound,
    names_loaded,
    targets_of,
    unmoved,
    walk,
)
from ignite_ipu.migration.findings import Hit, Hits, Outcome, Program, Severity

SEVERITY, RUN = Severity.WARNING, Outcome.UNCHANGED

_WEIGHTS = {"weight", "bias", "parameters", "named_parameters"}


def check(program: Program) -> Hits:
    training = program.training
    if not (training.loss_functions or training.trainers or training.executors):
        return
    for call, name in program.calls("torch.nn.*"):
        is_loss = name.lower().replace("_", "").endswith(("loss", "entropy", "entropywithlogits", "div", "withlogits"))
        reduction = constant(argument(call, "reduction"))
        if reduction == "none" and isinstance(program.parents.get(call), (ast.Attribute, ast.BinOp)):
            continue  # of which something is computed, such as its mean
        if is_loss and reduction in ("sum", "none") and not program.without_gradients(call):
            yield Hit(call, f"the loss is reduced by {reduction!r}; accumulation and replicas average it")
    reader = _Reader(program)
    for function in sorted(training.loss_functions):
        reader.read_called(function)
    for call in reader.found:
        if not program.without_gradients(call):
            yield Hit(call, "the loss is a sum over the batch; accumulation and replicas average it")


class _Reader:
    """Follows a loss through sums, names and the file's own functions to calls of `sum()`: `((output - y) ** 2).sum()`.

    A sum that is divided by something is taken for a mean, and one of weights for a penalty.
    """

    def __init__(self, file: Program) -> None:
        self._file = file
        self._seen: Set[Tuple[int, str]] = set()
        self.found: List[ast.Call] = []

    def read(self, value: ast.expr, scope: ast.AST) -> None:
        """Look at a term of a loss that stands in a function, or in the module."""
        if isinstance(value, ast.BinOp) and isinstance(value.op, (ast.Add, ast.Sub, ast.Mult)):
            self.read(value.left, scope)
            self.read(value.right, scope)
        elif isinstance(value, ast.UnaryOp):
            self.read(value.operand, scope)
        elif isinstance(value, ast.Name):
            self._read_name(value.id, scope)
        elif isinstance(value, ast.Call):
            self._read_call(value, scope)

    def read_called(self, name: str) -> None:
        """Look at the result of a function of the file, or of the forward of a loss module's class."""
        function = self._file.functions.get(name)
        if function is None:
            made = map(unmoved, self._file.values.get(name, ()))
            kinds = {dotted(value.func) for value in made if isinstance(value, ast.Call)}
            function = next((model.method("forward") for model in self._file.models if model.name in kinds), None)
        if function is None or (id(function), "") in self._seen:
            return
        self._seen.add((id(function), ""))
        for node in walk(function):
            if isinstance(node, ast.Return) and node.value is not None:
                self.read(node.value, function)

    def _read_name(self, name: str, scope: ast.AST) -> None:
        if (id(scope), name) in self._seen:
            return
        self._seen.add((id(scope), name))
        for node in walk(scope):
            if isinstance(node, (ast.Assign, ast.AugAssign)) and name in names_bound(node):
                divides = isinstance(node, ast.AugAssign) and not isinstance(node.op, (ast.Add, ast.Sub, ast.Mult))
                if not divides and all(isinstance(target, ast.Name) for target in targets_of(node)):
                    self.read(node.value, scope)

    def _read_call(self, call: ast.Call, scope: ast.AST) -> None:
        name = self._file.names.called(call)
        if name == "torch.sum" and len(call.args) == 1 and not call.keywords:
            self._note(call, call.args[0], scope)
        elif isinstance(call.func, ast.Attribute) and call.func.attr == "sum" and name is None:
            if not call.args and not call.keywords:
                self._note(call, call.func.value, scope)
        else:
            self.read_called(dotted(call.func) or "")

    def _note(self, call: ast.Call, value: ast.expr, scope: ast.AST) -> None:
        if not attributes_in(value) & _WEIGHTS and not names_loaded(value) & set(_names_of_weights(scope)):
            self.found.append(call)


def _names_of_weights(scope: ast.AST) -> Iterator[str]:
    for node in walk(scope):
        if isinstance(node, ast.For) and _WEIGHTS & attributes_in(node.iter):
            yield from names_bound(node.target)
