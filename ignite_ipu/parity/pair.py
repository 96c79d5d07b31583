"""Both runs of a script and their comparison: `python -m ignite_ipu.parity.pair REQUEST`.

PyTorch and this library are imported once. Each run is a process that is forked from this one. This one computes
nothing before both have ended, so it has no state that a run could inherit.

The request is a JSON object: that of a run without its side and record, with `tolerance`, and `result` for the path of
the comparison. That is a JSON object, too: the values of a `ScriptParity`, or `error`.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import tempfile
import traceback
from typing import Any, Dict, Mapping

import torch

from ignite_ipu.errors import ParityError
from ignite_ipu.parity.child import DEVICE, HOST, end, write_record
from ignite_ipu.parity.comparison import compare


def main(request: Mapping[str, Any]) -> None:
    """Make both runs, and write their comparison."""
    try:
        with tempfile.TemporaryDirectory() as folder:
            records = {side: _record(side, os.path.join(folder, side), request) for side in (HOST, DEVICE)}
        result = compare(records[HOST], records[DEVICE], request["tolerance"]).to_dict()
    except ParityError as error:
        result = {"error": str(error)}
    with open(request["result"], "w", encoding="utf-8") as file:
        json.dump(result, file)


def _record(side: str, path: str, request: Mapping[str, Any]) -> Dict[str, Any]:
    """Run one side and return its record."""
    code = forked({**request, "side": side, "record": path})
    run = f"The run on the {side}"
    if code or not os.path.exists(path):
        raise ParityError(f"{run} ended with exit code {code} and left no record.")
    record: Dict[str, Any] = torch.load(path, weights_only=True)
    if record["ended"]:
        raise ParityError(f"{run} failed: {record['ended']}")
    if not any(entry["kind"] == "parameter" for entry in record["entries"]):
        raise ParityError(f"{run} made no call of optimizer.step(), so there is nothing to compare.")
    return record


def forked(request: Mapping[str, Any]) -> int:
    """Make a run in a process of its own; returns its exit code, a negative one for the signal that ended it."""
    sys.stderr.flush()
    process = os.fork()
    if not process:
        try:
            write_record(request)
            end()
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    _, status = os.waitpid(process, 0)
    return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


if __name__ == "__main__":
    gc.freeze()  # a collection in a run copies no pages of what is imported
    # Where this module is `__main__`, the script takes that name, and pickles its classes by it.
    main(json.loads(sys.argv[1]))
