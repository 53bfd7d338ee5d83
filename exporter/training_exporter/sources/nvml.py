"""NVML, through nvidia-ml-py: the only place that imports pynvml, and where the driver's sentinels end."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable
from typing import Any

import pynvml  # type: ignore[import-untyped]  # the vendor ships no types

from training_exporter.model import GpuDevice, GpuProcess
from training_exporter.sources.gpu_driver import (
    DriverMissingError,
    FastValues,
    FoundGpu,
    GpuDriverError,
    GpuEvent,
    GpuLostError,
    SessionLostError,
    SlowValues,
)

# nvmlClocksEventReasons of nvml.h, in the words of the metric label.
CLOCK_EVENTS = {
    0x001: "gpu_idle",
    0x002: "applications_clocks_setting",
    0x004: "sw_power_cap",
    0x008: "hw_slowdown",
    0x010: "sync_boost",
    0x020: "sw_thermal_slowdown",
    0x040: "hw_thermal_slowdown",
    0x080: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
}

_SESSION_LOST = {
    pynvml.NVML_ERROR_UNINITIALIZED,
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
}
_GPU_LOST = {
    pynvml.NVML_ERROR_GPU_IS_LOST,
    pynvml.NVML_ERROR_RESET_REQUIRED,
    pynvml.NVML_ERROR_GPU_NOT_FOUND,
}
# Answers of a healthy driver to a question that it cannot answer for this board, this user or at this moment.
_NO_VALUE = {
    pynvml.NVML_SUCCESS,  # nvmlDeviceGetProcessUtilization of the binding raises it for "no samples"
    pynvml.NVML_ERROR_INVALID_ARGUMENT,
    pynvml.NVML_ERROR_NOT_SUPPORTED,
    pynvml.NVML_ERROR_NO_PERMISSION,
    pynvml.NVML_ERROR_NOT_FOUND,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
    pynvml.NVML_ERROR_NO_DATA,
    pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
    pynvml.NVML_ERROR_DEPRECATED,
}

# Above these a number is a sentinel (all ones, possibly in another unit) or nonsense, never a reading.
MAX_PERCENT = 100
MAX_MILLIWATTS = 50_000_000
MAX_MILLIJOULES = 2**63
MAX_BYTES = 2**56
MAX_CELSIUS = 250
MAX_MEGAHERTZ = 20_000
MAX_MASK = 2**31
MAX_PID = 2**22  # the kernel's own limit of pid_max on 64 bit

MAX_EVENTS = 256  # in one call, so that a storm of them cannot hold the thread


class _Reader:
    """Asks one device (or the library, without a handle) for values, and remembers whether it answered at all."""

    def __init__(self, *handle: object) -> None:
        self._handle = handle
        self._answered = False
        self._error: str | None = None

    def ask(self, function: str, *arguments: object) -> Any:  # noqa: ANN401  # the binding has no types
        """The answer of the named function of the binding, or None; raises only for what concerns more than it."""
        try:
            answer = _call(function, *self._handle, *arguments)
        except (SessionLostError, GpuLostError):
            raise
        except GpuDriverError as error:
            self._error = str(error)
            return None
        self._answered = True
        return answer

    def first(self, *questions: tuple[object, ...]) -> Any:  # noqa: ANN401  # as above
        """The first answer to questions that older and newer drivers name differently."""
        for function, *arguments in questions:
            answer = self.ask(str(function), *arguments)
            if answer is not None:
                return answer
        return None

    def check(self) -> None:
        """Raise GpuDriverError if every question ended in a failure."""
        if self._error is not None and not self._answered:
            raise GpuDriverError(self._error)


class NvmlDriver:
    """The NVIDIA driver's library, libnvidia-ml.so.1, loaded when first opened. Implements `GpuDriver`."""

    def __init__(self) -> None:
        self._driver_version: str | None = None
        self._events: object = None
        self._watched: dict[int, GpuDevice] = {}  # by the address of the handle
        self._sampled_microseconds: dict[str, int] = {}  # by UUID: newest sample of process utilisation seen

    def open(self) -> None:
        _require("nvmlInit")
        library = _Reader()
        self._driver_version = library.ask("nvmlSystemGetDriverVersion")
        self._events = library.ask("nvmlEventSetCreate")
        self._watched = {}

    def close(self) -> None:
        try:
            _call("nvmlShutdown")
        except SessionLostError:
            return  # then nothing is open, which is what was asked for

    def count(self) -> int:
        return int(_require("nvmlDeviceGetCount"))

    def identify(self, index: int) -> tuple[FoundGpu, ...]:
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        except pynvml.NVMLError as error:
            if error.value in {pynvml.NVML_ERROR_INVALID_ARGUMENT, pynvml.NVML_ERROR_NOT_FOUND}:
                return ()
            raise _translated(error) from None
        reader = _Reader(handle)
        mode = reader.ask("nvmlDeviceGetMigMode")
        device = self._device(reader, str(index), mig=mode is not None and mode[0] == 1)
        reader.check()
        self._watch(reader, handle, device)
        instances = self._instances(reader, device) if device.mig else ()
        return FoundGpu(device, handle), *instances

    def sample_fast(self, gpu: FoundGpu) -> FastValues:
        if gpu.device.parent is not None:
            return FastValues()  # told for the physical GPU only; a share of it is not to be had
        reader = _Reader(gpu.handle)
        rates = reader.ask("nvmlDeviceGetUtilizationRates")
        power = reader.ask("nvmlDeviceGetPowerUsage")
        energy = reader.ask("nvmlDeviceGetTotalEnergyConsumption")
        reader.check()
        return FastValues(
            utilization_ratio=_divided(rates and rates.gpu, MAX_PERCENT, 100),
            memory_utilization_ratio=_divided(rates and rates.memory, MAX_PERCENT, 100),
            power_watts=_divided(power, MAX_MILLIWATTS, 1000),
            energy_joules=_divided(energy, MAX_MILLIJOULES, 1000),
        )

    def sample_slow(self, gpu: FoundGpu) -> SlowValues:
        reader = _Reader(gpu.handle)
        # A physical GPU in MIG mode would repeat what its instances hold.
        shared = gpu.device.mig and gpu.device.parent is None
        used, total = (None, None) if shared else _memory(reader)
        processes = None if shared else self._processes(reader, gpu.device)
        if gpu.device.parent is not None:
            reader.check()
            return SlowValues(memory_used_bytes=used, memory_total_bytes=total, processes=processes)
        limit = reader.first(("nvmlDeviceGetEnforcedPowerLimit",), ("nvmlDeviceGetPowerManagementLimit",))
        megahertz = _whole(reader.ask("nvmlDeviceGetClockInfo", pynvml.NVML_CLOCK_SM), MAX_MEGAHERTZ)
        active, known = _clock_events(reader)
        return SlowValues(
            power_limit_watts=_divided(limit, MAX_MILLIWATTS, 1000),
            memory_used_bytes=used,
            memory_total_bytes=total,
            temperature_celsius=_temperature(reader),
            sm_clock_hertz=None if megahertz is None else megahertz * 1e6,
            clock_events=active,
            clock_events_known=known,
            processes=processes,
            graphics_memory_bytes=None if processes is None else _graphics_memory(reader, processes),
        )

    def wait_for_events(self, timeout_seconds: float) -> tuple[GpuEvent, ...]:
        events: list[GpuEvent] = []
        milliseconds = int(timeout_seconds * 1000)
        while self._events is not None and len(events) < MAX_EVENTS:
            try:
                data = pynvml.nvmlEventSetWait(self._events, milliseconds)
            except pynvml.NVMLError as error:
                if error.value in _NO_VALUE:
                    self._events = None  # this driver tells no events
                elif error.value != pynvml.NVML_ERROR_TIMEOUT and not events:
                    raise _translated(error) from None
                break
            milliseconds = 0
            device = self._watched.get(_address(data.device))
            if device is not None and data.eventType == pynvml.nvmlEventTypeXidCriticalError:
                events.append(GpuEvent(device, int(data.eventData)))
        return tuple(events)

    def _device(self, reader: _Reader, label: str, *, mig: bool, parent: GpuDevice | None = None) -> GpuDevice:
        pci = reader.ask("nvmlDeviceGetPciInfo") if parent is None else None
        return GpuDevice(
            gpu=label,
            uuid=reader.ask("nvmlDeviceGetUUID") or "",
            name=reader.ask("nvmlDeviceGetName") or None,
            pci_bus_id=parent.pci_bus_id if parent else (pci and pci.busId) or None,
            driver_version=self._driver_version,
            parent=parent.gpu if parent else None,
            mig=mig,
        )

    def _instances(self, reader: _Reader, parent: GpuDevice) -> Iterable[FoundGpu]:
        for index in range(reader.ask("nvmlDeviceGetMaxMigDeviceCount") or 0):
            handle = reader.ask("nvmlDeviceGetMigDeviceHandleByIndex", index)  # the numbering may have holes
            if handle is not None:
                device = self._device(_Reader(handle), f"{parent.gpu}:{index}", mig=True, parent=parent)
                yield FoundGpu(device, handle)

    def _watch(self, reader: _Reader, handle: object, device: GpuDevice) -> None:
        address = _address(handle)
        if self._events is None or address in self._watched:
            return
        reader.ask("nvmlDeviceRegisterEvents", pynvml.nvmlEventTypeXidCriticalError, self._events)
        self._watched[address] = device  # also when not supported, so that it is asked once

    def _processes(self, reader: _Reader, device: GpuDevice) -> tuple[GpuProcess, ...] | None:
        memory = _listed(reader, "Compute")
        if memory is None:
            return None
        # Under the multi-process service the list above names its server, and this one the clients.
        memory |= _listed(reader, "MPSCompute") or {}
        ratios = self._sm_ratios(reader, device) if memory else None
        return tuple(
            GpuProcess(
                pid=pid,
                memory_bytes=used,
                # The driver lists only processes with work in the period.
                sm_ratio=None if ratios is None else ratios.get(pid, 0.0),
            )
            for pid, used in sorted(memory.items())
        )

    def _sm_ratios(self, reader: _Reader, device: GpuDevice) -> dict[int, float | None] | None:
        """Share of the SMs by PID, from the newest sample of each since the last call; None = no samples."""
        since = self._sampled_microseconds.get(device.uuid, 0)
        samples = reader.ask("nvmlDeviceGetProcessUtilization", since)
        if not samples:
            return None
        self._sampled_microseconds[device.uuid] = max(sample.timeStamp for sample in samples)
        newest_last = sorted(samples, key=lambda sample: sample.timeStamp)
        return {sample.pid: _divided(sample.smUtil, MAX_PERCENT, 100) for sample in newest_last}


def _call(function: str, *arguments: object) -> Any:  # noqa: ANN401  # the binding has no types
    """Call the binding; None where driver or binding have no such value, GpuDriverError where the call failed."""
    if not hasattr(pynvml, function):
        return None
    try:
        return getattr(pynvml, function)(*arguments)
    except pynvml.NVMLError as error:
        if error.value in _NO_VALUE:
            return None
        raise _translated(error) from None
    except UnicodeDecodeError:
        return None  # a name that is no text is no name


def _require(function: str) -> Any:  # noqa: ANN401  # as above
    """As `_call`, for what nothing works without: here every error is one."""
    try:
        return getattr(pynvml, function)()
    except pynvml.NVMLError as error:
        raise _translated(error) from None


def _translated(error: pynvml.NVMLError) -> GpuDriverError:
    if error.value == pynvml.NVML_ERROR_LIBRARY_NOT_FOUND:
        return DriverMissingError("no NVIDIA driver library (libnvidia-ml.so.1)")
    kind: Callable[[str], GpuDriverError] = GpuDriverError
    if error.value in _SESSION_LOST:
        kind = SessionLostError
    elif error.value in _GPU_LOST:
        kind = GpuLostError
    return kind(f"NVML: {error} (code {error.value})")


def _address(handle: object) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0  # type: ignore[arg-type]  # a pointer of the binding


def _whole(raw: int | None, maximum: int) -> int | None:
    return None if raw is None or raw > maximum else int(raw)


def _divided(raw: int | None, maximum: int, divisor: int) -> float | None:
    return None if raw is None or raw > maximum else raw / divisor


def _listed(reader: _Reader, kind: str) -> dict[int, int | None] | None:
    """Memory in bytes by PID of the processes of one kind."""
    name = f"nvmlDeviceGet{kind}RunningProcesses"
    processes = reader.first((f"{name}_v3",), (f"{name}_v2",))
    if processes is None:
        return None
    return {p.pid: _whole(p.usedGpuMemory, MAX_BYTES) for p in processes if 0 < p.pid <= MAX_PID}


def _graphics_memory(reader: _Reader, compute: tuple[GpuProcess, ...]) -> int | None:
    """Bytes held by processes that only draw; one that does both is listed as both."""
    drawing = _listed(reader, "Graphics")
    if drawing is None:
        return None
    known = {process.pid for process in compute}
    return sum(used or 0 for pid, used in drawing.items() if pid not in known)


def _memory(reader: _Reader) -> tuple[int | None, int | None]:
    """Bytes in use and in all. The newer call does not count what the driver reserves for itself as used."""
    info = reader.first(("nvmlDeviceGetMemoryInfo", pynvml.nvmlMemory_v2), ("nvmlDeviceGetMemoryInfo",))
    if info is None:
        return None, None
    used, total = _whole(info.used, MAX_BYTES), _whole(info.total, MAX_BYTES)
    return (used, total) if total else (None, None)


def _temperature(reader: _Reader) -> float | None:
    sensor = pynvml.NVML_TEMPERATURE_GPU
    # The newer call is signed, so that its all ones read -1.
    celsius = reader.first(("nvmlDeviceGetTemperatureV", sensor), ("nvmlDeviceGetTemperature", sensor))
    return float(celsius) if celsius is not None and 0 <= celsius <= MAX_CELSIUS else None


def _clock_events(reader: _Reader) -> tuple[frozenset[str] | None, frozenset[str]]:
    """The active reasons, and those that this driver can tell; of an unsupported one nothing is known."""
    active = _clock_event_names(reader, "nvmlDeviceGetCurrentClocks")
    if active is None:
        return None, frozenset()
    return active, active | (_clock_event_names(reader, "nvmlDeviceGetSupportedClocks") or frozenset())


def _clock_event_names(reader: _Reader, function: str) -> frozenset[str] | None:
    mask = _whole(reader.first((f"{function}EventReasons",), (f"{function}ThrottleReasons",)), MAX_MASK)
    return None if mask is None else frozenset(name for bit, name in CLOCK_EVENTS.items() if mask & bit)
