"""p.grad, gradient hooks, retain_graph and torch.autograd.grad outside forward.

Gradients stay on the device. `run` and captured loops bring back those that a loop reads, with each update. In a
program of PopTorch's own .grad stays None, hooks never run, and writes into gradients are lost. `run` makes the updates
of loops that write into gradients on the host.

Remedy: For clipping use max_grad_norm; to watch gradients anchor them (options.anchorTensor); to write into them set
IPUConfig(update='host'). Penalties on gradients cannot run on an IPU.

In the loop:
    - norm = model.weight.grad.norm()
      optimizer.step()
"""

from __future__ import annotations

import ast
from typing import Optional

from ignite_ipu.capabilities import GRADIENTS, Capability
from ignite_ipu.capabilities.gradients import DIFFERENTIATED_AGAIN, MADE_TRAINABLE, OF_COMPUTED
from ignite_ipu.migration.analysis.names import argument
from ignite_ipu.migration.analysis.settings import settings_of
from ignite_ipu.migration.findings import Hit, Hits, Outcome, Program, Severity, hit_of

SEVERITY, RUN = Severity.ERROR, Outcome.HANDLED

# Methods that register hooks, of tensors and modules.
_HOOKS = {entry.last: entry for entry in GRADIENTS if entry.last.startswith("register_")}
# Flags of a loss that goes backward, and their positions.
_AGAIN = (("retain_graph", 1), ("create_graph", 2))


def check(program: Program) -> Hits:
    for node in program.nodes(ast.Attribute):
        parent = program.parents.get(node)
        used = program.names.resolve(node) is None and not (isinstance(parent, ast.Call) and parent.func is node)
        if node.attr == "grad" and used and node not in program.compiled:
            entry = _entry(program, node)
            outcome = None if entry is not None else Outcome.HANDLED
            yield Hit(node, "a gradient is used on the host, where it is always None", run=outcome, entry=entry)
    for call, name in program.calls("torch.autograd.grad", "torch.autograd.backward"):
        if call not in program.compiled:
            if name.endswith("grad") and _goes_on(program, call):
                yield _differentiated_again(call, name, GRADIENTS[f"{name}(create_graph)"])
            else:
                yield Hit(call, f"{name} differentiates on the host", entry=GRADIENTS[name])
    for fact in program.facts_of("differentiated"):
        if not (isinstance(fact.node, ast.Call) and _goes_on(program, fact.node)):
            restriction = MADE_TRAINABLE if fact.name == "requires_grad_" else OF_COMPUTED
            yield hit_of(fact, restriction.reason(fact.name), restriction.remedy, Outcome.REFUSED)
    for call, _ in program.method_calls(*_HOOKS):
        assert isinstance(call.func, ast.Attribute)
        message = f"{call.func.attr} registers a hook that never runs on an IPU"
        yield Hit(call, message, entry=_HOOKS[call.func.attr])
    for call, _ in program.method_calls("backward"):
        # A variable may hold False or None, as it does where libraries hand their argument on.
        first = program.names.resolve(call.func) == "torch.autograd.backward"  # which has the losses before
        again = [flag for flag, position in _AGAIN if _is_on(program, argument(call, flag, position + first))]
        if again[-1:] == ["create_graph"]:
            yield _differentiated_again(call, "backward", GRADIENTS["torch.Tensor.backward(create_graph)"])
        elif again:
            message = "the graph of this backward is used again, which a compiled step cannot do"
            yield Hit(call, message, entry=GRADIENTS["torch.Tensor.backward(retain_graph)"])


def _differentiated_again(call: ast.Call, name: str, entry: Capability) -> Hit:
    message = DIFFERENTIATED_AGAIN.reason(f"{name}(create_graph=True)")
    return Hit(call, message, DIFFERENTIATED_AGAIN.remedy, entry=entry)


def _goes_on(program: Program, call: ast.Call) -> bool:
    """Return whether the gradients of a call of `torch.autograd.grad` can be differentiated again."""
    return _is_on(program, argument(call, "create_graph", 4))


def _is_on(program: Program, flag: Optional[ast.expr]) -> bool:
    """Return whether settings turn the flag of a call on."""
    return flag is not None and settings_of(program).decision(flag) is True


def _entry(program: Program, node: ast.Attribute) -> Optional[Capability]:
    """Return the entry for a use of a gradient, None for one that a fused step supports."""
    cleared = isinstance(node.ctx, ast.Store) and _comes_before_step(program, node)  # so that the step passes it over
    if cleared or _is_written(program, node):
        return GRADIENTS["torch.Tensor.grad(written)"]
    above = program.parents[node]
    exists = isinstance(above, ast.Compare) and all(isinstance(each, (ast.Is, ast.IsNot)) for each in above.ops)
    if isinstance(node.ctx, ast.Store) or exists or not _comes_before_step(program, node):
        return None
    return GRADIENTS["torch.Tensor.grad"]


def _comes_before_step(program: Program, node: ast.Attribute) -> bool:
    """Return whether the last call in front of a node, in its function, of backward() and step() is one of backward."""
    function = program.function_of(node)
    calls = [call for call, _ in program.method_calls("backward", "step") if program.function_of(call) is function]
    before = [call.func for call in calls if call.lineno <= node.lineno]
    return bool(before) and getattr(before[-1], "attr", "") == "backward"


def _is_written(program: Program, node: ast.Attribute) -> bool:
    """Return whether a gradient is put in the place of another, or changed in place; None only clears it."""
    above = program.parents[node]
    if isinstance(node.ctx, ast.Store):
        return not (isinstance(above, ast.Assign) and isinstance(above.value, ast.Constant))
    while isinstance(above, ast.Attribute):
        node, above = above, program.parents[above]
    changed = isinstance(above, ast.Subscript) and isinstance(above.ctx, ast.Store)
    return changed or (isinstance(above, ast.Call) and above.func is node and node.attr.endswith("_"))
