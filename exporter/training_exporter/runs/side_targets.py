"""Files beside a run's log that its ranks write: what killed them, and what TensorBoard shows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath

from training_exporter.model import LogTarget, ProcessRecord, Rank
from training_exporter.runs.arguments import invocation, options
from training_exporter.runs.artifacts import directory

ERROR_FILE = "error.json"  # torch.distributed.elastic calls it so in every version
# transformers, Megatron-LM, detectron2 and others; a directory below one of checkpoints is looked at anyway.
EVENT_OPTIONS = frozenset(
    {
        "logging_dir", "log_dir", "logdir", "tb_log_dir", "tb_logdir", "tb_dir", "tensorboard_dir",
        "tensorboard_log_dir", "tensorboard_logdir", "tensorboard_path",
    }
)  # fmt: skip
DEFAULT_EVENTS = "runs"  # of torch.utils.tensorboard.SummaryWriter, in the working directory
EVENT_DEPTH = 3


def error_files(run: str, ranks: Sequence[Rank]) -> tuple[LogTarget, ...]:
    """Where torchelastic has each rank write its exception; a relative path lies under the rank's directory."""
    found = []
    for rank in ranks:
        process = rank.process
        name = (process.environment or {}).get("TORCHELASTIC_ERROR_FILE")
        if name and (name.startswith("/") or process.working_directory):
            path = PurePosixPath(process.working_directory or "/", name)
            if path.name == ERROR_FILE:
                found.append(_target(run, str(path), process, rank.rank))
    return tuple(found)


def event_files(run: str, ranks: Sequence[Rank]) -> tuple[LogTarget, ...]:
    """Patterns of the event files that the first rank writes: their names hold its PID, so that no other's are meant.

    The writer closes the file after each flush, so that no descriptor leads to it.
    """
    if not ranks:
        return ()
    process = ranks[0].process
    name = f"events.out.tfevents.*.{process.namespace_pid or process.pid}.*"
    paths = (f"{place}/{'*/' * depth}{name}" for place in _event_places(process) for depth in range(EVENT_DEPTH))
    return tuple(_target(run, path, process, None) for path in dict.fromkeys(paths))


def _event_places(process: ProcessRecord) -> Iterator[str]:
    for key, value in options(invocation(process.command).arguments):
        if key.rpartition(".")[2].rpartition("/")[2] in EVENT_OPTIONS:
            place = directory(value, process.working_directory)
            if place is not None:
                yield place
    if process.working_directory is not None:
        yield str(PurePosixPath(process.working_directory, DEFAULT_EVENTS))


def _target(run: str, path: str, process: ProcessRecord, rank: int | None) -> LogTarget:
    return LogTarget(run, path, process.root, process.uid, process.gid, rank)
