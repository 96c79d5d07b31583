"""Weights after tens of updates: against the formulas in float64, and against torch.optim where that agrees."""

from __future__ import annotations

import math
from typing import Any, Callable, Dict, List, Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ignite_ipu.emulator import optim
from ignite_ipu.emulator.optim.description import describe
from ignite_ipu.emulator.optim.device.optimizer import DeviceOptimizer

SHAPES = ((3, 4), (5,), ())
STEPS = 30
Tensors = List[torch.Tensor]
Make = Callable[[Sequence[torch.nn.Parameter]], torch.optim.Optimizer]
Formula = Callable[[Tensors, List[Tensors]], Tensors]


def start() -> Tensors:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(shape, generator=generator) for shape in SHAPES]


def gradients(steps: int = STEPS) -> List[Tensors]:
    generator = torch.Generator().manual_seed(2)
    return [[torch.randn(shape, generator=generator) for shape in SHAPES] for _ in range(steps)]


def on_device(make: Make, steps: int = STEPS, dtype: torch.dtype = torch.float32) -> Tensors:
    weights = [weight.to(dtype) for weight in start()]
    device = device_for(make([torch.nn.Parameter(weight) for weight in weights]), weights)
    for grads in gradients(steps):
        device.update([grad.to(dtype) for grad in grads])
    return weights


def device_for(optimizer: torch.optim.Optimizer, weights: Tensors, fused: bool = False) -> DeviceOptimizer:
    named = {f"w{index}": weight for index, weight in enumerate(weights)}
    return DeviceOptimizer(describe(optimizer), named, {name: 0 for name in named}, fused=fused)


def by_torch(make: Make, steps: int = STEPS) -> Tensors:
    parameters = [torch.nn.Parameter(weight) for weight in start()]
    optimizer = make(parameters)
    for grads in gradients(steps):
        for parameter, grad in zip(parameters, grads):
            parameter.grad = grad
        optimizer.step()
    return [parameter.detach() for parameter in parameters]


def by_formula(step: Callable[..., torch.Tensor], steps: int = STEPS, **hyper: Any) -> Tensors:
    """Apply `step(w, g, t, state, **hyper) -> w` to each weight apart, in float64."""
    weights = [weight.double() for weight in start()]
    states: List[Dict[str, Any]] = [{} for _ in weights]
    for t, grads in enumerate(gradients(steps), start=1):
        weights = [step(w, g.double(), t, state, **hyper) for w, g, state in zip(weights, grads, states)]
    return weights


def check(found: Tensors, expected: Tensors, tolerance: float = 2e-5) -> None:
    for one, other in zip(found, expected):
        assert torch.isfinite(one).all()
        torch.testing.assert_close(one.double(), other.double(), rtol=tolerance, atol=tolerance)


def sgd(
    w: Any, g: Any, t: int, s: Dict[str, Any], lr: float, mu: float, tau: float, decay: float, nesterov: bool
) -> Any:
    u = g + decay * w
    s["v"] = mu * s.get("v", 0.0) + (1 - tau) * u
    return w - lr * (u + mu * s["v"] if nesterov else s["v"])


def adam(
    w: Any,
    g: Any,
    t: int,
    s: Dict[str, Any],
    lr: float,
    b1: float,
    b2: float,
    eps: float,
    decay: float,
    decoupled: bool,
) -> Any:
    u = g if decoupled else g + decay * w
    s["m"] = b1 * s.get("m", 0.0) + (1 - b1) * u
    s["v"] = b2 * s.get("v", 0.0) + (1 - b2) * u * u
    x = (s["m"] / (1 - b1**t)) / ((s["v"] / (1 - b2**t)) ** 0.5 + eps)
    return w - lr * (x + decay * w if decoupled else x)


def lamb(
    w: Any, g: Any, t: int, s: Dict[str, Any], lr: float, b1: float, b2: float, eps: float, decay: float,
    corrected: bool, limit: float,
) -> Any:  # fmt: skip
    s["m"] = b1 * s.get("m", 0.0) + (1 - b1) * g
    s["v"] = b2 * s.get("v", 0.0) + (1 - b2) * g * g
    c1, c2 = (1 - b1**t, 1 - b2**t) if corrected else (1.0, 1.0)
    x = (s["m"] / c1) / ((s["v"] / c2) ** 0.5 + eps) + decay * w
    r1, r2 = min(math.sqrt(float((w * w).sum())), limit), math.sqrt(float((x * x).sum()))
    return w - lr * (r1 / r2 if r1 != 0 and r2 != 0 else 1.0) * x


def rmsprop(
    w: Any, g: Any, t: int, s: Dict[str, Any], lr: float, alpha: float, eps: float, decay: float, mu: float,
    centered: bool, tf: bool,
) -> Any:  # fmt: skip
    u = g + decay * w
    s["v"] = alpha * s.get("v", 1.0 if tf else 0.0) + (1 - alpha) * u * u
    s["a"] = alpha * s.get("a", 0.0) + (1 - alpha) * u
    d = s["v"] - s["a"] ** 2 if centered else s["v"]
    x = u / (d + eps) ** 0.5 if tf else u / (d**0.5 + eps)
    s["b"] = mu * s.get("b", 0.0) + (lr * x if tf else x)
    return w - s["b"] if tf else w - lr * s["b"]


fractions = st.floats(0.0, 0.95)
rates = st.floats(1e-3, 0.05)
decays = st.one_of(st.just(0.0), st.floats(1e-4, 0.3))
epsilons = st.sampled_from([1e-8, 1e-5, 1e-2])
scalings = st.sampled_from([1.0, 0.5, 128.0, 3000.0])


@settings(max_examples=60)
@given(
    lr=rates, mu=st.one_of(st.none(), fractions), tau=fractions, decay=decays, combined=st.booleans(), loss=scalings,
    velocity=scalings,
)  # fmt: skip
def test_sgd_follows_its_formula_in_both_variants(
    lr: float, mu: float, tau: float, decay: float, combined: bool, loss: float, velocity: float
) -> None:
    """Dampening counts from the first update and without momentum; scalings change nothing."""

    def make(p: Any) -> torch.optim.Optimizer:
        scaled = {"velocity_scaling": velocity} if combined else {}
        return optim.SGD(p, lr, mu, tau, decay, loss_scaling=loss, use_combined_accum=combined, **scaled)  # type: ignore[arg-type]

    check(on_device(make), by_formula(sgd, lr=lr, mu=mu or 0.0, tau=tau, decay=decay, nesterov=False))


@settings(max_examples=30)
@given(lr=rates, mu=st.floats(0.1, 0.95), decay=decays, combined=st.booleans(), loss=scalings)
def test_nesterov_follows_its_formula_in_both_variants(
    lr: float, mu: float, decay: float, combined: bool, loss: float
) -> None:
    def make(p: Any) -> torch.optim.Optimizer:
        return optim.SGD(p, lr, mu, weight_decay=decay, nesterov=True, loss_scaling=loss, use_combined_accum=combined)

    check(on_device(make), by_formula(sgd, lr=lr, mu=mu, tau=0.0, decay=decay, nesterov=True))


def test_dampening_scales_the_first_update_where_torch_ignores_it() -> None:
    for momentum in (None, 0.9):
        weights = [torch.tensor([1.0])]
        optimizer = optim.SGD([torch.nn.Parameter(weights[0].clone())], lr=0.1, momentum=momentum, dampening=0.25)
        device_for(optimizer, weights).update([torch.tensor([2.0])])
        assert weights[0].item() == pytest.approx(1.0 - 0.1 * 0.75 * 2.0)


@settings(max_examples=50)
@given(
    lr=rates, b1=fractions, b2=st.floats(0.5, 0.999), eps=epsilons, decay=decays, decoupled=st.booleans(),
    native=st.booleans(), loss=scalings,
)  # fmt: skip
def test_adam_and_adamw_follow_their_formulas(
    lr: float, b1: float, b2: float, eps: float, decay: float, decoupled: bool, native: bool, loss: float
) -> None:
    module: Any = torch.optim if native else optim
    kind = module.AdamW if decoupled else module.Adam
    more = {} if native else {"loss_scaling": loss}
    found = on_device(lambda p: kind(p, lr=lr, betas=(b1, b2), eps=eps, weight_decay=decay, **more))
    check(found, by_formula(adam, lr=lr, b1=b1, b2=b2, eps=eps, decay=decay, decoupled=decoupled))


def test_adamw_without_bias_correction_is_compiled_to_the_corrected_update() -> None:
    with_it, without = (on_device(lambda p, b=b: optim.AdamW(p, bias_correction=b)) for b in (True, False))
    for one, other in zip(with_it, without):
        assert torch.equal(one, other)


@settings(max_examples=50)
@given(
    lr=rates, b1=fractions, b2=st.floats(0.5, 0.999), eps=epsilons, decay=decays, corrected=st.booleans(),
    limit=st.sampled_from([65500.0, 1.5, 0.0]),
)  # fmt: skip
def test_lamb_follows_its_formula(
    lr: float, b1: float, b2: float, eps: float, decay: float, corrected: bool, limit: float
) -> None:
    found = on_device(lambda p: optim.LAMB(p, lr, (b1, b2), eps, decay, corrected, None, limit))
    hyper = {"lr": lr, "b1": b1, "b2": b2, "eps": eps, "decay": decay, "corrected": corrected, "limit": limit}
    check(found, by_formula(lamb, **hyper), tolerance=1e-4)


def test_lamb_takes_a_plain_step_where_weights_or_step_are_zero() -> None:
    weights = [torch.zeros(3), torch.ones(3)]
    optimizer = optim.LAMB([torch.nn.Parameter(w.clone()) for w in weights], lr=0.1, weight_decay=0.0)
    device_for(optimizer, weights).update([torch.full((3,), 2.0), torch.zeros(3)])
    torch.testing.assert_close(weights[0], torch.full((3,), -0.1))
    assert torch.equal(weights[1], torch.ones(3))


@settings(max_examples=60)
@given(
    lr=rates, alpha=st.floats(0.5, 0.99), eps=epsilons, decay=decays, mu=st.one_of(st.none(), fractions),
    centered=st.booleans(), tf=st.booleans(),
)  # fmt: skip
def test_rmsprop_follows_its_formulas(
    lr: float, alpha: float, eps: float, decay: float, mu: float, centered: bool, tf: bool
) -> None:
    found = on_device(lambda p: optim.RMSprop(p, lr, alpha, eps, decay, mu, centered, use_tf_variant=tf))
    expected = by_formula(rmsprop, lr=lr, alpha=alpha, eps=eps, decay=decay, mu=mu or 0.0, centered=centered, tf=tf)
    check(found, expected, tolerance=1e-3)


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda p: torch.optim.SGD(p, lr=0.1), id="sgd"),
        pytest.param(lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.1), id="sgd-decay"),
        pytest.param(lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1), id="sgd-momentum"),
        pytest.param(lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True, weight_decay=0.1), id="nesterov"),
        pytest.param(lambda p: torch.optim.Adam(p, lr=0.01), id="adam"),
        pytest.param(lambda p: torch.optim.Adam(p, 0.01, betas=(0.8, 0.95), eps=1e-4, weight_decay=0.1), id="adam-l2"),
        pytest.param(lambda p: torch.optim.AdamW(p, lr=0.01), id="adamw"),
        pytest.param(lambda p: torch.optim.AdamW(p, lr=0.01, betas=(0.8, 0.95), weight_decay=0.2), id="adamw-decay"),
        pytest.param(lambda p: torch.optim.RMSprop(p, lr=0.01), id="rmsprop"),
        pytest.param(lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5, weight_decay=0.1), id="rmsprop-momentum"),
        pytest.param(lambda p: torch.optim.RMSprop(p, lr=0.01, alpha=0.9, centered=True, momentum=0.5), id="centered"),
        pytest.param(lambda p: torch.optim.RMSprop(p, lr=0.01, centered=True), id="centered-plain"),
    ],
)  # fmt: skip
def test_fifty_updates_equal_torch(make: Make) -> None:
    """Where PopTorch's formula is torch's, the weights are torch's to float32 accuracy."""
    check(on_device(make, steps=50), by_torch(make, steps=50), tolerance=1e-6)


@pytest.mark.parametrize("combined", [False, True])
def test_combined_sgd_takes_changes_of_all_but_lr_one_update_later(combined: bool) -> None:
    """New values given before update 3 act at once in the separate variant, from update 4 on in the combined one."""
    weights = start()
    given = {"momentum": 0.9, "dampening": 0.1, "weight_decay": 0.1}
    if combined:
        given["velocity_scaling"] = 2.0
    changed = {"momentum": 0.5, "dampening": 0.3, "weight_decay": 0.4}
    if combined:
        changed["velocity_scaling"] = 8.0
    optimizer = optim.SGD([torch.nn.Parameter(w.clone()) for w in weights], 0.1, use_combined_accum=combined, **given)
    device = device_for(optimizer, weights)
    expected = [w.double() for w in start()]
    states: List[Dict[str, Any]] = [{} for _ in expected]
    for t, grads in enumerate(gradients(8)):
        if t == 3:
            optimizer.param_groups[0].update(lr=0.02, **changed)
            device.set_description(describe(optimizer))
        device.update(grads)
        lr = 0.1 if t < 3 else 0.02
        now = given if t < (4 if combined else 3) else changed
        hyper = {
            "lr": lr,
            "mu": now["momentum"],
            "tau": now["dampening"],
            "decay": now["weight_decay"],
            "nesterov": False,
        }
        expected = [sgd(w, g.double(), t, s, **hyper) for w, g, s in zip(expected, grads, states)]
        check(weights, expected)


def test_combined_sgd_counts_a_change_made_before_the_first_update_as_late() -> None:
    weights = [torch.tensor([1.0])]
    optimizer = optim.SGD(
        [torch.nn.Parameter(weights[0].clone())], 0.1, momentum=0.9, weight_decay=0.5, use_combined_accum=True
    )
    device = device_for(optimizer, weights)
    optimizer.param_groups[0]["weight_decay"] = 0.0
    device.set_description(describe(optimizer))
    device.update([torch.tensor([1.0])])
    assert weights[0].item() == pytest.approx(1.0 - 0.1 * (1.0 + 0.5))


@pytest.mark.parametrize("native", [False, True])
@pytest.mark.parametrize("bound", [0.5, 3.0, 1e6])
def test_adam_clips_the_gradients(native: bool, bound: float) -> None:
    """All gradients of an update shrink by one factor, before weight decay is added."""
    weights, expected = start(), [w.double() for w in start()]
    module: Any = torch.optim if native else optim
    optimizer = module.Adam([torch.nn.Parameter(w.clone()) for w in weights], lr=0.01, weight_decay=0.1)
    optimizer.max_grad_norm = bound
    device = device_for(optimizer, weights)
    states: List[Dict[str, Any]] = [{} for _ in expected]
    hyper = {"lr": 0.01, "b1": 0.9, "b2": 0.999, "eps": 1e-8, "decay": 0.1, "decoupled": False}
    for t, grads in enumerate(gradients(10), start=1):
        device.update(grads)
        norm = math.sqrt(sum(float(g.double().pow(2).sum()) for g in grads))
        factor = bound / max(norm, bound)
        expected = [adam(w, g.double() * factor, t, s, **hyper) for w, g, s in zip(expected, grads, states)]
    check(weights, expected)


@pytest.mark.parametrize("combined", [False, True])
@pytest.mark.parametrize(("momentum", "nesterov"), [(None, False), (0.9, False), (0.9, True)])
def test_sgd_clips_what_the_weight_update_consumes(combined: bool, momentum: Any, nesterov: bool) -> None:
    """The stored velocity keeps its length; without momentum the weight decay is not clipped with the gradient."""
    bound, lr, decay, mu = 1.5, 0.1, 0.2, momentum or 0.0
    weights, expected = start(), [w.double() for w in start()]
    optimizer = optim.SGD(
        [torch.nn.Parameter(w.clone()) for w in weights], lr, momentum, weight_decay=decay, nesterov=nesterov,
        loss_scaling=16.0, use_combined_accum=combined, max_grad_norm=bound,
    )  # fmt: skip
    device = device_for(optimizer, weights)
    velocities: Tensors = [torch.zeros_like(w) for w in expected]
    for grads in gradients(10):
        device.update(grads)
        decayed = [g.double() + decay * w for g, w in zip(grads, expected)]
        velocities = [mu * v + u for v, u in zip(velocities, decayed)]
        if momentum is None:
            consumed = [g.double() for g in grads]
        elif nesterov:
            consumed = [u + mu * v for u, v in zip(decayed, velocities)]
        else:
            consumed = velocities
        norm = math.sqrt(sum(float(c.pow(2).sum()) for c in consumed))
        consumed = [c * (bound / max(norm, bound)) for c in consumed]
        if momentum is None:
            consumed = [c + decay * w for c, w in zip(consumed, expected)]
        expected = [w - lr * c for w, c in zip(expected, consumed)]
    check(weights, expected)


def test_a_bound_above_every_norm_changes_nothing() -> None:
    free = on_device(lambda p: optim.SGD(p, 0.1, momentum=0.9))
    bounded = on_device(lambda p: optim.SGD(p, 0.1, momentum=0.9, max_grad_norm=1e9))
    check(bounded, free, tolerance=0.0)


@pytest.mark.parametrize(
    "make",
    [
        lambda p: optim.SGD(p, 0.1, momentum=0.9, dampening=0.2, weight_decay=0.1),
        lambda p: optim.SGD(p, 0.1, momentum=0.9, weight_decay=0.1, nesterov=True),
        lambda p: optim.SGD(p, 0.1, momentum=0.9, loss_scaling=8.0),
        lambda p: optim.Adam(p, 0.1, weight_decay=0.1),
        lambda p: optim.AdamW(p, 0.1, weight_decay=0.1),
    ],
)
def test_fused_updates_compute_the_same(make: Make) -> None:
    """They go through memory, so a weight or a gradient in another order, or one value for all, is not theirs."""
    torch.manual_seed(0)
    expected = torch.randn(3, 4)
    contiguous, transposed = expected.clone(), expected.t().contiguous().t()
    devices = [device_for(make([torch.nn.Parameter(expected)]), [expected])]
    devices += [device_for(make([torch.nn.Parameter(each)]), [each], fused=True) for each in (contiguous, transposed)]
    for gradient in [torch.randn(3, 4), torch.randn(4, 3).t(), torch.randn(1, 1).expand(3, 4)] * 3:
        for device in devices:
            device.update([gradient])
    check([contiguous, transposed], [expected] * 2, tolerance=1e-6)


def test_a_fused_update_with_a_momentum_that_is_zero_for_now_keeps_the_velocity() -> None:
    """PyTorch's leaves its buffer alone then."""
    found = []
    for fused in (False, True):
        weight = torch.ones(3)
        parameter = torch.nn.Parameter(weight)
        optimizer = optim.SGD([parameter], 0.1, momentum=0.0)
        optimizer.variable_attrs.markAsVariable("momentum")
        device = device_for(optimizer, [weight], fused=fused)
        device.update([torch.ones(3)])
        optimizer.param_groups[0]["momentum"] = 0.9
        device.set_description(describe(optimizer))
        device.update([torch.ones(3)])
        found.append(weight)
    check([found[1]], [found[0]], tolerance=1e-6)


HALF: Any = torch.float16


@pytest.mark.parametrize(
    ("make", "formula", "hyper"),
    [
        (
            lambda p: optim.SGD(p, 0.01, 0.9, velocity_accum_type=HALF),
            sgd,
            {"lr": 0.01, "mu": 0.9, "tau": 0.0, "decay": 0.0, "nesterov": False},
        ),
        (
            lambda p: optim.Adam(
                p, 0.01, first_order_momentum_accum_type=HALF, second_order_momentum_accum_type=HALF
            ),
            adam,
            {"lr": 0.01, "b1": 0.9, "b2": 0.999, "eps": 1e-8, "decay": 0.0, "decoupled": False},
        ),
        (
            lambda p: optim.LAMB(p, 0.01, first_order_momentum_accum_type=HALF, second_order_momentum_accum_type=HALF),
            lamb,
            {"lr": 0.01, "b1": 0.9, "b2": 0.999, "eps": 1e-8, "decay": 0.01, "corrected": True, "limit": 65500.0},
        ),
        (
            lambda p: optim.RMSprop(p, 0.01, momentum=0.3, first_order_momentum_accum_type=HALF),
            rmsprop,
            {
                "lr": 0.01, "alpha": 0.99, "eps": 1e-8, "decay": 0.0, "mu": 0.3, "centered": False, "tf": False,
            },
        ),
    ],
)  # fmt: skip
def test_moments_in_float16_only_lose_precision(make: Make, formula: Any, hyper: Dict[str, Any]) -> None:
    """The trajectory is the formula's within float16's rounding, and not the very one of float32."""
    found = on_device(make)
    check(found, by_formula(formula, **hyper), tolerance=2e-2)
    exact = on_device(lambda p: _without_half(make(p)))
    assert not all(torch.equal(one, other) for one, other in zip(found, exact))


def _without_half(optimizer: Any) -> torch.optim.Optimizer:
    for name in vars(optimizer):
        if name.endswith("accum_type"):
            setattr(optimizer, name, torch.float32)
    return optimizer  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("make", "formula", "hyper"),
    [
        (
            lambda p: optim.SGD(p, 0.01, weight_decay=0.1),
            sgd,
            {"lr": 0.01, "mu": 0.0, "tau": 0.0, "decay": 0.1, "nesterov": False},
        ),
        (
            lambda p: optim.SGD(p, 0.01, 0.9, weight_decay=0.1),
            sgd,
            {"lr": 0.01, "mu": 0.9, "tau": 0.0, "decay": 0.1, "nesterov": False},
        ),
        (
            lambda p: optim.SGD(p, 0.01, 0.9, weight_decay=0.1, use_combined_accum=True),
            sgd,
            {"lr": 0.01, "mu": 0.9, "tau": 0.0, "decay": 0.1, "nesterov": False},
        ),
        (
            lambda p: optim.AdamW(p, 0.01, weight_decay=0.1),
            adam,
            {"lr": 0.01, "b1": 0.9, "b2": 0.999, "eps": 1e-8, "decay": 0.1, "decoupled": True},
        ),
        (
            lambda p: optim.LAMB(p, 0.01),
            lamb,
            {"lr": 0.01, "b1": 0.9, "b2": 0.999, "eps": 1e-8, "decay": 0.01, "corrected": True, "limit": 65500.0},
        ),
        (
            lambda p: optim.RMSprop(p, 0.01),
            rmsprop,
            {
                "lr": 0.01, "alpha": 0.99, "eps": 1e-8, "decay": 0.0, "mu": 0.0, "centered": False, "tf": False,
            },
        ),
    ],
)  # fmt: skip
def test_float16_weights_are_updated_in_float32_and_rounded_once(
    make: Make, formula: Any, hyper: Dict[str, Any]
) -> None:
    """Even eps=1e-8, which float16 does not know, does its work."""
    found = on_device(make, dtype=torch.float16)
    assert all(weight.dtype == torch.float16 for weight in found)
    check(found, by_formula(formula, **hyper), tolerance=2e-2)


def test_gradients_keep_their_values() -> None:
    """The caller may still show the gradients after the update."""
    grads = gradients(1)[0]
    for make in (
        lambda p: optim.SGD(p, 0.1, 0.9, weight_decay=0.1, use_combined_accum=True, max_grad_norm=0.1),
        lambda p: optim.Adam(p, weight_decay=0.1, max_grad_norm=0.1),
        lambda p: optim.RMSprop(p, weight_decay=0.1, centered=True, momentum=0.9),
        lambda p: optim.LAMB(p),
    ):
        weights = start()
        own = [grad.clone() for grad in grads]
        device_for(make([torch.nn.Parameter(w) for w in weights]), weights).update(own)
        assert all(torch.equal(one, other) for one, other in zip(own, grads))
