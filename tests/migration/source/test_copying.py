"""Files that are no programs are copied as they are."""

from __future__ import annotations

import os

from ignite_ipu.migration.source.writing import copy_rest


def test_files_links_and_permissions(tmp_path):
    """A link within leads to the copy, one that leads out leads where it did; caches and written files are left out."""
    top, out = tmp_path / "top", tmp_path / "out"
    for name in ("sub/run.sh", "data/x.bin", ".env", "train.py", ".git/HEAD", "venv/pyvenv.cfg", "venv/lib.py"):
        path = top / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    (top / "sub/run.sh").chmod(0o755)
    (tmp_path / "outside").mkdir()
    (top / "empty").mkdir()
    links = {
        "near": "data",
        "absolute": top / "data/x.bin",
        "sub/up": "../data",
        "far": "../outside",
        "broken": "nowhere",
    }
    for name, target in links.items():
        (top / name).symlink_to(target)
    assert list(copy_rest(str(top), str(out), {"train.py"})) == []
    copied = sorted(
        os.path.relpath(os.path.join(folder, name), out) for folder, _, names in os.walk(out) for name in names
    )
    assert copied == [".env", "absolute", "broken", "data/x.bin", "sub/run.sh"]
    assert (out / "sub/run.sh").stat().st_mode & 0o777 == 0o755
    assert (out / "empty").is_dir()
    assert {name: os.readlink(out / name) for name in links} == {
        "near": "data",
        "absolute": "data/x.bin",
        "sub/up": "../data",
        "far": str(tmp_path / "outside"),
        "broken": "nowhere",
    }


def test_a_second_copy_never_writes_through_a_link(tmp_path):
    top, out = tmp_path / "top", tmp_path / "out"
    top.mkdir(), out.mkdir()
    (tmp_path / "precious").write_text("kept")
    (out / "data").symlink_to(tmp_path / "precious")
    (top / "data").write_text("new")
    assert list(copy_rest(str(top), str(out), ())) == []
    assert (out / "data").read_text() == "new"
    assert (tmp_path / "precious").read_text() == "kept"


def test_what_cannot_be_copied_is_named(tmp_path):
    (tmp_path / "top").mkdir()
    os.mkfifo(tmp_path / "top" / "pipe")
    ((path, reason),) = copy_rest(str(tmp_path / "top"), str(tmp_path / "out"), ())
    assert path.endswith("pipe")
    assert "no regular file" in reason
