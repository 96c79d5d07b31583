"""A file is replaced whole or not at all."""

from __future__ import annotations

import os
import stat

import pytest

from ignite_ipu.errors import WriteError
from ignite_ipu.migration.source import writing
from ignite_ipu.migration.source.writing import replace_file, write_new_file

OLD, NEW = b"old content\n", b"new content\n" * 1000


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "code.py"
    file.write_bytes(OLD)
    file.chmod(0o754)
    return file


def test_content_changes_and_permissions_stay(path):
    replace_file(str(path), NEW, OLD)
    assert path.read_bytes() == NEW
    assert stat.S_IMODE(path.stat().st_mode) == 0o754
    assert os.listdir(path.parent) == ["code.py"]


@pytest.mark.parametrize("function", ["replace", "fsync", "fchmod"])
def test_a_crash_at_any_point_leaves_the_original(path, monkeypatch, function):
    """A killed process leaves the old file behind: the new one only appears by the rename."""

    def crash(*arguments):
        assert path.read_bytes() == OLD
        raise KeyboardInterrupt

    monkeypatch.setattr(writing.os, function, crash)
    with pytest.raises(KeyboardInterrupt):
        replace_file(str(path), NEW, OLD)
    assert path.read_bytes() == OLD
    assert os.listdir(path.parent) == ["code.py"]


def test_a_full_disk_is_reported(path, monkeypatch):
    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(writing.os, "fsync", full)
    with pytest.raises(WriteError, match="No space left"):
        replace_file(str(path), NEW, OLD)
    assert path.read_bytes() == OLD


def test_read_only_files_are_refused(path):
    path.chmod(0o444)
    with pytest.raises(WriteError, match="read-only"):
        replace_file(str(path), NEW, OLD)
    assert path.read_bytes() == OLD


def test_files_that_changed_meanwhile_are_refused(path):
    path.write_bytes(b"edited\n")
    with pytest.raises(WriteError, match="changed since"):
        replace_file(str(path), NEW, OLD)
    assert path.read_bytes() == b"edited\n"


def test_links_keep_pointing(path):
    link = path.parent / "link.py"
    link.symlink_to("code.py")
    replace_file(str(link), NEW, OLD)
    assert link.is_symlink()
    assert path.read_bytes() == NEW


def test_new_files_get_their_directories(tmp_path):
    target = tmp_path / "a" / "b" / "c.py"
    write_new_file(str(target), NEW, 0o640)
    assert target.read_bytes() == NEW
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
