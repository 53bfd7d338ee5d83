"""One word and one colour for each state of a run, for every place that draws them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from training_exporter.runs.verdict import CODES, STATES

NO_DATA_CODE = 0

# Chosen so that states of different meaning stay apart in normal sight and under simulated protanopia, deuteranopia and
# tritanopia: blue is healthy, pale is short silence, yellow is saving, orange to red is for a person. What is neither
# well nor ill is grey. The word says the rest, and is shown wherever the colour is.
_COLOURS: Mapping[str, str] = {
    "absent": "#8E8E8E",
    "finished": "#C4C4C4",
    "ended": "#C4C4C4",
    "starting": "#C4C4C4",
    "training": "#0072B2",
    "validating": "#56B4E9",
    "checkpointing": "#F0E442",
    "quiet": "#CCFFCC",
    "unknown": "#AA00FF",
    "no_progress": "#EEAA66",
    "stalled": "#D55E00",
    "degraded": "#880000",
    "failed": "#882255",
}


@dataclass(frozen=True, slots=True)
class Look:
    """How one state is drawn: its code in the metrics, its word and its colour (#RRGGBB)."""

    state: str  # "" for no data
    code: int
    word: str
    colour: str


LOOKS: tuple[Look, ...] = (
    Look("", NO_DATA_CODE, "No data", "#8E8E8E"),
    *(Look(state, code, STATES[state], _COLOURS[state]) for state, code in CODES.items()),
)

BY_STATE: Mapping[str, Look] = {look.state: look for look in LOOKS}
