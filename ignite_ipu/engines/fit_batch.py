"""`fit_batch`: the largest micro-batches whose program fits the device, in updates of as many samples as before."""

from __future__ import annotations

import dataclasses
import gc
from typing import Any, Callable, List, Optional, Tuple, Union

from ignite_ipu.engines.remembered_sizes import RememberedSize, of_function, of_training
from ignite_ipu.engines.trainer import IPUTrainer
from ignite_ipu.errors import IPUOutOfMemoryError, LossError, PlanError, logger, out_of_memory
from ignite_ipu.poptorch_types import Options
from ignite_ipu.program.config import positive
from ignite_ipu.program.micro_batches import sample_count
from ignite_ipu.program.refusal_frames import brief_refusals
from ignite_ipu.program.tensors.trees import tensors_in


@dataclasses.dataclass(frozen=True)
class FittedBatch:
    """Result of a search, as which it prints.

    Attributes:
        micro_batch_size: Samples of a micro-batch.
        gradient_accumulation_steps: Micro-batches of a replica that make an update.
        tried: Sizes of micro-batches in the order they were tried, each with why it does not fit; None if it does.
        remembered: Whether the search began at an earlier answer, which still fits.
        result: Result of the function, if one was called.
    """

    micro_batch_size: int
    gradient_accumulation_steps: int
    tried: Tuple[Tuple[int, Optional[str]], ...]
    result: Any = None
    remembered: bool = False

    def __str__(self) -> str:
        return (
            f"Micro-batches of {self.micro_batch_size} samples fit, {self.gradient_accumulation_steps} of them make an "
            f"update. Tried: {_in_words(self.tried)}{', the size that an earlier search found' * self.remembered}."
        )


@brief_refusals
def fit_batch(
    training: Union[IPUTrainer, Callable[[int, int], Any]], data: Any, *, remember: bool = True
) -> FittedBatch:
    """Find the largest micro-batch that fits, for updates of as many samples as there are.

    A larger micro-batch keeps the device busier and takes more of its memory; gradient accumulation replaces the
    missing samples of a smaller one. Only sizes that divide an update's samples are tried, each in a program of its
    own.

    A **trainer** is given its programs by the way of `trainer.compile`: no update is made, and its weights, state and
    random numbers stay as they are. It then trains with the micro-batches that were found, from the same loader: each
    of its batches is cut otherwise, so that an iteration has the samples that it had. The search halves the range
    between a size that fits and one that does not.

    A **function** is for captured loops (`IPUAccelerator`, `ipu_prepare`). It is called with a micro-batch size and the
    number of micro-batches in an update, and makes model, optimizer, loader and loop by them. If its step does not fit,
    it is called again with the next smaller size. It has to make its own model, since each call begins anew.

    The answer is **remembered** in the directory of cached executables (`enableExecutableCaching`,
    `POPTORCH_CACHE_DIR`), if there is one. It holds for the same model, optimizer, options, samples of an update and
    machine; for a function, for its name and code. The next search tries the remembered size alone, and all others only
    if that no longer fits.

    Args:
        training: The trainer, or the function.
        data: For a trainer its `DataLoader`, or one batch that fills a device call. For a function the samples of an
            update, over all replicas.
        remember: False to search anew and to keep nothing.

    Raises:
        IPUOutOfMemoryError: Not even the smallest fits. A trainer is as it was.
        LossError: Updates with another number of micro-batches would differ: gradients are averaged and the loss is a
            sum over samples, or the other way round.
        Exception: Any other error of a compilation or the function. A trainer is as it was.
    """
    if isinstance(training, IPUTrainer):
        return _of_trainer(training, data, remember)
    return _of_function(training, positive("samples", data), remember)


def _of_function(function: Callable[[int, int], Any], samples: int, remember: bool) -> FittedBatch:
    tried: List[Tuple[int, Optional[str]]] = []
    place = of_function(function, samples) if remember else None
    known = None if place is None else place.read()
    for size in reversed([each for each in _divisors(samples) if known is None or each <= known]):
        try:
            result = function(size, samples // size)
        except Exception as error:
            if out_of_memory(error) is None:
                raise
            tried.append((size, str(error)))
            logger.warning("Micro-batches of %d samples do not fit: %s", size, error)
        else:
            if place is not None:
                place.write(size)
            return FittedBatch(size, samples // size, (*tried, (size, None)), result, size == known)
        gc.collect()  # the objects of the call, which hold IPUs
    raise _nothing_fits(tried)


def _of_trainer(trainer: IPUTrainer, data: Any, remember: bool) -> FittedBatch:
    session, batch = trainer.ipu, trainer.one_batch(data)
    trained = session.trainers.required()
    resolved = trained.resolved
    calls = resolved.geometry
    session.weights.to_host()
    trained.drop_aside()
    now = sample_count(trainer.prepared(batch)) // calls.input_micro_batches or 1
    each = now * calls.gradient_accumulation
    _refuse_other_updates(trainer, batch)
    tried: List[Tuple[int, Optional[str]]] = []

    def use(size: int) -> None:
        wanted = resolved
        if size != now:
            wanted = resolved.changed(lambda options: options.Training.gradientAccumulation(each // size))
        session.trainers.replace_program(trained.program.step.again(), wanted)

    def fits(size: int) -> bool:
        reason = None
        try:
            use(size)
            trainer.compile(batch)
        except (IPUOutOfMemoryError, PlanError) as error:
            reason = str(error)
            logger.info("Micro-batches of %d samples do not fit: %s", size, error)
        tried.append((size, reason))
        return reason is None

    sizes = _divisors(each)
    best, too_large, number = -1, len(sizes), sizes.index(now)
    place = _place(trainer, batch, resolved.options, each) if remember else None
    known = None if place is None else place.read()
    try:
        if known in sizes and fits(known):
            best = sizes.index(known)
            too_large = best + 1
        while best + 1 < too_large:
            if fits(sizes[number]):
                best = number
            else:
                too_large = number
            number = (best + too_large) // 2
        if best < 0:
            raise _nothing_fits(tried)
    except BaseException:
        use(now)
        raise
    if tried[-1] != (sizes[best], None):
        use(sizes[best])
    if place is not None:
        place.write(sizes[best])
    found = FittedBatch(sizes[best], each // sizes[best], tuple(tried), remembered=sizes[best] == known)
    logger.warning("%s", found)
    return found


def _place(trainer: IPUTrainer, batch: Any, options: Options, samples: int) -> RememberedSize:
    """Return the place of the answer for a trainer's model and an update of so many samples."""
    trained = trainer.ipu.trainers.required()
    program = trained.program
    leaves = tensors_in(trainer.prepared(batch))
    shapes = ", ".join(f"{each.dtype} {tuple(each.shape[1:])}" for each in leaves)
    about = {"samples of an update": str(samples), "a sample": shapes}
    request = "" if program.placing is None else repr(program.placing.request)
    return of_training(program.step, trained.link.conversion, options, about, request)


def _refuse_other_updates(trainer: IPUTrainer, batch: Any) -> None:
    """Refuse updates that depend on the number of their micro-batches, and log statistics that do."""
    program = trainer.ipu.trainers.required().program
    step, micro_batches = program.step.again(), program.resolved.micro_batches
    reduction = program.resolved.options.Training.accumulation_and_replication_reduction_type.name
    adds_up = step.adds_up(step.arguments(*trainer.prepared(batch), micro_batches=micro_batches), micro_batches)
    if adds_up != (reduction == "Sum"):
        raise LossError(
            f"The loss is a {'sum' if adds_up else 'mean'} over samples, and an update is the {reduction.lower()} of "
            "its micro-batches' gradients: with another number of these it would be another update. Use the mean of "
            "both, or the sum (Training.accumulationAndReplicationReductionType)."
        )
    if step.tracks_statistics():
        logger.warning("Normalisations take their statistics of a micro-batch: of another size they are others.")


def _divisors(number: int) -> List[int]:
    return [each for each in range(1, number + 1) if number % each == 0]


def _nothing_fits(tried: List[Tuple[int, Optional[str]]]) -> IPUOutOfMemoryError:
    return IPUOutOfMemoryError(
        f"No micro-batch fits the device: {_in_words(tried)}. The last one: {tried[-1][1]} Spread the model over more "
        "IPUs (pipeline=...), keep tensors off the chip (offload=...), or use half precision."
    )


def _in_words(tried: Any) -> str:
    return ", ".join(f"{size} ({'fits' if reason is None else 'does not fit'})" for size, reason in tried)
