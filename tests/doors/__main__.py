"""Takes all scripts of the corpus, or those that are named, through each door: `python -m tests.doors [NAME...]`."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from tests.doors.comparing import CORPUS, differences
from tests.scripts import Scripts


def main(*names: str) -> int:
    paths = [CORPUS / f"{name}.py" for name in names] or sorted(CORPUS.glob("*.py"))
    scripts, count = Scripts(), 0
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    try:
        for path in paths:
            with tempfile.TemporaryDirectory() as folder:
                found = differences(path, scripts, Path(folder))
            count += bool(found)
            print(f"{path.stem}: {'; '.join(found) or 'the same'}", flush=True)
    finally:
        scripts.close()
    print(f"{len(paths) - count} of {len(paths)} the same behind all doors")
    return int(count > 0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
