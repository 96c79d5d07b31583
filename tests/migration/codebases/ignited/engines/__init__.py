from engines.evaluation import create_evaluator
from engines.training import create_trainer
