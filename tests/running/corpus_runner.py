"""Runs scripts natively and through `run_script`, one after the other in this process.

Reads their paths as JSON, writes `{path: [native result, result of run, substitutions, weight updates on devices]}`; a
refusal is a string. One process for all, because importing torch takes longer than most of them. Each starts from the
same random state.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import random
import runpy
import sys
import traceback
import warnings

import numpy as np
import torch

from ignite_ipu.emulator.device import device
from ignite_ipu.errors import RunError
from ignite_ipu.running import run_script


def outcome(function, path):
    """Return what a script prints after RESULT, or why it did not."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    output = io.StringIO()
    arguments, sys.argv = sys.argv, [path]
    try:
        with contextlib.redirect_stdout(output):
            function(path)
    except RunError as error:
        return f"refused: {error}"
    except Exception:
        return traceback.format_exc()
    finally:
        sys.argv = arguments
    return json.loads([line for line in output.getvalue().splitlines() if line.startswith("RESULT ")][-1][7:])


def natively(path):
    """Run a script as it is."""
    runpy.run_path(path, run_name="__main__")


if __name__ == "__main__":
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    results = {}
    for path in json.load(sys.stdin):
        substitutions = []
        native = outcome(natively, path)
        before = device.counters()
        run = outcome(lambda script, found=substitutions: run_script(script, substitutions=found), path)
        updates = (device.counters() - before).optimizer_updates
        results[path] = [native, run, [str(substitution) for substitution in substitutions], updates]
    sys.stdout.write(json.dumps(results))
