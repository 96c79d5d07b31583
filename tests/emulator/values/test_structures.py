"""Structures of tensors are taken apart in order and put together as they were."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, namedtuple

import pytest
import torch

from ignite_ipu.emulator.errors import Error
from ignite_ipu.emulator.values.structures import (
    ICustomArgParser,
    find_parser,
    flatten_tensors,
    map_tensors,
    registerCustomArgParser,
    replace_tensors,
)

Point = namedtuple("Point", "x y")


class Sparse:
    """A user's own type: two tensors and a size."""

    def __init__(self, indices, values, size):
        self.indices, self.values, self.size = indices, values, size


class SmallSparse(Sparse):
    pass


class SparseParser(ICustomArgParser):
    def yieldTensors(self, struct):
        yield struct.indices
        yield struct.values

    def reconstruct(self, original_structure, tensor_iterator):
        return type(original_structure)(next(tensor_iterator), next(tensor_iterator), original_structure.size)


@pytest.fixture
def register():
    """Register parsers for the length of one test."""
    seen = []

    def add(kind, parser):
        registerCustomArgParser(kind, parser)
        seen.append(kind)

    yield add
    for kind in seen:
        registerCustomArgParser(kind, None)


def t(value):
    return torch.tensor([value])


def test_tensors_come_out_depth_first_and_other_leaves_are_skipped():
    structure = {"b": [t(1), "text"], "a": Point(t(2), (t(3), None)), "n": 4}
    assert [int(x) for x in flatten_tensors(structure)] == [1, 2, 3]


def test_every_container_keeps_its_type_and_its_other_leaves():
    marker = object()
    structure = [t(1), (t(2), marker), Point(t(3), 7), OrderedDict(b=t(4), a=t(5)), {"k": None}]
    doubled = map_tensors(structure, lambda x: x * 2)
    assert [int(x) for x in flatten_tensors(doubled)] == [2, 4, 6, 8, 10]
    assert [type(part) for part in doubled[1:]] == [tuple, Point, OrderedDict, dict]
    assert doubled[1][1] is marker and doubled[2].y == 7 and list(doubled[3]) == ["b", "a"]
    assert [int(x) for x in flatten_tensors(structure)] == [1, 2, 3, 4, 5], "the original is untouched"


def test_subclasses_of_dict_list_and_tuple_keep_what_they_carry():
    class Tagged(list):
        tag = None

    counts = defaultdict(lambda: "missing", x=t(1))
    tagged = Tagged([t(2)])
    tagged.tag = "kept"
    best = torch.tensor([[1.0, 3.0]]).max(dim=1)
    new_counts, new_tagged, new_best, size = map_tensors([counts, tagged, best, torch.Size([2, 3])], lambda x: x + 1)
    assert new_counts["nothing"] == "missing" and int(new_counts["x"]) == 2
    assert new_tagged.tag == "kept" and int(new_tagged[0]) == 3
    assert new_best.values.item() == 4.0 and new_best.indices.item() == 2
    assert size == torch.Size([2, 3]) and isinstance(size, torch.Size)


def test_a_tensor_alone_is_a_structure_and_so_is_a_number():
    assert map_tensors(t(1), lambda x: x + 1).item() == 2
    assert map_tensors(5, lambda x: x) == 5 and flatten_tensors("abc") == []


def test_replace_tensors_consumes_in_flattening_order():
    structure = {"a": t(0), "b": (t(0), "s")}
    assert replace_tensors(structure, iter([1, 2])) == {"a": 1, "b": (2, "s")}


def test_a_registered_type_is_opened_by_its_parser(register):
    register(Sparse, SparseParser())
    rebuilt = map_tensors((Sparse(t(1), t(2), 9), t(3)), lambda x: x * 10)
    assert [int(x) for x in flatten_tensors(rebuilt)] == [10, 20, 30]
    assert isinstance(rebuilt[0], Sparse) and rebuilt[0].size == 9


def test_the_exact_type_wins_and_then_registration_order(register):
    general, parent, exact = SparseParser(), SparseParser(), SparseParser()
    register(object, general)
    register(Sparse, parent)
    register(SmallSparse, exact)
    assert find_parser(SmallSparse(t(1), t(2), 3)) is exact
    registerCustomArgParser(SmallSparse, None)
    assert find_parser(SmallSparse(t(1), t(2), 3)) is general
    assert find_parser(Sparse(t(1), t(2), 3)) is parent


def test_an_unregistered_type_is_a_leaf_and_forgetting_it_twice_is_silent():
    registerCustomArgParser(Sparse, None)
    registerCustomArgParser(Sparse, None)
    value = Sparse(t(1), t(2), 3)
    assert find_parser(value) is None and flatten_tensors([value]) == [] and map_tensors(value, None) is value


def test_a_parser_for_a_container_type_goes_before_the_container_rule(register):
    class First(ICustomArgParser):
        def yieldTensors(self, struct):
            yield struct.x

        def reconstruct(self, original_structure, tensor_iterator):
            return original_structure._replace(x=next(tensor_iterator))

    register(Point, First())
    moved = map_tensors(Point(t(1), t(2)), lambda x: x + 5)
    assert int(moved.x) == 6 and int(moved.y) == 2


def test_what_is_no_parser_is_refused():
    with pytest.raises(Error, match="must inherit from"):
        registerCustomArgParser(Sparse, object())
    with pytest.raises(TypeError, match="expects a class"):
        registerCustomArgParser("Sparse", SparseParser())
    with pytest.raises(TypeError, match="abstract"):
        ICustomArgParser()


@pytest.mark.parametrize(("taken", "message"), [(1, "left tensors unused"), (3, "took more tensors")])
def test_a_parser_must_take_as_many_tensors_as_it_yields(register, taken, message):
    class Wrong(SparseParser):
        def reconstruct(self, original_structure, tensor_iterator):
            return [next(tensor_iterator) for _ in range(taken)]

    register(Sparse, Wrong())
    with pytest.raises(Error, match=message):
        map_tensors(Sparse(t(1), t(2), 3), lambda x: x)


def test_a_parser_may_yield_only_tensors(register):
    class Wrong(SparseParser):
        def yieldTensors(self, struct):
            yield struct.size

    register(Sparse, Wrong())
    with pytest.raises(Error, match="not a torch tensor"):
        flatten_tensors(Sparse(t(1), t(2), 3))
