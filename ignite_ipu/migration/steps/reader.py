"""Training steps written out by hand: `loss.backward(); optimizer.step()` and what belongs to them.

A step is understood when its forward, loss, backward and update are plain statements of one suite that nothing comes
between, so that one call can take their place. Anything else is refused, with the statement and the reason.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, List, Optional, Set, Tuple

from ignite_ipu.migration.analysis.bindings import functions_called, names_bound, names_loaded, same_names
from ignite_ipu.migration.analysis.kinds import parameters_of
from ignite_ipu.migration.analysis.model_names import is_named_as_loss
from ignite_ipu.migration.analysis.names import argument, constant, dotted, method_calls, owner_of
from ignite_ipu.migration.steps.checks import (
    check_attributes,
    check_between,
    check_inputs,
    check_lines,
    check_optimizer,
    check_surroundings,
    clipping_obstacle,
)
from ignite_ipu.migration.steps.loss_values import check_target, check_values
from ignite_ipu.migration.steps.names import bound_in_loop, own_names, per_batch_names, rebound_names
from ignite_ipu.migration.steps.own_losses import is_bound_beside, read_from
from ignite_ipu.migration.steps.plan import Plan, Refused, Step
from ignite_ipu.migration.steps.provenance import carried_name, further_call

if TYPE_CHECKING:
    from ignite_ipu.migration.program import Program


def find_steps(program: Program) -> List[Step]:
    """Return the training steps of a file, understood or not, in the order of the text."""
    traced = {id(node) for model in program.models for node in ast.walk(model.node)}
    steps = []
    for call in program.nodes(ast.Call):
        if not _is_backward(call, program) or (id(call) in traced and not _in_training_method(call, program)):
            continue
        function = program.function_of(call)
        try:
            plan = _Reader(program, call).plan()
            steps.append(Step(call, function, plan, call, ""))
        except Refused as refused:
            steps.append(Step(call, function, None, refused.blame, refused.reason))
    return steps


def _is_backward(call: ast.Call, program: Program) -> bool:
    function = call.func
    if not isinstance(function, ast.Attribute) or function.attr != "backward":
        return False
    # accelerator.backward(loss), torch.autograd.backward(...): other things of that name.
    return (
        not call.args or not isinstance(function.value, ast.Name) or program.names.resolve(function.value) is not None
    )


def _in_training_method(call: ast.Call, program: Program) -> bool:
    function = program.function_of(call)
    return function is not None and function.name != "forward" and not function.name.startswith("_forward")


def _call_statement(statement: ast.stmt, method: str) -> Optional[Tuple[str, ast.Call]]:
    """Return (owner, call) of a statement `owner.method(...)`."""
    call = statement.value if isinstance(statement, ast.Expr) else None
    if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == method:
        owner = dotted(call.func.value)
        if owner is not None:
            return owner, call
    return None


class _Reader:
    """Reads the suite around one `backward()`."""

    def __init__(self, program: Program, backward: ast.Call) -> None:
        self.program = program
        self.backward = backward
        self.statement = program.statement_of(backward)
        self.suite = self._suite(self.statement)
        self.index = next(i for i, statement in enumerate(self.suite) if statement is self.statement)

    @property
    def _per_batch_names(self) -> Set[str]:
        return per_batch_names(self.program, self.statement)

    def _suite(self, statement: ast.stmt) -> List[ast.stmt]:
        parent = self.program.parents[statement]
        for name in ("body", "orelse", "finalbody"):
            suite = getattr(parent, name, None)
            if isinstance(suite, list) and any(item is statement for item in suite):
                return suite
        return [statement]

    def plan(self) -> Plan:
        """Read the whole step.

        Raises:
            Refused: It is not of the common shape.
        """
        check_surroundings(self.program, self.statement)
        update_at, optimizer = self._update()
        loss = self._loss_name()
        loss_at, loss_value = self._assignment(loss, self.index, "the loss")
        forward_at, call, output, inner = self._forward(loss_at, loss_value)
        own_loss = self._is_own(loss_value, call, output)
        outputs = names_bound(output) if output is not None else set()
        computed = ast.Tuple(elts=[loss_value, *(_value(self.suite[position]) for position in inner)], ctx=ast.Load())
        carried = carried_name(self.program, self.statement, call, computed, outputs)
        if carried is not None:
            raise Refused(call, f"{carried!r} is carried from one batch to the next")
        other = further_call(self.program, self.statement, call, computed, outputs)
        if other is not None:
            raise Refused(other, "the loss depends on a further call of a model")
        model = dotted(call.func) or ""
        zero_at = self._zero_grad(optimizer, model, update_at)
        clip_at, norm = self._clipping(model, optimizer, update_at)
        chosen = {forward_at, loss_at, self.index, update_at, zero_at, *([] if clip_at is None else [clip_at])}
        step = sorted({*chosen, *inner})
        between = [self.suite[position] for position in range(forward_at, update_at + 1) if position not in step]
        check_between(self.program, between, names_loaded(call) | names_loaded(computed), {model, optimizer})
        check_lines(self.program, self.suite, [self.suite[position] for position in step])
        check_inputs(self.program, call, output, model)
        check_optimizer(self.program, self.backward, optimizer, model)
        function, target = (None, None) if inner else self._split_loss(loss_value, call, output)
        bound = {name for position in inner for name in names_bound(self.suite[position])}
        changing = (self._per_batch_names | rebound_names(self.program, self.statement)) - functions_called(computed)
        per_batch = tuple(sorted((names_loaded(computed) & changing) - outputs - bound))
        if target is not None:
            check_target(self.program, self.statement, target)
        elif not own_loss and function is None:
            check_values(self.program, self.statement, computed, set(per_batch))
        function_before: Optional[ast.stmt] = None
        if function is None and not own_loss:
            if output is None:
                raise Refused(self.suite[loss_at], "the loss is not a function of the model's output and a target")
            function_before = self._place_of_function(loss_value, computed, outputs | bound | set(per_batch))
        return Plan(
            replaced=tuple(self.suite[position] for position in sorted(chosen)),
            model=model,
            optimizer=optimizer,
            loss=loss,
            output=output,
            inputs=tuple(call.args),
            keywords=tuple(call.keywords),
            loss_function=function,
            target=target,
            loss_expression=loss_value,
            per_batch=per_batch,
            max_grad_norm=norm,
            own_loss=own_loss,
            loss_statements=tuple(self.suite[position] for position in inner),
            function_before=function_before,
        )

    def _loss_name(self) -> str:
        function = self.backward.func
        assert isinstance(function, ast.Attribute)
        if not isinstance(function.value, ast.Name):
            if owner_of(function.value, "scale") is not None:
                raise Refused(self.backward, "the loss is scaled by a GradScaler")
            if isinstance(function.value, ast.BinOp):
                raise Refused(self.backward, "the loss is divided or combined before backward()")
            raise Refused(self.backward, "the loss is not a plain variable")
        if self.backward.args or self.backward.keywords:
            raise Refused(self.backward, "backward() has arguments")
        if not isinstance(self.statement, ast.Expr) or self.statement.value is not self.backward:
            raise Refused(self.backward, "backward() is part of a larger statement")
        return function.value.id

    def _assignment(self, name: str, before: int, what: str) -> Tuple[int, ast.expr]:
        for position in range(before - 1, -1, -1):
            statement = self.suite[position]
            if name not in names_bound(statement):
                continue
            if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
                target = statement.targets[0]
                if isinstance(target, ast.Name) and target.id == name:
                    return position, statement.value
                call = self._own_call(statement.value)
                if call is not None and self._is_model(call) and is_bound_beside(target, name):
                    return position, statement.value
            if isinstance(statement, ast.AugAssign):
                raise Refused(statement, f"{what} is built up in several statements")
            raise Refused(statement, f"{what} is not assigned by a plain statement")
        raise Refused(self.backward, f"{what} is not computed in the same block as backward()")

    def _own_call(self, node: ast.AST) -> Optional[ast.Call]:
        """Return `node` when it is a call of one of the program's own objects, such as a model."""
        if isinstance(node, ast.Call) and dotted(node.func) is not None:
            return node if self.program.names.resolve(node.func) is None else None
        return None

    def _forward(self, loss_at: int, loss_value: ast.expr) -> Tuple[int, ast.Call, Optional[ast.expr], List[int]]:
        """Find the call of the model: its position, the call, what it is bound to, and what is computed from that."""
        first = loss_value.args[0] if isinstance(loss_value, ast.Call) and loss_value.args else None
        for inside in (loss_value, read_from(loss_value), first):
            nested = self._own_call(inside) if inside is not None else None
            if nested is not None and self._is_model(nested):
                statement = self.suite[loss_at]
                assert isinstance(statement, ast.Assign)
                # `logits, loss = model(x, y)` binds the loss with the output; `loss = ...` binds no output.
                target = statement.targets[0]
                return loss_at, nested, target if isinstance(target, ast.Tuple) else None, []
        wanted = names_loaded(loss_value)
        inner: List[int] = []
        for position in range(loss_at - 1, -1, -1):
            statement = self.suite[position]
            stored = names_bound(statement) & wanted
            if not stored or not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
                continue
            call = self._own_call(statement.value)
            if call is not None and self._is_model(call):
                return position, call, statement.targets[0], inner
            target = statement.targets[0]
            if isinstance(target, ast.Name) and self._serves_only(target.id, [position, *inner, loss_at]):
                inner.insert(0, position)
                wanted |= names_loaded(statement.value)
        raise Refused(self.suite[loss_at], self._unseen_forward(loss_at, loss_value, wanted))

    def _unseen_forward(self, loss_at: int, loss_value: ast.expr, wanted: Set[str]) -> str:
        """Return why no call of the model is seen behind the loss."""
        assigned = [
            node for node in self.suite[:loss_at] if isinstance(node, ast.Assign) and names_bound(node) & wanted
        ]
        for value in (loss_value, *(statement.value for statement in assigned)):
            if any(isinstance(part, ast.Call) and self._is_model(part) for part in ast.walk(value)):
                return "the model is called within a larger expression; assign its output to a variable"
        for statement in reversed(assigned):
            call = self._own_call(statement.value)
            name = dotted(call.func) if call is not None else None
            if name is not None and self._may_be_a_model(name):
                return f"the file does not show {name!r} to be a model; call {name}.train() in front of the loop"
            shared = sorted(names_bound(statement) & wanted)[0]
            if not self._serves_only(shared, list(range(len(self.suite)))):
                return f"{shared!r}, which the loss is computed from, is bound or read elsewhere, too"
        return "the loss is not computed from one call of the model in the same block"

    def _may_be_a_model(self, name: str) -> bool:
        training = self.program.training
        known = {*training.losses, *training.own_losses, *self.program.functions}
        return "." not in name and name not in known and not is_named_as_loss(name)

    def _is_own(self, loss: ast.expr, call: ast.Call, output: Optional[ast.expr]) -> bool:
        """Whether the loss is a part of what the model returns, or all of it."""
        source = read_from(loss)
        if source is None:
            return loss is call
        return source is call or (isinstance(output, ast.Name) and dotted(source) == output.id)

    def _is_model(self, call: ast.Call) -> bool:
        return dotted(call.func) in self.program.training.models

    def _update(self) -> Tuple[int, str]:
        for position in range(self.index + 1, len(self.suite)):
            found = _call_statement(self.suite[position], "step")
            if found is None or found[0] in self.program.training.schedulers:
                continue
            owner, call = found
            if call.args and dotted(call.args[0]) in self.program.training.optimizers:
                raise Refused(call, f"{owner} makes the optimizer's step, as a GradScaler does")
            if call.args or call.keywords:
                raise Refused(call, "step() has a closure")
            return position, owner
        for statement in self.suite[self.index + 1 :]:
            for _ in method_calls(ast.walk(statement), "step"):
                if isinstance(statement, ast.If):
                    raise Refused(
                        statement, "the optimizer steps on some batches only: gradients are accumulated by hand"
                    )
                raise Refused(statement, "optimizer.step() is not a statement of its own")
        raise Refused(self.backward, "no optimizer.step() follows in the same block")

    def _zero_grad(self, optimizer: str, model: str, update_at: int) -> int:
        for position, statement in enumerate(self.suite):
            found = _call_statement(statement, "zero_grad")
            if found is None or found[0] not in (optimizer, model):
                continue
            if self.index < position < update_at:
                raise Refused(statement, "the gradients are cleared before the update")
            return position
        raise Refused(self.backward, f"the gradients are not cleared by {optimizer}.zero_grad() in the same block")

    def _clipping(self, model: str, optimizer: str, update_at: int) -> Tuple[Optional[int], Optional[ast.expr]]:
        for position in range(self.index + 1, update_at):
            statement = self.suite[position]
            call = statement.value if isinstance(statement, ast.Expr) else None
            if not isinstance(call, ast.Call) or self.program.names.called(call) != "torch.nn.utils.clip_grad_norm_":
                continue
            parameters, norm = argument(call, "parameters", 0), argument(call, "max_norm", 1)
            whole = isinstance(parameters, ast.Call) and dotted(parameters.func) == f"{model}.parameters"
            if not whole or norm is None or len(call.args) + len(call.keywords) != 2:
                raise Refused(statement, "the clipping is not clip_grad_norm_(model.parameters(), max_norm)")
            obstacle = clipping_obstacle(self.program, optimizer)
            if obstacle is not None:
                raise Refused(statement, obstacle)
            if constant(norm) is ... and not (names_loaded(norm) and not names_loaded(norm) & self._per_batch_names):
                raise Refused(statement, "the norm that gradients are clipped to changes from batch to batch")
            return position, norm
        return None, None

    def _split_loss(
        self, value: ast.expr, call: ast.Call, output: Optional[ast.expr]
    ) -> Tuple[Optional[ast.expr], Optional[ast.expr]]:
        """Return the loss function and the target when the loss is `function(output, target)`."""
        if not isinstance(value, ast.Call) or value.keywords or len(value.args) != 2 or dotted(value.func) is None:
            return None, None
        if value is call:
            return None, None
        first, second = value.args
        outputs = names_bound(output) if output is not None else set()
        plain = first is call or (output is not None and same_names(first, output))
        if not plain or isinstance(second, ast.Starred) or names_loaded(second) & outputs:
            return None, None
        if names_loaded(value.func) & self._per_batch_names:
            around = self.program.function_of(self.statement)
            if around is not None and dotted(value.func) in {arg.arg for arg in parameters_of(around)}:
                raise Refused(
                    value, f"the loss function is an argument of {around.name}, which is called for each batch"
                )
            raise Refused(value, "the loss function changes from batch to batch")
        return value.func, second

    def _serves_only(self, name: str, positions: List[int]) -> bool:
        """Whether a name is bound once and read by no other statements of its scope than these."""
        scope: ast.AST = self.program.function_of(self.statement) or self.program.tree
        own = {id(part) for position in positions for part in ast.walk(self.suite[position])}
        mentions = [part for part in ast.walk(scope) if isinstance(part, ast.Name) and part.id == name]
        stores = [part for part in mentions if isinstance(part.ctx, ast.Store)]
        return len(stores) == 1 and all(id(part) in own for part in mentions)

    def _place_of_function(self, loss: ast.expr, computed: ast.expr, given: Set[str]) -> ast.stmt:
        """Return the statement in front of which the loss can become a function that sees what it needs.

        It is one of the module where that is enough. A function inside another is made anew by each call;
        ipu_train_batch knows it again by its code and by what it sees.
        """
        if functions_called(computed) & bound_in_loop(self.program, self.statement):
            raise Refused(loss, "the loss function changes from batch to batch")
        needed = names_loaded(computed) - given
        below: ast.AST = self.statement
        for above in self.program.ancestors(self.statement):
            if isinstance(above, (ast.FunctionDef, ast.AsyncFunctionDef)) and needed & own_names(above):
                check_attributes(self.program, loss, computed)
                assert isinstance(below, ast.stmt)
                return below
            if not isinstance(above, ast.Module):
                below = above
        assert isinstance(below, ast.stmt)
        return below


def _value(statement: ast.stmt) -> ast.expr:
    assert isinstance(statement, ast.Assign)
    return statement.value
