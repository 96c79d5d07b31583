from ..errors import CheckpointError as CheckpointError
from .reading import check_complete as check_complete
from .reading import read_checkpoint as read_checkpoint
from .resuming import newest_checkpoint as newest_checkpoint
from .resuming import resume_from as resume_from
from .writing import CheckpointSaver as CheckpointSaver
from .writing import write_checkpoint as write_checkpoint
