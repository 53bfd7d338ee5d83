"""`simulate`: a scenario on a virtual clock through everything behind the sources, without waiting."""

from __future__ import annotations

import json as jsons
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from training_exporter.documents import DocumentError
from training_exporter.metrics import families
from training_exporter.recording import Recording
from training_exporter.runs.view import NodeView
from training_exporter.scenario.load import find
from training_exporter.scenario.play import EPOCH_SECONDS
from training_exporter.scenario.playback import Playback
from training_exporter.scenario.records import Scenario


@dataclass(frozen=True, slots=True)
class Change:
    """A run entered another state, or the same with another cause, `at_seconds` after the scenario's start."""

    at_seconds: int
    run: str
    state: str
    cause: str
    sentence: str

    def as_json(self) -> str:
        """One line."""
        words = {"t": self.at_seconds, "run": self.run, "state": self.state, "cause": self.cause}
        return jsons.dumps(words, ensure_ascii=False)

    def as_text(self) -> str:
        """One line for a person."""
        minutes, seconds = divmod(self.at_seconds, 60)
        state = f"{self.state} ({self.cause})" if self.cause else self.state
        return f"{minutes // 60}:{minutes % 60:02d}:{seconds:02d}  {self.run}  {state:<20}  {self.sentence}".rstrip()


class Changes:
    """Notices from one picture of the node to the next what changed."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[str, str]] = {}

    def between(self, view: NodeView, at_seconds: int) -> Iterator[Change]:
        """What is different from the picture before; a run that is forgotten becomes absent."""
        verdicts = {run.name: run.verdict for run in view.runs}
        for name, verdict in verdicts.items():
            if self._last.get(name) != (verdict.state, verdict.cause):
                self._last[name] = verdict.state, verdict.cause
                yield Change(at_seconds, name, verdict.state, verdict.cause, verdict.sentence)
        for name in [name for name, known in self._last.items() if name not in verdicts and known != ("absent", "")]:
            self._last[name] = "absent", ""
            yield Change(at_seconds, name, "absent", "", "forgotten")


def play(scenario: Scenario, *, restart_at: int | None = None) -> Iterator[tuple[int, NodeView, bool]]:
    """Per second from the start on: its number, the picture of the node, and whether the exporter can be scraped.

    `restart_at`: the second in which the exporter is restarted; the seconds that it is away are left out.
    """
    playback = Playback(scenario)
    while not playback.player.ended:
        if playback.player.second == restart_at:
            playback.restart()
        second = playback.player.second
        view = playback.advance()
        yield second, view, playback.player.scraped


def run(name: str, *, json: bool, openmetrics: Path | None, interval_seconds: float, out: TextIO) -> int:
    """Play a shipped scenario or that of a file, print the changes to `out` and leave the series in `openmetrics`.

    Exit status: 0, or 1 for a faulty scenario; the error output says why. Raises OSError for a scenario that cannot be
    read and for a file that cannot be written.
    """
    try:
        scenario = find(name)
    except DocumentError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    series = openmetrics.open("w", encoding="utf-8") if openmetrics else None
    recording = Recording() if series else None
    said = changes_of(scenario, recording, interval_seconds=interval_seconds)
    out.writelines(f"{change.as_json() if json else change.as_text()}\n" for change in said)
    if series and recording is not None:
        with series:
            recording.write(series)
    return 0


def changes_of(
    scenario: Scenario, recording: Recording | None, *, interval_seconds: float, restart_at: int | None = None
) -> Iterator[Change]:
    """Every change of state as it happens; meanwhile `recording` is scraped each `interval_seconds`."""
    changes = Changes()
    for second, view, scraped in play(scenario, restart_at=restart_at):
        yield from changes.between(view, second)
        if recording is not None and scraped and second % interval_seconds < 1:
            recording.add(EPOCH_SECONDS + second, families(view))
