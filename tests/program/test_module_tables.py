"""Tables of modules that count their changes: each change is counted, and they behave like PyTorch's."""

from __future__ import annotations

import copy
import io
import pickle
from collections import OrderedDict
from typing import Any, Callable, Dict, Type

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize, prune

from ignite_ipu.program.module_tables import CHANGES, follow_tables, replace_for_a_while
from ignite_ipu.torch_names.modules import buffers_of, modules_of, parameters_of

PLAIN = type(parameters_of(nn.Module()))  # a dict, an OrderedDict in older versions


def network() -> Any:
    return nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.ModuleList([nn.ReLU()]))


def delete(model: Any, name: str) -> None:
    del model[0]._parameters[name]


CHANGING: Dict[str, Callable[[Any], Any]] = {
    "another parameter": lambda model: setattr(model[0], "weight", nn.Parameter(torch.zeros(2, 2))),
    "a parameter that becomes None": lambda model: setattr(model[0], "bias", None),
    "a removed parameter": lambda model: delattr(model[0], "bias"),
    "a parameter that is deleted from the table": lambda model: delete(model, "bias"),
    "another buffer": lambda model: setattr(model[1], "running_mean", torch.ones(2)),
    "a buffer that becomes None": lambda model: setattr(model[1], "running_mean", None),
    "another module": lambda model: setattr(model[0], "more", nn.ReLU()),
    "an inserted module": lambda model: model[2].insert(0, nn.Tanh()),
    "a deleted module": lambda model: model.__delitem__(2),
    "parametrization": lambda model: parametrize.register_parametrization(model[0], "weight", nn.Identity()),
    "pruning": lambda model: prune.l1_unstructured(model[0], "weight", amount=1),
}


@pytest.mark.parametrize("change", list(CHANGING.values()), ids=list(CHANGING))
def test_each_change_is_counted(change: Callable[[Any], Any]) -> None:
    model, plain = network(), network()
    follow_tables(model.modules())
    before = CHANGES.count
    change(model)
    change(plain)
    assert before != CHANGES.count
    assert list(model.state_dict()) == list(plain.state_dict()), "as without the count"
    assert [type(each).__name__ for each in model.modules()] == [type(each).__name__ for each in plain.modules()]


@pytest.mark.parametrize(
    "use",
    [
        lambda model: model(torch.ones(3, 2)).sum().backward(),
        lambda model: model.load_state_dict(model.state_dict()),
        lambda model: model[0].weight.data.zero_(),
        lambda model: list(model.parameters()),
        lambda model: model.eval().train().requires_grad_(False),
        copy.deepcopy,
    ],
)
def test_what_is_no_change(use: Callable[[Any], Any]) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    follow_tables(model.modules())
    before = CHANGES.count
    use(model)
    assert before == CHANGES.count


def saved(model: nn.Module) -> Any:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize(
    ("copied", "kind"),
    [
        (copy.deepcopy, PLAIN),
        (saved, OrderedDict),
        (lambda model: pickle.loads(pickle.dumps(model)), OrderedDict),
        (lambda model: copy.deepcopy([model, model])[1], PLAIN),
    ],
    ids=["copy", "file", "pickle", "part of a copy"],
)
def test_copies_have_tables_of_pytorch(copied: Callable[[Any], Any], kind: type) -> None:
    model = network()
    follow_tables(model.modules())
    made = copied(model)
    tables = [table(each) for each in made.modules() for table in (parameters_of, buffers_of, modules_of)]
    assert {type(table) for table in tables} == {kind}
    torch.testing.assert_close(made.state_dict(), model.state_dict())
    assert made[0].weight is not model[0].weight


@pytest.mark.parametrize("base", [dict, OrderedDict])
def test_a_table_is_one_of_its_class(base: Type[Any]) -> None:
    """Whatever changes a dictionary gives what it gives on one of PyTorch's, and raises what it raises."""
    module = nn.Module()
    module.__dict__["_buffers"] = base(a=None, b=None, c=None)
    follow_tables([module])
    table, plain = buffers_of(module), base(a=None, b=None, c=None)
    assert isinstance(table, base) and table == plain and list(table) == list(plain)
    assert type(copy.copy(table)) is base and copy.copy(table) == plain
    changes: Any = (
        lambda each: each.pop("a"),
        lambda each: each.pop("missing", 1),
        lambda each: each.update(d=1),
        lambda each: each.setdefault("e", 2),
        lambda each: each.popitem(),
        lambda each: each.__delitem__("b"),
        lambda each: each.clear(),
    )
    for change in changes:
        before = CHANGES.count
        assert change(table) == change(plain) and before != CHANGES.count
        assert list(table.items()) == list(plain.items())
    with pytest.raises(KeyError):
        table.pop("missing")


def test_a_followed_module_keeps_its_table() -> None:
    model = nn.Linear(2, 2)
    follow_tables([model])
    table = parameters_of(model)
    follow_tables([model])
    assert parameters_of(model) is table


def test_modules_of_torchscript_stay_as_they_are() -> None:
    model = torch.jit.script(nn.Linear(2, 2))
    follow_tables(model.modules())
    assert sorted(dict(model.named_parameters())) == ["bias", "weight"]
    assert model(torch.ones(1, 2)).shape == (1, 2)


@pytest.mark.parametrize("base", [dict, OrderedDict])
def test_entries_that_are_replaced_for_a_while_are_not_counted(base: Type[Any]) -> None:
    module = nn.Module()
    module.__dict__["_buffers"] = base(a=None, b=None)
    follow_tables([module])
    table = buffers_of(module)
    before = CHANGES.count
    replace_for_a_while([(table, {"b": torch.ones(1)})])
    replace_for_a_while([(table, {"a": None, "b": None})])
    assert CHANGES.count == before and list(table.items()) == [("a", None), ("b", None)]
    replace_for_a_while([(table, {"c": torch.ones(1)})])
    assert CHANGES.count != before and list(table) == ["a", "b", "c"]
