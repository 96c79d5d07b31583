"""`WeightHomes`: the IPU of each weight of a program."""

from __future__ import annotations

from typing import Dict, Iterable, List, Mapping, Sequence, Tuple

from torch import nn

from ignite_ipu.errors import PlanError
from ignite_ipu.pipeline.placing.applied import Start
from ignite_ipu.torch_names.modules import BUFFERS, PARAMETERS


class WeightHomes:
    """The IPUs of the weights of a module: where the first module that holds each was called.

    Args:
        modules: The modules in it, by path.
        at: The paths at which stages begin.
        models: Paths of the user's models. Weights of modules that are never called are on the IPUs of these, by the
            order in which the modules are registered.

    Attributes:
        held: Names of the weights that each module holds itself; of a tied weight the first.
    """

    def __init__(self, modules: Mapping[str, nn.Module], at: Mapping[Start, str], models: Sequence[str]) -> None:
        self.held, self._first = _first_names(modules)
        self._registered = self._by_registration(modules, at, models)
        self._known: Dict[str, Tuple[int, str]] = {}

    def forget(self) -> None:
        """Forget the calls of modules so far."""
        self._known = {}

    def home(self, name: str, here: int) -> int:
        """Return the IPU of a weight; one that nothing has placed is on the IPU that is given from now on."""
        name = self._first.get(name, name)
        return self._known.setdefault(name, (self._registered.get(name, here), name))[0]

    def are_on(self, ipu: int, weights: Iterable[str]) -> bool:
        """Return whether all of some weights are known to be on an IPU."""
        return {self._known.get(self._first.get(name, name), (None,))[0] for name in weights} == {ipu}

    def use(self, owner: str, names: Sequence[str], ipu: int) -> None:
        """Note that weights which a module holds are used on an IPU.

        Raises:
            PlanError: Another module uses one on another IPU.
        """
        for name in names:
            home, first = self._known.setdefault(name, (ipu, owner))
            if home != ipu:
                raise PlanError(
                    f"Weight {name} is used by {first} on IPU {home} and by {owner} on IPU {ipu}. Modules that "
                    f"use one weight must be on one IPU: begin a stage at {owner!r} on IPU {home}, as ({owner!r}, "
                    f"{home})."
                )

    def _by_registration(
        self, modules: Mapping[str, nn.Module], at: Mapping[Start, str], models: Sequence[str]
    ) -> Dict[str, int]:
        begins = {path: start.ipu for start, path in at.items() if start.call == 0}
        found: Dict[str, int] = {}
        for model in models:
            starts = [start for start, path in at.items() if is_within(path, model)]
            ipu = starts[0].ipu if starts else None
            for path in modules if starts else ():
                if is_within(path, model):
                    ipu = begins.get(path, ipu)
                    found.update({name: ipu for name in self.held.get(path, ()) if ipu is not None})
        return found


def is_within(path: str, part: str) -> bool:
    """Return whether the module at a path is a part of a module, or that module."""
    return not part or path == part or path.startswith(f"{part}.")


def _first_names(modules: Mapping[str, nn.Module]) -> Tuple[Dict[str, List[str]], Dict[str, str]]:
    """Return the names of the tensors that each module holds itself, and of each name the first of the same tensor."""
    first: Dict[int, str] = {}
    found: Dict[str, List[str]] = {}
    of_names: Dict[str, str] = {}
    for kind in (PARAMETERS, BUFFERS):
        for path, module in modules.items():
            for name, tensor in module.__dict__[kind].items():
                if tensor is not None:
                    own = f"{path}.{name}" if path else name
                    of_names[own] = known = first.setdefault(id(tensor), own)
                    found.setdefault(path, []).append(known)
    return found, of_names
