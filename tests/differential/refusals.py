"""Refusals of the device that are allowed, by program, and programs left out until they are mended."""

from __future__ import annotations

import dataclasses
import re
from typing import Callable, Tuple

from ignite_ipu.errors import RunError
from tests.differential import parts
from tests.differential.ingredients import INGREDIENTS
from tests.differential.program import Program

ENGINES = ("engine", "step", "ignite")
RMSPROP = ("rmsprop", "rmsprop with momentum", "centered")
When = Callable[[Program], bool]


@dataclasses.dataclass(frozen=True)
class Refusal:
    """A refusal that the documentation announces.

    Attributes:
        reason: The refused code.
        error: Name of the error's class, as a pattern.
        pattern: Words in its text.
        when: Whether a program has the refused code.
    """

    reason: str
    error: str
    pattern: str
    when: When

    def covers(self, program: Program, error: Exception) -> bool:
        """Return whether this is the error that a program was to be refused with."""
        text = re.sub(r"\s+", " ", str(error))
        of_script = isinstance(error, RunError) and error.__cause__ is not None
        named = re.fullmatch(self.error, type(error.__cause__ if of_script else error).__name__)
        return named is not None and re.search(self.pattern, text) is not None and self.when(program)


@dataclasses.dataclass(frozen=True)
class LeftOut:
    """A difference that is known, and which programs would show it."""

    reason: str
    when: When


def _edits(*names: str) -> When:
    return lambda program: any(edit.what in names for edit in program.edits)


REFUSALS: Tuple[Refusal, ...] = (
    Refusal(
        "an update that PopTorch lacks",
        "OptimizerError",
        "",
        lambda program: program.optimizer in parts.NO_DEVICE_UPDATE,
    ),
    Refusal(
        "a forward that no program can run, in engines or on the device alone",
        ".*Error",
        "",
        lambda program: (
            parts.MODELS[program.model].composed and (program.front in ENGINES or program.update == "device")
        ),
    ),
    Refusal(
        "a loss computed with weights that a later call has written, before it goes backward",
        "CaptureError|RunError",
        "with weights that have changed since|were written after that",
        lambda program: program.model == "bounded weight",
    ),
    Refusal(
        "replicas that write a buffer",
        "Error",
        "does not support broadcasting buffers",
        lambda program: program.model == "written buffer" and program.replicas > 1,
    ),
    Refusal(
        "clipping with RMSprop",
        "OptimizerError",
        "max_grad_norm does not apply to RMSprop",
        lambda program: bool(program.clip) and program.optimizer in RMSPROP,
    ),
    Refusal(
        "clipping that an optimizer's update on the device lacks, in a loop",
        "CaptureError|OptimizerError",
        "Clipping at .* cannot be compiled into the update of",
        lambda program: (
            (bool(program.clip) or any(INGREDIENTS[name].once == "clipped" for name in program.ingredients))
            and not program.on_host
            and not parts.clips(program.optimizer)
        ),
    ),
    Refusal(
        "clipping with SGD that has momentum",
        "OptimizerError",
        "clips the velocity",
        lambda program: bool(program.clip) and program.optimizer in parts.WITH_MOMENTUM,
    ),
    Refusal(
        "clipping that changes, of an update that a value was read of before",
        "CaptureError|RunError",
        "Read values after optimizer.step\\(\\) if clipping changes",
        lambda program: any(INGREDIENTS[name].once == "clipped" for name in program.ingredients),
    ),
    Refusal(
        "a step that computes the loss by a closure, on the device alone",
        "CaptureError|RunError",
        "evaluates the loss several times",
        lambda program: program.update == "device" and "closure" in program.ingredients,
    ),
    Refusal(
        "gradients that are differentiated again",
        "CaptureError|RunError",
        "asks for gradients that can be differentiated again",
        lambda program: "penalty on slopes" in program.ingredients,
    ),
    Refusal(
        "hooks around several updates of one call",
        "OptimizerError",
        "but each device call makes",
        lambda program: "step hook" in program.handlers and program.updates > 1,
    ),
    Refusal(
        "weights written between the losses of an update and the update",
        "CaptureError",
        "were written after that",
        lambda program: program.waits and bool(program.edits or program.ingredients),
    ),
    Refusal(
        "what hooks put into dictionaries, in programs of Ignite's engines",
        "CaptureError|SessionError",
        r"changes Python values in every call.*\((features|seen|kept)",
        lambda program: program.front in ENGINES,
    ),
    Refusal(
        "batch statistics of calls whose gradients are cleared before the update",
        "CaptureError",
        "but no loss of the update .* was computed from it",
        lambda program: (
            program.front == "accelerate"
            and program.accumulation > 1
            and "late zero" not in program.handlers
            and program.writes_buffers
        ),
    ),
    Refusal(
        "evaluations between the losses of an update and the update, which writes buffers",
        "CaptureError",
        "waits for optimizer.step",
        lambda program: program.waits and program.writes_buffers,
    ),
    Refusal(
        "Python values changed between the losses of an update",
        "CaptureError",
        "(in between|before the update of that call at .*) Python values that its code reads have changed",
        lambda program: program.period > 1 and _edits("attribute")(program),
    ),
    Refusal(
        "layers frozen between the losses of an update",
        "CaptureError",
        "in between parameters were frozen or unfrozen",
        lambda program: program.waits and (_edits("freeze", "unfreeze")(program) or program.trains_alone),
    ),
    Refusal(
        "a layer that takes the place of a frozen one and that the optimizer does not hold",
        "OptimizerError",
        "Trainable parameters are in no group of the optimizer",
        lambda program: program.trains_alone and not program.keeps_weights,
    ),
    Refusal(
        "momentum that rises from the zero that an optimizer was compiled with",
        "ConstantAttributeError",
        "momentum .* is a constant of the compiled program",
        lambda program: any(
            edit.what == "no momentum"
            and (program.story in ("new trainer", "from native") or edit.event.endswith("start"))
            for edit in program.edits
        ),
    ),
    Refusal(
        "a layer that is pruned again, which replaces its mask, or one wrapped before the update of pending losses",
        "(Session|Capture|Replaced)Error|RuntimeError",  # PyTorch's load_state_dict() raises one about any other
        "of the model was replaced, added or removed",
        lambda program: _edits("prune again")(program) or (program.waits and not program.keeps_weights),
    ),
    Refusal(
        "losses read before their update, of calls that read what those before write",
        "EarlyReadError",
        "its loss has not gone backward|micro-batch is not the last of",
        lambda program: program.accumulation > 1 and program.writes_buffers,
    ),
    Refusal(
        "an update that a read value made before the step of an optimizer that follows another",
        "CaptureError",
        "by another optimizer of the same weights",
        lambda program: "loss before step" in program.handlers and "late zero" in program.handlers,
    ),
    Refusal(
        "values of losses whose gradients were dropped",
        "EarlyReadError|CaptureError",
        "a value that will never exist: its gradients were dropped|that it was computed with have changed since",
        lambda program: (
            program.accumulation > 1 and ("late zero" not in program.handlers or "model cleared" in program.ingredients)
        ),
    ),
    Refusal(
        "a module that is added between the losses of an update, on the device alone",
        "CaptureError|RunError",
        "were cleared at another time than those of",
        lambda program: (
            program.update == "device" and program.accumulation > 1 and "module added later" in program.ingredients
        ),
    ),
    Refusal(
        "the norm of gradients that are not one optimizer's, on the device alone",
        "CaptureError|RunError",
        "that are several optimizers', or none's",
        lambda program: (
            program.update == "device" and "norm alone" in program.ingredients and not program.trains_model_alone
        ),
    ),
    Refusal(
        "gradients that are read after the step, on the device alone",
        "CaptureError|RunError",
        "would use the gradients of the one made at .* again",
        lambda program: program.update == "device" and "importance after steps" in program.ingredients,
    ),
    Refusal(
        "gradients that an update on the device has used, after one that the host cannot make again",
        "CaptureError|RunError",
        "Only the first updates of a loop can be made again on the host",
        lambda program: program.update == "auto" and {"saliency", "importance after steps"} <= set(program.ingredients),
    ),
    Refusal(
        "a layer that is pruned again between the losses of an update, by weights that its hook computes",
        "CaptureError",
        "writes values that do not exist yet into a tensor|Values that do not exist yet were written into its memory",
        _edits("prune again"),
    ),
    Refusal(
        "gradients of a loss from before another optimizer changed its weights, where updates move to the host",
        "CaptureError|RunError",
        "The gradient at .* uses values computed at .* were written after that",
        lambda program: "critic" in program.ingredients and program.update == "auto",
    ),
    Refusal(
        "a second backward pass through a call that writes buffers which other calls write, too",
        "CaptureError|RunError",
        "once more, which has written the buffer",
        lambda program: program.writes_buffers and (program.on_host or "two backwards" in program.ingredients),
    ),
    Refusal(
        "gradients for one of several optimizers that are read before its step, on the device alone",
        "CaptureError|RunError",
        "A gradient is read at .* for one of several optimizers, before its step",
        lambda program: (
            program.update == "device" and "gradients read" in program.ingredients and not program.trains_model_alone
        ),
    ),
    Refusal(
        "a list that hooks fill and that is not cleared between two calls",
        "CaptureError",
        "adds tensors to a list that still has those of the previous call",
        lambda program: "outputs kept" in program.ingredients,
    ),
    Refusal(
        "losses read before their update",
        "EarlyReadError",
        "asks for a value that comes with the weight update",
        lambda program: program.waits,
    ),
)


# Empty when nothing is known to be wrong. A hook's tensor is the one before the trace, by which pruning again ranks: in
# PyTorch it is that of the last forward.
LEFT_OUT: Tuple[LeftOut, ...] = (
    # PyTorch calls a checkpointed function once more, in backward(), and its hooks append once more.
    LeftOut(
        "lists that hooks in a checkpointed function fill",
        lambda program: program.model == "checkpointed" and "outputs kept" in program.ingredients,
    ),
    LeftOut(
        "tensors that hooks have set", lambda program: program.front == "engine" and _edits("prune again")(program)
    ),
    # A loss of nothing that requires gradients is an error in PyTorch. A device takes such a result for one that does.
    LeftOut(
        "losses without gradients, of results that a hook or layer has kept under no_grad",
        lambda program: (
            program.model == "without gradients"
            and program.loss == "detached"
            and bool({"balance", "features", "outputs kept"}.intersection(program.ingredients))
        ),
    ),
)
