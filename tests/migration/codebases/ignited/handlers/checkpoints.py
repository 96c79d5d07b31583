from ignite.engine import Events
from ignite.handlers import Checkpoint, DiskSaver, global_step_from_engine


def attach_checkpoints(trainer, evaluator, model, optimizer, config):
    saver = DiskSaver(config.output_dir, require_empty=False)
    last = Checkpoint({"trainer": trainer, "model": model, "optimizer": optimizer}, saver, n_saved=1)
    trainer.add_event_handler(Events.EPOCH_COMPLETED, last)
    best = Checkpoint(
        {"model": model},
        saver,
        filename_prefix="best",
        n_saved=1,
        score_name="accuracy",
        score_function=Checkpoint.get_default_score_fn("accuracy"),
        global_step_transform=global_step_from_engine(trainer),
    )
    evaluator.add_event_handler(Events.COMPLETED, best)
