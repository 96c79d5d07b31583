"""Run every benchmark of this folder, or those named on the command line."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

NAMES = sorted(path.stem for path in Path(__file__).parent.glob("bench_*.py"))


def main() -> None:
    """Run the benchmarks in turn."""
    wanted = sys.argv[1:] or NAMES
    sys.argv[1:] = []
    for name in wanted:
        name = name if name.startswith("bench_") else f"bench_{name}"
        if name not in NAMES:
            raise SystemExit(f"There is no benchmark {name}; choose from {', '.join(NAMES)}.")
        print(f"\n== {name} ==", flush=True)
        runpy.run_module(f"{__package__}.{name}", run_name="__main__")


if __name__ == "__main__":
    main()
