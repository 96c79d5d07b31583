"""Layers put on IPUs without an edit of the model: forward hooks open PopTorch blocks where stages begin."""

from __future__ import annotations

from collections import Counter
from typing import (
    TYPE_CHECKING,
    Any,
    Dict,
    List,
    Mapping,
    Optional,
    Protocol,
    Sequence,
    Tuple,
    Union,
    runtime_checkable,
)

from torch import nn

from ignite_ipu import backend
from ignite_ipu.errors import PlanError
from ignite_ipu.pipeline.costs import checks
from ignite_ipu.pipeline.costs.machine import MK2, Machine
from ignite_ipu.pipeline.placing.applied import AppliedPlacement, Start, order_text
from ignite_ipu.pipeline.profiling.layers import Granularity, layer_names, names_of, select_layers
from ignite_ipu.pipeline.profiling.profile import Profile
from ignite_ipu.poptorch_types import Options
from ignite_ipu.program.config import EXECUTIONS

if TYPE_CHECKING:
    from ignite_ipu.pipeline.costs.stages import Strategy

Entry = Union[str, int, Tuple[Union[str, int], int]]
Spec = Union[Sequence[Entry], Mapping[Union[str, int], int], "Planned", "Placement"]
"""Arguments of `Placement.of`: see there."""


@runtime_checkable
class Planned(Protocol):
    """Object that says by itself how a model runs on several IPUs, as a `Plan` does."""

    @property
    def execution(self) -> str: ...
    @property
    def strategy(self) -> Strategy: ...
    @property
    def replicas(self) -> int: ...
    @property
    def training(self) -> bool: ...
    def placement(self) -> Placement: ...
    def factors(self) -> Dict[str, int]: ...


class Placement:
    """Places in a model at which stages begin, and how the stages are executed.

    Operators before the first start run with the first stage. Training and inference each take their own placement.

    Args:
        starts: One per stage, in the order of execution.
        execution: One of `EXECUTIONS`.
        loss_ipu: IPU of the loss, if it is not to stay with the last stage.

    Raises:
        PlanError: No starts, a layer listed twice, IPUs that leave gaps, or an unknown execution.
    """

    def __init__(self, starts: Sequence[Start], execution: str = "pipelined", loss_ipu: Optional[int] = None) -> None:
        if execution not in EXECUTIONS:
            raise PlanError(f"Execution is {execution!r}; it must be one of: {', '.join(EXECUTIONS)}.")
        if not starts:
            raise PlanError("A placement needs at least one layer to start at, and the list is empty.")
        block, uses = Counter(start.block for start in starts).most_common(1)[0]
        if uses > 1:
            raise PlanError(
                f"Layer {block!r} is used twice in the placement; a layer runs on one IPU, so name it once."
            )
        used = {start.ipu for start in starts} | ({loss_ipu} if loss_ipu is not None else set())
        if used != set(range(len(used))):
            raise PlanError(f"The placement uses IPUs {sorted(used)}; number them from 0 without gaps.")
        self.starts = tuple(starts)
        self.execution = execution
        self.loss_ipu = loss_ipu

    @classmethod
    def of(
        cls,
        model: nn.Module,
        spec: Spec,
        *,
        execution: str = "pipelined",
        granularity: Granularity = "blocks",
        loss_ipu: Optional[int] = None,
    ) -> Placement:
        """Understand a short description.

        Args:
            spec: A plan or a placement, taken as it is; or a list, in one of these forms. Layer names, or indices into
                `select_layers(model, granularity)` of which the first is 0: a stage begins at each, on the next IPU; a
                pair `(layer, ipu)` names the IPU. A name may be a range, `layers.0-3`: the stage has these of their
                container, and the next one in it begins behind them. Or layers per IPU, where one or more -1 share the
                remaining layers, as `[4, -1, -1, 4]`: earlier wildcards get the odd ones. The two lists of numbers
                cannot be confused, since no IPU gets 0 layers. Or a mapping of layers to IPUs, in any order.
            execution: One of `EXECUTIONS`.
            granularity: Which modules count as layers for indices and layers per IPU.
            loss_ipu: IPU of the loss, if it is not to stay with the last stage.

        A layer that shares a weight with an earlier one on another IPU begins a stage of its own on that IPU, so that
        the weight stays in one place.

        Raises:
            PlanError: An unknown layer, one used twice, layers out of their order, or numbers that do not fit the
                model.
        """
        if isinstance(spec, Placement):
            return spec
        if isinstance(spec, Planned):
            return spec.placement()
        entries: List[Entry] = list(spec.items() if isinstance(spec, Mapping) else spec)
        if "phased" in execution and (loss_ipu is not None or any(isinstance(e, tuple) for e in entries)):
            raise PlanError(f"Phases run where {execution} execution puts them; name layers without IPUs.")
        if entries and all(isinstance(e, int) for e in entries) and entries[0] != 0:
            names = layer_names(model, granularity)
            counts = layers_per_ipu([e for e in entries if isinstance(e, int)], len(names))
            starts = [Start(names[sum(counts[:ipu])], ipu) for ipu in range(len(counts))]
        else:
            starts = _starts(model, entries, granularity)
            if isinstance(spec, Mapping) and not any(start.call for start in starts):
                layers = [name for name, _ in model.named_modules()]
                starts.sort(key=lambda start: layers.index(start.layer))
        order = _execution_order(model, starts, granularity)
        return cls(_with_shared(model, starts, order), execution, loss_ipu)

    @property
    def blocks(self) -> Tuple[str, ...]:
        """Block ids in the order of execution, the loss's last if it has one of its own."""
        ids = tuple(start.block for start in self.starts)
        return ids if self.loss_ipu is None else (*ids, "loss")

    @property
    def ipus(self) -> Tuple[int, ...]:
        """The IPU of each block; phases run serially on IPU 0, or in turn on the IPUs 0 and 1."""
        if self.execution == "serial phased":
            return (0,) * len(self.blocks)
        if self.execution == "parallel phased":
            return tuple(phase % 2 for phase in range(len(self.blocks)))
        ids = tuple(start.ipu for start in self.starts)
        return ids if self.loss_ipu is None else (*ids, self.loss_ipu)

    @property
    def ipus_per_replica(self) -> int:
        return 1 + max(self.ipus)

    @property
    def stages(self) -> int:
        """Pipeline stages as PopTorch counts them: neighbours on one IPU are one stage, and the first IPU is 0."""
        return 1 + sum(before != after for before, after in zip((0, *self.ipus), self.ipus))

    def strategy(self) -> Any:
        """Return a new `poptorch` execution strategy, for `Options.setExecutionStrategy`."""
        poptorch = backend.poptorch()
        stages = [poptorch.Stage(block).ipu(ipu) for block, ipu in zip(self.blocks, self.ipus)]
        kind = getattr(poptorch, f"{self.execution.title().replace(' ', '')}Execution")
        return kind(*(map(poptorch.Phase, stages) if "phased" in self.execution else stages))

    def layers(self, model: nn.Module) -> List[str]:
        """Return the model's layers with those among them at which stages begin, for `measure`."""
        return _execution_order(model, self.starts, "blocks")

    def without_loss(self) -> Placement:
        """Return the placement of the same model at inference: without the loss's block, and IPUs that only it used."""
        used = sorted({start.ipu for start in self.starts})
        starts = [Start(start.layer, used.index(start.ipu), start.call) for start in self.starts]
        return Placement(starts, self.execution)

    def begin_loss(self) -> None:
        """Open the loss's block; call it between the model's forward and the loss. Does nothing without `loss_ipu`."""
        if self.loss_ipu is not None:
            backend.poptorch().Block.start("loss", self.ipus[-1])

    def apply(self, model: nn.Module) -> AppliedPlacement:
        """Hook into the model; the result removes the hooks again, by `remove()` or at the end of a `with` block.

        Parameters, buffers, `state_dict` keys and forwards stay as they are. A run of the model raises `PlanError` when
        a start is reached out of order or not at all, or when layers on different IPUs use one weight.

        Raises:
            PlanError: A layer that the model does not have.
        """
        return AppliedPlacement(self.starts, self.ipus, model, self.begin_loss)

    def problems(
        self,
        *,
        training: bool = True,
        accumulation: int = 1,
        device_iterations: int = 1,
        replicas: int = 1,
        available: Optional[int] = None,
        machine: Machine = MK2,
        profile: Optional[Profile] = None,
    ) -> List[str]:
        """Return everything that would keep a run with these settings from compiling.

        Args:
            available: IPUs there are; as many as one process may request by default.
            profile: The measured model; with it, names, their order and shared weights are checked too.
        """
        count = machine.ipus_per_process if available is None else available
        found = [
            self.depth_problem(training, accumulation, device_iterations),
            checks.replication_problem(self.ipus_per_replica, replicas, count, machine),
        ]
        if profile is not None:
            try:
                sizes = self.sizes(profile)
            except PlanError as error:
                found.append(str(error))
            else:
                ipus = [start.ipu for start, size in zip(self.starts, sizes) for _ in range(size)]
                found += checks.shared_weight_problems(profile, ipus)
        return [problem for problem in found if problem]

    def depth_problem(self, training: bool, accumulation: int, device_iterations: int) -> Optional[str]:
        """Return the problems of so few micro-batches per weight update or, at inference, per call."""
        if self.execution != "pipelined" or self.ipus_per_replica == 1:
            return None
        if training:
            return checks.accumulation_problem(self.stages, accumulation)
        return checks.device_iterations_problem(self.stages, device_iterations)

    def sizes(self, profile: Profile) -> List[int]:
        """Return how many of a profile's layers each stage has.

        Raises:
            PlanError: The profile lacks a layer of the placement, or has them in another order.
        """
        places = [profile.index(start.block) for start in self.starts]
        for before, after, early, late in zip(places, places[1:], self.starts, self.starts[1:]):
            if after < before:
                raise PlanError(order_text(late.block, early.block))
        return [end - begin for begin, end in zip([0, *places[1:]], [*places[1:], len(profile.layers)])]

    def __repr__(self) -> str:
        starts = ", ".join(f"{block} -> IPU {ipu}" for block, ipu in zip(self.blocks, self.ipus))
        return f"Placement({self.execution}: {starts})"


def configure(plan: Planned, options: Options) -> Options:
    """Set strategy, batching factors, replicas and tensor locations of `options` as the plan says, and return them.

    Args:
        plan: A plan that fits.
        options: Unfrozen `poptorch.Options`; training plans are for training options.

    Raises:
        PlanError: The plan has problems.
    """
    options.setExecutionStrategy(plan.placement().strategy())
    factors = plan.factors()
    options.deviceIterations(factors["device_iterations"])
    options.replicationFactor(factors["replication_factor"])
    if plan.training:
        options.Training.gradientAccumulation(factors["gradient_accumulation_steps"])
        save_memory(plan.strategy, plan.replicas, options)
    return options


def save_memory(strategy: Strategy, replicas: int, options: Options) -> None:
    """Set a training strategy's place of the optimizer's state and its recomputation."""
    shard = strategy.shard_optimizer and replicas > 1
    if strategy.offload_optimizer or shard:
        settings = backend.poptorch().TensorLocationSettings()
        if strategy.offload_optimizer:
            settings.useOnChipStorage(False)
        if shard:
            settings.useReplicatedTensorSharding(True)
        options.TensorLocations.setOptimizerLocation(settings)
    if strategy.recompute:
        options._Popart.set("autoRecomputation", 3)  # `RecomputationType.Pipeline`; PopTorch takes no enumerators


def layers_per_ipu(counts: Sequence[int], layers: int) -> List[int]:
    """Replace each -1 by its share of the layers that the other IPUs leave; earlier ones get one more where it is odd.

    Raises:
        PlanError: An entry that is neither -1 nor positive, or counts that do not add up to `layers`.
    """
    for count in counts:
        if count < 1 and count != -1:
            raise PlanError(
                f"Layers per IPU are {list(counts)}, but {count} is neither a number of layers nor the wildcard -1."
            )
    wild = counts.count(-1)
    left = layers - sum(counts) - wild
    if left < wild or (wild == 0 and left != 0):
        total = f"{layers - left} layers" + (f" and {wild} wildcards of at least 1" if wild else "")
        raise PlanError(
            f"Layers per IPU are {list(counts)}, which is {total}, but the model has {layers} layers. Make them add "
            "up, or use -1 for the rest."
        )
    shares = [left // wild + (n < left % wild) for n in range(wild)]
    return [shares.pop(0) if count == -1 else count for count in counts]


def _starts(model: nn.Module, entries: Sequence[Entry], granularity: Granularity) -> List[Start]:
    names = layer_names(model, granularity)
    # The model itself goes by the name of its class.
    known = {*names, type(model).__name__, *(name for name, _ in model.named_modules() if name)}
    starts, ranges = [], []
    for number, entry in enumerate(entries):
        pair: Tuple[Any, Any] = entry if isinstance(entry, tuple) else (entry, number)
        layer, ipu = pair
        if isinstance(ipu, bool) or not isinstance(ipu, int) or ipu < 0:
            raise PlanError(f"Layer {layer!r} is placed on {ipu!r}; IPUs are numbered from 0.")
        if isinstance(layer, int):
            if not 0 <= layer < len(names):
                raise PlanError(
                    f"Layer index {layer} does not exist: {type(model).__name__} has {len(names)} layers, from 0."
                )
            layer = names[layer]
        module, _, call = layer.partition("#")
        held = names_of(model, module)
        if held != [module]:
            ranges.append((module, held))
            module = held[0]
        if module not in known:
            raise PlanError(f"{type(model).__name__} has no layer named {layer!r}. Its layers are: {', '.join(names)}.")
        if call and not (call.isdigit() and int(call) > 1):
            raise PlanError(f"Layer {layer!r} names no call; the second call of a module ends in #2, the third in #3.")
        starts.append(Start(module, ipu, int(call) - 1 if call else 0))
    for text, held in ranges:
        _check_range(text, held, [*known], [start.layer for start in starts])
    return starts


def _check_range(text: str, held: Sequence[str], known: Sequence[str], starts: Sequence[str]) -> None:
    """Refuse a range that says something else than where the stages begin."""
    container, _, last = held[-1].rpartition(".")
    follower = f"{container}.{int(last) + 1}".lstrip(".")
    inside = [
        layer for layer in starts if layer != held[0] and any(f"{layer}.".startswith(f"{each}.") for each in held)
    ]
    if inside:
        raise PlanError(
            f"{text!r} is one stage's, but another one begins at {inside[0]!r}. Let the ranges not overlap."
        )
    if follower in known and follower not in starts:
        raise PlanError(
            f"{text!r} ends before {follower!r}, at which no stage begins, so that it would run with them. Name it, or "
            "make the range longer."
        )


def _execution_order(model: nn.Module, starts: Sequence[Start], granularity: Granularity) -> List[str]:
    """Return layer names with the starts among them, in the order of registration."""
    wanted = {*select_layers(model, granularity), *(start.layer for start in starts)}
    return [name for name, _ in model.named_modules() if name in wanted]


def _with_shared(model: nn.Module, starts: Sequence[Start], names: Sequence[str]) -> List[Start]:
    """Add stages for layers that share a parameter with an earlier layer on another IPU."""
    result = list(starts)
    begins = {start.layer: start for start in starts if start.call == 0}
    ipu = starts[0].ipu if starts else 0
    owners: Dict[int, int] = {}
    held = _held_parameters(model, names)
    for name in names:
        if name in begins:
            ipu = begins[name].ipu
        shared = [owners[id(p)] for p in held[name] if id(p) in owners]
        if shared and shared[0] != ipu:
            ipu = shared[0]
            if name in begins:
                result[result.index(begins[name])] = Start(name, ipu)
            else:
                ahead = [n for n in names[: names.index(name)] if n in begins]
                place = 1 + max((result.index(begins[n]) for n in ahead), default=-1)
                result.insert(place, Start(name, ipu))
        for parameter in held[name]:
            owners.setdefault(id(parameter), ipu)
    return result


def _held_parameters(model: nn.Module, names: Sequence[str]) -> Dict[str, List[nn.Parameter]]:
    """Return the parameters of each layer, without those of layers within it that are in the list, too."""
    held: Dict[str, List[nn.Parameter]] = {name: [] for name in names}
    for path, module in model.named_modules(remove_duplicate=False):
        layer = path
        while layer and layer not in held:
            layer = layer.rpartition(".")[0]
        if layer in held:
            held[layer] += module.parameters(recurse=False)
    return held
