import ignite.distributed as idist
from ignite.engine import create_supervised_evaluator
from ignite.metrics import Accuracy, Loss


def create_evaluator(model, criterion, config):
    metrics = {"accuracy": Accuracy(), "loss": Loss(criterion)}
    return create_supervised_evaluator(model, metrics=metrics, device=idist.device(), non_blocking=True)
