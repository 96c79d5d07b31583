"""One parsed file with the questions rules ask of it, each answered once."""

from __future__ import annotations

import ast
import contextlib
import io
import re
import tokenize
from collections import defaultdict
from dataclasses import replace
from functools import cached_property
from typing import Dict, Iterable, Iterator, List, NamedTuple, Sequence, Set, Tuple

from ignite_ipu.migration.analysis.forward import ForwardAnalysis
from ignite_ipu.migration.analysis.kinds import Fact, Function, Kind, parameters_of
from ignite_ipu.migration.analysis.loop_code import LoopAnalysis
from ignite_ipu.migration.analysis.models import Model
from ignite_ipu.migration.analysis.names import dotted, has_weights, unmoved, walk
from ignite_ipu.migration.analysis.operators import is_dynamic
from ignite_ipu.migration.analysis.parsed_file import ParsedFile, call_of
from ignite_ipu.migration.analysis.scope import OutsideCall
from ignite_ipu.migration.analysis.training import Training
from ignite_ipu.migration.analysis.uses import Uses, uses_of
from ignite_ipu.migration.analysis.values import Origin

AUTO = "ignite_ipu.auto"
"""The module whose import captures a program when it runs."""

_PORTED = ("create_ipu_trainer", "create_ipu_evaluator", "ipu_prepare", "ipu_step", "IPUAccelerator")
EVERY_RULE = "*"
_SUPPRESSION = re.compile(r"#\s*ignite-ipu:\s*ignore(?:\[(?P<rules>[^\]]*)\])?(?=\s|#|$)")

_CHANGES = ("mutation", "random")
_OPERATORS = ("call", "layer", "dynamic")
_READS = ("truth", "count", "host", "mask", "dynamic", "repeat")


class LatentFacts(NamedTuple):
    """Facts of a function, which hold if it is called; some only if it `takes` a tensor that is computed.

    Those of a loss hold if a loop computes one by it, and not if traced code calls it.
    """

    function: str
    takes: bool
    facts: List[Fact]
    of_loss: bool = False


class Program(ParsedFile):
    """A parsed file, with its trained models and the facts of its traced code."""

    @cached_property
    def training(self) -> Training:
        """The optimizers, loaders, schedules and training steps of the file."""
        return Training(self)

    @cached_property
    def is_automatic(self) -> bool:
        """True if the file imports `ignite_ipu.auto`, so that it trains as `ignite-ipu run` trains it."""
        package, _, name = AUTO.rpartition(".")
        imported = (alias.name for node in self.nodes(ast.Import) for alias in node.names)
        froms = (node for node in self.nodes(ast.ImportFrom) if node.module == package and not node.level)
        return AUTO in imported or any(alias.name == name for node in froms for alias in node.names)

    @cached_property
    def is_ported(self) -> bool:
        """True if the file calls this library's engines or captures its loops by it."""
        return any(True for _ in self.calls(*(f"ignite_ipu.{name}" for name in _PORTED)))

    @cached_property
    def facts(self) -> List[Fact]:
        """Facts of the code that is traced: every model's forward, and the loss functions."""
        found = set(self._traced_code[0])
        # A loop calls modules of losses itself, so only their operators are recorded for the device.
        losses = ForwardAnalysis(self)
        losses.run_models([each for each in self.models if self._is_loop_loss(each) and not self._is_followed(each)])
        found |= {fact for fact in losses.facts if fact.kind == "call" and not is_dynamic(fact.name)}
        return _in_order(found | self._loops[0])

    @cached_property
    def uses(self) -> Uses:
        """The names that the scopes of the file use."""
        return uses_of(self)

    @cached_property
    def _loops(self) -> Tuple[Set[Fact], Set[OutsideCall]]:
        """The operators that losses of the loops' own code are computed by, and the functions of other files."""
        if not self.training.backward_calls:
            return set(), set()
        analysis = LoopAnalysis(self.training)
        analysis.run_loops()
        calls = ((self.uses.scope_of(each.node.lineno), each.name) for each in analysis.losses_outside if each.certain)
        return analysis.facts, {OutsideCall(scope, name, True, in_loop=True) for scope, name in calls}

    @property
    def outside(self) -> Set[OutsideCall]:
        """The calls of functions of other modules that traced code, or the code of a loss, makes for sure."""
        return self._traced_code[1] | self._loops[1]

    @cached_property
    def latent(self) -> List[LatentFacts]:
        """Facts of functions that count if traced code of other files, or a loop's loss, calls them."""
        found: List[LatentFacts] = []
        loops = LoopAnalysis(self.training)
        for name, function in self.functions.items():
            nodes = walk(function)
            draws = any((self.names.called(node) or "").startswith(("random.", "numpy.random.")) for node in nodes)
            if draws or any(isinstance(node, ast.Global) for node in nodes):
                found.append(LatentFacts(name, False, self._facts_of(function, Origin.UNKNOWN, _CHANGES)))
            if name not in self.training.loss_functions and parameters_of(function):
                found.append(LatentFacts(name, True, self._facts_of(function, Origin.COMPUTED, _READS)))
                operators = loops.result_of(function)
                facts = _in_order({each for each in operators if each.certain and each.kind in _OPERATORS})
                found += [LatentFacts(name, True, facts), LatentFacts(name, True, facts, of_loss=True)]
        return [each for each in found if each.facts]

    def _facts_of(self, function: Function, origin: Origin, kinds: Sequence[str]) -> List[Fact]:
        analysis = ForwardAnalysis(self)
        analysis.run(function, origin=origin)
        return _in_order({fact for fact in analysis.facts if fact.certain and fact.kind in kinds})

    @cached_property
    def _traced_code(self) -> Tuple[Set[Fact], Set[OutsideCall]]:
        # The analysis refers to the file, which would be a circle.
        analysis = ForwardAnalysis(self)
        analysis.run_models([model for model in self.models if not self._is_loop_loss(model)])
        for name in sorted(self.functions.keys() & self.training.loss_functions):
            analysis.run(self.functions[name])
        return analysis.facts, analysis.outside

    @cached_property
    def compiled(self) -> Set[ast.AST]:
        """The nodes of models, but of losses that a loop calls, whose code is the loop's own."""
        losses = {node for model in self.models if self._is_loop_loss(model) for node in walk(model.node)}
        return self.traced - losses

    def _is_loop_loss(self, model: Model) -> bool:
        """Return whether a class is a loss that a loop calls, not an engine."""
        return not self.training.trainers and self._is_loss(model)

    def _is_followed(self, model: Model) -> bool:
        """Return whether the file shows every call of a loss, so that the loops' own code decides about it."""
        made = [call for call in self.nodes(ast.Call) if dotted(call.func) == model.name]
        names = {target for target, value in self.assigned if unmoved(value) in made}
        if not self.training.backward_calls or not names or len(names) < len(made):
            return False
        loaded = (each for kind in (ast.Name, ast.Attribute) for each in self.nodes(kind) if dotted(each) in names)
        return all(call_of(self, each) for each in loaded if isinstance(getattr(each, "ctx", None), ast.Load))

    def _is_loss(self, model: Model) -> bool:
        """Return whether a class is a loss without weights: by its name, or by a loss of PyTorch that it holds."""
        made = [self.names.called(value) or "" for value in model.values.values()]
        if Kind.PARAMETER in model.holds.values() or any(map(has_weights, made)):
            return False
        named = re.search(r"loss|criterion", model.name, re.IGNORECASE) is not None
        return named or any(each.startswith("torch.nn.") and each.endswith("Loss") for each in made)

    def facts_of(self, *kinds: str) -> Iterator[Fact]:
        """Yield the facts of the given kinds in the order of the text."""
        return (fact for fact in self.facts if fact.kind in kinds)

    def may_call(self, made: ast.Call) -> bool:
        """Return whether traced code may call a layer by its construction: no model does that never reads its name."""
        for model in self.models:
            name = next((name for name, value in model.values.items() if value is made), None)
            if name is not None and made in walk(model.node):
                return model.reads(name) or model.reads("children") or model.reads("modules")
        return True

    def detail_of(self, fact: Fact) -> str:
        """Return the name that a fact has, or else the code, for brackets behind a sentence."""
        return fact.name or f"`{self.text_of(fact.node)}`"

    @cached_property
    def suppressions(self) -> Dict[int, Set[str]]:
        """Line of the text -> names in its `# ignite-ipu: ignore[...]` comment; `*` stands for every rule."""
        found: Dict[int, Set[str]] = defaultdict(set)
        # Finding comments takes as long as parsing does.
        text = self.source.text if "ignite-ipu" in self.source.text else ""
        # The parser accepted the text, so only its very end can be at fault; earlier cells count.
        with contextlib.suppress(tokenize.TokenError, SyntaxError):
            for token in tokenize.generate_tokens(io.StringIO(text, newline=None).readline):
                match = _SUPPRESSION.search(token.string) if token.type == tokenize.COMMENT else None
                if match:
                    names = (match.group("rules") or EVERY_RULE).split(",") if match.group("rules") != "" else []
                    found[token.start[0]].update(filter(None, map(str.strip, names)))
        return found

    def is_suppressed(self, rule: str, lines: Iterable[int]) -> bool:
        """Return whether a comment in one of some lines silences a rule."""
        return any({rule, EVERY_RULE} & self.suppressions.get(line, set()) for line in lines)

    def text_of(self, node: ast.expr) -> str:
        """Return an expression's source on one line, shortened for a message."""
        line = re.sub(r"\s+", " ", self.source_of(node)).strip()
        return line if len(line) <= 60 else line[:57] + "..."


def _in_order(found: Set[Fact]) -> List[Fact]:
    """Return facts in the order of the text; one that is certain stands for itself where it is not."""
    certain = {replace(fact, certain=True) for fact in found}
    kept = [fact if fact in found else replace(fact, certain=False) for fact in certain]
    return sorted(kept, key=lambda fact: (fact.node.lineno, fact.node.col_offset, fact.kind, fact.name))
