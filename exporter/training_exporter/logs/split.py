"""Cuts bytes into lines and redraws, whatever the chunks they come in; counts both."""

from __future__ import annotations

import re

MAX_PIECE_BYTES = 1 << 20
_SLICE_BYTES = 1 << 18
_CUTS = re.compile(rb"[\n\r\x08]")
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\)?|[@-Z\\-_])?")
# Marks of the lexer must not come in from outside.
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff\U000f0000-\U0010fffd]")
_CONTROL_BYTES = bytes([*range(9), *range(11, 32), 127])

Piece = tuple[int, str]  # number of the physical line (1-based), text without trailing blanks


class Splitter:
    """The bytes of one stream, cut at LF into lines and at CR or backspace into redraws of one line.

    A piece longer than MAX_PIECE_BYTES is cut off there; what follows until its end is dropped and counted. A piece
    is given out once its end was seen, so the pieces do not depend on the chunks.
    """

    def __init__(self) -> None:
        self.lines = 0
        self.bytes = 0
        self.redraws = 0
        self.dropped_bytes = 0
        self._held = bytearray()
        self._overdrawn = False  # a carriage return was seen in this line
        self._printed = False  # a piece of this line was given out

    def feed(self, data: bytes) -> list[Piece]:
        """The pieces that end in `data`."""
        self.bytes += len(data)
        pieces: list[Piece] = []
        for start in range(0, len(data), _SLICE_BYTES):
            part = data[start : start + _SLICE_BYTES] if len(data) > _SLICE_BYTES else data
            if b"\r" in part or b"\x08" in part or self._overdrawn or len(self._held) > _SLICE_BYTES:
                self._slow(part, pieces)
            else:
                self._fast(part, pieces)
        return pieces

    def close(self) -> list[Piece]:
        """The last piece, of which no end was seen."""
        pieces: list[Piece] = []
        if self._held:
            self._give(pieces)
        return pieces

    @property
    def held_bytes(self) -> int:
        """How many bytes came without an end so far."""
        return len(self._held)

    @property
    def held(self) -> str:
        """What came without an end so far."""
        return clean(bytes(self._held))

    def _fast(self, data: bytes, pieces: list[Piece]) -> None:
        cut = data.rfind(b"\n") + 1
        if not cut:
            self._held += data
            return
        block = bytes(self._held) + data[:cut] if self._held else data[:cut]
        self._held = bytearray(data[cut:])
        texts = clean_block(block).split("\n")
        texts.pop()
        first = self.lines + 1
        self.lines += len(texts)
        pieces.extend(zip(range(first, first + len(texts)), texts, strict=True))

    def _slow(self, data: bytes, pieces: list[Piece]) -> None:
        position = 0
        for match in _CUTS.finditer(data):
            self._hold(data[position : match.start()])
            position = match.end()
            if match[0] == b"\n":
                self._end_line(pieces)
            else:
                if self._held:
                    self._give(pieces)
                self._overdrawn = True
        self._hold(data[position:])

    def _hold(self, data: bytes) -> None:
        room = MAX_PIECE_BYTES - len(self._held)
        self._held += data[:room]
        self.dropped_bytes += max(0, len(data) - room)

    def _end_line(self, pieces: list[Piece]) -> None:
        if self._held or not self._printed:
            self._give(pieces)
        self.lines += 1
        self._overdrawn = self._printed = False

    def _give(self, pieces: list[Piece]) -> None:
        text = clean(bytes(self._held))
        self._held.clear()
        if text or not self._overdrawn:
            self.redraws += self._overdrawn
            pieces.append((self.lines + 1, text))
            self._printed = True


def clean(data: bytes) -> str:
    """Decoded text without escape sequences, control characters and trailing blanks."""
    return clean_block(data).rstrip()


def clean_block(data: bytes) -> str:
    """Several lines at once; undecodable bytes are replaced."""
    text = data.decode("utf-8", "replace")
    if len(data.translate(None, _CONTROL_BYTES)) == len(data) and b"\xf3" not in data and b"\xf4" not in data:
        return text
    return clean_text(text)


def clean_text(text: str) -> str:
    """Text without escape sequences, control characters, and what cannot be encoded."""
    if "\x1b" in text:
        text = _ESCAPES.sub("", text)
    return _CONTROLS.sub("", text)
