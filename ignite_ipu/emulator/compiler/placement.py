"""Places of the operators of one traced model, and checks that the IPUs at hand can run them so."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, List, NamedTuple, Optional

from torch import fx

from ignite_ipu.emulator.enums import Liveness, OutputMode
from ignite_ipu.emulator.errors import backend_error
from ignite_ipu.emulator.logs import logger
from ignite_ipu.emulator.options.strategies import (
    ParallelPhasedExecution,
    PipelinedExecution,
    ShardedExecution,
    _IExecutionStrategy,
    _IPhasedExecution,
)

if TYPE_CHECKING:
    from ignite_ipu.emulator.options.root import Options

MOST_IPUS = 64


class Site(NamedTuple):
    """The place of one operator."""

    stage: int  # -1 in phased executions, whose stages have none
    phase: int  # 0 unless phased
    ipu: int  # counted within a replica
    block: Optional[str]  # None before the first block


BEFORE_ANY_BLOCK = Site(0, 0, 0, None)


class BlockPlacement:
    """Reading of an execution strategy in one trace: `blocks` are the sites of the blocks in the order of the trace."""

    def __init__(self, strategy: _IExecutionStrategy) -> None:
        strategy.onStartTracing()
        self._strategy = strategy
        self._site: Optional[Site] = BEFORE_ANY_BLOCK
        self._next_auto_id = 0
        self._met: Dict[str, int] = {}
        self._has_unmarked_operators = False
        self.blocks: List[Site] = []

    def enter_block(self, user_id: Optional[str], ipu_id: Any) -> str:
        """Put the operators that follow into a block, and return its id: the next automatic one unless it has one."""
        if ipu_id is not None and not (isinstance(ipu_id, int) and ipu_id >= 0):
            raise backend_error(f"Block {user_id!r} asks for IPU {ipu_id!r}: ipu_id must be an int of 0 or more.")
        if not user_id:
            user_id = str(self._next_auto_id)
            self._next_auto_id += 1
        self._site = Site(*self._strategy._stages_manager.place(user_id, ipu_id, self._met), user_id)
        self.blocks.append(self._site)
        return user_id

    def exit_block(self) -> None:
        """Close the block: an operator before the next one has no place."""
        self._site = None

    def restart_auto_ids(self) -> None:
        self._next_auto_id = 0

    def close(self) -> None:
        """Close the strategy at the end of the trace; the recorded placement stays readable."""
        self._strategy.onEndTracing()

    @property
    def site(self) -> Site:
        if self._site is None:
            raise backend_error(
                "No active Block: an operator follows the end of a `with Block` and precedes the next one. "
                "Put it into a block, or use BeginBlock or Block.start, which stay open."
            )
        self._has_unmarked_operators |= self._site is BEFORE_ANY_BLOCK
        return self._site

    @property
    def ipus_per_replica(self) -> int:
        """Number of IPUs that one replica takes: ids count from 0, and an id left out is taken too."""
        return max([site.ipu for site in self.blocks], default=0) + 1

    @property
    def pipeline_stages(self) -> int:
        """Number of the forward pipeline's stages: one more than the IPU changes from block to block, from IPU 0."""
        ipus = [0, *(site.ipu for site in self.blocks)]
        return 1 + sum(before != after for before, after in zip(ipus, ipus[1:]))

    @property
    def is_pipelined_execution(self) -> bool:
        """True if the strategy is `PipelinedExecution`, which pipelines where there is more than one IPU."""
        return isinstance(self._strategy, PipelinedExecution) and not isinstance(self._strategy, ShardedExecution)

    @property
    def pipelined(self) -> bool:
        """True if stages overlap: a pipelined strategy with more than one IPU."""
        return self.is_pipelined_execution and self.ipus_per_replica > 1

    def ipus(self, options: Options) -> int:
        """Return how many IPUs all replicas of this process take, rounded up to a power of two on request."""
        needed: int = self.ipus_per_replica * options.replication_factor
        reserved = needed
        if not (options._uses_ipu_model() or options._is_offline()):
            reserved = 1 << (needed - 1).bit_length()
        if reserved != needed and not options.auto_round_num_ipus:
            raise backend_error(
                f"The model specifies the use of {needed} IPUs ({self.ipus_per_replica} for each of "
                f"{options.replication_factor} replicas), and IPUs come in powers of two: {reserved} must be reserved. "
                "Place it on a power of two, or call options.autoRoundNumIPUs(True) to leave the others idle."
            )
        if reserved > MOST_IPUS:
            raise backend_error(
                f"Too many IPUs requested: {reserved}, and one process has {MOST_IPUS} at most. Spread the replicas "
                "over several processes, each with its own IPUs: PopRun starts them (`ignite-ipu launch`)."
            )
        return reserved

    def check(self, options: Options, training: bool) -> None:
        """Refuse blocks that the back end would refuse to compile; call it after the trace."""
        self._check_phases()
        needed, reserved = self.ipus_per_replica * options.replication_factor, self.ipus(options)
        if reserved != needed:
            logger.warning("The model uses %d IPUs; %d are reserved, a power of two.", needed, reserved)
        if self.pipelined:
            self._check_pipeline(options, training)

    def check_graph(self, graph: fx.Graph) -> None:
        """Refuse a graph in which a value would have to go back to an earlier stage or phase; call it after the trace.

        Operators carry their `Site` as `meta["site"]`; inputs and weights, which have none, go anywhere.
        """
        for node in graph.nodes:
            for source in node.all_input_nodes:
                if "site" in node.meta and "site" in source.meta:
                    self._check_flow("phase", source.meta["site"], node.meta["site"])
                    if self.pipelined:
                        self._check_flow("stage", source.meta["site"], node.meta["site"])

    def _check_flow(self, unit: str, producer: Site, consumer: Site) -> None:
        made, read = getattr(producer, unit), getattr(consumer, unit)
        if read < made:
            raise backend_error(
                f"Block {consumer.block!r} ({unit} {read}) reads results of block {producer.block!r} ({unit} {made}), "
                f"so the operators cannot be scheduled: {unit} numbers must not decrease along the data flow. Reorder "
                f"the {unit}s, or use AutoStage.AutoIncrement to give the later block a later stage."
            )

    def _check_phases(self) -> None:
        strategy = self._strategy
        if not isinstance(strategy, _IPhasedExecution):
            return
        for site in self.blocks:
            if site.ipu < 0:
                raise backend_error(
                    f"Block {site.block!r} of phase {site.phase} has no IPU: call "
                    f"strategy.phase({site.phase}).ipus(...) or Stage.ipu(...), or pass ipu_id to the block."
                )
        if not isinstance(strategy, ParallelPhasedExecution):
            return
        for site in self.blocks:
            if site.phase % 2 != site.ipu % 2:
                raise backend_error(
                    f"Block {site.block!r} of phase {site.phase} is on IPU {site.ipu}: in a parallel phased execution "
                    "even phases must run on even IPUs and odd phases on odd IPUs."
                )
        if strategy._tensors_liveness in (Liveness.OffChipAfterEachPhase, Liveness.OffChipAfterFwdNoOverlap):
            raise backend_error(
                f"Liveness.{strategy._tensors_liveness.name} is not valid for a parallel phased execution, "
                "which overlaps its phases: use OffChipAfterFwd, AlwaysLive, or SerialPhasedExecution."
            )

    def _check_pipeline(self, options: Options, training: bool) -> None:
        if options.output_mode == OutputMode.EveryN:
            raise backend_error(
                f"EVERYN is not valid for pipelined models, and this one runs over {self.ipus_per_replica} IPUs: "
                "choose OutputMode.All, Final or Sum."
            )
        depth = self.pipeline_stages
        if training:
            stages, accumulation = 2 * depth - 1, options.Training.gradient_accumulation
            if accumulation < stages:
                raise backend_error(
                    f"gradientAccumulation must be greater than or equal to the number of pipeline stages ({stages}: "
                    f"{depth} forward, {depth} backward, the last two on one IPU being one), and it is {accumulation}. "
                    f"Call options.Training.gradientAccumulation({stages}) or use ShardedExecution."
                )
        elif options.device_iterations < depth:
            raise backend_error(
                f"deviceIterations must be greater than or equal to the number of pipeline stages ({depth}), and it is "
                f"{options.device_iterations}. Call options.deviceIterations({depth}) or use ShardedExecution."
            )
        # Blocks of one stage that ask for different IPUs cannot be one step of a pipeline.
        first: Dict[int, Site] = {0: BEFORE_ANY_BLOCK} if self._has_unmarked_operators else {}
        for site in self.blocks:
            other = first.setdefault(site.stage, site)
            if other.ipu != site.ipu:
                name = "the operators before the first block" if other.block is None else f"block {other.block!r}"
                raise backend_error(
                    f"Stage {site.stage} of the pipeline is on two IPUs: {name} on {other.ipu}, block {site.block!r} "
                    f"on {site.ipu}. Give them one IPU, or list them as two stages."
                )
