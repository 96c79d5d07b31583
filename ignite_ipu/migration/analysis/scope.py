"""The names of a function whose code is walked, and the facts that are found there."""

from __future__ import annotations

import ast
import contextlib
import re
from typing import Dict, FrozenSet, Iterator, Mapping, NamedTuple, Optional, Protocol, Sequence, Set, Tuple

from ignite_ipu.migration.analysis.conditions import Conditions, Runs
from ignite_ipu.migration.analysis.kinds import Fact, Function, Kind, converts, parameters_of, reads
from ignite_ipu.migration.analysis.models import Model
from ignite_ipu.migration.analysis.names import Names, dotted, is_layer, last_of, walk
from ignite_ipu.migration.analysis.parsed_file import ParsedFile
from ignite_ipu.migration.analysis.values import Origin, Value

Environment = Dict[str, Value]
# Functions whose result has another shape than their argument, or is a parameter.
_OF_OTHER_SHAPE = frozenset(["cat", "concat", "concatenate", "stack", "hstack", "vstack", "dstack", "pad", "Parameter"])
_GENERATORS = ("random.Random", "numpy.random.RandomState", "numpy.random.default_rng", "numpy.random.Generator")


class OutsideCall(NamedTuple):
    """A call of a function of another module.

    Attributes:
        scope: The class or function that calls it.
        name: Its dotted name.
        computed: Whether it is given a tensor that is computed from inputs or weights.
        in_loop: Whether the code of a loop calls it, and not traced code; a loss is computed from its result.
    """

    scope: str
    name: str
    computed: bool
    in_loop: bool = False


class Followed(Protocol):
    """The file that expressions are a part of, and the facts found in it."""

    file: ParsedFile
    names: Names
    models: Dict[str, Model]
    functions: Dict[str, Function]
    conditions: Conditions
    facts: Set[Fact]
    outside: Set[OutsideCall]
    lambdas: Dict[ast.Lambda, Function]
    shared: Dict[str, ast.expr]
    transforms: FrozenSet[str]
    constructors: Dict[str, Function]
    titles: Dict[Function, str]
    past: FrozenSet[Tuple[str, object]]
    early_reads: Set[str]
    renewals: Set[Tuple[str, Fact]]

    def records_gradients(self, node: ast.AST) -> bool:
        """Return whether gradients are recorded at a node that is walked."""

    def call(
        self,
        function: Function,
        model: Optional[Model],
        given: Sequence[Value],
        keywords: Mapping[Optional[str], Value],
        sure: bool = True,
        outer: Optional[Scope] = None,
    ) -> Value:
        """Analyse a function for arguments like these and return the description of its result."""


class Scope:
    """The names of one function, each with the description of its value, and the place of what is walked in it."""

    def __init__(
        self,
        analysis: Followed,
        function: Function,
        model: Optional[Model],
        environment: Environment,
        outer: Optional[Scope] = None,
    ) -> None:
        self.analysis = analysis
        self.names = analysis.names
        self.model = model
        self.where = f"{model.owner_of(function)}.{function.name}" if model and outer is None else function.name
        self.where = analysis.titles.get(function, self.where)
        parameters = parameters_of(function)
        own = parameters[0].arg if model and parameters else ""
        self.owner: str = own if outer is None else outer.owner
        self.environment = environment
        self.globals: FrozenSet[str] = frozenset()
        self.tested: FrozenSet[str] = frozenset()
        # Whether the code that is walked runs for sure, and the attribute that a loop over layers runs over.
        self.sure = True
        self.layers_of: Dict[str, str] = {}
        # The functions that are defined within it.
        self.inner: Dict[str, Function] = dict(outer.inner) if outer is not None else {}

    def fact(self, kind: str, node: ast.expr, name: str = "") -> None:
        self.analysis.facts.add(Fact(kind, node, name, self.where, self.sure))

    def layers_made(self, node: ast.Call, value: ast.expr) -> None:
        """Note the layers of PyTorch that a call calls, by the value that constructs them."""
        for made in (each for each in walk(value) if isinstance(each, ast.Call)):
            name = self.names.called(made) or ""
            if is_layer(name):
                self.analysis.facts.add(Fact("layer", node, name, self.where, self.sure, made))

    def needs_value(self, kind: str, node: ast.expr, of: Origin, name: str = "") -> None:
        """Note that code needs the values of a tensor, which it has got of constants."""
        if of is not Origin.CONSTANT:
            self.analysis.facts.add(Fact(kind, node, name, self.where, self.sure and of is Origin.COMPUTED))

    @contextlib.contextmanager
    def behind(self, sure: bool) -> Iterator[None]:
        """Context in which code is walked that may not run."""
        before, self.sure = self.sure, self.sure and sure
        try:
            yield
        finally:
            self.sure = before

    def runs(self, test: ast.expr) -> Runs:
        return self.analysis.conditions.runs(test, self.model, self.owner)

    def written(self, node: ast.Attribute) -> None:
        """Note a write in place into a buffer of the model that has whole numbers, unless its first call sets it."""
        model = self.model if self.is_own(node) else None
        if (
            model is not None
            and node.attr not in model.set_once
            and _is_whole(model.buffers.get(node.attr), self.names)
        ):
            self.fact("whole", node, node.attr)

    def is_registered(self, node: ast.Attribute) -> bool:
        """Return whether an attribute of the model itself is a buffer or a parameter."""
        held = self.model.holds.get(node.attr) if self.model and self.is_own(node) else None
        return held in (Kind.BUFFER, Kind.PARAMETER)

    def is_rebound(self, node: ast.Attribute, value: Optional[ast.expr]) -> bool:
        """Return whether an assignment puts a parameter, or a tensor of another shape, where a registered one is."""
        assert self.model is not None
        names = set() if value is None else {last_of(each) for each in ast.walk(value)}
        return self.model.holds.get(node.attr) is Kind.PARAMETER or not names.isdisjoint(_OF_OTHER_SHAPE)

    def mutation(self, node: ast.expr, name: str, kind: Value, value: Optional[ast.expr]) -> None:
        """Note a change of Python state.

        A value that is made if it is missing, unfit or already known is the same in every call. So are tensors that are
        stored for other code to read, and one that is converted. An attribute that each call of forward sets before it
        reads it is as a variable of the call.
        """
        converted = value is not None and converts(value, name)
        own = value is None or reads(value, name)
        if own:
            self.read(name)
        left = kind.is_tensor and self.model is not None and not self.model.reads(name.rpartition(".")[2])
        known = kind.kind is Kind.PYTHON or kind.has_tensors
        sets = isinstance(node, ast.Attribute) and self.is_own(node) and not own
        if converted or (not own and (kind.kind is Kind.PYTHON or name in self.tested or left)):
            self.fact("settled", node, name)
        elif known and (sets or self.kind_set(name) is not None):
            self.analysis.renewals.add((self._attribute(name), Fact("mutation", node, name, self.where, self.sure)))
        else:
            self.fact("mutation", node, name)
        if sets and self.sure:
            key = self._attribute(name)
            others = (each for each in self.analysis.past if each[0] != key)
            self.analysis.past = frozenset([*others, (key, kind.kind)])

    def read(self, name: str) -> None:
        """Note a read of an attribute of the model, by its chain of names."""
        if self.kind_set(name) is None:
            self.analysis.early_reads.add(self._attribute(name))

    def kind_set(self, name: str) -> Optional[Kind]:
        """Return the kind of the value that this call of forward has set an attribute to for sure, None for none."""
        kind = dict(self.analysis.past).get(self._attribute(name)) if name.startswith(f"{self.owner}.") else None
        return kind if isinstance(kind, Kind) else None

    def _attribute(self, name: str) -> str:
        """Return an attribute of the model, given by its chain of names, with the name of the model's class."""
        return f"{self.model.name if self.model else ''}.{name.partition('.')[2]}"

    def is_own(self, node: ast.AST) -> bool:
        """Return whether a chain of names starts at the model itself."""
        name = dotted(node)
        return bool(self.owner) and name is not None and name.split(".")[0] == self.owner and "." in name

    def is_shared(self, node: ast.AST) -> bool:
        """Return whether a chain of names starts at a variable of the module."""
        first = (dotted(node) or "").split(".")[0]
        return first in self.analysis.shared and first not in self.environment

    def generator_of(self, node: ast.expr) -> Optional[str]:
        """Return the class of a random generator of Python's or numpy's that an attribute or a variable holds."""
        name = last_of(node)
        value = self.model.values.get(name) if self.model and self.is_own(node) else None
        value = self.analysis.shared.get(name) if value is None and self.is_shared(node) else value
        made = None if value is None else self.names.called(value)
        return made if made in _GENERATORS else None


def _is_whole(value: Optional[ast.expr], names: Names) -> bool:
    """Return whether a tensor is made of whole numbers or booleans, by the call that makes it."""
    if not isinstance(value, ast.Call):
        return False
    dtype = next((names.resolve(keyword.value) for keyword in value.keywords if keyword.arg == "dtype"), None)
    if dtype is not None or (isinstance(value.func, ast.Attribute) and value.func.attr in ("long", "int", "bool")):
        return dtype is None or re.search(r"torch\.(u?int\d*|long|short|bool)$", dtype) is not None
    literals = [node.value for each in value.args for node in walk(each) if isinstance(node, ast.Constant)]
    whole = bool(literals) and all(isinstance(each, int) for each in literals)
    return whole and names.called(value) in ("torch.tensor", "torch.arange", "torch.as_tensor")
