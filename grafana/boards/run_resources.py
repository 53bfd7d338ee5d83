"""What the GPUs and processes of a run show."""

from __future__ import annotations

from boards.panels import (
    ACT,
    DASHED,
    PLAIN,
    Field,
    Head,
    Json,
    column,
    fixed,
    override,
    series,
    table,
    target,
    value_mappings,
)
from boards.queries import HERE, or_not_available

OURS = f"and on (job, instance, gpu) training_run_gpu_info{HERE}"
WORKING = f"rate(training_gpu_working_seconds_total[$__rate_interval]) {OURS}"
BUSY = f"rate(training_gpu_busy_seconds_total[$__rate_interval]) {OURS}"
EFFORT = f"training_gpu_effort_ratio {OURS}"
EACH = "{{instance}} GPU {{gpu}}"


def busy_and_working() -> Json:
    """Resident kernels against work over time."""
    return series(
        Head(
            70,
            "Resident against working",
            "Share of the time in which a kernel was resident, and in which the GPU did work by its power and "
            "memory traffic. Resident without working is a spin, as in a collective that never completes. "
            "Idle is normal while validating.",
            "No GPU of this run known",
        ),
        [
            target(f"avg({BUSY})", "resident, mean"),
            target(f"avg({WORKING})", "working, mean"),
            target(f"min({WORKING})", "working, least"),
            target(f"max({WORKING})", "working, most"),
        ],
        Field(unit="percentunit", most=1, least=0),
    )


def effort() -> Json:
    """Power between rest and training over time."""
    return series(
        Head(
            71,
            "Power between its learnt levels",
            "0 is the power at rest with memory held, 1 the power in training, both learnt per GPU. Between "
            "them lies what utilisation cannot tell. Empty until both are known and 40 W apart.",
            "Levels not learnt yet",
        ),
        [
            target(f"min({EFFORT})", "least"),
            target(f"avg({EFFORT})", "mean"),
            target(f"max({EFFORT})", "most"),
        ],
        Field(unit="percentunit", least=0),
    )


def power() -> Json:
    """Power over time."""
    return series(
        Head(72, "Power", "Per GPU of the run on the chosen nodes.", "No GPU of this run known"),
        [target(f"max by (instance, gpu) (training_gpu_power_watts {OURS})", EACH)],
        Field(unit="watt", least=0),
    )


def memory() -> Json:
    """Memory of the run over time."""
    return series(
        Head(
            73,
            "Memory held by the run",
            "A GPU that falls to 0 while the others hold theirs has lost its rank.",
            "The driver does not say who holds memory",
        ),
        [target(f"max by (instance, gpu) (training_run_gpu_memory_bytes{HERE})", EACH)],
        Field(unit="bytes", least=0),
    )


def cores() -> Json:
    """CPU over time."""
    return series(
        Head(
            80,
            "CPU cores in use",
            "By role, on the chosen nodes. A rank with one core and no GPU work may be spinning.",
            "/proc may not be read",
        ),
        [target(f"sum by (role) (rate(training_run_cpu_seconds_total{HERE}[$__rate_interval]))", "{{role}}")],
        Field(unit="suffix: cores", least=0),
    )


def reads_and_writes() -> Json:
    """Bytes over time."""
    return series(
        Head(
            81,
            "Reads and writes",
            "Bytes of system calls of all processes of the run; writes point down. Files that are mapped into "
            "memory are not in it.",
            "/proc may not be read",
        ),
        [
            target(f"sum(rate(training_run_read_bytes_total{HERE}[$__rate_interval]))", "read"),
            target(f"sum(rate(training_run_written_bytes_total{HERE}[$__rate_interval]))", "written"),
        ],
        Field(unit="Bps"),
        overrides=[override("written", custom__transform="negative-Y")],
    )


def processes() -> Json:
    """Processes by role over time."""
    return series(
        Head(
            82,
            "Processes",
            "By role, on the chosen nodes, against the workers that the launchers should run.",
            "The process table cannot be read",
        ),
        [
            target(f"sum by (role) (training_run_processes{HERE})", "{{role}}"),
            target(f"sum(training_run_workers_expected{HERE})", "workers expected"),
        ],
        Field(unit="none", least=0),
        overrides=[override("workers expected", **DASHED, color=fixed(PLAIN))],
        step=True,
    )


def ranks() -> Json:
    """Every rank now."""
    return table(
        Head(
            83,
            "Ranks",
            "Every rank on the chosen nodes; the one whose GPU worked longest ago fell silent first.",
            "No rank known",
        ),
        [
            column(f"max by (instance, rank, gpu) (training_rank_info{HERE})"),
            column(f"max by (instance, rank) (training_rank_up{HERE})"),
            column(f"sum by (instance, rank) (rate(training_rank_cpu_seconds_total{HERE}[5m]))"),
            column(
                or_not_available(
                    f"max by (instance, rank) (run_rank:training_last_working_age:seconds{HERE})",
                    f"max by (instance, rank) (training_rank_info{HERE})",
                    "instance, rank",
                )
            ),
        ],
        names={
            "rank": "Rank",
            "instance": "Node",
            "gpu": "GPU",
            "Value #B": "Process",
            "Value #C": "Cores",
            "Value #D": "GPU worked ago",
            "Value #A": "",
        },
        overrides=[
            override(
                "Process",
                mappings=value_mappings((0, "Lost", ACT), (1, "Alive", "text")),
                custom__cellOptions={"type": "color-text"},
            ),
            override("Cores", decimals=2),
            override("GPU worked ago", unit="s"),
        ],
        sort=("GPU worked ago", "desc"),
    )


def process_states() -> Json:
    """Processes by state over time."""
    return series(
        Head(
            84,
            "Processes by state",
            "Launcher and ranks. Disk sleep that lasts is storage that does not answer; stopped is a signal "
            "or a debugger.",
            "The process table cannot be read",
        ),
        [target(f"sum by (state) (training_run_process_state{HERE})", "{{state}}")],
        Field(unit="none", least=0),
        step=True,
    )
