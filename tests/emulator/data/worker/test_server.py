"""The server that worker processes are forked from: one for all, and its processes are as good as spawned ones."""

from __future__ import annotations

import os
import signal
import sys
import textwrap

import pytest
import torch
from torch.utils.data import Dataset

from ignite_ipu.emulator.data import AsynchronousDataAccessor, DataLoader, set_worker_timeout
from ignite_ipu.emulator.data.worker import server
from ignite_ipu.emulator.enums import DataLoaderMode, SharingStrategy
from ignite_ipu.emulator.errors import Error
from ignite_ipu.emulator.options import Options


class Parents(Dataset):
    """Two times the number of the process that has made the one which loads."""

    def __len__(self):
        return 2

    def __getitem__(self, index):
        return torch.tensor(os.getppid())


class Nested:
    """The same, loaded by a process that the process which loads makes."""

    def __iter__(self):
        yield torch.tensor(parent())


def parent(dataset=None, strategy=SharingStrategy.ForkServer):
    """Return the text in the first item of `dataset`."""
    accessor = AsynchronousDataAccessor(Parents() if dataset is None else dataset, sharing_strategy=strategy)
    number = next(accessor).item()
    accessor.terminate()
    return number


@pytest.mark.parametrize("strategy", set(SharingStrategy) - {SharingStrategy.Fork})
def test_every_strategy_but_fork_uses_the_one_server(strategy):
    assert parent(strategy=strategy) == server._server.pid


def test_processes_of_the_server_and_forks_of_the_program_use_it_too():
    assert parent(Nested()) == server._server.pid
    child = os.fork()
    if not child:
        os._exit(parent() != server._server.pid)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("mode", [DataLoaderMode.Sync, DataLoaderMode.Async])
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_loader_processes_come_from_it_where_each_would_import_torch(mode, method):
    """The loader's own context stays the same."""
    loader = DataLoader(Options(), Parents(), num_workers=2, multiprocessing_context=method, mode=mode)
    assert [item.item() for item in loader] == [server._server.pid] * 2
    assert loader.multiprocessing_context.get_start_method() == method and loader.worker_init_fn is None
    loader.terminate()


class Surroundings(Dataset):
    """The environment of the loading process, and numbers that are shared with it."""

    def __init__(self):
        self.shared = [torch.zeros(1).share_memory_() for _ in range(300)]

    def __len__(self):
        return 1

    def __getitem__(self, index):
        for place, tensor in enumerate(self.shared):
            tensor.fill_(place)
        print("printed by the worker", os.environ["SET_LATER"], os.getcwd(), flush=True)
        return torch.tensor("SET_EARLIER" in os.environ)


def test_a_process_finds_what_a_spawned_one_would(monkeypatch, tmp_path, capfd):
    """The program's current environment, directory and output, not those at the server's start; many descriptors."""
    monkeypatch.setenv("SET_EARLIER", "")
    parent()
    monkeypatch.delenv("SET_EARLIER")
    monkeypatch.setenv("SET_LATER", "new")
    monkeypatch.chdir(tmp_path)
    data = Surroundings()
    assert parent(data, SharingStrategy.SharedMemory) == 0
    assert [tensor.item() for tensor in data.shared] == list(range(300))
    # It may have loaded ahead: the accessor begins anew after the last item.
    assert set(capfd.readouterr().out.splitlines()) == {f"printed by the worker new {tmp_path}"}


def test_a_server_that_died_or_hangs_is_replaced(monkeypatch):
    parent()
    before = server._server.pid
    os.kill(before, signal.SIGSTOP)
    previous = set_worker_timeout(0.3)
    with pytest.raises(Error, match=r"(?s)failed to start.*has not answered for 0.3 seconds.*IGNITE_IPU_DATA_TIMEOUT"):
        parent()
    set_worker_timeout(previous)
    assert parent() == server._server.pid != before


PROGRAM = """
    import os, sys, threading, time
    os.write(1, f"imported as {{__name__}}\\n".encode())  # at once, between what other processes print
    {early}
    import torch
    from ignite_ipu.emulator.data import AsynchronousDataAccessor, DataLoader
    from ignite_ipu.emulator.options import Options

    class Data(torch.utils.data.Dataset):
        def __len__(self):
            return 4
        def __getitem__(self, index):
            return torch.tensor(index)

    if __name__ == "__main__":
        for _ in range(2):
            loader = DataLoader(Options(), Data(), num_workers=2, multiprocessing_context="forkserver")
            print([x.item() for x in loader], flush=True)
            accessor = AsynchronousDataAccessor(Data())
            print(next(accessor).item(), flush=True)
            accessor.terminate()
"""


@pytest.fixture
def run(tmp_path, processes):
    """Run the program with some parts of its own."""

    def run(**parts):
        path = tmp_path / "program.py"
        path.write_text(textwrap.dedent(PROGRAM.format(**{"early": "", **parts})))
        return processes.run([path], env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))})

    return run


def test_the_main_module_is_imported_once_for_all_processes(run):
    done = run()
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:2] == ["imported as __main__", "imported as __mp_main__"]
    assert done.stdout.split("\n")[2:] == ["[0, 1, 2, 3]", "0"] * 2 + [""]


def test_a_main_module_with_threads_is_imported_by_each_process(run):
    """A thread that the server had would be missing in them."""
    done = run(early="threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("imported as __mp_main__") == 1 + 6
