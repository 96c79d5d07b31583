from ignite.engine import Events
from ignite.handlers import EarlyStopping


def attach_early_stopping(trainer, evaluator, config):
    handler = EarlyStopping(config.patience, lambda engine: engine.state.metrics["accuracy"], trainer)
    evaluator.add_event_handler(Events.COMPLETED, handler)
