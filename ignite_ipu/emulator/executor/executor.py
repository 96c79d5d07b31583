"""`PoplarExecutor`: a model wrapped for training or inference, as PopTorch hands it out."""

from __future__ import annotations

import copy
from datetime import timedelta
from typing import Any, Callable, Dict, List, Mapping, Optional

import torch
from torch import nn

from ignite_ipu.emulator.errors import python_error
from ignite_ipu.emulator.executor import saving
from ignite_ipu.emulator.executor.lifecycle import Lifecycle
from ignite_ipu.emulator.logs import logger
from ignite_ipu.emulator.options import Options
from ignite_ipu.emulator.options.root import resolved
from ignite_ipu.emulator.runtime.call_times import Latency
from ignite_ipu.emulator.runtime.compilation import CompiledModel
from ignite_ipu.emulator.runtime.optimizer_tracker import OptimizerTracker
from ignite_ipu.emulator.runtime.program import DeviceProgram
from ignite_ipu.emulator.trace.annotations import module_repr
from ignite_ipu.emulator.trace.isolation import unaffected
from ignite_ipu.emulator.values.arguments import ArgsParser, Arguments, CallableModel, fits
from ignite_ipu.emulator.values.replica_groups import Setting, TopLevelParameter
from ignite_ipu.emulator.values.wrapping import Wrapping
from ignite_ipu.torch_names.modules import PARAMETERS


class PoplarExecutor:
    """A model wrapped for the IPU; `trainingModel` and `inferenceModel` make them.

    Calling it runs deviceIterations * gradientAccumulation * replicationFactor micro-batches on the device. The first
    call compiles. Attributes that this class does not define are those of the user's model. Methods that need a
    compiled program raise an
    `Error` where there is none.
    """

    def __init__(
        self,
        model: nn.Module,
        options: Optional[Options],
        training: bool,
        poptorch_version: str,
        optimizer: Optional[torch.optim.Optimizer] = None,
        user_model: Optional[nn.Module] = None,
    ) -> None:
        self._training = training
        self._options = resolved(options, training)
        self._args_parser = ArgsParser(model)
        # The traced object: a shallow copy, which shares everything but the model's own attributes.
        given: Any = model
        self._model = copy.copy(model) if isinstance(given, nn.Module) else CallableModel(given)
        # An evaluation gets a shallow copy, with a training flag of its own.
        is_copy = not training and isinstance(model, nn.Module)
        self._user_model = self._model if is_copy else model if user_model is None else user_model
        self._life = Lifecycle(self._options, training, self._model, self._user_model, model.training)
        self.per_replica_params: Dict[str, Setting] = {}
        if training:
            assert optimizer is not None
            self.setOptimizer(optimizer)
            self._life.state.wrapping = wrapping = Wrapping(self._user_model, self)
            self.PoptorchParameter = wrapping.parameter_class
            self.PoptorchBuffer = wrapping.buffer_class

    def __getattr__(self, attr: str) -> Any:
        if attr.startswith("_") and "_user_model" not in self.__dict__:
            raise AttributeError(attr)
        value = getattr(self._user_model, attr)
        if isinstance(value, nn.Parameter) and attr in self._user_model.__dict__[PARAMETERS]:
            return TopLevelParameter(value, attr, self.per_replica_params, self.isCompiled)
        return value

    def __deepcopy__(self, memo: Any) -> PoplarExecutor:
        # In PopTorch the copy looks its own attributes up without end.
        raise RecursionError("An executor cannot be deep-copied: copy the model's state_dict() and wrap another model.")

    def __repr__(self) -> str:
        return module_repr(self._user_model)

    @property
    def model(self) -> nn.Module:
        """The user's model; for inference the shallow copy of it that is traced."""
        return self._user_model if self._training else self._model

    @property
    def options(self) -> Options:
        """The executor's own frozen copy of the options, with the output mode resolved."""
        return self._options

    @property
    def _is_attached(self) -> bool:
        return self.isAttachedToDevice()

    # Private in PopTorch, and read by Lightning and Optimum.
    @property
    def _executable(self) -> Optional[DeviceProgram]:
        return self._life.program

    @property
    def _executable_inputs(self) -> Optional[Arguments]:
        return None if self._life.program is None else self._life.program.compiled.arguments

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> Any:
        """Load a state into the user's model, then upload it when attached; return the result of torch's method."""
        result = self._user_model.load_state_dict(state_dict, strict=strict)
        if self.isAttachedToDevice():
            self.copyWeightsToDevice()
        return result

    @unaffected
    def copyWeightsToHostIfNeeded(self) -> bool:
        """Download the weights if the device's are newer than the host's, and return whether that happened."""
        return self._life.state.device_is_newer and self._life.state.fetch_if_newer(
            self._life.required("copyWeightsToHost")
        )

    @unaffected
    def copyWeightsToHost(self) -> None:
        """Download parameters and buffers into the host's tensors.

        Raises:
            Error: The model is not compiled.
        """
        self._life.state.to_host(self._life.required("copyWeightsToHost"))

    @unaffected
    def copyWeightsToDevice(self) -> None:
        """Upload the host's parameters and buffers; updates of the device since the last download are lost.

        Raises:
            Error: The model is not compiled.
        """
        self._life.state.to_device(self._life.required("copyWeightsToDevice"))

    @unaffected
    def copyNamedBuffersToDevice(self) -> None:
        """Upload the buffers that `Options.updatableNamedBuffers` lists.

        Raises:
            Error: The model is not compiled, no buffers are listed, or one is not on the device.
        """
        self._life.state.buffers_to_device(self._life.required("copyNamedBuffersToDevice"))

    def setOptimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Read the optimizer's hyper-parameters again and send them to the device if they changed.

        Raises:
            AssertionError: The optimizer's type or a value is not supported.
            ValueError: A setting is not supported.
            Error: A constant was changed, or the compiled program is for another optimizer.
        """
        if not self._training:
            raise AttributeError(
                f"'{type(self._user_model).__name__}' object has no attribute '_attribute_tracker': an inference "
                "executor has no optimizer to set."
            )
        life = self._life
        if life.state.optimizer is not None:
            life.state.optimizer.set(optimizer)
            return
        life.state.optimizer = OptimizerTracker(
            optimizer, self._options, life.meter, lambda: life.state.fail_on_demand("copy", self._executable)
        )

    def isCompiled(self) -> bool:
        return self._life.program is not None

    @unaffected
    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compile for these arguments without running; on a compiled model only a warning is logged."""
        if self.isCompiled():
            logger.warning("Call to compile() ignored: the model is already compiled.")
            return
        self._compile(self._args_parser.bind(args, kwargs))

    def getTensorNames(self) -> List[str]:
        """Return the names of the compiled graph's tensors, each of which can be anchored.

        Parameters and buffers have the model's names. In training each trained parameter `p` that the loss depends on
        has `Gradient___p` and `UpdatedVar___p` besides.

        Raises:
            AssertionError: The model is not compiled.
        """
        program = self._life.program
        if program is None:
            raise AssertionError("Model must be compiled before calling getTensorNames().")
        return program.compiled.tensor_names()

    def getAnchoredTensor(self, short_name: str) -> torch.Tensor:
        """Return the value that an anchored tensor had in the last run, stacked as the output mode says.

        A weight's gradient is that of each micro-batch and replica alone, as the backward pass leaves it: in the
        weight's type, and multiplied with the loss scaling. It is stacked along dimension 0 by the output mode of the
        model, not by the anchor's own. An updated weight is the one after the last update.

        Raises:
            AssertionError: No such anchor, or the model has not run.
        """
        anchored = self._life.anchored
        if short_name not in anchored:
            raise AssertionError(
                f"No tensor with name {short_name!r}: known after the last run are {sorted(anchored)}. "
                "Anchors are set with Options.anchorTensor before wrapping."
            )
        return anchored[short_name]

    def compilationTime(self) -> timedelta:
        """Return how long the last compilation took.

        Raises:
            Error: The model is not compiled, or compilation was not observed.
        """
        if not self.isCompiled():
            raise python_error("You must compile the model before obtaining the compilation time.")
        if not self._options._show_compilation_progress_bar:
            raise python_error("Please set showCompilationProgressBar in Options to obtain the compilation time.")
        return timedelta(seconds=self._life.observation.compilation_seconds)

    @unaffected
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the program on one batch and return the results of forward, stacked by the output mode.

        Raises:
            AssertionError: The device is offline, the arguments do not fit forward, or the batch cannot be cut.
            Error: The graph cannot be compiled, or the arguments are not like the compiled ones.
        """
        life = self._life
        program, plain = life.program, life.plain
        if program is not None and plain is not None and not kwargs and fits(plain, args):
            arguments = None
        else:
            if life.is_offline:
                raise AssertionError("Trying to run a model on an offline device (ConnectionType.Never).")
            arguments = self._args_parser.bind(args, kwargs)
            if program is None:
                program = self._compile(arguments)
        return life.call(program, arguments, args)

    def isAttachedToDevice(self) -> bool:
        return self._life.program is not None and self._life.program.attached

    @unaffected
    def attachToDevice(self) -> None:
        """Take the IPUs and upload weights, optimizer and random state.

        Raises:
            AssertionError: The device is offline.
            Error: Not compiled, already attached, or no IPUs are free.
        """
        program = self._life.required("attachToDevice")
        if self._life.is_offline:
            raise AssertionError("Trying to attach to an offline device (ConnectionType.Never).")
        if program.attached:
            raise python_error("Device is already attached.")
        self._life.load(program)

    @unaffected
    def detachFromDevice(self) -> None:
        """Download state that only the device has, and release the IPUs.

        Raises:
            Error: Not compiled, or not attached.
        """
        program = self._life.required("detachFromDevice")
        if not program.attached:
            raise python_error("Device is not attached.")
        self._life.release(program)

    @unaffected
    def destroy(self) -> None:
        """Download state that only the device has, free everything and unwrap the model; nothing when not compiled.

        Raises:
            Error: The model was compiled again after an earlier destroy(), and is no longer wrapped.
        """
        self._life.destroy()

    @property
    def rng_state(self) -> Optional[List[int]]:
        """The device's random state, `[seed, state...]`; set it to continue a stream.

        Before the first run it is the value set, or `[seed]` of the options, or else None.

        Raises:
            Error: The model is not compiled.
        """
        return self._life.state.read_random(self._life.required("rng_state"))

    @rng_state.setter
    def rng_state(self, state: List[int]) -> None:
        program = self._life.required("rng_state")
        # Noted first: of a device that does not answer, nothing newer is expected then.
        self._life.state.set_random(state)
        if program.attached:
            self._life.state.check_answers()
            program.random.write(state)

    def save(self, filename: str, export_model: bool = True, save_rng_state: bool = True) -> None:
        """Write the compiled program, and with `export_model` the model, to a file that `poptorch.load` reads.

        Raises:
            AssertionError: The directory does not exist.
            Error: The model is not compiled, or its options hold an object of the user's own class.
        """
        program = self._life.required("save")
        model: Optional[Dict[str, Any]] = None
        if export_model:
            self.copyWeightsToHostIfNeeded()
            tracker = self._life.state.optimizer
            optimizer = None if tracker is None else tracker.read_back()
            model = {"model": self._user_model, "optimizer": optimizer}
        random_state = self.rng_state if save_rng_state else None
        saving.save(filename, program.compiled, model, random_state)

    def compileAndExport(self, filename: str, *args: Any, export_model: bool = True, **kwargs: Any) -> None:
        """Compile for these arguments, then `save`."""
        self.compile(*args, **kwargs)
        self.save(filename, export_model)

    def loadExecutable(self, filename: str) -> None:
        """Take the program from a file that `save` wrote instead of compiling; forward is traced once all the same.

        Raises:
            Error: The file is damaged, of another version, or was made from another model or with other options.
        """
        if self.isCompiled():
            logger.warning("Call to loadExecutable() ignored: the model is already compiled.")
            return
        file = saving.read_executable(filename, self._training)
        self._compile(file.compiled_arguments(), file.give_to)

    def cycleCount(self) -> int:
        """Refuse: only IPUs count cycles, and with that asked for no model compiles here.

        Raises:
            Error: Always; which one depends on the options.
        """
        if not self._options._Popart._value("instrumentWithHardwareCycleCounter", False):
            raise python_error("Cycle count logging is disabled. Call Options.logCycleCount(True) before wrapping.")
        raise python_error("You must run the model at least once before its cycle count is known.")

    def getPerfCounters(self) -> Dict[str, List[List[float]]]:
        """Return when the last call's tensors crossed, in seconds, by event, tensor and step."""
        return self._life.times.counters()

    def getLatency(self) -> Latency:
        """Return (min, max, average) seconds from the first input to the last output."""
        return self._life.times.latency()

    def getHostIpuLatency(self) -> Latency:
        """Return (min, max, average) seconds that the inputs took to reach the device."""
        return 0.0, 0.0, 0.0  # as `Times` explains

    def getComputeLatency(self) -> Latency:
        """Return (min, max, average) seconds from the last input's arrival to the last output's start."""
        return self._life.times.latency()

    def getIpuHostLatency(self) -> Latency:
        """Return (min, max, average) seconds that the outputs took to reach the host."""
        return 0.0, 0.0, 0.0  # likewise

    def _compile(self, arguments: Arguments, adopt: Optional[Callable[[CompiledModel], None]] = None) -> DeviceProgram:
        return self._life.compile(arguments, self._args_parser, self.per_replica_params, adopt)
