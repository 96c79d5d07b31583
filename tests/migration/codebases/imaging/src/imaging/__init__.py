"""A small image classification library."""

from .data import build_loaders
from .models import build_model
from .trainer import Trainer

__all__ = ["Trainer", "build_loaders", "build_model"]
