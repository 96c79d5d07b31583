"""Functions for migrated code beside the engines, each for IPUs or, in a native run, for the original hardware.

With `IGNITE_IPU_BACKEND=native` each has the effect of the code that it replaced, so that one file serves a GPU and an
IPU.
"""

from __future__ import annotations

import functools
import weakref
from dataclasses import dataclass
from types import FunctionType, MethodType
from typing import Any, Callable, Dict, FrozenSet, List, Optional, Tuple, Union

import torch
from torch import nn

from ignite_ipu import backend
from ignite_ipu.capabilities.wrappers import SHARED_STATISTICS
from ignite_ipu.errors import ProcessesError
from ignite_ipu.optimizers.conversion import clipping_problem, convert_optimizer
from ignite_ipu.optimizers.host_steps import warn_of_host_steps
from ignite_ipu.program.config import IPUConfig
from ignite_ipu.program.evaluation_step import EvaluationStep
from ignite_ipu.program.guards.values import Same
from ignite_ipu.program.module_state import modes_kept, modes_of
from ignite_ipu.program.objects import contents
from ignite_ipu.program.tensors.raw import named_tensors
from ignite_ipu.program.tensors.trees import map_tensors
from ignite_ipu.program.training_step import TrainingStep, find_loss
from ignite_ipu.session.data_parallel import wrapped
from ignite_ipu.session.processes import connected
from ignite_ipu.session.program import ModelProgram
from ignite_ipu.session.resolved import resolve
from ignite_ipu.session.session import IPUSession
from ignite_ipu.torch_names.modules import BUFFERS
from ignite_ipu.torch_names.tensors import DisableTorchFunctionSubclass

LossFunction = Callable[[Any, Any], torch.Tensor]


def is_native() -> bool:
    """Return whether programs run as they were written for, without an IPU: with `IGNITE_IPU_BACKEND=native`."""
    return backend.choice() == "native"


def host_device(gpu: Union[str, int, torch.device, None] = "cuda") -> torch.device:
    """Return the device of the tensors that a program holds itself.

    Beside an IPU that is the CPU, also on a machine with GPUs: PopTorch takes models and batches from there. From then
    on an optimizer that steps on the host is logged, with the line. In a native run it is the GPU, if there is one.

    Args:
        gpu: Which GPU, in a native run; None is the current one.
    """
    if not is_native():
        warn_of_host_steps()
        return torch.device("cpu")
    return torch.device("cuda" if gpu is None else gpu) if torch.cuda.is_available() else torch.device("cpu")


def process_backend(native: str) -> str:
    """Return the backend for torch's process groups: `native` in a native run, and gloo where there are IPUs."""
    return native if is_native() else "gloo"


def auto_model(model: nn.Module, sync_bn: bool = False, **kwargs: Any) -> nn.Module:
    """Return the model, in `DistributedDataParallel` where several processes train it, as Ignite's `auto_model` does.

    PopTorch copies a model to all replicas of a process itself, so there is nothing to wrap in one process.

    Args:
        model: The model.
        sync_bn: Only meant for native runs: on an IPU each replica normalises its own micro-batch.
        kwargs: For torch's DistributedDataParallel, in native runs.
    """
    if not is_native():
        if connected()[1] == 1:
            return model
        return wrapped(nn.parallel.DistributedDataParallel, model, **kwargs)
    import ignite.distributed as idist

    return idist.auto_model(model, sync_bn=sync_bn, **kwargs)


def parallel_model(wrapper: Callable[..., nn.Module], model: nn.Module, *args: Any, **kwargs: Any) -> nn.Module:
    """Return a model in a wrapper for several GPUs; where there are IPUs, calls of the wrapper are the model's.

    It has the wrapper's class and names (`module.weight`). Training it trains the model within. In several
    processes the gradients of a `DistributedDataParallel` are averaged.

    Args:
        wrapper: `torch.nn.DataParallel` or `torch.nn.parallel.DistributedDataParallel`; or
            `torch.nn.SyncBatchNorm.convert_sync_batchnorm`, which a device leaves out.
        model: The model.
        args, kwargs: For the wrapper. On IPUs those for GPUs have no effect.

    Raises:
        ProcessesError: The processes have models with other parameters, or would share statistics.
    """
    if is_native():
        return wrapper(model, *args, **kwargs)
    if not isinstance(wrapper, type):
        if connected()[1] > 1:
            raise ProcessesError(f"In {connected()[1]} processes {SHARED_STATISTICS}.")
        return model
    return wrapped(wrapper, model, *args, **kwargs)


_PROGRAMS = "_ignite_ipu_programs"
_DEFAULTS = IPUConfig()


@dataclass
class _Training:
    """Setting that a model is trained in."""

    program: ModelProgram
    optimizer: weakref.ref[torch.optim.Optimizer]
    loss_fn: Optional[LossFunction]
    max_grad_norm: Optional[float]
    modes: List[bool]

    def serves(self, optimizer: Any, loss_fn: Optional[LossFunction], max_grad_norm: Optional[float]) -> bool:
        if self.optimizer() is not optimizer or self.max_grad_norm != max_grad_norm:
            return False
        return self.loss_fn is loss_fn or (_same_loss(self.loss_fn, loss_fn) and not self._may_write_loss())

    def _may_write_loss(self) -> bool:
        """Return whether calls may write buffers of the loss, which another one has for itself."""
        if not isinstance(self.loss_fn, nn.Module):
            return False  # a program refuses to write those of a module that a function calls
        buffers, compiled, step = named_tensors(self.loss_fn, BUFFERS), self.program.compiled, self.program.step
        if not buffers or compiled is None or not compiled.trace.shapes:  # without these, no call on the host was made
            return bool(buffers)
        named = named_tensors(step, BUFFERS)
        written = {id(named[name]) for name in compiled.trace.written}
        return not written.isdisjoint(map(id, buffers.values())) or step.written.updates_statistics(self.loss_fn)


class _Programs:
    """Session and programs that compute a model's batches.

    It hangs on the model, which its session holds, so that all of them are freed together. Copies and files of the
    model have none.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = weakref.ref(model)
        self.session: Optional[IPUSession] = None
        self.training: Optional[_Training] = None
        self.evaluation: Optional[ModelProgram] = None

    def __deepcopy__(self, memo: Dict[int, Any]) -> None:
        return None

    def __reduce__(self) -> Tuple[Any, Tuple[()]]:
        return bool, ()


def _programs_of(model: nn.Module) -> _Programs:
    found = model.__dict__.get(_PROGRAMS)
    if not isinstance(found, _Programs) or found.model() is not model:
        found = model.__dict__[_PROGRAMS] = _Programs(model)
    return found


def ipu_train_batch(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loss_fn: Optional[LossFunction],
    *inputs: Any,
    target: Any = None,
    max_grad_norm: Optional[float] = None,
    **keyword_inputs: Any,
) -> Tuple[Any, torch.Tensor]:
    """Train on one batch: clear the gradients, run the model, compute the loss, go back and update the weights.

    The first call compiles all of that into one program for the IPU, which later calls with batches of the same shape
    run. The model and the optimizer stay the ones to save, load and schedule. Modules stay in the modes they are in, so
    that a layer may be in evaluation mode; other modes are another program.

    Args:
        model: The model, in training mode.
        optimizer: Over the model's parameters.
        loss_fn: Called with the model's output and `target`. Another function is compiled anew, unless its code and its
            values are the same. None for a model that returns its own loss: the output itself, its `loss`, or the
            first or last item with a single element.
        inputs: Positional arguments of the model.
        target: The loss function's second argument.
        max_grad_norm: The norm that gradients are clipped to; for Adam, AdamW, and SGD without momentum.
        keyword_inputs: Keyword arguments of the model.

    Returns:
        The model's output and the loss, without gradients.

    Raises:
        LossError: `loss_fn` is None and there is no loss in the output, or all parameters are frozen.
        SessionError: A trainer made by create_ipu_trainer trains this model already.
        ValueError: The optimizer cannot clip gradients on an IPU.
    """
    problem = None if max_grad_norm is None else clipping_problem(optimizer)
    if problem is not None:
        raise ValueError(f"max_grad_norm: {problem}")
    if is_native():
        return _train_natively(model, optimizer, loss_fn, inputs, keyword_inputs, target, max_grad_norm)
    programs = _programs_of(model)
    session = programs.session = IPUSession.of(model)
    current = programs.training
    ours = current is not None and session.training is current.program
    if current is None or not ours or not current.serves(optimizer, loss_fn, max_grad_norm):
        if ours:
            session.close()
            session = programs.session = IPUSession.of(model)
        session.trainers.refuse_second()
        step = TrainingStep(model, loss_fn, model_fn=_call, keep_modes=True)
        conversion = convert_optimizer(optimizer, max_grad_norm=max_grad_norm)
        program = session.prepare_training(step, conversion, resolve(_DEFAULTS, model)).program
        current = _Training(program, weakref.ref(optimizer), loss_fn, max_grad_norm, modes_of(model))
        programs.training = current
    modes = modes_of(model)
    if modes != current.modes:  # a program keeps them as they were
        step = TrainingStep(model, loss_fn, model_fn=_call, keep_modes=True)
        current.program, current.modes = session.trainers.replace_program(step, resolve(_DEFAULTS, model)), modes
    _, _, output, loss = session.train((inputs, keyword_inputs), target)
    return output, loss


def ipu_evaluate_batch(model: nn.Module, *inputs: Any, **keyword_inputs: Any) -> Any:
    """Return the model's output for one batch of any number of samples, in evaluation mode, with the newest weights.

    A batch of fewer samples than before is padded for the device; one with more is evaluated in pieces. If that changes
    predictions, because the model mixes samples or because rows are steps in time, the model is compiled again for the
    larger batch, and padding is refused.

    Args:
        model: The model.
        inputs: Its positional arguments.
        keyword_inputs: Its keyword arguments.
    """
    if is_native():
        with torch.no_grad():
            return model(*inputs, **keyword_inputs)
    programs = _programs_of(model)
    session = programs.session = IPUSession.of(model)
    program = programs.evaluation
    if program is None or program not in session.evaluations:
        step = EvaluationStep(model, model_fn=_call)
        # A batch is one forward, as on the host, independently of the number in the trainer's calls.
        resolved = session.inference.resolved(IPUConfig(device_iterations=1, replication_factor=1))
        program = programs.evaluation = session.inference.prepare(step, resolved)
    with modes_kept(model):  # compiling for evaluation changes them
        return session.inference.predictions(program, [(inputs, keyword_inputs)])


def _train_natively(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loss_fn: Optional[LossFunction],
    inputs: Tuple[Any, ...],
    keyword_inputs: Dict[str, Any],
    target: Any,
    max_grad_norm: Optional[float],
) -> Tuple[Any, torch.Tensor]:
    optimizer.zero_grad()
    output = model(*inputs, **keyword_inputs)
    loss = find_loss(output) if loss_fn is None else loss_fn(output, target)
    loss.backward()  # type: ignore[no-untyped-call]
    if max_grad_norm is not None:
        nn.utils.clip_grad_norm_(model.parameters(), max_grad_norm)
    optimizer.step()
    return map_tensors(output, torch.Tensor.detach), loss.detach()


def _call(model: nn.Module, batch: Any) -> Any:
    inputs, keyword_inputs = batch
    return model(*inputs, **keyword_inputs)


def _same_loss(first: Any, second: Any, compared: FrozenSet[Tuple[int, int]] = frozenset()) -> bool:
    """Return whether two loss functions compute the same: a training function often makes its own at every call.

    Args:
        first, second: The functions, or values that they depend on.
        compared: The ids of the pairs that these values are in, for values that lead to themselves.
    """
    pair = id(first), id(second)
    if first is second or pair in compared:
        return True
    if isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor):
        return _same_tensor(first, second)
    if type(first) is not type(second):
        return False
    parts, others = _parts_of(first), _parts_of(second)
    if parts is None or others is None:
        return bool(contents(first, Same) == contents(second, Same))
    if not parts or len(parts) != len(others):
        return not parts and not others
    return all(map(functools.partial(_same_loss, compared=compared | {pair}), parts, others))


def _same_tensor(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Return whether both are constants with the same values; of weights, each has values of its own."""
    with DisableTorchFunctionSubclass():  # or tensors of a program would be downloaded
        kinds = {(each.dtype, each.layout, each.requires_grad) for each in (first, second)}
        return kinds == {(first.dtype, torch.strided, False)} and torch.equal(first, second)


def _parts_of(value: Any) -> Optional[List[Any]]:
    """Return the values that a result of a function depends on, or the entries of a container; else None."""
    if isinstance(value, FunctionType):
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
        return [value.__code__, *cells, value.__defaults__, value.__kwdefaults__]
    if isinstance(value, MethodType):
        return [value.__func__, value.__self__]
    if isinstance(value, functools.partial):
        return [value.func, value.args, value.keywords]
    if isinstance(value, nn.Module):
        # A session may have given it tables of its own.
        held = sorted(vars(value).items())
        return [part for name, each in held for part in (name, dict(each) if isinstance(each, dict) else each)]
    if isinstance(value, dict):
        return [*value, *value.values()]
    return list(value) if isinstance(value, (list, tuple)) else None
