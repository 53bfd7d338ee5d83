"""YAML documents checked against a schema, with the key and the line of every fault."""

from __future__ import annotations

import difflib
import errno
import os
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import voluptuous
import yaml

# A configuration is written by hand; what is larger is a mistake or an attack by aliases.
MOST_CHARACTERS = 1_000_000
MOST_BYTES = 4 * MOST_CHARACTERS
MOST_NODES = 100_000
DEEPEST = 32
PLAIN_TAGS = ("tag:yaml.org,2002:seq", "tag:yaml.org,2002:map")

Path = tuple[str | int, ...]
K = TypeVar("K", int, str)


@dataclass(frozen=True, slots=True, order=True)
class Fault:
    """One thing wrong in a document. `key` is like `runs[0].budgets.idle`, empty for the document as a whole."""

    line: int  # 1-based; 0 where there is none
    key: str
    message: str

    def __str__(self) -> str:
        where = [f"line {self.line}"] if self.line else []
        return ": ".join([*where, *([self.key] if self.key else []), self.message])


class DocumentError(Exception):
    """A document that cannot be used, with all that is wrong in it."""

    def __init__(self, source: str, faults: list[Fault]) -> None:
        super().__init__("\n".join(f"{source}: {fault}" for fault in faults))
        self.source = source
        self.faults = faults


def mapping(keys: Mapping[voluptuous.Marker, Any]) -> Callable[[object], Any]:
    """A validator for a mapping with exactly these keys, which proposes the one that was probably meant."""
    known = sorted(str(key) for key in keys)
    inner = voluptuous.Schema(dict(keys), extra=voluptuous.ALLOW_EXTRA)

    def check(value: object) -> Any:  # noqa: ANN401 (the shape is what is being checked)
        if not isinstance(value, dict):
            raise voluptuous.Invalid("expected a mapping of keys to values")
        faults = [voluptuous.Invalid(_unknown(key, known), [str(key)]) for key in value if key not in known]
        try:
            result = inner(value)
        except voluptuous.MultipleInvalid as error:
            faults += error.errors
        if faults:
            raise voluptuous.MultipleInvalid(faults)
        return result

    return check


def sequence(element: Callable[[object], Any]) -> Callable[[object], tuple[Any, ...]]:
    """A validator for a list, as a tuple, which names every fault: one of voluptuous ends at the first inside."""

    def check(value: object) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise voluptuous.Invalid("expected a list")
        return tuple(every(element, dict(enumerate(value))).values())

    return check


def every(element: Callable[[object], Any], values: Mapping[K, object]) -> dict[K, Any]:
    """The checked values. Raises voluptuous.MultipleInvalid with all their faults, each under its key."""
    faults: list[voluptuous.Invalid] = []
    result = {key: _noting(element, value, key, faults) for key, value in values.items()}
    if faults:
        raise voluptuous.MultipleInvalid(faults)
    return result


def _noting(
    element: Callable[[object], Any], value: object, key: int | str, faults: list[voluptuous.Invalid]
) -> object:
    try:
        return element(value)
    except voluptuous.Invalid as error:
        error.prepend([key])
        faults += error.errors if isinstance(error, voluptuous.MultipleInvalid) else [error]
        return None


def read(path: os.PathLike[str]) -> str:
    """The text of a document; OSError where it is no regular file or too large, UnicodeDecodeError where no text.

    A FIFO would be waited for, and a device such as /dev/zero read without end.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file", str(path))
        with os.fdopen(descriptor, "rb", closefd=False) as stream:
            data = stream.read(MOST_BYTES + 1)
    finally:
        os.close(descriptor)
    if len(data) > MOST_BYTES:
        raise OSError(errno.EFBIG, f"it is larger than {MOST_BYTES} bytes", str(path))
    return data.decode()


def parse(text: str, schema: Callable[[object], Any], *, empty: object) -> tuple[Any, list[Fault]]:
    """The checked document, or all that is wrong in it; `empty` stands for a file without content.

    Faults come in the order of their lines. The first value is None exactly if there are faults.
    """
    reading = _Reading()
    data = reading.read(text)
    if reading.faults:
        return None, sorted(reading.faults)
    try:
        return schema(empty if data is None else data), []
    except voluptuous.MultipleInvalid as error:
        return None, sorted(map(reading.fault, error.errors))
    except voluptuous.Invalid as error:
        return None, [reading.fault(error)]


def _unknown(key: object, known: list[str]) -> str:
    meant = difflib.get_close_matches(str(key), known, n=1)
    if meant:
        return f"unknown key; did you mean {meant[0]!r}?"
    return f"unknown key; known are {', '.join(known)}"


def _key(path: Path) -> str:
    words = [f"[{part}]" if isinstance(part, int) else f".{part}" for part in path]
    return "".join(words).removeprefix(".")


@dataclass(slots=True)
class _Reading:
    """One pass over a document that notes the line of every key and element."""

    lines: dict[Path, int] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    flattened: set[int] = field(default_factory=set)  # by id; the nodes live as long as the reading
    nodes: int = 0

    def read(self, text: str) -> object:
        """The document as plain values; what is no YAML becomes a fault."""
        if len(text) > MOST_CHARACTERS:
            self.faults.append(Fault(0, "", f"longer than {MOST_CHARACTERS} characters"))
            return None
        try:
            return self._load(text)
        except yaml.MarkedYAMLError as error:
            line = error.problem_mark.line + 1 if error.problem_mark else 0
            self.faults.append(Fault(line, "", f"no valid YAML: {error.problem or error.context}"))
        except (yaml.YAMLError, ValueError) as error:  # a date such as 2026-99-99 is a ValueError of PyYAML
            self.faults.append(Fault(0, "", f"no valid YAML: {error}".splitlines()[0]))
        except RecursionError:
            self.faults.append(Fault(0, "", "nested too deeply"))
        return None

    def _load(self, text: str) -> object:
        loader = yaml.SafeLoader(text)
        try:
            node = loader.get_single_node()
            return None if node is None else self._plain(loader, node, ())
        finally:
            loader.dispose()

    def fault(self, error: voluptuous.Invalid) -> Fault:
        path = tuple(part if isinstance(part, int) else str(part) for part in error.path)
        return Fault(self._line(path), _key(path), error.msg)

    def _line(self, path: Path) -> int:
        # a key that is missing has no line of its own: that of what should hold it
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 1)

    def _plain(self, loader: yaml.SafeLoader, node: yaml.Node, path: Path) -> object:
        self.nodes += 1
        if self.nodes > MOST_NODES or len(path) > DEEPEST:
            raise yaml.MarkedYAMLError(problem="too many or too deep values", problem_mark=node.start_mark)
        self.lines.setdefault(path, node.start_mark.line + 1)
        if not isinstance(node, yaml.ScalarNode) and node.tag not in PLAIN_TAGS:
            raise yaml.MarkedYAMLError(problem=f"tag {node.tag!r} is not supported", problem_mark=node.start_mark)
        if isinstance(node, yaml.SequenceNode):
            return [self._plain(loader, child, (*path, index)) for index, child in enumerate(node.value)]
        if isinstance(node, yaml.MappingNode):
            return self._mapping(loader, node, path)
        return loader.construct_object(node)

    def _mapping(self, loader: yaml.SafeLoader, node: yaml.MappingNode, path: Path) -> dict[object, object]:
        if id(node) not in self.flattened:  # an alias comes by again
            self.flattened.add(id(node))
            self._note_doubled(node, path)
            loader.flatten_mapping(node)  # what `<<: *base` brings comes first, so that own keys win
        result: dict[object, object] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise yaml.MarkedYAMLError(problem="a key must be plain text", problem_mark=key_node.start_mark)
            key = loader.construct_object(key_node)
            below = (*path, str(key))
            self.lines[below] = key_node.start_mark.line + 1
            result[key] = self._plain(loader, value_node, below)
        return result

    def _note_doubled(self, node: yaml.MappingNode, path: Path) -> None:
        seen: set[str] = set()
        for key_node, _ in node.value:
            if isinstance(key_node, yaml.ScalarNode):
                if key_node.value in seen:
                    line = key_node.start_mark.line + 1
                    self.faults.append(Fault(line, _key((*path, key_node.value)), "given twice"))
                seen.add(key_node.value)
