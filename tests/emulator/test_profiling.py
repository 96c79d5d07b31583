"""Channels of trace points."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Callable, List

import pytest

from ignite_ipu.emulator import profiling
from tests.processes import Processes


class Loader:
    def fetch(self, size: int) -> List[int]:
        return list(range(size))


@pytest.fixture
def recorder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> profiling.EventRecorder:
    recorder = profiling.EventRecorder(str(tmp_path / "profiles"))
    monkeypatch.setattr(profiling, "_RECORDER", recorder)
    return recorder


def events(recorder: profiling.EventRecorder) -> Any:
    recorder.close()
    return json.loads(Path(recorder.path).read_text())


def test_without_PVTI_OPTIONS_a_channel_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiling, "_RECORDER", None)
    loader = Loader()
    channel = profiling.Channel("mine")
    assert channel.instrument(loader, "fetch") is loader
    assert vars(loader) == {}
    with channel.tracepoint("x") as nothing:
        assert nothing is None


def test_a_trace_point_becomes_a_span_of_its_channel(recorder: profiling.EventRecorder) -> None:
    channel = profiling.Channel("mine")
    with channel.tracepoint("outer"):
        with channel.tracepoint("inner"):
            pass
    inner, outer = events(recorder)
    assert (inner["name"], outer["name"]) == ("inner", "outer")
    assert inner["cat"] == outer["cat"] == "mine"
    assert inner["ph"] == "X" and inner["pid"] == os.getpid()
    assert outer["ts"] <= inner["ts"] and inner["ts"] + inner["dur"] <= outer["ts"] + outer["dur"]


def test_each_call_of_an_instrumented_method_is_a_span(recorder: profiling.EventRecorder) -> None:
    loader = profiling.Channel("loader").instrument(Loader(), "fetch")
    assert [loader.fetch(2), loader.fetch(size=1)] == [[0, 1], [0]]
    assert [event["name"] for event in events(recorder)] == ["fetch", "fetch"]


def test_a_failing_call_is_recorded_too(recorder: profiling.EventRecorder) -> None:
    with pytest.raises(KeyError):
        with profiling.Channel("mine").tracepoint("broken"):
            raise KeyError
    assert [event["name"] for event in events(recorder)] == ["broken"]


def test_a_method_that_does_not_exist_is_an_error(recorder: profiling.EventRecorder) -> None:
    with pytest.raises(AttributeError, match="fetch_all"):
        profiling.Channel("mine").instrument(Loader(), "fetch_all")


Run = Callable[[str, Path], Any]


@pytest.fixture
def run(processes: Processes) -> Run:
    """Run a program that forks, with a value of PVTI_OPTIONS."""
    code = (
        "import os, warnings\n"
        "warnings.simplefilter('ignore')\n"
        "from ignite_ipu.emulator.profiling import Channel\n"
        "with Channel('parent').tracepoint('before'): pass\n"
        "if os.fork() == 0:\n"
        "    with Channel('child').tracepoint('inside'): pass\n"
        "    raise SystemExit(0)\n"
        "os.wait()\n"
        "with Channel('parent').tracepoint('after'): pass\n"
    )
    return lambda options, folder: processes.run(["-c", code], env={**os.environ, "PVTI_OPTIONS": options}, cwd=folder)


def test_every_process_leaves_a_valid_file_behind(tmp_path: Path, run: Run) -> None:
    done = run(json.dumps({"enable": "true", "directory": str(tmp_path / "d")}), tmp_path)
    assert done.returncode == 0, done.stderr
    found = [json.loads(path.read_text()) for path in (tmp_path / "d").glob("poptorch-*.trace.json")]
    assert sorted([event["name"] for event in each] for each in found) == [["before", "after"], ["inside"]]


def test_it_can_be_disabled(tmp_path: Path, run: Run) -> None:
    assert run('{"enable": "false"}', tmp_path).returncode == 0
    assert list(tmp_path.iterdir()) == []


def test_options_that_are_no_json_are_refused(tmp_path: Path, run: Run) -> None:
    assert "ValueError: Environment variable PVTI_OPTIONS must be a JSON object" in run("yes", tmp_path).stderr
