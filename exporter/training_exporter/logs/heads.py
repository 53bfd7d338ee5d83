"""Takes off what stands before a message: rank prefixes, times, levels, logger names, file and line."""

from __future__ import annotations

import re
from dataclasses import dataclass

from training_exporter.logs.lexer import N, T, index_of
from training_exporter.logs.plan import Ref

_LEVEL = r"(?:TRACE|DEBUG|INFO|NOTICE|NOTE|SUCCESS|WARNING|WARN|ERROR|CRITICAL|FATAL)"
_COMPLAINTS = frozenset({"WARNING", "WARN", "ERROR", "CRITICAL", "FATAL"})
_RICH_BLANKS = " {10,11}"  # in place of a time that did not change; one of them is taken with what stands before
_FILE = rf"[\w./-]+\.(?:py|cc|cpp|cu|c|h|go|rs):{N}"

_RANK_PREFIXES = [
    re.compile(r"\[(?:rank|default|worker|node|trainer|[a-z_]+)(?P<fixed>\d+)\]:\s?"),  # torch, torchrun --tee
    re.compile(rf"\[{N},(?P<mark>{N})\]<std(?:out|err)>:\s?"),  # mpirun --tag-output
    re.compile(rf"[\[(][Rr]ank[ :=]?(?:(?P<fixed>\d+)|(?P<mark>{N}))[\])]\s"),  # `[rank1] `, `(rank 1) `, of loops
    re.compile(rf"(?:[Rr]ank ?(?:(?P<fixed>\d+)|(?P<mark>{N})):|R(?P<short>\d+)\s?\|)\s"),
    re.compile(r"\((?:[\w.<>-]+ )?(?:pid=|ip=)[^)]*\)\s?"),  # Ray
    re.compile(r"\[pod/[^\]\s]+\]\s"),  # kubectl --prefix
    re.compile(rf"\[{N},mpirank:(?P<mark>{N}),algo-[^\]]{{1,8}}\]<std(?:out|err)>:\s?"),  # SageMaker
    re.compile(  # srun --label; behind it a line may be indented, or a bar
        rf"(?P<mark>{N}): (?=\S|{_RICH_BLANKS}{_LEVEL}|\s{{1,40}}[^\W\d]|\s{{0,10}}{N}%\|)(?!\s*(?:{N}(?!%\|)|loss\b))"
    ),
    re.compile(
        rf"[A-Za-z][\w-]{{0,63}}[\d\w](?:\.[\w.-]+)?: (?=\[?{T}|\[rank|\[{_LEVEL}|{_RICH_BLANKS}{_LEVEL})"
    ),  # pdsh, deepspeed: host name
    re.compile(r"[a-z][\w.-]{0,63}-\d{1,3}\s{1,40}\|\s(?=\D)"),  # docker compose
    # kubectl logs --timestamps: before a RichHandler's record, a rank, a traceback, and what is indented
    re.compile(
        rf"{T} (?=(?:\[{T}\]|{_RICH_BLANKS}) ?{_LEVEL} |\[(?:rank|default)\d+\]:|Traceback \(most|"
        rf"\s{{1,40}}(?!{_LEVEL}\b)[^\W\d])"
    ),
    re.compile(rf"\[(?!(?:train|val|eval|test|dev)\w*\])[A-Za-z][\w.-]*\]\s(?={T})"),  # host name before the time
]
_BRACKET = re.compile(r"\[([^\[\]]{0,120})\](:\s?|\s*)")
# `I0630 10:22:31.118 140233 f.py:88]`, absl's before it is initialised, `I0000 00:00:1769797260.220114 60188 f.cc:12]`,
# and dinov2's with a whole date and a logger's name
_GLOG = re.compile(rf"\[?[IWEF]\d{{3,8}} {T}(?::{N})?(?:\.?\d*) {{1,8}}(?:{N} )?(?:[A-Za-z]\w* )?[\w./-]+:{N}\]\s?")
_STDLIB = re.compile(rf"({_LEVEL}):([\w.]+):")
_STDLIB_TIME = re.compile(rf"({_LEVEL}):(?={T}:)")
_LEVEL_WORD = re.compile(rf"({_LEVEL})(?:(?:\s*[-|:>]+)\s|\s+|(?=\[)|$)")
_TIME = re.compile(rf"{T}(?:(?:\s*[-|,:>]+)\s|\s+|:?(?=\[)|\]:?\s?)")
_LOGGER = re.compile(rf"([A-Za-z_][\w.]*)((?::[\w<>.]+)?(?::{N})?)\s+(?:-+|\||>>)(?:\s|$)")
_LOGGER_LEVEL = re.compile(rf"([A-Za-z_][\w.-]*) (?={_LEVEL}:\s)")  # Paddle, ignite: `[time] ppdet.engine INFO: `
_FILE_WORD = re.compile(rf"\[?{_FILE}(?::[\w<>]+)?\]?(?:(?:\s*[-|:>]+)\s|\s+)")
_TABBED = re.compile(rf"([\w.-]+)(?::{N})?\t")
_MODULE = re.compile(rf"\(([A-Za-z_][\w.]*)[: ]{N}\)(?::\s|\s+)(?={_LEVEL}\b)")
_ARROWS = re.compile(r">>\s")
_BRACKET_PARTS = re.compile(
    rf"^(?:{T}|{_LEVEL}(?::[A-Za-z_][\w.]*|(?:\|[^|]{{1,80}})*)|{_FILE}(?::[\w<>]+)?|[\w./-]+\.py \({N}\)|"
    rf"(?:[A-Za-z]\w* )?(?:Rank|RANK|rank)[ :=]?{N}|(?:PID|pid)[ :=]?{N}|"
    rf"{T} [\w.]+|NeMo [IWED] {T} [\w.]+:{N}|{T},? {_LEVEL}|titan|{N})$"
)
_BRACKET_LOGGER = re.compile(rf"^[A-Za-z_][\w.]*(?::{N})?$")
_PAIRS = re.compile(r"[A-Za-z][\w./-]{0,80}=")
_BRACKET_RANK = re.compile(rf"^(?:[A-Za-z]\w* )?(?:Rank|RANK|rank)[ :=]?({N})$")
# `[XTuner][RANK 0][time][INFO] `, `[eval] time`: a name that other parts of a head follow
_BEFORE_HEAD = re.compile(rf"\[(?:(?:Rank|RANK|rank)[ :=]?{N}|{T})\]|{T}")
# `[actor_train-0 0 / 4][PID 4121] `: a worker of a cluster, and how many there are
_WORKER = re.compile(rf"\[[\w.-]{{1,80}} {N} / {N}\](?=\[PID {N}\])")
_RICH = re.compile(rf"^(?:\[{T}\]|{_RICH_BLANKS}) ?({_LEVEL}) +")
# What something else printed before it, in every line of the record
_RICH_PREFIX = re.compile(rf"^(.{{0,120}}?)(?:\[\d\d:\d\d:\d\d\]| {{11}}) ?{_LEVEL} ")
_CLOCK = re.compile(r"\d\d:\d\d:\d\d")
_DIGITS = str.maketrans("123456789", "000000000")
_RICH_FILE = re.compile(rf"\s{{1,}}[\w.<>-]+\.py:{N}\s*$")
_MAX_PLACE = 200  # characters of the column with file and line at the end
_RICH_REST = re.compile(r"^ {20,}\S")


@dataclass(slots=True)
class Head:
    """What a head said, and where the message begins."""

    message: str
    logger: str = ""
    level: str = ""
    rank: Ref | None = None
    headed: bool = False
    rich: bool = False
    native: bool = False  # of glog: written by C++ or torch, not by the program's own logger

    @property
    def complaint(self) -> bool:
        """Whether the program's own logger said that something went wrong."""
        return self.headed and not self.native and self.level in _COMPLAINTS


def take_rank(masked: str) -> tuple[str, Ref | None]:
    """The text behind all rank prefixes, and the rank: the innermost wins (`[default0]:[rank3]:` is rank 3)."""
    rank: Ref | None = None
    for _ in range(4):
        for pattern in _RANK_PREFIXES:
            match = pattern.match(masked)
            if match is None:
                continue
            groups = match.groupdict()
            if fixed := groups.get("fixed") or groups.get("short"):
                rank = float(fixed)
            elif groups.get("mark"):
                rank = index_of(groups["mark"])
            masked = masked[match.end() :]
            break
        else:
            break
    return masked, rank


def take_head(masked: str) -> Head:
    """Split a masked line into head and message."""
    text, rank = take_rank(masked)
    if match := _RICH.match(text):
        message = text[match.end() :]
        if place := _RICH_FILE.search(message, max(0, len(message) - _MAX_PLACE)):
            message = message[: place.start()]
        return Head(message.rstrip(), level=match[1], rank=rank, headed=True, rich=True)
    head = Head(text, rank=rank)
    for _ in range(8):
        if not _step(head):
            break
        head.headed = True
    return head


def rich_prefix(text: str) -> str:
    """What stands before a RichHandler's record in a printed line: a rank, a host, a pod, a time; mostly nothing."""
    match = _RICH_PREFIX.match(text)
    return "" if match is None else match[1]


def rich_rest(text: str, prefix: str) -> str | None:
    """What a printed line adds to a RichHandler's record behind that prefix; None where it belongs to something else.

    The message column begins behind 20 blanks. A time in the prefix may go on.
    """
    if prefix:
        before, text = text[: len(prefix)], text[len(prefix) :]
        if before != prefix and not (_CLOCK.search(prefix) and before.translate(_DIGITS) == prefix.translate(_DIGITS)):
            return None
    return text.strip() if _RICH_REST.match(text) else None


def _step(head: Head) -> bool:
    text = head.message
    if match := _STDLIB.match(text):
        head.level, head.logger = match[1], match[2]
    elif match := _STDLIB_TIME.match(text):
        head.level = match[1]
    elif match := _GLOG.match(text):
        head.native = True
        head.level = head.level or {"I": "INFO", "W": "WARNING", "E": "ERROR", "F": "FATAL"}[match[0].lstrip("[")[0]]
    elif text.startswith("["):
        return _bracket(head)
    elif match := _TIME.match(text):
        pass
    elif not head.level and (match := _LEVEL_WORD.match(text)) and (head.headed or match.end() < len(text)):
        head.level = match[1]
    elif head.headed and (match := _FILE_WORD.match(text) or _ARROWS.match(text)):
        pass
    elif (head.headed and (match := _TABBED.match(text) or _MODULE.match(text))) or (
        head.headed and not head.logger and (match := _LOGGER.match(text) or _LOGGER_LEVEL.match(text))
    ):
        head.logger = match[1]
    else:
        return False
    head.message = text[match.end() :]
    return True


def _bracket(head: Head) -> bool:
    match = _BRACKET.match(head.message)
    if match is None:
        return False
    inside = match[1]
    if not _BRACKET_PARTS.match(inside):
        # a bare word in brackets is a logger only among other parts of a head: `[time][train][INFO] - `
        among = head.headed or _BEFORE_HEAD.match(head.message, match.end())
        another = bool(head.level) and match.end() < len(head.message)  # a second one, and not all that is said
        if among and (another or not head.logger) and _BRACKET_LOGGER.match(inside):
            head.logger = f"{head.logger} {inside}".lstrip()
        elif not _WORKER.match(head.message):
            return False
    elif rank := _BRACKET_RANK.match(inside):
        head.rank = index_of(rank[1])
    elif level := re.match(_LEVEL, inside):
        head.level = head.level or level[0]
    elif logger := re.match(rf"^{T} ([A-Za-z][\w.]*)$", inside):
        head.logger = logger[1]
    elif re.fullmatch(N, inside) and (not head.headed or _PAIRS.match(head.message, match.end())):
        return False  # a step: `[100] loss=3.9`
    rest = head.message[match.end() :]
    head.message = rest[2:] if rest.startswith(("- ", "| ")) else rest.removeprefix(": ")
    return True
