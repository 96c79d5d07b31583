import json
from pathlib import Path

import ignite.distributed as idist
import torch
from config import Config
from data import get_dataflow
from engines import create_evaluator, create_trainer
from handlers import attach_checkpoints, attach_early_stopping
from ignite.engine import Events
from ignite.utils import manual_seed
from model import Net


def run(local_rank, config):
    manual_seed(config.seed)
    Path(config.output_dir).mkdir(exist_ok=True)
    train_loader, val_loader = get_dataflow(config)
    model = idist.auto_model(Net())
    optimizer = idist.auto_optim(torch.optim.SGD(model.parameters(), lr=config.lr, momentum=0.9))
    criterion = torch.nn.CrossEntropyLoss()
    trainer = create_trainer(model, optimizer, criterion, config)
    evaluator = create_evaluator(model, criterion, config)
    attach_early_stopping(trainer, evaluator, config)
    losses = []

    @trainer.on(Events.ITERATION_COMPLETED)
    def remember(engine):
        losses.append(engine.state.output)

    @trainer.on(Events.EPOCH_COMPLETED)
    def validate(engine):
        evaluator.run(val_loader)

    attach_checkpoints(trainer, evaluator, model, optimizer, config)
    trainer.run(train_loader, max_epochs=config.epochs)
    print("RESULT", json.dumps({"losses": losses, **evaluator.state.metrics}))


if __name__ == "__main__":
    config = Config()
    with idist.Parallel(backend=config.backend) as parallel:
        parallel.run(run, config)
