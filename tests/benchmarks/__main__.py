"""Run every benchmark of this folder, or those named on the command line; the exit code is 1 when an aim is missed."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Iterator, List

import torch

from tests.benchmarks.measures import Measure, report

NAMES = sorted(path.stem[len("bench_") :] for path in Path(__file__).parent.glob("bench_*.py"))


def measures(names: List[str]) -> Iterator[Measure]:
    """Run the benchmarks in turn."""
    for name in names:
        yield from import_module(f"{__package__}.bench_{name}").measures()


def main() -> int:
    """Print one table of all that is measured."""
    wanted = sys.argv[1:] or NAMES
    unknown = [name for name in wanted if name not in NAMES]
    if unknown:
        raise SystemExit(f"There is no benchmark {', '.join(unknown)}; choose from {', '.join(NAMES)}.")
    torch.set_num_threads(1)
    return 1 if report(measures(wanted), sys.stdout) else 0


if __name__ == "__main__":
    sys.exit(main())
