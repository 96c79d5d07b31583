"""Parameters that have a value of their own for each group of replicas."""

from __future__ import annotations

from typing import Any, Callable, Dict, Tuple

import torch
from torch import nn

from ignite_ipu.emulator.enums import CommGroupType, VariableRetrievalMode
from ignite_ipu.emulator.errors import backend_error, python_error

Setting = Tuple[CommGroupType, int, VariableRetrievalMode]


class ReplicaGroups:
    """Sharing of one parameter by the replicas; `shards` is the size of a group, for `Consecutive` and `Orthogonal`."""

    def __init__(
        self, name: str, kind: CommGroupType, shards: int, retrieval: VariableRetrievalMode, replicas: int
    ) -> None:
        self.name, self.kind, self.shards, self.retrieval, self.replicas = name, kind, shards, retrieval, replicas
        if kind is CommGroupType.All:
            self.count = 1
        elif kind is CommGroupType.NoGrouping:
            self.count = replicas
        else:
            if shards <= 0 or replicas % shards:
                raise backend_error(
                    f"replicaGrouping of {name}: groups of {shards} replicas cannot be formed from "
                    f"{replicas} (Options.replicationFactor). The size must be a factor of it."
                )
            self.count = replicas // shards

    def group_of(self, replica: int) -> int:
        """Return the group whose value `replica` uses."""
        return replica // self.shards if self.kind is CommGroupType.Consecutive else replica % self.count

    def from_host(self, value: torch.Tensor) -> torch.Tensor:
        """Return the groups' values, stacked, from the host's parameter.

        The host has one slice a group; after a download of all replicas it has one a replica.
        """
        if value.shape[0] == self.count:
            return value
        if self.retrieval is VariableRetrievalMode.AllReplicas and value.shape[0] == self.replicas:
            members = [self.group_of(replica) for replica in range(self.replicas)]
            return value[[members.index(group) for group in range(self.count)]]
        raise backend_error(
            f"Parameter {self.name} of shape {tuple(value.shape)} must have a leading dimension of {self.count}, one "
            f"value for each group of replicas ({self.kind.name}, {self.replicas} replicas)."
        )

    def to_host(self, value: torch.Tensor) -> torch.Tensor:
        """Return the downloaded value, from the groups' values."""
        if self.retrieval is VariableRetrievalMode.OnePerGroup:
            return value
        return value[[self.group_of(replica) for replica in range(self.replicas)]]


class TopLevelParameter:
    """A parameter of the wrapped model, with the setting that is made through the executor, in its `settings`.

    It forwards attributes to the parameter, but is no tensor.
    """

    def __init__(
        self, parameter: nn.Parameter, name: str, settings: Dict[str, Setting], is_compiled: Callable[[], bool]
    ) -> None:
        self.__dict__.update(_parameter=parameter, _name=name, _settings=settings, _is_compiled=is_compiled)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._parameter, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._parameter, name, value)

    def replicaGrouping(
        self, comm_group_type: CommGroupType, shards: int, variable_retrieval_mode: VariableRetrievalMode
    ) -> None:
        """Give each group of replicas its own value: the parameter's leading dimension counts the groups.

        Raises:
            Error: The parameter has no dimension to count with, or the model is compiled.
        """
        if self._parameter.dim() == 0:
            raise python_error(
                f"Scalars cannot be passed as per-replica weight tensor values: {self._name} has no dimensions. "
                "Give it a leading dimension with one value per group."
            )
        if self._is_compiled():
            raise python_error(f"replicaGrouping of {self._name} must be called before the model is compiled.")
        self._settings[self._name] = (comm_group_type, shards, variable_retrieval_mode)
