"""A job of two instances that uses everything of PopDist and Horovod; each writes its results to `argv[1]`."""

from __future__ import annotations

import json
import sys

import horovod.torch as hvd
import popdist
import popdist.poptorch
import poptorch
import torch


class Exchange(torch.nn.Module):
    """A row of a parameter for each of four replicas, whose values and gradients cross between all of them."""

    def __init__(self):
        super().__init__()
        self.row = torch.nn.Parameter(torch.arange(2.0).reshape(1, 2))

    def forward(self, x):
        given = (x + self.row).flatten()
        gathered = poptorch.custom_op([given], "ReplicatedAllGather", "ai.graphcore", 1, [torch.zeros(4, 2)])[0]
        again = {"op": "add", "backwards": 1}
        summed = poptorch.custom_op(
            [gathered], "ReplicatedAllReduceTP", "ai.graphcore", 1, [torch.zeros(4, 2)], attributes=again
        )[0]
        return gathered, poptorch.identity_loss((summed * given).sum(), "sum")


def exchanged():
    """The values that each local replica gathers, and the parameter after an update over all replicas."""
    model = Exchange()
    options = popdist.poptorch.Options(ipus_per_replica=1)
    options.outputMode(poptorch.OutputMode.All).showCompilationProgressBar(False)
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.01)
    first = 2 * popdist.getInstanceIndex()
    x = torch.tensor([[first, 0.0], [first + 1, 0.0]])
    return poptorch.trainingModel(model, options, optimizer)(x)[0].tolist(), model.row.tolist()


if __name__ == "__main__":
    found = {"before": popdist.isBackendInitialized()}
    try:
        hvd.rank()
    except ValueError as error:
        found["without init"] = str(error)
    hvd.init()
    popdist.init()
    popdist.init()
    own = popdist.getInstanceIndex()
    value = torch.tensor([1.0 + own, 4.0])
    found["sizes"] = [popdist.isBackendInitialized(), hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size()]
    found["mean"] = hvd.allreduce(value).tolist()
    found["sum"] = hvd.allreduce(value, op=hvd.Sum).tolist()
    found["deprecated sum"] = hvd.allreduce(value, average=False).tolist()
    found["integers"] = hvd.allreduce(torch.tensor([own + 1, 4])).tolist()
    found["half"] = hvd.allreduce(value.half(), op=hvd.Sum).tolist()
    found["grouped"] = [each.tolist() for each in hvd.grouped_allreduce([value, value[:1]], op=hvd.Sum)]
    found["broadcast"] = hvd.broadcast(value, root_rank=1).tolist()
    found["gathered"] = hvd.allgather(torch.full((own + 1, 2), float(own))).tolist()
    found["untouched"] = value.tolist()
    torch.manual_seed(own)
    model = torch.nn.BatchNorm1d(2)
    torch.nn.init.normal_(model.weight)
    for parameters in (model.state_dict(), model.named_parameters(), list(model.parameters())):
        hvd.broadcast_parameters(parameters, root_rank=0)
    found["weight"] = model.weight.tolist()
    found["first only"] = popdist.execute_on_instances({0}, lambda x, y: x + y, 1, y=2)
    found["both"] = popdist.execute_on_instances({0, 1}, hvd.allreduce, value).tolist()
    try:
        found["hangs"] = popdist.execute_on_instances({1}, hvd.allreduce, value)
    except RuntimeError as error:
        found["hangs"] = str(error)
    try:
        popdist.execute_on_instances({2}, print)
    except ValueError as error:
        found["no such instance"] = str(error)
    popdist.synchronize()
    found["exchanged"] = exchanged()
    with open(f"{sys.argv[1]}/{own}.json", "w") as file:
        json.dump(found, file)
