"""One decision for all files that a training reaches: they are moved together, or left alone together.

A training step that stays on the host while its model or its data is moved, or the other way round, would be half a
migration. So the files hang together that a script reaches which trains, itself or by what it imports. Tests follow
what they test, and decide nothing for it.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Dict, List, Sequence, Set, Tuple

from ignite_ipu.migration.analysis.reach import CodeBase
from ignite_ipu.migration.migrator import Migration, left_alone

_TEST = re.compile(r"(test_.*|.*_test|conftest)\.py")


@dataclass(frozen=True)
class Group:
    """Files in which something was to change, and the place and reason for which they stay alone; "" if they move."""

    paths: Tuple[str, ...]
    because: str = ""


def decide_together(migrations: Sequence[Migration]) -> Tuple[List[Migration], List[Group]]:
    """Leave alone what hangs together with a file that is left alone; returns also the groups of two files or more."""
    by_path = {os.path.realpath(migration.source.path): migration for migration in migrations}
    reached = CodeBase(by_path).reached({path: migration.imports for path, migration in by_path.items()})
    groups: List[Group] = []
    for paths in _hanging_together(by_path, reached):
        group = [path for path in by_path if path in paths]
        culprit = next((by_path[path] for path in group if by_path[path].blocked), None)
        because = "" if culprit is None else culprit.reason
        for path in group:
            if because and not by_path[path].blocked:
                by_path[path] = _left_alone(by_path[path], because)
        if len(group) > 1:
            groups.append(Group(tuple(by_path[path].source.path for path in group), because))
    return list(by_path.values()), groups


def _hanging_together(migrations: Dict[str, Migration], reached: Dict[str, Set[str]]) -> List[Set[str]]:
    concerned = {path for path, migration in migrations.items() if migration.changed or migration.blocked}
    training = {path for path, migration in migrations.items() if migration.trains}
    groups: List[Set[str]] = []
    followers: List[Tuple[str, Set[str]]] = []
    for path in migrations:
        whole = {path} | reached[path]
        if not whole & training:
            continue
        if _TEST.fullmatch(os.path.basename(path)):
            followers.append((path, whole))
        elif whole & concerned:
            joined = [group for group in groups if group & whole]
            groups = [group for group in groups if not group & whole]
            groups.append((whole & concerned).union(*joined))
    for path, whole in followers:
        if path in concerned and not migrations[path].blocked:
            for group in groups:
                if group & whole:
                    group.add(path)
                    break
    return groups


def _left_alone(migration: Migration, because: str) -> Migration:
    after = set(migration.text.splitlines())
    changed = (line for line, text in enumerate(migration.source.text.splitlines(), start=1) if text not in after)
    return left_alone(migration.source, next(changed, 1), f"it hangs together with {because}")
