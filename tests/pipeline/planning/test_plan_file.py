"""Plans are written once and read anywhere, for the model that they were made for and for no other."""

from __future__ import annotations

import dataclasses
import json
import os

import pytest
import torch
from torch import nn

from ignite_ipu import create_ipu_trainer
from ignite_ipu.pipeline import MK2, PlanError, Strategy, compare, load_plan, measure, plan, save_plan
from tests.supervised import task


def network(width=8, blocks=4):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, width), *(nn.Linear(width, width) for _ in range(blocks)), nn.Linear(width, 3))


def planned(**settings):
    return plan(measure(network(), torch.zeros(4, 6)), 2, machine=dataclasses.replace(MK2, memory=10**8), **settings)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"strategy": Strategy(recompute=True, offload_optimizer=True), "replicas": 4, "optimizer": "sgd-momentum"},
        {"sizes": [1, 3, 2], "stage_ipus": [0, 1, 0], "accumulation": 7, "device_iterations": 3},
    ],
)
def test_a_plan_comes_back_as_it_was(tmp_path, settings):
    """All of it: estimates, reasons, the schedule, and its results."""
    before = planned(**settings)
    save_plan(before, tmp_path / "plan.json")
    after = load_plan(tmp_path / "plan.json", network())
    assert after == before
    assert str(after) == str(before)
    assert [tuple(slot) for slot in after.schedule().slots] == [tuple(slot) for slot in before.schedule().slots]
    assert after.placement().starts == before.placement().starts
    assert os.listdir(tmp_path) == ["plan.json"]


def test_an_inference_plan_comes_back(tmp_path):
    before = compare(measure(network(), torch.zeros(4, 6), training=False), ipus=2).best
    save_plan(before, tmp_path / "plan.json")
    assert load_plan(tmp_path / "plan.json") == before


def test_a_shared_plan_trains(tmp_path):
    """The file stands in for the planning: the run is the one of the plan itself, bit for bit."""
    save_plan(planned(accumulation=3, device_iterations=1), tmp_path / "plan.json")
    weights = []
    for pipeline in (planned(accumulation=3, device_iterations=1), load_plan(tmp_path / "plan.json", network())):
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        trainer = create_ipu_trainer(model, optimizer, nn.CrossEntropyLoss(), pipeline=pipeline)
        trainer.run(torch.utils.data.DataLoader(task(24), batch_size=4))
        trainer.ipu.close()
        weights.append(model[0].weight)
    assert torch.equal(*weights) and not torch.equal(weights[0], network()[0].weight)


def test_another_model_is_refused_by_what_differs(tmp_path):
    save_plan(planned(), tmp_path / "plan.json")
    with pytest.raises(PlanError) as error:
        load_plan(tmp_path / "plan.json", nn.Sequential(*network(width=9, blocks=3), nn.Identity()))
    for part in (
        "plan for another model",
        "parameter '0.weight' has 216 bytes instead of 192",
        "parameter '1.weight' has 324 bytes instead of 256",
        "and 4 more",
    ):
        assert part in str(error.value)
    with pytest.raises(PlanError, match=r"there is no layer '5'.*there is no parameter '5.weight'"):
        load_plan(tmp_path / "plan.json", network(blocks=4)[:5])
    with pytest.raises(PlanError, match=r"parameter '6\.bias' is not in the plan"):
        load_plan(tmp_path / "plan.json", nn.Sequential(*network(), nn.Linear(3, 3)))


def test_a_plan_that_does_not_fit_is_not_saved_and_not_believed(tmp_path):
    small = dataclasses.replace(MK2, memory=100)
    large = plan(measure(network(), torch.zeros(4, 6)), 2, machine=small)
    with pytest.raises(PlanError, match="needs an estimated"):
        save_plan(large, tmp_path / "plan.json")
    save_plan(planned(), tmp_path / "plan.json")
    content = json.loads((tmp_path / "plan.json").read_text())
    content["machine"]["memory"] = 100
    (tmp_path / "plan.json").write_text(json.dumps(content))
    with pytest.raises(PlanError, match="needs an estimated"):
        load_plan(tmp_path / "plan.json")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda c: c.update(version=2), "version 2, and this library reads version 1"),
        (lambda c: c.update(format="x"), "its format is not"),
        (lambda c: c.update(extra=1), "has the entries"),
        (lambda c: c.update(replicas=0), "replicas is no whole number from 1"),
        (lambda c: c.update(accumulation=10**10), "accumulation is no whole number"),
        (lambda c: c["stages"].pop(), "in all, but Sequential has 6"),
        (lambda c: c["stages"][1].update(ipu=3), r"on the IPUs \[0, 3\], which leave gaps"),
        (lambda c: c["machine"].update(call_overhead=-1.0), "machine.call_overhead is no number"),
        (lambda c: c["machine"].update(usable_fraction=0), r"Machine\.usable_fraction"),
        (lambda c: c["profile"].update(layers=[]), "no layers to plan"),
        (lambda c: c["profile"]["layers"][0].update(name=7), "layers.name is no str"),
        (lambda c: c["profile"]["layers"][0].pop("name"), "layers has the entries"),
        (lambda c: c["profile"]["crossings"][0].update(consumer=99), "goes to a layer"),
        (lambda c: c["strategy"].update(pipelined=1), "strategy.pipelined is no bool"),
    ],
)
def test_a_file_that_contradicts_itself_is_refused(tmp_path, change, reason):
    save_plan(planned(), tmp_path / "plan.json")
    content = json.loads((tmp_path / "plan.json").read_text())
    change(content)
    (tmp_path / "plan.json").write_text(json.dumps(content))
    with pytest.raises(PlanError, match=reason):
        load_plan(tmp_path / "plan.json")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"[" * 100_000, "recursion depth"),
        (b'{"a": NaN}', "NaN is no number"),
        (b"\xff\xfe", "is no JSON"),
        (b'{"format": ', "is no JSON"),
        (b" " * ((16 << 20) + 1), "at most"),
    ],
)
def test_what_is_no_plan_is_refused(tmp_path, text, reason):
    (tmp_path / "plan.json").write_bytes(text)
    with pytest.raises(PlanError, match=f"plan.json is no plan: .*{reason}"):
        load_plan(tmp_path / "plan.json")
