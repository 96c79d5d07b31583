"""Run programs of a campaign: `python -m tests.differential --count 3000 --seed 1`.

A program is drawn from the seed and its number alone. `--only N` runs that one; `--show` prints its script.
"""

from __future__ import annotations

import argparse
import collections
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Counter, Iterator, List, Tuple

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
    return [(number, *explained(seed, number, shrinks)) for number in numbers]


def _judged(seed: int, numbers: List[int], shrinks: bool, workers: int) -> Iterator[Tuple[int, Verdict, str]]:
    if workers == 1:
        for number in numbers:
            yield (number, *explained(seed, number, shrinks))
        return
    chunks = [numbers[start : start + _TOGETHER] for start in range(0, len(numbers), _TOGETHER)]
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        for done in pool.map(_several, [seed] * len(chunks), chunks, [shrinks] * len(chunks)):
            yield from done


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.differential", description=__doc__)
    parser.add_argument("--count", type=int, default=100, help="programs")
    parser.add_argument("--seed", type=int, default=0, help="of the campaign")
    parser.add_argument("--first", type=int, default=0, help="number of the first program")
    parser.add_argument("--workers", type=int, default=1, help="processes")
    parser.add_argument("--only", type=int, help="run this program alone")
    parser.add_argument("--whole", action="store_true", help="do not look for the shortest program that fails")
    parser.add_argument("--show", action="store_true", help="print the script of --only, and run nothing")
    arguments = parser.parse_args()
    if arguments.show:
        print(render(draw(arguments.seed, arguments.only or 0)))
        return 0
    numbers = list(range(arguments.first, arguments.first + arguments.count))
    if arguments.only is not None:
        numbers = [arguments.only]
    started = time.monotonic()
    kinds: Counter[str] = collections.Counter()
    reasons: Counter[str] = collections.Counter()
    for number, verdict, script in _judged(arguments.seed, numbers, not arguments.whole, arguments.workers):
        kinds[verdict.kind] += 1
        if verdict.fails:
            print(f"--- program {number} of seed {arguments.seed}: {verdict.kind}: {verdict.text}")
            print(script, flush=True)
        elif verdict.text:
            reasons[f"{verdict.kind}: {verdict.text}"] += 1
    summary = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
    print(f"{len(numbers)} programs in {time.monotonic() - started:.0f} s: {summary}")
    for reason, count in reasons.most_common():
        print(f"{count:6} {reason}")
    return 1 if kinds["different"] or kinds["broken"] else 0


if __name__ == "__main__":
    sys.exit(main())
