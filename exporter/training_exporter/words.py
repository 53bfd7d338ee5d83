"""Numbers as a person reads them: ages, sizes, rates."""

from __future__ import annotations


def duration(seconds: float) -> str:
    """An age or duration in at most two units: `42 s`, `12 min`, `3 h 20 min`, `2 d 4 h`."""
    whole = int(max(0.0, seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min"
    if whole < 86_400:
        return _two(whole // 3600, "h", whole % 3600 // 60, "min")
    return _two(whole // 86_400, "d", whole % 86_400 // 3600, "h")


def size(count: float) -> str:
    """Bytes in binary units with three digits: `512 B`, `38.9 GiB`."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} PiB"


def plural(count: float, noun: str, many: str | None = None) -> str:
    """A count with its noun: `1 worker`, `8 workers`."""
    return f"{count:,.0f} {noun if count == 1 else many or noun + 's'}"


def percent(ratio: float) -> str:
    """A ratio as whole percent."""
    return f"{100 * ratio:.0f} %"


def _two(large: int, large_unit: str, small: int, small_unit: str) -> str:
    return f"{large} {large_unit}" + (f" {small} {small_unit}" if small else "")
