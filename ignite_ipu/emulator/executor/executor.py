"""`PoplarExecutor`: a model wrapped for training or inference, as PopTorch hands it out."""

from __future__ import annotations

import copy
from datetime import timedelta
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence

import torch
from torch import nn

from ignite_ipu.emulator.device.device import Meter
from ignite_ipu.emulator.enums import ConnectionType
from ignite_ipu.emulator.errors import Error, cut_long_message, python_error
from ignite_ipu.emulator.executor import saving
from ignite_ipu.emulator.executor.device_state import DeviceState
from ignite_ipu.emulator.executor.observation import Observation
from ignite_ipu.emulator.files.cache import compile_turn
from ignite_ipu.emulator.logs import logger
from ignite_ipu.emulator.options import Options
from ignite_ipu.emulator.options.compile_checks import check_at_compile
from ignite_ipu.emulator.options.root import resolved
from ignite_ipu.emulator.runtime.call_times import Latency, Times
from ignite_ipu.emulator.runtime.optimizer_tracker import OptimizerTracker
from ignite_ipu.emulator.runtime.program import DeviceProgram
from ignite_ipu.emulator.trace.annotations import module_repr
from ignite_ipu.emulator.trace.isolation import unaffected
from ignite_ipu.emulator.values.arguments import (
    ArgsParser,
    Arguments,
    CallableModel,
    Shapes,
    check_call,
    check_for_compile,
    fits,
)
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
        self._meter = Meter()
        self._is_offline = self._options._is_offline()
        # Private in PopTorch, as `_executable_inputs` is, and read by Lightning and Optimum: the compiled program.
        self._executable: Optional[DeviceProgram] = None
        self._plain: Optional[Shapes] = None
        # Of the last run.
        self._anchored: Dict[str, torch.Tensor] = {}
        self._times = Times()
        self._observation = Observation(self._options, model.training)
        self._device_state = DeviceState(self._user_model, self._model, self._options, self._observation, self._meter)
        self._optimizer: Optional[OptimizerTracker] = None
        self.per_replica_params: Dict[str, Setting] = {}
        if training:
            assert optimizer is not None
            self.setOptimizer(optimizer)
            self._device_state.wrapping = wrapping = Wrapping(self._user_model, self)
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

    @property
    def _executable_inputs(self) -> Optional[Arguments]:
        return None if self._executable is None else self._executable.arguments

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> Any:
        """Load a state into the user's model, then upload it when attached; return the result of torch's method."""
        result = self._user_model.load_state_dict(state_dict, strict=strict)
        if self.isAttachedToDevice():
            self.copyWeightsToDevice()
        return result

    @unaffected
    def copyWeightsToHostIfNeeded(self) -> bool:
        """Download the weights if the device's are newer than the host's, and return whether that happened."""
        if not self._device_state.device_is_newer:
            return False
        self.copyWeightsToHost()
        return True

    @unaffected
    def copyWeightsToHost(self) -> None:
        """Download parameters and buffers into the host's tensors.

        Raises:
            Error: The model is not compiled.
        """
        self._device_state.to_host(self._compiled("copyWeightsToHost"))

    @unaffected
    def copyWeightsToDevice(self) -> None:
        """Upload the host's parameters and buffers; updates of the device since the last download are lost.

        Raises:
            Error: The model is not compiled.
        """
        self._device_state.to_device(self._compiled("copyWeightsToDevice"))

    @unaffected
    def copyNamedBuffersToDevice(self) -> None:
        """Upload the buffers that `Options.updatableNamedBuffers` lists.

        Raises:
            Error: The model is not compiled, no buffers are listed, or one is not on the device.
        """
        self._device_state.buffers_to_device(self._compiled("copyNamedBuffersToDevice"))

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
        if self._optimizer is not None:
            self._optimizer.set(optimizer)
            return
        state = self._device_state
        self._optimizer = state.optimizer = OptimizerTracker(
            optimizer, self._options, self._meter, lambda: state.fail_on_demand("copy", self._executable)
        )

    def isCompiled(self) -> bool:
        return self._executable is not None

    @unaffected
    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compile for these arguments without running; on a compiled model only a warning is logged."""
        if self._executable is not None:
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
        if self._executable is None:
            raise AssertionError("Model must be compiled before calling getTensorNames().")
        return self._executable.tensor_names()

    def getAnchoredTensor(self, short_name: str) -> torch.Tensor:
        """Return the value that an anchored tensor had in the last run, stacked as the output mode says.

        A weight's gradient is that of each micro-batch and replica alone, as the backward pass leaves it: in the
        weight's type, and multiplied with the loss scaling. It is stacked along dimension 0 by the output mode of the
        model, not by the anchor's own. An updated weight is the one after the last update.

        Raises:
            AssertionError: No such anchor, or the model has not run.
        """
        if short_name not in self._anchored:
            raise AssertionError(
                f"No tensor with name {short_name!r}: known after the last run are {sorted(self._anchored)}. "
                "Anchors are set with Options.anchorTensor before wrapping."
            )
        return self._anchored[short_name]

    def compilationTime(self) -> timedelta:
        """Return how long the last compilation took.

        Raises:
            Error: The model is not compiled, or compilation was not observed.
        """
        if self._executable is None:
            raise python_error("You must compile the model before obtaining the compilation time.")
        if not self._options._show_compilation_progress_bar:
            raise python_error("Please set showCompilationProgressBar in Options to obtain the compilation time.")
        return timedelta(seconds=self._observation.compilation_seconds)

    @unaffected
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the program on one batch and return the results of forward, stacked by the output mode.

        Raises:
            AssertionError: The device is offline, the arguments do not fit forward, or the batch cannot be cut.
            Error: The graph cannot be compiled, or the arguments are not like the compiled ones.
        """
        program, plain = self._executable, self._plain
        if program is not None and plain is not None and not kwargs and fits(plain, args):
            arguments = None
        else:
            if self._is_offline:
                raise AssertionError("Trying to run a model on an offline device (ConnectionType.Never).")
            arguments = self._args_parser.bind(args, kwargs)
            if program is None:
                program = self._compile(arguments)
        observation = self._observation
        if observation.is_off:
            try:
                return self._run(program, arguments, args)
            except Error as error:
                cut_long_message(error, self._options.log_dir)
                raise
        with observation.call("modelExecution"):
            return self._run(program, arguments, args)

    def isAttachedToDevice(self) -> bool:
        return self._executable is not None and self._executable.attached

    @unaffected
    def attachToDevice(self) -> None:
        """Take the IPUs and upload weights, optimizer and random state.

        Raises:
            AssertionError: The device is offline.
            Error: Not compiled, already attached, or no IPUs are free.
        """
        program = self._compiled("attachToDevice")
        if self._is_offline:
            raise AssertionError("Trying to attach to an offline device (ConnectionType.Never).")
        if program.attached:
            raise python_error("Device is already attached.")
        self._device_state.load(program, self)

    @unaffected
    def detachFromDevice(self) -> None:
        """Download state that only the device has, and release the IPUs.

        Raises:
            Error: Not compiled, or not attached.
        """
        program = self._compiled("detachFromDevice")
        if not program.attached:
            raise python_error("Device is not attached.")
        self._detach(program)

    @unaffected
    def destroy(self) -> None:
        """Download state that only the device has, free everything and unwrap the model; nothing when not compiled.

        Raises:
            Error: The model was compiled again after an earlier destroy(), and is no longer wrapped.
        """
        program = self._executable
        if program is None:
            return
        if program.attached:
            self._detach(program)
        self._executable = None
        if self._optimizer is not None:
            self._optimizer.forget_program()
        if self._device_state.wrapping is not None:
            self._device_state.wrapping.undo()

    @property
    def rng_state(self) -> Optional[List[int]]:
        """The device's random state, `[seed, state...]`; set it to continue a stream.

        Before the first run it is the value set, or `[seed]` of the options, or else None.

        Raises:
            Error: The model is not compiled.
        """
        return self._device_state.read_random(self._compiled("rng_state"))

    @rng_state.setter
    def rng_state(self, state: List[int]) -> None:
        program = self._compiled("rng_state")
        # Noted first: of a device that does not answer, nothing newer is expected then.
        self._device_state.set_random(state)
        if program.attached:
            self._device_state.check_answers()
            program.random.write(state)

    def save(self, filename: str, export_model: bool = True, save_rng_state: bool = True) -> None:
        """Write the compiled program, and with `export_model` the model, to a file that `poptorch.load` reads.

        Raises:
            AssertionError: The directory does not exist.
            Error: The model is not compiled, or its options hold an object of the user's own class.
        """
        program = self._compiled("save")
        model: Optional[Dict[str, Any]] = None
        if export_model:
            self.copyWeightsToHostIfNeeded()
            optimizer = None if self._optimizer is None else self._optimizer.read_back()
            model = {"model": self._user_model, "optimizer": optimizer}
        random_state = self.rng_state if save_rng_state else None
        saving.save(filename, program, self._options, self._training, model, random_state)

    def compileAndExport(self, filename: str, *args: Any, export_model: bool = True, **kwargs: Any) -> None:
        """Compile for these arguments, then `save`."""
        self.compile(*args, **kwargs)
        self.save(filename, export_model)

    def loadExecutable(self, filename: str) -> None:
        """Take the program from a file that `save` wrote instead of compiling; forward is traced once all the same.

        Raises:
            Error: The file is damaged, of another version, or was made from another model or with other options.
        """
        if self._executable is not None:
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
        return self._times.counters()

    def getLatency(self) -> Latency:
        """Return (min, max, average) seconds from the first input to the last output."""
        return self._times.latency()

    def getHostIpuLatency(self) -> Latency:
        """Return (min, max, average) seconds that the inputs took to reach the device."""
        return 0.0, 0.0, 0.0  # as `Times` explains

    def getComputeLatency(self) -> Latency:
        """Return (min, max, average) seconds from the last input's arrival to the last output's start."""
        return self._times.latency()

    def getIpuHostLatency(self) -> Latency:
        """Return (min, max, average) seconds that the outputs took to reach the host."""
        return 0.0, 0.0, 0.0  # likewise

    def _run(self, program: DeviceProgram, arguments: Optional[Arguments], given: Sequence[torch.Tensor]) -> Any:
        """Run on `arguments`, or on `given` alone where these are tensors known to fit."""
        state, optimizer = self._device_state, self._optimizer
        if not program.attached:
            state.load(program, self)
        if not self._training:
            state.refresh(program)
        if arguments is not None:
            check_call(program.arguments, arguments)
        if optimizer is not None and optimizer.pending is not None:
            # PopTorch sends the weights along with an optimizer state that was loaded on the host.
            self.copyWeightsToHostIfNeeded()
            optimizer.send_pending_state()
            program.upload()
        state.fail_on_demand("call", program)
        if arguments is not None:
            given = arguments.tensors_like(program.arguments)
        inputs = program.to_device(given)
        # A call that fails may have changed all of this before it did.
        state.device_is_newer = self._training
        state.random_is_stale = True
        if optimizer is not None:
            optimizer.before_run()
        result, self._anchored, self._times = program.call(inputs, given)
        if program.report is not None and program.report.is_due:
            self._observation.write_report(program, self._meter)
        return result

    def _compiled(self, what: str) -> DeviceProgram:
        if self._executable is None:
            raise python_error(
                f"{what} needs a compiled model: this one has not been compiled or has been destroyed. "
                "Call it, or compile(), first."
            )
        return self._executable

    def _compile(self, arguments: Arguments, adopt: Optional[Callable[[DeviceProgram], None]] = None) -> DeviceProgram:
        """Compile; `adopt` passes earlier results to the program, before it is loaded."""
        if adopt is None:
            check_for_compile(arguments)
        check_at_compile(self._options, self._training)
        self._device_state.fetch()
        with self._observation.progress() as progress:
            with self._observation.compilation():
                with compile_turn(self._options, self._model):
                    program = DeviceProgram(
                        model=self._model,
                        arguments=arguments,
                        options=self._options,
                        training=self._training,
                        optimizer=self._optimizer,
                        per_replica=self.per_replica_params,
                        meter=self._meter,
                    )
                if adopt is not None:
                    adopt(program)
                self._observation.report = program.report
            progress(1, 2)
            self._executable = program
            self._plain = None if self._is_offline else self._args_parser.shapes_of_tensors(program.arguments)
            self._meter.add(compiles=1)
            self._device_state.wrap_again()
            try:
                if self._options.connection_type == ConnectionType.Always and program.needs_ipu:
                    self._device_state.load(program, self)
            except Error:
                self._executable = None
                raise
            progress(2, 2)
        return program

    def _detach(self, program: DeviceProgram) -> None:
        # Each of these may fail, and then the IPUs are not given back.
        self._device_state.read_random(program)
        self.copyWeightsToHostIfNeeded()
        if self._optimizer is not None:
            self._optimizer.keep_state()
        self._device_state.leave(program)
