"""Directories are walked once, in order, and never left."""

from __future__ import annotations

import os

import pytest

from ignite_ipu.errors import UserError
from ignite_ipu.migration.source.discovery import discover


def tree(root, *names):
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x = 1\n")


def test_python_files_and_notebooks_are_found_in_order(tmp_path):
    tree(tmp_path, "b.py", "a.py", "sub/c.ipynb", "sub/data.txt", ".hidden/d.py", "__pycache__/e.py", "env/pyvenv.cfg")
    tree(tmp_path, "env/f.py", ".g.py")
    found = discover([str(tmp_path)])
    assert [relative for _, relative in found.files] == ["a.py", "b.py", os.path.join("sub", "c.ipynb")]
    assert found.skipped == []


def test_named_files_are_taken_whatever_their_suffix(tmp_path):
    tree(tmp_path, "train")
    assert [relative for _, relative in discover([str(tmp_path / "train")]).files] == ["train"]


def test_a_file_reached_twice_is_taken_once(tmp_path):
    tree(tmp_path, "a.py")
    (tmp_path / "b.py").symlink_to("a.py")
    assert len(discover([str(tmp_path), str(tmp_path / "a.py")]).files) == 1


def test_loops_of_links_end(tmp_path):
    tree(tmp_path, "sub/a.py")
    (tmp_path / "sub" / "again").symlink_to("..")
    (tmp_path / "self.py").symlink_to("self.py")
    found = discover([str(tmp_path)])
    assert [relative for _, relative in found.files] == [os.path.join("sub", "a.py")]
    reasons = dict((os.path.basename(path), reason) for path, reason in found.skipped)
    assert "contains it" in reasons["again"]
    assert "broken link or a link to itself" in reasons["self.py"]


def test_links_out_of_the_tree_are_not_followed(tmp_path):
    tree(tmp_path, "outside/secret.py", "project/a.py")
    (tmp_path / "project" / "b.py").symlink_to(tmp_path / "outside" / "secret.py")
    (tmp_path / "project" / "more").symlink_to(tmp_path / "outside")
    found = discover([str(tmp_path / "project")])
    assert [relative for _, relative in found.files] == ["a.py"]
    assert all("outside" in reason for _, reason in found.skipped)
    assert len(found.skipped) == 2


def test_missing_paths_are_the_users_error(tmp_path):
    with pytest.raises(UserError, match="nowhere"):
        discover([str(tmp_path / "nowhere")])


def test_a_file_of_the_tree_goes_by_its_own_name_and_not_by_a_links(tmp_path):
    """Links to it and to its directory come first in the order of names."""
    tree(tmp_path, "pkg/a.py")
    (tmp_path / "link.py").symlink_to("pkg/a.py")
    (tmp_path / "more").symlink_to("pkg")
    found = discover([str(tmp_path)])
    path = os.path.join(str(tmp_path), "pkg", "a.py")
    assert found.files == [(path, os.path.join("pkg", "a.py"))]
    assert found.links == {path: ["link.py", os.path.join("more", "a.py")]}
