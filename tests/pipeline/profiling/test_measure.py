"""Measurements of one run, against torch's own counting and against real tensors."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from ignite_ipu.pipeline import PlanError, measure


class Convolutions(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 8, 3, stride=2), nn.BatchNorm2d(8), nn.ReLU(), nn.ConvTranspose2d(8, 4, 2)
        )
        self.head = nn.Linear(4 * 8 * 8, 5)

    def forward(self, x):
        return self.head(self.features(x).flatten(1))


class Skipping(nn.Module):
    """The first layer's output is used again by the last."""

    def __init__(self, width=8, layers=4):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))

    def forward(self, x):
        first = x = self.layers[0](x)
        for layer in self.layers[1:-1]:
            x = layer(x)
        return self.layers[-1](x + first)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(11, 6)
        self.blocks = nn.ModuleList(nn.Linear(6, 6) for _ in range(2))
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.embedding.weight
        self.spare = nn.Parameter(torch.zeros(3))

    def forward(self, tokens):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def transformer():
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    return nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)


@pytest.fixture
def math_attention():
    """Attention is made of operators that torch counts."""
    switches = torch.backends.cuda  # they rule the CPU, too
    before = switches.flash_sdp_enabled()
    switches.enable_flash_sdp(False)
    yield
    switches.enable_flash_sdp(before)


MODELS = [
    pytest.param(Convolutions, torch.randn(2, 3, 16, 16), id="convolutions"),
    pytest.param(transformer, torch.randn(2, 7, 16), id="transformer"),
    pytest.param(lambda: nn.Bilinear(3, 4, 5), (torch.randn(2, 3), torch.randn(2, 4)), id="bilinear"),
]


@pytest.mark.parametrize("fake", [True, False])
@pytest.mark.parametrize(("make", "inputs"), MODELS[:2])
def test_operations_are_those_torch_counts(make, inputs, fake, math_attention):
    """Forward and backward operations, summed over layers, equal torch.utils.flop_counter's for a real run."""
    flop_counter = pytest.importorskip("torch.utils.flop_counter", reason="PyTorch 2.1 brought it")
    model = make()
    profile = measure(model, inputs, fake=fake)
    with flop_counter.FlopCounterMode(display=False) as counter:
        output = model(inputs)
    forward = counter.get_total_flops()
    with counter:
        output.sum().backward()
    assert profile.forward_flops == forward
    assert profile.forward_flops + profile.backward_flops == forward + counter.get_total_flops()


@pytest.mark.parametrize(("make", "inputs"), MODELS)
def test_shapes_alone_give_what_a_real_run_gives(make, inputs):
    """Propagating shapes and running for real measure the same."""
    model = make()
    assert measure(model, inputs) == measure(model, inputs, fake=False)


def test_a_model_on_the_meta_device_measures_the_same():
    """Without values there is nothing to convert, and the result is that of the model with values."""
    model, images = Convolutions(), torch.randn(2, 3, 16, 16)
    assert measure(copy.deepcopy(model).to("meta"), images.to("meta")) == measure(model, images)


def test_attention_scores_are_kept():
    """An IPU computes attention operator by operator, so its scores take memory: heads * tokens * tokens per row."""
    profile = measure(transformer(), torch.randn(2, 7, 16))
    assert any(t.bytes == 4 * 2 * 2 * 7 * 7 for t in profile.layers[0].saved)


def test_saved_tensors_are_those_autograd_keeps():
    """The bytes kept for backward are those of the distinct tensors autograd saves, without parameters."""
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    x = torch.randn(5, 8)
    storages = {}

    def pack(tensor):
        storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        model(x)
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    expected = sum(size for key, size in storages.items() if key not in own)
    profile = measure(model, x)
    assert sum(layer.saved_bytes for layer in profile.layers) == expected == 4 * 5 * (8 + 16)
    assert [(t.bytes, t.producer) for layer in profile.layers for t in layer.saved] == [(160, 0), (320, 1)]


def test_parameters_belong_to_the_layer_that_first_uses_them():
    profile = measure(Tied(), torch.zeros(2, 3, dtype=torch.long))
    assert profile.names == ("embedding", "blocks.0", "blocks.1", "head")
    assert [layer.parameter_bytes for layer in profile.layers] == [4 * 66, 4 * 42, 4 * 42, 0]
    assert [(w.name, w.layers) for w in profile.shared] == [("embedding.weight", (0, 3))]
    assert profile.unused == ("spare",)
    assert profile.trainable_elements == 66 + 42 + 42


def test_cuts_move_skips_too():
    """Every cut moves the running tensor; the one inside the skip also moves the first layer's output.

    The sum that ends the skip runs before the last layer starts, so it belongs to the layer before.
    """
    profile = measure(Skipping(width=8, layers=4), torch.randn(3, 8))
    each = 3 * 8 * 4
    assert profile.cut_bytes == (each, 2 * each, each)
    assert profile.skip_bytes == (0, each, 0)
    assert profile.gradient_cut_bytes == profile.cut_bytes


def test_inputs_flow_from_where_they_are_first_used():
    """A mask used by every layer crosses all cuts; integers have no gradients to send back."""

    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

        def forward(self, x, mask):
            for layer in self.layers:
                x = layer(x) * mask
            return x

    profile = measure(Masked(), {"x": torch.randn(2, 4), "mask": torch.ones(2, 4, dtype=torch.bool)})
    assert profile.cut_bytes == (32 + 8, 32 + 8)
    assert profile.gradient_cut_bytes == (32, 32)
    assert profile.input_bytes == 40
    assert profile.samples == 2


def test_a_module_called_twice_is_two_layers():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            return self.one(self.two(self.one(x)))

    profile = measure(Twice(), torch.randn(1, 4))
    assert profile.names == ("one", "two", "one#2")
    assert [w.layers for w in profile.shared] == [(0, 2), (0, 2)]


def test_nothing_of_the_model_changes():
    """Weights, statistics, training flags, gradients, hooks and random state are as before, whichever way it is run."""
    model = nn.Sequential(Convolutions(), nn.Dropout())
    model[0].features.eval()
    before = copy.deepcopy(model.state_dict())
    images = torch.randn(2, 3, 16, 16)
    random = torch.get_rng_state()
    measure(model, images)
    measure(model, images, fake=False)
    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert model.training and not model[0].features[1].training
    assert all(p.grad is None for p in model.parameters())
    assert not any(m._forward_pre_hooks for m in model.modules())


@pytest.mark.parametrize("fake", [False, True])
def test_a_buffer_that_the_run_leaves_alone_is_not_written(fake):
    """A write would pass for an edit by the user, before which a device's newer weights are dropped."""
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    model.register_buffer("table", torch.arange(3))
    statistics, versions = model[1].running_mean.clone(), model.table._version
    measure(model, torch.randn(8, 4), fake=fake)
    assert model.table._version == versions and torch.equal(model[1].running_mean, statistics)


def test_frozen_weights_cost_no_gradient():
    """Without trainable weights below it, a layer computes one gradient less; a frozen one has nothing to train."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[0].requires_grad_(False)
    profile = measure(model, torch.randn(3, 4))
    assert [layer.backward_flops / layer.forward_flops for layer in profile.layers] == [0, 1]
    assert [layer.trainable_elements for layer in profile.layers] == [0, 20]


def test_inference_keeps_nothing():
    profile = measure(Convolutions(), torch.randn(2, 3, 16, 16), training=False)
    assert not profile.training
    assert profile.backward_flops == 0
    assert all(not layer.saved for layer in profile.layers)
    assert profile.output_bytes == 2 * 5 * 4


def test_half_precision_is_noticed():
    profile = measure(nn.Sequential(nn.Linear(4, 4).half(), nn.ReLU()), torch.randn(3, 4).half())
    assert profile.layers[0].half
    assert profile.parameter_bytes == 2 * 20


def test_branches_on_values_need_a_real_run():
    class Branching(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            return self.one(x) if x.sum() > 0 else self.two(x)

    with pytest.raises(PlanError, match="fake=False"):
        measure(Branching(), torch.ones(2, 4))
    assert measure(Branching(), torch.ones(2, 4), fake=False).names == ("one",)


class Keyed(nn.Module):
    """Looks something up by the device of its input, or by an argument."""

    def __init__(self, key=None):
        super().__init__()
        self.layer, self.key = nn.Linear(4, 4), key
        self.scales = {torch.device("cpu"): 2.0}

    def forward(self, x):
        return self.scales[self.key or x.device] * self.layer(x)


def test_a_model_that_knows_ordinary_devices_alone_is_measured():
    assert measure(Keyed(), torch.ones(2, 4)) == measure(Keyed(), torch.ones(2, 4), fake=False)


def test_a_mistake_of_the_model_is_told():
    with pytest.raises(KeyError, match="missing"):
        measure(Keyed("missing"), torch.ones(2, 4))


def test_layers_that_never_run_are_reported():
    class Functional(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x):
            return nn.functional.linear(x, self.inner.weight)

    with pytest.raises(PlanError, match="none of the chosen layers"):
        measure(Functional(), torch.ones(2, 4))


class Attending(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True, dropout=0.1)
        self.head = nn.Linear(16, 4)

    def forward(self, x):
        return self.head(self.attention(x, x, x)[0])


def test_attention_in_half_precision_keeps_half_of_what_it_keeps_in_float32():
    """Newer versions of PyTorch compute it in float32 on a CPU; an IPU does not."""
    kept = []
    for dtype in (torch.float32, torch.float16):
        with torch.device("meta"):
            profile = measure(Attending().to(dtype), torch.zeros(4, 10, 16, dtype=dtype))
        kept.append(sum(layer.saved_bytes for layer in profile.layers))
    assert kept[0] == 2 * kept[1] > 0


class Pending(torch.Tensor):
    """A result whose value a copy would read."""

    copies = 0

    def __deepcopy__(self, memo):
        Pending.copies += 1
        return super().__deepcopy__(memo)


def test_results_in_attributes_are_not_read():
    """Pruning keeps the weight of the last call in its layer, which a device may have yet to compute."""
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    model[0].left = [torch.ones(4, 3).as_subclass(Pending)]
    assert measure(model, torch.ones(5, 3)).forward_flops == 2 * 5 * (3 * 4 + 4 * 2)
    assert Pending.copies == 0
