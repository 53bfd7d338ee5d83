"""Reading the configuration again, asked by a signal or by HTTP: off the event loop, one at a time."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable

logger = logging.getLogger(__name__)


class ReloadingError(Exception):
    """A reload is under way, and the file that it reads may hang for ever."""


class Reloading:
    """Calls `reload`, which returns the faults of the configuration, in a thread that keeps nothing from ending.

    Its methods are for the event loop alone.
    """

    def __init__(self, reload: Callable[[], list[str]]) -> None:
        self._reload = reload
        self._busy = False
        self._again = False

    def signal(self) -> None:
        """Reload now, or once more after the reload that is under way: the file may have changed since it was read."""
        if self._busy:
            self._again = True
        else:
            self._begin()

    async def ask(self) -> list[str]:
        """The faults found by a reload; ReloadingError while another is under way."""
        if self._busy:
            raise ReloadingError
        return await self._begin()

    def _begin(self) -> asyncio.Future[list[str]]:
        loop = asyncio.get_running_loop()
        found: asyncio.Future[list[str]] = loop.create_future()
        threading.Thread(target=self._work, args=(loop, found), name="reload", daemon=True).start()
        self._busy, self._again = True, False
        return found

    def _work(self, loop: asyncio.AbstractEventLoop, found: asyncio.Future[list[str]]) -> None:
        try:
            faults = self._reload()
        except Exception as error:
            logger.exception("the configuration was not reloaded")
            faults = [f"{type(error).__name__}: {error}"]
        with contextlib.suppress(RuntimeError):  # the server has ended meanwhile
            loop.call_soon_threadsafe(self._done, found, faults)

    def _done(self, found: asyncio.Future[list[str]], faults: list[str]) -> None:
        self._busy = False
        if not found.done():  # who asked may have gone away
            found.set_result(faults)
        if self._again:
            self._begin()
