"""Train and evaluate pytorch-ignite and accelerate code on Graphcore IPUs, or on an emulator of PopTorch."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Dict, List

if TYPE_CHECKING:
    from ignite_ipu.accelerator import IPUAccelerator as IPUAccelerator
    from ignite_ipu.arguments import UnsupportedArgumentError as UnsupportedArgumentError
    from ignite_ipu.averages import create_ipu_averages_evaluator as create_ipu_averages_evaluator
    from ignite_ipu.backend import BackendError as BackendError
    from ignite_ipu.batches import BatchError as BatchError
    from ignite_ipu.counting import CountEvents as CountEvents
    from ignite_ipu.counting import Counts as Counts
    from ignite_ipu.deferred import ipu_step as ipu_step
    from ignite_ipu.engine_steps import ipu_evaluation_step as ipu_evaluation_step
    from ignite_ipu.engine_steps import ipu_training_step as ipu_training_step
    from ignite_ipu.engines import IPUEngine as IPUEngine
    from ignite_ipu.engines import IPUTrainer as IPUTrainer
    from ignite_ipu.events import IPUEvents as IPUEvents
    from ignite_ipu.factories import create_ipu_evaluator as create_ipu_evaluator
    from ignite_ipu.factories import create_ipu_trainer as create_ipu_trainer
    from ignite_ipu.geometry import BatchGeometry as BatchGeometry
    from ignite_ipu.loaders import LoaderError as LoaderError
    from ignite_ipu.loaders import Loaders as Loaders
    from ignite_ipu.loss import LossError as LossError
    from ignite_ipu.loss import TrainingStep as TrainingStep
    from ignite_ipu.optimizers import ConstantAttributeError as ConstantAttributeError
    from ignite_ipu.optimizers import OptimizerError as OptimizerError
    from ignite_ipu.optimizers import convert_optimizer as convert_optimizer
    from ignite_ipu.optimizers import convert_optimizer_state as convert_optimizer_state
    from ignite_ipu.options import OptionsError as OptionsError
    from ignite_ipu.options import evaluation_options as evaluation_options
    from ignite_ipu.options import training_options as training_options
    from ignite_ipu.portable import auto_model as auto_model
    from ignite_ipu.portable import host_device as host_device
    from ignite_ipu.portable import ipu_evaluate_batch as ipu_evaluate_batch
    from ignite_ipu.portable import ipu_train_batch as ipu_train_batch
    from ignite_ipu.portable import process_backend as process_backend
    from ignite_ipu.rows import RowsError as RowsError
    from ignite_ipu.session import IPUSession as IPUSession
    from ignite_ipu.session import SessionError as SessionError
    from ignite_ipu.step import EvaluationStep as EvaluationStep
    from ignite_ipu.step import OutputError as OutputError
    from ignite_ipu.weights import LostEditError as LostEditError

__version__ = "0.1.0"

# Public name -> the module that defines it. A name is imported when it is first used, so that `import ignite_ipu` loads
# neither torch nor anything else. To add one: a row here, and the same import under TYPE_CHECKING below.
_EXPORTS: Dict[str, str] = {
    "BackendError": "ignite_ipu.backend",
    "BatchError": "ignite_ipu.batches",
    "BatchGeometry": "ignite_ipu.geometry",
    "ConstantAttributeError": "ignite_ipu.optimizers",
    "CountEvents": "ignite_ipu.counting",
    "Counts": "ignite_ipu.counting",
    "EvaluationStep": "ignite_ipu.step",
    "IPUAccelerator": "ignite_ipu.accelerator",
    "IPUEngine": "ignite_ipu.engines",
    "IPUEvents": "ignite_ipu.events",
    "IPUSession": "ignite_ipu.session",
    "IPUTrainer": "ignite_ipu.engines",
    "LoaderError": "ignite_ipu.loaders",
    "Loaders": "ignite_ipu.loaders",
    "LossError": "ignite_ipu.loss",
    "LostEditError": "ignite_ipu.weights",
    "OptimizerError": "ignite_ipu.optimizers",
    "OptionsError": "ignite_ipu.options",
    "OutputError": "ignite_ipu.step",
    "RowsError": "ignite_ipu.rows",
    "SessionError": "ignite_ipu.session",
    "TrainingStep": "ignite_ipu.loss",
    "UnsupportedArgumentError": "ignite_ipu.arguments",
    "convert_optimizer": "ignite_ipu.optimizers",
    "convert_optimizer_state": "ignite_ipu.optimizers",
    "create_ipu_averages_evaluator": "ignite_ipu.averages",
    "create_ipu_evaluator": "ignite_ipu.factories",
    "create_ipu_trainer": "ignite_ipu.factories",
    "evaluation_options": "ignite_ipu.options",
    "ipu_step": "ignite_ipu.deferred",
    "ipu_evaluation_step": "ignite_ipu.engine_steps",
    "ipu_training_step": "ignite_ipu.engine_steps",
    "auto_model": "ignite_ipu.portable",
    "host_device": "ignite_ipu.portable",
    "ipu_evaluate_batch": "ignite_ipu.portable",
    "ipu_train_batch": "ignite_ipu.portable",
    "process_backend": "ignite_ipu.portable",
    "training_options": "ignite_ipu.options",
}

__all__ = ["__version__", *_EXPORTS]


def __getattr__(name: str) -> object:
    try:
        module = _EXPORTS[name]
    except KeyError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
    value = getattr(import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> List[str]:
    return sorted({*globals(), *__all__})
