"""Basic authentication against bcrypt hashes, off the event loop and without telling time."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

MOST_WAITING = 32
MOST_CACHED = 256


class BusyError(Exception):
    """Too many unknown passwords wait to be checked."""


class Authenticator:
    """Checks passwords in one thread of its own: a guess costs the guesser time and nobody else.

    A right password is remembered under a key of this process, because a scrape comes every few seconds and bcrypt
    is slow on purpose.
    """

    def __init__(self) -> None:
        self._key = os.urandom(32)
        self._known: dict[bytes, None] = {}
        self._waiting = 0
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="bcrypt")

    async def check(self, header: str | None, users: Mapping[str, str]) -> bool:
        """Whether the Authorization header names one of `users` (name -> bcrypt hash) with the right password."""
        credentials = parse_basic(header)
        if credentials is None:
            return False
        name, password = credentials
        digest = users.get(name) or self._digest_of_nobody(name, users)
        mark = hmac.digest(self._key, b"\0".join([name.encode(), digest.encode(), password]), hashlib.sha256)
        if mark in self._known and name in users:
            return True
        right = await self._slowly(password, digest) and name in users
        if right:
            if len(self._known) >= MOST_CACHED:
                self._known.clear()
            self._known[mark] = None
        return right

    def _digest_of_nobody(self, name: str, users: Mapping[str, str]) -> str:
        """A hash to check for an unknown user, who must cost as much time as a known one.

        Hashes may differ in cost, so each name has one of them for as long as the process lives.
        """
        digests = sorted(users.values())
        return digests[int.from_bytes(hmac.digest(self._key, name.encode(), hashlib.sha256), "big") % len(digests)]

    async def _slowly(self, password: bytes, digest: str) -> bool:
        if self._waiting >= MOST_WAITING:
            raise BusyError
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, _matches, password, digest)
        finally:
            self._waiting -= 1


def parse_basic(header: str | None) -> tuple[str, bytes] | None:
    """User name and password of an Authorization header; None if it is not `Basic`."""
    scheme, _, encoded = (header or "").partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        name, colon, password = base64.b64decode(encoded, validate=True).partition(b":")
        return (name.decode(), password) if colon else None
    except (binascii.Error, ValueError):
        return None


def _matches(password: bytes, digest: str) -> bool:
    import bcrypt  # noqa: PLC0415 (only a server with users pays for it)

    # bcrypt knows 72 bytes; a longer password would be right whatever follows them. htpasswd writes $2y$ for $2b$.
    return len(password) <= 72 and bcrypt.checkpw(password, digest.replace("$2y$", "$2b$", 1).encode())
