"""Buffers of integers and booleans that forward writes: counters, queue pointers, numbers of uses.

PopTorch compiles registered integers and booleans in as constants, so that a program would lose the writes. It keeps
buffers of floating-point numbers on the device. So each integer buffer that forward writes gets a float32 buffer, which
carries its value from call to call. Within a call forward has integers, computed from the carrier. The carrier is
written when the call ends. A number of 32 bits is carried in two halves, since float32 is exact up to 2**24. Programs
that only read a buffer which another program of the model writes carry it, too.

Over several IPUs the carrier is read and written by one stage, as the statistics of a normalisation are: forward of the
layer that has the buffer, and no other code, has the integers. Otherwise the first stage of a pipeline would read
before its last one has written.

The integer buffer of the host is as new as the host's weights: it is encoded before each upload and decoded after each
download.
"""

from __future__ import annotations

import contextlib
from typing import Any, Collection, Dict, Iterator, List, NamedTuple, NoReturn, Sequence, Tuple
from unittest import mock

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from ignite_ipu import backend
from ignite_ipu.capabilities.traced import NO_FUNCTION, WHOLE
from ignite_ipu.errors import SessionError, listed
from ignite_ipu.program.tensors.raw import dtype_of, named_tensors, plain
from ignite_ipu.program.traced_places import refusal_at
from ignite_ipu.program.user_code import current_line
from ignite_ipu.torch_names.modules import (
    BUFFERS,
    NormWithStatistics,
    all_modules,
    all_named_modules,
    forward_pre_hooks_of,
)

_HALF = 2**16
# These are exact in float32.
_NARROW = (torch.bool, torch.uint8, torch.int8, torch.int16)
CARRIED = (*_NARROW, torch.int32, torch.int64)
"""The types of the buffers that can be carried."""
# The device's integers have 32 bits. A number that has reached this one may have grown beyond them.
_LARGEST = 2**30


class _Carried(NamedTuple):
    """An integer buffer with its carrier.

    Attributes:
        name: Its name in the step.
        buffer: The buffer.
        places: The tables that it is in, with its name there.
        carrier: The name of the step's buffer that carries it.
        values: That buffer on the host: halves and the largest half so far of wide integers, the values of others.
        known: The content of `values` at the last copy in either direction.
        is_written: Whether forward writes the buffer.
    """

    name: str
    buffer: torch.Tensor
    places: List[Tuple[Dict[str, Any], str]]
    carrier: str
    values: torch.Tensor
    known: torch.Tensor
    is_written: bool

    def put(self, own: Dict[str, Any]) -> None:
        """Let code that is traced have the integers, from the carrier among the step's `own` buffers."""
        now = _decoded(own[self.carrier], dtype_of(self.buffer))
        for table, name in self.places:
            table[name] = now

    def take(self, own: Dict[str, Any]) -> None:
        """Write the integers into the carrier, if forward writes them."""
        if self.is_written:
            table, name = self.places[0]
            with torch.no_grad():
                own[self.carrier].copy_(_encoded(table[name], own[self.carrier]))


class IntegerBuffers:
    """The integer buffers of a step that programs write, each with a float32 buffer that carries it on a device."""

    def __init__(self) -> None:
        self._carried: List[_Carried] = []
        self._are_placed = False

    def __bool__(self) -> bool:
        return bool(self._carried)

    def __contains__(self, buffer: torch.Tensor) -> bool:
        return any(each.buffer is buffer for each in self._carried)

    @property
    def names(self) -> List[str]:
        """Their names in the step."""
        return [each.name for each in self._carried]

    def carry(
        self, step: nn.Module, written: Collection[str], read: Sequence[str] = (), several_ipus: bool = False
    ) -> None:
        """Carry the buffers that forward writes from now on and those that it may read, by name, and no others.

        If the layers are on several IPUs, those of a layer are there alone.
        """
        self._are_placed = several_ipus
        own = vars(step)[BUFFERS]
        for each in self._carried:
            own.pop(each.carrier, None)
        self._carried.clear()
        if not (written or read):
            return
        tables = [vars(module)[BUFFERS] for module in all_modules(step)]
        buffers = named_tensors(step, BUFFERS)
        for name in (*written, *read):
            buffer = buffers[name]
            if buffer in self:
                continue
            places = [(table, key) for table in tables for key, value in table.items() if value is buffer]
            carrier = f"integers_{len(self._carried)}"
            rows = 1 if dtype_of(buffer) in _NARROW else 3
            values = torch.zeros(rows, *buffer.shape, dtype=torch.float32)
            step.register_buffer(carrier, values, persistent=False)
            self._carried.append(_Carried(name, buffer, places, carrier, values, values.clone(), name in written))

    def encode(self) -> None:
        """Write the values of the host into the carriers, before an upload.

        Raises:
            SessionError: A value has more than 32 bits, or is so large that one call may lead beyond them.
        """
        for each in self._carried:
            buffer = plain(each.buffer)
            if len(each.values) > 1 and _is_large(torch.floor_divide(buffer, _HALF)):
                raise SessionError(
                    f"{each.name} is {_largest(buffer):,}, and a device's integers have 32 bits. Integers that forward "
                    f"writes have to stay below {_LARGEST:,}, so that none leaves these unnoticed. Count in larger "
                    "units, or in a torch.float64 number of the loop."
                )
            with torch.no_grad():
                plain(each.values).copy_(_encoded(buffer, None))
                each.known.copy_(plain(each.values))

    def decode(self) -> None:
        """Write the values of the carriers into the buffers of the host, after a download; PyTorch counts no edit.

        Raises:
            SessionError: A value may have left the 32 bits of the device's integers.
        """
        too_large: List[str] = []
        for each in self._carried:
            values, buffer = plain(each.values), plain(each.buffer)
            if torch.equal(values, each.known):
                continue
            if len(values) > 1 and _is_large(values[2]):
                too_large.append(each.name)
                continue
            each.known.copy_(values)
            buffer.numpy()[...] = _decoded(values, buffer.dtype).numpy()
        if too_large:
            raise SessionError(
                f"{listed(too_large)} has reached {_LARGEST:,}, and a device's integers have 32 bits, beyond which "
                "they would begin again below zero. Count in larger units, or in a torch.float64 number of the loop."
            )

    @contextlib.contextmanager
    def on_device(self, step: nn.Module) -> Iterator[None]:
        """Have forward, which is traced in the `with` block, compute with the integers that are carried."""
        if not self._carried:
            yield
            return
        own, modules = vars(step)[BUFFERS], all_modules(step)
        before = [(table, name, table[name]) for each in self._carried for table, name in each.places]
        try:
            with _Blocks(self.names) as blocks:
                if self._are_placed or _begin_blocks(modules):
                    with contextlib.ExitStack() as stack:
                        for module in modules:
                            carried = [each for each in self._carried if each.places[0][0] is vars(module)[BUFFERS]]
                            if carried:
                                stack.enter_context(_carried_within(module, carried, own, blocks))
                        yield
                    return
                for each in self._carried:
                    each.put(own)
                yield
                blocks.refuse_opened(0)
                for each in self._carried:
                    each.take(own)
        finally:
            for table, name, tensor in before:
                table[name] = tensor


def counts_on_host(module: nn.Module, name: str) -> bool:
    """Return whether a buffer is a counter from which a program computes nothing."""
    if isinstance(module, NormWithStatistics) and name == "num_batches_tracked":
        return module.momentum is not None
    return isinstance(module, AveragedModel) and name == "n_averaged"


def integer_buffers(module: nn.Module) -> List[str]:
    """Return the names of the buffers of integers and booleans that forward may write, without counters of batches."""
    return [
        f"{path}.{name}" if path else name
        for path, each in all_named_modules(module)
        for name, buffer in vars(each)[BUFFERS].items()
        if buffer is not None and not plain(buffer).is_floating_point()
        if not (isinstance(each, NormWithStatistics) or counts_on_host(each, name))
    ]


def _encoded(values: torch.Tensor, before: Any) -> torch.Tensor:
    """Return the rows of a carrier for integers.

    `before` are those with the largest upper half so far, None for a new carrier.
    """
    if values.dtype in _NARROW:
        return values.to(torch.float32).unsqueeze(0)
    # Quotients of negative numbers may be rounded either way.
    upper = torch.floor_divide(values, _HALF)
    lower = values - upper * _HALF
    halves = upper.to(torch.float32)
    largest = torch.zeros_like(halves) if before is None else torch.maximum(before[2], halves.abs())
    return torch.stack([halves, lower.to(torch.float32), largest])


def _decoded(rows: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return the integers of a carrier's rows."""
    if dtype in _NARROW:
        return rows[0].to(dtype)
    return rows[0].to(dtype) * _HALF + rows[1].to(dtype)


def _is_large(upper: torch.Tensor) -> bool:
    """Return whether there is an upper half of a number that may have left the 32 bits of the device's integers."""
    return bool((upper.abs() >= _LARGEST // _HALF).any())


def _largest(values: torch.Tensor) -> int:
    return max(int(values.max()), int(values.min()), key=abs)


class _Blocks:
    """Context that notes blocks on several IPUs, which forward opens while it is traced.

    A stage of a pipeline would read integers before a later one has written them. So all code that uses them has to be
    in one block.

    Args:
        names: The names of the integers.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names, self.opened = names, 0
        self._patch: Any = None

    def __enter__(self) -> _Blocks:
        poptorch: Any = backend.poptorch()
        start = poptorch.Block.start

        def noted(*args: Any, **kwargs: Any) -> Any:
            self.opened += 1
            return start(*args, **kwargs)

        self._patch = mock.patch.object(poptorch.Block, "start", staticmethod(noted))
        self._patch.start()
        return self

    def __exit__(self, *error: Any) -> None:
        self._patch.stop()

    def refuse_opened(self, before: int) -> None:
        """Refuse blocks that were opened since there were so many `before`."""
        if self.opened > before:
            self.refuse()

    def refuse(self) -> NoReturn:
        raise SessionError(refusal_at(WHOLE, current_line().place, NO_FUNCTION, ", ".join(self._names)))


class _Elsewhere:
    """In the place of a layer's integers for code outside of its forward, maybe on another IPU: refuses every use."""

    def __init__(self, blocks: _Blocks) -> None:
        self._blocks = blocks

    def __getattr__(self, name: str) -> Any:
        self._blocks.refuse()

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = [*args, *(kwargs or {}).values()]
        next(each for each in given if isinstance(each, _Elsewhere)).shape  # noqa: B018


@contextlib.contextmanager
def _carried_within(
    module: nn.Module, carried: Sequence[_Carried], own: Dict[str, Any], blocks: _Blocks
) -> Iterator[None]:
    """Have integers of a layer in its forward alone, which is traced in the `with` block, and whose IPU has them."""
    forward, attributes, away = module.forward, vars(module), _Elsewhere(blocks)

    def called(*args: Any, **kwargs: Any) -> Any:
        if _begin_blocks(all_modules(module)[1:]):
            blocks.refuse()
        opened = blocks.opened
        for each in carried:
            each.put(own)
        output = forward(*args, **kwargs)
        blocks.refuse_opened(opened)
        for each in carried:
            each.take(own)
        keep_away()
        return output

    def keep_away() -> None:
        for each in carried:
            for table, name in each.places:
                table[name] = away

    keep_away()
    before = attributes.get("forward")
    attributes["forward"] = called
    try:
        yield
    finally:
        if before is None:
            del attributes["forward"]
        else:
            attributes["forward"] = before


def _begin_blocks(modules: Sequence[nn.Module]) -> bool:
    """Return whether blocks on several IPUs begin at modules, by `poptorch.BeginBlock`."""
    poptorch: Any = backend.poptorch()
    hooks = (hook for module in modules for hook in forward_pre_hooks_of(module).values())
    if any(type(hook).__module__.startswith(poptorch.__name__) for hook in hooks):
        return True
    return any(type(module).__name__ == "LegacyBeginBlockFn" for module in modules)
