from .net import *
from .registry import MODELS


def build_model(config):
    arguments = dict(config)
    return MODELS[arguments.pop("name")](**arguments)
