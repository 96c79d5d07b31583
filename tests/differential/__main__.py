"""Run programs of a campaign: `python -m tests.differential --count 3000 --seed 1`.

A program is drawn from the seed and its number alone. `--only N M` runs these; `--show` prints its script. With
`--verdicts FILE` each verdict is appended to a file, and a campaign goes on with the programs that are not in it.
"""

from __future__ import annotations

import argparse
import collections
import sys
import time
from pathlib import Path

from tests.differential.campaign import Verdicts, judged
from tests.differential.comparing import FAILING
from tests.differential.program import draw
from tests.differential.rendering import render


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.differential", description=__doc__)
    parser.add_argument("--count", type=int, default=100, help="programs")
    parser.add_argument("--seed", type=int, default=0, help="of the campaign")
    parser.add_argument("--first", type=int, default=0, help="number of the first program")
    parser.add_argument("--workers", type=int, default=1, help="processes")
    parser.add_argument("--only", type=int, nargs="+", metavar="N", help="run these programs alone")
    parser.add_argument("--whole", action="store_true", help="do not look for the shortest program that fails")
    parser.add_argument("--show", action="store_true", help="print the script of --only, and run nothing")
    parser.add_argument("--verdicts", type=Path, help="file of the verdicts; the programs in it are not run again")
    arguments = parser.parse_args()
    if arguments.show:
        print("\n\n".join(render(draw(arguments.seed, number)) for number in arguments.only or [0]))
        return 0
    numbers = list(range(arguments.first, arguments.first + arguments.count))
    if arguments.only is not None:
        numbers = arguments.only
    file = None if arguments.verdicts is None else Verdicts(arguments.verdicts, arguments.seed)
    verdicts = {} if file is None else {number: file.known[number] for number in numbers if number in file.known}
    started = time.monotonic()
    left = [number for number in numbers if number not in verdicts]
    for number, verdict, script in judged(arguments.seed, left, not arguments.whole, arguments.workers):
        verdicts[number] = verdict
        if file is not None:
            file.add(number, verdict, script)
        if verdict.fails:
            print(f"--- program {number} of seed {arguments.seed}: {verdict.kind}: {verdict.text}")
            print(script, flush=True)
    kinds = collections.Counter(verdict.kind for verdict in verdicts.values())
    summary = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
    print(f"{len(verdicts)} programs, {len(left)} of them in {time.monotonic() - started:.0f} s: {summary}")
    allowed = (verdict for verdict in verdicts.values() if verdict.text and not verdict.fails)
    reasons = collections.Counter(f"{verdict.kind}: {verdict.text}" for verdict in allowed)
    for reason, count in reasons.most_common():
        print(f"{count:6} {reason}")
    return 1 if any(kinds[kind] for kind in FAILING) else 0


if __name__ == "__main__":
    sys.exit(main())
