"""Options about the processes that train one model together."""

from __future__ import annotations

import os

from ignite_ipu.emulator.options.guarded import OptionsDict


class _DistributedOptions(OptionsDict):
    """`Options.Distributed`; reads the number of processes and its own from Open MPI's variables.

    Raises:
        ValueError: One of them is no integer.
    """

    def __init__(self) -> None:
        super().__init__(num_distributed_processes=1, distributed_process_id=0, ipuof_configs={})
        self.setEnvVarNames("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK")

    def disable(self) -> _DistributedOptions:
        """Be one process of one."""
        return self.configureProcessId(0, 1)

    def setEnvVarNames(self, var_num_processes: str, var_process_id: str) -> _DistributedOptions:
        """Read both numbers from other environment variables, now.

        Raises:
            ValueError: One of them is no integer.
        """
        return self.configureProcessId(_integer(var_process_id, 0), _integer(var_num_processes, 1))

    def configureProcessId(self, process_id: int, num_processes: int) -> _DistributedOptions:
        """Be process `process_id` of `num_processes`."""
        return self._with(distributed_process_id=process_id, num_distributed_processes=num_processes)

    @property
    def processId(self) -> int:
        """Number of this process."""
        process_id: int = self.distributed_process_id
        return process_id

    @property
    def numProcesses(self) -> int:
        """Number of processes."""
        num_processes: int = self.num_distributed_processes
        return num_processes


def _integer(variable: str, default: int) -> int:
    text = os.environ.get(variable)
    if text is None:
        return default
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"Environment variable {variable} must be an integer, and it is {text!r}.") from None
