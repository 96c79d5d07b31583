"""After any failure of a worker, its accessor raises and leaves nothing behind."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import warnings
from multiprocessing import resource_tracker

import pytest
import torch
from torch.utils.data import Dataset

from ignite_ipu.emulator.data import AsynchronousDataAccessor, DataLoader, set_worker_timeout, worker_timeout
from ignite_ipu.emulator.data.strictness import poisons_stale_batches, set_poisoning
from ignite_ipu.emulator.data.worker import process, worker
from ignite_ipu.emulator.data.worker.orphans import kill_group
from ignite_ipu.emulator.enums import DataLoaderMode, SharingStrategy
from ignite_ipu.emulator.errors import Error
from ignite_ipu.emulator.options import Options

FORK = {"sharing_strategy": SharingStrategy.Fork}


class Faulty(Dataset):
    """Numbers, but instead of number `at` something happens."""

    def __init__(self, at, happening):
        self.at, self.happening = at, happening
        self.has_happened = torch.zeros(1).share_memory_()

    def __len__(self):
        return 8

    def __getitem__(self, index):
        if index >= len(self):
            raise IndexError
        if index == self.at:
            self.has_happened.fill_(1)
            self.happening()
        return torch.tensor([index])


def raises():
    raise KeyError("no such picture")


def leaves():
    sys.exit("enough")


def is_killed():
    os.kill(os.getpid(), signal.SIGKILL)


def exits():
    os._exit(3)


def hangs():
    time.sleep(1000)


def hangs_hard():
    while True:
        with contextlib.suppress(KeyboardInterrupt):
            time.sleep(1000)


def is_alive(pid):
    """Whether a process exists, other than as a zombie."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def group_of(pid):
    """Return the processes of the group that `pid` leads."""
    members = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):
                if os.getpgid(int(name)) == pid and is_alive(name):
                    members.append(int(name))
    return members


def eventually(condition):
    deadline = time.monotonic() + 60
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()


def left_segments():
    """Return shared memory that torch made for this process or for one that is gone: tests beside this have theirs."""
    owners = {name: name.split("_")[1] for name in os.listdir("/dev/shm") if name.startswith("torch_")}
    return {name for name, pid in owners.items() if pid == str(os.getpid()) or not is_alive(pid)}


@pytest.fixture(scope="module", autouse=True)
def server(processes):
    """The process that starts others stays with its pipes: it starts before descriptors are counted."""
    processes.run(["-c", ""])


@pytest.fixture(autouse=True)
def nothing_is_left(server):
    """After each test there are the same descriptors and shared memory as before, and no children."""
    resource_tracker.ensure_running()  # once for the whole process
    files, shared = len(os.listdir("/proc/self/fd")), left_segments()
    yield
    gc.collect()
    assert not list(process._running)
    # Fewer is possible: garbage of another test.
    assert len(os.listdir("/proc/self/fd")) <= files
    assert eventually(lambda: left_segments() <= shared), left_segments() - shared
    assert not multiprocessing.active_children()


@pytest.fixture
def short_timeout():
    before = set_worker_timeout(0.3)
    yield
    set_worker_timeout(before)


@pytest.fixture
def short_patience(monkeypatch):
    monkeypatch.setattr(process, "POLITE_SECONDS", 0.2)
    monkeypatch.setattr(process, "INTERRUPT_SECONDS", 0.2)


FATES = [
    (raises, "raised KeyError while loading item {at} of epoch 0: 'no such picture'"),
    (leaves, "raised SystemExit while loading item {at} of epoch 0: enough"),
    (is_killed, "was killed by signal SIGKILL"),
    (exits, "exited with code 3 before it was asked to"),
    (hangs, "hangs: it has delivered nothing for 0.3 seconds"),
]


@pytest.mark.parametrize(("happening", "message"), FATES)
def test_failing_at_the_first_item_fails_the_constructor(short_timeout, happening, message):
    set_worker_timeout(0.3 if happening is hangs else 60)
    with pytest.raises(Error, match=r"worker thread failed to start: worker process [0-9]+ ") as error:
        AsynchronousDataAccessor(Faulty(0, happening), **FORK)
    assert message.format(at=0) in str(error.value)
    assert happening.__name__ in str(error.value) or happening in (is_killed, exits)


@pytest.mark.parametrize(("happening", "message"), FATES)
def test_failing_later_fails_the_next_item(short_timeout, happening, message):
    set_worker_timeout(60)  # the first items may take a while to come
    accessor = AsynchronousDataAccessor(Faulty(5, happening), **FORK)
    set_worker_timeout(0.3 if happening is hangs else 60)
    pid = accessor._worker.pid
    with pytest.raises(AssertionError, match=r"An error occurred in the data fetcher: worker process [0-9]+ ") as error:
        list(accessor)
    assert message.format(at=5) in str(error.value)
    assert not is_alive(pid)
    for again in (next, iter):
        with pytest.raises(AssertionError, match="An error occurred in the data fetcher"):
            again(accessor)


@pytest.mark.parametrize("at", [0, 5], ids=["at the start", "later"])
def test_the_worker_writes_its_traceback_to_standard_error(capfd, at):
    """With the original exception's type and text, besides the error of the reader."""
    with pytest.raises((Error, AssertionError)):
        list(AsynchronousDataAccessor(Faulty(at, raises), **FORK))
    text = capfd.readouterr().err
    assert "Traceback" in text and "in raises" in text and "KeyError: 'no such picture'" in text


def test_what_was_loaded_before_an_exception_is_delivered():
    accessor = AsynchronousDataAccessor(Faulty(5, raises), **FORK)
    assert [next(accessor).item() for _ in range(5)] == [0, 1, 2, 3, 4]
    with pytest.raises(AssertionError, match="no such picture"):
        next(accessor)


def test_the_report_shows_the_line_that_hangs(short_timeout):
    with pytest.raises(Error, match=r"(?s)Where it hangs:.*test_worker_failures\.py.* in hangs\n"):
        AsynchronousDataAccessor(Faulty(0, hangs), **FORK)


def test_a_worker_killed_from_outside_is_noticed_at_the_next_item():
    accessor = AsynchronousDataAccessor(Faulty(None, raises), buffer_size=5, early_preload=True, **FORK)
    next(accessor)
    os.kill(accessor._worker.pid, signal.SIGKILL)
    with pytest.raises(AssertionError, match="killed by signal SIGKILL"):
        eventually(lambda: next(accessor) is None)


def test_a_worker_killed_while_it_is_waited_for_is_noticed(short_timeout):
    set_worker_timeout(60)
    accessor = AsynchronousDataAccessor(Faulty(4, hangs), **FORK)
    timer = threading.Timer(0.1, os.kill, (accessor._worker.pid, signal.SIGKILL))
    timer.start()
    start = time.monotonic()
    with pytest.raises(AssertionError, match="killed by signal SIGKILL"):
        list(accessor)
    assert time.monotonic() - start < 30
    timer.join()


@pytest.mark.parametrize(
    ("happening", "message"),
    [
        (raises, "no such picture"),
        # By torch, or, if all that torch noticed is a broken connection, by the worker.
        (
            is_killed,
            r"DataLoader worker (\(pid.*(exited unexpectedly|killed by signal)|process.*\(exit code -9\) had died)",
        ),
    ],
)
def test_a_failing_loader_process_behind_the_worker_is_named(happening, message):
    accessor = DataLoader(Options(), Faulty(5, happening), num_workers=2, mode=DataLoaderMode.Async, async_options=FORK)
    pid = accessor._accessor._worker.pid
    with pytest.raises(AssertionError, match=f"(?s)An error occurred in the data fetcher.*{message}"):
        list(accessor)
    assert eventually(lambda: not group_of(pid))


@pytest.mark.parametrize("deaths", [0, 1, 2])
def test_processes_that_die_while_the_handler_is_replaced_hide_no_report(deaths, monkeypatch):
    """`signal.signal` first calls the handler of a signal that has arrived, and replaces nothing if that raises."""
    replaced = []

    def replace(number, handler):
        if len(replaced) < deaths:
            replaced.append(None)
            raise RuntimeError("DataLoader worker (pid 755) is killed by signal: Killed.")
        replaced.append((number, handler))

    monkeypatch.setattr(worker.signal, "signal", replace)
    worker._disarm_loader()
    assert replaced[deaths:] == [(signal.SIGCHLD, signal.SIG_DFL)]


def test_killing_the_worker_ends_its_loader_processes_too():
    loader = DataLoader(Options(), Faulty(None, raises), num_workers=2, mode=DataLoaderMode.Async, async_options=FORK)
    next(iter(loader))
    pid = loader._accessor._worker.pid
    assert len(group_of(pid)) == 3
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(AssertionError, match="killed by signal SIGKILL"):
        eventually(lambda: next(loader._accessor) is None)
    assert eventually(lambda: not group_of(pid))


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("way", ["terminate", "delete", "collect", "exception"])
def test_ending(way, num_workers):
    loader = DataLoader(
        Options(), Faulty(None, raises), num_workers=num_workers, mode=DataLoaderMode.Async, async_options=FORK
    )
    pid = loader._accessor._worker.pid
    iterator = iter(loader)
    next(iterator)
    if way == "terminate":
        loader.terminate()
        loader.terminate()
        for use in (iter, list, lambda it: next(it._accessor)):
            with pytest.raises(AssertionError, match="has been terminated"):
                use(loader)
        assert len(loader) == 8
    elif way == "delete":
        del loader, iterator
    elif way == "collect":
        loader.itself = loader
        del loader, iterator
        gc.collect()
    else:

        def fails(loader, iterator):
            next(iterator)
            raise RuntimeError("in the training step")

        with pytest.raises(RuntimeError, match="training step"):
            fails(loader, iterator)
        del loader, iterator
    assert not group_of(pid)


def test_the_shared_memory_of_killed_processes_is_removed():
    child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    with open(f"/dev/shm/torch_{child.pid}_123_0", "w") as left_behind:
        kill_group(child.pid)
    assert not os.path.exists(left_behind.name)
    assert child.wait() == -signal.SIGKILL


def test_a_refused_argument_leaves_no_worker():
    with pytest.raises(AssertionError, match="works if 'rebatched_size'"):
        AsynchronousDataAccessor(DataLoader(Options(), Faulty(None, raises), 2, drop_last=False), **FORK)
    with pytest.raises(ValueError, match="-1 seconds makes no sense"):
        set_worker_timeout(-1)


@pytest.mark.parametrize("happening", [hangs, hangs_hard])
def test_a_hanging_worker_is_interrupted_and_then_killed(short_patience, happening):
    dataset = Faulty(1, happening)
    accessor = AsynchronousDataAccessor(dataset, early_preload=True, **FORK)
    assert eventually(dataset.has_happened.item)
    pid = accessor._worker.pid
    start = time.monotonic()
    accessor.terminate()
    assert not is_alive(pid)
    took = time.monotonic() - start
    assert took >= (0.2 if happening is hangs else 0.4)


def test_a_full_connection_blocks_nobody(short_timeout, short_patience):
    """If a worker does not read, messages without room are kept back, the latest of each kind."""
    set_worker_timeout(60)  # the first items may take a while to come
    accessor = AsynchronousDataAccessor([torch.ones(1)] * 2000, buffer_size=2000, early_preload=True, **FORK)
    set_worker_timeout(0.3)
    worker = accessor._worker
    os.kill(worker.pid, signal.SIGSTOP)

    def fill():
        for number in range(300):
            worker.send(process.Message(process.MessageKind.ITERATE, number, body=bytes(5000)))
            worker.send(process.Message(process.MessageKind.FREED, number))

    sender = threading.Thread(target=fill, daemon=True)
    sender.start()
    sender.join(30)
    is_blocked = sender.is_alive()
    if is_blocked:
        os.kill(worker.pid, signal.SIGKILL)
    unsent = [(message.kind, message.number) for message in worker._unsent.values()]
    accessor.terminate()
    assert not is_blocked
    assert unsent == [(process.MessageKind.ITERATE, 299), (process.MessageKind.FREED, 299)]
    assert not is_alive(worker.pid)


def test_a_fork_of_the_program_neither_uses_nor_ends_the_worker():
    accessor = AsynchronousDataAccessor(Faulty(None, raises), **FORK)
    pid = accessor._worker.pid
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if not child:
        code = 1
        with contextlib.suppress(BaseException):
            accessor.terminate()
            accessor.__del__()
            process._stop_all()
            try:
                next(accessor)
            except RuntimeError as error:
                code = 0 if "not to this fork" in str(error) else 2
        os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert is_alive(pid)
    assert len(list(accessor)) == 8
    accessor.terminate()


PROGRAM = """
    import os, signal, sys, time, weakref
    class Early: pass
    early = Early()
    # The first finalizer registers weakref's exit handler before multiprocessing registers its own.
    weakref.finalize(early, print, end="")
    import torch
    from ignite_ipu.emulator.data import AsynchronousDataAccessor
    from ignite_ipu.emulator.enums import SharingStrategy

    class Numbers:
        def __iter__(self):
            for i in range(100):
                if {hangs} and i == 2:
                    time.sleep(1000)
                yield torch.tensor([i])

    accessor = AsynchronousDataAccessor(Numbers(), sharing_strategy=SharingStrategy.Fork)
    next(accessor)
    cycle = [accessor]
    cycle.append(cycle)
    time.sleep(0.1)
    print(accessor._worker.pid, flush=True)
    {end}
"""


@pytest.mark.parametrize(
    ("hangs", "end", "code"),
    [(False, "sys.exit(7)", 7), (True, "os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL)],
    ids=["the program exits", "the program is killed"],
)
def test_the_worker_ends_with_the_program(processes, hangs, end, code):
    program = textwrap.dedent(PROGRAM.format(hangs=hangs, end=end))
    done = processes.run(["-c", program])
    assert done.returncode == code, done.stderr
    assert eventually(lambda: not is_alive(int(done.stdout)))


def test_settings_come_from_the_environment_unless_set(monkeypatch):
    assert worker_timeout() == 600 and poisons_stale_batches()
    monkeypatch.setenv("IGNITE_IPU_DATA_TIMEOUT", "0")
    monkeypatch.setenv("IGNITE_IPU_POISON_STALE_BATCHES", "0")
    assert worker_timeout() is None and not poisons_stale_batches()
    assert set_worker_timeout(5) is None and set_poisoning(True) is None
    assert worker_timeout() == 5 and poisons_stale_batches()
    assert set_worker_timeout(None) == 5 and set_poisoning(None) is True
    monkeypatch.setenv("IGNITE_IPU_DATA_TIMEOUT", "soon")
    monkeypatch.setenv("IGNITE_IPU_POISON_STALE_BATCHES", "yes")
    with pytest.raises(ValueError, match="IGNITE_IPU_DATA_TIMEOUT is 'soon'"):
        worker_timeout()
    with pytest.raises(ValueError, match="IGNITE_IPU_POISON_STALE_BATCHES is 'yes'"):
        poisons_stale_batches()
