"""Decides for the files of a code base together: each program is moved whole, or stays as it is.

A program is a script and the files that it imports. Either all of its files are rewritten or none: then the script
imports `ignite_ipu.auto`, which captures the program when it runs. So a file of several programs means the same in all
of them. A program that `run` refuses for sure is left alone. A class that may not be used, as in a registry, refuses
nothing until it is called. Tests follow the tested code, and decide nothing.
"""

from __future__ import annotations

import enum
import os
import re
from dataclasses import dataclass
from typing import Dict, List, Optional, Sequence, Set, Tuple

from ignite_ipu.migration.findings import Outcome
from ignite_ipu.migration.migrator import Migration, captured_by_import, captured_remark, left_alone
from ignite_ipu.migration.program import AUTO
from ignite_ipu.migration.verdict import Judgement, Programs, Verdict

_TEST = re.compile(r"(test_.*|.*_test|conftest)\.py")


@dataclass(frozen=True)
class Group:
    """Files in which something was to change, and the place and reason for which they stay alone; "" if they move."""

    paths: Tuple[str, ...]
    because: str = ""


class _Way(enum.Enum):
    """Treatment of a program."""

    REWRITTEN = "all of its files are rewritten"
    CAPTURED = "its script imports ignite_ipu.auto"
    ALONE = "it is left alone"


def decide_together(migrations: Sequence[Migration]) -> Tuple[List[Migration], List[Group]]:
    """Return the files as the programs that they belong to are moved, and the groups of two or more."""
    decided = _Decisions({os.path.realpath(migration.source.path): migration for migration in migrations})
    return list(decided.files().values()), decided.groups()


class _Decisions:
    def __init__(self, files: Dict[str, Migration]) -> None:
        self._files = files
        self._programs = Programs({path: each.judged or Judgement() for path, each in files.items()})
        self._concerned = {path for path, each in files.items() if each.changed or each.blocked}
        self._tests = {path for path in files if _TEST.fullmatch(os.path.basename(path))}
        self._ways: Dict[str, _Way] = {}
        self._reasons: Dict[str, str] = {}
        for path in self._started():
            if self._programs.trains(path):
                self._choose(path)
        self._share()

    def _started(self) -> List[str]:
        """Return the files that are programs: those that no other imports, or that train when they are started."""
        others = [path for path in self._files if path not in self._tests]
        imported = {part for path in others for part in self._programs.reached[path] if part != path}
        found = [path for path in others if path not in imported or self._is_script(path)]
        covered = {part for path in found for part in self._programs.parts(path)}
        return [*found, *(path for path in others if path not in covered)]

    def _is_script(self, path: str) -> bool:
        judged = self._files[path].judged
        return judged is not None and judged.trains and judged.uses.is_script

    def _choose(self, path: str) -> None:
        parts = [each for each in self._files if each in self._programs.parts(path)]
        blocked = [self._files[each] for each in parts if self._files[each].blocked]
        unclear = [self._files[each] for each in parts if self._files[each].by_import]
        called = sorted(self._programs.called(path), key=lambda finding: finding.place)
        if self._files[path].judged is None or (blocked and self._programs.verdict(path) is Verdict.REFUSED):
            self._ways[path], self._reasons[path] = _Way.ALONE, blocked[0].reason
        elif any(each.run is Outcome.REFUSED for each in called):
            refused = next(each for each in called if each.run is Outcome.REFUSED)
            self._ways[path], self._reasons[path] = _Way.ALONE, f"{refused.place}: {refused.message}"
        elif called:
            captures = f"{called[0].place}: {called[0].message}. {AUTO} captures it"
            self._ways[path], self._reasons[path] = _Way.CAPTURED, captures
        elif blocked or unclear:
            first = [*filter(_is_refused, blocked), *blocked, *unclear][0]
            captures = "A run refuses it where it is used" if _is_refused(first) else f"{AUTO} captures it"
            self._ways[path], self._reasons[path] = _Way.CAPTURED, f"{first.reason.split('. ')[0]}. {captures}"
        elif any(judged is not None and judged.automatic for judged in (self._files[each].judged for each in parts)):
            self._ways[path] = _Way.CAPTURED
        else:
            self._ways[path] = _Way.REWRITTEN

    def _share(self) -> None:
        """Capture programs that share files with those that are not rewritten, in the place of rewriting them."""
        waiting = True
        while waiting:
            waiting = False
            for path, way in self._ways.items():
                other = self._keeper(path) if way is _Way.REWRITTEN else None
                if other is not None:
                    self._ways[path], waiting = _Way.CAPTURED, True
                    shared = f"it shares files with {self._files[other].source.path}, which are not rewritten"
                    self._reasons[path] = f"{shared}. {AUTO} captures it"

    def _keeper(self, path: str) -> Optional[str]:
        """Return a program for which a file of another that was to change stays as it is."""
        own = self._programs.parts(path) & self._concerned
        return next((other for other in self._ways if own & self._kept_by(other)), None)

    def _kept_by(self, path: str) -> Set[str]:
        """Return the files that stay as they are for a program."""
        way = self._ways[path]
        if way is _Way.ALONE:
            return self._programs.parts(path)
        return self._programs.parts(path) - {path} if way is _Way.CAPTURED else set()

    def files(self) -> Dict[str, Migration]:
        """Return the files as they are to be written."""
        found = dict(self._files)
        with_way = {way: [path for path, each in self._ways.items() if each is way] for way in _Way}
        for program in with_way[_Way.CAPTURED]:
            for path in self._kept_by(program):
                found[path] = _unchanged(found[path])
        for program in with_way[_Way.ALONE]:
            for path in self._programs.parts(program) & self._concerned:
                found[path] = _left_alone(self._files[path], self._reasons[program])
        for program in with_way[_Way.CAPTURED]:
            found[program] = captured_by_import(self._files[program], self._reasons.get(program, ""))
        for path in self._tests & self._concerned:
            self._follow(found, path)
        return found

    def _follow(self, found: Dict[str, Migration], path: str) -> None:
        """Treat a test as the program that it tests is treated."""
        tested = [program for program in self._ways if self._programs.reached[path] & self._programs.parts(program)]
        alone = next((program for program in tested if self._ways[program] is _Way.ALONE), None)
        if found[path].blocked or not self._programs.reached[path]:
            return
        if alone is not None:
            found[path] = _left_alone(self._files[path], self._reasons[alone])
        elif any(self._ways[program] is _Way.CAPTURED for program in tested):
            found[path] = captured_by_import(self._files[path], f"it tests a program that {AUTO} captures")

    def groups(self) -> List[Group]:
        """Return the groups of files that move, or stay, together."""
        moved: List[Set[str]] = []
        for program, way in self._ways.items():
            parts = self._programs.parts(program) & self._concerned
            if way is _Way.REWRITTEN and parts:
                joined = [group for group in moved if group & parts]
                moved = [*(group for group in moved if not group & parts), parts.union(*joined)]
        for path in self._tests & self._concerned:
            for group in moved:
                if group & self._programs.reached[path] and not self._files[path].blocked:
                    group.add(path)
        alone = [program for program, way in self._ways.items() if way is _Way.ALONE]
        stay = [Group(self._named(self._programs.parts(each) & self._concerned), self._reasons[each]) for each in alone]
        found = [*(Group(self._named(group)) for group in moved), *stay]
        return [group for group in found if len(group.paths) > 1]

    def _named(self, paths: Set[str]) -> Tuple[str, ...]:
        return tuple(each.source.path for path, each in self._files.items() if path in paths)


def _is_refused(migration: Migration) -> bool:
    """Return whether a file is left alone because of code that a run refuses, or of text that is not Python."""
    outcomes = {Outcome.REFUSED} if migration.judged is None else {each for _, each in migration.judged.outcomes}
    return migration.blocked and Outcome.REFUSED in outcomes


def _unchanged(migration: Migration) -> Migration:
    """Return a file as it is in a program that is captured; one that a run refuses is left alone, with its reasons."""
    if _is_refused(migration):
        return migration
    remarks = migration.remarks if migration.by_import else []
    if migration.blocked:
        remarks = [captured_remark(each) for each in migration.remarks]
    return Migration(migration.source, migration.source.text, remarks=remarks, judged=migration.judged)


def _left_alone(migration: Migration, because: str) -> Migration:
    if migration.blocked:
        return migration
    after = set(migration.text.splitlines())
    changed = (line for line, text in enumerate(migration.source.text.splitlines(), start=1) if text not in after)
    return left_alone(migration.source, next(changed, 1), f"it hangs together with {because}")
