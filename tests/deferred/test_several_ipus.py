"""Captured models over several IPUs learn the same as in plain PyTorch."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Sequence, Tuple

import pytest
import torch
from ignite.engine import Engine
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import prune

import ignite_ipu.emulator as poptorch
from ignite_ipu import ipu_prepare, ipu_step
from ignite_ipu.deferred import captured
from ignite_ipu.errors import CaptureError, PlanError
from ignite_ipu.pipeline import compare, measure, save_plan
from tests.supervised import assert_same_weights, task

X, Y = task().tensors


def network(classes: int = 3) -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, classes))


def cross_entropy(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(x), y)


def with_penalty(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return a loss with a penalty of the weights, which are on all IPUs."""
    return cross_entropy(model, x, y) + 0.01 * sum(weight.pow(2).sum() for weight in model.parameters())


def with_weights_of_two(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return a loss with a function of weights that are on different IPUs."""
    return cross_entropy(model, x, y) + 0.1 * F.mse_loss(model[0].bias, model[2].bias)


def by_layers(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return a loss of the model's layers, which the loop calls one by one."""
    return F.cross_entropy(model[4](model[2](model[0](x).tanh()).tanh()), y)


def twice(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return a loss of two calls of the model."""
    return cross_entropy(model, x, y) + 0.1 * F.mse_loss(model(x.flip(0)), model(-x).detach())


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    accumulation: int = 1,
    loss_of: Callable[..., torch.Tensor] = cross_entropy,
) -> List[float]:
    """Train for two epochs in a plain PyTorch loop; return the losses."""
    losses = []
    for _ in range(2):
        for number, (x, y) in enumerate(zip(X.split(4), Y.split(4)), 1):
            loss = loss_of(model, x, y)
            (loss / accumulation).backward()
            losses.append(loss.detach())
            if number % accumulation == 0:
                optimizer.step()
                optimizer.zero_grad()
    return [float(loss) for loss in losses]


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def weights_of(executor: Any) -> Dict[str, int]:
    """Return the IPU of each weight in a compiled program, all of whose readers are there."""
    found: Dict[str, int] = {}
    for node in executor._executable.compiled.capture.graph.nodes:
        for source in node.all_input_nodes:
            if source.op == "placeholder" and source.target.startswith("model_"):
                ipu = found.setdefault(source.target, node.meta["site"].ipu)
                nop = getattr(node.target, "__name__", "") == "nop"
                assert nop or ipu == node.meta["site"].ipu, f"{source.target} is read on two IPUs"
    return found


def check(
    config: Dict[str, Any], ipus: Sequence[int], make: Callable[[], nn.Module] = network, **loop: Any
) -> Tuple[nn.Module, Any]:
    """Compare a loop over several IPUs with plain PyTorch; return the model and the execution strategy of its step."""
    native, model = make(), make()
    optimizer = sgd(model)
    ipu_prepare(optimizer, model, config=config)
    expected = train(native, sgd(native), **loop)
    assert train(model, optimizer, **loop) == pytest.approx(expected, rel=1e-4)
    assert_same_weights(model, native, rtol=1e-4, atol=1e-5)
    program = captured(model).session.training
    assert list(weights_of(program.executor).values()) == list(ipus)
    with torch.no_grad():
        torch.testing.assert_close(model.eval()(X[:5]), native.eval()(X[:5]), rtol=1e-4, atol=1e-5)
    (evaluation,) = captured(model).session.evaluations
    assert list(weights_of(evaluation.executor).values()) == list(ipus)
    return model, program.executor.options._execution_strategy


SHARDED = {"execution": "sharded"}


@pytest.mark.parametrize(
    ("pipeline", "ipus"),
    [
        (["0", "2"], (0, 0, 1, 1, 1, 1)),
        ([2, -1], (0, 0, 1, 1, 1, 1)),
        ({"0": 0, "2": 1, "4": 0}, (0, 0, 1, 1, 0, 0)),
        ({"Sequential": [0, ("4", 1)]}, (0, 0, 0, 0, 1, 1)),
    ],
)
def test_sharded_steps_and_evaluations_are_those_of_one_ipu(pipeline, ipus):
    _, strategy = check({"pipeline": pipeline, **SHARDED}, ipus)
    assert isinstance(strategy, poptorch.ShardedExecution)


@pytest.mark.parametrize("loss_of", [with_penalty, with_weights_of_two, by_layers, twice])
@pytest.mark.parametrize("execution", ["sharded", "pipelined"])
def test_what_the_loop_computes_of_weights_runs_where_they_are(loss_of, execution):
    """A pipeline has a stage for each visit, in the order of the data flow."""
    config = {"pipeline": ["0", "2"], "execution": execution}
    check(config, (0, 0, 1, 1, 1, 1), loss_of=loss_of, accumulation=1 if execution == "sharded" else 16)


@pytest.mark.parametrize("execution", ["serial phased", "parallel phased"])
def test_phases(execution):
    check({"pipeline": ["0", "2"], "execution": execution}, (0, 0, *[int("parallel" in execution)] * 4))


def test_a_pipeline_needs_micro_batches_and_says_how_many():
    _, strategy = check({"pipeline": ["0", "2"]}, (0, 0, 1, 1, 1, 1), accumulation=4)
    assert type(strategy) is poptorch.PipelinedExecution
    with pytest.raises(PlanError, match=r"2 \* 2 - 1 = 3 micro-batches in an update, and this one has 2, 1 too few"):
        check({"pipeline": ["0", "2"]}, (), accumulation=2)
    with pytest.raises(PlanError, match=r"= 7 micro-batches in an update, and this one has 4, 3 too few. Accumulate"):
        check({"pipeline": ["0", "2"]}, (), accumulation=4, loss_of=with_weights_of_two)
    # Values of the weights of one IPU alone are computed while the program is there.
    check({"pipeline": ["0", "2"]}, (0, 0, 1, 1, 1, 1), accumulation=4, loss_of=with_penalty)


def test_a_smaller_update_at_the_end_runs_its_stages_one_after_another(caplog):
    """As the last one of an epoch, where the number of micro-batches does not divide that of batches."""
    native, model = network(), network()
    optimizer, sgd_of_host = ipu_prepare(sgd(model), model, config={"pipeline": ["0", "2"]}), sgd(native)
    for net, step in ((native, sgd_of_host), (model, optimizer)):
        for count in (3, 2, 3):
            for x, y in zip(X.split(4)[:count], Y.split(4)):
                cross_entropy(net, x, y).backward()
            step.step()
            step.zero_grad()
    assert_same_weights(model, native, rtol=1e-4, atol=1e-5)
    assert "An update has 2 micro-batches, and the pipeline of 2 stages needs 3" in caplog.text


class Annotated(nn.Sequential):
    """A network whose layers begin PopTorch's blocks."""

    def __init__(self) -> None:
        super().__init__(*network())
        poptorch.BeginBlock(self[0], ipu_id=0)
        poptorch.BeginBlock(self[2], ipu_id=1)


def test_blocks_in_the_models_own_code():
    options = poptorch.Options().setExecutionStrategy(poptorch.PipelinedExecution(poptorch.AutoStage.AutoIncrement))
    check(SHARDED, (0, 0, 1, 1, 1, 1), make=Annotated)
    _, strategy = check({}, (0, 0, 1, 1, 1, 1), make=Annotated, accumulation=4)
    assert type(strategy) is poptorch.PipelinedExecution
    check({"options": options}, (0, 0, 1, 1, 1, 1), make=Annotated, accumulation=8)
    with pytest.raises(CaptureError, match=r"than the 1 of this update: .*\(3: .*execution='sharded'"):
        check({}, (), make=Annotated)
    with pytest.raises(CaptureError, match="execution is 'serial phased' without pipeline="):
        check({"execution": "serial phased"}, (), make=Annotated)


def test_updates_on_the_host_run_their_stages_one_after_another():
    _, strategy = check({"pipeline": ["0", "2"], "update": "host"}, (0, 0, 1, 1, 1, 1), loss_of=with_penalty)
    assert isinstance(strategy, poptorch.ShardedExecution)
    with pytest.raises(CaptureError, match="execution is 'pipelined' with update='host'"):
        check({"pipeline": ["0", "2"], "update": "host", "execution": "pipelined"}, ())


def test_an_engine_step():
    def run(model: nn.Module, prepare: Callable[..., Any]) -> List[float]:
        optimizer, losses = sgd(model), []

        def step(engine: Engine, batch: Any) -> float:
            optimizer.zero_grad()
            loss = cross_entropy(model, *batch)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            return losses[-1]

        Engine(prepare(step)).run(list(zip(X.split(4), Y.split(4))))
        return losses

    config = {"pipeline": ["0", "2"], **SHARDED}
    assert run(network(), lambda step: ipu_step(step, config=config)) == pytest.approx(
        run(network(), lambda step: step)
    )


def test_auto_plans_with_the_first_update():
    """It pipelines where the update has the micro-batches for it."""
    config = {"pipeline": "auto", "ipus": 2, "memory_per_ipu": 2200}
    for accumulation, strategy in ((1, poptorch.ShardedExecution), (8, poptorch.PipelinedExecution)):
        model, native = network(), network()
        optimizer = ipu_prepare(sgd(model), model, config=config)
        losses = train(model, optimizer, accumulation)
        assert losses == pytest.approx(train(native, sgd(native), accumulation), rel=1e-4)
        program = captured(model).session.training
        assert program.ipus == 2 and program.placing.plan.fits
        assert type(program.executor.options._execution_strategy) is strategy


@pytest.mark.parametrize("pipeline", [["0", "2"], "auto"])
def test_layers_that_are_pruned_between_updates(pipeline):
    """Another program is planned and wrapped then, for a model with more buffers."""

    def trained(captures):
        model = network()
        optimizer = sgd(model)
        if captures:
            ipu_prepare(optimizer, model, config={"pipeline": pipeline, "ipus": 2, **SHARDED})
        losses = []
        for number in range(4):
            if number in (1, 3):
                prune.l1_unstructured(model[2], "weight", amount=0.3)
            optimizer.zero_grad()
            loss = cross_entropy(model, X[:8], Y[:8])
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses, dict(model.state_dict())

    torch.testing.assert_close(trained(True), trained(False), rtol=1e-4, atol=1e-5)


def test_estimated_memory_is_a_limit():
    model = network()
    optimizer = ipu_prepare(sgd(model), model, config={"pipeline": ["0", "2"], "memory_per_ipu": 500, **SHARDED})
    with pytest.raises(PlanError, match=r"needs an estimated .* but one IPU has 400 B for tensors"):
        train(model, optimizer)


def test_a_plan_from_its_file(tmp_path):
    """The loop sets the number of micro-batches of an update, the plan the number of replicas that share them."""
    profile = measure(network(), X[:4])
    plan = compare(profile, 4, optimizer="sgd-momentum", ipus_per_replica=2).best
    save_plan(plan, tmp_path / "plan.json")
    native, model = network(), network()
    optimizer = ipu_prepare(sgd(model), model, config={"pipeline": str(tmp_path / "plan.json")})
    assert train(model, optimizer, 16) == pytest.approx(train(native, sgd(native), 16), rel=1e-4)
    program = captured(model).session.training
    assert (program.options.replication_factor, program.ipus) == (plan.replicas, 2 * plan.replicas) == (2, 4)
    inference = compare(measure(network(), X[:4], training=False), 2).best
    with pytest.raises(PlanError, match="The plan is for inference, but this is training"):
        ipu_prepare(sgd(network()), network(), config={"pipeline": inference})


def test_an_optimizer_that_only_pytorch_has_leaves_the_device_and_keeps_the_layers_places():
    native, model = network(), network()
    rprops = [torch.optim.Rprop(each.parameters(), lr=0.01) for each in (native, model)]
    ipu_prepare(rprops[1], model, config={"pipeline": ["0", "2"], "update": "auto"})
    losses = [train(each, rprop, 4) for each, rprop in zip((native, model), rprops)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
    assert_same_weights(model, native, rtol=1e-4, atol=1e-5)
    executor = captured(model).session.training.executor
    assert list(weights_of(executor).values()) == [0, 0, 1, 1, 1, 1]
    assert isinstance(executor.options._execution_strategy, poptorch.ShardedExecution)
