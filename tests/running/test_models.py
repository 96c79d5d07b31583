"""Which modules a device step trains: several models of one optimizer, parts called alone, other optimizers later."""

from __future__ import annotations

import json
import pickletools
import re
import zipfile

import pytest

from ignite_ipu import IPUConfig
from ignite_ipu.errors import RunError

HEAD = """
import json, torch
from torch import nn
from torch.nn import functional as F
torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
x, y = torch.randn(8, 4, device=device), torch.randint(2, (8,), device=device)
out = []
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.features, self.head = nn.Sequential(nn.Linear(4, 6), nn.Tanh()), nn.Linear(6, 2)
    def forward(self, x):
        return self.head(self.features(x))
def update(optimizer, loss):
    optimizer.zero_grad()
    loss = loss()
    loss.backward()
    optimizer.step()
    out.append(loss.item())
"""
TAIL = """
print(json.dumps(out))
"""
AUTOENCODER = """
class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.mu, self.logvar = nn.Linear(4, 6), nn.Linear(6, 2), nn.Linear(6, 2)
        self.decoder = nn.Linear(2, 4)
    def forward(self, x, eps=None):
        hidden = torch.tanh(self.encoder(x))
        mu, logvar = self.mu(hidden), self.logvar(hidden)
        std = logvar.mul(0.5).exp_()
        eps = torch.zeros_like(std) if eps is None else eps
        return torch.sigmoid(self.decoder(eps.mul(std).add_(mu))), mu, logvar
model = Autoencoder().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
pixels = torch.sigmoid(x)
for epoch in range(1, 5):
    beta = min(1.0, epoch / 3)
    recon, mu, logvar = model(pixels{noise})
    divergence = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
    loss = F.binary_cross_entropy(recon, pixels, reduction="sum") + beta * divergence
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    out.append(loss.item())
"""
SCRIPTS = {
    "an encoder and a decoder": """
encoder, decoder = nn.GRU(4, 6, batch_first=True).to(device), nn.Linear(6, 2).to(device)
optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=0.05)
for _ in range(3):
    update(optimizer, lambda: F.cross_entropy(decoder(encoder(x[:, None])[0][:, 0]), y))
    with torch.no_grad():
        out.append(decoder(encoder(x[:, None])[0][:, 0]).sum().item())
out.append(decoder.state_dict()["weight"].sum().item())
out.append(optimizer.state_dict()["state"][0]["exp_avg"].sum().item())
""",
    "a siamese pair and its head, clipped together": """
tower, head = nn.Linear(4, 6).to(device), nn.Linear(6, 2).to(device)
optimizer = torch.optim.AdamW([{"params": tower.parameters()}, {"params": head.parameters(), "lr": 0.1}], lr=0.05)
for _ in range(3):
    optimizer.zero_grad()
    loss = F.cross_entropy(head((tower(x) - tower(x.flip(0))).abs()), y)
    loss.backward()
    nn.utils.clip_grad_norm_([*tower.parameters(), *head.parameters()], 0.3)
    optimizer.step()
    out.append(loss.item())
""",
    "a decoder with the weights of an encoder, and a tensor attribute, which an optimizer trains": """
class Decoder(nn.Module):
    def __init__(self, encoder):
        super().__init__()
        self.encoder, self.bias = [encoder], nn.Parameter(torch.zeros(4))
        self.scale = torch.ones(4, device=device, requires_grad=True)
    def forward(self, hidden):
        return F.linear(hidden, self.encoder[0].weight.t(), self.bias) * self.scale
encoder = nn.Linear(4, 6).to(device)
decoder = Decoder(encoder).to(device)
optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=0.05)
scaling = torch.optim.SGD([decoder.scale], lr=0.1)
for _ in range(3):
    scaling.zero_grad()
    update(optimizer, lambda: F.mse_loss(decoder(torch.tanh(encoder(x))), x))
    scaling.step()
    with torch.no_grad():
        out.append(decoder(encoder(x)).sum().item())
out += decoder.scale.tolist()
""",
    "gradients of weights by torch.autograd.grad": """
model = Net().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
for _ in range(2):
    loss = F.cross_entropy(model(x), y)
    weights = list(model.parameters())
    for weight, gradient in zip(weights, torch.autograd.grad(loss, weights)):
        weight.grad = gradient.clamp(-0.1, 0.1)
    optimizer.step()
    out.append(loss.item())
""",
    "an encoder in evaluation mode that is trained": """
encoder, decoder = nn.Linear(4, 6).to(device), nn.Linear(6, 2).to(device)
optimizer = torch.optim.SGD([*encoder.parameters(), *decoder.parameters()], lr=0.1)
encoder.eval()
for _ in range(2):
    update(optimizer, lambda: F.cross_entropy(decoder(encoder(x)), y))
""",
    "parts of a model called one by one, and the whole": """
model = Net().to(device)
model.unused = nn.Linear(3, 3)
optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
for _ in range(2):
    update(optimizer, lambda: F.cross_entropy(model.head(model.features(x)), y))
update(optimizer, lambda: F.cross_entropy(model(x), y))
""",
    "features of the model in training, and a wrapper around it": """
model = Net().to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
wrapper = nn.Sequential(model, nn.Softmax(1))
for _ in range(3):
    model.train()
    update(optimizer, lambda: F.cross_entropy(model(x), y))
    wrapper.eval()
    with torch.inference_mode():
        out += [model.features(x).sum().item(), wrapper(x)[:, 0].sum().item()]
""",
    "a wrapper trained after what it consists of, and some layers of a model": """
model = Net().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
for _ in range(2):
    update(optimizer, lambda: F.cross_entropy(model(x), y))
update(optimizer, lambda: F.cross_entropy(model(x), y) + model.features[:1](x).square().mean())
wrapper = nn.Sequential(model, nn.Linear(2, 2)).to(device)
optimizer = torch.optim.SGD(wrapper.parameters(), lr=0.1)
for _ in range(2):
    update(optimizer, lambda: F.cross_entropy(wrapper(x), y))
out.append(wrapper[1].weight.sum().item())
""",
    "parametrizations, which are called when they are registered, read and removed": """
from torch.nn.utils import parametrize
class Symmetric(nn.Module):
    def forward(self, weight):
        return weight.triu() + weight.triu(1).T
class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(0.5))
    def forward(self, weight):
        return weight * self.scale
model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2)).to(device)
parametrize.register_parametrization(model[0], "weight", Symmetric())
parametrize.register_parametrization(model[0], "weight", Scaled())
optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
for _ in range(3):
    update(optimizer, lambda: F.cross_entropy(model(x), y))
    out.append(model[0].weight.norm().item())
parametrize.remove_parametrizations(model[0], "weight")
out.append(model[0].weight.norm().item())
""",
    "hooks that are there for one evaluation": """
model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def features():
    found = {}
    handle = model[1].register_forward_hook(lambda module, given, output: found.update(h=output.detach()))
    with torch.no_grad():
        model(x)
    handle.remove()
    return found["h"].mean().item()
for _ in range(3):
    model.train()
    for _ in range(4):
        update(optimizer, lambda: F.cross_entropy(model(x), y))
    model.eval()
    out.append(features())
""",
    "weights that the first batch sets": """
class Normalised(nn.Module):
    def __init__(self):
        super().__init__()
        self.shift, self.scale = nn.Parameter(torch.zeros(6)), nn.Parameter(torch.ones(6))
        self.norm, self.is_set = nn.BatchNorm1d(6), False
    def forward(self, x):
        if not self.is_set:
            with torch.no_grad():
                self.shift.data = -x.mean(0)
                self.scale.copy_(1 / (x.std(0) + 0.1))
            self.is_set = True
        return self.norm((x + self.shift) * self.scale)
model = nn.Sequential(nn.Linear(4, 6), Normalised(), nn.Linear(6, 2)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    update(optimizer, lambda: F.cross_entropy(model(x), y))
out += [value.double().sum().item() for value in model.state_dict().values()]
""",
    "a patch that is trained through a frozen model": """
model = Net().to(device).eval().requires_grad_(False)
patch = nn.Parameter(torch.zeros(4, device=device))
optimizer = torch.optim.Adam([patch], lr=0.05)
for _ in range(3):
    update(optimizer, lambda: F.cross_entropy(model(x * 0.5 + F.pad(patch[1:3], (1, 1))), y))
    with torch.no_grad():
        patch.clamp_(-0.08, 0.08)
        out.append(F.cross_entropy(model(x + patch), y).item())
""",
    "an autoencoder whose noise the loop draws": AUTOENCODER.format(noise=", torch.randn(8, 2)"),
    "an autoencoder without noise": AUTOENCODER.format(noise=""),
    "statistics of normalisations, evaluated in inference mode": """
model = nn.Sequential(nn.Linear(4, 6, bias=False), nn.BatchNorm1d(6), nn.ReLU(inplace=True), nn.Linear(6, 2)).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
@torch.inference_mode()
def evaluate():
    model.eval()
    out.append(F.cross_entropy(model(x), y).item())
    model.train()
for _ in range(3):
    update(optimizer, lambda: F.cross_entropy(model(x), y))
    evaluate()
out += [value.sum().item() for value in model.state_dict().values()]
""",
    "a warm-up of the head, then the whole with another optimizer": """
model = Net().to(device)
model.features.requires_grad_(False)
optimizer = torch.optim.SGD(model.head.parameters(), lr=0.1, momentum=0.9)
for _ in range(2):
    update(optimizer, lambda: F.cross_entropy(model(x), y))
model.features.requires_grad_(True)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
for _ in range(2):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()
    out.append(loss.item())
out += [parameter.sum().item() for parameter in model.parameters()]
""",
    "layers frozen and unfrozen, with the optimizer's state": """
model = Net().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
for trained in (True, False, True):
    model.features[0].weight.requires_grad = trained
    for _ in range(2):
        update(optimizer, lambda: F.cross_entropy(model(x), y))
""",
    "a layer set to evaluation mode between two updates": """
model = Net().to(device)
model.features.append(nn.BatchNorm1d(6))
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
update(optimizer, lambda: F.cross_entropy(model(x), y))
model.features[2].eval()
for _ in range(2):
    update(optimizer, lambda: F.cross_entropy(model(x), y))
""",
    "a model that joins with a parameter group": """
tower, first, second = nn.Linear(4, 6).to(device), nn.Linear(6, 2).to(device), nn.Linear(6, 2).to(device)
optimizer = torch.optim.Adam([*tower.parameters(), *first.parameters()], lr=0.05)
for _ in range(2):
    update(optimizer, lambda: F.cross_entropy(first(tower(x)), y))
optimizer.add_param_group({"params": second.parameters(), "lr": 0.2})
for _ in range(2):
    update(optimizer, lambda: F.cross_entropy(first(tower(x)) + second(tower(x)), y))
""",
    "a model trained alone, then with a second one": """
tower, head = nn.Linear(4, 4).to(device), nn.Linear(4, 2).to(device)
optimizer = torch.optim.SGD(tower.parameters(), lr=0.1)
for _ in range(2):
    update(optimizer, lambda: F.mse_loss(tower(x), x))
optimizer = torch.optim.SGD([*tower.parameters(), *head.parameters()], lr=0.1, momentum=0.9)
for _ in range(2):
    update(optimizer, lambda: F.cross_entropy(head(tower(x)), y))
""",
    "two models one after the other, and the first again": """
def fit(model, optimizer):
    for _ in range(2):
        update(optimizer, lambda: F.cross_entropy(model(x), y))
first, second = Net().to(device), Net().to(device)
optimizers = [torch.optim.Adam(model.parameters(), lr=0.05) for model in (first, second)]
for model, optimizer in [(first, optimizers[0]), (second, optimizers[1]), (first, optimizers[0])]:
    fit(model, optimizer)
""",
    "a parameter of no model that joins with a parameter group": """
model, temperature = Net().to(device), nn.Parameter(torch.ones((), device=device))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
optimizer.add_param_group({"params": [temperature]})
for _ in range(3):
    update(optimizer, lambda: F.cross_entropy(model(x) * temperature.exp(), y))
out.append(temperature.item())
""",
    "a layer whose weight is computed, by a part that is called before": """
model = Net().to(device)
nn.utils.parametrizations.spectral_norm(model.head)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
for _ in range(3):
    update(optimizer, lambda: F.cross_entropy(model(x), y))
out += [value.sum().item() for value in model.state_dict().values()]
""",
    "layers that are replaced in models that are trained together": """
tower, head = nn.Sequential(nn.Linear(4, 6), nn.Tanh()).to(device), nn.Sequential(nn.Linear(6, 2)).to(device)
def optimize():
    return torch.optim.SGD([*tower.parameters(), *head.parameters()], lr=0.1, momentum=0.9)
optimizer = optimize()
for _ in range(2):
    update(optimizer, lambda: F.cross_entropy(head(tower(x)), y))
from torch.nn.utils import prune
prune.l1_unstructured(tower[0], "weight", 0.3)
for _ in range(2):
    update(optimizer, lambda: F.cross_entropy(head(tower(x)), y))
head[0] = nn.Linear(6, 2).to(device)
optimizer = optimize()
for _ in range(2):
    update(optimizer, lambda: F.cross_entropy(head(tower(x)), y))
""",
    "layers that are replaced in models that train each other": """
model, critic = Net().to(device), nn.Linear(2, 1).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
other = torch.optim.SGD(critic.parameters(), lr=0.1)
from torch.nn.utils import prune
for done in range(4):
    if done == 2:
        prune.l1_unstructured(model.head, "weight", 0.3)
    scores = model(x)
    update(other, lambda: (critic(scores.detach()) - 1).pow(2).mean())
    update(optimizer, lambda: F.cross_entropy(scores, y) + critic(scores).pow(2).mean())
""",
    "an optimizer that is put together for what is left of two models": """
tower, head = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 6)).to(device), nn.Linear(6, 2).to(device)
def optimize():
    optimizer = torch.optim.SGD(tower.parameters(), lr=0.1)
    optimizer.add_param_group({"params": head.parameters()})
    return optimizer
for _ in range(2):
    optimizer = optimize()
    for _ in range(2):
        update(optimizer, lambda: F.cross_entropy(head(tower(x)), y))
    tower[1] = nn.Linear(6, 6).to(device)
""",
    "a target of one optimizer's weights in another's update": """
tower, head = nn.Linear(4, 2).to(device), nn.Linear(2, 2).to(device)
first, second = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (tower, head)]
for _ in range(3):
    first.zero_grad()
    second.zero_grad()
    scores = tower(x)
    loss = F.cross_entropy(head(scores), y) + F.mse_loss(head(scores.flip(0)), scores.detach() + 0.1)
    loss.backward()
    first.step()
    second.step()
    out += [loss.item(), tower.weight.sum().item(), head.weight.sum().item()]
""",
    "copies of a model whose weight is computed": """
import copy
model = nn.utils.parametrizations.spectral_norm(nn.Linear(4, 2)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
for _ in range(2):
    update(optimizer, lambda: F.cross_entropy(model(x), y))
    made = copy.deepcopy(model).eval()
    out += [value.sum().item() for value in made.state_dict().values()]
""",
    "all layers replaced, whose gradients nobody clears": """
model = nn.Sequential(nn.Linear(4, 2)).to(device)
for _ in range(2):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        update(optimizer, lambda: F.cross_entropy(model(x), y))
    model[0] = nn.Linear(4, 2).to(device)
""",
    "counts of batches over programs, of which nobody reads any": """
model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 2)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for done in range(4):
    update(optimizer, lambda: F.cross_entropy(model(x), y) * (1 - 0.1 * done))
out.append(model[1].num_batches_tracked.item())
""",
    "a layer that is pruned for good after the loop, which registers its weight anew": """
model = Net().to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    update(optimizer, lambda: F.cross_entropy(model(x), y))
from torch.nn.utils import prune
prune.l1_unstructured(model.head, "weight", 0.3)
prune.remove(model.head, "weight")
out += model.head.weight.flatten().tolist()
""",
    "evaluation without torch.no_grad()": """
model = Net().to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
for _ in range(2):
    model.train()
    update(optimizer, lambda: F.cross_entropy(model(x), y))
    model.eval()
    scores = model(x)
    out += [F.cross_entropy(scores, y).item(), float(scores.requires_grad), scores.detach().numpy().sum().item()]
""",
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_updates_are_the_native_ones(run, monkeypatch, name):
    text = HEAD + SCRIPTS[name] + TAIL
    found = json.loads(run(text).output[-1])
    monkeypatch.setenv("IGNITE_IPU_BACKEND", "native")
    assert found == pytest.approx(json.loads(run(text).output[-1]), rel=1e-5, abs=1e-6)


AVERAGED = """
from ignite.engine import Events, create_supervised_trainer
from torch.optim.swa_utils import AveragedModel, update_bn
class Normed(Net):
    def __init__(self):
        super().__init__()
        self.features.append(nn.BatchNorm1d(6))
batches = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=4)
model = Normed().to(device)
average = AveragedModel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""


@pytest.mark.parametrize("name", ["a loop", "a trainer"])
def test_the_statistics_of_an_averaged_model_are_the_native_ones(run, monkeypatch, name):
    """update_bn() calls it in training mode and without gradients, also once it has been evaluated."""
    scripts = {
        "a loop": """
for _ in range(2):
    for a, b in batches:
        update(optimizer, lambda: F.cross_entropy(model(a), b))
    average.update_parameters(model)
""",
        "a trainer": """
trainer = create_supervised_trainer(model, optimizer, nn.CrossEntropyLoss(), device)
trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda: average.update_parameters(model))
trainer.run(batches, max_epochs=2)
""",
    }
    look = """
    update_bn(batches, subject, device=device)
    out += [value.sum().item() for name, value in subject.state_dict().items() if "running" in name]
    subject.eval()
    with torch.no_grad():
        out.append(subject(x).sum().item())
    subject.train()
"""
    text = f"{HEAD}{AVERAGED}{scripts[name]}\nfor subject in (average, average, model):{look}{TAIL}"
    ran = run(text)
    monkeypatch.setenv("IGNITE_IPU_BACKEND", "native")
    native = json.loads(run(text).output[-1])
    assert json.loads(ran.output[-1]) == pytest.approx(native, rel=1e-5, abs=1e-6)


TRAINED_ON_HOST = (
    "two steps from one backward",
    "a value read before the other optimizer's step",
    "a layer unfrozen that no optimizer holds",
    "two losses of an update, and a layer that no optimizer holds",
)
REFUSED = {
    "two steps from one backward": (
        """
model = Net()
first, second = torch.optim.SGD(model.parameters(), lr=0.1), torch.optim.Adam(model.parameters())
F.cross_entropy(model(x), y).backward()
first.step()
second.step()  # here
""",
        "the update was made already, by another optimizer",
    ),
    "a value read before the other optimizer's step": (
        """
model = Net()
first, second = torch.optim.SGD(model.parameters(), lr=0.1), torch.optim.Adam(model.parameters())
loss = F.cross_entropy(model(x), y)
loss.backward()
loss.item()
for optimizer in (second, first):
    optimizer.step()  # here
""",
        "by another optimizer of the same weights",
    ),
    "a layer unfrozen that no optimizer holds": (
        """
model = Net()
model.features.requires_grad_(False)
optimizer = torch.optim.SGD(model.head.parameters(), lr=0.1)
update(optimizer, lambda: F.cross_entropy(model(x), y))
model.features.requires_grad_(True)
loss = F.cross_entropy(model(x), y)
optimizer.zero_grad()
F.cross_entropy(model(x), y).backward()
optimizer.step()  # here
""",
        "Trainable parameters are in no group of the optimizer",
    ),
    "two losses of an update, and a layer that no optimizer holds": (
        """
model = Net()
model.features.requires_grad_(False)
optimizer = torch.optim.SGD(model.head.parameters(), lr=0.1)
update(optimizer, lambda: F.cross_entropy(model(x), y))
model.features.requires_grad_(True)
optimizer.zero_grad()
for _ in range(2):
    F.cross_entropy(model(x), y).backward()
optimizer.step()  # here
update(optimizer, lambda: F.cross_entropy(model(x), y))
out += [parameter.grad.sum().item() for parameter in model.features.parameters()]
""",
        "Trainable parameters are in no group of the optimizer",
    ),
    "an ensemble by torch.func": (
        """
model = Net()
call = lambda bias: torch.func.functional_call(model, {"head.bias": bias}, (x,))  # here
torch.func.vmap(call)(torch.zeros(3, 2))
""",
        "within a transform of torch.func",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_one_step_cannot_do_is_refused_at_its_line(run, name):
    """In updates on the device; transforms and models that are not in training mode in others, too."""
    text, reason = REFUSED[name]
    for update in ("device",) if name in TRAINED_ON_HOST else ("device", "auto"):
        with pytest.raises(RunError, match=re.escape(reason)) as refused:
            run(HEAD + text, config=IPUConfig(update=update))
    (line,) = [number for number, content in enumerate((HEAD + text).splitlines(), 1) if content.endswith("# here")]
    assert f"script.py:{line}" in str(refused.value)


@pytest.mark.parametrize("name", TRAINED_ON_HOST)
def test_what_one_step_cannot_do_trains_with_updates_on_the_host(run, natively, name, caplog):
    """As in eager PyTorch, with one warning."""
    text = f"{HEAD}{REFUSED[name][0]}out += [p.sum().item() for p in model.parameters()]\n{TAIL}"
    found, expected = (json.loads(how(text)[-1]) for how in (lambda text: run(text).output, natively))
    assert found == pytest.approx(expected, rel=1e-5)
    assert sum("Weights are updated on the host from " in text for text in caplog.messages) == 1


def test_hooks_change_the_gradients_that_are_asked_for(run, natively):
    """By `torch.autograd.grad` and `backward(inputs=...)`, once each, and for the weights that are named alone."""
    text = f"""{HEAD}
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
weights = list(model.parameters())
for weight in weights:
    weight.register_hook(lambda gradient: out.append(gradient.abs().sum().item()) or gradient * 0.5)
for _ in range(2):
    optimizer.zero_grad()
    weights[0].grad = torch.autograd.grad(F.cross_entropy(model(x), y), weights[0])[0]
    F.cross_entropy(model(x), y).backward(inputs=weights[1:])
    optimizer.step()
out += [weight.sum().item() for weight in weights]
{TAIL}"""
    found, expected = (json.loads(how(text)[-1]) for how in (lambda text: run(text).output, natively))
    assert sorted(found) == pytest.approx(sorted(expected), rel=1e-5)


def test_files_written_within_the_loop_are_the_native_ones(run, tmp_path, monkeypatch):
    """Of states, of whole models and of their parts: loading one needs the same classes, so weights only do, too."""
    pytest.importorskip("cloudpickle")
    script = """
        import copy, cloudpickle, joblib, pickle, torch
        from torch import nn
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.rnn, self.norm, self.head = nn.LSTM(4, 4, bidirectional=True), nn.BatchNorm1d(8), nn.Linear(8, 4)
            def forward(self, x):
                return self.head(self.norm(self.rnn(x)[0]))
        def own(*args):
            return None
        model = Net().to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        handle = model._register_state_dict_hook(own)
        for step in range(2):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(torch.randn(8, 4, device=device)), torch.zeros(8, 4, device=device)).backward()
            optimizer.step()
            handle.remove()
            handle = model._register_state_dict_hook(own)
            for name, value in dict(model=model, part=model.norm, state=model.state_dict(), copied=copy.deepcopy(model),
                                    among={"model": model}, shallow=copy.copy(model)).items():
                torch.save(value, f"PLACE/{name}.pt")
            for number, write in enumerate((joblib.dump, cloudpickle.dump, pickle.dump)):
                with open(f"PLACE/{number}.pickle", "wb") as file:
                    write(model, file)
        """
    needed = {}
    for kind in ("native", "emulator"):
        place = tmp_path / kind
        place.mkdir()
        monkeypatch.setenv("IGNITE_IPU_BACKEND", kind)
        run(script.replace("PLACE", str(place)))
        for path in place.glob("*.pt"):
            with zipfile.ZipFile(path) as archive:
                needed.setdefault(path.name, []).append(_needed(archive.read(f"{path.stem}/data.pkl")))
        for path in place.glob("*.pickle"):
            assert b"ignite_ipu" not in path.read_bytes() and b"poptorch" not in path.read_bytes()
    assert len(needed) == 6 and all(native == ipu for native, ipu in needed.values())


def _needed(data):
    """Return the names that loading a pickle looks up or makes anew, sorted."""
    return sorted(
        [(code.name, value or "") for code, value, _ in pickletools.genops(data) if code.name in ("GLOBAL", "NEWOBJ")]
    )


PARTS_OF_ONES_OWN = """
import torch
from torch import nn

class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight, self.factor = nn.Parameter(torch.ones(4)), 2.0

    def forward(self, x):
        return x * self.weight * self.factor

class Centred(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x):
        if self.training:
            self.mean.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
        return x - self.mean.clone()

class Whole(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.scaled, self.centred, self.last = nn.Linear(4, 4), Scaled(), Centred(), nn.Linear(4, 2)

torch.manual_seed(0)
whole = Whole()
optimizer = torch.optim.Adam(whole.parameters(), lr=0.05)
seen = []
for _ in range(4):
    x = torch.randn(6, 4)
    loss = whole.last(whole.centred(whole.scaled(whole.first(x)))).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    seen += [loss.item(), whole.centred.mean.sum().item(), whole.scaled.weight.sum().item()]
"""


def test_parts_that_are_called_one_by_one(run):
    """Of classes of the script's own, one of which has a buffer alone, that its call writes into."""
    native = {}
    exec(PARTS_OF_ONES_OWN, native)
    ran = run(PARTS_OF_ONES_OWN + "print(*seen)")
    assert [float(text) for text in ran.output[0].split()] == pytest.approx(native["seen"], rel=1e-4)
    assert ran.became("Centred()") == "recorded for the device step of backward() and step()"


PARAMETERS_OF_ONES_OWN = """
import torch
from torch import nn

class Learner(nn.Module):
    def __init__(self):
        super().__init__()
        self.vars = nn.ParameterList([nn.Parameter(torch.randn(3, 4)), nn.Parameter(torch.zeros(3))])
        self.frozen = nn.Linear(3, 2).requires_grad_(False)

    def forward(self, x):
        return self.frozen(nn.functional.linear(x, *self.vars))

    def parameters(self):
        return self.vars

torch.manual_seed(0)
learner = Learner()
optimizer = torch.optim.Adam(learner.parameters(), lr=0.05)
seen = []
for _ in range(4):
    loss = learner(torch.randn(6, 4)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    seen += [loss.item(), learner.vars[0].sum().item()]
"""


def test_a_model_whose_parameters_method_returns_some_of_them_in_a_list(run):
    """As learners of meta-learning do: the device has all of its parameters."""
    native = {}
    exec(PARAMETERS_OF_ONES_OWN, native)
    ran = run(PARAMETERS_OF_ONES_OWN + "print(*seen)")
    assert [float(text) for text in ran.output[0].split()] == pytest.approx(native["seen"], rel=1e-4)
