"""Plays any number of sequences: `python -m tests.sequences 1000 --update auto --first 0 --shrink`.

Each sequence has a seed. `python -m tests.sequences 1 --first SEED --update auto` plays one again.
"""

from __future__ import annotations

import argparse
import sys
import time

from tests.sequences.campaign import Chunk, play
from tests.sequences.playing import COMPOSED_WORLDS, PROGRAM_WORLDS


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sequences", description=__doc__)
    parser.add_argument("count", type=int, nargs="?", default=1000)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--update", choices=("device", "auto", "host"), default="device")
    parser.add_argument("--spread", action="store_true", help="spread the models over two IPUs")
    parser.add_argument("--shrink", action="store_true", help="shrink what differs or crashes")
    parser.add_argument("--refusals", action="store_true", help="show a sequence for each reason of a refusal")
    parser.add_argument("--composed", action="store_true", help="models whose forward no program can run")
    parser.add_argument("--processes", type=int, default=1, help="how many processes play, a thousand each at a time")
    arguments = parser.parse_args()
    start = time.monotonic()
    chunk = Chunk(
        arguments.first,
        arguments.count,
        arguments.update,
        arguments.spread,
        arguments.shrink,
        arguments.refusals,
        COMPOSED_WORLDS if arguments.composed else PROGRAM_WORLDS,
    )
    played = play(chunk, arguments.processes)
    for reason, count in played.reasons.most_common():
        print(f"{count:6} {reason}")
    rate = arguments.count / played.seconds if played.seconds else 0.0
    elapsed = time.monotonic() - start
    print(f"{dict(played.kinds)} in {elapsed:.1f} s, {rate:.1f} sequences per second of processor time")
    return int(played.shows_fault)


if __name__ == "__main__":
    sys.exit(main())
