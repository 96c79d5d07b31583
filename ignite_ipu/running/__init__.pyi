from ..errors import RunError as RunError
from .script import run_module as run_module
from .script import run_script as run_script
from .script_code import Substitution as Substitution
