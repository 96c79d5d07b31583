"""Verdicts about the programs of a campaign, in one process or in several."""

from __future__ import annotations

import dataclasses
import gc
import json
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Dict, Iterator, List, Tuple

import torch

from tests.differential.comparing import Verdict, judge
from tests.differential.program import Program, draw
from tests.differential.rendering import render
from tests.differential.shrinking import shortest

_TOGETHER = 20


def shrunk(program: Program, verdict: Verdict) -> Tuple[Program, Verdict]:
    """Return the shortest program with a verdict of the same kind, and its verdict."""
    found = shortest(program, lambda simpler: judge(simpler).like(verdict))
    return found, judge(found)


def explained(seed: int, number: int, shrinks: bool = True) -> Tuple[Verdict, str]:
    """Return the verdict about a program of a campaign and, if it fails, the script of the shortest that does."""
    torch.set_num_threads(1)
    program = draw(seed, number)
    verdict = judge(program)
    if not verdict.fails or not shrinks:
        return verdict, ""
    least, last = shrunk(program, verdict)
    if not last.fails:
        return verdict, f"{program}\n\n(it fails only once)"
    return verdict, f"{least}\n{last.text}\n\n{render(least)}"


def _several(seed: int, numbers: List[int], shrinks: bool) -> List[Tuple[int, Verdict, str]]:
    gc.collect()
    gc.freeze()  # the present objects belong to no program: the collections after each look at little
    return [(number, *explained(seed, number, shrinks)) for number in numbers]


def judged(seed: int, numbers: List[int], shrinks: bool, workers: int) -> Iterator[Tuple[int, Verdict, str]]:
    if workers == 1:
        for number in numbers:
            yield from _several(seed, [number], shrinks)
        return
    chunks = [numbers[start : start + _TOGETHER] for start in range(0, len(numbers), _TOGETHER)]
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        for done in pool.map(_several, [seed] * len(chunks), chunks, [shrinks] * len(chunks)):
            yield from done


class Verdicts:
    """The file of a campaign's verdicts: one JSON object per program and line, written as soon as it is judged.

    A campaign that was interrupted goes on with the programs that are not in its file.

    Args:
        path: The file; it need not exist.
        seed: Of the campaign. A file may hold several.
    """

    def __init__(self, path: Path, seed: int) -> None:
        self._path = path
        self._seed = seed
        self.known: Dict[int, Verdict] = {}
        for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
            entry = json.loads(line)
            if entry.pop("seed") == seed:
                number, _ = entry.pop("number"), entry.pop("script")
                self.known[number] = Verdict(**entry)

    def add(self, number: int, verdict: Verdict, script: str) -> None:
        """Append the verdict about a program, with the script of the shortest one that fails alike."""
        entry = {"seed": self._seed, "number": number, **dataclasses.asdict(verdict), "script": script}
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")
        self.known[number] = verdict
