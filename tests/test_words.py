"""Numbers as words."""

from __future__ import annotations

import pytest

from training_exporter import words


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (-3, "0 s"),
        (0, "0 s"),
        (59.9, "59 s"),
        (60, "1 min"),
        (3599, "59 min"),
        (3600, "1 h"),
        (12_000, "3 h 20 min"),
        (86_400, "1 d"),
        (190_000, "2 d 4 h"),
    ],
)
def test_duration(seconds: float, expected: str) -> None:
    """Ages have at most two units and are never rounded up."""
    assert expected == words.duration(seconds)


@pytest.mark.parametrize(
    ("count", "expected"),
    [(0, "0 B"), (512, "512 B"), (1536, "1.5 KiB"), (41_724_000_000, "38.9 GiB"), (2**40 * 300, "300 TiB")],
)
def test_size(count: float, expected: str) -> None:
    """Sizes have binary units, as the driver and `ls -h` have."""
    assert expected == words.size(count)


def test_plural() -> None:
    """One thing is not many."""
    assert [
        words.plural(1, "worker"),
        words.plural(8, "worker"),
        words.plural(2, "mouse", "mice"),
    ] == ["1 worker", "8 workers", "2 mice"]
