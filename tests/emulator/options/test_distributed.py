"""`Options.Distributed`."""

from __future__ import annotations

import pytest

from ignite_ipu.emulator.options import Options


def test_one_process_of_one_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMPI_COMM_WORLD_SIZE", raising=False)
    monkeypatch.delenv("OMPI_COMM_WORLD_RANK", raising=False)
    distributed = Options().Distributed
    assert (distributed.processId, distributed.numProcesses, distributed.ipuof_configs) == (0, 1, {})


def test_the_launcher_says_which_process_this_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "8")
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "3")
    distributed = Options().Distributed
    assert (distributed.processId, distributed.numProcesses) == (3, 8)
    assert (distributed.disable().processId, distributed.numProcesses) == (0, 1)


def test_other_variables_are_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD", "4")
    monkeypatch.setenv("ME", "2")
    distributed = Options().Distributed.setEnvVarNames("WORLD", "ME")
    monkeypatch.setenv("ME", "3")
    assert (distributed.processId, distributed.numProcesses) == (2, 4)


@pytest.mark.parametrize("variable", ["OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"])
def test_a_variable_that_is_no_number_fails_the_construction(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, "many")
    with pytest.raises(ValueError, match=f"{variable} must be an integer, and it is 'many'"):
        Options()


def test_ids_are_ints_in_no_particular_relation() -> None:
    distributed = Options().Distributed.configureProcessId(9, 2)
    assert (distributed.processId, distributed.numProcesses) == (9, 2)
    with pytest.raises(AssertionError, match="Unexpected type"):
        distributed.configureProcessId("0", 2)  # type: ignore[arg-type]


def test_the_properties_are_read_only() -> None:
    with pytest.raises(AssertionError, match="Invalid option processId"):
        Options().Distributed.processId = 1  # type: ignore[misc]
