"""A training loop that tells the errors that pass from those that last, and from its own mistakes."""

from __future__ import annotations

import poptorch
import torch


def run(step):
    """Return the outcome of one step, as an operator of the machine would note it."""
    try:
        return step()
    except poptorch.RecoverableError as e:
        assert e.recovery_action in ("IPU_RESET", "LINK_RESET", "PARTITION_RESET", "FULL_RESET")
        return f"recover by {e.recovery_action}"
    except poptorch.UnrecoverableError as e:
        return f"machine needs repair: {e.type}"
    except poptorch.Error as e:
        assert e.message and e.type and isinstance(e.location, str)
        return f"poptorch error: {e.message}"
    except Exception as e:
        return f"mistake: {type(e).__name__}"


assert issubclass(poptorch.RecoverableError, poptorch.Error)
assert issubclass(poptorch.UnrecoverableError, poptorch.Error)


class Branches(torch.nn.Module):
    """Decides by a value that is unknown while the model is traced."""

    def forward(self, x):
        return x * 2 if x.sum() > 0 else x


class NoLoss(torch.nn.Linear):
    """Returns a tensor that is no loss."""

    def forward(self, x):
        return super().forward(x).mean()


good = poptorch.inferenceModel(torch.nn.Identity())
assert run(lambda: good(torch.ones(2))).tolist() == [1, 1]
assert run(lambda: poptorch.inferenceModel(Branches())(torch.ones(2))).startswith("poptorch error")
assert "Couldn't find a loss" in run(lambda: poptorch.trainingModel(NoLoss(2, 1))(torch.ones(1, 2)))
assert "Shape mismatch" in run(lambda: good(torch.ones(3)))
assert "has not been compiled" in run(lambda: poptorch.inferenceModel(torch.nn.Identity()).copyWeightsToHost())
assert run(lambda: poptorch.Options().deviceIterations("2")) == "mistake: AssertionError"
assert run(lambda: poptorch.Options().deviceIteration(2)) == "mistake: AttributeError"
five = poptorch.inferenceModel(torch.nn.Identity(), poptorch.Options().deviceIterations(2))
assert run(lambda: five(torch.ones(5))) == "mistake: AssertionError"

# One that the layers below report; here nothing breaks, so they are raised by hand.
for raised, noted in [
    (poptorch.RecoverableError("link"), "recover by PARTITION_RESET"),
    (poptorch.UnrecoverableError("memory"), "machine needs repair: poplar_unrecoverable_runtime_error"),
]:
    raised.recovery_action, raised.type = "PARTITION_RESET", "poplar_unrecoverable_runtime_error"

    def fail(error=raised):
        raise error

    assert run(fail) == noted
