"""What of a job's own words may be shown: secrets masked, control characters made visible, length bounded."""

from __future__ import annotations

import re

MASK = "[redacted]"
LONGEST_TEXT = 2000

# The last words of a name whose value is a secret.
_SENSITIVE = (
    r"(?:api[_-]?key|access[_-]?key(?:[_-]?id)?|secret[_-]?key|private[_-]?key|signing[_-]?key|secret|password|passwd"
    r"|passphrase|pwd|credentials?|authorization|auth|webhook(?:[_-]?url)?|signature|sig|token|cookie)"
)
_SENSITIVE_NAME = re.compile(rf"-{{0,2}}(?:.*[_.-])?{_SENSITIVE}", re.IGNORECASE)
# Words of language models that end like a secret's name and are none: pad_token=<pad>, seconds_per_token=...
_MODEL_NAME = re.compile(
    r"(?:.*[_.-])?(?:pad|eos|bos|unk|mask|sep|cls|image|audio|video|special|next|first|last|start|end|stop|per|each|new)"
    r"[_.-]token",
    re.IGNORECASE,
)
_NAMED = re.compile(
    rf"""(?P<name>(?<![\w.-])[\w.-]{{0,100}}?{_SENSITIVE})(?P<sign>["']?\s{{0,2}}[=:]\s{{0,2}})"""
    r"""(?P<value>"[^"\n]*"?|'[^'\n]*'?|[^\s,;&"')}\]]+)""",
    re.IGNORECASE,
)
_FLAG = re.compile(
    rf"(?P<name>(?<!\S)--[\w.-]{{0,100}}?{_SENSITIVE})(?P<sign>\s{{1,2}})(?P<value>[^\s-]\S*)",
    re.IGNORECASE,
)
_URL = re.compile(r"(?P<scheme>\b[a-z][a-z0-9+.-]{1,20}://)[^\s/@'\"]{1,500}@", re.IGNORECASE)
_SCHEME = re.compile(r"\b(?P<scheme>Bearer|Basic)\s+[A-Za-z0-9._~+/=-]{8,}", re.IGNORECASE)
_PEM = re.compile(r"-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----.*?(?:-----END [A-Z ]{0,30}PRIVATE KEY-----|\Z)", re.DOTALL)
# Shapes that their issuers document so that scanners can find them.
_SHAPES = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{16,}|sk-[A-Za-z0-9_-]{16,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}"
    r"|(?:AKIA|ASIA)[A-Z0-9]{16}|xox[abeprs]-[\w-]{10,}|AIza[\w-]{30,}|npm_[A-Za-z0-9]{30,}|pypi-[\w-]{30,}"
    r"|nvapi-[\w-]{20,}|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*)"
)


def text(line: str) -> str:
    """A line of a log or message as it may be shown: masked, printable, at most LONGEST_TEXT characters."""
    return printable(_masked(line[: 2 * LONGEST_TEXT]))[:LONGEST_TEXT]


def printable(line: str) -> str:
    r"""The text with control and other unprintable characters as escapes (`\x1b`), harmless to a terminal."""
    if line.isprintable():
        return line
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode() for character in line
    )


def _masked(line: str) -> str:
    line = _PEM.sub(MASK, line)
    line = _URL.sub(rf"\g<scheme>{MASK}@", line)
    line = _SCHEME.sub(rf"\g<scheme> {MASK}", line)
    line = _SHAPES.sub(MASK, line)
    return _FLAG.sub(_mask_value, _NAMED.sub(_mask_value, line))


def _is_secret(name: str) -> bool:
    return _SENSITIVE_NAME.fullmatch(name) is not None and _MODEL_NAME.fullmatch(name) is None


def _mask_value(found: re.Match[str]) -> str:
    value = found["value"]
    # a number is a count, <pad> or [PAD] a model's word, and what is masked already stays as it is
    harmless = value.startswith(("<", "[", "Bearer", "Basic")) or re.fullmatch(
        r"[\d.,]{1,9}|None|null|True|False", value
    )
    return found[0] if harmless or not _is_secret(found["name"]) else found["name"] + found["sign"] + MASK
