"""Worlds of several models with buffers, which become one program: for chosen sequences, and not for random ones."""

from __future__ import annotations

from typing import Any, Dict, List

import torch
import torch.nn.functional as F
from torch import nn

from tests.sequences.worlds import Adversaries, Criterion, TwoModels, World


class OneForTwo(World):
    """An encoder with statistics and a head, of one optimizer."""

    def make(self) -> List[nn.Module]:
        return [nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh()), nn.Linear(4, 2)]

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.modules[1](self.modules[0](x)), y)


class TwoWithStatistics(TwoModels):
    def make(self) -> List[nn.Module]:
        encoder = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh())
        return [encoder, nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 2))]


class SpectralAdversaries(Adversaries):
    """A critic that writes buffers which its next call reads."""

    def make(self) -> List[nn.Module]:
        generator, _ = super().make()
        return [generator, nn.Sequential(nn.utils.spectral_norm(nn.Linear(3, 4)), nn.Tanh(), nn.Linear(4, 1))]


class AdversariesWithStatistics(Adversaries):
    def make(self) -> List[nn.Module]:
        super().make()
        critic = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 1))
        return [nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)), critic]


class CriterionAfterStatistics(Criterion):
    def make(self) -> List[nn.Module]:
        _, criterion = super().make()
        return [nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 2)), criterion]


class AdversariesOnOneTrunk(Adversaries):
    """A generator and a critic with a trunk in common, whose statistics calls of both write."""

    def make(self) -> List[nn.Module]:
        super().make()
        trunk = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh())
        return [nn.Sequential(trunk, nn.Linear(4, 3)), nn.Sequential(trunk, nn.Linear(4, 1))]

    def groups(self) -> List[List[nn.Module]]:
        generator, critic = self.modules
        return [[generator], [critic[1]]]  # type: ignore[index]


class OneForTwoOnOneTrunk(AdversariesOnOneTrunk):
    def groups(self) -> List[List[nn.Module]]:
        generator, critic = self.modules
        return [[generator, critic[1]]]  # type: ignore[index]


JOINED: Dict[str, Any] = {
    each.__name__: each
    for each in (
        *(OneForTwo, TwoWithStatistics, SpectralAdversaries, AdversariesWithStatistics, CriterionAfterStatistics),
        *(AdversariesOnOneTrunk, OneForTwoOnOneTrunk),
    )
}
