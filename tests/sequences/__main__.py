"""Plays any number of sequences: `python -m tests.sequences 1000 --update auto --first 0 --shrink`."""

from __future__ import annotations

import argparse
import logging
import sys
import time
import warnings
from collections import Counter
from typing import Counter as Counts

from tests.sequences.playing import outcome_of, random_sequence, shrunk


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("count", type=int, nargs="?", default=1000)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--update", choices=("device", "auto", "host"), default="device")
    parser.add_argument("--spread", action="store_true", help="spread the models over two IPUs")
    parser.add_argument("--shrink", action="store_true", help="shrink what differs or crashes")
    parser.add_argument("--refusals", action="store_true", help="show a short sequence for each reason of a refusal")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    kinds: Counts[str] = Counter()
    reasons: Counts[str] = Counter()
    start = time.monotonic()
    for seed in range(arguments.first, arguments.first + arguments.count):
        sequence = random_sequence(seed)
        outcome = outcome_of(sequence, arguments.update, arguments.spread)
        kinds[outcome.kind] += 1
        shows = outcome.kind in ("different", "crash")
        if outcome.kind == "refused":
            reasons[outcome.detail] += 1
            shows = arguments.refusals and reasons[outcome.detail] == 1
        if shows:
            if arguments.shrink:
                sequence = shrunk(sequence, arguments.update, outcome)
                outcome = outcome_of(sequence, arguments.update)
            print(f"{seed} {outcome.kind}: {outcome.detail}\n    {sequence}", flush=True)
    for reason, count in reasons.most_common():
        print(f"{count:6} {reason}")
    print(f"{dict(kinds)} in {time.monotonic() - start:.1f} s")
    return int(bool(kinds["different"] or kinds["crash"]))


if __name__ == "__main__":
    sys.exit(main())
