"""`Programs`: the programs of one model, which hold copies of its weights and may take turns on the same IPUs."""

from __future__ import annotations

import contextlib
import signal
import threading
import weakref
from typing import Any, Dict, Iterator, List, Optional, Sequence, Set, Tuple

from torch import nn

from ignite_ipu import backend
from ignite_ipu.errors import BatchError, SessionError, logger, out_of_memory
from ignite_ipu.program.layout import BatchLayout
from ignite_ipu.program.options import is_simulated
from ignite_ipu.program.step import BatchStep
from ignite_ipu.program.tensors.sharing import address_of
from ignite_ipu.session.hooks import SessionHooks
from ignite_ipu.session.program import ModelProgram
from ignite_ipu.session.recompilation import ModelChanges
from ignite_ipu.session.trainers import Trainers
from ignite_ipu.session.weights.model_states import ModelStates
from ignite_ipu.session.weights.tracker import Weights
from ignite_ipu.torch_names.tensors import DisableTorchFunctionSubclass

# Part of PopTorch's message if no device is free.
_NO_IPUS = "Failed to acquire"
Lost = Tuple[str, Exception]
"""Weights that could not be brought to the host, and why."""
_ALL: weakref.WeakSet[SharedWeights] = weakref.WeakSet()


class SharedWeights:
    """Finds the calls of other models with some of the same memory, as an encoder and the model around it.

    Each has a session of its own, and one of them is trained. The others' programs are out of date after that, which
    only the one that trained knows.

    Attributes:
        others: By other model: its updates, a list of one number, and how many they were when it was asked last.
    """

    def __init__(self, weights: Weights) -> None:
        self._weights = weights
        self.others: Dict[weakref.ref[SharedWeights], Tuple[Sequence[int], int]] = {}
        # Values that the host had at the start need no copy.
        self._before = {weakref.ref(each): each._weights.updates[0] for each in _ALL if not each._weights.host.is_stale}
        _ALL.add(self)
        self.look_again()

    def look_again(self) -> None:
        """Find the models with memory of some of the tensors, of which there are more, such as those of a loss."""
        mine = _memory_of(self._weights)
        for other in list(_ALL):
            if other is not self and not mine.isdisjoint(_memory_of(other._weights)):
                self._follow(other)
                other._follow(self)

    def _follow(self, other: SharedWeights) -> None:
        reference = weakref.ref(other)
        self._weights.sharing.add(other._weights)
        self.others.setdefault(reference, (other._weights.updates, self._before.get(reference, 0)))

    def take_over(self) -> None:
        """Bring weights that others have trained to the host; they are uploaded before the next call."""
        for reference, (updates, seen) in list(self.others.items()):
            other = reference()
            if updates[0] != seen:
                self.others[reference] = updates, updates[0]
                # The other model took over the weights of this one before it trained more.
                self._weights.to_host()
                if other is not None:
                    other._weights.to_host()  # else it did that when its session ended
                self._weights.host_changed()
            if other is None:
                del self.others[reference]


def _memory_of(weights: Weights) -> Set[int]:
    """Return the addresses of the memory of weights."""
    with DisableTorchFunctionSubclass():
        return set(map(address_of, weights.held.tensors)) - {0}


_LOADED: List[weakref.ref[Programs]] = []
"""Programs of all models, in the order in which they took IPUs last."""


class Programs:
    """Programs over one model's weights.

    Attributes:
        trainers: How the model is trained, by one optimizer or several.
        active: The program that was called last.
        most_shapes: For how many shapes of batches there may be programs that train, and that evaluate.
        share_ipus: Whether training and inference take turns on the same IPUs; also where there are not enough.
    """

    def __init__(self, model: nn.Module) -> None:
        self.hooks = SessionHooks()
        self.weights = Weights(model, self.hooks)
        self.shared = SharedWeights(self.weights)
        self.changes = ModelChanges(model, self.weights, self._compile_again, self.hooks)
        self.states = ModelStates(model, self.weights, self.look_again)
        self.trainers = Trainers(self.include)
        self.evaluations: List[ModelProgram] = []
        self.active: Optional[ModelProgram] = None
        self.most_shapes = 8
        self.share_ipus = False
        self._name = str(getattr(model, "joined_names", type(model).__name__))
        self._thread = threading.get_ident()

    def __iter__(self) -> Iterator[ModelProgram]:
        for trained in self.trainers:
            yield from (trained.program, *trained.aside)
        yield from self.evaluations

    def include(self, step: BatchStep) -> None:
        """Follow the tensors of a training program's module beside the model, too."""
        if self.weights.include(step):
            self.shared.look_again()

    def check_model(self, follow: bool = True) -> None:
        """Refuse a model whose tensors were replaced, and compile again if parameters were frozen or unfrozen.

        Without `follow` the latter are left to the training's own calls, as each may be of another optimizer.
        """
        self.changes.refuse_replaced()
        if follow and self.trainers.current is not None:
            self.trainers.current.follow_trainable()

    @contextlib.contextmanager
    def loading(self, wanted: ModelProgram) -> Iterator[None]:
        """Have a program compiled or brought to its IPUs in the `with` block, for which others give theirs back.

        Other programs of the model do if that is wanted, or if the machine lacks IPUs for all of them. Idle programs of
        other models do if the machine lacks IPUs.
        """
        self._thread = threading.get_ident()
        self._take_from_idle(wanted)
        self.share_ipus = self.share_ipus or self._exceed_machine(wanted)
        if self.share_ipus:
            self.detach(but=wanted)
        try:
            yield
            _LOADED[:] = [known for known in _LOADED if known() not in (self, None)]
            _LOADED.append(weakref.ref(self))
        except Exception as error:
            too_large = out_of_memory(error)
            if too_large not in (None, error):
                raise too_large from error
            if _NO_IPUS not in str(error) or not any(program.ready for program in self):
                raise
            raise SessionError(f"{error} (With IPUConfig(share_ipus=True) both take turns.)") from error

    def detach(self, but: Optional[ModelProgram] = None) -> None:
        """Give the IPUs of all programs back, but those of one; the next call of a program takes IPUs again."""
        for program in self:
            if program is not but:
                self.weights.to_host()
                program.detach()

    def _take_from_idle(self, wanted: ModelProgram) -> None:
        """Have models give IPUs back that this thread used longest ago, while the machine lacks IPUs for all."""
        found = [known() for known in _LOADED]
        others = [each for each in found if each is not None and each is not self and each._thread == self._thread]
        others = [each for each in others if any(program.ready for program in each)]
        if not others or is_simulated(wanted.resolved.options):
            return
        own = sum(program.ipus or 1 for program in self if program is not wanted and program.ready)
        for number, each in enumerate(others):
            taken = sum(program.ipus or 1 for other in others[number:] for program in other if program.ready)
            if _has_ipus(taken + own + (wanted.ipus or 1)):
                return
            logger.warning(
                "%s gives its IPUs to %s, since this machine has no more. Its next call takes them back, which loads "
                "its programs again: seconds to minutes on IPUs.",
                each._name,
                self._name,
            )
            each.detach()

    def _exceed_machine(self, wanted: ModelProgram) -> bool:
        """Return whether the machine has no device with IPUs for all programs that are on theirs and another one."""
        others = [program for program in self if program is not wanted and program.ready]
        if not others or is_simulated(wanted.resolved.options):
            return False
        ipus = sum(program.ipus or 1 for program in (wanted, *others))
        if _has_ipus(ipus):
            return False
        logger.warning(
            "Training and evaluation together would take %d IPUs, which this machine has not: they take turns, and "
            "each switch loads a program. IPUConfig(share_ipus=True) sets that from the start.",
            ipus,
        )
        return True

    def check_another_shape(self, known: int, layout: BatchLayout) -> None:
        """Log that a program will be compiled for batches of another shape than the `known` ones, by number."""
        if known >= self.most_shapes:
            raise BatchError(
                f"The batch has the shapes {layout.shapes()}, and there are programs for {known} others already "
                f"(trainer.ipu.most_shapes = {self.most_shapes}): each is a compilation, which takes minutes on IPUs. "
                "Pad to a few lengths (buckets), or set most_shapes to how many there are."
            )
        logger.warning(
            "The batch has other shapes (%s): a program is compiled for them and kept, %d of at most %d. Weights, and "
            "the optimizer's state in training, move by way of the host whenever the shapes change: let batches of one "
            "shape follow each other.",
            layout.shapes(),
            known + 1,
            self.most_shapes,
        )

    def give_back(self) -> List[Lost]:
        """Bring the newest weights and the programs' states to the host and destroy the programs; return the losses.

        Withheld values are shown: they cannot be read later.
        """
        if self.hooks.follower.give_back():
            logger.warning(
                "The weights and the optimizer's state that come to the host include an update whose optimizer.step() "
                "has not been called: a value that was read after backward() has made it run."
            )
        lost: List[Lost] = []
        with _dying_workers_waiting():
            try:
                self.weights.to_host()
            except Exception as error:
                lost.append(("the newest weights", error))
            for program in list(self):
                try:
                    program.destroy()
                except Exception as error:
                    if program.kind.training:
                        lost.append(("the state of the training program", error))
                    else:
                        # It has nothing but copies of weights.
                        logger.warning("An inference program was given up: %s: %s", type(error).__name__, error)
                    with contextlib.suppress(Exception):
                        program.abandon()
                        program.destroy()
        return lost

    def close(self) -> None:
        """Let the model and its optimizer be ordinary ones again, after all programs were destroyed."""
        self.active = None
        self.trainers.clear()
        self.hooks.end()
        self.weights.detector.unwatch(always=False)
        self.states.leave()
        self.evaluations.clear()

    def end_pass(self, always: bool) -> None:
        """Trace modules a second time at the end of a pass over data, and before the next call.

        Where that is worth it; `always` is however few calls there were since the last time.
        """
        for program in self:
            compiled = program.compiled
            if compiled is not None and (always or compiled.is_worth_a_look):
                if compiled.calls:
                    self.changes.look_again(program)
                compiled.is_due = True

    def look_again(self) -> None:
        """Trace modules a second time before the weights are read, unless that was recent."""
        for program in self:
            compiled = program.compiled
            if compiled is not None and compiled.is_worth_a_look:
                self.changes.look_again(program)

    def _compile_again(self, program: ModelProgram) -> None:
        trained = self.trainers.current
        if trained is not None and program is trained.program:
            trained.compile_again()
        else:
            program.destroy()


def _has_ipus(count: int) -> bool:
    """Return whether the machine has as many IPUs, rounded up to a power of two."""
    return backend.poptorch().ipuHardwareIsAvailable(1 << (count - 1).bit_length())


@contextlib.contextmanager
def _dying_workers_waiting() -> Iterator[None]:
    """Context in which a worker process that dies causes no interruption.

    `torch.utils.data` handles the signal of a worker's death by an exception, wherever the main thread is just then.
    """
    handler = signal.getsignal(signal.SIGCHLD) if hasattr(signal, "SIGCHLD") else None
    if not callable(handler) or threading.current_thread() is not threading.main_thread():
        yield
        return
    waiting: List[Tuple[Any, ...]] = []
    signal.signal(signal.SIGCHLD, lambda *arguments: waiting.append(arguments))
    try:
        yield
    finally:
        signal.signal(signal.SIGCHLD, handler)
    if waiting:
        # The next batch also raises the error of a dead worker.
        with contextlib.suppress(RuntimeError):
            handler(*waiting[-1])


def refuse_losses(lost: Sequence[Lost]) -> None:
    """Refuse to go on as if nothing had been lost."""
    if lost:
        what = ", ".join(f"{what} ({type(error).__name__}: {error})" for what, error in lost)
        raise SessionError(
            f"The IPUs were released, but these copies failed: {what}. The model and its optimizer have the earlier "
            "values. Load the newest checkpoint. A handlers.Recovery repeats copies that fail."
        ) from lost[0][1]
