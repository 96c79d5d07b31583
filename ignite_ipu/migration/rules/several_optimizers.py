"""Two optimizers of the same parameters stepping in one loop or process function.

Each optimizer's step is a program of its own, which computes the losses of its weights: a weight has one optimizer.
Those of different parameters step in turns, as in GANs, and are not reported. `run` makes such updates on the host.

Remedy: Give each optimizer parameters of its own, or one optimizer several parameter groups; or set
IPUConfig(update='host').

Before the loop:
    - head_optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

In the loop:
      optimizer.step()
    - head_optimizer.step()
"""

from __future__ import annotations

import ast
from typing import Dict, List, Tuple

from ignite_ipu.migration.findings import Hit, Hits, Outcome, Program, Severity

SEVERITY, RUN = Severity.ERROR, Outcome.ON_HOST


def check(program: Program) -> Hits:
    made = {name: call.args[0] for name, (call, _) in program.training.optimizers.items() if call.args}
    held = {name: ast.dump(parameters) for name, parameters in made.items()}
    groups: Dict[int, List[Tuple[str, ast.Call]]] = {}
    for call, owner in program.method_calls("step"):
        if not owner or not program.training.is_optimizer(owner):
            continue
        loops = list(program.loops_around(call))
        block = loops[0] if loops else program.function_of(call)
        groups.setdefault(id(block), []).append((owner, call))
    for steps in groups.values():
        first: Dict[str, str] = {}
        for owner, call in steps:
            other = first.setdefault(held.get(owner, owner), owner)
            if other != owner:
                yield Hit(call, f"{owner} steps on the parameters of {other} in the same training step")
                break
