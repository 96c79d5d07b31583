import ignite.distributed as idist
from ignite.engine import create_supervised_trainer
from torch.cuda.amp import GradScaler


def create_trainer(model, optimizer, criterion, config):
    scaler = GradScaler() if config.amp else False
    return create_supervised_trainer(
        model,
        optimizer,
        criterion,
        device=idist.device(),
        non_blocking=True,
        amp_mode="amp" if config.amp else None,
        scaler=scaler,
    )
