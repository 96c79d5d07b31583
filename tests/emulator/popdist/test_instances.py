"""PopRun's variables of an instance, and options made of them."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch

import ignite_ipu.emulator as poptorch
from ignite_ipu.emulator.popdist import instances
from ignite_ipu.emulator.popdist.instances import Job
from ignite_ipu.emulator.popdist.options import Options


@pytest.fixture
def second_of_four(monkeypatch):
    """Four instances with two replicas of two IPUs each; this is the second."""
    for name, value in Job(instances=4, replicas=8, ipus_per_replica=2).variables(1).items():
        monkeypatch.setenv(name, value)


def test_alone_there_is_one_instance_of_one_replica():
    assert not instances.isPopdistEnvSet()
    assert (instances.getNumInstances(), instances.getInstanceIndex(), instances.getLocalInstanceIndex()) == (1, 0, 0)
    assert (instances.getNumTotalReplicas(), instances.getNumLocalReplicas()) == (1, 1)
    assert (instances.getReplicaIndexOffset(), instances.getNumIpusPerReplica(), instances.getDeviceId()) == (0, 1, 0)


@pytest.mark.usefixtures("second_of_four")
def test_an_instance_reads_its_share_of_the_job():
    assert instances.isPopdistEnvSet()
    assert (instances.getNumInstances(), instances.getInstanceIndex(), instances.getLocalInstanceIndex()) == (4, 1, 1)
    assert (instances.getNumTotalReplicas(), instances.getNumLocalReplicas()) == (8, 2)
    assert instances.getReplicaIndexOffset() == 2
    assert instances.checkNumIpusPerReplica(2) and not instances.checkNumIpusPerReplica(1)


@pytest.mark.usefixtures("second_of_four")
def test_device_ids_are_numbered_by_size(monkeypatch):
    """With 16 IPUs: 16 single ones, 8 pairs, and then the fours, of which the second instance gets the second."""
    monkeypatch.setenv("IGNITE_IPU_EMULATED_IPUS", "16")
    assert instances.getDeviceId() == 16 + 8 + 1
    assert instances.getDeviceId(1) == 16 + 1
    monkeypatch.setenv("IGNITE_IPU_EMULATED_IPUS", "4")
    with pytest.raises(RuntimeError, match="needs a device of 4 IPUs, and the machine of 4 IPUs has 1"):
        instances.getDeviceId()


@pytest.mark.usefixtures("second_of_four")
def test_instances_that_differ_have_no_index(monkeypatch):
    monkeypatch.setenv("POPDIST_UNIFORM_REPLICAS_PER_INSTANCE", "0")
    assert instances.getNumTotalReplicas() == 8
    for function in (instances.getNumInstances, instances.getInstanceIndex):
        with pytest.raises(RuntimeError, match="the same number of replicas in each instance"):
            function()


def test_options_alone_are_those_of_one_process():
    for options in (Options(), Options(4), Options(ipus_per_replica=4)):
        assert isinstance(options, poptorch.Options)
        assert options.replication_factor == 1
        assert (options.Distributed.processId, options.Distributed.numProcesses) == (0, 1)
    executor = poptorch.inferenceModel(torch.nn.Identity(), Options().deviceIterations(2))
    assert executor(torch.ones(4)).tolist() == [1] * 4


@pytest.mark.usefixtures("second_of_four")
def test_options_have_the_replicas_of_the_instance():
    options = Options(ipus_per_replica=2)
    for each in (options, copy.deepcopy(options), options.clone(), pickle.loads(pickle.dumps(options))):
        assert type(each) is Options and each.replication_factor == 2
        assert (each.Distributed.processId, each.Distributed.numProcesses) == (1, 4)
    assert Options().replication_factor == 2


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("useIpuId", lambda options: options.useIpuId(1)),
        ("replicationFactor", lambda options: options.replicationFactor(2)),
        ("Distributed.disable", lambda options: options.Distributed.disable()),
        ("Distributed.setEnvVarNames", lambda options: options.Distributed.setEnvVarNames("A", "B")),
        ("Distributed.configureProcessId", lambda options: options.Distributed.configureProcessId(0, 2)),
    ],
)
def test_what_poprun_decides_cannot_be_set(name, call):
    with pytest.raises(RuntimeError, match=f"Cannot call `{name}` with popdist.poptorch.Options"):
        call(Options())


@pytest.mark.usefixtures("second_of_four")
def test_ipus_that_poprun_was_not_given_are_refused():
    with pytest.raises(RuntimeError, match=r"ipus_per_replica=4, and PopRun was given 2.*--ipus-per-replica=4"):
        Options(ipus_per_replica=4)


@pytest.mark.usefixtures("second_of_four")
def test_the_default_of_plain_options_does_not_replace_the_instances_replicas(monkeypatch):
    monkeypatch.setenv("POPTORCH_DEFAULT_OPTIONS", '{"replicationFactor": 16, "deviceIterations": 3}')
    assert (Options().replication_factor, Options().device_iterations) == (2, 3)


@pytest.mark.usefixtures("second_of_four")
def test_a_loader_gives_each_instance_its_part_of_the_data():
    """50,000 samples in batches of 32 over 8 replicas: 195 batches of 64 in each of 4 instances."""
    data = torch.utils.data.TensorDataset(torch.arange(50_000))
    loader = poptorch.DataLoader(Options(), data, batch_size=32)
    assert len(loader) == 195
    assert next(iter(loader))[0].tolist() == list(range(195 * 64, 196 * 64))
