"""Print the table of benchmarks; the exit code is 1 when an aim is missed.

Without arguments, these are the rows of `measures()` of all modules, which take ten minutes. `all` adds the rows of
`more()`, which take an hour. The name of a module, as `accelerate`, stands for all of its rows.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Iterator, List

import torch

from tests.benchmarks.measures import Measure, report

NAMES = sorted(path.stem[len("bench_") :] for path in Path(__file__).parent.glob("bench_*.py"))


def measures(names: List[str], more: bool) -> Iterator[Measure]:
    """Run benchmarks in turn, with the rows of `more()` if these are wanted."""
    for name in names:
        module = import_module(f"{__package__}.bench_{name}")
        for rows in ("measures", "more")[: 1 + more]:
            yield from getattr(module, rows, tuple)()


def main() -> int:
    """Print one table of all that is measured."""
    more = len(sys.argv) > 1
    wanted = NAMES if sys.argv[1:] in ([], ["all"]) else sys.argv[1:]
    unknown = [name for name in wanted if name not in NAMES]
    if unknown:
        raise SystemExit(f"There is no benchmark {', '.join(unknown)}; choose from all, {', '.join(NAMES)}.")
    torch.set_num_threads(1)
    return 1 if report(measures(wanted, more), sys.stdout) else 0


if __name__ == "__main__":
    sys.exit(main())
