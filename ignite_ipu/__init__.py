"""Train and evaluate pytorch-ignite and accelerate code on Graphcore IPUs, or on an emulator of PopTorch."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Dict, List

if TYPE_CHECKING:
    from ignite_ipu.deferred import ipu_step as ipu_step
    from ignite_ipu.deferred.accelerator import IPUAccelerator as IPUAccelerator
    from ignite_ipu.deferred.prepare import ipu_clip_grad_norm_ as ipu_clip_grad_norm_
    from ignite_ipu.deferred.prepare import ipu_prepare as ipu_prepare
    from ignite_ipu.engines.averages import create_ipu_averages_evaluator as create_ipu_averages_evaluator
    from ignite_ipu.engines.counting import CountEvents as CountEvents
    from ignite_ipu.engines.counting import Counts as Counts
    from ignite_ipu.engines.engine import IPUEngine as IPUEngine
    from ignite_ipu.engines.engine import IPUTrainer as IPUTrainer
    from ignite_ipu.engines.factories import create_ipu_evaluator as create_ipu_evaluator
    from ignite_ipu.engines.factories import create_ipu_trainer as create_ipu_trainer
    from ignite_ipu.engines.fit_batch import FittedBatch as FittedBatch
    from ignite_ipu.engines.fit_batch import fit_batch as fit_batch
    from ignite_ipu.engines.loaders import Loaders as Loaders
    from ignite_ipu.engines.portable import auto_model as auto_model
    from ignite_ipu.engines.portable import host_device as host_device
    from ignite_ipu.engines.portable import ipu_evaluate_batch as ipu_evaluate_batch
    from ignite_ipu.engines.portable import ipu_train_batch as ipu_train_batch
    from ignite_ipu.engines.portable import is_native as is_native
    from ignite_ipu.engines.portable import parallel_model as parallel_model
    from ignite_ipu.engines.portable import process_backend as process_backend
    from ignite_ipu.engines.steps import ipu_evaluation_step as ipu_evaluation_step
    from ignite_ipu.engines.steps import ipu_training_step as ipu_training_step
    from ignite_ipu.errors import BackendError as BackendError
    from ignite_ipu.errors import BatchError as BatchError
    from ignite_ipu.errors import ConstantAttributeError as ConstantAttributeError
    from ignite_ipu.errors import IPUError as IPUError
    from ignite_ipu.errors import LoaderError as LoaderError
    from ignite_ipu.errors import LossError as LossError
    from ignite_ipu.errors import LostEditError as LostEditError
    from ignite_ipu.errors import OptimizerError as OptimizerError
    from ignite_ipu.errors import OptionsError as OptionsError
    from ignite_ipu.errors import OutputError as OutputError
    from ignite_ipu.errors import RowsError as RowsError
    from ignite_ipu.errors import SessionError as SessionError
    from ignite_ipu.errors import UnsupportedArgumentError as UnsupportedArgumentError
    from ignite_ipu.optimizers import convert_optimizer as convert_optimizer
    from ignite_ipu.optimizers import convert_optimizer_state as convert_optimizer_state
    from ignite_ipu.program.config import IPUConfig as IPUConfig
    from ignite_ipu.program.geometry import BatchGeometry as BatchGeometry
    from ignite_ipu.program.options import evaluation_options as evaluation_options
    from ignite_ipu.program.options import training_options as training_options
    from ignite_ipu.program.step import EvaluationStep as EvaluationStep
    from ignite_ipu.program.training_step import TrainingStep as TrainingStep
    from ignite_ipu.session.events import IPUEvents as IPUEvents
    from ignite_ipu.session.session import IPUSession as IPUSession

__version__ = "0.1.0"

# Public name -> the module that defines it. A name is imported when it is first used, so that `import ignite_ipu` loads
# neither torch nor anything else. To add one: a row here, and the same import under TYPE_CHECKING below.
_EXPORTS: Dict[str, str] = {
    "BackendError": "ignite_ipu.errors",
    "BatchError": "ignite_ipu.errors",
    "BatchGeometry": "ignite_ipu.program.geometry",
    "ConstantAttributeError": "ignite_ipu.errors",
    "CountEvents": "ignite_ipu.engines.counting",
    "Counts": "ignite_ipu.engines.counting",
    "EvaluationStep": "ignite_ipu.program.step",
    "FittedBatch": "ignite_ipu.engines.fit_batch",
    "IPUAccelerator": "ignite_ipu.deferred.accelerator",
    "IPUConfig": "ignite_ipu.program.config",
    "IPUEngine": "ignite_ipu.engines.engine",
    "IPUError": "ignite_ipu.errors",
    "IPUEvents": "ignite_ipu.session.events",
    "IPUSession": "ignite_ipu.session.session",
    "IPUTrainer": "ignite_ipu.engines.engine",
    "LoaderError": "ignite_ipu.errors",
    "Loaders": "ignite_ipu.engines.loaders",
    "LossError": "ignite_ipu.errors",
    "LostEditError": "ignite_ipu.errors",
    "OptimizerError": "ignite_ipu.errors",
    "OptionsError": "ignite_ipu.errors",
    "OutputError": "ignite_ipu.errors",
    "RowsError": "ignite_ipu.errors",
    "SessionError": "ignite_ipu.errors",
    "TrainingStep": "ignite_ipu.program.training_step",
    "UnsupportedArgumentError": "ignite_ipu.errors",
    "convert_optimizer": "ignite_ipu.optimizers",
    "convert_optimizer_state": "ignite_ipu.optimizers",
    "create_ipu_averages_evaluator": "ignite_ipu.engines.averages",
    "create_ipu_evaluator": "ignite_ipu.engines.factories",
    "create_ipu_trainer": "ignite_ipu.engines.factories",
    "fit_batch": "ignite_ipu.engines.fit_batch",
    "evaluation_options": "ignite_ipu.program.options",
    "ipu_clip_grad_norm_": "ignite_ipu.deferred.prepare",
    "ipu_prepare": "ignite_ipu.deferred.prepare",
    "ipu_step": "ignite_ipu.deferred",
    "ipu_evaluation_step": "ignite_ipu.engines.steps",
    "ipu_training_step": "ignite_ipu.engines.steps",
    "auto_model": "ignite_ipu.engines.portable",
    "host_device": "ignite_ipu.engines.portable",
    "ipu_evaluate_batch": "ignite_ipu.engines.portable",
    "ipu_train_batch": "ignite_ipu.engines.portable",
    "is_native": "ignite_ipu.engines.portable",
    "parallel_model": "ignite_ipu.engines.portable",
    "process_backend": "ignite_ipu.engines.portable",
    "training_options": "ignite_ipu.program.options",
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
