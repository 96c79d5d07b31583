"""`ignite-ipu launch`: its command lines, and jobs of two processes on emulators."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from ignite_ipu.cli import command as cli
from ignite_ipu.cli import instance
from ignite_ipu.cli.instance import job_description, poprun_variables
from ignite_ipu.cli.launch import Job, command, environment
from ignite_ipu.launched import rendezvous
from tests.ignite.side import differences
from tests.test_docs import python_blocks
from tests.together import together

_ROOT = Path(__file__).parents[2]
_JOB = _ROOT / "tests" / "ignite" / "job.py"


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.py"
    path.write_text("print('trained')\n")
    return path


def test_on_a_pod_poprun_starts_the_processes(script):
    job = Job(str(script), ["--epochs", "3"], instances=4, replicas=8, ipus_per_replica=2, hosts=["a", "b"])
    assert command(job, "poprun") == [
        "poprun",
        "--num-instances=4",
        "--num-replicas=8",
        "--ipus-per-replica=2",
        "--host=a,b",
        sys.executable,
        "-m",
        "ignite_ipu.cli.instance",
        str(script),
        "--epochs",
        "3",
    ]
    assert environment(job, "poprun") == {"MASTER_ADDR": "a"}


def test_elsewhere_torch_starts_them(script, monkeypatch):
    """The replicas of all processes are shared out; each process's options get its part by PopTorch's own variable."""
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    monkeypatch.setenv("POPTORCH_DEFAULT_OPTIONS", '{"deviceIterations": 5}')
    job = Job(str(script), [], instances=2, replicas=8, restarts=3)
    assert command(job, "elastic")[1:] == [
        *("-m", "ignite_ipu.cli.instance", "-m", "torch.distributed.run"),
        *("--standalone", "--nproc-per-node=2", "--max-restarts=3"),
        *("-m", "ignite_ipu.cli.instance", str(script)),
    ]
    variables = environment(job, "elastic")
    assert variables.pop("TORCH_DISABLE_SHARE_RDZV_TCP_STORE") == "1"
    assert variables.pop("IGNITE_IPU_JOB") == "8:1"
    (variable,) = variables.items()
    assert variable[0] == "POPTORCH_DEFAULT_OPTIONS"
    assert json.loads(variable[1]) == {"deviceIterations": 5, "replicationFactor": 4}


def test_dry_run_shows_the_command_and_starts_nothing(script, capsys):
    words = ["launch", "--instances", "2", "--launcher", "poprun", "--dry-run", str(script), "--lr", "0.1"]
    assert cli.main(words) == 0
    shown = capsys.readouterr().out.strip()
    assert shown.startswith("poprun --num-instances=2 --num-replicas=2 --ipus-per-replica=1 ")
    assert shown.endswith(f"-m ignite_ipu.cli.instance {script} --lr 0.1")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--instances", "4", "--replicas", "6"], "--replicas 6 cannot be shared evenly by --instances 4"),
        (["--instances", "2", "--restarts", "-1"], "--restarts -1"),
        (["--instances", "2", "--hosts", "a,b", "--launcher", "elastic"], "--hosts needs PopRun"),
        (["--instances", "2", "--launcher", "poprun"], "PopRun is not installed"),
    ],
)
def test_what_cannot_be_launched_is_refused(script, capsys, words, says):
    assert cli.main(["launch", *words, str(script)]) == cli.EXIT_USER_ERROR
    assert says in capsys.readouterr().err


def test_a_missing_program_is_refused(capsys):
    assert cli.main(["launch", "--instances", "2", "nowhere.py"]) == cli.EXIT_USER_ERROR
    assert "no program 'nowhere.py'" in capsys.readouterr().err


def test_poprun_variables_are_translated_for_torch():
    mpi = {
        "OMPI_COMM_WORLD_RANK": "5",
        "OMPI_COMM_WORLD_SIZE": "8",
        "OMPI_COMM_WORLD_LOCAL_RANK": "1",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
        "MASTER_ADDR": "a",
    }
    assert rendezvous(mpi) == {
        "RANK": "5",
        "WORLD_SIZE": "8",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "4",
        "MASTER_PORT": "29500",
    }
    assert rendezvous({}) == {}


def test_torchs_launcher_describes_a_process_as_poprun_does():
    """Among the variables that a program for a Pod reads are its first replica, and its number for plain options."""
    own = {"RANK": "1", "WORLD_SIZE": "2", **job_description(8, 2)}
    found = poprun_variables(own)
    assert (found["POPDIST_NUM_TOTAL_REPLICAS"], found["POPDIST_NUM_LOCAL_REPLICAS"]) == ("8", "4")
    assert (found["POPDIST_REPLICA_INDEX_OFFSET"], found["POPDIST_NUM_IPUS_PER_REPLICA"]) == ("4", "2")
    assert (found["OMPI_COMM_WORLD_RANK"], found["OMPI_COMM_WORLD_SIZE"]) == ("1", "2")
    assert poprun_variables({"RANK": "1", "WORLD_SIZE": "2"}) == poprun_variables(job_description(8, 2)) == {}


def test_a_program_for_a_pod_runs_as_it_is(tmp_path):
    """It imports PopDist and PopTorch, which are the emulator's, and its instances are connected."""
    script = tmp_path / "train.py"
    script.write_text(
        "import popdist, popdist.poptorch, torch\n"
        "import horovod.torch as hvd\n"
        "popdist.init()\n"
        "hvd.init()\n"
        "options = popdist.poptorch.Options(ipus_per_replica=1)\n"
        "total = hvd.allreduce(torch.tensor([options.replication_factor]), op=hvd.Sum)\n"
        f"open(f'{tmp_path}/{{popdist.getInstanceIndex()}}', 'w').write(str(total.item()))\n"
    )
    _run_as_launched(script, replicas=4)
    assert [(tmp_path / str(rank)).read_text() for rank in range(2)] == ["4", "4"]


def test_poprun_starts_the_processes_where_it_is(tmp_path, monkeypatch, capfd, processes):
    """A loop of accelerate finds processes and replicas without a flag; the summary counts the samples of all."""
    monkeypatch.setattr(sys, "executable", processes.python)
    (tmp_path / "bin").mkdir()
    poprun = tmp_path / "bin" / "poprun"
    poprun.write_text(f'#!/bin/sh\nexec {sys.executable} -m ignite_ipu.emulator.poprun "$@"\n')
    poprun.chmod(0o755)
    for name, value in {**_environment(), "PATH": f"{poprun.parent}:{os.environ['PATH']}"}.items():
        monkeypatch.setenv(name, value)
    script = tmp_path / "train.py"
    script.write_text(
        "import popdist, poptorch, torch\n"
        "from torch import nn\n"
        "from torch.utils.data import DataLoader, TensorDataset\n"
        "from ignite_ipu import IPUAccelerator, create_ipu_trainer\n"
        "assert popdist.getNumTotalReplicas() == 4 and poptorch.ipuHardwareIsAvailable()\n"
        "accelerator = IPUAccelerator(gradient_accumulation_steps=2)\n"
        "data = TensorDataset(torch.randn(32, 4), torch.zeros(32).long())\n"
        "model = nn.Linear(4, 2)\n"
        "parts = model, torch.optim.SGD(model.parameters(), lr=0.1), DataLoader(data, batch_size=4)\n"
        "model, optimizer, loader = accelerator.prepare(*parts)\n"
        "for x, y in loader:\n"
        "    with accelerator.accumulate(model):\n"
        "        accelerator.backward(nn.functional.cross_entropy(model(x), y))\n"
        "        optimizer.step()\n"
        "        optimizer.zero_grad()\n"
        "weights = accelerator.gather(accelerator.unwrap_model(model).weight.detach())\n"
        "assert torch.equal(weights[:2], weights[2:]) and len(loader) == 4\n"
        "other = nn.Linear(4, 2)\n"
        "torch.nn.init.zeros_(other.weight), torch.nn.init.zeros_(other.bias)\n"
        "sgd = torch.optim.SGD(other.parameters(), lr=0.1)\n"
        "trainer = create_ipu_trainer(other, sgd, nn.CrossEntropyLoss(), gradient_accumulation_steps=2)\n"
        "trainer.run(DataLoader(data, batch_size=4), max_epochs=1)\n"
        "accelerator.print(accelerator.num_processes, 'processes', trainer.ipu)\n"
    )
    assert cli.main(["launch", "--instances", "2", "--replicas", "4", str(script)]) == 0
    out = capfd.readouterr().out
    assert out.count("2 processes") == 1
    assert (
        "4 (micro-batch) x 2 (gradientAccumulation) x 2 (replicationFactor) x 2 (processes) = 32 samples per weight"
        in out
    )


def _run_as_launched(script, replicas=2):
    """Run a program in two processes that torch's launcher would start."""
    job = Job(str(script), [], instances=2, replicas=replicas)
    together(_run_instance, script, environment(job, "elastic"))


def _run_instance(script, variables):
    os.environ.update(variables)
    instance.main([str(script)])


def _launch(processes, *words):
    words = ["-m", "ignite_ipu", "launch", "--instances", "2", *words]
    return processes.run(words, cwd=_ROOT, env=_environment(), forks=True)


@pytest.mark.skipif(
    torch.__version__.startswith("2.0."),
    reason="PyTorch 2.0 can wait for ever when it destroys restarted process groups",
)
def test_two_processes_train_as_one_even_when_one_of_them_dies(tmp_path, scripts, processes):
    """Weights, losses and metrics of two processes are those of one; the job survives an accident by its checkpoint."""
    assert scripts.run(_JOB, "emulator", str(tmp_path / "one.json")).error == ""
    job = _launch(processes, "--restarts", "1", str(_JOB), str(tmp_path / "two.json"), str(tmp_path / "accident"))
    assert job.returncode == 0, job.stderr
    one, two = (json.loads((tmp_path / name).read_text()) for name in ("one.json", "two.json"))
    assert (one.pop("world"), two.pop("world")) == (1, 2)
    assert (one.pop("resumed_from"), two.pop("resumed_from")) == (0, 1)
    assert differences(one, two, tolerance=1e-5) == []


def test_the_documented_program_trains_one_model(tmp_path):
    """Two processes share the data of the page's program, so that each makes half of the calls that one alone makes."""
    page = (_ROOT / "docs" / "distributed.md").read_text()
    program = next(block.code for block in python_blocks(page))
    script = tmp_path / "train.py"
    note = f"    open(f'{tmp_path}/{{idist.get_rank()}}', 'w').write(str(len(data) // len(loader.sampler)))"
    script.write_text(program.replace("    trainer.ipu.close()", note))
    _run_as_launched(script)
    assert [(tmp_path / str(rank)).read_text() for rank in range(2)] == ["2", "2"]


def test_a_worker_that_dies_takes_the_job_down(tmp_path, processes):
    script = tmp_path / "dies.py"
    script.write_text("import os, time\ntime.sleep(0.1 if os.environ['RANK'] == '1' else 60)\nraise SystemExit(7)\n")
    job = _launch(processes, str(script))
    assert job.returncode == cli.EXIT_FINDINGS
    assert f"a process of {script} died and the others were ended" in job.stderr
    assert "exitcode  : 7" in job.stderr


def _environment():
    return {**os.environ, "PYTHONPATH": str(_ROOT), "OMP_NUM_THREADS": "1"}


def test_an_instance_runs_the_program_as_python_would(tmp_path):
    (tmp_path / "neighbour.py").write_text("word = 'found'\n")
    script = tmp_path / "program.py"
    script.write_text("import os, sys, neighbour\nprint(os.environ['RANK'], sys.argv[1:], neighbour.word, __name__)\n")
    mpi = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}
    words = [sys.executable, "-m", "ignite_ipu.cli.instance", str(script), "--lr", "1"]
    environment = {**_environment(), **mpi}
    run = subprocess.run(words, env=environment, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "1 ['--lr', '1'] found __main__"
