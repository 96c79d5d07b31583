"""A trained model that is called within `torch.func`, with other weights than its own, or under `parametrize.cached()`.

The program of a model is compiled for its own weights, which are on the device. PyTorch makes a transform (`grad`,
`vmap`, `jacrev`) of operations on the host. `functional_call` gives the model other weights for one call. A cache keeps
weights that its parametrizations have computed once, for several calls.

Remedy: Transform a copy, copy.deepcopy(model), in a loop with ipu_prepare; compute derivatives in forward; leave the
cache out.

In the loop:
    - loss = torch.func.vmap(model)(x).mean()
      optimizer.step()
"""

from __future__ import annotations

from ignite_ipu.capabilities.transforms import COMPUTED_ONCE, OTHER_WEIGHTS, TRANSFORMED
from ignite_ipu.migration.findings import Hits, Outcome, Program, Severity, breach_of

SEVERITY, RUN = Severity.ERROR, Outcome.REFUSED

_RESTRICTIONS = {"transformed": TRANSFORMED, "weights": OTHER_WEIGHTS, "cached": COMPUTED_ONCE}


def check(program: Program) -> Hits:
    for fact in program.facts_of(*_RESTRICTIONS):
        yield breach_of(fact, _RESTRICTIONS[fact.kind], fact.name)
