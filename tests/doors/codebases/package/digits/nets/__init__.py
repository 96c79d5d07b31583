from .mlp import MLP


def build(width):
    return MLP(width)
