"""A tensor made in __init__ or by the module, not registered, and used in traced code.

Only parameters and registered buffers are moved to the device; any other tensor stays on the CPU and PopTorch refuses
to mix the two. `run` makes constants of such tensors, and trains those that require gradients.

Remedy: Register it: self.register_buffer("scale", torch.ones(4)).

In __init__:
    - self.scale = torch.ones(4)
    + self.register_buffer("scale", torch.ones(4))

In forward:
      return self.layer(x) * self.scale
"""

from __future__ import annotations

import ast
from typing import Iterator

from ignite_ipu.migration.analysis.kinds import Function, parameters_of
from ignite_ipu.migration.analysis.names import dotted, names_bound, owner_of, unmoved, walk
from ignite_ipu.migration.analysis.tensor_methods import FACTORIES
from ignite_ipu.migration.findings import Hit, Hits, Outcome, Program, Severity

SEVERITY, RUN = Severity.ERROR, Outcome.HANDLED


def check(program: Program) -> Hits:
    for fact in program.facts_of("plain"):
        if owner_of(program.parents.get(program.parents[fact.node]), "to") == dotted(fact.node):
            # `self.scale.to(x.device)` makes a constant of the program, which works.
            continue
        yield Hit(fact.node, f"{fact.where} uses self.{fact.name}, a tensor that is neither a parameter nor a buffer")
    for name in sorted(program.training.loss_functions & set(program.functions)):
        for node in _tensors_of_the_host(program, program.functions[name]):
            yield Hit(
                node,
                f"{name} uses {node.id}, a tensor of the host",
                "Make the loss a module with the tensor as a buffer, or write "
                f"{node.id}.to(output.device), which makes a constant of it.",
            )


def _tensors_of_the_host(program: Program, function: Function) -> Iterator[ast.Name]:
    """Yield where a function reads tensors that the module around it makes."""
    inner = {node.name for node in walk(function) if isinstance(node, ast.FunctionDef)}
    bound = {name for statement in function.body for name in names_bound(statement)}
    own = {arg.arg for arg in parameters_of(function)} | bound | inner
    made = {name for name, value in program.assigned if program.names.called(unmoved(value)) in FACTORIES} - own
    for node in walk(function):
        if not isinstance(node, ast.Name) or node.id not in made:
            continue
        # `scale.to(output.device)` makes a constant of the program, which works.
        if owner_of(program.parents.get(program.parents[node]), "to") != node.id:
            yield node
