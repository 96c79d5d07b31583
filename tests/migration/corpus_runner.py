"""Runs programs one after the other in this process.

Reads `[[name, source], ...]` as JSON, writes `{name: [result, weight updates on devices]}`; a failure's result is text.
One process for all, because importing torch takes longer than most of them. Each starts from the same random state.
"""

from __future__ import annotations

import contextlib
import io
import json
import random
import sys
import traceback
import warnings

import numpy as np
import torch

from ignite_ipu.emulator.device import device


def run(name: str, source: str) -> object:
    """Run one program and return what it prints after RESULT, or its traceback as text."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    output = io.StringIO()
    arguments, sys.argv = sys.argv, [f"{name}.py"]
    try:
        with contextlib.redirect_stdout(output):
            exec(compile(source, f"{name}.py", "exec", dont_inherit=True), {"__name__": "__main__"})
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
    for name, source in programs:
        before = device.counters()
        result = run(name, source)
        results[name] = [result, (device.counters() - before).optimizer_updates]
    sys.stdout.write(json.dumps(results))
