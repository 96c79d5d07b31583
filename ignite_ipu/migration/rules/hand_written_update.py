"""Parameters changed in place on the host with their gradients.

The device holds its own copy of the weights, so the next step does not see a change on the host. There are no gradients
on the host to make it with. `run` brings the gradients back for such updates, and sends the weights.

Remedy: Use one of the supported optimizers, or set IPUConfig(update='host'). After a change that is not training
(re-initialising, say) load it with model.load_state_dict.

Example:
      import torch
    + from ignite_ipu import create_ipu_trainer
    + from torch import nn

    - model = torch.nn.Linear(2, 2)
    - model(torch.ones(1, 2)).sum().backward()
    - with torch.no_grad():
    -     for p in model.parameters():
    -         p -= 0.1 * p.grad
    + model = nn.Linear(4, 2)
    + optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    + trainer = create_ipu_trainer(model, optimizer, nn.CrossEntropyLoss())
"""

from __future__ import annotations

import ast
from typing import Iterator

from ignite_ipu.migration.analysis.names import attributes_in, dotted, names_bound, owner_of, walk
from ignite_ipu.migration.findings import Hit, Hits, Outcome, Program, Severity

SEVERITY, RUN = Severity.ERROR, Outcome.ON_HOST

_PARAMETERS = {"parameters", "named_parameters"}
_IN_PLACE = {"add_", "sub_", "mul_", "copy_", "addcmul_", "addcdiv_", "lerp_"}


def check(program: Program) -> Hits:
    for loop in program.nodes(ast.For):
        if not _PARAMETERS & attributes_in(loop.iter):
            continue
        names = names_bound(loop.target)
        for part in walk(loop):
            if isinstance(part, ast.AugAssign) and (dotted(part.target) or "").split(".")[0] in names:
                yield Hit(part, "a parameter is updated on the host, which the device does not see")
            owner = owner_of(part, *_IN_PLACE)
            if owner is not None and owner.split(".")[0] in names and "grad" in attributes_in(part):
                yield Hit(part, "a parameter is updated on the host, which the device does not see")
    for node in program.nodes(ast.AugAssign):
        loops = (above.iter for above in program.ancestors(node) if isinstance(above, ast.For))
        # A sum over gradients, for a norm or a report, changes another variable.
        target = (dotted(node.target) or "").split(".")[0]
        own = (owner_of_gradient.split(".")[0] for owner_of_gradient in _owners_of_gradients(node.value))
        if target in own and not any(_PARAMETERS & attributes_in(iterated) for iterated in loops):
            yield Hit(node, "a weight is updated by hand, which the device does not see")


def _owners_of_gradients(value: ast.expr) -> Iterator[str]:
    """Yield the dotted names whose `.grad` an expression uses."""
    for node in ast.walk(value):
        if isinstance(node, ast.Attribute) and node.attr == "grad":
            yield dotted(node.value) or ""
