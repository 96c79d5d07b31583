"""`Ingredient`: lines of source text for places of a script, beside its plain training.

Ingredients go together in any number; a script has the lines of each in the places that it has them for.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Tuple


@dataclasses.dataclass(frozen=True)
class Ingredient:
    """Something that a program does beside its plain training.

    In scope are `model`, `layer` (its first linear layer), `parameters`, `x` and, in a loop, `optimizer`, `epoch`,
    `done` (updates so far), `inputs`, `targets`, `scores` and `loss`. `CLIP` stands for the call that clips gradients,
    and `AUTOCAST` for the one that chooses a precision.

    Attributes:
        classes: Definitions before the job.
        model: Changes of the model before its optimizer is made.
        optimizer: Changes of the optimizer before its schedule is made.
        setup: Code before the loop.
        epoch: How an epoch starts.
        context: The context manager in which the loss is computed.
        scores: Code after the model's call.
        loss: Code after the loss function.
        cleanup: Code after the losses of all ingredients.
        complete: Code between backward and that of `gradients`, once an update has all its gradients.
        gradients: Code between backward and the update, also the clipping of `Program.clip`.
        update: Code after the update. step: Code after gradients are cleared.
        end: How an epoch ends.
        closure: Whether the optimizer's step computes the loss.
        wording: Patterns in the lines of the loop, and the words in place of each.
        collate: The function that makes batches, if it is not PyTorch's.
        prepared: Names of models and optimizers beside `model` and `optimizer`.
        once: The group of an ingredient; a program has one of each at most.
        needs: Properties that a program must have, as names of `Program`.
        writes_buffers: Whether a call of the model in training mode writes into buffers.
        copied: Whether a copy of such a model is another model. PyTorch copies none that holds results of a call, and
            hooks of a copy write where the model's do.
        replaces: Whether it puts other weights into the model while it trains.
    """

    classes: str = ""
    model: str = ""
    optimizer: str = ""
    setup: str = ""
    epoch: str = ""
    context: str = ""
    scores: str = ""
    loss: str = ""
    cleanup: str = ""
    complete: str = ""
    gradients: str = ""
    update: str = ""
    step: str = ""
    end: str = ""
    closure: bool = False
    wording: Tuple[Tuple[str, str], ...] = ()
    collate: str = ""
    prepared: Tuple[str, ...] = ()
    once: str = ""
    needs: Tuple[str, ...] = ()
    writes_buffers: bool = False
    copied: bool = True
    replaces: bool = False

    @property
    def places(self) -> Tuple[str, ...]:
        """Where it can be, as in `Program.place`: engines have a model and a loss, and only loops have everything."""
        loops = self.optimizer, self.epoch, self.update, self.step, self.end, self.collate, self.closure
        used = " ".join((self.scores, self.loss, self.complete, self.gradients))
        if any(loops) or re.search(r"\b(done|epoch)\b", used):
            return ("accelerate", "run")
        if self.setup or self.complete or self.gradients or self.wording or "note(" in used:
            return ("ignite step", "accelerate", "run")
        if self.scores or self.context or "inputs" in self.loss or ".backward(" in self.loss:
            return ("step", "ignite step", "accelerate", "run")
        return ("engine", "step", "ignite", "ignite step", "accelerate", "run")

    @property
    def needs_weights(self) -> bool:
        """Whether weights have to be there before the first call of the model."""
        return bool(re.search(r"\blayer\b|model\)|parameters|prepared", self.model + self.setup))
