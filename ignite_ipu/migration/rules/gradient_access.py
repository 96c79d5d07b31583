"""p.grad, gradient hooks, retain_graph and torch.autograd.grad outside forward.

Gradients are the device's: what `run` and captured loops look at is brought back with each update, but in a program of
PopTorch's own .grad stays None, hooks never run, and nothing written into gradients counts. `run` makes the updates of
loops that write into gradients on the host.

Remedy: For clipping use max_grad_norm; to watch gradients anchor them (options.anchorTensor); to write into them set
IPUConfig(update='host'). Penalties on gradients cannot run on an IPU.

In the loop:
    - norm = model.weight.grad.norm()
      optimizer.step()
"""

from __future__ import annotations

import ast

from ignite_ipu.migration.analysis.names import constant
from ignite_ipu.migration.analysis.tensor_methods import words
from ignite_ipu.migration.findings import Hit, Hits, Outcome, Program, Severity

SEVERITY, RUN = Severity.ERROR, Outcome.HANDLED

_HOOKS = words(
    "register_hook register_full_backward_hook register_backward_hook register_post_accumulate_grad_hook "
    "register_full_backward_pre_hook"
)


def check(program: Program) -> Hits:
    for node in program.nodes(ast.Attribute):
        parent = program.parents.get(node)
        used = program.names.resolve(node) is None and not (isinstance(parent, ast.Call) and parent.func is node)
        if node.attr == "grad" and used and node not in program.traced:
            outcome = Outcome.ON_HOST if _is_written(program, node) else Outcome.HANDLED
            yield Hit(node, "a gradient is used on the host, where it is always None", run=outcome)
    for call, name in program.calls("torch.autograd.grad", "torch.autograd.backward"):
        if call not in program.traced:
            yield Hit(call, f"{name} differentiates on the host", run=Outcome.REFUSED)
    for call, _ in program.method_calls(*_HOOKS):
        assert isinstance(call.func, ast.Attribute)
        yield Hit(call, f"{call.func.attr} registers a hook that never runs on an IPU", run=Outcome.REFUSED)
    for call, _ in program.method_calls("backward"):
        # A variable may hold False or None, as it does where libraries hand their argument on.
        given = {each.arg: each.value for each in call.keywords}
        again = {name for name in ("retain_graph", "create_graph") if constant(given.get(name)) is True}
        if again:
            outcome = Outcome.REFUSED if "create_graph" in again else Outcome.HANDLED
            message = "the graph of this backward is used again, which a compiled step cannot do"
            yield Hit(call, message, run=outcome)


def _is_written(program: Program, node: ast.Attribute) -> bool:
    """Tell whether a gradient is put in the place of another, or changed in place; None only clears it."""
    above = program.parents[node]
    if isinstance(node.ctx, ast.Store):
        return not (isinstance(above, ast.Assign) and isinstance(above.value, ast.Constant))
    while isinstance(above, ast.Attribute):
        node, above = above, program.parents[above]
    changed = isinstance(above, ast.Subscript) and isinstance(above.ctx, ast.Store)
    return changed or (isinstance(above, ast.Call) and above.func is node and node.attr.endswith("_"))
