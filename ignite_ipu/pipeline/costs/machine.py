"""Capacities of an IPU system: published figures, and the assumptions that turn them into estimates."""

from __future__ import annotations

from dataclasses import dataclass, fields

from ignite_ipu.capabilities.gpu import IPU_MEMORY
from ignite_ipu.errors import PlanError


@dataclass(frozen=True)
class Machine:
    """Memory, arithmetic and links of one kind of IPU system, in bytes, floating-point operations and seconds.

    The defaults describe Mk2 systems. Published by Graphcore: the GC200's 900 MB of In-Processor-Memory, 250 TFLOPS in
    float16, 62.5 TFLOPS in float32, 47.5 TB/s of memory bandwidth and 320 GB/s of IPU-Links in both directions together
    (GC200 and IPU-M2000 product pages and datasheet); four IPUs to an IPU-M2000, 100 Gb/s of Ethernet from it to the
    host and two 100 Gb/s IPU-GW-Links to other racks (IPU-M2000 datasheet); 64 IPUs to a Pod's IPU-Link domain
    (IPU-POD64 and IPU-POD256 datasheets). Everything listed under "assumptions" is ours and unpublished: change it when
    you have measured.

    Args:
        name: Name of this machine in tables.
        memory: In-Processor-Memory of one IPU.
        float16_flops: Peak rate of one IPU when a layer's parameters are 16 bits wide.
        float32_flops: Peak rate of one IPU otherwise.
        memory_bandwidth: Reads and writes of one IPU in its own memory, bytes per second.
        ipu_link_bandwidth: Bytes per second of one IPU over IPU-Links in one direction.
        gateway_bandwidth: Bytes per second of one unit to other link domains in one direction.
        host_bandwidth: Bytes per second between one unit and its host in one direction.
        ipus_per_unit: IPUs that share a host link and a gateway (one IPU-M2000).
        ipus_per_link_domain: IPUs that reach one another over IPU-Links alone.
        ipus_per_process: IPUs that one PopTorch process may request; more need `poptorch.Options.Distributed`.
        usable_fraction: Assumption: share of the memory left for tensors beside code, exchange and alignment.
        compute_efficiency: Assumption: share of the peak rate that matrix products and convolutions reach.
        memory_efficiency: Assumption: share of the memory bandwidth that other operators reach.
        link_efficiency: Assumption: share of any link's bandwidth that a transfer reaches.
        hop_latency: Assumption: seconds for one message between two IPUs.
        call_overhead: Assumption: seconds the host spends around one call of the executor.
    """

    name: str = "Mk2 (GC200)"
    memory: int = IPU_MEMORY
    float16_flops: float = 250e12
    float32_flops: float = 62.5e12
    memory_bandwidth: float = 47.5e12
    ipu_link_bandwidth: float = 160e9
    gateway_bandwidth: float = 25e9
    host_bandwidth: float = 12.5e9
    ipus_per_unit: int = 4
    ipus_per_link_domain: int = 64
    ipus_per_process: int = 64
    usable_fraction: float = 0.8
    compute_efficiency: float = 0.4
    memory_efficiency: float = 0.2
    link_efficiency: float = 0.7
    hop_latency: float = 2e-6
    call_overhead: float = 1e-3

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name.endswith(("_fraction", "_efficiency")):
                if not 0 < value <= 1:
                    raise PlanError(f"Machine.{field.name} is {value}, but a share lies above 0 and at most at 1.")
            elif field.name not in ("name", "hop_latency", "call_overhead") and value <= 0:
                raise PlanError(f"Machine.{field.name} is {value}, but must be positive.")

    @property
    def usable_memory(self) -> int:
        """Bytes of one IPU that the planner fills with tensors."""
        return int(self.memory * self.usable_fraction)

    def compute_seconds(self, flops: float, traffic: float, half: bool) -> float:
        """Estimate how long one IPU takes for `flops` of matrix arithmetic and `traffic` bytes of other operators."""
        peak = self.float16_flops if half else self.float32_flops
        return flops / (peak * self.compute_efficiency) + traffic / (self.memory_bandwidth * self.memory_efficiency)

    def link_seconds(self, bytes_moved: float) -> float:
        """Estimate how long one IPU takes to send `bytes_moved` to a neighbour over IPU-Links."""
        if bytes_moved <= 0:
            return 0.0
        return self.hop_latency + bytes_moved / (self.ipu_link_bandwidth * self.link_efficiency)

    def host_seconds(self, bytes_per_replica: float, ipus_per_replica: int, replicas: int) -> float:
        """Estimate how long every replica takes to exchange `bytes_per_replica` with the host, all at once.

        The units' host links are shared: ten replicas on one unit each get a tenth of its link.
        """
        units = -(-ipus_per_replica * replicas // self.ipus_per_unit)
        share = self.host_bandwidth * self.link_efficiency * units / replicas
        return bytes_per_replica / share

    def all_reduce_seconds(self, bytes_per_ipu: float, ipus_per_replica: int, replicas: int) -> float:
        """Estimate a gradient all-reduce over replicas, each IPU holding `bytes_per_ipu` of gradients.

        Rings: every IPU sends 2 (r - 1) / r of its bytes over IPU-Links to its peers in the same link domain. With
        several domains d, the reduced r-th parts then cross the gateways, 2 (d - 1) / d of them, four IPUs to a
        gateway.

        Source: the bandwidth bound of ring all-reduce, Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for
        clusters of workstations", 2009.
        """
        if replicas <= 1 or bytes_per_ipu <= 0:
            return 0.0
        inside = max(1, min(replicas, self.ipus_per_link_domain // ipus_per_replica))
        domains = -(-replicas // inside)
        seconds = 0.0
        if inside > 1:
            rate = self.ipu_link_bandwidth * self.link_efficiency
            seconds += 2 * (inside - 1) * (self.hop_latency + bytes_per_ipu / inside / rate)
        if domains > 1:
            rate = self.gateway_bandwidth * self.link_efficiency / self.ipus_per_unit
            seconds += 2 * (domains - 1) * (self.hop_latency + bytes_per_ipu / inside / domains / rate)
        return seconds


MK2 = Machine()
BOW = Machine(name="Bow", float16_flops=350e12, float32_flops=87.5e12, memory_bandwidth=65e12)
"""Same memory and links as Mk2, with the arithmetic and memory rates Graphcore publishes for the Bow IPU."""
