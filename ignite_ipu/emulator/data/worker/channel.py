"""Messages between an accessor and its worker process.

Each message is one packet of a Unix socket, so it arrives whole or not at all, whoever dies when. What does not fit
into a packet travels as an anonymous file, of which only the descriptor is sent.
"""

from __future__ import annotations

import array
import enum
import os
import select
import socket
import struct
import tempfile
from typing import List, NamedTuple, Optional, Sequence, Tuple

_HEADER = struct.Struct("<Bqq?")
_INLINE = 16 * 1024
_MOST_FILES = 4
_POINTER = array.array("i").itemsize
_RIGHTS_SIZE = socket.CMSG_SPACE(_MOST_FILES * _POINTER)
# Plain integers, made once: these flags are enumerations, and joining them takes longer than the call they are for.
_RECEIVE_FLAGS = int(socket.MSG_DONTWAIT) | int(socket.MSG_CMSG_CLOEXEC)
_SEND_FLAGS = int(socket.MSG_DONTWAIT)


class Kind(enum.IntEnum):
    """What a message says."""

    FREED = 0
    """To the worker: `number` items in all have been given back."""
    ITERATE = 1
    """To the worker: deliver an epoch numbered above `number`; `body`, if any, is the random state to begin it with."""
    STOP = 2
    """To the worker: finish."""
    STARTED = 3
    """From the worker: it runs; the file receives its stack when it is asked for."""
    LAYOUT = 4
    """From the worker: `body` describes the items, the file holds the slots."""
    ITEM = 5
    """From the worker: the next slot holds `rows` rows (-1: all of them) of epoch `number`."""
    END = 6
    """From the worker: epoch `number` is complete."""
    FAILED = 7
    """From the worker: it gives up, `body` says why."""


_KINDS = tuple(Kind)


class Message(NamedTuple):
    """One message, with the descriptors that came along; whoever receives it owns and closes them."""

    kind: Kind
    number: int = 0
    rows: int = -1
    body: bytes = b""
    files: Tuple[int, ...] = ()


class Channel:
    """One end of a two-way channel; it pickles into a child process that is being started."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection

    @classmethod
    def pair(cls) -> Tuple[Channel, Channel]:
        """Return the two ends of a new channel."""
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return cls(here), cls(there)

    def fileno(self) -> int:
        """Return the descriptor to poll."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close this end."""
        self._socket.close()

    def send(self, message: Message, wait: bool = True) -> bool:
        """Send one message.

        Args:
            message: What to send. Its descriptors stay open here.
            wait: Block until there is room for it.

        Returns:
            Whether it was sent; always True if `wait`.

        Raises:
            OSError: The other end is closed.
        """
        body, files, spilled = message.body, list(message.files), -1
        if len(body) > _INLINE:
            spilled = anonymous_file(len(body))
            _write_all(spilled, body)
            body, files = b"", [*files, spilled]
        packet = _HEADER.pack(message.kind, message.number, message.rows, spilled >= 0) + body
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files).tobytes())] if files else []
        try:
            self._socket.sendmsg([packet], rights, 0 if wait else _SEND_FLAGS)
        except BlockingIOError:
            return False
        finally:
            if spilled >= 0:
                os.close(spilled)
        return True

    def receive(self) -> Optional[Message]:
        """Return the next message, or None if none has arrived.

        Raises:
            EOFError: The other end is closed and everything was read.
        """
        try:
            packet, rights, _, _ = self._socket.recvmsg(_HEADER.size + _INLINE, _RIGHTS_SIZE, _RECEIVE_FLAGS)
        except BlockingIOError:
            return None
        except ConnectionResetError:
            packet, rights = b"", []
        if not packet:
            raise EOFError("the other end of the channel is closed")
        files = _descriptors([data for _, _, data in rights]) if rights else []
        kind, number, rows, is_spilled = _HEADER.unpack_from(packet)
        body = packet[_HEADER.size :]
        if is_spilled:
            body = _read_all(files.pop())
        return Message(_KINDS[kind], number, rows, body, tuple(files))

    def wait(self) -> None:
        """Block until a message has arrived or the other end is closed."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        poll.poll()


def anonymous_file(size: int) -> int:
    """Return the descriptor of a new shareable file of `size` zero bytes that has no name, so that nothing can leak.

    Raises:
        OSError: There is not enough memory for it.
    """
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("ignite_ipu-data", os.MFD_CLOEXEC)
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    try:
        if size:
            # Allocated now: a file grown by truncation kills whoever writes the page for which no memory is left.
            os.posix_fallocate(descriptor, 0, size)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def read_anonymous_file(descriptor: int) -> bytes:
    """Return all that was written to an anonymous file."""
    parts: List[bytes] = []
    offset = 0
    while True:
        part = os.pread(descriptor, 1 << 20, offset)
        if not part:
            return b"".join(parts)
        parts.append(part)
        offset += len(part)


def _descriptors(rights: Sequence[bytes]) -> List[int]:
    files = array.array("i")
    for data in rights:
        files.frombytes(data[: len(data) - len(data) % _POINTER])
    return list(files)


def _write_all(descriptor: int, body: bytes) -> None:
    view, offset = memoryview(body), 0
    while offset < len(body):
        offset += os.pwrite(descriptor, view[offset:], offset)


def _read_all(descriptor: int) -> bytes:
    try:
        return read_anonymous_file(descriptor)
    finally:
        os.close(descriptor)
