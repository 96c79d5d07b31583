"""Operators and layers of torch that PopTorch 3.3 compiles, and with which arguments, by the emulator's table."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import lru_cache
from typing import Dict, FrozenSet, Iterator, List, Optional, Tuple

from ignite_ipu.migration.analysis.kinds import default_of, parameters_of
from ignite_ipu.migration.analysis.names import Names, argument, constant, dotted, has_hidden_arguments, names_bound
from ignite_ipu.migration.analysis.parsed_file import ParsedFile
from ignite_ipu.migration.analysis.settings import settings_of
from ignite_ipu.operators import table as operator_table
from ignite_ipu.operators.table import Restriction
from ignite_ipu.operators.words import word_set

_NO_OPERATORS = (
    "torch.nn.init.",
    "torch.nn.utils.",
    "torch.utils.",
    "torch.distributions.",
    "torch.profiler.",
    "torch.autograd.profiler.",
)
_DYNAMIC = word_set(
    "nonzero argwhere masked_select unique unique_consecutive nonzero_tuple pad_sequence pack_padded_sequence "
    "pad_packed_sequence"
)
# Moves, and operators that take values to the host, belong to other rules.
_DEEPEST = 8
_OTHER_RULES = frozenset(("cuda", "from_numpy", "item"))
# Functions that `run` computes by others (`program/forward/equivalents.py`, which imports torch), wholly, or where one
# of these arguments is in the way ("" for none); and the layers that are made of them.
_POOLS = {f"Adaptive{kind}Pool{n}d": f"adaptive_{kind.lower()}_pool{n}d" for kind in ("Avg", "Max") for n in (1, 2, 3)}
COMPUTED: Dict[str, Optional[FrozenSet[str]]] = {
    **dict.fromkeys(("huber_loss", "channel_shuffle", "searchsorted", *_POOLS.values())),
    **dict.fromkeys(("tril", "triu", "diagonal", "diag", "trace", "index_add", "index_copy", "repeat_interleave")),
    **dict.fromkeys(("lerp", "logaddexp", "logaddexp2", "logit", "xlogy", "nan_to_num", "exp2", "logical_xor")),
    **dict.fromkeys(
        ("hypot", "addbmm", "vdot", "quantile", "aminmax", "fmax", "fmin", "copysign", "signbit", "sgn", "sinc")
    ),
    **dict.fromkeys(
        (
            "masked_scatter",
            "floor_divide",
            "heaviside",
            "isposinf",
            "isneginf",
            "diag_embed",
            "diagflat",
            "gelu",
            "celu",
        )
    ),
    **dict.fromkeys(("log_sigmoid", "binary_cross_entropy", "kl_div", "round", "rsub", "div", "divide", "true_divide")),
    **dict.fromkeys(("index_put", "var", "std", "var_mean", "std_mean", "argmax", "argmin", "amax", "amin")),
    **dict.fromkeys(("count_nonzero", "sum", "mean", "prod", "cumprod", "norm", "index_fill", "take_along_dim")),
    **dict.fromkeys(("acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "erf", "erfc", "exp", "expm1")),
    **dict.fromkeys(("log", "log10", "log1p", "log2", "rsqrt", "sigmoid", "sin", "sinh", "sqrt", "tan", "tanh")),
    "smooth_l1_loss": frozenset(("beta",)),
    "group_norm": frozenset(),
    "topk": frozenset(("sorted",)),
    "argsort": frozenset(("stable",)),
    **dict.fromkeys((f"avg_pool{n}d" for n in (2, 3)), frozenset(("stride", "divisor_override"))),
    **dict.fromkeys((f"max_pool{n}d" for n in (1, 2, 3)), frozenset(("stride",))),
    "cross_entropy": frozenset(("weight", "label_smoothing")),
    "nll_loss": frozenset(("weight",)),
    "layer_norm": frozenset(("", "weight", "bias")),
    "lstm": frozenset(("num_layers", "bias", "has_biases", "bidirectional", "dropout")),
    "pad": frozenset(("mode", "padding_mode")),
}
_LAYERS = {
    **{"CrossEntropyLoss": "cross_entropy", "NLLLoss": "nll_loss", "HuberLoss": "huber_loss"},
    **{"LayerNorm": "layer_norm", "LSTM": "lstm", "ChannelShuffle": "channel_shuffle", **_POOLS},
    **{
        "SmoothL1Loss": "smooth_l1_loss",
        "GELU": "gelu",
        "CELU": "celu",
        "KLDivLoss": "kl_div",
        "BCELoss": "binary_cross_entropy",
    },
    **{f"Conv{n}d": "pad" for n in (1, 2, 3)},
}
# The functions that layers call, which have so many arguments more in front.
_CALLED = {"torch.nn.EmbeddingBag": ("torch.nn.functional.embedding_bag", 1)}
# A function of torch that returns indices, too, while its namesake of torch.nn.functional is computed by others.
_OF_TWO_RESULTS = ("torch.adaptive_max_pool1d",)


@dataclass(frozen=True)
class Problem:
    """Reason for which an operator or layer, named in front of it, does not compile, and its own way out, if any.

    `detail` stands in place of the message behind a name in a sentence which says already that PopTorch does not
    compile it. Operators that `run` replaces by others are handled. Those that the table lacks are not known.
    """

    message: str
    detail: str
    remedy: Optional[str] = None
    is_handled: bool = False
    is_known: bool = True


_MADE_FROM = ".from_pretrained"


@lru_cache(maxsize=None)
def problem(name: str) -> Optional[Problem]:
    """Return why an operator (`torch.x`, `Tensor.x`, `torch.nn.functional.x`) or layer (`torch.nn.X`) does not compile.

    None if it does compile, and for names that are no operators: there is nothing to compile.
    """
    # A layer made of weights that there are: torch.nn.Embedding.from_pretrained.
    name = name[: -len(_MADE_FROM)] if name.endswith(_MADE_FROM) else name
    plain = operator_table.undecorated(name)
    last = name.rpartition(".")[2]
    if name.startswith(_NO_OPERATORS) or plain in _OTHER_RULES:
        return None
    if last[:1].isupper():
        part = operator_table.LAYERS.get(name)
    else:
        part = operator_table.refused(plain)
        if part is None and not operator_table.compiles(plain) and not last.startswith("_"):
            unknown = "which the table of operators does not have"
            return Problem(unknown, f", {unknown}", is_known=False)
    if part is None:
        return None
    made_of = f" (it is made of {part})" if part and part != operator_table.canonical(plain) else ""
    message = f"which PopTorch does not compile{made_of}"
    return Problem(message, made_of, operator_table.instead(part) or None, is_handled(name))


def is_refused(file: ParsedFile, name: str, call: ast.Call) -> bool:
    """Return whether an operator or layer is known not to compile, or visibly not with its arguments."""
    found = problem(name)
    return (found is not None and found.is_known) or any(True for _ in refused_arguments(file, name, call))


def is_handled(name: str, restriction: Optional[Restriction] = None) -> bool:
    """Return whether `run` computes by others a function or layer that PopTorch refuses, wholly or by a restriction."""
    if name in _OF_TWO_RESULTS:
        return False
    plain = name.rsplit(".", 1)[1].rstrip("_")  # in place, too
    plain = _LAYERS.get(plain, plain)
    arguments = COMPUTED.get(plain, frozenset())
    met = () if restriction is None else restriction.argument or ("",)
    return arguments is None or not arguments.isdisjoint(met)


def is_made_here(names: Names, call: ast.Call) -> bool:
    """Return whether a call's first tensor is created by the same expression: a constant, computed on the host."""
    method = isinstance(call.func, ast.Attribute) and names.resolve(call.func) is None
    subject = call.func.value if method and isinstance(call.func, ast.Attribute) else argument(call, "input", 0)
    name = None if subject is None else names.called(subject)
    return name is not None and operator_table.undecorated(name) in operator_table.GROUPS["creation"]


def refused_arguments(file: ParsedFile, name: str, call: ast.Call) -> Iterator[Tuple[ast.AST, Restriction]]:
    """Yield the restrictions that a call of a function, method (`Tensor.x`) or layer visibly meets in its file."""
    method = name.startswith("Tensor.") and not operator_table.restrictions_of(name)
    listed = f"torch.{name.split('.', 1)[1]}" if method else name
    # Before PyTorch 2.1, the nonlinearity of nn.RNN was no positional argument.
    older = listed == "torch.nn.RNN" and isinstance(constant(argument(call, "", 3)), bool)
    order = operator_table.positions("torch.nn.LSTM" if older else listed)
    for restriction in operator_table.restrictions_of(listed):
        if restriction.loss or restriction.rule or (restriction.replaced and not restriction.instead):
            continue
        positions = {each: order[each] - method for each in restriction.argument if each in order}
        given = [argument(call, each, positions.get(each)) for each in restriction.argument]
        value = next((node for node in given if node is not None), None)
        if value is None and (restriction.when != "missing" or has_hidden_arguments(call)):
            if restriction.when == "always":
                yield call, restriction
            continue
        known = [None] if value is None else list(literals_of(file, value))
        if any((each is not ... or restriction.when == "given") and restriction.concerns(each) for each in known):
            yield value if value is not None else call, restriction


def constants_of(name: str) -> Iterator[Tuple[str, int, Restriction]]:
    """Yield the arguments of a function, or of a layer that is called, that have to be constants, with positions."""
    called, before = _CALLED.get(name, (name, 0))
    order = operator_table.positions(called)
    for restriction in operator_table.restrictions_of(called):
        if restriction.rule == "varies" and not is_handled(called, restriction):
            yield from ((each, order[each] - before, restriction) for each in restriction.argument)


def is_loss(name: str) -> bool:
    """Return whether a function or layer is a loss, which models leave to the code around them."""
    plain = operator_table.undecorated(name)
    return plain in operator_table.GROUPS["losses"] or plain.lower().endswith("loss")


def literals_of(file: ParsedFile, node: Optional[ast.AST], depth: int = 0) -> Iterator[object]:
    """Yield the literals that an expression may have as its value by the file, and Ellipsis for unknown values."""
    if isinstance(node, (ast.Tuple, ast.List)):
        values = [constant(element) for element in node.elts]
        yield ... if ... in values else values
    elif isinstance(node, ast.Compare) or (isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)):
        yield from (False, True)
    elif isinstance(node, ast.IfExp):
        yield from literals_of(file, node.body, depth)
        yield from literals_of(file, node.orelse, depth)
    elif isinstance(node, (ast.Name, ast.Attribute)) and depth < _DEEPEST:
        behind = list(_behind(file, node))
        for value in behind or [None]:
            yield from literals_of(file, value, depth + 1)
    elif isinstance(node, (ast.Subscript, ast.Call)):
        yield from settings_of(file).literals(node)
    else:
        yield constant(node)


def _behind(file: ParsedFile, node: ast.expr) -> Iterator[Optional[ast.expr]]:
    """Yield the expressions that a name stands for; None for one outside the file."""
    name, function = dotted(node) or "", file.function_of(node)
    if name.startswith("self.") and name.count(".") == 1:
        above = next((each for each in file.ancestors(node) if isinstance(each, ast.ClassDef)), None)
        yield next((model.values.get(name[5:]) for model in file.models if model.node is above), None)
    elif function is not None and name in {parameter.arg for parameter in parameters_of(function)}:
        if any(name in names_bound(statement) for statement in function.body):
            yield None
            return
        given = file.given(function, name)
        yield from (value for value in given if value is not None)
        if not given or None in given:
            yield default_of(function, name)
    elif isinstance(node, ast.Attribute):
        yield from settings_of(file).behind(node)
    else:
        values = file.values.get(name, [])
        local = [value for value in values if file.function_of(value) is function]
        found: List[ast.expr] = local or [value for value in values if file.function_of(value) is None]
        yield found[0] if len(found) == 1 else None


def is_dynamic(name: str) -> bool:
    """Return whether the size of an operator's result depends on values, given its dotted name."""
    return name.rpartition(".")[2] in _DYNAMIC
