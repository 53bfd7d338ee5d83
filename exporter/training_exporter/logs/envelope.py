"""Takes log lines out of what carries them: container log files and shippers' JSON envelopes."""

from __future__ import annotations

import json
import re

from training_exporter.logs.split import clean_text

MAX_PARTIAL = 1 << 20
# CRI: `2026-01-02T03:04:05.123456789Z stdout F text`, P for a part of a line
_CRI = re.compile(
    r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+(?:Z|[+-]\d\d:\d\d) (stdout|stderr) ([PF])(?::\S*)? ?(.*)$", re.DOTALL
)
_ENDS = re.compile(r"[\n\r\b]+")
_DOCKER = re.compile(r'^\{"log":"')
_ENVELOPE = re.compile(r'^\{.*"(?:log|message|msg)"\s*:\s*"')
_SHIPPED = ("kubernetes", "stream", "container_name", "container_id", "host", "agent", "@timestamp", "_p", "docker")
# All that a JSON formatter of a logger adds: with nothing else in it, the message is the line.
_BOOKKEEPING = frozenset(
    {
        "message", "msg", "timestamp", "asctime", "time", "ts", "date", "level", "levelname", "severity", "logger",
        "name", "module", "func", "funcName", "function", "lineno", "line", "filename", "file", "pathname", "process",
        "processName", "thread", "threadName", "pid", "rank", "hostname", "taskName", "color_message",
    }
)  # fmt: skip


class Unwrapper:
    """Joins the parts of one line for each stream; a plain line passes through as it is."""

    def __init__(self) -> None:
        self._partial: dict[str, str] = {}

    def unwrap(self, text: str) -> list[str]:
        """The printed lines that are complete with this line of the file."""
        first = text[:1]
        if first == "{" and ('"log"' in text[:400] or '"message"' in text or '"msg"' in text):
            return self._json(text)
        if first.isdigit() and text[10:11] == "T":
            match = _CRI.match(text)
            if match is not None:
                return self._join(match[1], match[3], whole=match[2] == "F")
        return [text]

    def _json(self, text: str) -> list[str]:
        if not (_DOCKER.match(text) or _ENVELOPE.match(text)):
            return [text]
        try:
            envelope = json.loads(text)
        except (ValueError, RecursionError):
            return [text]
        if not isinstance(envelope, dict):
            return [text]
        stream = str(envelope.get("stream", ""))
        if isinstance(envelope.get("log"), str) and ("stream" in envelope or "time" in envelope):
            line = envelope["log"]
            return self._join(stream, line.rstrip("\n"), whole=line.endswith("\n"))
        shipped = any(name in envelope for name in _SHIPPED) or envelope.keys() <= _BOOKKEEPING
        for key in ("message", "msg", "log"):
            if isinstance(envelope.get(key), str) and shipped:
                return self._join(stream, envelope[key].rstrip("\n"), whole=True)
        return [text]

    def _join(self, stream: str, text: str, *, whole: bool) -> list[str]:
        pieces = _ENDS.split((self._partial.pop(stream, "") + text)[:MAX_PARTIAL])
        if not whole:  # a bar is redrawn for hours before its line ends: what was drawn over is complete
            self._partial[stream] = pieces.pop()
        return [clean_text(piece) for piece in pieces]
