"""Environment variables: a program of a few lines is started with each, and its behaviour is checked."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile

import poptorch

PROGRAM = """
import poptorch, torch
model = poptorch.inferenceModel(torch.nn.Linear(2, 2))
print("took", model(torch.ones(3, 2)).shape[0], "rows,", "hardware:", poptorch.ipuHardwareIsAvailable())
with poptorch.profiling.Channel("mine").tracepoint("a step"):
    model(torch.ones(3, 2))
model.destroy()
"""
directory = tempfile.mkdtemp()


def run(**variables):
    """Run the program in a directory of its own and return its output and log."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, **variables},
        cwd=directory,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("took 3 rows")
    return done.stdout, done.stderr


def fails(**variables):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env={**os.environ, **variables}, capture_output=True, text=True
    )
    assert done.returncode != 0
    return done.stderr


# Everything at once: they do not depend on each other. Logs, cached executables, reports, traces, an IPU model.
cache, report = os.path.join(directory, "cache"), os.path.join(directory, "tommyFlowers")
_, logged = run(
    POPTORCH_LOG_LEVEL="DEBUG",
    POPTORCH_CACHE_DIR=cache,
    POPLAR_ENGINE_OPTIONS=json.dumps({"autoReport.all": "true", "autoReport.directory": report}),
    PVTI_OPTIONS=json.dumps({"enable": "true"}),
    POPTORCH_WAIT_FOR_IPU="1",
)
assert "[debug]" in logged and os.listdir(cache) and os.listdir(report)
printed, logged = run(POPTORCH_LOG_LEVEL="OFF", POPTORCH_IPU_MODEL="1")
assert "hardware: False" in printed and "[poptorch" not in logged
assert "Unknown log level" in fails(POPTORCH_LOG_LEVEL="LOUD")

# A variable that a program sets counts from its next options on.
os.environ["POPTORCH_CACHE_DIR"] = cache
try:
    assert poptorch.Options()._Popart.options["cachePath"] == cache
finally:
    del os.environ["POPTORCH_CACHE_DIR"]
