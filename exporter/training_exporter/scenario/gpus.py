"""What the GPU source would say: one sample per GPU and second."""

from __future__ import annotations

from dataclasses import replace

from training_exporter.model import GpuDevice, GpuProcess, GpuSample, XidEvent
from training_exporter.scenario.draws import Moment
from training_exporter.scenario.processes import ProcessModel
from training_exporter.scenario.records import Gpu, Scenario, Segment

MIB = 1024 * 1024
# What the driver keeps for itself without any context; a context takes hundreds of MiB.
DRIVER_MIB = 64.0
CLOCK_EVENTS = frozenset(
    {
        "applications_clocks_setting",
        "display_clock_setting",
        "gpu_idle",
        "hw_power_brake_slowdown",
        "hw_slowdown",
        "hw_thermal_slowdown",
        "sw_power_cap",
        "sw_thermal_slowdown",
        "sync_boost",
    }
)


class GpuModel:
    """The GPUs of the node; GPU i is that of rank i. Under MIG each is one instance that fills its GPU."""

    def __init__(self, scenario: Scenario, processes: ProcessModel) -> None:
        self._hardware = scenario.hardware
        self._processes = processes
        self._mig = scenario.run.mig
        self._devices = tuple(self._device(number) for number in range(scenario.ranks))
        self._instances = tuple(self._instance(device) for device in self._devices)
        self._joules = [0.0] * scenario.ranks
        self._xids: dict[int, tuple[int, ...]] = {}

    def enter(self, segment: Segment) -> None:
        """Note the events of the new segment."""
        for number, rank in enumerate(segment.ranks):
            self._xids[number] = self._xids.get(number, ()) + rank.gpu.xids

    def sample(self, segment: Segment, moments: tuple[Moment, ...], now: float) -> tuple[GpuSample, ...]:
        """The samples of this second, and the events since the sample before."""
        samples: list[GpuSample] = []
        for number, (rank, moment) in enumerate(zip(segment.ranks, moments, strict=True)):
            if rank.gpu.lost:
                samples.append(GpuSample(now, self._devices[number], xids=self._new_xids(number, now), lost=True))
                continue
            samples.append(self._physical(number, rank.gpu, moment, now))
            if self._mig:
                samples.append(self._part(number, moment, now))
        return tuple(samples)

    def advance(self, moments: tuple[Moment, ...]) -> None:
        """One second of energy."""
        for number, moment in enumerate(moments):
            self._joules[number] += moment.watts

    def _physical(self, number: int, gpu: Gpu, moment: Moment, now: float) -> GpuSample:
        # in MIG mode the driver tells no utilisation, and memory and processes of the instances only
        return GpuSample(
            time_seconds=now,
            device=self._devices[number],
            utilization_ratio=None if self._mig else moment.util / 100,
            memory_utilization_ratio=None if self._mig else moment.mem_util / 100,
            power_watts=moment.watts,
            power_limit_watts=self._hardware.limit_watts,
            energy_joules=self._joules[number],
            memory_used_bytes=None if self._mig else round((moment.memory_mib + moment.other_mib) * MIB),
            memory_total_bytes=None if self._mig else round(self._hardware.memory_total_mib * MIB),
            temperature_celsius=moment.temp_c,
            sm_clock_hertz=None if moment.sm_mhz is None else moment.sm_mhz * 1e6,
            clock_events=gpu.clock_events,
            clock_events_known=CLOCK_EVENTS | gpu.clock_events,
            processes=None if self._mig else self._holders(number, moment),
            xids=self._new_xids(number, now),
        )

    def _part(self, number: int, moment: Moment, now: float) -> GpuSample:
        return GpuSample(
            time_seconds=now,
            device=self._instances[number],
            memory_used_bytes=round((moment.memory_mib + moment.other_mib) * MIB),
            memory_total_bytes=round(self._hardware.memory_total_mib * MIB),
            processes=self._holders(number, moment),
        )

    def _new_xids(self, number: int, now: float) -> tuple[XidEvent, ...]:
        return tuple(XidEvent(xid, now) for xid in self._xids.pop(number, ()))

    def _holders(self, number: int, moment: Moment) -> tuple[GpuProcess, ...]:
        pids = self._processes.context_pids(number) if moment.memory_mib > DRIVER_MIB else ()
        share = round(moment.memory_mib * MIB / len(pids)) if pids else 0
        own = tuple(GpuProcess(pid, share) for pid in pids)
        neighbour = self._processes.neighbour_pid(number)
        other = () if neighbour is None else (GpuProcess(neighbour, round(moment.other_mib * MIB)),)
        return own + other

    def _device(self, number: int) -> GpuDevice:
        return GpuDevice(
            gpu=str(number),
            uuid=f"GPU-5ce0a710-0000-4000-8000-{number:012x}",
            name=self._hardware.name,
            pci_bus_id=f"00000000:{0x10 + number:02X}:00.0",
            driver_version="570.124.06",
            mig=self._mig,
        )

    @staticmethod
    def _instance(device: GpuDevice) -> GpuDevice:
        uuid = device.uuid.replace("GPU-", "MIG-")
        return replace(device, gpu=f"{device.gpu}:0", uuid=uuid, parent=device.gpu)
