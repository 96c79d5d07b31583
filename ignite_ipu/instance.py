"""`python -m ignite_ipu.instance SCRIPT`: one process of a job that PopRun has started.

PopRun describes a process in the variables of Open MPI, which PopTorch reads. `torch.distributed`, and with it
`idist.Parallel`, reads others; they are set here before the program runs.
"""

from __future__ import annotations

import os
import runpy
import sys
from typing import Dict, List, Mapping

__all__ = ["main", "rendezvous"]

_PORT = "29500"
_MEANINGS = {
    "RANK": "OMPI_COMM_WORLD_RANK",
    "WORLD_SIZE": "OMPI_COMM_WORLD_SIZE",
    "LOCAL_RANK": "OMPI_COMM_WORLD_LOCAL_RANK",
    "LOCAL_WORLD_SIZE": "OMPI_COMM_WORLD_LOCAL_SIZE",
}


def rendezvous(variables: Mapping[str, str]) -> Dict[str, str]:
    """Return what `torch.distributed` wants to know, from what PopRun says; variables that are set are left alone."""
    found = {ours: variables[theirs] for ours, theirs in _MEANINGS.items() if theirs in variables}
    if found:
        found.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=_PORT)
    return {name: value for name, value in found.items() if name not in variables}


def main(arguments: List[str]) -> None:
    """Run the program that the arguments name, as `python SCRIPT ...` would."""
    os.environ.update(rendezvous(os.environ))
    sys.argv = arguments
    sys.path[0] = os.path.dirname(os.path.abspath(arguments[0]))
    runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
