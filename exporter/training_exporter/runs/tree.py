"""The processes of one moment as a tree."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from training_exporter.model import ProcessRecord
from training_exporter.runs.roles import is_wrapper


class Tree:
    """Parents and children among the records of a table, children oldest first."""

    def __init__(self, records: Mapping[int, ProcessRecord]) -> None:
        self.records = records
        self._children: dict[int, list[ProcessRecord]] = {}
        for record in sorted(records.values(), key=age):
            self._children.setdefault(record.parent_pid, []).append(record)

    def parent(self, record: ProcessRecord) -> ProcessRecord | None:
        return self.records.get(record.parent_pid)

    def children(self, record: ProcessRecord) -> list[ProcessRecord]:
        return self._children.get(record.pid, [])

    def ancestors(self, record: ProcessRecord) -> Iterator[ProcessRecord]:
        """From the parent up."""
        seen = {record.pid}
        parent = self.parent(record)
        while parent is not None and parent.pid not in seen:
            seen.add(parent.pid)
            yield parent
            parent = self.parent(parent)

    def below(self, record: ProcessRecord, *, without: Collection[int] = ()) -> Iterator[ProcessRecord]:
        """All descendants, oldest branch first; the subtrees of the PIDs in `without` are left out."""
        for child in self.children(record):
            if child.pid not in without:
                yield child
                yield from self.below(child, without=without)

    def started(self, record: ProcessRecord) -> Iterator[ProcessRecord]:
        """The children, looking through shells and other wrappers to what they started."""
        for child in self.children(record):
            inner = list(self.started(child)) if is_wrapper(child) else []
            yield from inner or [child]


def age(record: ProcessRecord) -> tuple[int, int]:
    """Sorts the oldest first; PIDs decide within a clock tick."""
    return record.start_ticks, record.pid
