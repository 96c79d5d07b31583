"""Layers put on IPUs by hooks: the blocks that open, their order, and refusals."""

from __future__ import annotations

import copy
import io
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from ignite_ipu import backend
from ignite_ipu.pipeline import Placement, PlanError, Start, compare, layers_per_ipu, measure, plan


class Net(nn.Module):
    def __init__(self, count=6, tied=False):
        super().__init__()
        self.embed = nn.Embedding(9, 4)
        self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(count))
        self.head = nn.Linear(4, 9, bias=False)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x).relu()
        return self.head(x)


TOKENS = torch.zeros(2, 3, dtype=torch.long)


@pytest.fixture
def opened(monkeypatch):
    """The blocks that a run opens, as PopTorch is told of them."""
    blocks = []

    def start(user_id=None, ipu_id=None):
        blocks.append((user_id, ipu_id))

    monkeypatch.setattr(backend, "poptorch", lambda: SimpleNamespace(Block=SimpleNamespace(start=start)))
    return blocks


def starts(placement):
    return list(zip(placement.blocks, placement.ipus))


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (["embed", "blocks.2", "head"], [("embed", 0), ("blocks.2", 1), ("head", 2)]),
        ([0, 3, 7], [("embed", 0), ("blocks.2", 1), ("head", 2)]),
        ([3, 4, 1], [("embed", 0), ("blocks.2", 1), ("head", 2)]),
        ([2, -1, -1, 1], [("embed", 0), ("blocks.1", 1), ("blocks.4", 2), ("head", 3)]),
        (["embed", 3, ("head", 0)], [("embed", 0), ("blocks.2", 1), ("head", 0)]),
        (["head"], [("head", 0)]),
        ({"embed": 0, "blocks.0": 0, "blocks.4": 1}, [("embed", 0), ("blocks.0", 0), ("blocks.4", 1)]),
        ({"blocks.4": 1, 0: 0, "blocks.0-3": 0}, [("embed", 0), ("blocks.0", 0), ("blocks.4", 1)]),
    ],
)
def test_short_descriptions(spec, expected):
    """Names, indices from 0, layers per IPU, wildcards, pairs that say the IPU, and mappings in any order."""
    assert starts(Placement.of(Net(), spec)) == expected


@pytest.mark.parametrize(
    ("counts", "layers", "expected"),
    [([4, -1, -1, 4], 12, [4, 2, 2, 4]), ([4, -1, -1, 4], 13, [4, 3, 2, 4]), ([-1], 5, [5]), ([2, 3], 5, [2, 3])],
)
def test_wildcards_share_what_is_left(counts, layers, expected):
    assert layers_per_ipu(counts, layers) == expected


@pytest.mark.parametrize(
    ("counts", "words"),
    [([2, 2], "4 layers, but the model has 5"), ([5, -1], "5 layers and 1 wildcards"), ([5, -2], "-2 is neither")],
)
def test_counts_that_do_not_add_up(counts, words):
    with pytest.raises(PlanError, match=words):
        layers_per_ipu(counts, 5)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ([], "the list is empty"),
        (["embed", "blocks.6"], "no layer named 'blocks.6'. Its layers are: embed, blocks.0"),
        ([0, 9], "index 9 does not exist: Net has 8 layers"),
        (["embed", "blocks.1", "embed"], "'embed' is used twice"),
        ([("embed", 0), ("head", 2)], "uses IPUs \\[0, 2\\]; number them from 0 without gaps"),
        (["embed", "head#1"], "'head#1' names no call"),
        ({"embed": 0, "head": "1"}, "'head' is placed on '1'; IPUs are numbered from 0"),
        ({"embed": 0, "heads": 1}, "no layer named 'heads'"),
    ],
)
def test_descriptions_that_cannot_be(spec, words):
    with pytest.raises(PlanError, match=words):
        Placement.of(Net(), spec)


def test_a_range_says_what_a_stage_has_and_is_held_to_it():
    """It begins at the first of them; one that leaves some out, or overlaps with another, is refused."""
    model = Net()
    spec = ["embed", "blocks.0-3", ("blocks.4-5", 2), "head"]
    assert Placement.of(model, spec).starts == Placement.of(model, ["embed", "blocks.0", "blocks.4", "head"]).starts
    for wrong, message in (
        (["embed", "blocks.0-3", "head"], "'blocks.0-3' ends before 'blocks.4', at which no stage begins"),
        (["embed", "blocks.0-3", "blocks.3-5"], "another one begins at 'blocks.3'"),
        (["embed", "blocks.0-9"], r"no layers 'blocks.0-9'\. Did you mean"),
        (["embed", "blocks.3-2"], "no layers 'blocks.3-2'"),
    ):
        with pytest.raises(PlanError, match=message):
            Placement.of(model, wrong)


@pytest.mark.parametrize("spec", [[0], [1], [-1], ["Linear"], [("Linear", 0)]])
def test_a_model_without_children_is_its_own_layer(opened, spec):
    """It has the name of its class, as when it is measured."""
    model = nn.Linear(4, 3)
    placement = Placement.of(model, spec)
    with placement.apply(model):
        model(torch.zeros(2, 4))
    assert starts(placement) == opened == [("Linear", 0)]
    assert measure(model, torch.zeros(2, 4), granularity=placement.layers(model)).names == ("Linear",)


@pytest.mark.parametrize("place", [lambda m: Placement.of(m, ["x"]), lambda m: Placement([Start("x", 0)]).apply(m)])
def test_a_model_without_children_tells_its_only_layer(place):
    with pytest.raises(PlanError, match=r"Linear has no layer named 'x'\. Its layers are: Linear\."):
        place(nn.Linear(4, 3))


def test_unknown_execution():
    with pytest.raises(PlanError, match="'parallel'; it must be one of: pipelined, sharded"):
        Placement([Start("embed", 0)], "parallel")


def test_a_run_opens_a_block_where_each_stage_begins(opened):
    """Blocks open in order, once per run, and outputs, keys and forwards stay the same."""
    model = Net()
    keys, before = list(model.state_dict()), model(TOKENS)
    with Placement.of(model, [3, 4, 1]).apply(model):
        assert torch.equal(model(TOKENS), before)
        model(TOKENS)
        assert list(model.state_dict()) == keys
        assert "forward" not in vars(model.blocks[2])
    assert opened == [("embed", 0), ("blocks.2", 1), ("head", 2)] * 2
    model(TOKENS)
    assert len(opened) == 6


def test_hooks_come_off_once_and_for_all(opened):
    model = Net()
    applied = Placement.of(model, [4, 4]).apply(model)
    applied.remove()
    applied.remove()
    model(TOKENS)
    assert opened == []
    assert not any(m._forward_pre_hooks or m._forward_hooks for m in model.modules())


def test_placed_models_copy_and_pickle(opened):
    """A copy keeps its own hooks, as PopTorch's blocks do; a pickled model loads again."""
    model = Net()
    with Placement.of(model, [4, 4]).apply(model):
        copy.deepcopy(model)(TOKENS)
        assert opened == [("embed", 0), ("blocks.3", 1)]
        file = io.BytesIO()
        torch.save(model, file)
        file.seek(0)
        torch.load(file, weights_only=False)(TOKENS)
    assert len(opened) == 4


def test_layers_out_of_order_are_named(opened):
    model = Net()
    with Placement([Start("embed", 0), Start("blocks.3", 1), Start("blocks.1", 2)]).apply(model):
        with pytest.raises(PlanError, match=r"'blocks\.1' runs before layer 'blocks\.3'"):
            model(TOKENS)


def test_layers_that_never_run_are_named(opened):
    """The error comes with the run itself, before anything compiles."""

    class Lazy(Net):
        def forward(self, tokens):
            return self.head(self.embed(tokens))

    model = Lazy()
    with Placement.of(model, ["embed", "blocks.1"]).apply(model), pytest.raises(PlanError, match=r"never.*: blocks\.1"):
        model(TOKENS)


def test_a_failed_run_does_not_spoil_the_next(opened):
    model = Net()
    with Placement.of(model, [4, 4]).apply(model):
        with pytest.raises(RuntimeError):
            model(torch.zeros(2, 3))
        model(TOKENS)
    assert opened[-2:] == [("embed", 0), ("blocks.3", 1)]


def test_a_sub_module_run_on_its_own_opens_nothing(opened):
    model = Net()
    with Placement.of(model, [4, 4]).apply(model):
        model.head(torch.zeros(1, 4))
    assert opened == []


def test_the_second_call_of_a_module_can_begin_a_stage(opened):
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.act, self.one, self.two = nn.ReLU(), nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            return self.act(self.two(self.act(self.one(x))))

    model = Twice()
    with Placement.of(model, ["one", "act#2"]).apply(model):
        model(torch.zeros(1, 4))
    assert opened == [("one", 0), ("act#2", 1)]


def test_a_tied_head_follows_its_embedding(opened):
    """The head goes back to the embedding's IPU as a stage of its own, however the layers were described."""
    model = Net(tied=True)
    for spec in ([4, 4], ["embed", "blocks.3"], [0, 4], ["embed", "blocks.3", "head"]):
        assert starts(Placement.of(model, spec))[-1] == ("head", 0)
    placement = Placement.of(model, [4, 4])
    assert placement.stages == 3 and placement.ipus_per_replica == 2
    with placement.apply(model):
        model(TOKENS)
    assert opened == [("embed", 0), ("blocks.3", 1), ("head", 0)]


def test_a_stage_may_begin_within_a_layer_at_which_another_began():
    """The inner layer's weights are its own, and not shared with the layer around it."""
    model = nn.ModuleDict({"encoder": nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), "decoder": nn.Linear(2, 2)})
    placement = Placement.of(model, [("encoder", 0), ("encoder.1", 1), ("decoder", 0)])
    assert starts(placement) == [("encoder", 0), ("encoder.1", 1), ("decoder", 0)]


def test_tied_layers_kept_apart_are_refused(opened):
    model = Net(tied=True)
    with Placement([Start("embed", 0), Start("head", 1)]).apply(model):
        with pytest.raises(PlanError, match=r"Weight embed\.weight is shared by embed on IPU 0 and head on IPU 1"):
            model(TOKENS)


def test_the_loss_stays_with_the_last_stage_unless_told(opened):
    model = Net()
    Placement.of(model, [4, 4]).begin_loss()
    assert opened == []
    placed = Placement.of(model, [4, 4], loss_ipu=0)
    placed.begin_loss()
    assert opened == [("loss", 0)]
    assert placed.blocks == ("embed", "blocks.3", "loss") and placed.stages == 3


def test_training_and_inference_placements_are_separate(opened):
    """Two placements of one model take turns."""
    model = Net()
    training, inference = Placement.of(model, [2, 2, 2, 2]), Placement.of(model, [4, 4])
    with training.apply(model):
        model(TOKENS)
    with inference.apply(model):
        model(TOKENS)
    assert [ipu for _, ipu in opened] == [0, 1, 2, 3, 0, 1]


def test_a_plan_is_a_placement(opened):
    """The planner's stages open where the plan says, tied head included."""
    model = Net(tied=True)
    best = plan(measure(model, TOKENS), 2)
    placement = Placement.of(model, best)
    with placement.apply(model):
        model(TOKENS)
    assert opened == [(stage.layers[0], stage.ipu) for stage in best.stages]
    assert placement.ipus_per_replica == 2
    assert Placement.of(model, placement) is placement


def test_problems_before_compiling():
    """Depth, IPUs, names, order and shared weights, each with its numbers."""
    model = Net(tied=True)
    profile = measure(model, TOKENS)
    placement = Placement.of(Net(), ["embed", "blocks.1", "blocks.3", "head"])
    assert placement.problems(accumulation=7) == []
    assert "needs at least 2 * 4 - 1 = 7" in placement.problems(accumulation=6)[0]
    assert "needs at least 4" in placement.problems(training=False, device_iterations=3)[0]
    assert "16 IPUs, but 8 are available" in placement.problems(accumulation=7, replicas=4, available=8)[0]
    assert "embed on IPU 0, head on IPU 3" in placement.problems(accumulation=7, profile=profile)[0]
    unknown = Placement([Start("embed", 0), Start("blocks", 1)])
    assert "named 'blocks'" in unknown.problems(accumulation=3, profile=profile)[0]
    swapped = Placement([Start("blocks.1", 0), Start("blocks.0", 1)])
    assert "'blocks.0' runs before layer 'blocks.1'" in swapped.problems(accumulation=3, profile=profile)[0]
    assert Placement.of(Net(), [4, 4], execution="sharded").problems() == []


def test_auto_is_the_best_plan():
    model = Net()
    profile = measure(model, TOKENS)
    assert starts(compare(profile, 2).best.placement())[0] == ("embed", 0)


def test_a_model_of_one_layer_is_placed_under_its_class(opened):
    model = nn.Linear(4, 2)
    placement = compare(measure(model, torch.zeros(1, 4)), 2).best.placement()
    with placement.apply(model):
        model(torch.zeros(1, 4))
    assert opened == [("Linear", 0)]
