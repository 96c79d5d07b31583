"""A file holds its old content or the new one, whatever happens while it is written."""

from __future__ import annotations

import os
import platform
import stat

import pytest

from ignite_ipu.checkpoints.atomic_files import remove_unfinished, whole_file

OLD, NEW = b"old", b"new" * 10000


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "content"
    file.write_bytes(OLD)
    return file


def test_the_new_content_comes_when_all_of_it_is_written(path):
    """And nothing else stays in the directory."""
    with whole_file(path) as file:
        file.write(NEW)
        assert path.read_bytes() == OLD
    assert path.read_bytes() == NEW
    assert os.listdir(path.parent) == ["content"]


@pytest.mark.parametrize("mode", [0o600, 0o754])
def test_nobody_reads_it_before_the_permissions_are_set(path, mode):
    with whole_file(path, mode) as file:
        assert stat.S_IMODE(os.fstat(file.fileno()).st_mode) == mode
    assert stat.S_IMODE(path.stat().st_mode) == mode


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError, RuntimeError])
def test_an_exception_leaves_what_was_there(path, error):
    def write_a_part():
        with whole_file(path) as file:
            file.write(NEW)
            raise error

    with pytest.raises(error):
        write_a_part()
    assert path.read_bytes() == OLD
    assert os.listdir(path.parent) == ["content"]


@pytest.mark.parametrize("function", ["fsync", "replace"])
def test_a_system_that_refuses_leaves_what_was_there(path, monkeypatch, function):
    def refuse(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, function, refuse)
    with pytest.raises(OSError, match="No space left"), whole_file(path) as file:
        file.write(NEW)
    assert path.read_bytes() == OLD
    assert os.listdir(path.parent) == ["content"]


def test_what_killed_processes_of_this_host_left_is_removed(path, processes):
    """Files that a living process or another host is writing stay, and so do files of others."""
    killed = (
        "import os, sys, pathlib; from ignite_ipu.checkpoints.atomic_files import whole_file\n"
        "with whole_file(pathlib.Path(sys.argv[1])) as file: os._exit(0)"
    )
    processes.run(["-c", killed, path], check=True)
    assert len(list(path.parent.iterdir())) == 2
    for name in (f".elsewhere{platform.node()}-1-00000000.tmp", ".others.tmp"):
        (path.parent / name).touch()
    with whole_file(path):
        remove_unfinished(path.parent)
        assert len(list(path.parent.iterdir())) == 4
    assert len(list(path.parent.iterdir())) == 3
