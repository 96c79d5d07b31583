"""Takes all scripts, examples, code bases and loops, or those that are named, through each door.

`python -m tests.doors [NAME...]`: names of scripts of the corpus, of examples, of code bases, or `loops`.
"""

from __future__ import annotations

import functools
import os
import sys
import tempfile
from pathlib import Path
from typing import Callable, List, Tuple

from tests.doors import codebases, loops
from tests.doors.codebases import PROGRAMS
from tests.doors.comparing import CORPUS, EXAMPLES, differences
from tests.doors.loops import LOOPS
from tests.scripts import Scripts


def main(*names: str) -> int:
    paths = {path.stem: path for path in sorted(CORPUS.glob("*.py"))}
    paths.update((f"examples/{path.parent.name}", path) for path in sorted(EXAMPLES.glob("*/gpu.py")))
    paths = {name: path for name, path in paths.items() if name in names or not names}
    programs = [program for program in PROGRAMS if program.codebase in names or not names]
    tried: List[Tuple[str, Callable[[Scripts, Path], List[str]]]] = [
        *((name, functools.partial(differences, path)) for name, path in paths.items()),
        *((str(program), functools.partial(codebases.differences, program)) for program in programs),
        *((name, functools.partial(_of_loop, name)) for name in LOOPS if "loops" in names or not names),
    ]
    scripts, count = Scripts(), 0
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("IGNITE_IPU_BACKEND", "emulator")
    try:
        for name, compare in tried:
            with tempfile.TemporaryDirectory() as folder:
                found = compare(scripts, Path(folder))
            count += bool(found)
            print(f"{name}: {'; '.join(found) or 'the same'}", flush=True)
    finally:
        scripts.close()
    print(f"{len(tried) - count} of {len(tried)} the same behind all doors")
    return int(count > 0)


def _of_loop(name: str, scripts: Scripts, folder: Path) -> List[str]:
    return loops.differences(name, folder)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
