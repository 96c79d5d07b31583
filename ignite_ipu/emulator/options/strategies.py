"""Execution strategies: how the blocks of a model are spread over IPUs, and where each operator of a trace lands.

A block belongs to a `Stage`, a stage to one IPU; phased executions group stages into `Phase`s that run one after the
other. None of it changes a result: it decides whether a model compiles, the number of IPUs and the depth of the
pipeline.
"""

from __future__ import annotations

from typing import Any, Dict, Iterable, List, Optional, Sequence, Tuple, Union

from ignite_ipu.emulator.enums import AutoStage, Liveness
from ignite_ipu.emulator.options.guarded import checked

BlockId = str


# The stage, phase and IPU (-1: none was given) of a block.
Place = Tuple[int, int, int]


class Stage:
    """Blocks, named by their `user_id`, that run on one IPU, one after the other.

    Raises:
        AssertionError: One of them is not a string.
    """

    def __init__(self, *block_ids: BlockId) -> None:
        for block_id in block_ids:
            if not isinstance(block_id, str):
                raise AssertionError(f"Block IDs are supposed to be strings, got {block_id!r}.")
        self._blocks = tuple(block_ids)
        self._ipu: Optional[int] = None

    @property
    def blocks(self) -> Tuple[BlockId, ...]:
        """The ids of the stage's blocks."""
        return self._blocks

    def ipu(self, ipu: int) -> Stage:
        """Run the stage on IPU `ipu`, whatever its blocks ask for; returns the stage."""
        if not isinstance(ipu, int):
            raise AssertionError(f"The IPU of a stage is an int, got {ipu!r}.")
        self._ipu = ipu
        return self

    def __repr__(self) -> str:
        on = "" if self._ipu is None else f".ipu({self._ipu})"
        return f"Stage({', '.join(map(repr, self._blocks))}){on}"


class Phase:
    """Stages that run at the same time, before the next phase; block ids form one stage.

    Raises:
        AssertionError: They are neither all stages nor all strings.
    """

    def __init__(self, *arg: Union[BlockId, Stage]) -> None:
        stages = [each for each in arg if isinstance(each, Stage)]
        block_ids = [each for each in arg if isinstance(each, str)]
        if len(stages) == len(arg):
            self.stages = stages
        elif len(block_ids) == len(arg):
            self.stages = [Stage(*block_ids)]
        else:
            raise AssertionError(
                f"All arguments must either be block ids (strings) or stages, got {arg!r}. "
                "Spread a list of phases: SerialPhasedExecution(*phases)."
            )

    def stage(self, idx: int) -> Stage:
        """Return the stage at position `idx`."""
        return self.stages[idx]

    def ipus(self, *ipus: int) -> None:
        """Give each stage its IPU, in order.

        Raises:
            AssertionError: There are not as many IPUs as stages.
        """
        if len(ipus) != len(self.stages):
            raise AssertionError(f"Phase contains {len(self.stages)} stages but {len(ipus)} IPUs were given: {ipus}.")
        for stage, ipu in zip(self.stages, ipus):
            stage.ipu(ipu)

    def __repr__(self) -> str:
        return f"Phase({', '.join(map(repr, self.stages))})"


class _AutomaticStages:
    """Makes a stage of each block as it is `met` in a trace, which keeps the numbers of those before it."""

    def __init__(self, mode: AutoStage) -> None:
        self._mode = mode

    def __repr__(self) -> str:
        return f"AutoStage.{self._mode.name}"

    def place(self, block_id: BlockId, ipu_id: Optional[int], met: Dict[BlockId, int]) -> Place:
        if self._mode is AutoStage.AutoIncrement:
            # PopTorch counts from 1: stage 0 is the work before the first block.
            number = met.setdefault(block_id, len(met) + 1)
            return number, 0, number if ipu_id is None else ipu_id
        if ipu_id is None:
            raise AssertionError(
                f"The AutoStage strategy SameAsIpu was selected but no IPU was specified for block {block_id!r}: "
                "pass ipu_id, choose AutoStage.AutoIncrement, or list the stages."
            )
        return ipu_id, 0, ipu_id


class _ListedStages:
    """Has the stage of every block beforehand: its number and that of its phase with it."""

    def __init__(self, places: List[Tuple[int, int, Stage]]) -> None:
        self._stages = [stage for _, _, stage in places]
        self._found: Dict[BlockId, Tuple[int, int, Stage]] = {}
        for place in places:
            for block_id in place[2].blocks:
                if self._found.get(block_id, place)[2] is not place[2]:
                    raise AssertionError(f"Block {block_id!r} is associated with more than one stage.")
                self._found[block_id] = place

    def __repr__(self) -> str:
        return ", ".join(map(repr, self._stages))

    def by_block(self) -> Dict[BlockId, Stage]:
        return {block_id: stage for block_id, (_, _, stage) in self._found.items()}

    def place(self, block_id: BlockId, ipu_id: Optional[int], met: Dict[BlockId, int]) -> Place:
        if block_id not in self._found:
            raise AssertionError(f"Unknown Block {block_id!r}: list of expected Blocks is {sorted(self._found)}.")
        number, phase, stage = self._found[block_id]
        ipus = (each for each in (stage._ipu, ipu_id) if each is not None)
        return number, phase, next(ipus, number)


class _IExecutionStrategy:
    """Base of every strategy: the stages it knows, and the rule for the blocks it meets.

    PopTorch cannot pickle a strategy whose stages are listed; every strategy pickles here.
    """

    _backend_options: Dict[str, Union[int, bool]] = {}

    def __init__(self, stages_manager: Union[_AutomaticStages, _ListedStages], block_map: Dict[BlockId, Stage]) -> None:
        self._stages_manager = stages_manager
        self._block_map = block_map

    def stage(self, block_id: BlockId) -> Stage:
        """Return the stage that lists `block_id`, which no automatic one does."""
        if block_id not in self._block_map:
            raise AssertionError(f"Unknown block {block_id!r}: the listed ones are {sorted(self._block_map)}.")
        return self._block_map[block_id]

    def onStartTracing(self) -> None:
        """Called before a model that uses the strategy is traced."""

    def onEndTracing(self) -> None:
        """Called after the trace."""

    def backendOptions(self) -> Dict[str, Union[int, bool]]:
        """Return the entries this strategy adds to `Options.toDict()`."""
        if not self._backend_options:
            raise NotImplementedError(f"{type(self).__name__} is abstract: use one of PopTorch's four strategies.")
        return dict(self._backend_options)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._stages_manager!r})"


class PipelinedExecution(_IExecutionStrategy):
    """Stages work on different micro-batches at the same time.

    Args:
        args: Nothing (`AutoStage.SameAsIpu`), one `AutoStage`, or the stages: each a `Stage`, a block id, or a list of
            block ids. No block may be in two stages.

    Raises:
        AssertionError: A block is in two stages.
        TypeError: An argument is none of these.
    """

    _backend_options = {"execution_mode": 0}

    def __init__(self, *args: Any) -> None:
        if not args or (len(args) == 1 and isinstance(args[0], AutoStage)):
            super().__init__(_AutomaticStages(args[0] if args else AutoStage.SameAsIpu), {})
            return
        stages = [arg if isinstance(arg, Stage) else Stage(*_parts(arg)) for arg in args]
        listed = _ListedStages([(number, 0, stage) for number, stage in enumerate(stages)])
        super().__init__(listed, listed.by_block())


class ShardedExecution(PipelinedExecution):
    """Stages run one after the other, so one IPU works at a time; takes the arguments of `PipelinedExecution`."""

    _backend_options = {"execution_mode": 1}


class _IPhasedExecution(_IExecutionStrategy):
    """Base of both phased strategies.

    Args:
        phases: At least one, each a `Phase`, a list of stages, a list of block ids (one stage), a stage or a block id.
    """

    _backend_options = {"execution_mode": 2}

    def __init__(self, *phases: Union[Phase, List[Stage], List[BlockId]]) -> None:
        if not phases:
            raise AssertionError("There is currently no AutoStage for phased executions: pass the phases.")
        given: Sequence[Any] = phases
        self._phases = [each if isinstance(each, Phase) else Phase(*_parts(each)) for each in given]
        self._tensors_liveness = Liveness.AlwaysLive
        self._separate_backward_phase = False
        # Stages of phases carry no number of their own, and so no IPU to fall back on.
        listed = _ListedStages([(-1, i, stage) for i, phase in enumerate(self._phases) for stage in phase.stages])
        super().__init__(listed, listed.by_block())

    def __repr__(self) -> str:
        settings = [*map(repr, self._phases), f"liveness={self._tensors_liveness.name}"]
        settings.append(f"separate_backward_phase={self._separate_backward_phase}")
        return f"{type(self).__name__}({', '.join(settings)})"

    def phase(self, phase: int) -> Phase:
        """Return phase number `phase`."""
        given: Any = phase
        if not isinstance(given, int) or given < 0:
            raise AssertionError(f"Phases are identified by positive integers (and 0), got {phase!r}.")
        return self._phases[phase]

    def useSeparateBackwardPhase(self, use: bool = True) -> _IPhasedExecution:
        """Give the backward pass phases of its own; returns the strategy."""
        self._separate_backward_phase = checked("useSeparateBackwardPhase", use, bool)
        return self

    def backendOptions(self) -> Dict[str, Union[int, bool]]:
        return {
            **super().backendOptions(),
            "separate_backward_phase": self._separate_backward_phase,
            "tensors_liveness": self._tensors_liveness.value,
        }


def _parts(given: Any) -> Iterable[Any]:
    """Return the listed items, or the single one; an int, or an AutoStage, is a TypeError, as in PopTorch."""
    return [given] if isinstance(given, (str, Stage)) else iter(given)


class ParallelPhasedExecution(_IPhasedExecution):
    """Phases alternate between two groups of IPUs, so that one loads while the other computes."""

    _backend_options = {"execution_mode": 2, "serial_phases_execution": False}

    def sendTensorsOffChipAfterFwd(self, off_chip: bool = True) -> ParallelPhasedExecution:
        """Keep tensors off the chip between the forward and the backward pass; returns the strategy."""
        off_chip = checked("sendTensorsOffChipAfterFwd", off_chip, bool)
        self._tensors_liveness = Liveness.OffChipAfterFwd if off_chip else Liveness.AlwaysLive
        return self


class SerialPhasedExecution(_IPhasedExecution):
    """Phases run one after the other on one group of IPUs."""

    _backend_options = {"execution_mode": 2, "serial_phases_execution": True}

    def setTensorsLiveness(self, liveness: Liveness) -> SerialPhasedExecution:
        """Set when tensors leave the chip; returns the strategy."""
        self._tensors_liveness = checked("setTensorsLiveness", liveness, Liveness)
        return self
