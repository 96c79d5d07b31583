"""Compares programs on the host and on the device: `python -m tests.parity [NAME...]`, by parts of their paths."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

from tests.parity.programs import compare, compare_page, pages, programs
from tests.scripts import Scripts


def main(*names: str) -> int:
    everything = [*((each, compare) for each in programs()), *((each, compare_page) for each in pages())]
    chosen = [(each, by) for each, by in everything if not names or any(name in str(each) for name in names)]
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    scripts, different = Scripts(), 0
    try:
        for program, by in chosen:
            started = time.monotonic()
            with tempfile.TemporaryDirectory() as folder:
                ran = by(program, scripts, Path(folder))
            different += bool(ran.error)
            verdict = ran.error or f"the same, {ran.updates} updates"
            print(f"{program}: {verdict} ({time.monotonic() - started:.1f} s)", flush=True)
    finally:
        scripts.close()
    print(f"{len(chosen) - different} of {len(chosen)} the same")
    return int(different > 0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
