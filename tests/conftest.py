"""Fixtures of every test: one thread, a fixed seed, repeatable examples, and an environment left as it was found.

torch is imported by the fixtures, for the process that hands out the tests and runs none waits for all that is here.
"""

from __future__ import annotations

import gc
import importlib
import multiprocessing
import multiprocessing.spawn
import os
import random
import sys
from typing import Any, Dict, Iterator, List

import hypothesis
import numpy as np
import pytest

from tests.freezing import freeze, freeze_many
from tests.processes import Processes
from tests.scripts import Scripts

# deadline=None: a first call imports and traces, a later one does not; derandomize: a failure comes back on every run.
hypothesis.settings.register_profile("ignite_ipu", deadline=None, derandomize=True, print_blob=True, max_examples=40)
hypothesis.settings.load_profile("ignite_ipu")

# Long tests come first, so that at the end no process waits for the other's last one.
_LONG = (
    "resilience/",
    "cli/test_launch",
    "accelerator/test_ch",
    "emulator/compiler/test_inductor",
    "test_examples",
    "test_docs",
    "test_auto",
    "test_python38",
    "test_site.py::test_sentences",
    "test_torch_names.py::test_nothing_else",
    "test_torch_names.py::test_a_touch",  # by the names that the one before has found
)

# Set by pytest around each phase of a test, and by third-party libraries when they are first imported.
_NOT_OURS = {"PYTEST_CURRENT_TEST", "KMP_DUPLICATE_LIB_OK", "KMP_INIT_AT_FORK", "TORCHINDUCTOR_CACHE_DIR"}


def pytest_collection_modifyitems(items: List[pytest.Item]) -> None:
    """Put long tests first."""
    items.sort(key=lambda item: not item.nodeid.startswith(tuple(f"tests/{name}" for name in _LONG)))


@pytest.hookimpl(hookwrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect no garbage while thousands of tests are collected, all of which stay."""
    gc.disable()
    yield
    gc.enable()


def pytest_pycollect_makemodule() -> None:
    """Import `ignite_ipu.auto` where that does nothing: a module of tests that imports it would turn it on."""
    if "ignite_ipu.auto" not in sys.modules:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("IGNITE_IPU_BACKEND", "native")
            importlib.import_module("ignite_ipu.auto")


def _environment() -> Dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in _NOT_OURS}


@pytest.fixture(autouse=True)
def _environment_is_left_alone() -> Iterator[None]:
    """Fail a test that changes an environment variable and does not restore it."""
    before = _environment()
    yield
    after = _environment()
    changed = sorted(name for name in {*before, *after} if before.get(name) != after.get(name))
    for name in changed:
        if name in before:
            os.environ[name] = before[name]
        else:
            del os.environ[name]
    assert not changed, f"the test left environment variables changed: {', '.join(changed)}; use monkeypatch.setenv"


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """Keep threads from fighting over the cores of parallel test processes, and from changing summation orders."""
    import torch

    torch.set_num_threads(1)


def pytest_collection_finish() -> None:
    """Keep no compiled files of modules that tests write: one rewritten within a second looks like the first."""
    sys.dont_write_bytecode = True


@pytest.fixture(scope="session")
def _steps() -> Dict[Any, Any]:
    """Return the `step` of each optimizer whose hooks torch.compile of PyTorch 2.0 takes off for good."""
    import torch

    steps = {}
    if not hasattr(torch, "compiler"):
        base = torch.optim.Optimizer
        classes = [each for each in vars(torch.optim).values() if isinstance(each, type) and each is not base]
        for kind in [each for each in classes if issubclass(each, base)]:
            kind([torch.nn.Parameter(torch.zeros(1))], lr=0.1)  # the first of a class puts them on
            steps[kind] = kind.step
    return steps


@pytest.fixture(autouse=True)
def _optimizers_keep_their_hooks(_steps: Dict[Any, Any]) -> Iterator[None]:
    """Give the classes of optimizers their `step` back, and let the next test compile by another backend."""
    yield
    for kind, step in _steps.items():
        kind.step = step
    if _steps and "torch._dynamo" in sys.modules:
        sys.modules["torch._dynamo"].reset()


@pytest.fixture(autouse=True)
def _seed() -> None:
    """Start every test from the same random state, whatever ran before it."""
    import torch

    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


@pytest.fixture(scope="session", autouse=True)
def _seeding_is_quick() -> Iterator[None]:
    """Spare `torch.manual_seed` the stack that it notes of every call for accelerators that are not there."""
    import torch

    with pytest.MonkeyPatch.context() as patch:
        for kind in ("cuda", "xpu", "mtia"):
            accelerator = getattr(torch, kind, None)
            if hasattr(accelerator, "manual_seed_all") and not accelerator.is_available():
                patch.setattr(accelerator, "manual_seed_all", lambda seed: None)
        yield


@pytest.fixture(scope="module", autouse=True)
def _collections_are_quick() -> None:
    """Spare garbage collections the objects from before a module's tests: imported ones, and those of pytest."""
    freeze()


@pytest.fixture(autouse=True)
def _searches_are_quick(_collections_are_quick: None) -> None:
    """Spare searches among all objects those of libraries that an earlier test of the module has imported."""
    freeze_many()


@pytest.fixture(scope="session", autouse=True)
def _no_process_is_left_behind() -> Iterator[None]:
    """Fail the run when a worker process outlives the tests."""
    yield
    # A loader's workers end with the loader, and a failed test's traceback may still hold one.
    gc.collect()
    left = multiprocessing.active_children()
    for process in left:
        process.terminate()
    assert not left, f"processes left behind: {left}"
    gc.freeze()  # or the end of this process would collect all that is in memory again


@pytest.fixture(scope="session")
def processes() -> Iterator[Processes]:
    """Processes that need not import torch."""
    found = Processes()
    yield found
    found.close()


@pytest.fixture
def forks_spawned(processes: Processes) -> Iterator[None]:
    """Have processes that `multiprocessing` spawns need not import torch."""
    before = multiprocessing.spawn.get_executable()
    multiprocessing.set_executable(processes.python)
    yield
    multiprocessing.set_executable(before)


@pytest.fixture(scope="session")
def scripts(processes: Processes) -> Iterator[Scripts]:
    """A process that runs scripts."""
    process = Scripts(processes)
    yield process
    process.close()
