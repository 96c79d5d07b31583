"""`ignite-ipu migrate` from the command line: where it writes, what it reports, and how it ends."""

from __future__ import annotations

import argparse
import json

import pytest

from ignite_ipu.errors import UserError
from ignite_ipu.migration.commands.migrate import add_arguments, main

BEFORE = "import torch\nx = x.cuda()\n"
AFTER = "import torch\nfrom ignite_ipu import host_device\nx = x.to(host_device())\n"
REFUSED = "import torch\noptimizer = torch.optim.LBFGS(p)\nx = x.cuda()\n"


def run(*arguments):
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return main(parser.parse_args([str(argument) for argument in arguments]))


@pytest.fixture
def project(tmp_path):
    root = tmp_path / "project"
    (root / "sub").mkdir(parents=True)
    (root / "a.py").write_text(BEFORE)
    (root / "sub" / "b.py").write_text(REFUSED)
    (root / "sub" / "c.py").write_text("x = 1\n")
    return root


def test_the_difference_is_printed_and_nothing_written(project, capsys):
    assert run(project / "a.py") == 0
    output = capsys.readouterr()
    assert "-x = x.cuda()\n+from ignite_ipu import host_device\n+x = x.to(host_device())\n" in output.out
    assert "1 file: 1 migrated" in output.err
    assert (project / "a.py").read_text() == BEFORE


def test_in_place(project, capsys):
    assert run(project, "--in-place") == 1
    assert (project / "a.py").read_text() == AFTER
    assert (project / "sub" / "b.py").read_text() == REFUSED
    error = capsys.readouterr().err
    assert "b.py:2: left alone: torch.optim.LBFGS does not exist on an IPU" in error
    assert "3 files: 1 migrated, 1 unchanged, 1 left alone" in error


def test_in_place_twice_changes_nothing(project):
    run(project / "a.py", "--in-place")
    stamp = (project / "a.py").stat().st_mtime_ns
    assert run(project / "a.py", "--in-place") == 0
    assert (project / "a.py").stat().st_mtime_ns == stamp


def test_a_directory_gets_every_file(project, tmp_path):
    assert run(project, "-o", tmp_path / "out") == 1
    assert (tmp_path / "out" / "a.py").read_text() == AFTER
    assert (tmp_path / "out" / "sub" / "b.py").read_text() == REFUSED
    assert (tmp_path / "out" / "sub" / "c.py").read_text() == "x = 1\n"
    assert (project / "a.py").read_text() == BEFORE


def test_a_file_for_a_file(project, tmp_path):
    assert run(project / "a.py", "-o", tmp_path / "moved.py") == 0
    assert (tmp_path / "moved.py").read_text() == AFTER


def test_read_only_files_are_reported(project, capsys):
    (project / "a.py").chmod(0o444)
    assert run(project / "a.py", "--in-place") == 1
    assert "a.py: not written: the file is read-only" in capsys.readouterr().err
    assert (project / "a.py").read_text() == BEFORE


def test_broken_files_do_not_stop_the_others(project, capsys):
    (project / "0.py").write_bytes(b"\x00")
    (project / "1.py").write_text("def f(:\n")
    assert run(project, "--in-place") == 1
    assert (project / "a.py").read_text() == AFTER
    error = capsys.readouterr().err
    assert "0.py:1: left alone: the file contains NUL bytes" in error
    assert "1.py:1: left alone: the file is not valid Python" in error


def test_encodings_survive(tmp_path):
    path = tmp_path / "a.py"
    path.write_bytes("# -*- coding: latin-1 -*-\r\nname = 'Größe'\r\nx = x.cuda()\r\n".encode("latin-1"))
    assert run(path, "--in-place") == 0
    expected = (
        "# -*- coding: latin-1 -*-\r\nfrom ignite_ipu import host_device\r\nname = 'Größe'\r\n"
        "x = x.to(host_device())\r\n"
    )
    assert path.read_bytes() == expected.encode("latin-1")


@pytest.mark.parametrize(
    ("output", "message"),
    [("project", "is the input itself"), ("project/out", "lies inside"), ("taken", "a directory is needed")],
)
def test_outputs_that_would_do_harm(project, tmp_path, output, message):
    (tmp_path / "taken").write_text("")
    with pytest.raises(UserError, match=message):
        run(project, "-o", tmp_path / output)


@pytest.mark.parametrize(("arguments", "message"), [([], "needs a PATH"), (["/does/not/exist"], "No such file")])
def test_wrong_use_is_the_users_error(arguments, message):
    with pytest.raises(UserError, match=message):
        run(*arguments)


def test_list_rewrites(capsys):
    assert run("--list-rewrites") == 0
    assert "captured-loops" in capsys.readouterr().out


def test_broken_cells_are_named(tmp_path, capsys):
    path = tmp_path / "n.ipynb"
    cells = [{"cell_type": "code", "source": source} for source in ("x = 1\ny = 2", "z = 3\ndef f(:")]
    path.write_text(json.dumps({"cells": cells, "metadata": {}, "nbformat": 4}))
    assert run(path) == 1
    assert "n.ipynb:cell 2:2: left alone: the file is not valid Python" in capsys.readouterr().err


def test_links_to_a_file_are_written_with_it(project, tmp_path):
    """What imports the link finds it beside the file that it leads to."""
    (project / "link.py").symlink_to("sub/c.py")
    assert run(project, "-o", tmp_path / "out") == 1
    for name in ("link.py", "sub/c.py"):
        assert (tmp_path / "out" / name).read_text() == "x = 1\n"
    run(project, "--in-place")
    assert (project / "link.py").is_symlink()


def test_what_is_left_alone_is_not_said_to_be_migrated(tmp_path, capsys):
    path = tmp_path / "train.py"
    path.write_text(
        "import torch\nfrom ignite.engine import create_supervised_trainer\n"
        "trainer = create_supervised_trainer(model, optimizer, loss_fn, **options)\n"
        "f(torch.cuda.set_device(0))\n"
    )
    assert run(path) == 1
    error = capsys.readouterr().err
    assert "train.py:3: left alone: create_supervised_trainer runs on the host, not on an IPU, and cannot be " in error
    assert "its arguments are not written out" in error
    assert "train.py:4: left alone: torch.cuda.set_device chooses a GPU. Leave it out" in error
    assert "does it" not in error


def test_one_page_for_people(project, capsys):
    """It needs no other file: outcomes, reasons with their lines, and the differences side by side."""
    assert run(project, "--report", "html") == 1
    output = capsys.readouterr()
    page = output.out
    assert "1 migrated, 1 unchanged, 1 left alone" in page
    assert "b.py:2: torch.optim.LBFGS does not exist on an IPU" in page
    assert "<code>optimizer = torch.optim.LBFGS(p)</code>" in page
    assert '<span class="diff_add">x = x.to(host_device())</span>' in page
    assert "http" not in page and "<script" not in page
    assert "left alone: torch.optim.LBFGS" in output.err


def test_json_for_programs(project, capsys):
    (project / "train.py").write_text("from a import x\nfrom sub.b import optimizer\n")
    assert run(project, "--report", "json") == 1
    report = json.loads(capsys.readouterr().out)
    files = {entry["path"].rsplit("project/", 1)[1]: entry for entry in report["files"]}
    assert {path: entry["outcome"] for path, entry in files.items()} == {
        "a.py": "left alone",
        "sub/b.py": "left alone",
        "sub/c.py": "unchanged",
        "train.py": "unchanged",
    }
    assert files["sub/b.py"]["remarks"][0]["subject"] == "unsupported-optimizer"
    ((group),) = report["together"]
    assert [path.rsplit("/", 1)[1] for path in group["paths"]] == ["a.py", "b.py"]
    assert "b.py:2: torch.optim.LBFGS" in group["because"]
