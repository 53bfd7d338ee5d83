"""A scenario file into records: every fault is named by key and line, and nothing is left for the player to guess."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import cast

from training_exporter import documents
from training_exporter.config import Budgets
from training_exporter.documents import DocumentError, Fault, read
from training_exporter.model import SourceName
from training_exporter.scenario.records import (
    Checkpoint,
    Child,
    Counter,
    Gpu,
    Hardware,
    Line,
    RankSegment,
    RankState,
    RunWords,
    Scenario,
    Segment,
    Span,
)
from training_exporter.scenario.schema import SCENARIO

Tree = Mapping[str, object]

ZERO = Span(0.0, 0.0)
MIB = 1024 * 1024


def load(path: Path) -> Scenario:
    """The scenario in a file. Raises OSError, or DocumentError with all faults."""
    try:
        text = read(path)
    except UnicodeDecodeError as error:
        raise DocumentError(str(path), [Fault(0, "", f"not UTF-8: {error.reason} at byte {error.start}")]) from error
    return parse(str(path), text)


def shipped() -> dict[str, Path]:
    """The scenarios of this package by name."""
    folder = Path(str(files(__package__) / "shipped"))
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def find(name: str) -> Scenario:
    """A shipped scenario, or that of a file. Raises OSError or DocumentError."""
    known = shipped()
    if name not in known and not Path(name).exists():
        raise FileNotFoundError(f"{name}: no such file, and no shipped scenario ({', '.join(known)})")
    return load(known.get(name, Path(name)))


def parse(source: str, text: str) -> Scenario:
    """The scenario in `text`; `source` is for the messages. Raises DocumentError with all faults."""
    tree, faults = documents.parse(text, SCENARIO, empty={})
    if faults:
        raise DocumentError(source, faults)
    return _scenario(tree)


def _scenario(tree: Tree) -> Scenario:
    gpu, run = _tree(tree, "gpu"), _tree(tree, "run")
    hardware = Hardware(
        name=cast("str", gpu["name"]),
        idle_watts=cast("float", gpu["idle_watts"]),
        limit_watts=cast("float", gpu["limit_watts"]),
        memory_total_mib=cast("float", gpu["memory_total_mib"]),
    )
    words = RunWords(
        name=cast("str", run["name"]),
        launcher=cast("str", run["launcher"]),
        script=cast("str", run["script"]),
        budgets=Budgets(**cast("dict[str, float]", run["budgets"])),
        absent=frozenset(cast("tuple[SourceName, ...]", run["absent"])),
        mig=cast("bool", run["mig"]),
    )
    segments = _segments(tree, hardware.idle_watts)
    name, about = cast("str", tree["name"]), cast("str", tree["about"])
    return Scenario(name, about, hardware, words, segments, _tree(tree, "expect"))


def _segments(tree: Tree, idle_watts: float) -> tuple[Segment, ...]:
    nothing = Gpu(ZERO, ZERO, Span(idle_watts, idle_watts), ZERO, ZERO)
    fresh = RankSegment("running", nothing, ZERO, ZERO, ZERO, ZERO, ZERO, ZERO)
    before = (fresh,) * cast("int", tree["ranks"])
    launcher, attempt, start = True, 1, 0.0
    segments = []
    for entry in _trees(tree["segments"]):
        again = cast("int", entry.get("attempt", attempt))
        replaced = again != attempt or bool(entry.get("restart"))
        launcher = "launcher" not in entry and (launcher or again != attempt)
        attempt = again
        if replaced:
            before = tuple(replace(rank, state="running") for rank in before)
        ranks = tuple(_rank(entry, rank, last, idle_watts) for rank, last in enumerate(before))
        end = start + cast("float", entry["for"])
        segments.append(
            Segment(
                start_seconds=start,
                end_seconds=end,
                label=cast("str", entry.get("label", "")),
                ranks=ranks,
                launcher=launcher,
                restart=bool(entry.get("restart")),
                attempt=attempt,
                blind=frozenset(cast("tuple[str, ...]", entry.get("blind", ()))),
                lines=_lines(entry),
                checkpoint=_checkpoint(entry),
            )
        )
        before, start = ranks, end
    return tuple(segments)


def _rank(entry: Tree, rank: int, before: RankSegment, idle_watts: float) -> RankSegment:
    # a rank's own words are merged over the segment's, key by key
    own = _overrides(entry).get(rank, {})
    merged = {**entry, **own}
    cores = {**_tree(entry, "cores"), **_tree(own, "cores")}
    children = tuple(
        Child(cast("str", child["name"]), cast("Span", child["cores"]), cast("bool", child["gpu"]))
        for child in _trees(merged.get("children", ()))
    )
    return RankSegment(
        state=cast("RankState", merged.get("state", before.state)),
        gpu=_gpu({**_tree(entry, "gpu"), **_tree(own, "gpu")}, before.gpu, idle_watts),
        rank_cores=cast("Span", cores.get("rank", ZERO)),
        loader_cores=cast("Span", cores.get("loader", ZERO)),
        other_cores=cast("Span", cores.get("other", ZERO)),
        read=cast("Span", merged.get("read", ZERO)),
        write=cast("Span", merged.get("write", ZERO)),
        faults=cast("Span", merged.get("faults", ZERO)),
        children=children,
    )


def _gpu(words: Tree, before: Gpu, idle_watts: float) -> Gpu:
    return Gpu(
        util=cast("Span", words.get("util", ZERO)),
        mem_util=cast("Span", words.get("mem_util", ZERO)),
        watts=cast("Span", words.get("watts", Span(idle_watts, idle_watts))),
        memory_mib=cast("Span", words.get("memory_mib", before.memory_mib)),
        other_mib=cast("Span", words.get("other_mib", ZERO)),
        sm_mhz=cast("Span | None", words.get("sm_mhz", before.sm_mhz)),
        temp_c=cast("Span | None", words.get("temp_c", before.temp_c)),
        lost=cast("bool", words.get("lost", False)),
        xids=cast("tuple[int, ...]", words.get("xid", ())),
        clock_events=frozenset(cast("tuple[str, ...]", words.get("clock_event", ()))),
    )


def _lines(entry: Tree) -> tuple[Line, ...]:
    own = [line for override in _overrides(entry).values() for line in _trees(override.get("log", ()))]
    return tuple(_line(line) for line in (*_trees(entry.get("log", ())), *own))


def _line(entry: Tree) -> Line:
    every = cast("float | None", entry.get("every"))
    return Line(
        template=cast("str", entry["line"]),
        first_seconds=cast("float", entry.get("at", entry.get("from", every))),
        every_seconds=every,
        n=_counter(entry, "n"),
        x=_counter(entry, "x"),
        carriage_return=cast("bool", entry.get("cr", False)),
    )


def _counter(entry: Tree, key: str) -> Counter | None:
    words = _tree(entry, key)
    return Counter(cast("float", words["start"]), cast("float", words["by"])) if words else None


def _checkpoint(entry: Tree) -> Checkpoint | None:
    words = _tree(entry, "checkpoint")
    if not words:
        return None
    return Checkpoint(
        at_seconds=cast("float", words["at"]),
        name=cast("str", words["name"]),
        layout=cast("str", words["layout"]),
        bytes=round(cast("float", words["mib"]) * MIB),
        takes_seconds=cast("float", words["takes"]),
        partial=cast("bool", words["partial"]),
        adds_to_writes="write" not in entry and "write" not in _overrides(entry).get(0, {}),
    )


def _tree(tree: Tree, key: str) -> Tree:
    return cast("Tree", tree.get(key, {}))


def _trees(value: object) -> tuple[Tree, ...]:
    return cast("tuple[Tree, ...]", value)


def _overrides(segment: Tree) -> Mapping[int, Tree]:
    return cast("Mapping[int, Tree]", segment.get("ranks", {}))
