"""The palette: a word and a colour for every state, apart for everybody's eyes."""

from __future__ import annotations

import itertools
import math
import re

import pytest

from training_exporter.palette import BY_STATE, LOOKS, NO_DATA_CODE
from training_exporter.runs.verdict import CODES, STATES

# What the cones of each kind of sight make of linear RGB: Machado, Oliveira and Fernandes 2009, severity 1.
SIGHTS = {
    "full": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protan": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deutan": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
    "tritan": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.303900)),
}
# Grafana's usual green, yellow, red and blue fall to 8 for deuteranopes; 20 is a plain difference.
APART = 20.0


def lab(colour: str, sight: str) -> tuple[float, float, float]:
    """CIELAB of an sRGB colour as that sight sees it."""
    linear = [_linear(int(colour[place : place + 2], 16) / 255) for place in (1, 3, 5)]
    seen = [
        min(1.0, max(0.0, sum(weight * value for weight, value in zip(row, linear, strict=True))))
        for row in SIGHTS[sight]
    ]
    red, green, blue = seen
    x = _root((0.4124 * red + 0.3576 * green + 0.1805 * blue) / 0.9505)
    y = _root(0.2126 * red + 0.7152 * green + 0.0722 * blue)
    z = _root((0.0193 * red + 0.1192 * green + 0.9505 * blue) / 1.089)
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def _linear(value: float) -> float:
    return value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4


def _root(value: float) -> float:
    return math.cbrt(value) if value > 0.008856 else 7.787 * value + 16 / 116


class TestLooks:
    def test_every_state_has_a_look_with_its_own_word_and_code(self) -> None:
        """A new state without word or colour fails here, not on a screen."""
        assert {look.state: (look.code, look.word) for look in LOOKS if look.state} == {
            state: (code, STATES[state]) for state, code in CODES.items()
        }
        assert BY_STATE[""].code == NO_DATA_CODE
        assert len({look.word for look in LOOKS}) == len(LOOKS)

    def test_colours_are_written_in_one_way(self) -> None:
        """#RRGGBB in capitals, which every consumer understands."""
        assert [look.colour for look in LOOKS if not re.fullmatch(r"#[0-9A-F]{6}", look.colour)] == []

    @pytest.mark.parametrize("sight", SIGHTS)
    def test_different_colours_look_different(self, sight: str) -> None:
        """Any two colours of the palette are plainly apart, for every kind of sight."""
        colours = sorted({look.colour for look in LOOKS})
        near = {
            (one, other): round(distance, 1)
            for one, other in itertools.combinations(colours, 2)
            if (distance := math.dist(lab(one, sight), lab(other, sight))) < APART
        }
        assert near == {}

    def test_only_states_that_are_neither_well_nor_ill_share_a_colour(self) -> None:
        """The greys; whatever runs or needs a person has a colour of its own."""
        shared = [look for look in LOOKS if sum(other.colour == look.colour for other in LOOKS) > 1]
        assert {look.state for look in shared} == {"", "absent", "finished", "ended", "starting"}
