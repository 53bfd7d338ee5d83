"""Tables: a header of names, then rows of numbers under them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from training_exporter.logs import bars, names
from training_exporter.logs.fields import ref_of
from training_exporter.logs.lexer import N, T, index_of
from training_exporter.logs.plan import Draft, Ref
from training_exporter.model import Split

_METRIC_TABLE = re.compile(
    r"^[\s┃│|]*(?:Runningstage\.)?(?P<split>validat\w*|test\w*|eval\w*)\s+metrics?\s*[┃│|]?\s+.*dataloader",
    re.IGNORECASE,
)
_ROW = re.compile(
    r"^[\s┃│|]*(?P<name>[A-Za-z][\w/@.\- ]{0,200}?)(?:\s{0,40}[│┃|]|\s{2})(?=[\s│┃|]*[-+]?(?:\d|nan|inf))"
)
_VALUE = re.compile(r"(?<![\w.])[-+]?(?:\d[\d.]*(?:[eE][-+]?\d+)?|nan|inf)(?![\w.])")
_LOADER = re.compile(r"dataloader\s*(?P<number>\d+)", re.IGNORECASE)
_SECTION = re.compile(r"^\s*\|\s*[A-Za-z][\w-]*/\s*\|\s*\|\s*$")
_TAIL_BAR = re.compile(r":\s*(?:\d|" + N + r")+%\s?[|━╸╺─].*$|:\s*\|.*$")
_CELLS = re.compile(r"\s*[|│┃]\s*|\s{2,}|\t|(?<=\S),\s?(?=\S)")
_EPOCHS = frozenset({"epoch", "e"})
_STEPS = frozenset({"step", "iter", "iteration", "#"})
_SIZES = frozenset({"images", "instances", "labels", "size", "img_size"})
_KNOWN = _EPOCHS | _STEPS | _SIZES | {"class", "gpu_mem"}
_IOU_RANGE = re.compile(rf"(?<=[\w.]:){N}")  # `mAP@.5:.95`: part of a name
_NAMES_NEXT = re.compile(
    r"(?:evaluation results for|task:|iou metric:|evaluate annotation type|"
    r"evaluating(?= (?:bbox|segm|keypoints|proposal)\b))[\s*]*(?P<name>[A-Za-z]\w*)",
    re.IGNORECASE,
)
MAX_COLUMNS = 64
MAX_HEADER = 4096  # characters with a bar behind the names


def names_next(message: str) -> str:
    """Prefix of the names in the tables that follow: `Evaluation results for bbox:` -> `bbox/`, else empty."""
    match = _NAMES_NEXT.search(message)
    return "" if match is None else f"{match['name']}/"


def metric_table(message: str) -> str:
    """`metrics:val` or `metrics:test` for the header of a two-column table of an evaluation, else an empty text."""
    if _pivot(message) is not None:
        return "metrics:val"
    match = _METRIC_TABLE.match(message)
    if match is None:
        return ""
    return "metrics:test" if match["split"].lower().startswith("test") else "metrics:val"


def metric_row(table: str, text: str) -> list[tuple[str, float]]:
    """Names and values of such a table's row, both as printed; none for a line that is no row.

    With several data loaders each has a column, and a value the name of its column, as in Lightning's own logs:
    `val_loss/dataloader_idx_1`. A metric may be of some loaders only.
    """
    match = _ROW.match(text)
    values = [] if match is None else list(_VALUE.finditer(text, match.end()))
    loaders = list(_LOADER.finditer(table))
    if match is None or not values:
        return []
    name = match["name"].strip()
    if len(loaders) < 2:
        return [(name, float(values[0][0]))]
    return [(f"{name}/dataloader_idx_{_above(value, loaders)['number']}", float(value[0])) for value in values]


def _above(value: re.Match[str], columns: Sequence[re.Match[str]]) -> re.Match[str]:
    """The title of the column in which a value stands: what is printed in one is centred."""
    return min(columns, key=lambda title: abs(sum(title.span()) - sum(value.span())))


def pivot_row(table: str, message: str, above: str) -> tuple[str, Ref] | None:
    """Name, as `task/metric`, and value of a row under a header with a column of metrics and one of values.

    A blank first cell repeats the one above, of which `above` is the name; None where the line is no such row.
    """
    places = _pivot(table)
    row = [cell.strip() for cell in message.split("|")]
    if places is None or max(places) >= len(row):
        return None
    task = row[1].strip(" -") or above.rpartition("/")[0]
    ref = ref_of(row[places[1]])
    return None if ref is None or not row[places[0]] else (f"{task}/{row[places[0]]}", ref)


def is_pivot(message: str) -> bool:
    """Whether a header has a column of metrics and one of values: `|Tasks|Version|Metric|Value|Stderr|`."""
    return _pivot(message) is not None


def _pivot(message: str) -> tuple[int, int] | None:
    cells = [cell.strip().lower() for cell in message.split("|")]
    return (cells.index("metric"), cells.index("value")) if "metric" in cells and "value" in cells else None


def is_section(message: str) -> bool:
    """Whether a line begins a framed list of pairs in sections: `| eval/ | |`, then `|    mean_reward | -157.2 |`."""
    return bool(_SECTION.match(message))


def framed(rows: Sequence[str]) -> str:
    """The rows of such a list as one line of pairs. A section of times and counts names nothing: it is left out."""
    section = ""
    pairs = []
    for row in rows:
        name, value, *_ = [*(cell.strip() for cell in row.strip().strip("|").split("|")), ""]
        if name.endswith("/") and not value:
            section = "" if names.is_aux(name.strip("/")) else name
        else:
            pairs.append(f"{section}{name}={value}")
    return " | ".join(pairs)


def header(message: str) -> tuple[str, ...]:
    """Column names, where a line is nothing but names of which one at least is known as a metric; else empty."""
    text = _IOU_RANGE.sub("_95", _TAIL_BAR.sub("", message[:MAX_HEADER]).strip().strip("|│┃ "))
    if re.search(f"{T}", text) or len(text) > 1000 or "=" in text or re.search(N, text):
        return ()
    text = text.removeprefix("copypaste:").strip()
    cells = tuple(cell for cell in _CELLS.split(text) if cell)
    if not 3 <= len(cells) <= MAX_COLUMNS or any(len(cell.split()) > 3 or len(cell) > 40 for cell in cells):
        return ()
    known = [cell for cell in cells if cell.lower() in _KNOWN or names.is_quality(names.normalise(cell)[0])]
    enough = len(known) >= 3 if cells[0].lower() in _KNOWN else len(known) * 2 >= len(cells)
    if not enough or any(cell.lower() == "category" for cell in cells):
        return ()
    return _grouped(cells)


def _grouped(columns: tuple[str, ...]) -> tuple[str, ...]:
    """With the group in the name where names come again: `Box(P R mAP50) Mask(P R mAP50)`, ultralytics' two kinds."""
    group = ""
    named = []
    for column in columns:
        begins = column.partition("(")
        group = begins[0] if begins[1] else group
        named.append(f"{group}({column}" if column in named and not begins[1] else column)
    return tuple(named)


def of_classes(columns: tuple[str, ...]) -> bool:
    """Whether the rows are classes of an evaluation, the first of them all together."""
    return bool(columns) and columns[0].lower() == "class"


def _has_twin(name: str, columns: tuple[str, ...]) -> bool:
    return any(names.normalise(column) == (name, "val") for column in columns)


def cells(message: str, count: int) -> list[str] | None:
    """The `count` cells of a row, numbers except the first; None where the line is no such row."""
    bar = bars.find(message)
    text = (bar.description if bar is not None else message).strip().strip("|│┃ ").removeprefix("copypaste:").strip()
    for split in (_CELLS.split(text), text.split(), re.split(r"\s*,\s*", text)):
        found = [cell for cell in split if cell]
        if len(found) == count and sum(bool(re.match(N, cell)) for cell in found) >= max(1, count - 2):
            return found
    return None


def row_draft(columns: tuple[str, ...], row: list[str], prefix: str, opened_split: Split | None) -> Draft | None:
    """What a row says. Columns of an epoch table are train unless named otherwise; a class table is validation."""
    classes = of_classes(columns)
    if classes and row[0].lower() not in ("all", "overall", "mean", "avg"):
        return None
    said = _Row(columns)
    for column, cell in zip(columns, row, strict=True):
        said.add(column, cell, prefix)
    alone = bool(prefix) and said.epoch is None and said.step is None
    return said.draft("val" if classes or alone else opened_split)


class _Row:
    """The cells of one row, sorted by what their columns say."""

    def __init__(self, columns: tuple[str, ...]) -> None:
        self.epoch: Ref | None = None
        self.step: Ref | None = None
        self._total: Ref | None = None
        self._columns = columns
        self._groups: dict[str, list[tuple[str, Ref]]] = {"plain": [], "train": [], "val": [], "test": []}

    def add(self, column: str, cell: str, prefix: str) -> None:
        marks = re.findall(N, cell)
        lowered = column.lower()
        if lowered in _EPOCHS and marks:
            self.epoch = index_of(marks[0])
            self._total = index_of(marks[1]) if len(marks) > 1 else None
            return
        with_unit = re.search(r"[A-Za-z]$", cell) is not None
        ref = ref_of(cell.rstrip("%")) if not (marks and with_unit) else None
        if ref is None:
            return
        if lowered in _STEPS:
            self.step = ref
        elif lowered in _SIZES:
            return
        else:
            self._measure(f"{prefix}{column}", ref)

    def draft(self, split: Split | None) -> Draft | None:
        groups = self._groups
        if split in ("val", "test"):
            groups[split] += groups["plain"]
            groups["plain"] = []
        if not any(groups.values()):
            return None
        return Draft(
            "record",
            event="row",
            split=split or ("train" if self.epoch is not None else None),
            epoch=self.epoch,
            epoch_total=self._total,
            step=self.step,
            plain=tuple(groups["plain"]),
            train=tuple(groups["train"]),
            validation=tuple(groups["val"]),
            test=tuple(groups["test"]),
            sure=True,
        )

    def _measure(self, column: str, ref: Ref) -> None:
        name, own = names.normalise(column)
        if not name or names.is_aux(name) or names.is_setting(name):
            return
        scored = self._groups["val"] or "#" in self._columns
        if own is None and scored and not names.is_loss(name) and not _has_twin(name, self._columns):
            own = "val"  # fastai prints what it measures behind valid_loss, spaCy behind the losses
        self._groups[own or "plain"].append((name, ref))
