"""Scrapes of a whole story as one OpenMetrics text with timestamps, for promtool and Prometheus to read back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TextIO

from prometheus_client.core import Metric

_ESCAPES = str.maketrans({"\\": "\\\\", "\n": "\\n", '"': '\\"'})


@dataclass(slots=True)
class _Family:
    kind: str
    help: str
    series: dict[str, list[str]] = field(default_factory=dict)  # name and labels -> lines


class Recording:
    """Keeps every sample of every scrape, by family and series, as OpenMetrics wants them together.

    `labels` go on every series, like those that a scrape adds.
    """

    def __init__(self, labels: Mapping[str, str] | None = None) -> None:
        self._labels = dict(labels or {})
        self._families: dict[str, _Family] = {}
        self._names: dict[tuple[str, tuple[tuple[str, str], ...]], str] = {}

    def add(self, time_seconds: float, families: Iterable[Metric]) -> None:
        """One scrape at `time_seconds` (Unix time), later than the one before."""
        for metric in families:
            family = self._families.setdefault(metric.name, _Family(metric.type, metric.documentation))
            for sample in metric.samples:
                name = self._name(sample.name, sample.labels)
                line = f"{name} {_number(sample.value)} {time_seconds:.3f}\n"
                family.series.setdefault(name, []).append(line)

    def write(self, out: TextIO) -> None:
        """All of it, ended by `# EOF`."""
        for name, family in self._families.items():
            out.write(f"# HELP {name} {family.help.translate(_ESCAPES)}\n# TYPE {name} {family.kind}\n")
            for lines in family.series.values():
                out.writelines(lines)
        out.write("# EOF\n")

    def __bool__(self) -> bool:
        return bool(self._families)

    def _name(self, name: str, labels: Mapping[str, str]) -> str:
        key = (name, tuple(labels.items()))
        known = self._names.get(key)
        if known is None:
            words = ",".join(
                f'{label}="{value.translate(_ESCAPES)}"' for label, value in {**labels, **self._labels}.items()
            )
            known = self._names[key] = f"{name}{{{words}}}" if words else name
        return known


def _number(value: float) -> str:
    # whole numbers in full and without a fraction: a time in seconds would else be rounded for no gain
    return str(int(value)) if value == int(value) else repr(value)
