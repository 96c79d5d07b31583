"""Every place in the package that reads a file, or turns bytes into objects, is fuzzed, or listed with a reason."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Dict, Iterator, Set, Tuple

import ignite_ipu
from tests.resilience.fuzzing import TARGETS

PACKAGE = Path(ignite_ipu.__file__).parent

# Functions that make objects or text from untrusted bytes.
_FUNCTIONS = {
    *("open", "os.fdopen", "tokenize.open", "io.open", "zipfile.ZipFile", "mmap.mmap"),
    *("json.load", "json.loads", "pickle.load", "pickle.loads", "pickle.Unpickler", "marshal.loads", "torch.load"),
    *("torch.jit.load", "np.load", "numpy.load", "np.fromfile", "yaml.load", "yaml.safe_load", "shelve.open"),
    *("exec", "eval", "runpy.run_path", "runpy.run_module", "ast.literal_eval", "spec_from_file_location"),
    *("torch.frombuffer", "importlib.util.spec_from_file_location", "configparser.ConfigParser", "tomllib.load"),
    *("safe_open", "load_file", "xml.etree.ElementTree.parse", "csv.reader", "tarfile.open", "gzip.open"),
}
_METHODS = {"read_text", "read_bytes"}

_ENVIRONMENT = "an environment variable of the user's own"
_OWN_PROCESSES = "what this program's own processes send each other over their own pipes and memory"
_NAMED_TO_RUN = "the program that the user names to be run"
_OWN_FILE = "a file of this package"
_SELFTEST = "what the self-test has just written itself"

READERS: Dict[str, Dict[str, str]] = {
    "__init__.py": {"read_text": _OWN_FILE},
    "checkpoints/reading.py": {
        "open": "checkpoints",
        "zipfile.ZipFile": "checkpoints",
        "torch.load": "checkpoints",
    },
    "emulator/files/cache.py": {"open": "a lock file, of which nothing is read"},
    "emulator/files/container.py": {
        "open": "executables",
        "json.loads": "executables",
        "torch.frombuffer": "executables",
    },
    "emulator/data/worker/item.py": {"pickle.loads": _OWN_PROCESSES},
    "emulator/data/worker/memory.py": {
        **dict.fromkeys(("open", "pickle.load", "mmap.mmap", "torch.frombuffer"), _OWN_PROCESSES)
    },
    "emulator/data/worker/rows.py": {"torch.frombuffer": "an array made in the same line"},
    "emulator/data/worker/seeding.py": {"pickle.loads": _OWN_PROCESSES},
    "emulator/data/worker/worker.py": {"pickle.loads": _OWN_PROCESSES},
    "emulator/compiler/graph.py": {"exec": "text that was made from operators recorded in this process"},
    "emulator/ops/custom.py": {"json.loads": "an argument that the program passes"},
    "emulator/device/machine.py": {"open": "tables of IPUs", "json.loads": "tables of IPUs"},
    "operators/table.py": {"open": _OWN_FILE, "json.load": _OWN_FILE},
    "emulator/options/text.py": {
        **dict.fromkeys(("open", "ast.literal_eval"), "options files"),
        "json.loads": "options as JSON",
    },
    "emulator/profiling.py": {"json.loads": _ENVIRONMENT},
    "running/spawned.py": dict.fromkeys(("read_bytes", "pickle.loads"), _OWN_PROCESSES),
    "emulator/runtime/report.py": {
        "json.loads": _ENVIRONMENT,
        "exec": "text that was made from operators recorded in this process",
    },
    "emulator/executor/saving.py": {"torch.load": "executables"},
    "emulator/files/trust.py": {"open": "this user's own key, in a directory that only the user can write"},
    "emulator/installation.py": {"runpy.run_path": _NAMED_TO_RUN},
    "cli/instance.py": {"runpy.run_path": _NAMED_TO_RUN, "runpy.run_module": _NAMED_TO_RUN},
    "cli/launch.py": {"json.loads": _ENVIRONMENT},
    "migration/analysis/names.py": dict.fromkeys(("read_bytes", "ast.literal_eval"), "an installed library's text"),
    "migration/source/notebook.py": {"json.loads": "notebooks"},
    "migration/source/file.py": {"open": "programs"},
    "migration/source/writing.py": {"open": "programs"},
    "session/job.py": {"read_text": "the kernel's state of a process of the same program"},
    "session/executables.py": dict.fromkeys(("open", "json.loads"), "descriptions of executables"),
    "program/settings.py": {
        "open": "settings as YAML",
        "json.loads": "settings as JSON",
        "yaml.load": "settings as YAML",
    },
    "pipeline/planning/annotating.py": {"read_text": "the model's source, which has run in this process"},
    "pipeline/planning/plan_file.py": {"open": "plans", "json.loads": "plans"},
    "checkpoints/random_states.py": {"open": "random states", "json.loads": "random states"},
    "engines/remembered_sizes.py": dict.fromkeys(("open", "json.loads"), "remembered sizes"),
    "checkpoints/comparable.py": {"torch.frombuffer": "the numbers of a state that the program has read and passes"},
    "parity/pair.py": {
        "json.loads": "an argument of this program's own process, which made it",
        "torch.load": _OWN_PROCESSES,
    },
    "parity/runs.py": dict.fromkeys(("open", "json.load"), _OWN_PROCESSES),
    "torch_names/modules.py": {"read_text": "an installed library's text"},
    "running/notebook.py": dict.fromkeys(("open", "json.load", "exec"), _NAMED_TO_RUN),
    "running/program.py": {
        "open": "searched for one word, and not kept",
        "tokenize.open": _NAMED_TO_RUN,
        "runpy.run_path": _NAMED_TO_RUN,
        "runpy.run_module": _NAMED_TO_RUN,
    },
    "selftest/runner.py": {"json.loads": _ENVIRONMENT},
    "selftest/promises/captured.py": {"torch.load": _SELFTEST, "zipfile.ZipFile": _SELFTEST},
    "selftest/promises/checkpoints.py": {"json.loads": _SELFTEST},
    "selftest/promises/optimizers.py": {"torch.load": _SELFTEST},
    "cli/targets.py": {"importlib.util.spec_from_file_location": _NAMED_TO_RUN},
}


def readers_in(path: Path) -> Iterator[Tuple[str, int]]:
    """Yield the reading calls of a file, by name and line; files opened for writing alone are left out."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call):
            continue
        name = _dotted(node.func)
        method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        if name in _FUNCTIONS and not _writes(name, node):
            yield name, node.lineno
        elif method in _METHODS:
            yield method, node.lineno


def _dotted(function: ast.expr) -> str:
    """Return a name or a chain of attributes as it is written; `ast.unparse` came with Python 3.9."""
    if isinstance(function, ast.Attribute):
        return f"{_dotted(function.value)}.{function.attr}"
    return function.id if isinstance(function, ast.Name) else "..."


def _writes(name: str, call: ast.Call) -> bool:
    if not name.endswith("open"):
        return False
    mode = call.args[1] if len(call.args) > 1 else next((k.value for k in call.keywords if k.arg == "mode"), None)
    return isinstance(mode, ast.Constant) and isinstance(mode.value, str) and not {"r", "+", "a"} & set(mode.value)


def test_every_reader_is_known():
    """A new one needs a target in tests/resilience/fuzzing.py, or a reason here why its input is the user's own."""
    found: Dict[str, Set[str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        for name, _ in readers_in(path):
            found.setdefault(path.relative_to(PACKAGE).as_posix(), set()).add(name)
    assert found == {file: set(readers) for file, readers in READERS.items()}


def test_every_target_is_read_by_something():
    """The campaign and the package speak of the same kinds of files."""
    named = {target for readers in READERS.values() for target in readers.values()} & set(TARGETS)
    assert named | {"caches"} == set(TARGETS)
