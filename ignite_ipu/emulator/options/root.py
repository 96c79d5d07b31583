"""`poptorch.Options`: all that can be said about how a model runs."""

from __future__ import annotations

import copy
import json
import os
from typing import Any, Dict, List, NamedTuple, Optional

import torch

from ignite_ipu.emulator.enums import CommGroupType, ConnectionType, OutputMode, SyncPattern
from ignite_ipu.emulator.logs import logger
from ignite_ipu.emulator.options import compile_checks
from ignite_ipu.emulator.options.guarded import Freezable, OptionsDict, checked
from ignite_ipu.emulator.options.parts import (
    _DistributedOptions,
    _JitOptions,
    _PrecisionOptions,
    _TensorLocationOptions,
    _TrainingOptions,
    _WithBackEnd,
)
from ignite_ipu.emulator.options.popart import _PopartOptions
from ignite_ipu.emulator.options.progress_bar import CompilationProgressBar
from ignite_ipu.emulator.options.strategies import PipelinedExecution, _IExecutionStrategy
from ignite_ipu.emulator.options.text import GROUPS, apply_file, apply_json

LOCATION_EXCLUDES = ("install/poptorch", "site-packages/torch", "site-packages/poptorch")
UNLIMITED = 2**64 - 1
_SYNTHETIC_DATA_OFF, _SYNTHETIC_DATA_NORMAL = 0, 2


def _part(name: str, about: str) -> Any:
    return property(lambda options: options.__dict__[name], doc=about)


class Options(_WithBackEnd):
    """Options of a model's run: batching, outputs, devices, placement, training.

    Setters return the object, so that they chain. A wrapped model and a `DataLoader` freeze the options they are given.

    Raises:
        ValueError: `POPTORCH_DEFAULT_OPTIONS` is no JSON object, or a variable of `Options.Distributed` no integer.
    """

    _execution_strategy: _IExecutionStrategy
    _show_compilation_progress_bar: bool
    _relax_optimizer_checks: bool
    _source_location_excludes: List[str]
    _module_namescope_enabled: bool

    def __init__(self) -> None:
        popart = _PopartOptions()
        super().__init__(
            popart,
            replication_factor=1,
            input_group_size=1,
            input_cgt=CommGroupType.Consecutive,
            broadcast_buffers=True,
            device_iterations=1,
            log_dir=".",
            max_repeat_logs=4,
            auto_round_num_ipus=False,
            anchored_tensors={},
            output_mode=OutputMode.Default.value,
            output_return_period=1,
            connection_type=ConnectionType.Always.value,
            sync_pattern=SyncPattern.Full.value,
            available_memory_proportion={},
        )
        self._declare(
            _training=_TrainingOptions(popart),
            _precision=_PrecisionOptions(popart),
            _distributed=_DistributedOptions(),
            _tensor_locations=_TensorLocationOptions(),
            _jit=_JitOptions(),
            _execution_strategy=PipelinedExecution(),
            _show_compilation_progress_bar=True,
            _relax_optimizer_checks=False,
            _source_location_excludes=list(LOCATION_EXCLUDES),
            _module_namescope_enabled=True,
        )
        cache = os.environ.get("POPTORCH_CACHE_DIR")
        if cache:
            logger.info("POPTORCH_CACHE_DIR is set: executables are cached in %s.", cache)
            self.enableExecutableCaching(cache)
        defaults = os.environ.get("POPTORCH_DEFAULT_OPTIONS")
        if defaults:
            try:
                self.from_json(defaults)
            except json.JSONDecodeError as error:
                raise ValueError(f"POPTORCH_DEFAULT_OPTIONS is no JSON ({error}): {defaults!r}.") from None

    TensorLocations: _TensorLocationOptions = _part("_tensor_locations", "Where tensors are kept.")
    Distributed: _DistributedOptions = _part("_distributed", "Which process of how many this is.")
    Jit: _JitOptions = _part("_jit", "Options of a front end that is gone.")
    Precision: _PrecisionOptions = _part("_precision", "Number formats.")
    Training: _TrainingOptions = _part("_training", "Options of training.")
    _Popart: _PopartOptions = _part("_popart_options", "Settings of the back end.")
    _popart: _PopartOptions = _part("_popart_options", "The same, by the name that some programs use.")

    def from_json(self, string: str) -> Options:
        """Make the option calls that a JSON object lists, such as `{"Training.gradientAccumulation": 4}`.

        Raises:
            ValueError: `string` is no JSON object.
            AttributeError: A key names no option.
        """
        apply_json(self, string)
        return self

    def loadFromFile(self, filepath: str) -> Options:
        """Make the option calls that a file lists, one per line and without their `options.`; see `text`.

        Raises:
            ConfigFileError: A line is no option call; no line was applied.
            FileNotFoundError: There is no file.
        """
        apply_file(self, filepath)
        return self

    def deviceIterations(self, device_iterations: int) -> Options:
        """Run so many iterations, each with its own weight update when training, in one call."""
        return self._with(device_iterations=device_iterations)

    def replicationFactor(self, replication_factor: int) -> Options:
        """Run so many copies of the model, each on its own micro-batches."""
        return self._with(replication_factor=replication_factor)

    def inputReplicaGrouping(self, input_group_size: int, input_group_type: CommGroupType) -> Options:
        """Give the replicas of one group the same input; call `replicationFactor` first.

        Raises:
            ValueError: The groups are `All`, larger than the replication factor, or no factor of it.
        """
        self.checkIsFrozen("inputReplicaGrouping")
        if input_group_type == CommGroupType.NoGrouping:
            input_group_size, input_group_type = 1, CommGroupType.Consecutive
        if input_group_type == CommGroupType.All:
            raise ValueError("The input group type cannot be All: use Consecutive with the replication factor as size.")
        replicas = self.replication_factor
        if input_group_size > replicas:
            raise ValueError(f"The input group size ({input_group_size}) cannot be larger than {replicas} replicas.")
        if input_group_size < 1 or replicas % input_group_size:
            raise ValueError(f"The input group size ({input_group_size}) must be a factor of {replicas} replicas.")
        return self._with(input_group_size=input_group_size, input_cgt=input_group_type)

    def outputMode(self, output_mode: OutputMode, output_return_period: Optional[int] = None) -> Options:
        """Choose which outputs come back.

        Args:
            output_mode: Which.
            output_return_period: For `EveryN`: every how many device iterations.

        Raises:
            AssertionError: `output_mode` is no `OutputMode`, or `EveryN` has no period.
        """
        checked("outputMode", output_mode, OutputMode)
        if output_mode is OutputMode.EveryN:
            if not output_return_period or output_return_period < 0:
                raise AssertionError(
                    "EveryN must have output_return_period, the number of device iterations from one output to the "
                    f"next; got {output_return_period!r}."
                )
        elif output_return_period is not None:
            logger.info("OutputMode.%s has no use for output_return_period=%s.", output_mode.name, output_return_period)
        return self._with(output_mode=output_mode.value, output_return_period=output_return_period or 1)

    def defaultOutputMode(self) -> bool:
        """Return whether no output mode was chosen yet."""
        return bool(self.output_mode == OutputMode.Default)

    def anchorTensor(
        self,
        short_name: str,
        long_name: str,
        output_mode: Optional[OutputMode] = None,
        output_return_period: Optional[int] = 1,
    ) -> None:
        """Return one more tensor from each call, to be had from `executor.getAnchoredTensor(short_name)`.

        Works on frozen options too, as in PopTorch: the models that use them already do not see it.

        Args:
            short_name: Your name for it.
            long_name: The name it has in the graph.
            output_mode: Which values of it; None follows the model's outputs.
            output_return_period: For `EveryN`: every how many device iterations.

        Raises:
            ValueError: `output_mode` is no `OutputMode`.
        """
        mode = OutputMode.Default if output_mode is None else OutputMode(output_mode)
        period = (output_return_period or 1) if mode is OutputMode.EveryN else 1
        self.anchored_tensors[short_name] = Anchor(long_name, output_mode is None, mode, period)

    def enableSyntheticData(self, enabled: bool) -> Options:
        """Make normal random data on the device instead of moving any; for measuring speed."""
        return self._set_back_end("syntheticDataMode", _SYNTHETIC_DATA_NORMAL if enabled else _SYNTHETIC_DATA_OFF)

    def randomSeed(self, random_seed: int) -> Options:
        """Seed the device's random numbers, and PyTorch's on the host (even on frozen options, as PopTorch does)."""
        checked("randomSeed", random_seed, int)
        torch.manual_seed(random_seed)
        return self._with(random_seed=random_seed)

    def broadcastBuffers(self, broadcast_buffers: bool = True) -> Options:
        """Start every replica from the same buffers; switch it off where `forward` changes them."""
        return self._with(broadcast_buffers=broadcast_buffers)

    def updatableNamedBuffers(self, buffers: List[str]) -> Options:
        """Let `copyNamedBuffersToDevice` replace these buffers."""
        given: Any = buffers
        if not isinstance(given, list) or not all(isinstance(name, str) for name in buffers):
            raise AssertionError(f"updatableNamedBuffers takes a list of buffer names, got {buffers!r}.")
        return self._set_back_end("updatableNamedBuffers", list(buffers))

    def enableStableNorm(self, enabled: bool) -> Options:
        """Normalise in the slower, numerically safer way."""
        return self._set_back_end("enableStableNorm", enabled)

    def relaxOptimizerAttributesChecks(self, relax: bool = True) -> Options:
        """Report unexpected optimizer attributes at debug level instead of warning."""
        return self._set_private("_relax_optimizer_checks", checked("relaxOptimizerAttributesChecks", relax, bool))

    def setExecutionStrategy(self, strategy: _IExecutionStrategy) -> Options:
        """Choose how blocks are spread over IPUs."""
        if not isinstance(strategy, _IExecutionStrategy):
            raise AssertionError(f"setExecutionStrategy takes an execution strategy, got {strategy!r}.")
        return self._set_private("_execution_strategy", strategy)

    def setAvailableMemoryProportion(self, available_memory_proportion: Dict[str, float]) -> Options:
        """Let convolutions and products use so much of an IPU's memory, e.g. `{"IPU0": 0.5}`.

        Raises:
            AssertionError: A key does not start with `IPU`.
            ValueError: No integer follows.
        """
        proportions = {}
        for key, proportion in available_memory_proportion.items():
            if not key.startswith("IPU"):
                raise AssertionError(f"Invalid key {key!r}: available memory proportions are given by IPU0, IPU1, ...")
            proportions[int(key[len("IPU") :])] = proportion
        return self._with(available_memory_proportion=proportions)

    def autoRoundNumIPUs(self, auto_round_num_ipus: bool = True) -> Options:
        """Reserve the next power of two where the model takes another number of IPUs."""
        return self._with(auto_round_num_ipus=auto_round_num_ipus)

    def connectionType(self, connection_type: ConnectionType) -> Options:
        """Choose when to take hold of IPUs."""
        return self._with(connection_type=checked("connectionType", connection_type, ConnectionType).value)

    def syncPattern(self, sync_pattern: SyncPattern) -> Options:
        """Choose which IPUs wait for which."""
        return self._with(sync_pattern=checked("syncPattern", sync_pattern, SyncPattern).value)

    def useIpuModel(self, use_model: bool) -> Options:
        """Run on the IPU model or on hardware, regardless of the environment."""
        return self._with(use_model=checked("useIpuModel", use_model, bool))

    def useIpuId(self, ipu_id: int) -> Options:
        """Run on the device with this id."""
        return self._with(ipu_id=checked("useIpuId", ipu_id, int))

    def useOfflineIpuTarget(self, ipu_version: int = 2) -> Options:
        """Compile for IPUs of a version (1, 2 or 21) without having any."""
        self.connectionType(ConnectionType.Never)
        return self._with(ipu_version=ipu_version)

    def enableExecutableCaching(self, path: Optional[str]) -> Options:
        """Keep compiled models in the directory `path`; None switches that off."""
        if path is not None:
            if self._uses_ipu_model():
                logger.warning("Executable caching doesn't work with the IPU model.")
            self._Popart.set("cachePath", path)
        return self._set_back_end("enableEngineCaching", path is not None)

    def showCompilationProgressBar(self, show: bool = True) -> Options:
        """Show how far a compilation has come."""
        return self._set_private("_show_compilation_progress_bar", checked("showCompilationProgressBar", show, bool))

    def enableProfiling(self, profile_dir: Optional[str] = None) -> Options:
        """Write a profile of each model into a sub-directory of `profile_dir`, by default of the working directory."""
        settings = {
            "debug.allowOutOfMemory": "true",
            "autoReport.directory": "." if profile_dir is None else profile_dir,
            "autoReport.all": "true",
        }
        overridden = [name for name in settings if name in os.environ.get("POPLAR_ENGINE_OPTIONS", "")]
        if overridden:
            logger.warning(
                "Profiling settings %s are overridden by environment variable POPLAR_ENGINE_OPTIONS.", overridden
            )
        self._Popart.setEngineOptions({**self._Popart._value("engineOptions", {}), **settings})
        return self

    def logCycleCount(self, log_cycle_count: bool) -> Options:
        """Count the cycles of each call, for `executor.cycleCount()`."""
        return self._set_back_end("instrumentWithHardwareCycleCounter", log_cycle_count)

    def logDir(self, log_dir: str) -> Options:
        """Write logs into a directory."""
        return self._with(log_dir=log_dir)

    def maxRepeatLogs(self, max_lines: Optional[int]) -> Options:
        """Show one message of the back end so many times at most; None is always."""
        return self._with(max_repeat_logs=UNLIMITED if max_lines is None else max_lines)

    def modelName(self, name: str) -> Options:
        """Name the model in profiles; by default "training" or "inference"."""
        return self._with(model_name=checked("modelName", name, str))

    def sourceLocationExcludes(self, excludes: List[str]) -> Options:
        """Skip stack frames whose file holds one of these texts when operators are annotated with their source."""
        return self._set_private("_source_location_excludes", list(excludes))

    def appendToLocationExcludes(self, *excludes: str) -> Options:
        """Skip stack frames whose file holds one of these texts too."""
        return self._set_private("_source_location_excludes", [*self._source_location_excludes, *excludes])

    def disableModuleNamescope(self) -> Options:
        """Leave module names out of operator names."""
        return self._set_private("_module_namescope_enabled", False)

    def toDict(self) -> Dict[str, Any]:
        """Return all settings of the back end, in one dictionary.

        Raises:
            AssertionError: No output mode was chosen, or two parts use one name.
        """
        if self.defaultOutputMode():
            raise AssertionError("An output mode must be picked before the options are handed to the back end.")
        merged: Dict[str, Any] = dict(self._execution_strategy.backendOptions())
        OptionsDict(**self._Popart.options).update(merged)
        for part in (self, self.Training, self.Distributed, self.TensorLocations):
            part.update(merged)
        if self._show_compilation_progress_bar:
            merged["compilation_progress_bar_fn"] = CompilationProgressBar()
        return merged

    def clone(self) -> Options:
        """Return an independent copy, which is not frozen."""
        return copy.deepcopy(self)

    def __repr__(self) -> str:
        own = {name: value for name, value in vars(self).items() if name not in ("_values", "_is_frozen")}
        settings = {
            **self._values,
            **{name[1:]: value for name, value in own.items() if not isinstance(value, Freezable)},
            **{part: getattr(self, part) for part in GROUPS},
        }
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in settings.items())})"

    def _freeze(self) -> None:
        super()._freeze()
        for part in GROUPS:
            getattr(self, part)._freeze()

    def _uses_ipu_model(self) -> bool:
        """Return whether these options or, where they leave it open, the environment selects the IPU model."""
        return bool(self.use_model) if self.exists("use_model") else compile_checks.selected_by_environment()

    def _is_offline(self) -> bool:
        return bool(self.connection_type == ConnectionType.Never)

    def _set_private(self, name: str, value: Any) -> Options:
        self.checkIsFrozen(name[1:])
        self.__dict__[name] = value
        return self


class Anchor(NamedTuple):
    """One tensor that `anchorTensor` asked for; the model's mode holds where none was given."""

    name: str
    unspecified: bool
    mode: OutputMode
    period: int


def resolved(options: Optional[Options], training: bool) -> Options:
    """Return an executor's own frozen copy of the options, in which the output mode is chosen."""
    own = options.clone() if options else Options()
    if own.defaultOutputMode():
        own.outputMode(OutputMode.Final if training else OutputMode.All)
    mode = OutputMode(own.output_mode)
    period = own.output_return_period if mode is OutputMode.EveryN else 1
    for short_name, anchor in own.anchored_tensors.items():
        if anchor.unspecified:
            own.anchored_tensors[short_name] = anchor._replace(mode=mode, period=period)
    own._freeze()
    return own
