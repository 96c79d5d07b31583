from library.model import Classifier
from library.trainer import AccelerateTrainer, TrainerConfig
