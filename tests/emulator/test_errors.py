"""PopTorch's exceptions and their attributes."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from ignite_ipu.emulator import errors


def test_an_error_of_the_python_layer_names_its_type_in_its_text() -> None:
    error = errors.python_error("no such executor")
    assert str(error) == "'poptorch_py_error': no such executor"
    assert (error.type, error.message, error.location) == ("poptorch_py_error", "no such executor", "")


def test_createPoptorchError_returns_the_same_error() -> None:
    assert str(errors.createPoptorchError("x")) == str(errors.python_error("x"))


def test_a_back_end_error_tells_where_it_was_raised() -> None:
    error = errors.backend_error("too many IPUs")
    assert error.location.startswith("test_errors.py:")
    assert str(error) == f"{error.location}: 'poptorch_cpp_error': too many IPUs"
    assert (error.type, error.message) == ("poptorch_cpp_error", "too many IPUs")


def test_a_later_error_leaves_the_attributes_of_an_earlier_one_alone() -> None:
    first = errors.backend_error("first", type="popart_exception")
    errors.backend_error("second", type="poplar_link_error")
    assert (first.type, first.message) == ("popart_exception", "first")
    assert "message" not in vars(errors.Error)


@pytest.mark.parametrize("action", ["IPU_RESET", "LINK_RESET", "PARTITION_RESET", "FULL_RESET"])
def test_a_recoverable_error_names_what_to_reset(action: str) -> None:
    error = errors.recoverable_error("link down", action)
    assert isinstance(error, errors.Error)
    assert error.recovery_action == action
    assert "link down" in str(error)


def test_an_unrecoverable_error_is_an_error_but_not_a_recoverable_one() -> None:
    error = errors.unrecoverable_error("parity")
    assert isinstance(error, errors.Error)
    assert not isinstance(error, errors.RecoverableError)
    assert error.type == "poplar_unrecoverable_runtime_error"


def test_errors_keep_their_attributes_on_the_way_from_a_worker_process() -> None:
    sent = errors.recoverable_error("link down", "LINK_RESET")
    received = pickle.loads(pickle.dumps(sent))
    assert type(received) is errors.RecoverableError
    assert (str(received), vars(received)) == (str(sent), vars(sent))


def test_a_user_may_raise_one_with_a_text_of_their_own() -> None:
    error = errors.Error("mine")
    assert (str(error), error.message, error.type, error.location) == ("mine", "mine", "", "")


def test_a_message_too_long_to_read_is_cut_and_written_in_full(tmp_path: Path) -> None:
    error = errors.backend_error("x" * 30_000)
    full = str(error)
    assert errors.cut_long_message(error, str(tmp_path)) is error
    assert len(str(error)) == 10_000
    assert str(error).endswith(f"[cut: see {tmp_path / 'poptorch_error.log'} for all {len(full)} characters]")
    assert (tmp_path / "poptorch_error.log").read_text() == full + "\n"


def test_a_message_is_cut_once(tmp_path: Path) -> None:
    """It may pass several calls on its way out, each of which shows it."""
    error = errors.backend_error("x" * 30_000)
    full = str(error)
    cut = str(errors.cut_long_message(error, str(tmp_path)))
    assert str(errors.cut_long_message(error, str(tmp_path))) == cut
    assert (tmp_path / "poptorch_error.log").read_text() == full + "\n"


def test_a_long_message_that_cannot_be_written_to_a_file_stays_whole(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    error = errors.backend_error("x" * 30_000)
    full = str(error)
    assert str(errors.cut_long_message(error, str(tmp_path / "none"))) == full
    assert "Options.logDir takes a directory" in caplog.text


def test_a_short_message_is_left_alone(tmp_path: Path) -> None:
    error = errors.backend_error("short")
    before = str(error)
    assert str(errors.cut_long_message(error, str(tmp_path))) == before
    assert list(tmp_path.iterdir()) == []
