"""Two instances talk to each other; one instance alone; and PopRun's command line."""

from __future__ import annotations

import json
import signal
import warnings
from pathlib import Path

import pytest
import torch

from ignite_ipu.emulator import poprun
from ignite_ipu.emulator.popdist import communication, horovod
from tests.together import run_in_instances

_JOB = Path(__file__).parent / "job.py"


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """The results of each of two instances."""
    folder = tmp_path_factory.mktemp("job")
    run_in_instances(_JOB, str(folder), job=poprun.Job(instances=2, replicas=4))
    return [json.loads((folder / f"{instance}.json").read_text()) for instance in range(2)]


def test_instances_are_connected_by_whichever_init_comes_first(seen):
    assert [each["before"] for each in seen] == [False, False]
    assert seen[0]["without init"] == "Horovod has not been initialized; use hvd.init()."
    assert [each["sizes"] for each in seen] == [[True, 0, 2, 0, 2], [True, 1, 2, 1, 2]]


def test_values_are_reduced_broadcast_and_gathered(seen):
    for each in seen:
        assert each["mean"] == [1.5, 4] and each["sum"] == each["deprecated sum"] == each["half"] == [3, 8]
        assert each["integers"] == [1, 4]  # whole numbers are divided as such
        assert each["grouped"] == [[3, 8], [3]]
        assert each["broadcast"] == [2, 4]
        assert each["gathered"] == [[0, 0], [1, 1], [1, 1]]
    assert [each["untouched"] for each in seen] == [[1, 4], [2, 4]]


def test_parameters_of_the_root_replace_the_others(seen):
    torch.manual_seed(0)
    weight = torch.nn.init.normal_(torch.nn.Parameter(torch.ones(2))).tolist()
    assert [each["weight"] for each in seen] == [pytest.approx(weight)] * 2


def test_a_function_runs_on_some_instances_only(seen):
    assert [each["first only"] for each in seen] == [3, None]
    assert [each["both"] for each in seen] == [[1.5, 4]] * 2
    # On a Pod this one would wait for the other instance for ever.
    assert "on a Pod the program would hang" in seen[1]["hangs"] and seen[0]["hangs"] is None
    assert "numbered from 0" in seen[0]["no such instance"]


def test_replicas_exchange_values_and_gradients_over_all_instances(seen):
    """As plain PyTorch does on the stacked rows: a replica's gradient comes from the losses of all of them."""
    row = torch.arange(2.0).reshape(1, 2).requires_grad_()
    given = torch.tensor([[0.0, 0], [1, 0], [2, 0], [3, 0]]) + row
    for gathered, _ in (each["exchanged"] for each in seen):
        assert gathered == given.tolist() * 2
    loss = sum((given * given[replica]).sum() for replica in range(4))
    loss.backward()
    expected = (row - 0.01 * row.grad / 4).tolist()[0]
    assert [each["exchanged"][1][0] for each in seen] == [pytest.approx(expected)] * 2


@pytest.fixture
def alone():
    horovod.init()
    yield
    horovod.shutdown()
    communication.finalizeBackend()


@pytest.mark.usefixtures("alone")
def test_alone_values_stay_as_they_are():
    value = torch.tensor([[1.5, 2.0]])
    for result in (
        horovod.allreduce(value),
        horovod.broadcast(value, 0),
        horovod.allgather(value),
        horovod.grouped_allreduce([value])[0],
        communication.execute_on_instances({0}, torch.clone, value),
    ):
        assert torch.equal(result, value) and result is not value
    assert horovod.allreduce(value, prescale_factor=2.0, postscale_factor=2.0).tolist() == [[6.0, 8.0]]
    communication.synchronize()


@pytest.mark.usefixtures("alone")
def test_wrong_arguments_raise_what_horovod_raises():
    value = torch.ones(1)
    with pytest.raises(ValueError, match="supersedes average"):
        horovod.allreduce(value, average=True, op=horovod.Sum)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        horovod.allreduce(value, average=True)
    assert [each.category for each in caught] == [DeprecationWarning]
    for wrong in (value, "weights", 3):
        with pytest.raises(ValueError, match="invalid params of type"):
            horovod.broadcast_parameters(wrong, 0)


def test_several_instances_must_be_connected(monkeypatch):
    for name, value in poprun.Job(2, 2).variables(0).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(RuntimeError, match=r"Call popdist.init\(\) first"):
        communication.synchronize()
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    with pytest.raises(RuntimeError, match="not where they meet"):
        communication.init()


def run(capfd, *words):
    code = poprun.main(words)
    captured = capfd.readouterr()
    return code, captured.out, captured.err


def test_poprun_takes_the_options_of_programs_readme_files(capfd, monkeypatch):
    """Values after a blank or an equals sign, truths with or without a value, and mpirun's own arguments."""
    monkeypatch.setenv("PASSED", "on")
    code, out, _ = run(
        capfd,
        *(
            "--vv",
            "--num-instances",
            "2",
            "--num-replicas=4",
            "--ipus-per-replica",
            "2",
            "--numa-aware",
            "--host=localhost",
        ),
        *("--vipu-server-host=a", "--vipu-partition", "p", "--vipu-server-timeout=3600", "--update-partition=no"),
        *("--remove-partition", "0", "--executable-cache-path", "cache", "--print-topology=yes"),
        *("--mpi-global-args=--tag-output --allow-run-as-root", "--mpi-local-args", "-x PASSED -x SET=1"),
        *("--instance-mpi-local-args", '1:"-x SET=2"'),
        *("sh", "-c", "echo $PASSED $SET $POPDIST_NUM_LOCAL_REPLICAS $POPDIST_NUM_IPUS_PER_REPLICA $0 --num-replicas"),
        *("$POPDIST_EXECUTABLE_CACHE_PATH",),
    )
    assert code == 0
    assert "poprun: instance 1: replicas 2 to 3\n" in out
    lines = [line for line in out.splitlines() if line.startswith("[")]
    assert sorted(lines) == [
        f"[1,{instance}]<stdout>:on {instance + 1} 2 2 $POPDIST_EXECUTABLE_CACHE_PATH --num-replicas"
        for instance in range(2)
    ]


def test_poprun_shows_one_instance_and_ends_all_when_one_fails(capfd):
    """The exit code is that of the instance that failed, which may be a hidden one."""
    program = "echo here; if [ $POPDIST_LOCAL_INSTANCE_INDEX = 1 ]; then exit 7; fi; exec sleep 100"
    words = ("--num-instances=2", "--num-replicas=2", "--only-output-from-instance=0", "sh", "-c", program)
    code, out, err = run(capfd, *words)
    assert (code, out) == (7, "here\n")
    assert "instance 1 of 2 ended with exit code 7; the others are ended" in err
    assert run(capfd, "sh", "-c", "kill -9 $$")[0] == 128 + signal.SIGKILL


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--num-instances=2", "true"], "cannot be shared evenly"),
        (["--num-replicas=0", "true"], "no positive number"),
        (["--num-replica=2", "true"], "num-replica"),
        (["--host=other", "true"], "emulators run on this machine alone"),
        (["--update-partition=maybe", "true"], "neither yes nor no"),
        (["--only-output-from-instance=1", "true"], "numbered from 0 to 0"),
        (["--num-replicas=2"], "no program to run"),
        (["no-such-program"], "cannot be started"),
    ],
)
def test_poprun_refuses_what_it_cannot_run(capfd, words, says):
    with pytest.raises(SystemExit) as exit_:
        poprun.main(words)
    assert exit_.value.code == 2 and says in capfd.readouterr().err
