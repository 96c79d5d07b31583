"""Private names of PyTorch, Ignite and accelerate: a table that is true, the only place that touches them."""

from __future__ import annotations

import ast
import functools
import importlib
from pathlib import Path
from typing import Any, FrozenSet, Iterator, List, Tuple

import pytest
import torch
from torch import nn

import ignite_ipu
from ignite_ipu import torch_names
from ignite_ipu.torch_names import NAMES, MissingNameError, Name
from ignite_ipu.torch_names import lists as over_lists
from ignite_ipu.torch_names.modules import (
    all_modules,
    all_named_buffers,
    all_named_modules,
    all_named_parameters,
    all_parameters,
)

ROOT = Path(ignite_ipu.__file__).parent
MODULES = sorted(file.stem for file in Path(torch_names.__file__).parent.glob("[a-z]*.py"))
for _module in MODULES:
    importlib.import_module(f"ignite_ipu.torch_names.{_module}")

# Private names of Python's own library, and of IPython.
OTHERS = frozenset(
    [
        *("_getframe", "_exit", "_asdict", "_make", "_replace", "_fields", "_thread", "_io", "_weakref", "_pytest"),
        *("_actions", "_SubParsersAction", "_Unpickler", "_threads_queues", "_reconstructor", "_config", "_file"),
        *("_forkserver", "_forkserver_alive_fd", "_inherited_fds", "_inheriting", "_args_from_interpreter_flags"),
        *("_ParameterKind", "_showtraceback"),
    ]
)
_NAMING = (
    *(ast.Attribute, ast.Name, ast.Import, ast.ImportFrom, ast.Constant),
    *(ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef),
)
# Attributes that an object gets or forwards by its name alone.
BY_NAME = frozenset(["_main", "_is_compiled", "_parameter", "_names", "_loaded"])


@pytest.fixture(scope="module", autouse=True)
def _trees_are_not_kept() -> Iterator[None]:
    """Free more than a million nodes, which later collections and forks of this process would look at and copy."""
    yield
    _nodes.cache_clear()


def version(of: str) -> Tuple[int, ...]:
    return tuple(int(part) for part in of.split("+")[0].split(".")[:3] if part.isdigit())


@pytest.mark.parametrize("path", sorted(NAMES))
def test_a_name_is_there_in_the_versions_that_the_table_says(path):
    """A release that drops one is noticed here: the entry gets `until`, and its feature a fallback."""
    name = NAMES[path]
    installed = version(importlib.import_module(name.package).__version__)
    assert name.lost.endswith(".")
    if name.until is not None and installed >= version(name.until):
        assert not name.exists()
    elif installed >= version(name.since):
        assert name.exists()


def test_nothing_else_touches_a_private_name():
    """By import, as an attribute or in a string; classes that derive from others' use names in the table."""
    assert [problem for file in sorted(ROOT.rglob("*.py")) for problem in touched(file)] == []


@pytest.mark.parametrize(
    "code",
    [
        "import torch\nwith torch._C.DisableTorchFunctionSubclass(): ...",
        "from torch.utils._pytree import tree_map",
        "import torch._dynamo",
        "from ignite.engine import _prepare_batch",
        "def f(tensor): return tensor._version",
        "def f(module): return vars(module)['_parameters']",
        "def f(loader): loader._iterator = None",
        "def f(engine): return getattr(engine, '_event_handlers')",
        "def f(tensor): return tensor._name_of_the_next_release",
    ],
)
def test_a_touch_is_noticed(code, tmp_path):
    """The check above is worth something only if it sees them."""
    file = tmp_path / "touching.py"
    file.write_text(code)
    assert touched(file)


ALL_MISSING = """
from ignite_ipu.torch_names import table
table.look_up = lambda path: table._NOTHING  # as if PyTorch had renamed all of them
import importlib, pathlib, ignite_ipu
root = pathlib.Path(ignite_ipu.__file__).parent
for file in sorted(root.rglob("*.py")):
    parts = file.relative_to(root.parent).with_suffix("").parts
    if "standin" not in parts and parts[-1] != "__main__":
        importlib.import_module(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
from ignite_ipu.torch_names.tensors import DisableTorchFunctionSubclass, version_of
for used in (DisableTorchFunctionSubclass, lambda: version_of(1)):
    try:
        used()
    except table.MissingNameError as error:
        print(error)
"""


def test_missing_names_cost_no_import(processes):
    """Every module of the package imports without any of the names, and an error names the loss."""
    run = processes.run(["-c", ALL_MISSING], check=True)
    first, second = run.stdout.splitlines()
    assert f"PyTorch {torch.__version__} has no torch._C.DisableTorchFunctionSubclass" in first
    assert NAMES["torch.Tensor._version"].lost in second


@pytest.fixture
def missing() -> Iterator[Name]:
    name = Name("torch._of_an_older_release", "2.0", "Nothing works.")
    yield name
    del NAMES[name.path]


def test_a_stand_in_raises_when_it_is_used(missing):
    """As a function, a context, an attribute's owner, and a base class."""
    found = missing.get()
    base = type("Derived", (object,), {})

    def derive():
        class Derived(found):
            pass

        return Derived()

    def enter():
        with found:
            base()

    for use in (found, enter, derive, lambda: found.attribute, lambda: isinstance(1, found), lambda: list(found)):
        with pytest.raises(MissingNameError, match=r"torch\._of_an_older_release.* 2\.0 on\. Nothing works\."):
            use()


def test_a_fallback_takes_the_place_of_a_missing_name(missing):
    name = Name("torch._with_fallback", "2.0", "It is slower.", fallback=len)
    try:
        assert name.get() is len
    finally:
        del NAMES[name.path]


A, B, C = ([torch.full((2, 2), float(number + each)) for each in range(2)] for number in (1, 3, 5))


@pytest.mark.parametrize(
    ("name", "args", "kwargs"),
    [
        ("add", (B,), {"alpha": 0.5}),
        ("add_", (2.0,), {}),
        ("mul", (B,), {}),
        ("mul_", (0.5,), {}),
        ("div", (B,), {}),
        ("div_", (3.0,), {}),
        ("addcmul", (B, C, -1), {}),
        ("addcmul_", (B, C, 0.25), {}),
        ("addcdiv_", (B, C, 0.25), {}),
        ("sqrt", (), {}),
        ("sqrt_", (), {}),
        ("lerp_", (B, 0.25), {}),
        ("norm", (), {}),
        ("zero_", (), {}),
    ],
)
def test_arithmetic_one_by_one_is_that_over_lists(name, args, kwargs):
    """The replacement of PyTorch's functions over lists, for releases without them."""
    results: List[List[torch.Tensor]] = []
    for function in (getattr(torch, f"_foreach_{name}"), over_lists._one_by_one(name)):
        tensors = [each.clone() for each in A]
        result = function(tensors, *args, **kwargs)
        results.append(tensors if name.endswith("_") else list(result))
    for plain, own in zip(*results):
        assert torch.equal(plain, own)


def test_tensors_are_flattened_without_the_private_functions():
    """Their replacement, for releases without them."""
    flatten, unflatten = (
        NAMES[f"torch._utils.{name}"]._fallback for name in ("_flatten_dense_tensors", "_unflatten_dense_tensors")
    )
    flat = flatten(A)
    assert torch.equal(flat, over_lists.flatten_tensors(A))
    assert all(map(torch.equal, unflatten(flat, A), A))


def touched(file: Path) -> List[str]:
    """Return where a module touches private names of others, each with its line."""
    module = ".".join(file.relative_to(ROOT.parent).with_suffix("").parts) if ROOT in file.parents else ""
    if module.startswith("ignite_ipu.torch_names"):
        return []
    allowed = OTHERS | BY_NAME | {name.last for name in NAMES.values() if module in name.inherited_by}
    theirs, known = _of_the_table() - allowed, _ours() | allowed
    own = {id(node) for each in _nodes(file) if isinstance(each, ast.ClassDef) for node in _own_attributes(each)}
    found = [
        (node.lineno, name)
        for node in _nodes(file)
        if id(node) not in own
        for name in _private_names(node)
        if name in theirs or not (isinstance(node, ast.Constant) or name in known)
    ]
    return [f"{file.name}:{line}: {name} belongs into ignite_ipu/torch_names" for line, name in sorted(set(found))]


@functools.lru_cache(maxsize=None)
def _nodes(file: Path) -> List[ast.AST]:
    """Return the nodes of a file that names are read from."""
    nodes = ast.walk(ast.parse(file.read_text(encoding="utf-8")))
    return [node for node in nodes if isinstance(node, _NAMING)]


def _own_attributes(defined: ast.ClassDef) -> List[ast.AST]:
    """Return the uses in a class of `self.name`, where the class itself defines the name or sets it."""
    nodes = list(ast.walk(defined))
    uses = [node for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)]
    uses = [node for node in uses if node.value.id == "self"]
    names = {node.attr for node in uses if isinstance(node.ctx, ast.Store)}
    names |= {node.name for node in nodes if isinstance(node, ast.FunctionDef)}
    return [node for node in uses if node.attr in names]


def _private_names(node: ast.AST) -> List[str]:
    """Return the private names that a node touches: of an attribute, of imports, of a string that is a dotted path."""
    if isinstance(node, ast.Attribute):
        names = [node.attr]
    elif isinstance(node, ast.ImportFrom):
        own = node.level or (node.module or "").split(".")[0] in ("ignite_ipu", "poptorch", "__future__")
        names = [] if own else [*(node.module or "").split("."), *(alias.name for alias in node.names)]
    elif isinstance(node, ast.Import):
        names = [part for alias in node.names for part in alias.name.split(".")]
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        parts = node.value.split(".")
        names = parts if all(part.isidentifier() for part in parts) else []
    else:
        names = []
    return [name for name in names if name.startswith("_") and not name.endswith("__") and name != "_"]


@functools.lru_cache(maxsize=None)
def _of_the_table() -> FrozenSet[str]:
    return frozenset(name.last for name in NAMES.values())


@functools.lru_cache(maxsize=None)
def _ours() -> FrozenSet[str]:
    """Return the private names that the package defines, attributes of its objects among them."""
    found = set()
    for file in ROOT.rglob("*.py"):
        for node in _nodes(file):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                found.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                found.add(node.id)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                found.update([node.attr] if isinstance(node.value, ast.Name) and node.value.id == "self" else [])
    return frozenset(found)


class _Hidden(nn.Sequential):
    """Leaves its last part out of the walks of PyTorch."""

    def named_modules(self, memo: Any = None, prefix: str = "", remove_duplicate: bool = True) -> Any:
        yield prefix, self
        yield f"{prefix}.0" if prefix else "0", self[0]


@pytest.mark.parametrize("hides", [False, True])
def test_modules_are_walked_in_the_order_of_pytorch(hides: bool) -> None:
    shared = nn.Linear(2, 2)
    inner = nn.Sequential(nn.ReLU(), nn.ModuleDict({"a": shared, "b": nn.Sequential(nn.Tanh(), shared)}))
    hidden = (_Hidden if hides else nn.Sequential)(nn.Linear(1, 1), nn.Linear(3, 3))
    model = nn.Sequential(inner, shared, hidden, nn.Dropout())
    model.register_module("nothing", None)
    assert all_named_modules(model) == list(model.named_modules())
    assert all_modules(hidden) == list(hidden.modules())
    assert len(all_modules(model)) == (10 if hides else 11)


class _Renamed(nn.Linear):
    """Shows none of its parameters."""

    def named_parameters(self, *args: Any, **kwargs: Any) -> Any:
        return iter(())


def test_parameters_and_buffers_are_walked_in_the_order_of_pytorch():
    """Shared ones come once, under their first name; a class that hides its parameters has them all the same."""
    shared, model = nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2, bias=False), nn.ReLU())
    model.add_module("first", nn.Sequential(shared, nn.BatchNorm1d(2)))
    model.add_module("second", shared)
    assert all_named_parameters(model) == list(model.named_parameters())
    assert all_parameters(model) == list(model.parameters())
    assert all_named_buffers(model) == list(model.named_buffers())
    hidden = _Renamed(2, 2)
    assert all_named_parameters(hidden) == [("weight", hidden.weight), ("bias", hidden.bias)]
