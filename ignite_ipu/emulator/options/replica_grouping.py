"""Which replicas form a group."""

from __future__ import annotations

from typing import List

from ignite_ipu.emulator.enums import CommGroupType


def group_of_each_replica(replicas: int, group_size: int, kind: CommGroupType) -> List[int]:
    """Return the group of each replica, numbered from 0.

    Args:
        replicas: How many replicas there are.
        group_size: Replicas in one group, a factor of `replicas`; what `All` and `NoGrouping` imply is used instead.
        kind: How they are grouped.
    """
    if kind is CommGroupType.All:
        group_size = replicas
    elif kind is CommGroupType.NoGrouping:
        group_size = 1
    if kind is CommGroupType.Orthogonal:
        return [replica % (replicas // group_size) for replica in range(replicas)]
    return [replica // group_size for replica in range(replicas)]
