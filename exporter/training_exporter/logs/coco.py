"""The summary that pycocotools prints at the end of an evaluation: twelve lines, each a value and what it is of."""

from __future__ import annotations

import re

_ROW = re.compile(
    r"^\s*Average (?:Precision|Recall)\s+\((?P<kind>AP|AR)\)\s+@\[\s*IoU=(?P<low>[\d.]+)(?P<range>:[\d.]+)?\s+\|\s+"
    r"area=\s*(?P<area>\w+)\s+\|\s+maxDets=\s*(?P<most>\d+)\s+(?:catIds=\s*(?P<classes>\w+)\s*)?\]\s*=\s*(?P<value>-?[\d.]+)\s*$"
)
_LIKE_A_ROW = re.compile(r"^\s*Average (?:Precision|Recall)\s+\(A[PR]\)\s+@\[")
# A program's own words for the same: `bbox_mAP`, `AP50`, `bbox/AP`
_SAME = re.compile(r"(?:^|_)m?ap(?:_?\d+|_?[sml])?(?:_|$)")
_AREAS = {"s": "small", "m": "medium", "l": "large"}
UNDEFINED = -1.0  # there was nothing of this kind to find
MAX_SWALLOWED = 40  # lines behind it in which the program's own words are awaited


def is_row(message: str) -> bool:
    """Whether a masked message is a row of the summary."""
    return bool(_LIKE_A_ROW.match(message))


def row(text: str) -> tuple[str, float] | None:
    """Name and value of a printed row; None for any other line.

    The names are `ap`, `ap50`, `ap75`, `ap_small`, `ap_medium`, `ap_large`, `ar_1`, `ar_10`, `ar_100`, `ar_small`, ...;
    other thresholds, areas and numbers of detections (LVIS, key points) are named alike.
    """
    match = _ROW.match(text)
    if match is None:
        return None
    name = match["kind"].lower()
    area = _AREAS.get(match["area"], match["area"])
    if not match["range"]:
        name += f"{float(match['low']) * 100:.0f}"
    elif match["kind"] == "AR" and area == "all":
        name += f"_{match['most']}"
    if area != "all":
        name += f"_{area}"
    if match["classes"] not in (None, "all"):
        name += f"_{match['classes']}"
    return name, float(match["value"])


def says_the_same(name: str) -> bool:
    """Whether a normalised name is of a value that the summary has too."""
    return bool(_SAME.search(name))
