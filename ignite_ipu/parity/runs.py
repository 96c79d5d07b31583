"""The two runs of a script: one process by PyTorch on the host, then one on the device."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from typing import Any, Mapping, Tuple

from ignite_ipu.errors import ParityError
from ignite_ipu.parity.differences import ScriptParity


@dataclasses.dataclass(frozen=True)
class Script:
    """A script, or a module by its name, with its arguments."""

    name: str
    arguments: Tuple[str, ...] = ()
    module: bool = False


def compare_script(
    script: Script,
    updates: int = 20,
    *,
    config: Mapping[str, Any] = {},
    seed: int = 0,
    tolerance: float = 1e-3,
    everything: bool = False,
    keep_dropout: bool = False,
) -> ScriptParity:
    """Run a script on the host and on the device, each in a fresh process, and compare all that they compute.

    Both processes get the same seeds of torch, numpy, random and hashes. On the host nothing is substituted. On the
    device an unmodified script runs as by `ignite-ipu run`, and a script that imports this library as it is. They are
    forked from a third, which imports the libraries for both and compares them. The calling process needs no PyTorch.

    Args:
        script: The script.
        updates: Calls of `optimizer.step()` after which both runs end.
        config: Settings of the device, as `IPUConfig.to_dict` returns them.
        seed: The seed.
        tolerance: Part of the largest value of a tensor that results may differ by.
        everything: Whether large tensors are compared element by element instead of by norm and projections.
        keep_dropout: Whether dropout stays on, whose random numbers differ on a device.

    Raises:
        ParityError: A run ended with an error before the last update; the message names the run.
    """
    request = {
        **{"updates": updates, "seed": seed, "everything": everything, "keep_dropout": keep_dropout},
        **{"script": script.name, "arguments": list(script.arguments), "module": script.module, "config": dict(config)},
    }
    environment = {**os.environ, "PYTHONHASHSEED": str(seed % 2**32)}
    environment.pop("IGNITE_IPU_AUTO", None)
    with tempfile.TemporaryDirectory() as folder:
        result = os.path.join(folder, "result")
        request.update(tolerance=tolerance, result=result)
        words = [sys.executable, "-m", "ignite_ipu.parity.pair", json.dumps(request)]
        # Output of the script is no part of the report; its errors are shown at once.
        done = subprocess.run(words, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=False)
        if done.returncode or not os.path.exists(result):
            raise ParityError(f"The process of both runs ended with exit code {done.returncode} and left no result.")
        with open(result, encoding="utf-8") as file:
            found = json.load(file)
    if "error" in found:
        raise ParityError(found["error"])
    return ScriptParity.from_dict(found)
