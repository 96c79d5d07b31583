from .registry import create_model
from .resnet import *
from .dynamic import *
