"""`ignite-ipu migrate` from the command line: its files, its report, and its exit codes."""

from __future__ import annotations

import argparse
import json
import re
from html.parser import HTMLParser

import pytest

from ignite_ipu.errors import UserError
from ignite_ipu.migration.commands.migrate import add_arguments, main

BEFORE = "import torch\nx = x.cuda()\n"
AFTER = "import torch\nfrom ignite_ipu import host_device\nx = x.to(host_device())\n"
REFUSED = "import torch\noptimizer = torch.optim.SGD(model.share_memory())\nx = x.cuda()\n"


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
    assert "b.py:2: left alone: a model in shared memory cannot be trained" in error
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
    """An import of the link finds it beside its target."""
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
        "slopes = torch.autograd.grad(loss, inputs, create_graph=True)\n"
    )
    assert run(path) == 1
    error = capsys.readouterr().err
    assert "train.py:5: left alone: torch.autograd.grad(create_graph=True) asks for gradients" in error
    assert "1 file: 1 left alone" in error
    assert "does it" not in error


class _Page(HTMLParser):
    """Rows of a page's difference as texts of their cells, and the tags that are open at the end."""

    def __init__(self, text):
        super().__init__()
        self.open, self.rows, self.links, self.anchors = [], [], [], set()
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        if tag not in ("meta", "input", "col", "br"):
            self.open.append(tag)
        self.anchors.add(given.get("id"))
        self.links += [given["href"]] if "href" in given else []
        if tag == "tr":
            self.rows.append([])
        elif tag == "td":
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, text):
        if "td" in self.open:
            self.rows[-1][-1] += text


def test_one_page_for_people(project, capsys):
    """It needs no other file: it shows the changes, the open findings with reasons, and lines side by side."""
    assert run(project, "--report", "html") == 1
    output = capsys.readouterr()
    read = _Page(output.out)
    assert read.open == [] and {link[1:] for link in read.links} <= read.anchors
    assert "1 migrated, 1 unchanged, 1 left alone" in output.out
    assert ["device-moves"] in [[cell for cell in row if cell == "device-moves"] for row in read.rows]
    (left,) = [row for row in read.rows if row and row[0].endswith("b.py:2")]
    assert left[1].startswith("a model in shared memory cannot be trained")
    assert left[1].endswith("optimizer = torch.optim.SGD(model.share_memory())")
    changed = [row for row in read.rows if len(row) == 4 and row[1] != row[3]]
    assert any("cuda" in old and "host_device()" in new and a and b for a, old, b, new in changed)
    assert not re.search("https?:|src=|@import|url\\(", output.out)
    assert "left alone: a model in shared memory" in output.err


def test_the_page_shows_the_whole_difference(tmp_path, capsys):
    """Equal, changed and new lines have the numbers of their files, far places have a gap between them."""
    path, filler = tmp_path / "train.py", "".join(f"a{i} = '<{i}>'\n" for i in range(20))
    path.write_text(f"import torch\nx = torch.ones(1).cuda()\n{filler}y = torch.ones(2).cuda()\n")
    assert run(path, "--report", "html") == 0
    rows = [row for row in _Page(capsys.readouterr().out).rows if len(row) in (1, 4)]
    assert ["…"] in rows and ["2", "x = torch.ones(1).cuda()"] in [row[:2] for row in rows]
    before = {int(row[0]): row[1] for row in rows if len(row) == 4 and row[0]}
    after = {int(row[2]): row[3] for row in rows if len(row) == 4 and row[2]}
    old = path.read_text().splitlines()
    assert before == {number: old[number - 1] for number in before} and {1, 2, 23} <= set(before)
    assert run(path, "--in-place") == 0
    new = path.read_text().splitlines()
    assert after == {number: new[number - 1] for number in after}


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
    assert files["sub/b.py"]["remarks"][0]["subject"] == "shared-memory-training"
    ((group),) = report["together"]
    assert [path.rsplit("/", 1)[1] for path in group["paths"]] == ["a.py", "b.py"]
    assert "b.py:2: a model in shared memory" in group["because"]
