"""What a person does next, by state and cause."""

from __future__ import annotations

from collections.abc import Mapping

from training_exporter.report.evidence import unseen
from training_exporter.runs.view import RunView

_STEPS: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("stalled", "stopped"): ("A process is stopped (state T). If nobody debugs it: {cont}.",),
    ("stalled", "storage"): (
        (
            "A process waits for storage that does not answer. Look for the mount in `cat /proc/PID/stack` ({pids}) "
            "and `dmesg`; such a process cannot be killed before the storage answers."
        ),
    ),
    ("stalled", "collective"): (
        (
            "The ranks wait for each other in a collective. Find the one that is not in it: `py-spy dump --pid PID` "
            "for {pids}, or `training-exporter status --stacks`."
        ),
        "With TORCH_FR_BUFFER_SIZE (before: TORCH_NCCL_TRACE_BUFFER_SIZE) set, the flight recorder names that rank.",
    ),
    ("stalled", "host"): (
        (
            "No rank reaches its GPU. See where each stands: `py-spy dump --pid PID` for {pids}, or "
            "`training-exporter status --stacks`."
        ),
    ),
    ("no_progress", ""): (
        (
            "It works, and nothing advances. Compare the last log lines with what the phase should print, and look at "
            "the stacks twice a minute apart: `training-exporter status --stacks`."
        ),
    ),
    ("degraded", "rank"): (
        "A rank is gone while the launcher lives. Its last words are in the log above the others'.",
    ),
    ("degraded", "gpu"): ("The driver lost a GPU of this run. See `dmesg | grep -i xid`; the node needs a GPU reset.",),
    ("degraded", "loss"): ("The loss is not finite. Stop, and go back to the last checkpoint before it became so.",),
    ("degraded", "memory"): (
        "A rank gave up its GPU memory while the others hold theirs. Read its stack and its log.",
    ),
    ("failed", ""): ("Read the first traceback of the log, not the last: the others follow from it.",),
    ("unknown", ""): ("A source that the verdict needs fails; see `sources`. Until it works, look by hand.",),
}


_UNSEEN = (
    "Cannot tell more than that its processes exist. Ask again as their owner or as root, "
    "`sudo training-exporter status`, or ask an exporter that runs as root with `--url`."
)


def steps(run: RunView) -> tuple[str, ...]:
    """What to do next about this run; nothing while all is well."""
    if unseen(run):
        return (_UNSEEN,)
    verdict = run.verdict
    found = _STEPS.get((verdict.state, verdict.cause)) or _STEPS.get((verdict.state, ""), ())
    pids = [rank.pid for rank in run.ranks if rank.pid is not None]
    stopped = [rank.pid for rank in run.ranks if rank.pid is not None and rank.state == "stopped"]
    words = {
        "pids": "the ranks " + ", ".join(map(str, pids)) if pids else "the ranks",
        "cont": "`kill -CONT " + (" ".join(map(str, stopped)) or "PID") + "`",
    }
    return tuple(step.format(**words) for step in found)
