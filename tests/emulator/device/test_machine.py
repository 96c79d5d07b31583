"""The table of who has which emulated IPU, in one process and over several."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ignite_ipu.emulator.device.machine import (
    EmulatedMachine,
    SharedMachine,
    device_ids,
    emulated_ipus,
    holder,
    machine,
    process_start,
)
from ignite_ipu.emulator.errors import Error


@pytest.fixture(params=["own", "shared"])
def ipus(request, tmp_path):
    return EmulatedMachine() if request.param == "own" else SharedMachine(str(tmp_path / "run"))


def dead_process() -> int:
    """Return the id of a process that has ended."""
    return int(subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True).stdout)


def test_ipus_are_given_to_one_holder_at_a_time(ipus):
    first, second = holder("first", 0), holder("second", 1)
    assert ipus.take([range(0, 2), range(2, 4)], first) == {0, 1}
    assert ipus.take([range(0, 2), range(2, 4)], second) == {2, 3}
    assert ipus.take([range(0, 4)], holder("third", 2)) is None
    assert ipus.users() == {0: first, 1: first, 2: second, 3: second}
    ipus.release(first)
    assert ipus.users() == {2: second, 3: second}
    ipus.release(first)
    assert ipus.take([range(0, 2)], holder("third", 2)) == {0, 1}


@given(st.lists(st.tuples(st.sampled_from([1, 2, 4]), st.booleans()), max_size=12))
def test_no_ipu_ever_has_two_holders(steps):
    table, held = EmulatedMachine(), []
    for number, (size, release) in enumerate(steps):
        if release and held:
            table.release(held.pop(0)[0])
        new = holder("x", number)
        taken = table.take([range(start, start + size) for start in range(0, 8, size)], new)
        occupied = set().union(*[ipus for _, ipus in held]) if held else set()
        if taken is None:
            # Brute force: indeed no aligned group of that size is free.
            assert all(occupied & set(range(start, start + size)) for start in range(0, 8, size))
        else:
            assert not taken & occupied
            held.append((new, taken))
        assert set(table.users()) == set().union(*[ipus for _, ipus in held]) if held else not table.users()


def test_processes_with_one_runtime_directory_share_the_ipus(tmp_path, processes):
    """IPUs of another living process are taken here; the message can name it; once it ends, the IPU is free."""
    code = (
        "import time; from ignite_ipu.emulator.device.machine import SharedMachine, holder\n"
        f"table = SharedMachine({str(tmp_path)!r})\n"
        "assert table.take([range(1)], holder('the other', 0)) == {0}\n"
        "print('taken', flush=True); time.sleep(100)"
    )
    here = SharedMachine(str(tmp_path))
    with processes.start(["-c", code]) as other:
        assert other.line() == "taken\n", other.errors()
        assert here.take([range(1)], holder("mine", 0)) is None
        assert str(here.users()[0]) == f"the other of process {other.pid}"
        other.send_signal(signal.SIGKILL)
    # It ended without giving the IPU back: that entry is stale.
    assert here.take([range(1)], holder("mine", 0)) == {0}


def test_a_later_process_with_the_same_id_is_not_mistaken_for_the_holder(tmp_path):
    table = SharedMachine(str(tmp_path))
    earlier = holder("an earlier process", 0)._replace(started="1")
    assert table.take([range(1)], earlier) == {0}
    assert table.users() == {}


def test_a_process_that_ended_is_not_alive():
    assert process_start(os.getpid()) == holder("this", 0).started
    assert not process_start(dead_process())


def test_a_damaged_table_is_reported_and_counts_as_empty(tmp_path, caplog):
    table = SharedMachine(str(tmp_path))
    table.take([range(2)], holder("x", 0))
    (file,) = tmp_path.glob("ipus-*.json")
    assert set(json.loads(file.read_text())) == {"0", "1"}
    for damage in ("{", "[1, 2]", '{"0": [1]}', '{"a": 1}'):
        file.write_text(damage)
        caplog.clear()
        assert table.users() == {}
        assert "is damaged" in caplog.text


def test_a_directory_that_others_can_write_is_refused(tmp_path):
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(Error, match="can be written by other"):
        SharedMachine(str(tmp_path / "open"))
    (tmp_path / "file").write_text("")
    with pytest.raises(Error, match=r"cannot be used.*IGNITE_IPU_RUNTIME_DIR"):
        SharedMachine(str(tmp_path / "file"))


def test_a_fork_does_not_give_back_its_parents_ipus(ipus):
    parents = holder("parent", 0)
    ipus.take([range(1)], parents)
    child = os.fork()
    if child == 0:  # pragma: no cover
        ipus.release(parents)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert ipus.users() == {0: parents}


def test_the_machine_is_private_unless_it_is_described(tmp_path, monkeypatch):
    monkeypatch.delenv("IGNITE_IPU_RUNTIME_DIR", raising=False)
    monkeypatch.delenv("IGNITE_IPU_EMULATED_IPUS", raising=False)
    assert type(machine()) is EmulatedMachine and machine() is machine()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("IGNITE_IPU_EMULATED_IPUS", "4")
    assert type(machine()) is SharedMachine and machine() is machine()
    assert (tmp_path / "ignite-ipu").is_dir()
    monkeypatch.setenv("IGNITE_IPU_RUNTIME_DIR", str(tmp_path / "other"))
    assert machine().take([range(1)], holder("x", 0)) == {0}
    assert len(list((tmp_path / "other").iterdir())) == 1


def test_the_size_of_the_machine_is_checked(monkeypatch):
    monkeypatch.delenv("IGNITE_IPU_EMULATED_IPUS", raising=False)
    assert emulated_ipus() == 64
    for text in ("0", "-1", "four", ""):
        monkeypatch.setenv("IGNITE_IPU_EMULATED_IPUS", text)
        with pytest.raises(Error, match="must be a positive number of IPUs"):
            emulated_ipus()


def test_device_ids_are_those_of_a_pod16():
    """A Pod16 lists ids 0 to 30: 16 single IPUs, then 8 pairs, 4 fours, 2 eights, and all 16."""
    ids = device_ids(16)
    assert len(ids) == 31
    assert ids[3] == range(3, 4)
    assert ids[16] == range(0, 2) and ids[23] == range(14, 16)
    assert ids[24] == range(0, 4) and ids[28] == range(0, 8) and ids[30] == range(0, 16)


@pytest.mark.parametrize("shared", [False, True])
def test_a_release_by_the_garbage_collector_in_the_middle_of_a_change(shared, tmp_path):
    """It neither waits for the change that it interrupts, nor is it forgotten."""
    where = SharedMachine(str(tmp_path)) if shared else EmulatedMachine()
    first, second = holder("first", 1), holder("second", 2)
    where.take([range(2)], first)
    with where._changing():
        where.release(first)
    assert where.take([range(2)], second) == {0, 1}
    assert set(where.users().values()) == {second}


def test_a_release_of_another_machines_ipus_in_the_middle_of_a_change(tmp_path):
    """The garbage collector runs on any thread: a collected device may be on any machine."""
    machines = [EmulatedMachine(), SharedMachine(str(tmp_path / "one")), SharedMachine(str(tmp_path / "other"))]
    old = holder("first", 1)

    def change():
        for outer in machines:
            for inner in machines:
                inner.take([range(2)], old)
                with outer._changing():
                    inner.release(old)
                freed.append(not inner.users())

    freed = []
    thread = threading.Thread(target=change, daemon=True)
    thread.start()
    thread.join(20)
    assert freed == [True] * 9


def test_a_process_that_is_stopped_in_the_middle_of_a_change_is_named(tmp_path, monkeypatch):
    """Waits for it end; when it is killed, the table is free."""
    shared = SharedMachine(str(tmp_path / "runtime"))
    assert shared.take([range(1)], holder("first", 1)) is not None
    program = (
        "import fcntl, sys, time; file = open(sys.argv[1], 'a'); fcntl.flock(file, fcntl.LOCK_EX); "
        "print('locked', flush=True); time.sleep(60)"
    )
    child = subprocess.Popen([sys.executable, "-c", program, shared._path], stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout.readline() == "locked\n"
        monkeypatch.setattr("ignite_ipu.emulator.device.machine._LOCK_SECONDS", 0.2)
        with pytest.raises(Error, match=rf"kept for 0\.2 s by process {child.pid}"):
            shared.users()
    finally:
        child.kill()
        child.wait()
        child.stdout.close()
    assert [user.description for user in shared.users().values()] == ["first"]
