"""Break everything in full: `python -m tests.resilience`, or some of it by name; `--sample` for a quick look.

In full: a fault at every call and at every copy for every optimizer, 300 random sequences of both; 200 kills while
training, evaluating and saving, 60 preemptions, 40 kills while migrating; 100,000 files; 1,000 lives of models; 200
kills of programs with many processes; 100 kills of processes that train together, 10 of launched ones; a million
random loops, by all processors; an hour of soaking.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
import warnings
from typing import Callable, Dict

import torch

from tests.resilience import crashes, faults, fuzzing, instances, processes, resources, soak
from tests.sequences.campaign import Chunk, play

OPTIMIZERS = ("Adam", "AdamW", "SGD", "RMSprop")


def break_calls(full: bool) -> str:
    optimizers = OPTIMIZERS if full else OPTIMIZERS[:1]
    single = sum(faults.every_call(every, name) for name in optimizers for every in ((1, 4, 50) if full else (4,)))
    sharing = (False, True) if full else (False,)
    single += sum(
        faults.every_copy(every, name, 1 if full else 9, share)
        for name in optimizers
        for every in ((1, 50) if full else (4,))
        for share in sharing
    )
    return f"{single} single faults, {faults.random_sequences(300 if full else 10)} in random sequences: none shows"


def kill(full: bool) -> str:
    training = crashes.killed_while_training(200 if full else 5)
    asked = crashes.preempted(60 if full else 3)
    migrating = crashes.killed_while_migrating(40 if full else 2)
    return f"killed {training} and {migrating}, preempted {asked}: every run went on to the same bits"


def damage_files(full: bool) -> str:
    return fuzzing.summary(fuzzing.fuzz(100_000 if full else 1500))


def look_for_leaks(full: bool) -> str:
    reached = sum(resources.raise_at(event) for event in resources.EVENTS)
    text = resources.check_no_leak(1000 if full else 25, warm_up=50 if full else 5)
    return f"{text}; exceptions at {reached} events released everything"


def kill_programs(full: bool) -> str:
    return f"{processes.kill_at_random(200 if full else 6)}: nothing is left of any"


def kill_instances(full: bool) -> str:
    together, launched = (100, 10) if full else (4, 1)
    slowest = max(instances.kill_at_random(together), instances.kill_launched_at_random(launched))
    return f"{together} killed while training together, {launched} launched: the others ended within {slowest:.1f} s"


def play_loops(full: bool) -> str:
    chunk = Chunk(first=time.time_ns() // 1_000_000, count=1_000_000 if full else 40)
    kinds = play(chunk, (os.cpu_count() or 1) if full else 1).kinds
    text = ", ".join(f"{count:,} {kind}" for kind, count in kinds.items())
    assert not (kinds["different"] or kinds["crash"]), text
    return f"random loops from seed {chunk.first}: {text}"


def run_long(full: bool) -> str:
    samples = soak.soak(3600.0 if full else 10.0, samples=60 if full else 8)
    memory = [sample.memory for sample in samples]
    return f"{samples[-1].iterations} iterations, memory between {min(memory):,} and {max(memory):,} bytes"


CAMPAIGNS: Dict[str, Callable[[bool], str]] = {
    "faults": break_calls,
    "crashes": kill,
    "files": damage_files,
    "resources": look_for_leaks,
    "processes": kill_programs,
    "instances": kill_instances,
    "loops": play_loops,
    "soak": run_long,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.resilience", description=__doc__)
    parser.add_argument("campaigns", nargs="*", metavar="CAMPAIGN", help=f"some of {', '.join(CAMPAIGNS)}; all if none")
    parser.add_argument("--sample", action="store_true", help="a quick look at each instead of all of it")
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.campaigns) - set(CAMPAIGNS))
    if unknown:
        parser.error(f"no such campaign: {', '.join(unknown)} (there are {', '.join(CAMPAIGNS)})")
    torch.set_num_threads(1)
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    failed = 0
    for name in arguments.campaigns or CAMPAIGNS:
        started = time.monotonic()
        try:
            text = CAMPAIGNS[name](not arguments.sample)
        except AssertionError as error:
            failed += 1
            text = f"FAILED: {error}"
        print(f"{name:10} {time.monotonic() - started:7.0f} s  {text}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
