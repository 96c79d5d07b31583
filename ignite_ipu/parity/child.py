"""One run of a script, in a process of its own, which writes its record.

The request has plain values: side, record, updates, seed, everything, keep_dropout, module, script, arguments, config.
"""

from __future__ import annotations

import os
import random
import sys
import traceback
from typing import Any, Dict, Mapping, Optional

import torch

from ignite_ipu import backend
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


def write_record(request: Mapping[str, Any]) -> None:
    """Run a script in this process, in the environment of its side, and write its record."""
    side = os.environ[SIDE_VARIABLE] = request["side"]
    if side == HOST:
        os.environ[backend.VARIABLE] = "native"
    elif os.environ.get(backend.VARIABLE) == "native":
        del os.environ[backend.VARIABLE]
    torch.save(recorded(request), request["record"])


def end() -> None:
    """End the process of a run: threads of the script, and a loop that catches every exception, do not go on."""
    sys.stdout.flush()
    os._exit(0)


def recorded(request: Mapping[str, Any]) -> Dict[str, Any]:
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


def _first_path(request: Mapping[str, Any]) -> str:
    return os.getcwd() if request["module"] else os.path.dirname(os.path.abspath(request["script"]))
