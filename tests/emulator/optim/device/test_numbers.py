"""An update's numbers, collected apart from its tensors."""

from __future__ import annotations

import pytest
import torch

from ignite_ipu.emulator.optim.device.numbers import Changed, Recording, Replay

WEIGHT, GRADIENT = torch.ones(2), torch.full((2,), 3.0)


def update(rate: float, decay: float = 0.0) -> None:
    gradients = [GRADIENT]
    if decay != 0:
        gradients = list(torch._foreach_add(gradients, [WEIGHT], alpha=decay))
    torch._foreach_add_([WEIGHT], gradients, alpha=-rate)


def test_a_recording_computes_on_stand_ins_and_takes_numbers_from_the_vector() -> None:
    """Not the numbers passed but the vector's: here twice as large."""
    weight, vector = torch.ones(2), torch.tensor([0.0, -0.4])
    recording = Recording({id(WEIGHT): weight}, vector, [7.0])
    with recording:
        update(0.2)
    assert recording.numbers == [7.0, -0.2]
    assert WEIGHT.tolist() == [1.0, 1.0]
    assert weight.tolist() == pytest.approx([1 - 0.4 * 3] * 2)


def test_a_replay_collects_other_numbers_and_computes_nothing() -> None:
    recording = Recording({id(WEIGHT): torch.ones(2)}, torch.zeros(4))
    with recording:
        update(0.2, decay=0.1)
    replay = Replay(recording.calls)
    with replay:
        update(0.5, decay=0.3)
    replay.finish()
    assert replay.numbers == [0.3, -0.5]
    assert WEIGHT.tolist() == [1.0, 1.0]


@pytest.mark.parametrize(("recorded", "replayed"), [(0.1, 0.0), (0.0, 0.1)])
def test_an_update_of_other_operators_is_noticed(recorded: float, replayed: float) -> None:
    recording = Recording({id(WEIGHT): torch.ones(2)}, torch.zeros(4))
    with recording:
        update(0.2, recorded)
    replay = Replay(recording.calls)

    def replayed_update() -> None:
        with replay:
            update(0.2, replayed)
        replay.finish()

    with pytest.raises(Changed):
        replayed_update()


def test_more_numbers_than_the_vector_holds_are_refused() -> None:
    with pytest.raises(Changed, match="more than 1 numbers"), Recording({}, torch.zeros(1)):
        update(0.2, 0.1)


def test_every_listwise_operator_does_what_pytorch_does() -> None:
    """Tensor by tensor, with numbers that are tensors; half tensors take part in float arithmetic."""
    one, two, three = torch.tensor([1.0, 4.0]), torch.tensor([2.0, 3.0]), torch.tensor([5.0, 6.0])
    half = torch.tensor([1.5, 2.5], dtype=torch.float16)
    cases = [
        lambda t: torch._foreach_mul([t], 3.0),
        lambda t: torch._foreach_mul([t], [two]),
        lambda t: torch._foreach_mul_([t], 3),
        lambda t: torch._foreach_add([t], [two], alpha=0.3),
        lambda t: torch._foreach_add([t], 0.3),
        lambda t: torch._foreach_add_([t], [half], alpha=0.3),
        lambda t: torch._foreach_div([t], [two]),
        lambda t: torch._foreach_div_([t], 7.0),
        lambda t: torch._foreach_lerp_([t], [two], 0.1),
        lambda t: torch._foreach_addcmul([t], [two], [three], -1),
        lambda t: torch._foreach_addcmul_([t], [two], [three], 0.3),
        lambda t: torch._foreach_addcdiv_([t], [two], [three], -0.3),
        lambda t: torch._foreach_sqrt([t]),
        lambda t: torch._foreach_sqrt_([t]),
        lambda t: torch._foreach_norm([t]),
        lambda t: torch._foreach_zero_([t]),
    ]
    if hasattr(torch, "_foreach_copy_"):  # PyTorch 2.1 brought it
        cases.append(lambda t: torch._foreach_copy_([t], [half]))
    for case in cases:
        expected, found = one.clone(), one.clone()
        returned = case(expected)
        vector = torch.zeros(4)
        numbers = Recording({}, vector)
        with numbers:
            case(found.clone())
        vector[: len(numbers.numbers)] = torch.tensor(numbers.numbers)
        with Recording({}, vector):
            result = case(found)
        torch.testing.assert_close(found, expected)
        if returned is not None and result is not None:
            torch.testing.assert_close(list(result), list(returned))
