"""The processes that torch.distributed connects: they agree on each update, and report one that has ended.

All processes come to the same points in the same order. So a process that does something else, or has died, is
reported, and the others do not wait for it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import time
from pathlib import Path
from typing import Any, Dict, Iterable, Iterator, List, NamedTuple, Optional, Sequence

import torch
import torch.distributed as dist
from torch import nn

from ignite_ipu.errors import ProcessesError
from ignite_ipu.program.tensors.raw import gradient_of, plain, set_gradient
from ignite_ipu.program.user_code import current_line
from ignite_ipu.session.processes import connected
from ignite_ipu.torch_names.lists import flatten_tensors, unflatten_tensors
from ignite_ipu.torch_names.modules import all_parameters
from ignite_ipu.torch_names.tensors import DisableTorchFunctionSubclass

_LOOK_SECONDS = 0.05
_DEATH_SECONDS = 3.0
_BACKEND = "gloo"  # which is in the messages of its errors


class Agreement(NamedTuple):
    """Result of the comparison of all processes before an update.

    Attributes:
        on_host: Whether one of them makes its updates on the host.
        gradients: Whether one of them reads gradients.
        same: Whether all make the same update on the device.
    """

    on_host: bool
    gradients: bool
    same: bool


class _Peer(NamedTuple):
    host: str
    pid: int


class Job:
    """The processes that torch.distributed connects.

    Attributes:
        passed: Number of points that this process has passed with the others.
        on_host: Whether they have agreed on averages on the host that have yet to be computed.
    """

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self.passed = 0
        self.on_host = False
        self.peers: List[Any] = [None] * size
        found: List[Any] = [None] * size
        with self.reporting():
            dist.all_gather_object(found, _Peer(socket.gethostname(), os.getpid()))
        self.peers = found

    def agree(self, program: int, gradients: bool, on_host: bool, repeated: bool = False) -> Agreement:
        """Return the values of all processes at this point, which each of them reaches.

        Args:
            program: A number that is the same for the same update, as `digest` returns.
            gradients: Whether this process reads gradients.
            on_host: Whether it makes its updates on the host.
            repeated: Whether it computes gradients of the last update again.

        Raises:
            ProcessesError: A process has ended, or the processes are at different updates.
        """
        number = self.passed - repeated
        own = torch.tensor([number, -number, program, -program, gradients, on_host], dtype=torch.int64)
        with self.reporting():
            dist.all_reduce(own, op=dist.ReduceOp.MAX)
        last, first, high, low, some_read, some_on_host = own.tolist()
        if last != -first:
            raise ProcessesError(
                f"At {current_line()} the processes are at different updates: some at number {last + 1}, some at "
                f"{1 - first}, as process {self.rank} is at {number + 1}. One process has read gradients of an update "
                "that the others had completed. Let all processes read gradients at the same places, or set "
                "IPUConfig(update='host')."
            )
        self.passed += not repeated
        self.on_host = bool(some_on_host) or high != -low
        return Agreement(bool(some_on_host), bool(some_read), high == -low)

    def differing(self, own: str) -> str:
        """Return the value of each process, if the values differ; all processes must call this."""
        said: List[Any] = [None] * self.size
        with self.reporting():
            dist.all_gather_object(said, own)
        return "; ".join(f"process {rank}: {text}" for rank, text in enumerate(said) if rank == 0 or text != said[0])

    def take_back(self) -> None:
        """Note that the last update was taken back, and comes again."""
        self.passed -= 1

    def average(self, parameters: Sequence[torch.Tensor]) -> None:
        """Replace the gradients of parameters by their means over the processes; a process without one has zero."""
        self.on_host = False
        with DisableTorchFunctionSubclass(), torch.no_grad():
            found = [gradient_of(parameter) for parameter in parameters]
            used = torch.tensor([gradient is not None for gradient in found], dtype=torch.int32)
            with self.reporting():
                dist.all_reduce(used)
            averaged: List[torch.Tensor] = []
            for parameter, gradient, count in zip(parameters, found, used.tolist()):
                if not count:
                    continue
                if gradient is None:
                    gradient = torch.zeros_like(plain(parameter))
                    set_gradient(parameter, gradient)
                averaged.append(gradient)
            for gradients in by_dtype(averaged):
                flat = flatten_tensors([gradient.detach() for gradient in gradients]).div_(self.size)
                with self.reporting():
                    dist.all_reduce(flat)
                for gradient, mean in zip(gradients, unflatten_tensors(flat, gradients)):
                    gradient.detach().copy_(mean)

    @contextlib.contextmanager
    def reporting(self) -> Iterator[None]:
        """Report which process has ended where communication fails in the `with` block.

        Raises:
            ProcessesError: It fails.
        """
        try:
            yield
        except RuntimeError as error:
            self.report(error)
            raise

    def report(self, error: RuntimeError) -> None:
        """Report which process has ended, if an error is one of communication.

        Raises:
            ProcessesError: It is.
        """
        if _BACKEND in str(error):
            raise ProcessesError(
                f"Process {self.rank} cannot reach the others at {current_line()}: {self._ended()}. Gradients of all "
                "processes make an update, so the job cannot go on. Start it again from its last checkpoint; "
                f"`ignite-ipu launch --restarts` does so. ({error})"
            ) from error

    def _ended(self) -> str:
        """Return which processes have ended, in words; those of other hosts are not seen."""
        here = socket.gethostname()
        deadline = time.monotonic() + _DEATH_SECONDS
        while True:
            known = [(rank, peer) for rank, peer in enumerate(self.peers) if peer is not None]
            if not known:
                return "another process has ended, or is not reached"
            local = [(rank, peer.pid) for rank, peer in known if peer.host == here]
            ended = [f"process {rank} (pid {pid})" for rank, pid in local if not _is_alive(pid)]
            if ended:
                return f"{' and '.join(ended)} of {self.size} has ended"
            if len(local) < self.size and time.monotonic() > deadline - _DEATH_SECONDS / 2:
                others = sorted({peer.host for _, peer in known} - {here})
                return f"a process has ended, or a host is not reached ({', '.join(others)})"
            if time.monotonic() > deadline:
                return "the connection has failed, though all processes are there"
            time.sleep(_LOOK_SECONDS)


def digest(*parts: Any) -> int:
    """Return a number that is the same for equal values in all processes."""
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=7).digest(), "big")


_job: Optional[Job] = None


def job() -> Job:
    """Return the connected processes; all of them must call this for the first time together."""
    global _job
    rank, size = connected()
    if _job is None or (_job.rank, _job.size) != (rank, size) or _job.peers[rank].pid != os.getpid():
        _job = Job(rank, size)
    return _job


def report_ended(error: RuntimeError) -> None:
    """Report which process has ended, if an error is one of communication between processes.

    Raises:
        ProcessesError: It is.
    """
    if connected()[1] > 1:
        job().report(error)


def check_same_weights(model: nn.Module) -> None:
    """Refuse to train copies of a model that differ between the processes, which would stay different for ever."""
    rank, processes = connected()
    if processes == 1:
        return
    names = [name for name, _ in model.named_parameters()]
    sums = torch.tensor(
        [[float(w.double().sum()), float(w.double().square().sum())] for w in map(torch.detach, all_parameters(model))]
    )
    first = sums.clone()
    with job().reporting():
        dist.broadcast(first, src=0)
        differing = [name for name, same in zip(names, (sums == first).all(dim=1).tolist()) if not same]
        found = torch.tensor([len(differing)])
        dist.all_reduce(found)
    if found.item():
        where = f"{differing[0]} differs from the one of rank 0" if differing else "they differ in another process"
        raise ProcessesError(
            f"The processes do not start from the same weights: in rank {rank}, {where}. Seed all processes alike "
            "before the model is made (ignite.utils.manual_seed), or load one checkpoint in each."
        )


def by_dtype(tensors: Iterable[torch.Tensor]) -> Iterable[List[torch.Tensor]]:
    """Return tensors in groups of one type, which one message has."""
    groups: Dict[torch.dtype, List[torch.Tensor]] = {}
    for tensor in tensors:
        groups.setdefault(tensor.dtype, []).append(tensor)
    return groups.values()


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return not Path("/proc/self").exists()
