"""The automatic report: its options, the contents of the profile, and the timeline."""

from __future__ import annotations

import json
import linecache
import logging

import pytest
import torch
from torch import nn

import ignite_ipu.emulator as poptorch
from ignite_ipu.emulator.errors import Error
from ignite_ipu.emulator.logs import logger
from tests.half_precision import needs_half_precision


class TwoStages(nn.Module):
    """A model over two IPUs."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x, y):
        with poptorch.Block("front", ipu_id=0):
            x = torch.relu(self.first(x))
        with poptorch.Block("back", ipu_id=1):
            out = self.second(x)
            return out, nn.functional.mse_loss(out, y)


X, Y = torch.linspace(-1, 1, 24).view(8, 3), torch.linspace(0, 1, 16).view(8, 2)


def trained(options, calls=2):
    options.deviceIterations(2).replicationFactor(2).setExecutionStrategy(poptorch.ShardedExecution("front", "back"))
    torch.manual_seed(0)
    model = TwoStages()
    executor = poptorch.trainingModel(model, options, poptorch.optim.Adam(model.parameters(), lr=0.1))
    losses = [executor(X, Y)[1] for _ in range(calls)]
    executor.destroy()
    return losses


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Return the profile and the timeline of one program."""
    directory = tmp_path_factory.mktemp("profiles")
    trained(poptorch.Options().enableProfiling(str(directory)))
    files = {path.name: json.loads(path.read_text()) for path in (directory / "training").iterdir()}
    assert set(files) == {"profile.json", "timeline.json"}
    return files["profile.json"], files["timeline.json"]["traceEvents"]


def test_profiling_changes_no_result(tmp_path):
    plain = trained(poptorch.Options(), calls=3)
    profiled = trained(poptorch.Options().enableProfiling(str(tmp_path)), calls=3)
    assert all(torch.equal(one, two) for one, two in zip(plain, profiled))


def test_the_profile_lists_every_operator_with_its_place(written):
    """2 iterations x 2 replicas: each of the four operators ran four times in the run that was profiled."""
    profile, _ = written
    found = [(each["operator"], each["block"], each["ipu"], each["scope"]) for each in profile["operators"]]
    assert found == [
        ("linear", "front", 0, "first"),
        ("relu", "front", 0, ""),
        ("linear", "back", 1, "second"),
        ("mse_loss", "back", 1, ""),
    ]
    assert {each["runs"] for each in profile["operators"]} == {4}
    assert all(each["seconds"] > 0 for each in profile["operators"])
    file, line = profile["operators"][0]["source"]
    assert file == __file__ and "self.first(x)" in linecache.getline(file, line)


def test_the_profile_tells_sizes_and_counts(written):
    """Weights: 3*4 + 4 + 4*2 + 2 = 26 numbers; Adam keeps two moments of each."""
    profile, _ = written
    assert profile["memory_bytes"]["weights"] == 26 * 4
    assert 2 * 26 * 4 <= profile["memory_bytes"]["optimizer_state"] <= 3 * 26 * 4
    assert profile["ipus"] == 4 and profile["batching"]["device_iterations"] == 2
    assert profile["counters"]["compiles"] == 1 and profile["counters"]["device_calls"] == 2
    assert profile["update_seconds"] > 0 and profile["backward_seconds"] > 0
    assert {"modelCompilation", "attachToDevice", "modelExecution"} <= {each["name"] for each in profile["host_calls"]}


def test_the_timeline_is_in_the_trace_event_format(written):
    """Complete events with start and length in microseconds, and metadata that name processes and rows."""
    _, events = written
    for event in events:
        assert event["ph"] in "XM" and isinstance(event["pid"], int) and isinstance(event["name"], str)
        if event["ph"] == "X":
            assert event["ts"] >= 0 and event["dur"] >= 0 and isinstance(event["tid"], int)
    processes = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert processes == {0: "Host", 1: "IPU 0", 2: "IPU 1", 3: "IPU 2", 4: "IPU 3"}


def test_operators_lie_within_the_call_that_ran_them_and_do_not_overlap(written):
    _, events = written
    run = next(event for event in events if event["name"] == "modelExecution")
    operators = sorted((e for e in events if e["ph"] == "X" and e["pid"] > 0), key=lambda event: event["ts"])
    assert len(operators) == 4 * 4 + 4 + 2  # operators, backward passes, updates
    for event, following in zip(operators, [*operators[1:], None]):
        assert run["ts"] <= event["ts"] and event["ts"] + event["dur"] <= run["ts"] + run["dur"]
        assert following is None or event["ts"] + event["dur"] <= following["ts"] + 1e-3
    assert [e["pid"] for e in operators if e["name"] == "linear"][:4] == [1, 2, 3, 4]
    assert [e["pid"] for e in operators if e["name"] == "backward"] == [1, 3] * 2


def test_the_environment_overrides_the_options(tmp_path, monkeypatch, caplog):
    settings = {"autoReport.all": "true", "autoReport.directory": str(tmp_path / "environment")}
    monkeypatch.setenv("POPLAR_ENGINE_OPTIONS", json.dumps(settings))
    trained(poptorch.Options().enableProfiling(str(tmp_path / "options")).modelName("mine"))
    assert "overridden by environment variable" in caplog.text
    assert [path.name for path in tmp_path.iterdir()] == ["environment"]
    assert (tmp_path / "environment" / "mine" / "profile.json").exists()


def test_nothing_is_written_unasked(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("POPLAR_ENGINE_OPTIONS", '{"autoReport.all": "false", "debug.allowOutOfMemory": "true"}')
    trained(poptorch.Options())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["autoReport.all=true", "[1]"])
def test_engine_options_that_are_no_json_object_are_refused(monkeypatch, text):
    monkeypatch.setenv("POPLAR_ENGINE_OPTIONS", text)
    with pytest.raises(Error, match="POPLAR_ENGINE_OPTIONS must be a JSON object"):
        trained(poptorch.Options())


def test_a_report_that_cannot_be_written_does_not_stop_the_program(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    trained(poptorch.Options().enableProfiling(str(tmp_path / "file")))
    assert "could not be written" in caplog.text


def test_scopes_and_sources_follow_the_options(tmp_path):
    options = poptorch.Options().enableProfiling(str(tmp_path)).disableModuleNamescope()
    trained(options.appendToLocationExcludes("test_report"))
    profile = json.loads((tmp_path / "training" / "profile.json").read_text())
    assert {each["scope"] for each in profile["operators"]} == {""}
    assert all("test_report" not in str(each["source"]) for each in profile["operators"])


def test_inference_is_profiled_too(tmp_path):
    executor = poptorch.inferenceModel(nn.Linear(3, 2), poptorch.Options().enableProfiling(str(tmp_path)))
    executor(X)
    profile = json.loads((tmp_path / "inference" / "profile.json").read_text())
    assert [each["operator"] for each in profile["operators"]] == ["linear"]
    assert profile["update_seconds"] == profile["backward_seconds"] == 0


# -- the graph in the log and in a file --------------------------------------------------------------------------------


def test_the_graph_is_exported_where_the_variable_says(tmp_path, monkeypatch):
    monkeypatch.setenv("POPTORCH_EXPORT_PROTO_FILE", str(tmp_path / "graph"))
    trained(poptorch.Options())
    lines = (tmp_path / "graph").read_text().splitlines()
    assert [line.split(" = ")[1].split("(")[0] for line in lines] == ["linear", "relu", "linear", "mse_loss"]
    assert lines[0].startswith("[ipu 0 stage 0 phase 0] linear: torch.float32[2, 4] = linear(input_x, ")
    monkeypatch.setenv("POPTORCH_EXPORT_PROTO_AS_BINARY", "1")
    with pytest.raises(Error, match="POPTORCH_EXPORT_PROTO_AS_BINARY is refused"):
        trained(poptorch.Options())


def test_the_log_shows_so_much_of_the_graph(monkeypatch, caplog):
    monkeypatch.setenv("POPTORCH_MAX_GRAPH_LEN", "2")
    with caplog.at_level(logging.DEBUG, logger=logger.name):
        trained(poptorch.Options())
    assert "= relu(" in caplog.text and "= mse_loss(" not in caplog.text and "... and 2 more" in caplog.text
    monkeypatch.setenv("POPTORCH_MAX_GRAPH_LEN", "many")
    with caplog.at_level(logging.DEBUG, logger=logger.name):
        with pytest.raises(Error, match="POPTORCH_MAX_GRAPH_LEN must be an integer"):
            trained(poptorch.Options())


@needs_half_precision
def test_the_profile_has_the_type_of_every_operator(tmp_path):
    """A model that mixes precisions shows which operators run in which."""

    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.narrow, self.whole = nn.Embedding(5, 4), nn.Linear(4, 4).half(), nn.Linear(4, 2)

        def forward(self, ids):
            return self.whole(self.narrow(self.words(ids + 1).half()).float())

    poptorch.inferenceModel(Mixed(), poptorch.Options().enableProfiling(str(tmp_path)))(torch.tensor([0, 1]))
    operators = json.loads((tmp_path / "inference" / "profile.json").read_text())["operators"]
    assert [(each["operator"], each["dtype"]) for each in operators] == [
        ("add", "torch.int64"),
        ("embedding", "torch.float32"),
        ("half", "torch.float16"),
        ("linear", "torch.float16"),
        ("float", "torch.float32"),
        ("linear", "torch.float32"),
    ]
