"""Estimated seconds for any span of layers as a stage."""

from __future__ import annotations

from typing import List

import numpy as np
import numpy.typing as npt

from ignite_ipu.pipeline.costs.machine import Machine
from ignite_ipu.pipeline.costs.partition import Matrix, span_sums
from ignite_ipu.pipeline.costs.schedule import StageTime
from ignite_ipu.pipeline.profiling.profile import Profile


class TimeModel:
    """Estimates the time of any span of layers for one micro-batch.

    The model, all of it an estimate: matrix arithmetic at the machine's peak rate times its efficiency; every other
    operator as the bytes it reads and writes at the memory bandwidth times its efficiency, twice that in the backward
    pass; a tensor that crosses a cut occupies both IPUs for as long as the IPU-Links take, as does its gradient on the
    way back; the host link occupies the first stage, and at inference the last.

    Args:
        profile: The measured model.
        machine: The machine's rates.
        recompute: Whether stages repeat their forward pass before the backward pass.
        ipus_per_replica: IPUs that one replica occupies.
        replicas: Replicas that share the host links.
    """

    def __init__(
        self, profile: Profile, machine: Machine, recompute: bool, ipus_per_replica: int = 1, replicas: int = 1
    ) -> None:
        layers = profile.layers
        forward = [machine.compute_seconds(x.forward_flops, x.traffic, x.half) for x in layers]
        backward = [machine.compute_seconds(x.backward_flops, 2 * x.traffic, x.half) for x in layers]
        ahead = self._ends([machine.link_seconds(b) for b in profile.cut_bytes])
        back = self._ends([machine.link_seconds(b) for b in profile.gradient_cut_bytes])
        self.host_input = machine.host_seconds(profile.input_bytes, ipus_per_replica, replicas)
        self.host_output = (
            0.0 if profile.training else machine.host_seconds(profile.output_bytes, ipus_per_replica, replicas)
        )
        compute = span_sums(forward)
        self.recompute = compute if recompute and profile.training else np.zeros_like(compute)
        self.forward = compute + ahead[:, None] + ahead[None, :]
        self.forward[0, :] += self.host_input
        self.forward[:, -1] += self.host_output
        self.backward = np.zeros_like(compute)
        if profile.training:
            self.backward = span_sums(backward) + back[:, None] + back[None, :]

    @staticmethod
    def _ends(cuts: List[float]) -> npt.NDArray[np.float64]:
        return np.asarray([0.0, *cuts, 0.0])

    @property
    def totals(self) -> Matrix:
        """Seconds for one micro-batch, all passes together, for every span."""
        return self.forward + self.backward + self.recompute

    def stage(self, begin: int, end: int) -> StageTime:
        """Return the same for one span, by pass."""
        span = (begin, end)
        return StageTime(float(self.forward[span]), float(self.backward[span]), float(self.recompute[span]))
