"""`PoplarExecutor`: a model wrapped for training or inference, as PopTorch hands it out."""

from __future__ import annotations

import functools
import time
import weakref
from datetime import timedelta
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence

import torch
from torch import nn

from ignite_ipu.emulator import faults, latency
from ignite_ipu.emulator.arguments import Arguments, Shapes, check_call, check_for_compile, fits
from ignite_ipu.emulator.callable_model import signature_of, traced_module
from ignite_ipu.emulator.compile_turn import compile_turn
from ignite_ipu.emulator.device import Meter
from ignite_ipu.emulator.enums import ConnectionType
from ignite_ipu.emulator.errors import Error, backend_error, python_error
from ignite_ipu.emulator.isolation import unaffected
from ignite_ipu.emulator.logs import logger
from ignite_ipu.emulator.observation import Observation
from ignite_ipu.emulator.options import Options
from ignite_ipu.emulator.options.resolved import resolved
from ignite_ipu.emulator.program import Program
from ignite_ipu.emulator.replica_groups import Setting, TopLevelParameter
from ignite_ipu.emulator.tracker import OptimizerTracker
from ignite_ipu.emulator.transfer import Transfer
from ignite_ipu.emulator.wrapping import Wrapping, fetch, holder_of, is_wrapped


class PoplarExecutor:
    """A model wrapped for the IPU; `trainingModel` and `inferenceModel` make them.

    Calling it runs deviceIterations * gradientAccumulation * replicationFactor micro-batches on the device. The first
    call compiles. What this class does not define is the user's model's.
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
        self._user_model = user_model if user_model is not None else model
        self._training = training
        self._poptorch_version = poptorch_version
        self._options = resolved(options, training)
        self._signature = signature_of(model)
        self._model = traced_module(model)
        self._meter = Meter()
        self._is_offline = self._options.connection_type == ConnectionType.Never
        self._program: Optional[Program] = None
        self._plain: Optional[Shapes] = None
        self._dirty = False
        self._host_version = 0
        self._seen_version: Optional[int] = 0
        self._rng_state: Optional[List[int]] = None
        self._anchored: Dict[str, torch.Tensor] = {}
        self._transfer = Transfer()
        self._latency = latency.Record()
        self._observation = Observation(self._options, model.training)
        self._optimizer: Optional[OptimizerTracker] = None
        self._wrapping: Optional[Wrapping] = None
        self.per_replica_params: Dict[str, Setting] = {}
        if training:
            assert optimizer is not None
            self.setOptimizer(optimizer)
            self._wrapping = Wrapping(self._user_model, self)
            self.PoptorchParameter = self._wrapping.parameter_class
            self.PoptorchBuffer = self._wrapping.buffer_class

    # -- the user's model -----------------------------------------------------------------------------------------

    def __getattr__(self, attr: str) -> Any:
        if attr.startswith("_") and "_user_model" not in self.__dict__:
            raise AttributeError(attr)
        value = getattr(self._user_model, attr)
        if isinstance(value, nn.Parameter) and attr in self._user_model.__dict__["_parameters"]:
            return TopLevelParameter(value, attr, self)
        return value

    def __deepcopy__(self, memo: Any) -> PoplarExecutor:
        # In PopTorch the copy looks its own attributes up without end.
        raise RecursionError("An executor cannot be deep-copied: copy the model's state_dict() and wrap another model.")

    def __repr__(self) -> str:
        from ignite_ipu.emulator.annotations import module_repr

        return module_repr(self._user_model)

    @property
    def model(self) -> nn.Module:
        """The user's model; for inference the shallow copy of it that is traced."""
        return self._user_model if self._training else self._model

    @property
    def options(self) -> Options:
        """The executor's own frozen copy of the options, with the output mode resolved."""
        return self._options

    # Private in PopTorch, and asked by Lightning and Optimum: is there a compiled program, and for which arguments?

    @property
    def _executable(self) -> Optional[Program]:
        return self._program

    @property
    def _executable_inputs(self) -> Optional[Arguments]:
        return None if self._program is None else self._program.arguments

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> Any:
        """Load a state into the user's model, then upload it when attached; return what torch's method returns."""
        result = self._user_model.load_state_dict(state_dict, strict=strict)
        if self.isAttachedToDevice() and self.isCompiled():
            self.copyWeightsToDevice()
        return result

    # -- weights --------------------------------------------------------------------------------------------------

    @unaffected
    def copyWeightsToHostIfNeeded(self) -> bool:
        """Download the weights when the device's are newer than the host's, and tell whether that happened."""
        if not self._dirty:
            return False
        self.copyWeightsToHost()
        return True

    @unaffected
    def copyWeightsToHost(self) -> None:
        """Download parameters and buffers into the host's tensors.

        Raises:
            Error: The model is not compiled.
        """
        program = self._compiled("copyWeightsToHost")
        if program.attached:
            self._fail_on_demand("copy")
        # Off while the tensors are written to, which would ask for them again.
        dirty, self._dirty = self._dirty, False
        try:
            self._follow_model(program)
            with self._observation.call("copyWeightsToHost"):
                program.download()
        except BaseException:
            self._dirty = dirty
            raise
        self._host_version += 1

    @unaffected
    def copyWeightsToDevice(self) -> None:
        """Upload the host's parameters and buffers; what the device has learned since the last download is lost.

        Raises:
            Error: The model is not compiled.
        """
        program = self._compiled("copyWeightsToDevice")
        self._dirty = False
        if program.attached:
            self._fail_on_demand("copy")
            with self._observation.call("copyWeightsToDevice"):
                if self._optimizer is not None:
                    self._optimizer.before_weight_upload()
                self._fetch_weights()
                self._follow_model(program)
                program.upload()

    @unaffected
    def copyNamedBuffersToDevice(self) -> None:
        """Upload the buffers that `Options.updatableNamedBuffers` lists.

        Raises:
            Error: The model is not compiled, no buffers are listed, or one is not on the device.
            KeyError: A listed buffer is not the model's.
        """
        program = self._compiled("copyNamedBuffersToDevice")
        names = self._options._Popart._value("updatableNamedBuffers", [])
        if not names:
            raise python_error(
                "No named buffers marked as updatable: list them with Options.updatableNamedBuffers before compiling."
            )
        self._dirty = False
        self._fetch_weights()
        own = dict(self._model.named_buffers())
        program.upload_buffers({name: own[name] for name in names})

    # -- optimizer ------------------------------------------------------------------------------------------------

    def setOptimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Read the optimizer's hyper-parameters again and send them to the device if they changed.

        Raises:
            AssertionError: The optimizer's type or a value is not supported.
            ValueError: A setting is not supported.
            Error: A constant was changed, or the compiled program is for another optimizer.
        """
        if self._optimizer is None:
            if not self._training:
                raise AttributeError(
                    f"'{type(self._user_model).__name__}' object has no attribute '_attribute_tracker': an inference "
                    "executor has no optimizer to set."
                )
            self._optimizer = OptimizerTracker(optimizer, self._options, self._meter)
            # Weak, since whoever keeps the optimizer would otherwise keep the IPUs.
            fail = weakref.WeakMethod(self._fail_on_demand)
            self._optimizer.before_download = functools.partial(_call_if_alive, fail, "copy")
        else:
            self._optimizer.set(optimizer)

    # -- compiling ------------------------------------------------------------------------------------------------

    def isCompiled(self) -> bool:
        """Tell whether there is a compiled program."""
        return self._program is not None

    @unaffected
    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compile for these arguments without running; on a compiled model only a warning is logged."""
        if self._program is not None:
            logger.warning("Call to compile() ignored: the model is already compiled.")
            return
        self._compile(self._signature.bind(args, kwargs))

    def getTensorNames(self) -> List[str]:
        """Return the names of the compiled graph's tensors, weight gradients included when training.

        Raises:
            AssertionError: The model is not compiled.
        """
        if self._program is None:
            raise AssertionError("Model must be compiled before calling getTensorNames().")
        return self._program.tensor_names()

    def getAnchoredTensor(self, short_name: str) -> torch.Tensor:
        """Return the value that an anchored tensor had in the last run, stacked as the output mode says.

        A weight's gradient is the reduced one of the last update, whatever the output mode.

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
        if self._program is None:
            raise python_error("You must compile the model before obtaining the compilation time.")
        if not self._options._show_compilation_progress_bar:
            raise python_error("Please set showCompilationProgressBar in Options to obtain the compilation time.")
        return timedelta(seconds=self._observation.compilation_seconds)

    # -- running --------------------------------------------------------------------------------------------------

    @unaffected
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the program on one batch and return what forward returned, stacked as the output mode says.

        Raises:
            AssertionError: The device is offline, the arguments do not fit forward, or the batch cannot be cut.
            Error: The graph cannot be compiled, or the arguments are not like the compiled ones.
        """
        program, plain = self._program, self._plain
        if program is not None and plain is not None and not kwargs and fits(plain, args):
            arguments = None
        else:
            if self._is_offline:
                raise AssertionError("Trying to run a model on an offline device (ConnectionType.Never).")
            arguments = self._signature.bind(args, kwargs)
            if program is None:
                program = self._compile(arguments)
        observation = self._observation
        if observation.is_off:
            try:
                return self._run(program, arguments, args)
            except Error as error:
                observation.cut(error)
                raise
        with observation.call("modelExecution"):
            return self._run(program, arguments, args)

    # -- devices --------------------------------------------------------------------------------------------------

    def isAttachedToDevice(self) -> bool:
        """Tell whether the executor holds its IPUs."""
        return self._program is not None and self._program.attached

    @unaffected
    def attachToDevice(self) -> None:
        """Take the IPUs and upload weights, optimizer and random state.

        Raises:
            AssertionError: The device is offline.
            Error: Not compiled, already attached, or no IPUs are free.
        """
        self._compiled("attachToDevice")
        if self._options.connection_type == ConnectionType.Never:
            raise AssertionError("Trying to attach to an offline device (ConnectionType.Never).")
        if self.isAttachedToDevice():
            raise python_error("Device is already attached.")
        self._attach()

    @unaffected
    def detachFromDevice(self) -> None:
        """Download what the device alone knows and give the IPUs back.

        Raises:
            Error: Not compiled, or not attached.
        """
        program = self._compiled("detachFromDevice")
        if not program.attached:
            raise python_error("Device is not attached.")
        self._save_device_state()
        self._leave_device(program)

    @unaffected
    def destroy(self) -> None:
        """Download what the device alone knows, free everything and unwrap the model; nothing when not compiled.

        Raises:
            Error: The model was compiled again after an earlier destroy(), and is no longer wrapped.
        """
        program = self._program
        if program is None:
            return
        if program.attached:
            self._save_device_state()
            self._leave_device(program)
        self._program = None
        if self._optimizer is not None:
            self._optimizer.forget_program()
        if self._wrapping is not None:
            self._wrapping.undo()

    @property
    def rng_state(self) -> List[int]:
        """The device's random state, `[seed, state...]`; set it to continue a stream.

        Raises:
            Error: The model is not compiled.
        """
        program = self._compiled("rng_state")
        if program.attached:
            self._fail_on_demand("copy")
        if program.attached or self._rng_state is None:
            self._rng_state = program.random.read()
        return list(self._rng_state)

    @rng_state.setter
    def rng_state(self, state: List[int]) -> None:
        program = self._compiled("rng_state")
        self._rng_state = list(state)
        if program.attached:
            program.random.write(self._rng_state)

    # -- saving ---------------------------------------------------------------------------------------------------

    def save(self, filename: str, export_model: bool = True, save_rng_state: bool = True) -> None:
        """Write the compiled program, and with `export_model` the model, to a file that `poptorch.load` reads."""
        from ignite_ipu.emulator import saving

        self._compiled("save")
        saving.save(self, filename, export_model, save_rng_state)

    def compileAndExport(self, filename: str, *args: Any, export_model: bool = True, **kwargs: Any) -> None:
        """Compile for these arguments, then `save`."""
        self.compile(*args, **kwargs)
        self.save(filename, export_model)

    def loadExecutable(self, filename: str) -> None:
        """Take the program from a file that `save` wrote instead of compiling; forward is traced once all the same."""
        from ignite_ipu.emulator import saving

        saving.load_executable(self, filename)

    # -- timing ---------------------------------------------------------------------------------------------------

    def cycleCount(self) -> int:
        """Refuse: only IPUs count cycles.

        Raises:
            Error: Always; which one depends on the options and on whether the model has run.
        """
        if not self._options._Popart._value("instrumentWithHardwareCycleCounter", False):
            raise python_error("Cycle count logging is disabled. Call Options.logCycleCount(True) before wrapping.")
        if self._program is None:
            raise python_error("You must run the model at least once before its cycle count is known.")
        raise backend_error("Cycle counting is only supported on actual IPU hardware; this is the emulator.")

    def getPerfCounters(self) -> Dict[str, List[List[float]]]:
        """Return when the last call's tensors crossed, in seconds, by event, tensor and step."""
        return self._latency.counters()

    def getLatency(self) -> latency.Latency:
        """Return (min, max, average) seconds from the first input to the last output."""
        return self._latency.between("input", False, "output_complete", True)

    def getHostIpuLatency(self) -> latency.Latency:
        """Return (min, max, average) seconds that the inputs took to reach the device."""
        return self._latency.between("input", False, "input_complete", True)

    def getComputeLatency(self) -> latency.Latency:
        """Return (min, max, average) seconds from the last input's arrival to the last output's start."""
        return self._latency.between("input_complete", True, "output", True)

    def getIpuHostLatency(self) -> latency.Latency:
        """Return (min, max, average) seconds that the outputs took to reach the host."""
        return self._latency.between("output", False, "output_complete", True)

    # -- inside ---------------------------------------------------------------------------------------------------

    def _run(self, program: Program, arguments: Optional[Arguments], given: Sequence[torch.Tensor]) -> Any:
        """Run on `arguments`, or on `given` alone where these are tensors known to fit."""
        if not program.attached:
            self._attach()
        if not self._training:
            self._refresh_inference_weights()
        if arguments is not None:
            check_call(program.arguments, arguments)
        if self._optimizer is not None and self._optimizer.has_pending_state:
            self._load_optimizer_state(program)
        self._fail_on_demand("call")
        graph = program.graph
        if arguments is not None:
            given = arguments.tensors_like(program.arguments)
        inputs = self._transfer.to_device(graph.inputs, given)
        # A call that fails may have changed the weights before it did.
        self._dirty = self._training
        if self._optimizer is not None:
            self._optimizer.before_run()
        started = time.perf_counter()
        outputs = program.run(inputs)
        if graph.written_inputs:
            self._transfer.write_back(graph.written_inputs, inputs, given)
        self._after_run(program, outputs, time.perf_counter() - started)
        return program.returned(outputs)

    def _compiled(self, what: str) -> Program:
        if self._program is None:
            raise python_error(
                f"{what} needs a compiled model: this one has not been compiled or has been destroyed. "
                "Call it, or compile(), first."
            )
        return self._program

    def _compile(self, arguments: Arguments, adopt: Optional[Callable[[Program], None]] = None) -> Program:
        """Compile; `adopt` gives the program what was compiled earlier, before it is loaded."""
        if adopt is None:
            check_for_compile(arguments)
        self._options._check_at_compile(self._training)
        self._fetch_weights()
        with self._observation.progress() as progress:
            program = self._traced(arguments, adopt)
            progress(1, 2)
            self._program = program
            self._plain = None if self._is_offline else self._signature.shapes_of_tensors(program.arguments)
            self._meter.add(compiles=1)
            if self._wrapping is not None and not is_wrapped(self._user_model):
                self._wrapping.wrap_tensors(self._user_model)
            try:
                if self._options.connection_type == ConnectionType.Always and program.needs_ipu:
                    self._attach()
            except Error:
                self._program = None
                raise
            progress(2, 2)
        return program

    def _traced(self, arguments: Arguments, adopt: Optional[Callable[[Program], None]]) -> Program:
        with self._observation.compilation():
            with compile_turn(self._options, self._model):
                program = Program(
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
        return program

    def _attach(self) -> None:
        program = self._compiled("attachToDevice")
        self._fail_on_demand("copy")
        with self._observation.call("attachToDevice"):
            self._fetch_weights()
            self._follow_model(program)
            program.attach(self)
        if self._rng_state is not None:
            program.random.write(self._rng_state)

    def _fetch_weights(self) -> None:
        """Have the host's weights be the newest: whoever reads a wrapped parameter makes its trainer download."""
        for tensor in (*self._model.parameters(), *self._model.buffers()):
            fetch(tensor)

    def _follow_model(self, program: Program) -> None:
        if program.follow_model() and self._wrapping is not None:
            self._wrapping.wrap_tensors(self._user_model)

    def _refresh_inference_weights(self) -> None:
        """Take over weights that the training executor of the same model has changed."""
        if not is_wrapped(self._model):
            return
        trainer: Any = holder_of(self._model)
        if trainer is not None:
            trainer.copyWeightsToHostIfNeeded()
        version = None if trainer is None else trainer._host_version
        if version != self._seen_version:
            self.copyWeightsToDevice()
            self._seen_version = version

    def _fail_on_demand(self, kind: str) -> None:
        fault = faults.next_fault(kind)
        if fault is None:
            return
        # The device's memory is lost: the host's weights are all there is.
        self._dirty = False
        if self._optimizer is not None:
            self._optimizer.leave_device()
        self._compiled("run").detach()
        raise fault.error()

    def _leave_device(self, program: Program) -> None:
        self._write_report(program)
        program.detach()
        if self._optimizer is not None:
            self._optimizer.leave_device()

    def _write_report(self, program: Program) -> None:
        if program.report is not None:
            program.report.write(program, self._meter.own, self._observation.compilation_seconds)

    def _load_optimizer_state(self, program: Program) -> None:
        """Send a loaded optimizer state; PopTorch sends the weights along with it."""
        assert self._optimizer is not None
        self.copyWeightsToHostIfNeeded()
        self._optimizer.send_pending_state()
        program.upload()

    def _after_run(self, program: Program, outputs: List[torch.Tensor], seconds: float) -> None:
        self._anchored = program.anchored(outputs)
        arithmetic = program.batching
        inputs = len(program.graph.inputs)
        self._latency.set(inputs, arithmetic.micro_batches, len(outputs), arithmetic.returned, seconds)
        updates = arithmetic.device_iterations if self._training else 0
        self._meter.add_call(arithmetic.micro_batches, updates)
        if program.report is not None and program.report.is_due:
            self._write_report(program)

    def _save_device_state(self) -> None:
        program = self._compiled("detachFromDevice")
        self._fail_on_demand("copy")
        self._rng_state = program.random.read()
        if self._training:
            self.copyWeightsToHostIfNeeded()
        if self._optimizer is not None:
            self._optimizer.keep_state()


def _call_if_alive(method: Callable[[], Optional[Callable[[str], None]]], argument: str) -> None:
    found = method()
    if found is not None:
        found(argument)
