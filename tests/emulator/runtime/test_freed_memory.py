"""A step takes the memory that the step before has freed, without page faults."""

from __future__ import annotations

import os
import platform

import pytest

from tests.processes import Processes

_PROGRAM = """
import resource
import torch
from torch import nn
import ignite_ipu.emulator as poptorch

def is_on_the_heap(megabytes):
    place = torch.empty(megabytes << 20, dtype=torch.uint8).data_ptr()
    with open("/proc/self/maps", encoding="ascii") as file:
        heap = [line.split()[0].split("-") for line in file if line.rstrip().endswith("[heap]")]
    return any(int(first, 16) <= place < int(last, 16) for first, last in heap)

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    blocks = [torch.ones(3 << 18) for _ in range(4)]
    del blocks
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

executor = poptorch.inferenceModel(nn.Linear(2, 2), poptorch.Options().showCompilationProgressBar(False))
before = is_on_the_heap(20)
executor(torch.ones(1, 2))
after = is_on_the_heap(25)
print(before, after, min(faults() for _ in range(9)))
"""


@pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc" or not os.path.exists("/proc/self/maps"),
    reason="other C libraries keep memory by rules of their own",
)
def test_freed_memory_is_kept_once_a_program_is_on_the_device(processes: Processes) -> None:
    """Before that, memory of a large block is the operating system's again when it is freed."""
    own = {name: value for name, value in os.environ.items() if "MALLOC" not in name and name != "LD_PRELOAD"}
    done = processes.run(["-c", _PROGRAM], env=own, check=True)
    before, after, faults = done.stdout.split()
    assert (before, after) == ("False", "True")
    assert int(faults) < 100
