"""The `python` of programs that tests start: has a program forked from the process of `tests.processes`.

The socket of that process is beside this file. Signals are passed on to the program, which is killed with this process,
sees the parent of this process as its own, has its open files, and gives it its exit code. With other options of the
interpreter than `-u` and `-B`, Python itself is started.
"""

from __future__ import annotations

import array
import contextlib
import itertools
import json
import os
import signal
import socket
import sys

# Options that a forked program can have.
_PLAIN = ("-u", "-B")
_PASSED_ON = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


def _is_inherited(descriptor: int) -> bool:
    with contextlib.suppress(OSError):  # that of the list itself
        return os.get_inheritable(descriptor)
    return False


def _main() -> int:
    words = sys.argv[1:]
    options = list(itertools.takewhile(_PLAIN.__contains__, words))
    words = words[len(options) :]
    is_option = not words or (words[0].startswith("-") and words[0] not in ("-c", "-m"))
    if is_option:
        os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
    inherited = [each for each in sorted(map(int, os.listdir("/proc/self/fd"))) if each > 2 and _is_inherited(each)]
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(os.path.join(os.path.dirname(os.path.abspath(__file__)), "socket"))
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED_ON)  # until the request is sent
    for number in _PASSED_ON:
        signal.signal(number, lambda received, frame: connection.send(bytes([received])))
    about = {"words": words, "env": dict(os.environ), "cwd": os.getcwd(), "options": options}
    request = json.dumps({**about, "waiting": os.getpid(), "inherited": inherited}).encode()
    streams = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0, 1, 2, *inherited]))]
    connection.sendmsg([len(request).to_bytes(4, "big")], streams)
    connection.sendall(request)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    code = int(connection.recv(100) or b"1")
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


if __name__ == "__main__":
    sys.exit(_main())
