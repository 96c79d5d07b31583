"""`python -m ignite_ipu.cli.instance SCRIPT` or `-m MODULE`: a process of a job that ends with the one that started it.

The variables of `torch.distributed`, which `idist.Parallel` reads, are set before the program runs. If torch's launcher
has started the process, PopRun's variables are set, and programs for the SDK import the emulator.
"""

from __future__ import annotations

import os
import runpy
import shutil
import signal
import sys
import threading
import time
from typing import Dict, List, Mapping

from ignite_ipu import backend
from ignite_ipu.launched import rendezvous

# Set by `ignite-ipu launch` for torch's launcher: replicas of all processes, and IPUs of each.
_JOB = "IGNITE_IPU_JOB"
# "pid:directory" of the process that starts instances; they delete the directory if that one has died.
_STARTER = "IGNITE_IPU_STARTER"
_LOOK_SECONDS = 0.5
_GRACE_SECONDS = 2.5


def job_description(replicas: int, ipus_per_replica: int) -> Dict[str, str]:
    """Return the variable from which the processes of torch's launcher learn the numbers that PopRun would get."""
    return {_JOB: f"{replicas}:{ipus_per_replica}"}


def poprun_variables(variables: Mapping[str, str]) -> Dict[str, str]:
    """Return PopRun's variables for a process that torch's launcher has started for `ignite-ipu launch`."""
    if _JOB not in variables or "RANK" not in variables:
        return {}
    # Not at the top: the emulator imports torch, and the command that starts instances needs none.
    from ignite_ipu.emulator.popdist.instances import Job

    replicas, ipus_per_replica = map(int, variables[_JOB].split(":"))
    return Job(int(variables["WORLD_SIZE"]), replicas, ipus_per_replica).variables(int(variables["RANK"]))


def started_by_this_process(directory: str = "") -> Dict[str, str]:
    """Return the variable with the launcher's process, and the files that instances delete if the launcher dies."""
    return {_STARTER: f"{os.getpid()}:{directory}"}


def main(arguments: List[str]) -> None:
    """Run the program that the arguments name, as `python SCRIPT ...` or `python -m MODULE ...` would."""
    pid, _, directory = os.environ.pop(_STARTER, "").partition(":")
    starter = int(pid) if pid else os.getppid()
    threading.Thread(target=_end_with, args=(starter, directory), name="end with starter", daemon=True).start()
    emulated = poprun_variables(os.environ)
    if emulated:
        os.environ.update(emulated)
        sys.path += backend.import_paths()
    os.environ.update(rendezvous(os.environ))
    if arguments[0] == "-m":
        os.environ.update(started_by_this_process(directory))
        sys.argv = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        return
    sys.argv = arguments
    sys.path[0] = os.path.dirname(os.path.abspath(arguments[0]))
    runpy.run_path(arguments[0], run_name="__main__")


def _end_with(starter: int, directory: str) -> None:
    """Interrupt this process when that parent has ended, and kill it if it does not end."""
    while os.getppid() == starter:
        time.sleep(_LOOK_SECONDS)
    if directory:
        shutil.rmtree(directory, ignore_errors=True)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_GRACE_SECONDS)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1:])
