"""Runs a script in a process of its own and writes its record: `python -m ignite_ipu.parity.child REQUEST`.

The request is a JSON object: side, record, updates, seed, everything, keep_dropout, module, script, arguments, config.
"""

from __future__ import annotations

import json
import os
import random
import sys
import traceback
from typing import Any, Dict, Optional

import torch

from ignite_ipu.errors import IPUError
from ignite_ipu.parity.dropout import switch_off_dropout
from ignite_ipu.parity.recorder import EnoughUpdates, Recorder
from ignite_ipu.program.config import IPUConfig
from ignite_ipu.running.patches import Patches
from ignite_ipu.running.program import Main, imports, module_program, script_program, started
from ignite_ipu.running.script_code import ScriptCode
from ignite_ipu.running.substituted import refusal_behind, substitute

HOST, DEVICE = "host", "device"
SIDE_VARIABLE = "IGNITE_IPU_PARITY"
"""Environment variable of the two processes: `host` or `device`."""


def main(request: Dict[str, Any]) -> None:
    """Write the record of a script, and end the process."""
    torch.save(recorded(request), request["record"])
    sys.stdout.flush()
    # Threads of the script, and a loop that catches every exception, do not go on.
    os._exit(0)


def recorded(request: Dict[str, Any]) -> Dict[str, Any]:
    """Run a script in this process and return its record; how it ended is part of the record."""
    _seed(int(request["seed"]))
    name = request["script"]
    with started("-m" if request["module"] else name, request["arguments"], _first_path(request)):
        recorder = Recorder(request["updates"], request["everything"])
        record: Dict[str, Any] = {"ended": "", "dropout": []}
        patches = Patches()
        try:
            program = module_program(name) if request["module"] else script_program(name)
            if not request["keep_dropout"]:
                record["dropout"] = switch_off_dropout(patches)
            run_recorded(program, recorder, None if request["side"] == HOST else IPUConfig.from_dict(request["config"]))
        except BaseException as error:
            _note_end(error, record)
        finally:
            patches.undo()
    record["entries"] = recorder.entries
    return record


def run_recorded(program: Main, recorder: Recorder, config: Optional[IPUConfig]) -> None:
    """Run a program under a recorder: on the host, or with a configuration on the device as `ignite-ipu run` does.

    A program that imports this library is for IPUs already, and runs as it is. The environment chooses its backend.

    Raises:
        RunError: Something in the program cannot be mapped to IPUs.
        BaseException: The program's own error.
    """
    substitutes = None
    if config is not None and not imports(program, "ignite_ipu"):
        substitutes = substitute(ScriptCode(program.path), program.folder, config)
    recorder.start()
    try:
        program.run()
    except Exception as error:
        refusal = None if substitutes is None else refusal_behind(error, substitutes)
        if refusal is None:
            raise
        raise refusal from error
    finally:
        recorder.stop()
        if substitutes is not None:
            substitutes.undo()
    if substitutes is not None and substitutes.refusals:
        raise substitutes.refusals[0]


def _note_end(error: BaseException, record: Dict[str, Any]) -> None:
    """Note the error that ended a script, if it was not its own end or that of the comparison."""
    if isinstance(error, (EnoughUpdates, KeyboardInterrupt)):
        return
    if isinstance(error, SystemExit) and error.code in (None, 0):
        return
    if not isinstance(error, IPUError):
        traceback.print_exc()
    record["ended"] = f"{type(error).__name__}: {error}"


def _seed(seed: int) -> None:
    torch.manual_seed(seed)
    random.seed(seed)
    try:
        import numpy
    except ImportError:
        return
    numpy.random.seed(seed % 2**32)


def _first_path(request: Dict[str, Any]) -> str:
    return os.getcwd() if request["module"] else os.path.dirname(os.path.abspath(request["script"]))


if __name__ == "__main__":
    # Where this module is `__main__`, the script takes that name, and pickles its classes by it.
    main(json.loads(sys.argv[1]))
