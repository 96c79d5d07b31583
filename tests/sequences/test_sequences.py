"""A captured loop shows the same as PyTorch's, event by event, or is refused; it never shows anything else."""

from __future__ import annotations

import logging
from typing import Iterator, List, Tuple

import pytest

from tests.sequences import loop_events
from tests.sequences.player import Event, Player
from tests.sequences.playing import (
    COMPOSED_WORLDS,
    PROGRAM_WORLDS,
    Outcome,
    Sequence_,
    outcome_of,
    random_sequence,
    shrunk,
)

_BLOCK = 30


def failures(first: int, update: str, worlds: Tuple[str, ...] = PROGRAM_WORLDS) -> List[str]:
    """Return the shortest form of each sequence of a block that differs or crashes."""
    found = []
    for seed in range(first, first + _BLOCK):
        sequence = random_sequence(seed, worlds)
        outcome = outcome_of(sequence, update)
        if outcome.kind in ("different", "crash"):
            shortest = shrunk(sequence, update, outcome)
            found.append(f"{seed} {shortest}: {outcome_of(shortest, update)}")
    return found


@pytest.fixture
def quiet() -> Iterator[None]:
    """Loops of all kinds warn."""
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.usefixtures("quiet")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("block", range(20))
def test_updates_on_the_device_are_pytorchs_or_refused(block: int) -> None:
    """Each loop of a block of random ones."""
    assert failures(1000 + block * _BLOCK, "device") == []


@pytest.mark.usefixtures("quiet")
@pytest.mark.filterwarnings("ignore")
def test_models_over_two_ipus_end_as_on_one() -> None:
    """Same values, and the same refusals; integers that forward writes are carried on one IPU alone."""
    for seed in range(2000, 2010):
        sequence = random_sequence(seed)
        outcome = outcome_of(sequence, "device", spread=True)
        if sequence.world == "Buffers" and outcome.kind == "crash":
            assert "SessionError: _Counting.forward writes into a buffer of integers" in outcome.detail, sequence
            continue
        assert outcome.kind in ("same", "refused"), (sequence, outcome)
        assert outcome == outcome_of(sequence, "device"), sequence


@pytest.mark.parametrize(
    ("events", "kind"),
    [
        ("forward backward step zero_grad", "same"),
        ("zero_grad forward backward clip step zero_grad clip forward backward step", "same"),
        ("forward backward step zero_grad clip step", "same"),
        ("forward backward freeze step", "refused"),
        ("forward backward step gradient_to_none zero_grad forward backward step", "same"),
        ("forward backward zero_grad_of_part step", "refused"),
        ("forward backward gradient_to_none step", "refused"),
        ("forward backward asks_for_gradients step asks_for_gradients zero_grad asks_for_gradients", "same"),
    ],
)
def test_events(events: str, kind: str) -> None:
    """Clearing, clipping and using gradients follow PyTorch's rules, or are refused."""
    parts = parsed(events)
    several = [("TwoModels", ("Adam", "AdamW")), ("Criterion", ("AdamW",))]
    for world, kinds in [("Perceptron", ("Adam",)), ("Tied", ("Adam",)), *several]:
        outcome = outcome_of(Sequence_(world, kinds, parts), "device")
        assert outcome.kind in (kind, "same"), f"{world}: {outcome}"


def test_a_difference_is_found_and_shrunk() -> None:
    """The machine detects outcomes: here a sequence whose outcome is a refusal, which stays one."""
    names = ["forward", "backward", "read_loss", "gradient_scaled", "learning_rate", "step"]
    parts = tuple((name, 0) for name in names)
    sequence = Sequence_("Perceptron", ("SGD",), parts)
    outcome = outcome_of(sequence, "device")
    assert outcome.kind == "refused" and "written into" in outcome.detail
    shortest = shrunk(sequence, "device", outcome)
    assert [name for name, _ in shortest.events] == ["forward", "backward", "gradient_scaled"]
    assert isinstance(outcome, Outcome)


@pytest.mark.usefixtures("quiet")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("block", range(31))
def test_loops_go_on_with_updates_on_the_host(block: int) -> None:
    """From the first event on that a fused update cannot express; few loops are refused, for reasons of any device."""
    assert failures(2000 + block * _BLOCK, "auto") == []


@pytest.mark.usefixtures("quiet")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("block", range(12))
def test_updates_on_the_host_are_pytorchs(block: int) -> None:
    """From the first update on."""
    assert failures(4000 + block * _BLOCK, "host") == []


@pytest.mark.usefixtures("quiet")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("block", range(4))
def test_models_that_no_program_can_run_are_pytorchs(block: int) -> None:
    """Their code is the loop's: Python runs it in each call."""
    assert failures(6000 + block * _BLOCK, "auto", COMPOSED_WORLDS) == []


def test_the_first_call_of_a_model_with_weights_of_another_evaluates() -> None:
    events = (("without_gradients", 0), ("forward", 0), ("backward", 0), ("step", 0), ("evaluate", 0))
    assert outcome_of(Sequence_("Outside", ("AdamW",), events), "auto").kind == "same"


def parsed(events: str) -> Tuple[Event, ...]:
    """Return the events of a text such as "forward backward hook_after:1", with their numbers."""
    return tuple((name, int(number or 0)) for name, _, number in (each.partition(":") for each in events.split()))


@pytest.mark.parametrize(
    "events",
    [
        "forward backward read_gradient step zero_grad forward backward step",
        "forward backward step read_gradient zero_grad forward backward step",
        "forward backward clip step step",
        "forward backward step forward backward step",
        "forward backward step zero_grad step_with_closure forward backward step",
        "forward backward gradient_scaled step zero_grad forward backward step",
        "forward backward write_weight step zero_grad forward backward step",
        "forward backward freeze step zero_grad forward backward step",
        "forward backward step zero_grad forward read_loss zero_grad backward step",
        "forward backward step zero_grad forward backward read_loss write_weight step",
        "forward backward step zero_grad forward backward read_loss zero_grad forward backward step",
        "forward backward step forward backward",
        "forward write_weight backward read_loss step",
        "forward backward step zero_grad_to_zeros step",
        "forward backward step clip step",
        "forward backward clip_one step zero_grad forward backward clip_values step",
        "forward backward zero_grad_of_part step gradient_to_none step",
        "zero_grad forward backward step_by_norm forward backward step_by_norm",
        "forward backward gradient_replaced step",
        "forward backward zero_grad_to_zeros step",
        "forward backward step gradient_part_scaled gradient_item_set:2 step",
        "forward backward step zero_grad forward gradients_by_function step",
        "forward backward step zero_grad hook forward backward_to_some step",
        "forward backward step zero_grad forward read_loss gradients_by_function step",
        "hook hook_after:1 forward backward step unhook zero_grad forward backward step",
    ],
)
@pytest.mark.parametrize(
    ("world", "kinds"), [("Perceptron", ("SGD",)), ("Tied", ("RMSprop",)), ("TwoModels", ("AdamW", "SGD"))]
)
def test_events_that_only_pytorch_can_express(world: str, kinds: Tuple[str, ...], events: str) -> None:
    """Each is PyTorch's from the moment on at which it comes, with the previous gradients and state."""
    outcome = outcome_of(Sequence_(world, kinds, parsed(events)), "auto")
    assert outcome.kind == "same", outcome


@pytest.mark.parametrize(
    ("world", "kinds", "events"),
    [
        ("BatchNorm", ("Adam",), "forward read_loss clip_and_read backward clip step"),
        ("BatchNorm", ("Adam",), "forward read_loss asks_for_gradients backward asks_for_gradients step"),
        ("TwoModels", ("Adam", "RMSprop"), "forward read_loss asks_for_gradients zero_grad backward step"),
        ("TwoModels", ("Adam", "RMSprop"), "forward read_loss step step_of_one backward step"),
        ("TwoModels", ("Adam", "RMSprop"), "forward read_loss clip_nothing backward read_gradient step"),
        ("TwoModels", ("SGD", "SGD"), "forward read_loss"),
        ("TwoModels", ("AdamW", "AdamW"), "forward backward clip_nothing:1 step"),
    ],
)
@pytest.mark.parametrize("before", ["", "zero_grad"])
def test_a_read_adds_no_gradients(world: str, kinds: Tuple[str, ...], events: str, before: str) -> None:
    """A read before `backward()` may run the update: the loss adds to gradients when it goes backward, not before."""
    parts = parsed(f"forward backward clip step zero_grad forward backward clip step {before} {events} look")
    for update in ("auto", "device"):
        outcome = outcome_of(Sequence_(world, kinds, parts), update)
        assert outcome.kind in (("same",) if update == "auto" else ("same", "refused")), (update, outcome)


@pytest.mark.parametrize(
    ("world", "kinds", "events", "kind"),
    [
        # Hooks of joined models, before their first update.
        ("TwoHeads", ("AdamW", "SGD", "Adam"), "hook_after:1 forward backward step", "same"),
        # The first optimizer's gradients are gone, and those of the second are of weights before the first's step.
        ("TwoModels", ("SGD", "AdamW"), "step_of_one zero_grad_of_one step_of_one:1 forward backward look", "same"),
        # The second call writes buffers on the host, for an update that is then refused on the device.
        ("BatchNorm", ("SGD",), "forward clip step", "same"),
        ("Tied", ("Adam",), "zero_grad_to_zeros", "same"),
        # PyTorch computes these gradients from results of before and weights of after.
        ("Teacher", ("AdamW",), "zero_grad forward write_data:2 backward", "same"),
        ("Adversaries", ("Adam", "Adagrad"), "zero_grad forward forward write_together:1 backward", "same"),
        # Autograd has saved the parameter itself, and not a view of its earlier memory.
        ("SpectralNorm", ("SGD",), "forward replace_data:5 backward", "same"),
        ("Perceptron", ("SGD",), "forward replace_data:2 backward", "same"),
        # Buffers were read between the forward and an update whose gradients are used later.
        ("Parametrized", ("Adam",), "step zero_grad forward copy_of_model backward step gradient_item_set:6", "same"),
        # Previous weights: written through a view, and read by a loss that did not go backward.
        ("Attributes", ("Adam",), "step zero_grad forward write_item:3 backward step", "same"),
        ("Lazy", ("SGD",), "forward two_losses:6 backward step write_weight forward sum_of_losses:5", "same"),
        (
            "Penalty",
            ("Adam",),
            "step zero_grad step zero_grad forward step_if_finite:3 write_together:7 backward",
            "same",
        ),
        ("Noisy", ("SGD",), "forward backward clip switch_mode:4 forward backward forward value_through_data", "same"),
        (
            "WeightNorm",
            ("SGD",),
            "forward freeze:4 backward switch_mode forward backward step forward value_through_data:3",
            "same",
        ),
        ("WeightNorm", ("RMSprop",), "two_losses step sum_of_losses zero_grad forward sum_of_losses backward", "same"),
        ("WeightNorm", ("AdamW",), "forward forward backward step write_item:3 sum_of_losses", "same"),
        # A constant changes while a program is set aside that was compiled with it.
        (
            "TwoHeads",
            ("Adam", "RMSprop", "AdamW"),
            "step zero_grad forward backward step zero_grad weight_decay:6 forward backward step zero_grad forward "
            "backward step",
            "same",
        ),
        # Weights are written while the program is compiled again for another norm.
        ("Criterion", ("Adam",), "clip step zero_grad forward backward write_together:3 step", "same"),
        # Freezing parts before the loop knows that they train together.
        ("Criterion", ("Adam",), "step zero_grad forward freeze_module:3 backward step", "same"),
        # A closure joins the loop with another model.
        ("TwoHeads", ("LBFGS", "AdamW", "RMSprop"), "step forward backward step", "same"),
        # A hook comes after the backward pass, and a value is read for which the update runs.
        ("Pruned", ("Adam",), "step zero_grad forward backward hook_after:4 step_by_norm:2", "same"),
        # A program runs twice for one loss, with the buffers that its call began with: the host has later ones.
        ("Buffers", ("SGD",), "step zero_grad forward read_buffers backward_twice", "same"),
        # Another model joins the loop, after gradients were clipped that are not used yet, or that were.
        ("TwoHeads", ("Adam", "SGD", "AdamW"), "clip forward backward", "same"),
        ("TwoHeads", ("Adam", "SGD", "AdamW"), "clip step forward backward", "same"),
        # One operation of a loss is known from the first of its two backward passes, and no gradient flows through it.
        ("Adversaries", ("AdamW", "SGD"), "forward forward backward_twice:5", "same"),
        # An evaluation reads buffers that a call before it has yet to write.
        (
            "BatchNorm",
            ("SGD",),
            "step backward_in_evaluation:2 forward backward step forward backward_in_evaluation:4",
            "same",
        ),
        # A view of a weight is held while a program runs with other weights.
        ("Buffers", ("SGD",), "step forward gradients_added_together:4", "same"),
        # A parameter is frozen after a read for which the update ran, and before the loss goes backward.
        ("BatchNorm", ("Adam",), "step zero_grad forward read_loss freeze_module:1 backward", "same"),
        # A step changes no weight, and one is written after it.
        ("BatchNorm", ("AdamW",), "zero_grad forward step_with_plain_closure:6 write_data:1 backward", "same"),
        # Gradients were clipped together, and one of them is gone.
        ("Attributes", ("AdamW",), "clip step gradient_deleted:3 forward backward", "same"),
        # Two losses of one update, of which the second is computed with buffers that the first has written.
        ("SpectralNorm", ("AdamW",), "another step step", "same"),
        ("Buffers", ("RMSprop",), "backward_in_evaluation:4 step step", "same"),
        # A call after an evaluation writes the buffers that its gradients need, and is part of no update.
        ("SpectralNorm", ("AdamW",), "zero_grad backward_in_evaluation forward", "same"),
        ("BatchNorm", ("SGD",), "zero_grad backward_in_evaluation:4 forward step", "same"),
        # One loss of an update went backward twice.
        ("SpectralNorm", ("SGD",), "zero_grad forward backward_twice step step", "same"),
        # A parameter is frozen after updates, and a later update is taken back.
        ("Perceptron", ("Adam",), "step zero_grad freeze forward backward step forward read_loss step", "same"),
        # The norm of the gradients that are left.
        ("Perceptron", ("SGD",), "step zero_grad forward backward step zero_grad_of_part clip_nothing", "same"),
        ("Perceptron", ("SGD",), "step zero_grad_to_zeros clip_nothing", "same"),
        # The next loss gives these no gradients, and those of zero stay.
        ("TwoHeads", ("SGD", "SGD", "SGD"), "step zero_grad_to_zeros forward backward", "same"),
        # A call that the update leaves out writes buffers between those of the update.
        ("SpectralNorm", ("Adam",), "step zero_grad another forward two_losses backward step", "same"),
        # It writes statistics, which no call of the update reads.
        ("BatchNorm", ("SGD",), "step zero_grad another forward another step", "same"),
        # An update is made again whose last loss went backward first, with buffers that the first has written.
        (
            "SpectralNorm",
            ("SGD",),
            "step zero_grad forward backward_in_evaluation:4 backward step step_if_finite",
            "same",
        ),
        # All parameters of the optimizer are frozen, and gradients flow to others, in evaluation mode.
        ("Spare", ("AdamW",), "step switch_mode freeze_module:5 forward backward", "same"),
        # A loss with a penalty is read in the closure of a step, and goes backward after it.
        ("Penalty", ("LBFGS",), "zero_grad forward step_with_plain_closure:1 backward", "same"),
        # State that the loop has cleared, before a read for which the update ran, and which is taken back.
        ("Perceptron", ("SGD",), "step forward optimizer_state_cleared step_if_finite", "same"),
        # Gradients of some weights, through memory that was not written since.
        ("Penalty", ("SGD",), "step zero_grad forward write_item backward_to_some:7", "same"),
        # A loss in evaluation mode reads statistics that an unused call writes, and a call of the update after it.
        ("BatchNorm", ("SGD",), "backward_in_evaluation:7 forward forward backward step", "same"),
        # Weights of a penalty are written through a view, and then loaded.
        ("Penalty", ("SGD",), "forward write_item:1 load_model", "same"),
        # A write into a weight moves updates to the host, and an earlier loss is read.
        ("Perceptron", ("SGD",), "step zero_grad forward another write_weight:6 sum_of_losses", "same"),
        # A flag or a gradient of a parameter is set, which is no write, before its memory is written without a count.
        ("BatchNorm", ("Adam",), "step zero_grad forward freeze:1 write_together:7 backward", "same"),
        ("BatchNorm", ("Adam",), "step zero_grad forward gradient_to_none:1 write_data:1 backward", "same"),
        # The optimizer holds parameters of another model, too, when a value is read for which an update would run.
        ("Teacher", ("Adam",), "step zero_grad forward add_group read_loss backward step", "same"),
        # One optimizer steps before the other, whose losses were computed before both.
        ("Adversaries", ("SGD", "Adam"), "forward backward step forward backward", "same"),
        # A loss that was computed before a step goes backward after it, and joins another model.
        ("TwoHeads", ("SGD", "SGD", "SGD"), "forward step backward step", "same"),
        ("TwoHeads", ("Adam", "SGD", "RMSprop"), "forward read_loss step backward step_of_one:1 step", "same"),
        # An evaluation writes buffers that a loss reads which is not computed yet.
        (
            "BatchNorm",
            ("SGD",),
            "step zero_grad backward_in_evaluation:4 evaluate_with_gradients:2 without_gradients sum_of_losses",
            "same",
        ),
        # Updates move to the host between two functions of weights of one loss.
        ("Parts", ("SGD",), "another:2 forward backward_in_evaluation:6 backward step", "same"),
        # Parts of the model are replaced between a loss and its update, and while it has gradients of before.
        ("Buffers", ("AdamW",), "forward backward new_layer look step zero_grad forward backward step", "same"),
        ("Penalty", ("RMSprop",), "zero_grad forward write_data:2 new_layer:7 backward", "same"),
        ("TwoModels", ("SGD", "AdamW"), "step zero_grad forward backward new_layer:6 step", "same"),
        ("TwoModels", ("SGD", "SGD"), "forward new_layer:6 backward", "same"),
        ("Adversaries", ("AdamW", "AdamW"), "forward forward step zero_grad forward new_layer:1 backward", "same"),
        ("Penalty", ("Adam",), "step zero_grad forward parametrize_layer:5 forward sum_of_losses", "refused"),
        ("Parametrized", ("SGD",), "forward backward step zero_grad restore_layers forward backward step", "same"),
        ("Adversaries", ("Adam", "AdamW"), "zero_grad forward prune_layer:3 backward", "refused"),
        # The loop calls the parts of a model, and the model never.
        ("Parts", ("Adam",), "forward backward step zero_grad new_layer:1 forward backward step", "same"),
        # A module with two names is pruned, and a model whose code is the loop's gets another part.
        ("Tied", ("SGD",), "step zero_grad prune_layer forward backward step", "same"),
        ("Skipping", ("RMSprop",), "step zero_grad parametrize_layer:5 forward backward step", "same"),
    ],
)
def test_state_that_was_found_wrong(world: str, kinds: Tuple[str, ...], events: str, kind: str) -> None:
    """Each needs earlier state of the loop: hooks, earlier weights, buffers."""
    parts = parsed(events)
    if not events.startswith("hook"):
        parts = (("forward", 0), ("backward", 0), *parts)
    outcome = outcome_of(Sequence_(world, kinds, parts), "auto")
    assert outcome.kind == kind, outcome


def test_the_host_makes_a_step_after_parts_were_removed_that_a_call_has_used() -> None:
    parts = parsed("forward restore_layers forward step")
    outcome = outcome_of(Sequence_("Parametrized", ("AdamW",), parts), "host")
    assert outcome.kind == "same", outcome


@pytest.mark.parametrize("events", ["forward backward add_group zero_grad", "forward backward step add_group step"])
def test_an_optimizer_gets_parameters_that_are_updated_on_the_host(events: str) -> None:
    """All that it holds are from then on; the gradients of its other models are PyTorch's."""
    outcome = outcome_of(Sequence_("Teacher", ("RMSprop",), parsed(f"gradient_replaced:5 {events}")), "auto")
    assert outcome.kind == "same", outcome


@pytest.mark.parametrize(
    ("world", "kinds", "events", "kinds_of_outcome"),
    [
        # Losses of an update in evaluation and training mode, of which one was computed before models were joined.
        ("OneForTwo", ("SGD",), "backward_in_evaluation forward backward step", ("same", "same", "same")),
        ("TwoWithStatistics", ("SGD", "SGD"), "freeze another freeze another step", ("same", "refused", "same")),
        # A call that the update leaves out writes buffers, and was replayed or is replayed for the update.
        ("SpectralAdversaries", ("SGD", "SGD"), "forward write_together:1 forward backward step", ("same",) * 3),
        ("OneForTwo", ("Adam",), "forward without_gradients:3 forward backward step", ("same",) * 3),
        # Calls of an update are replayed for one that runs ahead of its step.
        (
            "AdversariesWithStatistics",
            ("AdamW", "Adam"),
            "forward backward step zero_grad two_losses:1 forward backward evaluate_with_gradients:7 step forward "
            "read_loss:3",
            ("same", "refused", "same"),
        ),
        # Buffers are read that a call has yet to write, whose model was joined with another since.
        ("CriterionAfterStatistics", ("Adam",), "forward backward read_state step", ("same",) * 3),
        # Calls of two models write the statistics of one trunk, and these are read in between.
        ("OneForTwoOnOneTrunk", ("Adam",), "zero_grad forward read_state backward step", ("same",) * 3),
        ("AdversariesOnOneTrunk", ("SGD", "Adam"), "forward backward step zero_grad forward read_state", ("same",) * 3),
        # Updates move to the host after a call that the update leaves out, and that writes buffers which it reads.
        ("BatchNorm", ("SignOfMomentum",), "backward_in_evaluation:5 forward step", ("same", "refused", "same")),
    ],
)
def test_models_with_buffers(
    world: str, kinds: Tuple[str, ...], events: str, kinds_of_outcome: Tuple[str, ...]
) -> None:
    """With updates as the loop allows, on the device, and on the host."""
    for update, kind in zip(("auto", "device", "host"), kinds_of_outcome):
        outcome = outcome_of(Sequence_(world, kinds, parsed(events)), update)
        assert outcome.kind == kind, (update, outcome)


def test_a_loss_is_read_after_its_models_were_joined_in_the_closure_of_a_step() -> None:
    parts = parsed("forward step forward step read_first_loss:7")
    outcome = outcome_of(Sequence_("TwoModels", ("LBFGS", "SGD"), parts), "auto")
    assert outcome.kind == "same", outcome


def test_parameters_that_an_optimizer_gets_after_clipping_are_not_clipped() -> None:
    """In the first update of a loop."""
    outcome = outcome_of(Sequence_("Spare", ("SGD",), parsed("forward backward clip add_group:6")), "auto")
    assert outcome.kind == "same", outcome


@pytest.mark.parametrize(
    ("world", "kinds", "events", "kind"),
    [
        # The host computes gradients of parameters that no optimizer holds, too: they are not clipped with the others.
        ("Spare", ("Adam",), "zero_grad forward backward clip", "same"),
        ("Spare", ("Adam",), "zero_grad forward backward clip clip_nothing clip_and_read", "same"),
        # The optimizer holds more parameters since gradients were clipped, or when they are clipped again.
        ("Spare", ("Adam",), "zero_grad forward backward clip add_group", "same"),
        ("Spare", ("Adam",), "zero_grad forward backward look clip look add_group clip", "refused"),
        # No update is made of the loss, and it has given gradients to parameters that no optimizer holds.
        ("Spare", ("LBFGS",), "forward backward zero_grad gradients_divided:2", "refused"),
        ("Spare", ("SGD",), "freeze_module forward backward step freeze_module zero_grad another zero_grad", "refused"),
        ("Spare", ("Adam",), "freeze_module gradient_replaced:1 forward backward look step", "same"),
        # PyTorch adds the gradient of a loss on the device to one of the host, which no update uses.
        ("Spare", ("Adam",), "gradient_replaced:1 forward backward", "refused"),
        ("Teacher", ("Adam",), "gradient_replaced:6 forward backward read_gradient:6 step", "same"),
        # Gradients of the host alone are clipped by PyTorch; with those of losses, they are not clipped together.
        ("BatchNorm", ("SGD",), "gradient_replaced:2 clip", "same"),
        ("Teacher", ("SGD",), "gradient_replaced:3 clip_nothing:6", "same"),
        ("Perceptron", ("Adam",), "forward backward step zero_grad gradient_replaced:1 clip_nothing clip", "same"),
        ("Perceptron", ("Adam",), "forward backward gradient_replaced:1 clip_nothing", "refused"),
        ("Perceptron", ("Adam",), "forward backward step gradient_replaced:1 clip_nothing", "refused"),
        # One parameter of an optimizer is frozen, and the gradient of the other is deleted: none is left to step with.
        ("TwoModels", ("RMSprop", "SGD"), "freeze:4 forward backward gradient_deleted:1 step", "same"),
        # Parameters are frozen or trained again between losses, after which the host computes their gradients.
        ("Perceptron", ("Adam",), "forward backward freeze_module", "same"),
        ("Penalty", ("SGD",), "freeze:3 forward backward freeze:3 another freeze:2", "same"),
        # A weight is written through a view, before a call is replayed that computed with its value of before.
        ("SpectralNorm", ("Adam",), "forward write_item:1", "same"),
        ("BatchNorm", ("Adam",), "forward backward step zero_grad forward write_item", "same"),
        # A loss that was computed before a step goes backward after it, and joins another model.
        ("TwoHeads", ("SGD", "SGD", "SGD"), "forward backward forward step zero_grad backward step", "refused"),
    ],
)
def test_state_that_was_found_wrong_on_the_device(world: str, kinds: Tuple[str, ...], events: str, kind: str) -> None:
    """The look at the end reads all gradients, weights and buffers."""
    outcome = outcome_of(Sequence_(world, kinds, parsed(events)), "device")
    assert outcome.kind == kind, outcome


def test_a_gradient_of_earlier_weights_is_refused_on_the_device() -> None:
    """The host computes gradients of an update that is not complete, with the newest weights."""
    events = (
        "switch_mode:4 forward backward_in_evaluation:5 backward step zero_grad backward_in_evaluation:1 write_weight"
    )
    parts = parsed(events)
    outcome = outcome_of(Sequence_("Perceptron", ("AdamW",), parts), "device")
    assert outcome.kind == "refused", outcome


@pytest.mark.parametrize(
    "events",
    ["forward backward", "forward forward backward read_gradient", "forward another clip", "forward forward read_loss"],
)
def test_gradients_on_the_host_begin_with_the_buffers_of_their_calls(events: str) -> None:
    """The look reads buffers first, for which the host replays the call: its output depends on a count of calls."""
    outcome = outcome_of(Sequence_("Buffers", ("Adam",), parsed(events)), "device")
    assert outcome.kind == "same", outcome


FIRST = "forward backward step zero_grad"


@pytest.mark.parametrize(
    ("world", "kind", "events"),
    [
        ("Parts", "SGD", "hook_that_looks forward freeze backward"),
        ("Parts", "SGD", "forward backward step freeze:6 step"),
        ("Parts", "Adam", "step zero_grad forward backward step freeze_module step"),
        ("Parts", "RMSprop", "forward backward freeze:4 forward freeze_module:1 backward"),
        (
            "Teacher",
            "RMSprop",
            "forward backward step zero_grad forward backward sum_of_losses add_group:6 forward backward",
        ),
    ],
)
def test_weights_are_frozen_around_functions_of_them(world: str, kind: str, events: str) -> None:
    """They are trained or not as they were where a loop called parts of its model; or an early update is taken back."""
    outcome = outcome_of(Sequence_(world, (kind,), parsed(events)), "auto")
    assert outcome.kind == "same", outcome


@pytest.mark.parametrize("name", ["draw", "unknown"])
def test_an_error_of_an_event_is_none_of_pytorch(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It fails the test: a sequence that is cut there would be the same on both sides."""

    def wrong(player: Player, which: int) -> None:
        raise KeyError(name)

    wrong.__module__ = loop_events.__name__
    monkeypatch.setattr(loop_events, "draw", wrong)
    with pytest.raises(KeyError, match=name):
        outcome_of(Sequence_("Perceptron", ("SGD",), parsed(f"forward {name}")), "device")


def test_the_change_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """With the line, the reason and the cost."""
    events = "forward backward gradient_scaled step zero_grad forward backward gradient_scaled step"
    sequence = Sequence_("Perceptron", ("Adam",), parsed(events))
    with caplog.at_level(logging.WARNING, "ignite_ipu"):
        assert outcome_of(sequence, "auto").kind == "same"
    (change,) = [record.getMessage() for record in caplog.records if "updated on the host" in record.getMessage()]
    assert "gradient_events.py:" in change and "Gradients are used at" in change and "MB" in change
