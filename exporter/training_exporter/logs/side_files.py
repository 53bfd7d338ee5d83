"""Files that a framework writes beside its log or checkpoints: the same metrics, with all their digits."""

from __future__ import annotations

import csv
import json
import math
import posixpath
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, Protocol

from training_exporter.logs import names
from training_exporter.model import CheckpointTarget, LogEvent, LogTarget, Split

MAX_BYTES = 16 << 20  # a trainer_state.json of a long run is a few MiB
MAX_ROW_BYTES = 1 << 20
COUNTERS = frozenset({"step", "epoch", "global_step"})
EVENT_FILE = "events.out.tfevents."  # TensorBoard
MAX_TEXT = 500  # of an exception
INTERRUPTS = ("KeyboardInterrupt", "SignalException")


class SideFile(Protocol):
    """Takes the bytes of one such file as they are written."""

    def feed(self, data: bytes, time_seconds: float) -> list[LogEvent]:
        """The reports that are complete with these bytes."""

    def restart(self) -> None:
        """The file is written anew."""

    @property
    def moves(self) -> bool:
        """Whether its growth alone is progress."""

    @property
    def held_bytes(self) -> int:
        """How much is kept of what is not complete."""


def parser_for(path: str) -> SideFile | None:
    """The parser for a file of this name; None for a log."""
    name = PurePosixPath(path).name
    if name.startswith(EVENT_FILE):
        return EventFile()
    if name == ErrorFile.NAME:
        return ErrorFile(path)
    made = _PARSERS.get(name)
    return None if made is None else made()


def side_targets(checkpoints: Sequence[CheckpointTarget]) -> tuple[LogTarget, ...]:
    """Where such files stand, given the directories of a run's checkpoints."""
    found: list[LogTarget] = []
    for target in checkpoints:
        above = posixpath.dirname(target.path.rstrip("/"))
        paths = (
            f"{target.path}/*/val_metrics.json",
            f"{target.path}/*/trainer_state.json",
            f"{above}/metrics.csv",  # lightning_logs/version_0/{metrics.csv,checkpoints/}
        )
        found += [LogTarget(target.run, path, root=target.root, uid=target.uid, gid=target.gid) for path in paths]
    return tuple(found)


class _Whole(ABC):
    """A JSON document: understood once it is complete."""

    moves = False

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, data: bytes, time_seconds: float) -> list[LogEvent]:
        if len(self._held) + len(data) > MAX_BYTES:
            self._held.clear()
            return []
        self._held += data
        if not self._held.rstrip().endswith((b"}", b"]")):
            return []
        try:
            document = json.loads(self._held)
        except (ValueError, RecursionError):
            return []  # still being written
        self._held.clear()
        return list(self._events(document, time_seconds))

    def restart(self) -> None:
        self._held.clear()

    @property
    def held_bytes(self) -> int:
        return len(self._held)

    @abstractmethod
    def _events(self, document: object, time_seconds: float) -> Iterable[LogEvent]:
        """What the document says."""


class ValMetrics(_Whole):
    """`val_metrics.json` of speculators: one flat or nested dict of the validation of that checkpoint's epoch."""

    def _events(self, document: object, time_seconds: float) -> Iterable[LogEvent]:
        if isinstance(document, dict):
            yield from _told(_event(flatten(document), time_seconds, default="val"))


class TrainerState(_Whole):
    """`trainer_state.json` of the HF Trainer: the last report of each kind in its `log_history`."""

    def _events(self, document: object, time_seconds: float) -> Iterable[LogEvent]:
        history = document.get("log_history") if isinstance(document, dict) else None
        entries = [entry for entry in history if isinstance(entry, dict)] if isinstance(history, list) else []
        for is_result in (False, True):
            wanted = [entry for entry in entries if _is_result(entry) is is_result]
            if wanted:
                yield from _told(_event(flatten(wanted[-1]), time_seconds, default="train"))


class MetricsCsv:
    """`metrics.csv` of Lightning's CSVLogger: sparse rows, whose columns are the union of all names so far."""

    moves = False

    def __init__(self) -> None:
        self._held = b""
        self._columns: list[str] | None = None

    def restart(self) -> None:
        """The logger writes the file anew whenever a name is added."""
        self._held, self._columns = b"", None

    @property
    def held_bytes(self) -> int:
        return len(self._held)

    def feed(self, data: bytes, time_seconds: float) -> list[LogEvent]:
        *lines, self._held = (self._held + data).split(b"\n")
        if len(self._held) > MAX_ROW_BYTES:
            self._held = b""
        latest: dict[str, LogEvent] = {}
        for row in csv.reader(line.decode("utf-8", "replace").rstrip("\r").replace("\0", "") for line in lines):
            if self._columns is None:
                self._columns = row
            elif len(row) == len(self._columns):
                cells = {name: cell for name, cell in zip(self._columns, row, strict=True) if cell}
                event = _event(flatten(cells), time_seconds, default="train")
                if event.metrics:
                    latest[event.split or "train"] = event
        return list(latest.values())


class ErrorFile(_Whole):
    """`error.json` of torch.distributed.elastic: the exception that ended a rank, or the signal that did.

    `{"message": {"message": "RuntimeError: ...", "extraInfo": {...}}}`, or a plain text under the first key.
    """

    NAME = "error.json"

    def __init__(self, path: str) -> None:
        super().__init__()
        self._path = path

    def _events(self, document: object, time_seconds: float) -> Iterable[LogEvent]:
        text = document.get("message") if isinstance(document, dict) else None
        text = text.get("message") if isinstance(text, dict) else text
        if not isinstance(text, str):
            return
        interrupted = text.startswith(INTERRUPTS)
        yield LogEvent(
            line=0,
            end_line=0,
            event="warning",
            phase="failed",
            time_seconds=time_seconds,
            outcome="cancelled" if interrupted else "failed",
            reason="interrupt" if interrupted else None,
            text=text.partition("\n")[0][:MAX_TEXT],
            file=self._path,
        )


class EventFile:
    """A TensorBoard event file: that it grows is all that is taken from it."""

    moves = True
    held_bytes = 0

    def feed(self, data: bytes, time_seconds: float) -> list[LogEvent]:  # noqa: ARG002  the protocol's
        return []

    def restart(self) -> None:
        pass


def flatten(document: Mapping[str, Any], path: str = "") -> dict[str, float]:
    """Numbers by path, joined with `/`; numbers printed as text count too."""
    found: dict[str, float] = {}
    for key, item in document.items():
        name = f"{path}/{key}" if path else str(key)
        if isinstance(item, dict):
            found |= flatten(item, name)
        elif not isinstance(item, bool):
            try:
                found[name] = float(item)
            except (TypeError, ValueError, OverflowError):
                continue
    return found


def _told(event: LogEvent) -> tuple[LogEvent, ...]:
    return (event,) if event.metrics else ()


def _is_result(entry: Mapping[str, Any]) -> bool:
    return any(names.normalise(str(name))[1] in ("val", "test") for name in entry)


def _event(numbers: Mapping[str, float], time_seconds: float, *, default: Split) -> LogEvent:
    """A report of one split: that of the first name that says one."""
    split: Split | None = None
    metrics: dict[str, float] = {}
    counts = {name: number for name, number in numbers.items() if name.lower() in COUNTERS and math.isfinite(number)}
    for name, number in numbers.items():
        clean, own = names.normalise(name)
        if name in counts or not clean or names.is_aux(clean) or names.is_setting(clean):
            continue
        split = split or own
        if (own or split or default) == (split or default):
            metrics[clean] = number
    step = counts.get("step", counts.get("global_step"))
    found = split or default
    return LogEvent(
        line=0,
        end_line=0,
        event="train_summary" if found == "train" else "validation",
        phase="train" if found == "train" else "validation",
        time_seconds=time_seconds,
        split=found,
        epoch=counts.get("epoch"),
        step=None if step is None else int(step),
        metrics=metrics,
    )


_PARSERS: Mapping[str, type[ValMetrics | TrainerState | MetricsCsv]] = {
    "val_metrics.json": ValMetrics,
    "trainer_state.json": TrainerState,
    "metrics.csv": MetricsCsv,
}
