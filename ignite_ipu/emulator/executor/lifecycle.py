"""`Lifecycle`: the program of one executor, from its compilation over its calls to its end."""

from __future__ import annotations

from typing import Any, Callable, Dict, Mapping, Optional, Sequence

import torch
from torch import nn

from ignite_ipu.emulator.device.device import Meter
from ignite_ipu.emulator.enums import ConnectionType
from ignite_ipu.emulator.errors import Error, cut_long_message, python_error
from ignite_ipu.emulator.executor.device_state import DeviceState
from ignite_ipu.emulator.executor.observation import Observation
from ignite_ipu.emulator.files.cache import compile_turn
from ignite_ipu.emulator.options import Options
from ignite_ipu.emulator.options.compile_checks import check_at_compile
from ignite_ipu.emulator.runtime.call_times import Times
from ignite_ipu.emulator.runtime.compilation import CompiledModel
from ignite_ipu.emulator.runtime.program import DeviceProgram
from ignite_ipu.emulator.values.arguments import ArgsParser, Arguments, Shapes, check_call, check_for_compile
from ignite_ipu.emulator.values.replica_groups import Setting


class Lifecycle:
    """Compiles, loads, calls and releases the program of one executor.

    Args:
        model: The traced object.
        user_model: The user's model.
        training_mode: The training flag that the model had when it was wrapped.

    Attributes:
        program: The compiled program; None before compilation, and once it is destroyed.
        plain: Shapes of arguments that need no other check; None if there are no such arguments.
        is_offline: Whether the device is never connected.
        meter: Counts the events of the executor.
        observation: Observers of its calls.
        state: Weights, optimizer and random state.
        anchored, times: Anchored tensors by short name, and times, of the last call.
    """

    def __init__(
        self, options: Options, training: bool, model: nn.Module, user_model: nn.Module, training_mode: bool
    ) -> None:
        self._options, self._training, self._model = options, training, model
        self.is_offline = options._is_offline()
        self.meter = Meter()
        self.observation = Observation(options, training_mode)
        self.state = DeviceState(user_model, model, options, self.observation, self.meter)
        self.program: Optional[DeviceProgram] = None
        self.plain: Optional[Shapes] = None
        self.anchored: Dict[str, torch.Tensor] = {}
        self.times = Times()

    def required(self, what: str) -> DeviceProgram:
        """Return the program.

        Raises:
            Error: There is none, which the method `what` needs.
        """
        if self.program is None:
            raise python_error(
                f"{what} needs a compiled model: this one has not been compiled or has been destroyed. "
                "Call it, or compile(), first."
            )
        return self.program

    def compile(
        self,
        arguments: Arguments,
        parser: ArgsParser,
        per_replica: Mapping[str, Setting],
        adopt: Optional[Callable[[CompiledModel], None]] = None,
    ) -> DeviceProgram:
        """Compile, and load unless the device is connected on demand.

        Args:
            arguments: The arguments of the first call.
            parser: Binds the arguments of later calls.
            per_replica: Parameters that differ between replicas.
            adopt: Passes earlier results to the compiled model, before it is loaded.
        """
        if adopt is None:
            check_for_compile(arguments)
        check_at_compile(self._options, self._training)
        self.state.fetch()
        with self.observation.progress() as progress:
            with self.observation.compilation():
                with compile_turn(self._options, self._model):
                    compiled = CompiledModel(
                        model=self._model,
                        arguments=arguments,
                        options=self._options,
                        training=self._training,
                        optimizer=self.state.optimizer,
                        per_replica=per_replica,
                        meter=self.meter,
                    )
                    program = DeviceProgram(compiled, self.state.optimizer, self.meter)
                if adopt is not None:
                    adopt(compiled)
                self.observation.report = program.report
            progress(1, 2)
            self.program = program
            self.plain = None if self.is_offline else parser.shapes_of_tensors(compiled.arguments)
            self.meter.add(compiles=1)
            self.state.wrap_again()
            try:
                if self._options.connection_type == ConnectionType.Always and program.needs_ipu:
                    self.load(program)
            except Error:
                self.program = None
                raise
            progress(2, 2)
        return program

    def load(self, program: DeviceProgram) -> None:
        """Take the IPUs, at the latest until this is collected, and upload weights, optimizer and random state."""
        self.state.load(program, self)

    def call(self, program: DeviceProgram, arguments: Optional[Arguments], given: Sequence[torch.Tensor]) -> Any:
        """Call the program with `arguments`, or with `given` alone if these are tensors known to fit."""
        if not self.observation.is_off:
            with self.observation.call("modelExecution"):
                return self._run(program, arguments, given)
        try:
            return self._run(program, arguments, given)
        except Error as error:
            cut_long_message(error, self._options.log_dir)
            raise

    def release(self, program: DeviceProgram) -> None:
        """Download state that only the device has, and release the IPUs."""
        # Each of these may fail, and then the IPUs are not given back.
        self.state.read_random(program)
        self.state.fetch_if_newer(program)
        if self.state.optimizer is not None:
            self.state.optimizer.keep_state()
        self.state.leave(program)

    def destroy(self) -> None:
        """Release and forget the program, and unwrap the model; nothing when not compiled."""
        program, state = self.program, self.state
        if program is None:
            return
        if program.attached:
            self.release(program)
        self.program = None
        if state.optimizer is not None:
            state.optimizer.forget_program()
        if state.wrapping is not None:
            state.wrapping.undo()

    def _run(self, program: DeviceProgram, arguments: Optional[Arguments], given: Sequence[torch.Tensor]) -> Any:
        state = self.state
        optimizer = state.optimizer
        if not program.attached:
            self.load(program)
        if not self._training:
            state.refresh(program)
        if arguments is not None:
            check_call(program.compiled.arguments, arguments)
        if optimizer is not None and optimizer.pending is not None:
            # PopTorch sends the weights along with an optimizer state that was loaded on the host.
            state.fetch_if_newer(program)
            optimizer.send_pending_state()
            program.upload()
        program.compiled.host.warn_of_left_out()
        state.fail_on_demand("call", program)
        if arguments is not None:
            given = arguments.tensors_like(program.compiled.arguments)
        inputs = program.to_device(given)
        # A call that fails may have changed all of this before it did.
        state.device_is_newer = self._training
        state.random_is_stale = True
        if optimizer is not None:
            optimizer.before_run()
        result, self.anchored, self.times = program.call(inputs, given)
        if program.report is not None and program.report.is_due:
            self.observation.write_report(program, self.meter)
        return result
