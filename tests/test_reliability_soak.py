"""The judge of `make soak`: what a soak must not show is called by its name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from soak import MIB, Outcome, Sample, faults, growth, windows

MINUTES = 30
STEADY = [
    # memory is taken in the first minutes, clients and rotated logs come and go
    Sample(float(second), 50 * MIB + min(second, 300) * 50_000 + second % 7 * 10_000, 40 + second % 5, 20 + second % 2)
    for second in range(60 * MINUTES)
]
PASSED = Outcome(STEADY, lines_written=1000, lines_counted=1000.0, scrapes=1800, refused=(), closed_by_server=100)


def after_warm_up(change: Callable[[Sample, float], Sample]) -> Outcome:
    """An outcome whose samples change, by the share of the run that is over."""
    last = STEADY[-1].seconds
    return replace(PASSED, samples=[change(sample, sample.seconds / last) for sample in STEADY])


def test_a_steady_run_passes() -> None:
    """What grows in the warm-up and what sways afterwards is no fault."""
    assert faults(PASSED) == []


def test_the_windows_are_apart() -> None:
    """Both lie behind the warm-up, and the first is over when the last begins."""
    early, late = windows(STEADY)
    assert 600 <= early[0].seconds < early[-1].seconds < late[0].seconds
    assert late[-1] == STEADY[-1]


@pytest.mark.parametrize(
    ("outcome", "text"),
    [
        (after_warm_up(lambda s, t: replace(s, rss_bytes=s.rss_bytes + int(12 * MIB * t))), "memory grew by"),
        (after_warm_up(lambda s, t: replace(s, descriptors=s.descriptors + int(20 * t))), "more descriptors"),
        (after_warm_up(lambda s, t: replace(s, threads=s.threads + int(10 * t))), "more threads"),
        (replace(PASSED, lines_counted=999.0), "1000 lines written, 999.0 counted"),
        (replace(PASSED, lines_counted=1001.0), "1000 lines written, 1001.0 counted"),
        (replace(PASSED, lines_counted=None), "1000 lines written, None counted"),
        (replace(PASSED, refused=["/metrics: 503"]), "1 of 1800 scrapes without an answer: ['/metrics: 503']"),
        (replace(PASSED, scrapes=0), "no scrape was made"),
        (replace(PASSED, closed_by_server=0), "no half-open connection was closed by the server"),
    ],
)
def test_faults(outcome: Outcome, text: str) -> None:
    """Each alone fails a soak."""
    (fault,) = faults(outcome)
    assert text in fault


def test_growth_is_of_medians() -> None:
    """One busy moment is no growth."""
    busy = [*STEADY[:-5], *(replace(sample, rss_bytes=500 * MIB) for sample in STEADY[-5:])]
    assert abs(growth(busy, lambda sample: sample.rss_bytes)) < MIB
