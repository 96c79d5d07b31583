"""Engines of Ignite in a file: the functions that they call for each batch, and the loaders that they run over."""

from __future__ import annotations

import ast
from functools import cached_property
from typing import Dict, Iterator, List, Mapping, Optional, Sequence, Set, Tuple

from ignite_ipu.migration.analysis.names import argument, constant, dotted, owner_of, walk
from ignite_ipu.migration.analysis.parsed_file import ParsedFile

TRAINER_FACTORIES = ("ignite.engine.create_supervised_trainer", "ignite_ipu.create_ipu_trainer")
EVALUATOR_FACTORIES = ("ignite.engine.create_supervised_evaluator", "ignite_ipu.create_ipu_evaluator")
LOADER_FACTORIES = ("torch.utils.data.DataLoader", "ignite.distributed.auto_dataloader")


def trains_the_rest(file: ParsedFile, trainer: ast.Call) -> bool:
    """Return whether a trainer trains on incomplete batches: Ignite's as it is moved, and ours where it is told to.

    A rest of batches that an update accumulates is left for the next epoch by Ignite's, and dropped by ours.
    """
    if file.names.called(trainer) == TRAINER_FACTORIES[1]:
        return constant(argument(trainer, "drop_last")) is False
    steps = argument(trainer, "gradient_accumulation_steps", 11)
    return steps is None or constant(steps) == 1


class Engines:
    """The engines of a file, and the loaders whose batches they get.

    Args:
        file: The file.
        trainers: Its calls of trainer factories.
        backwards: Its calls of `backward()` in host code.
        loaders: Its loaders, by the variables that hold them.
    """

    def __init__(
        self,
        file: ParsedFile,
        trainers: Sequence[ast.Call],
        backwards: Sequence[ast.Call],
        loaders: Mapping[str, ast.Call],
    ) -> None:
        self._file, self._trainers, self._backwards, self._loaders = file, trainers, backwards, loaders

    @cached_property
    def captured(self) -> Set[str]:
        """Names of the functions that the file gives to `ipu_step`."""
        given = (argument(call, "train_step", 0) for call, _ in self._file.calls("ignite_ipu.ipu_step"))
        return {self._function_name(process) for process in given if process is not None}

    @cached_property
    def process_functions(self) -> List[Tuple[ast.expr, ast.FunctionDef]]:
        """Functions that Ignite's engines are given to call for each batch and that train, with their definitions."""
        functions: List[Optional[ast.AST]] = [self._file.function_of(call) for call in self._backwards]
        found = []
        for engine, _ in self._file.calls("ignite.engine.Engine"):
            process = argument(engine, "process_function", 0)
            if process is not None and self._file.names.called(process) != "ignite_ipu.ipu_step":
                name = self._function_name(process)
                same = (each for each in self._file.nodes(ast.FunctionDef) if each.name == name and each in functions)
                found += [(process, function) for function in same]
        return found

    def _function_name(self, process: ast.expr) -> str:
        """Return the name of a function, or of that in a `functools.partial` that an expression is or names."""
        name = dotted(process)
        call = process if name is None else self._file.single_value(name)
        if isinstance(call, ast.Call) and self._file.names.called(call) == "functools.partial" and call.args:
            process = call.args[0]
        return (dotted(process) or "").rsplit(".", 1)[-1]

    @cached_property
    def training_loaders(self) -> Dict[str, Tuple[ast.Call, bool]]:
        """Loaders that feed training whose batches have one shape: their construction, and whether an engine drops."""
        dropping = {id(call) for call in self._trainers if not trains_the_rest(self._file, call)}
        trainers = {target for target, value in self._file.assigned if id(value) in dropping}
        found = {name: True for data in self._run_over(trainers) for name in self._loaders_in(data)}
        for call, _ in self._file.calls("ignite_ipu.ipu_train_batch"):
            for loop in self._file.loops_around(call):
                if isinstance(loop, ast.For):
                    found.update((name, False) for name in self._loaders_in(loop.iter))
        return {name: (self._loaders[name], replaced) for name, replaced in found.items()}

    def gets_a_rest(self, trainer: ast.Call) -> bool:
        """Return whether a trainer may be given an incomplete batch: unless all of its loaders are seen to drop it."""
        data = list(self._run_over({target for target, value in self._file.assigned if value is trainer}))
        loaders = [self._loaders[name] for value in data for name in self._loaders_in(value)]
        dropping = [loader for loader in loaders if constant(argument(loader, "drop_last")) is True]
        return not data or len(dropping) < len(loaders) or len(loaders) < len(data)

    def _run_over(self, engines: Set[str]) -> Iterator[ast.expr]:
        """Yield the data that the `run` of these engines is given."""
        for call in self._file.nodes(ast.Call):
            data = argument(call, "data", 0)
            if owner_of(call, "run") in engines and data is not None:
                yield data

    def _loaders_in(self, node: ast.expr) -> Iterator[str]:
        return (name for name in map(dotted, walk(node)) if name is not None and name in self._loaders)
