"""`collate_fn`, `prepare_batch` and samplers get the batches that they get from Ignite's own engines."""

from __future__ import annotations

import copy

import pytest
import torch
from ignite.engine import Events, create_supervised_evaluator, create_supervised_trainer
from ignite.metrics import Accuracy, Loss
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset, TensorDataset, default_collate

from ignite_ipu import create_ipu_averages_evaluator, create_ipu_evaluator, create_ipu_trainer
from ignite_ipu.errors import BatchError
from tests.supervised import assert_same_weights, network, pair, task

CROSS_ENTROPY = nn.CrossEntropyLoss()
FACTORS = [
    {},
    {"gradient_accumulation_steps": 2},
    {"device_iterations": 2},
    {"device_iterations": 2, "gradient_accumulation_steps": 2, "replication_factor": 2},
]


def centred(samples):
    x, y = default_collate(samples)
    return x - x.mean(0), y


def with_shuffled_negatives(samples):
    """Half of the inputs are taken from other samples of the batch, drawn at random."""
    x, y = default_collate(samples)
    return torch.where(torch.rand(len(x), 1) < 0.5, x, x[torch.randperm(len(x))]), y


def mixed(batch, device=None, non_blocking=False):
    """Mixup with the reversed batch, by a share for the batch: targets are both labels and the share."""
    x, y = batch
    share = float(torch.rand(()))
    return share * x + (1 - share) * x.flip(0), (y, y.flip(0), share)


def mixed_loss(y_pred, y):
    one, other, share = y
    return share * F.cross_entropy(y_pred, one) + (1 - share) * F.cross_entropy(y_pred, other)


def standardised(batch, device=None, non_blocking=False):
    x, y = batch
    return (x - x.mean()) / (x.std() + 1e-3), y


def cut_to_pairs(batch, device=None, non_blocking=False):
    """A batch of half the rows: each is the difference to the next sample."""
    x, y = batch
    return x[::2] - x[1::2], y[::2]


def train(create, loader, loss_fn=CROSS_ENTROPY, epochs=2, **settings):
    """Return the model that a factory's trainer trains, with the host's random numbers from a fixed start."""
    model, optimizer = pair(momentum=0.9)
    torch.manual_seed(3)
    trainer = create(model, optimizer, loss_fn, **settings)
    trainer.run(loader(), max_epochs=epochs)
    return model


def compare(loader, factors, **settings):
    """Compare a trainer with Ignite's own: replicas share the micro-batches of an update."""
    steps = factors.get("gradient_accumulation_steps", 1) * factors.get("replication_factor", 1)
    native = train(create_supervised_trainer, loader, gradient_accumulation_steps=steps, **settings)
    assert_same_weights(train(create_ipu_trainer, loader, **factors, **settings), native)


@pytest.mark.parametrize("factors", FACTORS, ids=str)
@pytest.mark.parametrize("collate", [centred, with_shuffled_negatives])
def test_a_collate_function_gets_the_samples_of_one_batch(collate, factors):
    compare(lambda: DataLoader(task(), batch_size=4, shuffle=True, collate_fn=collate), factors)


@pytest.mark.parametrize("factors", FACTORS, ids=str)
@pytest.mark.parametrize("prepare", [standardised, cut_to_pairs])
def test_prepare_batch_gets_one_batch(prepare, factors):
    compare(lambda: DataLoader(task(), batch_size=4, shuffle=True), factors, prepare_batch=prepare)


@pytest.mark.parametrize("factors", FACTORS, ids=str)
def test_numbers_of_a_batch_may_differ_between_micro_batches(factors):
    """Such as the share of a mixup, which each batch draws."""
    loader = lambda: DataLoader(task(), batch_size=4, shuffle=True)  # noqa: E731
    compare(loader, factors, prepare_batch=mixed, loss_fn=mixed_loss)


def test_what_differs_between_micro_batches_comes_back_by_micro_batch():
    shares = []
    model, optimizer = pair()
    trainer = create_ipu_trainer(
        model,
        optimizer,
        mixed_loss,
        prepare_batch=mixed,
        output_transform=lambda x, y, y_pred, loss: shares.append(y[2]),
        config={"output_mode": "Final"},
        device_iterations=2,
        gradient_accumulation_steps=2,
    )
    torch.manual_seed(3)
    trainer.run(DataLoader(task(32), batch_size=4))
    torch.manual_seed(3)
    torch.empty((), dtype=torch.int64).random_()  # the loader draws a seed for its workers
    drawn = torch.rand(8)
    torch.testing.assert_close(torch.cat(shares), drawn[[3, 7]])


class OddSampler:
    """Batches of four, odd samples first."""

    batch_size, drop_last = 4, True

    def __iter__(self):
        indices = [*range(1, 64, 2), *range(0, 64, 2)]
        return iter([indices[start : start + 4] for start in range(0, 64, 4)])

    def __len__(self):
        return 16


def loader_of(kind):
    data = task()
    if kind == "batch sampler":
        return DataLoader(data, batch_sampler=OddSampler(), collate_fn=centred)
    if kind == "list of batches":
        return DataLoader(data, batch_sampler=[list(range(start, start + 4)) for start in range(0, 64, 4)][::-1])
    if kind == "distributed":
        sampler = DistributedSampler(data, num_replicas=2, rank=1, seed=4)
        return DataLoader(data, sampler=sampler, batch_size=4, collate_fn=centred)
    if kind == "workers":
        return DataLoader(data, batch_size=4, shuffle=True, num_workers=2, collate_fn=centred)
    if kind == "data set of batches":
        return DataLoader([centred([data[at] for at in range(start, start + 4)]) for start in range(0, 64, 4)], None)
    return DataLoader(data, batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(6), collate_fn=centred)


@pytest.mark.parametrize(
    "kind", ["batch sampler", "list of batches", "distributed", "workers", "data set of batches", "generator"]
)
def test_loaders_yield_what_they_yield_natively(kind):
    compare(lambda: loader_of(kind), FACTORS[1])


def test_an_asynchronous_loader_yields_the_same_batches():
    config = {"loader_mode": "Async", "gradient_accumulation_steps": 2}
    loader = lambda: DataLoader(task(), batch_size=4, collate_fn=centred)  # noqa: E731
    native = train(create_supervised_trainer, loader, gradient_accumulation_steps=2)
    assert_same_weights(train(create_ipu_trainer, loader, config=config), native)


@pytest.mark.parametrize("samples", [32, 30, 3])
@pytest.mark.parametrize("settings", [{}, {"device_iterations": 3}, {"replication_factor": 2}], ids=str)
def test_evaluators_prepare_each_batch(samples, settings):
    """The last one has fewer samples, and is filled up after it was prepared."""
    metrics = lambda: {"loss": Loss(CROSS_ENTROPY), "accuracy": Accuracy()}  # noqa: E731
    loader = DataLoader(task(samples), batch_size=8, collate_fn=centred)
    native = create_supervised_evaluator(network(), metrics(), prepare_batch=standardised).run(loader).metrics
    found = create_ipu_evaluator(network(), metrics(), prepare_batch=standardised, **settings).run(loader).metrics
    assert found == pytest.approx(native, rel=1e-5)
    averages = {"loss": lambda y_pred, y: F.cross_entropy(y_pred, y, reduction="none")}
    summing = create_ipu_averages_evaluator(network(), averages, prepare_batch=standardised, **settings)
    assert summing.run(loader).metrics["loss"] == pytest.approx(native["loss"], rel=1e-5)


class MeanOfBatch(nn.Module):
    """A forward that mixes the samples of a batch."""

    def __init__(self):
        super().__init__()
        self.network = network()

    def forward(self, x):
        return self.network(x - x.mean(0))


@pytest.mark.parametrize("samples", [20, 28])
def test_a_small_evaluation_has_the_batches_of_the_loader(samples):
    """Also where they do not fill a call: a micro-batch has as many samples as a batch of the loader, not fewer."""
    loader = DataLoader(task(samples), batch_size=4)
    native = create_supervised_evaluator(MeanOfBatch(), {"loss": Loss(CROSS_ENTROPY)}).run(loader).metrics["loss"]
    evaluator = create_ipu_evaluator(MeanOfBatch(), {"loss": Loss(CROSS_ENTROPY)}, device_iterations=8)
    assert evaluator.run(loader).metrics["loss"] == pytest.approx(native, rel=1e-5)


class Sentences(Dataset):
    """Sequences of several lengths, which stay together."""

    def __init__(self, lengths=(3, 3, 5, 5, 4, 4, 3, 3)):
        self.lengths = lengths

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        return torch.randn(self.lengths[index], 6, generator=generator), index % 3


def padded(samples):
    """Pad to the longest of the batch."""
    rows, labels = zip(*samples)
    return nn.utils.rnn.pad_sequence(rows, batch_first=True), torch.tensor(labels)


class OfSentences(nn.Module):
    """The mean over time, by the number of steps."""

    def __init__(self):
        super().__init__()
        self.network = network()

    def forward(self, x):
        return self.network(x.mean(1))


def train_sentences(create, **settings):
    model = OfSentences()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = create(model, optimizer, CROSS_ENTROPY, **settings)
    trainer.run(DataLoader(Sentences(), batch_size=2, collate_fn=padded), max_epochs=2)
    return model


def test_batches_are_padded_to_their_own_longest():
    """Each length is a program of its own."""
    assert_same_weights(train_sentences(create_ipu_trainer), train_sentences(create_supervised_trainer))


@pytest.mark.parametrize(
    "factors", [{"gradient_accumulation_steps": 2}, {"device_iterations": 2}, {"replication_factor": 2}], ids=str
)
def test_batches_of_several_shapes_in_one_call_are_refused(factors):
    """With the shapes, the call and the way out."""
    with pytest.raises(
        BatchError, match=r"2 micro-batches of one device call \(.*\) differ: x has the shapes"
    ) as caught:
        train_sentences(create_ipu_trainer, **factors)
    assert "(2, 3, 6), (2, 5, 6)" in str(caught.value) and "Pad them to one shape" in str(caught.value)


@pytest.mark.parametrize(
    "factors",
    [{"gradient_accumulation_steps": 4}, {"gradient_accumulation_steps": 2, "replication_factor": 2}],
    ids=str,
)
def test_an_update_on_the_host_takes_batches_of_several_shapes(factors):
    """Each shape has a program, and their gradients add up to those of the mean loss."""
    seen = []
    model = train_sentences(
        create_ipu_trainer,
        output_transform=lambda x, y, y_pred, loss: seen.append((x, y, y_pred)),
        config={"update": "host"},
        **factors,
    )
    assert_same_weights(model, train_sentences(create_supervised_trainer, gradient_accumulation_steps=4))
    x, y, y_pred = seen[0]
    assert [tuple(each.shape) for each in x] == [(2, 3, 6), (2, 5, 6), (2, 4, 6), (2, 3, 6)]
    assert y.shape == (8,) and y_pred.shape == (8, 3)


def test_an_update_of_several_shapes_is_counted_once():
    model = OfSentences()
    optimizer = torch.optim.Adam(model.parameters())
    config = {"update": "host", "gradient_accumulation_steps": 4}
    trainer = create_ipu_trainer(model, optimizer, CROSS_ENTROPY, config=config)
    state = trainer.run(DataLoader(Sentences(), batch_size=2, collate_fn=padded), max_epochs=2)
    assert (state.weight_updates, state.micro_batches, state.samples) == (2, 8, 16)


@pytest.mark.parametrize("settings", [{}, {"device_iterations": 2}, {"device_iterations": 3}], ids=str)
def test_evaluators_take_batches_of_several_shapes(settings):
    """Micro-batches of one shape share device calls; inputs of several shapes are handed on as a list."""
    loader = DataLoader(Sentences(), batch_size=2, collate_fn=padded)
    seen = []
    native = create_supervised_evaluator(OfSentences(), {"loss": Loss(CROSS_ENTROPY)}).run(loader).metrics["loss"]
    evaluator = create_ipu_evaluator(
        OfSentences(),
        {"loss": Loss(CROSS_ENTROPY)},
        output_transform=lambda x, y, y_pred: seen.append(x) or (y_pred, y),
        **settings,
    )
    assert evaluator.run(loader).metrics["loss"] == pytest.approx(native, rel=1e-5)
    assert isinstance(seen[0], list) == bool(settings)


class Graphs(Dataset):
    """Graphs with edges, of a size of their own or of one size."""

    def __init__(self, sizes):
        self.sizes = sizes

    def __len__(self):
        return len(self.sizes)

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        nodes = torch.randn(self.sizes[index], 6, generator=generator)
        return nodes, torch.randint(self.sizes[index], (2 * len(nodes), 2), generator=generator), index % 3


def joined_graphs(graphs):
    """One graph of several; each node has the number of its graph."""
    starts = torch.tensor([0, *(len(nodes) for nodes, _, _ in graphs)]).cumsum(0)
    edges = torch.cat([edges + start for (_, edges, _), start in zip(graphs, starts)])
    owner = torch.cat([torch.full((len(nodes),), number) for number, (nodes, _, _) in enumerate(graphs)])
    labels = torch.tensor([label for *_, label in graphs])
    return {"nodes": torch.cat([nodes for nodes, *_ in graphs]), "edges": edges, "owner": owner}, labels


class OfGraphs(nn.Module):
    """Sums over neighbours, then over the nodes of each of two graphs."""

    def __init__(self):
        super().__init__()
        self.network = network()

    def forward(self, graph):
        nodes, edges, owner = graph["nodes"], graph["edges"], graph["owner"]
        h = nodes + torch.zeros_like(nodes).scatter_add(0, edges[:, 1:].expand(-1, 6), nodes[edges[:, 0]])
        return self.network(torch.zeros(2, 6).scatter_add(0, owner.unsqueeze(1).expand(-1, 6), h))


def train_graphs(create, sizes, **settings):
    model = OfGraphs()
    trainer = create(model, torch.optim.SGD(model.parameters(), lr=0.1), CROSS_ENTROPY, **settings)
    trainer.run(DataLoader(Graphs(sizes), batch_size=2, collate_fn=joined_graphs), max_epochs=2)
    return model, trainer


@pytest.mark.parametrize(
    ("sizes", "steps"), [([4] * 8, 1), ([4, 6, 5, 5, 4, 6, 3, 3], 1), ([4] * 8, 2), ([5, 3, 4, 4, 3, 5, 6, 2], 2)]
)
def test_rows_need_not_be_samples(sizes, steps):
    """The nodes and edges of graphs are rows, of which a micro-batch has as many as it has."""
    model, trainer = train_graphs(create_ipu_trainer, sizes, gradient_accumulation_steps=steps)
    native, _ = train_graphs(create_supervised_trainer, sizes, gradient_accumulation_steps=steps)
    assert_same_weights(model, native)
    assert trainer.state.samples == 16
    loader = DataLoader(Graphs(sizes), batch_size=2, collate_fn=joined_graphs)
    metrics = lambda: {"loss": Loss(CROSS_ENTROPY), "accuracy": Accuracy()}  # noqa: E731
    expected = create_supervised_evaluator(native, metrics()).run(loader).metrics
    assert create_ipu_evaluator(model, metrics()).run(loader).metrics == pytest.approx(expected, rel=1e-4)


def another_batch(engine, key):
    batch = copy.copy(engine.state.batch)
    batch[key] = batch[key] * 0.5
    engine.state.batch = batch


def another_entry(engine, key):
    engine.state.batch[key] = engine.state.batch[key] * 0.5


def in_place(engine, key):
    engine.state.batch[key].mul_(0.5)


def through_data(engine, key):
    engine.state.batch[key].data.mul_(0.5)


def through_an_array(engine, key):
    engine.state.batch[key].numpy()[...] *= 0.5


class Described(Dataset):
    """Samples with a number, and with their class in a text."""

    def __len__(self):
        return 16

    def __getitem__(self, index):
        x, y = task(16)[index]
        return {"x": x, "text": str(int(y)), "share": index // 4 / 3}


def described(batch, **_):
    return batch["x"] * batch["share"][0], torch.tensor(list(map(int, batch["text"])))


@pytest.mark.parametrize("change", [another_batch, another_entry, in_place, through_data, through_an_array])
@pytest.mark.parametrize("data", [task(16), Described()], ids=["pairs", "structures"])
def test_a_handler_that_changes_the_batch_has_its_way(change, data, caplog):
    """It sees the rows of the whole call, and a warning explains that where PyTorch counts its write."""
    key, prepare = (0, {}) if isinstance(data, TensorDataset) else ("x", {"prepare_batch": described})

    def run(create, create_evaluator, **several):
        model, optimizer = pair()
        trainer = create(model, optimizer, CROSS_ENTROPY, gradient_accumulation_steps=2, **prepare)
        evaluator = create_evaluator(model, {"loss": Loss(CROSS_ENTROPY)}, **several, **prepare)
        for engine in (trainer, evaluator):
            engine.add_event_handler(Events.ITERATION_STARTED, change, key)
        trainer.run(DataLoader(data, batch_size=4), max_epochs=2)
        return model, evaluator.run(DataLoader(data, batch_size=4)).metrics["loss"]

    native, loss = run(create_supervised_trainer, create_supervised_evaluator)
    model, found = run(create_ipu_trainer, create_ipu_evaluator, device_iterations=2)
    assert_same_weights(model, native)
    assert found == pytest.approx(loss, rel=1e-5)
    counted = change not in (through_data, through_an_array)
    told = caplog.text.count("A handler has changed state.batch, which holds the rows of the 2 micro-batches")
    assert told == 2 * counted


class Lines(IterableDataset):
    def __iter__(self):
        return iter([torch.full((6,), number / 10) for number in range(10)])


def test_strings_and_structures_are_seen_joined():
    """`state.batch` equals the result of `collate_fn` for all samples of a call."""
    collate = lambda samples: {"x": torch.stack(samples), "text": [str(len(samples))] * len(samples)}  # noqa: E731
    model, optimizer = pair()
    trainer = create_ipu_trainer(
        model,
        optimizer,
        CROSS_ENTROPY,
        prepare_batch=lambda batch, **_: (batch["x"], torch.tensor(list(map(int, batch["text"])))),
        device_iterations=2,
    )
    seen = []
    trainer.add_event_handler(Events.ITERATION_COMPLETED, lambda: seen.append(trainer.state.batch))
    trainer.run(DataLoader(Lines(), batch_size=2, collate_fn=collate))
    assert [(batch["x"].shape, batch["text"]) for batch in seen] == 2 * [((4, 6), ["2"] * 4)]
