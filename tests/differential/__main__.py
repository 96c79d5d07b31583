"""Run programs of a campaign: `python -m tests.differential --count 3000 --seed 1`.

A program is drawn from the seed and its number alone. `--only N` runs that one; `--show` prints its script.
"""

from __future__ import annotations

import argparse
import collections
import sys
import time
from typing import Counter

from tests.differential.campaign import judged
from tests.differential.program import draw
from tests.differential.rendering import render


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
    for number, verdict, script in judged(arguments.seed, numbers, not arguments.whole, arguments.workers):
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
