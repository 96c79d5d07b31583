"""Runs programs one after the other in this process.

Reads `[[name, source], ...]` as JSON; a script of a code base is `[folder, source, path]`, with its path below the
folder that it runs in. Writes `{name: [result, weight updates on devices]}`; a failure's result is text.
One process for all, because importing torch takes longer than most of them. Each starts from the same random state.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import sys
import traceback
import warnings
from typing import Iterator, Optional

import numpy as np
import torch

from ignite_ipu.emulator.device import device


def run(name: str, source: str, path: Optional[str] = None) -> object:
    """Run one program and return what it prints after RESULT, or its traceback as text."""
    if path is not None:
        with in_code_base(name, path):
            return run_here(os.path.join(name, path), source)
    return run_here(f"{name}.py", source)


@contextlib.contextmanager
def in_code_base(folder: str, path: str) -> Iterator[None]:
    """Have a code base's own modules found as when one of its scripts is run from its folder."""
    before, known, search = os.getcwd(), set(sys.modules), list(sys.path)
    sys.path.insert(0, os.path.join(folder, os.path.dirname(path)))
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
        sys.path[:] = search
        for name in set(sys.modules) - known:
            if str(getattr(sys.modules[name], "__file__", "")).startswith(folder):
                del sys.modules[name]


def run_here(file: str, source: str) -> object:
    """Run one program in the current folder."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    output = io.StringIO()
    arguments, sys.argv = sys.argv, [file]
    try:
        with contextlib.redirect_stdout(output):
            names = {"__name__": "__main__", "__file__": file}
            exec(compile(source, file, "exec", dont_inherit=True), names)
    except Exception:
        return traceback.format_exc()
    finally:
        sys.argv = arguments
    results = [line for line in output.getvalue().splitlines() if line.startswith("RESULT ")]
    return json.loads(results[-1][len("RESULT ") :]) if results else output.getvalue()


if __name__ == "__main__":
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    programs = json.load(sys.stdin)
    results = {}
    for name, *program in programs:
        before = device.counters()
        result = run(name, *program)
        results[name] = [result, (device.counters() - before).optimizer_updates]
    sys.stdout.write(json.dumps(results))
