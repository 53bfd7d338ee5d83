"""The GPUs of one node."""

from __future__ import annotations

from boards.panels import (
    ACT,
    CALM,
    NOTE,
    PLAIN,
    Field,
    Head,
    Json,
    bands,
    column,
    now,
    override,
    override_matching,
    series,
    stat,
    table,
    target,
    thresholds,
    value_mappings,
)
from boards.queries import NODE_GPU, or_not_available

EACH = "GPU {{gpu}}"
KNOWN = f"max by (gpu) (training_gpu_info{NODE_GPU})"
NONE = f"max({KNOWN}) * 0"
XID = f"training_gpu_xid_errors_total{NODE_GPU}"
NO_GPU = "No GPU known, or GPU collection is off"
# Why a GPU is slower than it could be, harmless ones first; a reason in a later line hides those before it.
SLOW = (
    (1, "Power cap", NOTE, "sw_power_cap"),
    (2, "Too hot", ACT, ".*thermal.*"),
    (3, "Power brake", ACT, ".*power_brake.*"),
    (4, "Hardware", ACT, "hw_slowdown"),
)
# As the alert TrainingGpuThrottled selects them.
HARMFUL = "hw_.*|.*thermal.*|.*power_brake.*"


def _at(reason: str) -> str:
    return NODE_GPU.removesuffix("}") + f', reason=~"{reason}"}}'


def lost() -> Json:
    """GPUs that vanished."""
    return stat(
        Head(
            1,
            "GPUs lost",
            "GPUs that the driver calls lost or that vanished from the node since the exporter saw them.",
            NO_GPU,
        ),
        [now(f"sum(training_gpu_lost{NODE_GPU})")],
        Field(limits=thresholds((1, ACT), base="transparent")),
        fill=True,
    )


def slowed() -> Json:
    """GPUs that heat, the power brake or a fault slows down."""
    return stat(
        Head(
            2,
            "GPUs slowed down",
            "By heat, the power brake or a hardware fault, now; a power cap is not counted.",
            NO_GPU,
        ),
        [now(f"count(max by (gpu) (training_gpu_clock_event_active{_at(HARMFUL)}) == 1) or {NONE}")],
        Field(limits=thresholds((1, ACT), base="transparent")),
        fill=True,
    )


def unowned() -> Json:
    """Memory that nobody on this node holds."""
    return stat(
        Head(
            3,
            "GPU memory held by no process",
            "The largest on one GPU. Over 500 MiB for 10 minutes is memory that a dead process has left behind.",
            "The list of processes cannot be read",
        ),
        [now(f"max(training_gpu_unowned_memory_bytes{NODE_GPU})")],
        Field("bytes", limits=thresholds((500 * 2**20, NOTE), base="text")),
    )


def overview() -> Json:
    """Every GPU with what matters now."""
    columns = {
        "Model": f"max by (gpu, name) (training_gpu_info{NODE_GPU})",
        "Lost": f"max by (gpu) (training_gpu_lost{NODE_GPU})",
        "Resident": f"max by (gpu) (training_gpu_utilization_ratio{NODE_GPU})",
        "Worked ago": "min by (gpu) (max by (job, instance) (training_exporter_time_seconds) - on (job, instance)"
        f" group_right () training_gpu_last_working_timestamp_seconds{NODE_GPU})",
        "Effort": f"max by (gpu) (training_gpu_effort_ratio{NODE_GPU})",
        "Power": f"max by (gpu) (training_gpu_power_watts{NODE_GPU})",
        "Limit": f"max by (gpu) (training_gpu_power_limit_watts{NODE_GPU})",
        "Memory used": f"max by (gpu) (training_gpu_memory_used_bytes{NODE_GPU})",
        "Memory": f"max by (gpu) (training_gpu_memory_total_bytes{NODE_GPU})",
        "Temperature": f"max by (gpu) (training_gpu_temperature_celsius{NODE_GPU})",
        "Clock": f"max by (gpu) (training_gpu_sm_clock_hertz{NODE_GPU})",
    }
    model, *others = columns.values()
    letters = {f"Value #{chr(ord('A') + index)}": name for index, name in enumerate(columns)}
    return table(
        Head(
            11,
            "GPUs",
            "Resident is the share of time with a kernel on the GPU, which a hang can hold at 100 %; effort "
            "is the power "
            "between rest (0) and training (1). n/a: this GPU or driver does not tell, or it is not learnt yet.",
            NO_GPU,
        ),
        [column(model), *(column(or_not_available(query, KNOWN, "gpu")) for query in others)],
        names={"gpu": "GPU", "name": "Model", **letters, "Value #A": ""},
        overrides=[
            override(
                "Lost",
                mappings=value_mappings((0, "Present", "text"), (1, "LOST", ACT), (-1, "n/a", PLAIN)),
                custom__cellOptions={"type": "color-text"},
            ),
            override_matching("^(Resident|Effort)$", unit="percentunit", decimals=0),
            override("Worked ago", unit="s"),
            override_matching("^(Power|Limit)$", unit="watt", decimals=0),
            override_matching("^Memory", unit="bytes"),
            override("Temperature", unit="celsius"),
            override("Clock", unit="hertz"),
        ],
    )


def resident() -> Json:
    """Utilisation over time."""
    return series(
        Head(20, "Kernel resident", "Share of time. Not the same as work: a hung collective reads 100 %.", NO_GPU),
        [target(f"max by (gpu) (rate(training_gpu_busy_seconds_total{NODE_GPU}[$__rate_interval]))", EACH)],
        Field("percentunit", least=0, most=1),
    )


def working() -> Json:
    """Work over time."""
    return series(
        Head(21, "Working", "Share of time at work by power and memory traffic.", NO_GPU),
        [target(f"max by (gpu) (rate(training_gpu_working_seconds_total{NODE_GPU}[$__rate_interval]))", EACH)],
        Field("percentunit", least=0, most=1),
    )


def power() -> Json:
    """Power over time."""
    return series(
        Head(22, "Power", "Mean of the last seconds, and the lowest limit in force.", NO_GPU),
        [
            target(f"max by (gpu) (training_gpu_power_watts{NODE_GPU})", EACH),
            target(f"min(training_gpu_power_limit_watts{NODE_GPU})", "limit"),
        ],
        Field("watt", least=0),
    )


def memory() -> Json:
    """Memory over time."""
    return series(
        Head(23, "Memory in use", "By any process.", NO_GPU),
        [target(f"max by (gpu) (training_gpu_memory_used_bytes{NODE_GPU})", EACH)],
        Field("bytes", least=0),
    )


def temperature() -> Json:
    """Temperature over time."""
    return series(
        Head(24, "Temperature", "Of the GPU core.", NO_GPU),
        [target(f"max by (gpu) (training_gpu_temperature_celsius{NODE_GPU})", EACH)],
        Field("celsius"),
    )


def energy() -> Json:
    """Energy of the GPUs in the last day, as rate."""
    return series(
        Head(25, "Power of all chosen GPUs", "From their energy counters; absent on GPUs that have none.", NO_GPU),
        [target(f"sum(rate(training_gpu_energy_joules_total{NODE_GPU}[$__rate_interval]))", "all")],
        Field("watt", least=0),
    )


def throttling() -> Json:
    """Why each GPU was slow over time."""
    arms = [
        f"max by (gpu) (training_gpu_clock_event_active{_at(reason)} == 1) * {value}" for value, _, _, reason in SLOW
    ]
    return bands(
        Head(
            30,
            "Slowed down by",
            "The worst reason at each moment. A power cap is normal under load; heat, power brake and "
            "hardware are not.",
            NO_GPU,
        ),
        [target(" or ".join([*reversed(arms), f"{KNOWN} * 0"]), EACH)],
        Field(
            mappings=value_mappings((0, "Nothing", CALM), *((value, word, colour) for value, word, colour, _ in SLOW))
        ),
    )


def clock() -> Json:
    """Clock over time."""
    return series(
        Head(31, "Clock of the multiprocessors", "Falls when the GPU rests and when it is slowed down.", NO_GPU),
        [target(f"max by (gpu) (training_gpu_sm_clock_hertz{NODE_GPU})", EACH)],
        Field("hertz", least=0),
    )


def driver_errors() -> Json:
    """Xid errors over time."""
    return series(
        Head(32, "Critical driver errors (Xid)", "Seen since the exporter started, by number.", NO_GPU),
        [
            target(
                f'max by (gpu, xid) ({XID}) or label_replace({KNOWN} * 0 unless on (gpu) {XID}, "xid", "none", "", "")',
                "GPU {{gpu}} Xid {{xid}}",
            )
        ],
        Field(least=0),
        step=True,
    )


def unowned_memory() -> Json:
    """Memory that no process holds over time."""
    return series(
        Head(
            33,
            "Memory held by no process",
            "What remains after the driver's own share is memory that a dead process has left behind.",
            "The list of processes cannot be read",
        ),
        [target(f"max by (gpu) (training_gpu_unowned_memory_bytes{NODE_GPU})", EACH)],
        Field("bytes", least=0),
    )
