"""`Anchors`: the tensors of a program that its options anchor, which each call returns beside forward's results."""

from __future__ import annotations

from typing import Dict, List, Mapping, Optional, Sequence

import torch

from ignite_ipu.emulator.errors import backend_error
from ignite_ipu.emulator.options import Options
from ignite_ipu.emulator.runtime import loss_scaling
from ignite_ipu.emulator.runtime.executable import Executable
from ignite_ipu.emulator.runtime.training_step import GradientStep

_GRADIENT, _UPDATED = _OF_UPDATES = ("Gradient___", "UpdatedVar___")
_LOSS_SCALING = "finalLossScale"


class Anchors:
    """The anchored tensors of one program.

    Attributes:
        of_graph: Names of those that the graph computes for every micro-batch.
        gradients: Names of the parameters whose gradients are anchored.
    """

    def __init__(self, options: Options, training: bool) -> None:
        # By the name that callers read them by.
        self._names = {short: long_name for short, (long_name, *_) in dict(options("anchored_tensors")).items()}
        self._has_loss_scaling = training and loss_scaling.enabled(options)
        self.of_graph = [name for name in self._names.values() if not self._comes_from_update(name)]
        gradients = {short: name for short, name in self._names.items() if name.startswith(_GRADIENT)}
        self.gradients = [name[len(_GRADIENT) :] for name in gradients.values()]
        self._gradients = list(gradients)
        self._others = {short: name for short, name in self._names.items() if short not in gradients}

    def check(self, updated: Sequence[str]) -> None:
        """Refuse gradients and updated weights of other parameters than those that updates change."""
        known = update_tensors(updated)
        for name in self._names.values():
            if name.startswith(_OF_UPDATES) and name not in known:
                raise backend_error(
                    f"Unknown tensor to anchor: {name!r}. Gradients and updated weights exist in training, for the "
                    f"parameters that are trained and that the loss depends on: {list(updated)}."
                )

    def values(
        self,
        outputs: Sequence[torch.Tensor],
        extras: Mapping[str, int],
        executable: Optional[Executable],
        step: Optional[GradientStep],
    ) -> Dict[str, torch.Tensor]:
        """Return the anchored tensors of a call.

        Args:
            outputs: The call's outputs, gradients last.
            extras: The places of the graph's anchored tensors among them.
            executable: The program on its device.
            step: Its training step.
        """
        found = dict(zip(self._gradients, outputs[len(outputs) - len(self._gradients) :]))
        for short, name in self._others.items():
            if not self._comes_from_update(name):
                found[short] = outputs[extras[name]].clone()
            elif name.startswith(_UPDATED):
                assert executable is not None
                found[short] = executable.host_weight(name[len(_UPDATED) :]).clone()
            elif step is not None:
                found[short] = torch.tensor(step.loss_scaling, dtype=torch.float32)
        return found

    def _comes_from_update(self, name: str) -> bool:
        """Return whether a tensor to anchor is none of the graph's that runs on every micro-batch."""
        return (name == _LOSS_SCALING and self._has_loss_scaling) or name.startswith(_OF_UPDATES)


def update_tensors(updated: Sequence[str]) -> List[str]:
    """Return the names of an update's tensors besides the graph: gradients, and parameters after it."""
    return [f"{kind}{name}" for name in updated for kind in _OF_UPDATES]
