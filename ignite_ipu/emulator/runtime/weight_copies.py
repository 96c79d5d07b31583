"""`WeightCopies`: the copies of a program's weights and buffers from the host to the device and back."""

from __future__ import annotations

from typing import Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

import torch

from ignite_ipu.emulator.compiler.graph import Graph
from ignite_ipu.emulator.device.device import Meter
from ignite_ipu.emulator.errors import backend_error
from ignite_ipu.emulator.logs import logger
from ignite_ipu.emulator.runtime.executable import Executable
from ignite_ipu.emulator.runtime.host_tensors import HostTensors, receive
from ignite_ipu.emulator.values.wrapping import all_plain, counted, counts, plain, versions


class WeightCopies:
    """Copies weights and buffers between the host's tensors and a program's executables, and counts the bytes.

    It warns, once, of tensors that were edited on the host and never uploaded.

    Args:
        host: The host's tensors.
        graph: The program's graph, which names those that cross.
        training: Whether the program trains.
        meter: Counts the copies.

    Attributes:
        edits_reported: Whether it has warned.
    """

    def __init__(self, host: HostTensors, graph: Graph, training: bool, meter: Meter) -> None:
        self._host, self._training, self._meter = host, training, meter
        self._weights, self._buffers = graph.weights, graph.buffers
        self._names = [*self._weights, *self._buffers]
        # The versions of these tensors of the host when they crossed last.
        self._host_versions: List[int] = []
        # The same in lists, for a fast look in each call.
        self._crossed: Tuple[List[torch.Tensor], List[int]] = [], []
        self.edits_reported = False
        self._sized: Optional[Executable] = None
        self._upload_bytes = 0

    def host_values(self) -> Tuple[Dict[str, torch.Tensor], Dict[str, torch.Tensor]]:
        """Return the host's weights and buffers by name."""
        host = self._host
        weights = dict(zip(self._weights, all_plain([host.parameters[name] for name in self._weights])))
        return weights, dict(zip(self._buffers, all_plain([host.buffers[name] for name in self._buffers])))

    def upload(self, executable: Executable) -> None:
        host = self._host
        executable.set_weights({name: host.parameters[name] for name in self._weights})
        executable.set_buffers({name: host.buffers[name] for name in self._buffers})
        self.count_upload(executable)

    def upload_buffers(self, executable: Optional[Executable], buffers: Mapping[str, torch.Tensor]) -> None:
        """Upload some buffers, which are checked also while there is no executable."""
        unknown = [name for name in buffers if name not in self._buffers]
        if unknown:
            raise backend_error(
                f"Named buffer {unknown[0]!r} is not a tensor of the compiled program: only floating-point buffers "
                f"are. Its buffers are {list(self._buffers)}."
            )
        if executable is not None:
            executable.set_buffers(buffers)
            self._meter.add(weight_upload_bytes=size_of(map(plain, buffers.values())))

    def download(self, executable: Executable) -> None:
        self._report_edits()
        moved = {name: executable.host_weight(name) for name in executable.weights}
        moved.update(executable.buffers[0])
        host = self._host.tensors()
        with torch.no_grad():
            receive([host[name] for name in moved], list(moved.values()))
        self._note_crossing()
        self._meter.add(weight_downloads=1, weight_download_bytes=size_of(moved.values()))

    def count_upload(self, executable: Executable) -> None:
        """Count the upload of all weights and buffers to an executable."""
        if executable is not self._sized:
            # The sizes of tensors on the device do not change.
            self._sized = executable
            self._upload_bytes = size_of([*executable.weights.values(), *executable.buffers[0].values()])
        self._note_crossing()
        self._meter.add(weight_uploads=1, weight_upload_bytes=self._upload_bytes)

    def report_stale_weights(self, executable: Executable) -> None:
        """Warn, once, of weights that were changed on the host since they last crossed, and that inference lacks."""
        tensors, before = self._crossed
        if counts(tensors) == before:
            return
        written, host = self._written(), self._host.tensors()
        device = {name: executable.host_weight(name) for name in written if name in executable.weights}
        device.update(executable.buffers[0])
        edited = [name for name in written if not torch.equal(plain(host[name]).to(device[name].dtype), device[name])]
        if not edited:
            self._note_crossing()  # also on the device
            return
        self._report(edited, "computes with its own values, as with PopTorch")

    def _report_edits(self) -> None:
        """Warn, once, of parameters and buffers that were changed on the host since they last crossed."""
        edited = self._written()
        if edited and not self.edits_reported:
            self._report(edited, "went on with its own values, and these replace the edit now")

    def _report(self, edited: Sequence[str], device: str) -> None:
        self.edits_reported = True
        logger.warning(
            "%s: edited on the host since the weights last crossed, and never uploaded. The device %s: call "
            "copyWeightsToDevice() after editing weights.",
            ", ".join(edited),
            device,
        )

    def _written(self) -> List[str]:
        """Return the names of the tensors that the host has written since they last crossed."""
        triples = zip(self._names, self._host_versions, self._versions())
        return [name for name, before, now in triples if now != before]

    def _note_crossing(self) -> None:
        """Record the host's tensors as the ones that the device has."""
        self._host_versions = self._versions()
        if not self._training:
            host = self._host.tensors()
            tensors = [host[name] for name in self._names if counted(host[name])]
            self._crossed = tensors, counts(tensors)

    def _versions(self) -> List[int]:
        host = self._host.tensors()
        return versions([host[name] for name in self._names])


def size_of(tensors: Iterable[torch.Tensor]) -> int:
    """Return how many bytes tensors take; `Tensor.nbytes` came with PyTorch 2.1."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
