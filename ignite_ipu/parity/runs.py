"""The two runs of a script: one process by PyTorch on the host, then one on the device."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from typing import Any, Dict, Mapping, Tuple

import torch

from ignite_ipu import backend
from ignite_ipu.errors import ParityError
from ignite_ipu.parity.child import DEVICE, HOST, SIDE_VARIABLE
from ignite_ipu.parity.comparison import ScriptParity, compare


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
    device an unmodified script runs as by `ignite-ipu run`, and a script that imports this library as it is.

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
    with tempfile.TemporaryDirectory() as folder:
        records = {side: _record(side, os.path.join(folder, side), request) for side in (HOST, DEVICE)}
    return compare(records[HOST], records[DEVICE], tolerance)


def _record(side: str, path: str, request: Dict[str, Any]) -> Dict[str, Any]:
    """Run one side and return its record."""
    environment = {**os.environ, SIDE_VARIABLE: side, "PYTHONHASHSEED": str(request["seed"] % 2**32)}
    environment.pop("IGNITE_IPU_AUTO", None)
    if side == HOST:
        environment[backend.VARIABLE] = "native"
    elif environment.get(backend.VARIABLE) == "native":
        del environment[backend.VARIABLE]
    words = [sys.executable, "-m", "ignite_ipu.parity.child", json.dumps({**request, "side": side, "record": path})]
    # Output of the script is no part of the report; its errors are shown at once.
    done = subprocess.run(words, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=False)
    run = f"The run on the {side}"
    if done.returncode or not os.path.exists(path):
        raise ParityError(f"{run} ended with exit code {done.returncode} and left no record.")
    record: Dict[str, Any] = torch.load(path, weights_only=True)
    if record["ended"]:
        raise ParityError(f"{run} failed: {record['ended']}")
    if not any(entry["kind"] == "parameter" for entry in record["entries"]):
        raise ParityError(f"{run} made no call of optimizer.step(), so there is nothing to compare.")
    return record
