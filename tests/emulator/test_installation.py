"""`install()` makes `import poptorch` work, refuses to shadow another, and leaves nothing behind."""

from __future__ import annotations

import copy
import importlib
import importlib.metadata
import importlib.util
import inspect
import multiprocessing
import os
import pkgutil
import re
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from packaging.requirements import Requirement
from packaging.version import Version

import ignite_ipu.emulator as emulator
from ignite_ipu import backend
from ignite_ipu.emulator import logs
from ignite_ipu.emulator.installation import STAND_INS, install, run_script

PACKAGES = ("poptorch", "popart", "popdist", "horovod")


@pytest.fixture
def poptorch():
    with install():
        yield importlib.import_module("poptorch")


def state_of_the_process():
    return (
        list(sys.path),
        list(sys.meta_path),
        sorted(name for name in sys.modules if name.split(".")[0] in PACKAGES),
        {name: os.environ.get(name) for name in ("PYTHONPATH", "RDMAV_FORK_SAFE")},
        sys.excepthook,
        sys.argv,
    )


def test_the_package_gives_the_emulators_objects(poptorch):
    assert poptorch.Options is emulator.Options and poptorch.trainingModel is emulator.trainingModel
    assert backend._is_emulator(poptorch)
    import poptorch.optim
    from poptorch.options import _TrainingOptions
    from poptorch.profiling import Channel

    assert poptorch.optim.AdamW is emulator.optim.AdamW
    assert _TrainingOptions is emulator.options._TrainingOptions and Channel is emulator.profiling.Channel
    assert poptorch.poptorch_core.Error is poptorch.Error


@pytest.mark.parametrize(
    "name",
    [
        "enums",
        "ops",
        "options",
        "optim",
        "profiling",
        "testing",
        "autocasting",
        "poptorch_core",
        "_args_parser",
        "_impl",
        "_poplar_executor",
        "_utils",
    ],
)
def test_every_sub_module_imports(poptorch, name):
    module = importlib.import_module(f"poptorch.{name}")
    assert module.__spec__.name == f"poptorch.{name}" and getattr(poptorch, name) is module


def test_the_package_has_its_sub_modules_when_it_is_imported(poptorch):
    """Under PopTorch's names, as code that looks them up among the loaded modules expects, and after a reload too."""
    for _ in range(2):
        for name in ("enums", "ops", "options", "optim", "profiling", "poptorch_core"):
            assert getattr(poptorch, name) is sys.modules[f"poptorch.{name}"]
        assert importlib.reload(poptorch) is poptorch
    found = {module.name for module in pkgutil.walk_packages(poptorch.__path__, "poptorch.")}
    assert {"poptorch.enums", "poptorch.ops", "poptorch.options", "poptorch.optim", "poptorch.testing"} <= found


def test_testing_must_be_imported_by_itself(poptorch):
    assert not hasattr(poptorch, "testing")


def test_private_modules_hold_what_frameworks_take_from_them(poptorch):
    """Without an import of their own, as on a machine with the SDK."""
    assert isinstance(poptorch.inferenceModel(torch.nn.Identity()), poptorch._poplar_executor.PoplarExecutor)
    from poptorch._impl import rewrapModelIfNecessary, unwrapModelIfNecessary

    assert callable(rewrapModelIfNecessary) and callable(unwrapModelIfNecessary)
    with pytest.raises(ModuleNotFoundError, match=r"poptorch\._hooks"):
        importlib.import_module("poptorch._hooks")


def test_batches_are_combined_tensor_by_tensor(poptorch):
    combined = poptorch._utils.combine_batch_tensors_gen([[torch.ones(1), torch.zeros(2)], [torch.ones(2)] * 2])
    assert [tensor.tolist() for tensor in combined] == [[1, 1, 1], [0, 0, 1, 1]]


def test_back_end_options_have_two_names(poptorch):
    options = poptorch.Options()
    assert options._popart is options._Popart
    copied = options.clone()
    copied._popart.setPatterns({"TiedGather": True}, level=1).set("enableExplicitIR", True)
    assert copied._Popart.options["enableExplicitIR"] and "enableExplicitIR" not in options._Popart.options


def test_registered_substitutions_are_in_force_while_a_model_is_traced(poptorch):
    """Each is made anew and undone in reverse order, also when a trace fails. Executing the module again keeps them."""
    happened = []

    def manager(name):
        class Manager:
            def replace(self):
                happened.append(f"{name} replaced")

            def restore(self):
                happened.append(f"{name} restored")

        return Manager

    class Model(torch.nn.Module):
        def forward(self, x):
            happened.append("forward")
            return x * 2 if x.dim() == 1 else x.item()

    context = poptorch._OverwriteContextManager
    types = [manager("a"), manager("b")]
    try:
        for each in (types[0], types[1], types[0]):
            context.registerSubsitutionManager(each)
        poptorch._poplar_executor.__spec__.loader.exec_module(poptorch._poplar_executor)
        executor = poptorch.inferenceModel(Model())
        executor(torch.ones(2))
        executor(torch.ones(2))
        once = ["a replaced", "b replaced", "forward", "b restored", "a restored"]
        assert happened == once
        with pytest.raises(poptorch.Error):
            poptorch.inferenceModel(Model())(torch.ones(2, 2))
        assert happened == once * 2
    finally:
        for each in types:
            context._subsitution_manager_types.remove(each)


def test_parsers_of_the_graph_library_are_registered(tmp_path, monkeypatch):
    """By importing PopTorch; a library that fails to import is no error."""
    (tmp_path / "poptorch_geometric").mkdir()
    (tmp_path / "poptorch_geometric" / "__init__.py").write_text("")
    types = tmp_path / "poptorch_geometric" / "types.py"
    types.write_text("called = []\ndef registerCustomArgParsers(): called.append(1)")
    monkeypatch.syspath_prepend(str(tmp_path))
    for expected in ([1], None):
        with install():
            importlib.import_module("poptorch")
            found = sys.modules.pop("poptorch_geometric.types", None)
            assert (found and found.called) == expected
        types.write_text("raise RuntimeError('broken')")
        importlib.invalidate_caches()
    sys.modules.pop("poptorch_geometric")


def test_popart_has_enumerations_its_version_and_nothing_else(poptorch):
    """Programs import PopART for them alone; a program that needs more gets an error that names the SDK."""
    popart = importlib.import_module("popart")
    options = poptorch.Options()
    options._Popart.set("subgraphCopyingStrategy", int(popart.SubgraphCopyingStrategy.JustInTime))
    schedule = popart.AccumulateOuterFragmentSchedule.OverlapMemoryOptimized
    options._Popart.set("accumulateOuterFragmentSettings.schedule", int(schedule))
    assert poptorch.inferenceModel(torch.nn.Identity(), options)(torch.ones(2)).tolist() == [1, 1]
    assert popart.versionNumber() == (3, 3, 0) and popart.versionString().startswith("3.3.0")
    popart.getLogger().setLevel("ERR")
    with pytest.raises(AttributeError, match=r"module 'popart' has no attribute 'Builder'.*the PopTorch emulator's"):
        popart.Builder()


def test_a_popart_of_the_machine_stays_the_one(poptorch, tmp_path, monkeypatch):
    (tmp_path / "popart.py").write_text("own = True")
    monkeypatch.syspath_prepend(str(tmp_path))
    try:
        assert importlib.import_module("popart").own
    finally:
        sys.modules.pop("popart", None)


def test_the_emulators_own_names_stay_with_it(poptorch):
    """A program that uses one of them would not run on a Pod."""
    assert not emulator.NOT_IN_POPTORCH - set(emulator.__all__)
    assert [name for name in emulator.NOT_IN_POPTORCH if hasattr(poptorch, name)] == []


def test_star_import_replaces_print_as_poptorchs_does(poptorch):
    names = {}
    exec("from poptorch import *", names)
    assert names["print"] is emulator.print and names["OutputMode"] is emulator.OutputMode


def test_it_looks_like_a_package_to_those_who_ask(poptorch):
    """The ways of importlib, of packaging, and of the libraries that probe for optional dependencies."""
    assert poptorch.__name__ == "poptorch" and Path(poptorch.__file__).name == "__init__.py"
    spec = importlib.util.find_spec("poptorch")
    assert spec is not None and spec.name == "poptorch" and spec.loader is poptorch.__loader__
    assert importlib.util.find_spec("poptorch.optim") is not None
    assert importlib.util.find_spec("poptorch.nothing") is None
    version = importlib.metadata.version("poptorch")
    assert version == poptorch.__version__ == emulator.__version__
    assert Version(version).release == (3, 3, 0) and Requirement("poptorch>=3.3").specifier.contains(version)
    assert importlib.metadata.metadata("poptorch")["Name"] == "poptorch"
    if sys.version_info >= (3, 10):
        assert importlib.metadata.packages_distributions()["poptorch"] == ["poptorch"]
    recorded = {str(file) for file in importlib.metadata.files("poptorch")}
    place = Path(STAND_INS, "poptorch")
    present = {str(path.relative_to(place)) for path in place.rglob("*") if path.is_file()}
    assert recorded == {name for name in present if not name.endswith(".pyc")}


@pytest.mark.parametrize("probe", ["transformers.utils.import_utils", "accelerate.utils.imports"])
def test_libraries_that_look_for_optional_packages_find_it(poptorch, probe):
    available = pytest.importorskip(probe)._is_package_available
    found = available("poptorch")
    assert found is True or found[0] is True
    versions = pytest.importorskip("transformers.utils.versions")
    versions.require_version("poptorch>=3.3")
    with pytest.raises(ImportError, match=re.escape("poptorch>=4")):
        versions.require_version("poptorch>=4")


@pytest.mark.usefixtures("forks_spawned")
def test_its_classes_can_be_inspected_and_their_objects_pickled(poptorch):
    """By name: in another process, whether or not the emulator is installed there."""
    assert "class Options" in inspect.getsource(poptorch.Options)
    assert "def trainingModel" in inspect.getsource(poptorch.trainingModel)
    assert issubclass(poptorch.optim.AdamW, poptorch.optim.Optimizer)
    objects = (
        poptorch.Options,
        poptorch.OutputMode.All,
        poptorch.optim.SGD,
        poptorch.PipelinedExecution("a"),
        poptorch.Options().deviceIterations(3),
        poptorch.optim.Adam([torch.nn.Parameter(torch.ones(1))], lr=0.5),
    )
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        (returned,) = pool.map(copy.copy, [objects])
    assert returned[:3] == objects[:3] and returned[3].stage("a").blocks == ("a",)
    assert returned[4].device_iterations == 3 and returned[5].param_groups[0]["lr"] == 0.5
    assert [type(each) for each in returned] == [type(each) for each in objects]


@pytest.mark.usefixtures("forks_spawned")
def test_workers_of_a_loader_have_poptorch_too(poptorch):
    """Also those that start afresh, with the data that the parent sends them."""
    loader = poptorch.DataLoader(
        poptorch.Options().deviceIterations(2),
        Versions(),
        batch_size=2,
        num_workers=1,
        multiprocessing_context="spawn",
        persistent_workers=False,
    )
    assert [batch.tolist() for batch in loader] == [[3.0] * 4, [3.0] * 4]


class Versions(torch.utils.data.Dataset):
    """Eight times the major version of PopTorch."""

    def __len__(self):
        return 8

    def __getitem__(self, index):
        import poptorch

        return float(poptorch.__version__.split(".")[0])


@pytest.mark.parametrize("import_effects", [False, True])
def test_undoing_leaves_nothing_behind(import_effects):
    before = state_of_the_process()
    with install(import_effects=import_effects):
        importlib.import_module("poptorch.testing")
        for name in PACKAGES:
            importlib.import_module(name)
        assert [str(Path(STAND_INS, name)) for name in PACKAGES] == sys.path[-4:]
    assert state_of_the_process() == before
    assert importlib.util.find_spec("poptorch") is None
    with pytest.raises(importlib.metadata.PackageNotFoundError):
        importlib.metadata.version("poptorch")
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("poptorch")


def test_an_error_in_the_block_undoes_it_too():
    with pytest.raises(ZeroDivisionError), install():
        raise ZeroDivisionError
    assert not any(path.startswith(STAND_INS) for path in sys.path)


def test_overlapping_installations_last_until_all_are_undone():
    first, second = install(), install()
    module = importlib.import_module("poptorch")
    first.undo()
    first.undo()
    assert importlib.import_module("poptorch") is module
    second.undo()
    assert "poptorch" not in sys.modules


def test_import_effects_are_those_with_a_meaning_here(monkeypatch):
    monkeypatch.delenv("RDMAV_FORK_SAFE", raising=False)
    with install():
        assert "RDMAV_FORK_SAFE" not in os.environ and sys.excepthook is not logs.log_uncaught
    with install(import_effects=True):
        assert os.environ["RDMAV_FORK_SAFE"] == "1"
        assert sys.excepthook is logs.log_uncaught
    assert "RDMAV_FORK_SAFE" not in os.environ


def test_an_excepthook_set_meanwhile_stays(monkeypatch):
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    with install(import_effects=True):
        sys.excepthook = mine = lambda *_: None
    assert sys.excepthook is mine


@pytest.mark.parametrize("content", ["__version__ = '3.3.0+1234'", "raise ImportError('Unable to import PopTorch')"])
@pytest.mark.parametrize("imported", [False, True])
def test_a_real_poptorch_is_never_shadowed(tmp_path, monkeypatch, content, imported):
    """Also not one that does not import: a broken SDK must not turn into a run on the CPU."""
    (tmp_path / "poptorch").mkdir()
    (tmp_path / "poptorch" / "__init__.py").write_text(content)
    monkeypatch.syspath_prepend(str(tmp_path))
    if imported and "raise" not in content:
        importlib.import_module("poptorch")
    before = state_of_the_process()
    try:
        with pytest.raises(RuntimeError, match="There is a module poptorch already"):
            install()
        assert state_of_the_process() == before
    finally:
        sys.modules.pop("poptorch", None)


def test_a_directory_that_happens_to_have_the_name_is_not_in_the_way(tmp_path, monkeypatch):
    (tmp_path / "poptorch").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    with install():
        assert importlib.import_module("poptorch").Options is emulator.Options


def test_the_metadata_tell_the_emulators_version():
    (directory,) = Path(STAND_INS).rglob("*.dist-info")
    assert f"poptorch-{emulator.__version__}.dist-info" == directory.name


# -- scripts -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def script(tmp_path):
    def write(text):
        path = tmp_path / "scripts" / "program.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(textwrap.dedent(text))
        return str(path)

    return write


def test_a_program_runs_as_on_a_machine_with_the_sdk(script):
    path = script(
        """
        import sys
        import poptorch
        import neighbour
        import torch
        model = torch.nn.Linear(2, 1)
        out = poptorch.inferenceModel(model)(torch.ones(3, 2))
        assert __name__ == "__main__"
        argv = sys.argv
        """
    )
    (Path(path).parent / "neighbour.py").write_text("")
    before = state_of_the_process()
    found = run_script(path, ["--epochs", "2"])
    sys.modules.pop("neighbour")
    assert found["out"].shape == (3, 1) and found["argv"] == [path, "--epochs", "2"]
    assert state_of_the_process() == before


def test_a_program_that_exits_or_fails_leaves_nothing_behind(script):
    before = state_of_the_process()
    with pytest.raises(SystemExit) as exit_:
        run_script(script("import poptorch, sys; sys.exit(3)"))
    assert exit_.value.code == 3
    with pytest.raises(ValueError, match="mine"):
        run_script(script("raise ValueError('mine')"))
    assert state_of_the_process() == before


def test_processes_that_a_program_starts_have_poptorch_too(script, processes):
    """By multiprocessing, which sends them `sys.path`, and as programs of their own."""
    path = script(
        """
        import multiprocessing, subprocess, sys
        import poptorch

        def version(queue):
            import poptorch
            queue.put(poptorch.__version__)

        if __name__ == "__main__":
            context = multiprocessing.get_context("spawn")
            queue = context.SimpleQueue()
            process = context.Process(target=version, args=(queue,))
            process.start()
            print(queue.get())
            process.join()
            print(subprocess.run([sys.executable, "-c", "import poptorch; print(poptorch.__version__)"],
                                 capture_output=True, text=True, check=True).stdout.strip())
        """
    )
    code = f"from ignite_ipu.emulator import run_script; run_script({path!r})"
    run = processes.run(["-c", code], check=True, forks=True)
    assert run.stdout.split() == [emulator.__version__] * 2


def test_an_uncaught_error_of_a_program_is_logged(script, processes):
    code = f"from ignite_ipu.emulator import run_script; run_script({script('1 / 0')!r})"
    run = processes.run(["-c", code])
    assert run.returncode == 1 and "ZeroDivisionError" in run.stderr
