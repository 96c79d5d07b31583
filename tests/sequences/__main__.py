"""Plays any number of sequences: `python -m tests.sequences 1000 --update auto --first 0 --shrink`.

Each sequence has a seed. `python -m tests.sequences 1 --first SEED --update auto` plays one again.
"""

from __future__ import annotations

import argparse
import gc
import logging
import sys
import time
import warnings
from collections import Counter
from typing import Counter as Counts

from tests.sequences.playing import outcome_of, random_sequence, shrunk

# After so many sequences the libraries have imported their modules, and made their tables.
_WARM = 20


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("count", type=int, nargs="?", default=1000)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--update", choices=("device", "auto", "host"), default="device")
    parser.add_argument("--spread", action="store_true", help="spread the models over two IPUs")
    parser.add_argument("--shrink", action="store_true", help="shrink what differs or crashes")
    parser.add_argument("--refusals", action="store_true", help="show a short sequence for each reason of a refusal")
    parser.add_argument("--every", type=int, default=0, help="print the sums after so many sequences each")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    kinds: Counts[str] = Counter({"same": 0, "refused": 0, "different": 0, "crash": 0})
    reasons: Counts[str] = Counter()
    start, start_of_process = time.monotonic(), time.process_time()
    for played, seed in enumerate(range(arguments.first, arguments.first + arguments.count)):
        if played == _WARM:
            # Neither the collector nor a search of the process for tensors goes through these objects each time.
            gc.collect()
            gc.freeze()
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
        if arguments.every and played % arguments.every == arguments.every - 1:
            print(f"{played + 1}: {dict(kinds)}", flush=True)
    for reason, count in reasons.most_common():
        print(f"{count:6} {reason}")
    used = time.process_time() - start_of_process
    rate = arguments.count / used if used else 0.0
    print(f"{dict(kinds)} in {time.monotonic() - start:.1f} s, {rate:.1f} sequences per second of processor time")
    return int(bool(kinds["different"] or kinds["crash"]))


if __name__ == "__main__":
    sys.exit(main())
