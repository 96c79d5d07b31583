from .checkpoints import attach_checkpoints
from .stopping import attach_early_stopping
