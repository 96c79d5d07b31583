"""Train and evaluate pytorch-ignite and accelerate code on Graphcore IPUs, or on an emulator of PopTorch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ignite_ipu.exports import exports

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

# `import ignite_ipu` loads neither torch nor anything else. To add a name: one here, and the import above.
__all__, __getattr__, __dir__ = exports(
    __name__,
    {
        "deferred": "ipu_step",
        "deferred.accelerator": "IPUAccelerator",
        "deferred.prepare": "ipu_clip_grad_norm_ ipu_prepare",
        "engines.averages": "create_ipu_averages_evaluator",
        "engines.counting": "CountEvents Counts",
        "engines.engine": "IPUEngine IPUTrainer",
        "engines.factories": "create_ipu_evaluator create_ipu_trainer",
        "engines.fit_batch": "FittedBatch fit_batch",
        "engines.loaders": "Loaders",
        "engines.portable": (
            "auto_model host_device ipu_evaluate_batch ipu_train_batch is_native parallel_model process_backend"
        ),
        "engines.steps": "ipu_evaluation_step ipu_training_step",
        "errors": (
            "BackendError BatchError ConstantAttributeError IPUError LoaderError LossError LostEditError "
            "OptimizerError OptionsError OutputError RowsError SessionError UnsupportedArgumentError"
        ),
        "optimizers": "convert_optimizer convert_optimizer_state",
        "program.config": "IPUConfig",
        "program.geometry": "BatchGeometry",
        "program.options": "evaluation_options training_options",
        "program.step": "EvaluationStep",
        "program.training_step": "TrainingStep",
        "session.events": "IPUEvents",
        "session.session": "IPUSession",
    },
)
__all__ += ["__version__"]
