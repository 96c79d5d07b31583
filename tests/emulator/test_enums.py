"""The members and numbers of PopTorch's enumerations; the whole table is checked with the API's names."""

from __future__ import annotations

import enum
import inspect
import pickle

import pytest

from ignite_ipu.emulator import enums

ALL = [kind for _, kind in inspect.getmembers(enums, inspect.isclass)]


def test_there_are_fifteen_and_nothing_else_is_exported() -> None:
    assert sorted(enums.__all__) == sorted(kind.__name__ for kind in ALL)
    assert len(ALL) == 15


@pytest.mark.parametrize(
    ("member", "value"),
    [
        (enums.OutputMode.Final, 0),
        (enums.OutputMode.Default, 4),
        (enums.ReductionType.Mean, 1),
        (enums.MeanReductionStrategy.Post, 1),
        (enums.CommGroupType.NoGrouping, 3),
        (enums.Liveness.OffChipAfterEachPhase, 3),
    ],
)
def test_most_of_them_are_ints(member: enum.IntEnum, value: int) -> None:
    assert member == value
    assert type(member)(value) is member


def test_variable_retrieval_modes_skip_a_number() -> None:
    assert [mode.value for mode in enums.VariableRetrievalMode] == [0, 2]


def test_two_of_them_are_words() -> None:
    words = [kind for kind in ALL if not issubclass(kind, enum.IntEnum)]
    assert words == [enums.MatMulSerializationMode, enums.OverlapMode]
    assert enums.MatMulSerializationMode.Disabled.value == "none"


@pytest.mark.parametrize("kind", ALL)
def test_members_pickle(kind: type) -> None:
    assert [pickle.loads(pickle.dumps(member)) for member in kind] == list(kind)  # type: ignore[call-overload]
