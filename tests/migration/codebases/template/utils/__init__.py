from .checkpoint import save_checkpoint
from .meters import *


def read_settings(path):
    with open(path) as file:
        return dict(line.strip().split(": ") for line in file)
