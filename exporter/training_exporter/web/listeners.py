"""Listening sockets: those that systemd passed, and accepting where the process has no descriptor left."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable
from typing import Any

from tornado.ioloop import IOLoop

FIRST_PASSED = 3  # SD_LISTEN_FDS_START of sd_listen_fds(3)
EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE})
PAUSE_SECONDS = 0.1


class ActivationError(Exception):
    """There is no usable socket of systemd; the message is for a person."""


def passed_sockets() -> list[socket.socket]:
    """The listening stream sockets that systemd passed to this process (sd_listen_fds(3)), ready to accept.

    Raises ActivationError where there is none, or one that is of another kind.
    """
    count = os.environ.get("LISTEN_FDS", "")
    if os.environ.get("LISTEN_PID") != str(os.getpid()) or not count.isdigit() or count == "0":
        raise ActivationError("systemd passed no socket: is there a .socket unit, and was it started?")
    return [_listening(descriptor) for descriptor in range(FIRST_PASSED, FIRST_PASSED + int(count))]


def _listening(descriptor: int) -> socket.socket:
    try:
        passed = socket.socket(fileno=descriptor)
    except OSError as error:
        raise ActivationError(f"descriptor {descriptor} of systemd is no socket: {error.strerror}") from error
    internet = passed.family in {socket.AF_INET, socket.AF_INET6} and passed.type == socket.SOCK_STREAM
    if not internet or not passed.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        passed.detach()
        raise ActivationError(f"descriptor {descriptor} of systemd is no listening TCP socket (ListenStream=PORT)")
    passed.settimeout(0)
    os.set_inheritable(descriptor, False)  # noqa: FBT003  the call takes no keyword
    return passed


class PatientSocket(socket.socket):
    """A listening socket that still answers when the process may open no more descriptors.

    It keeps one in reserve for the next client; after that, `make_room` closes a connection and says whether there
    was one; at last it waits, instead of being woken without end for a client that it cannot take.
    """

    def __init__(self, bound: socket.socket, make_room: Callable[[], bool]) -> None:
        super().__init__(bound.family, bound.type, bound.proto, fileno=bound.detach())
        self._make_room = make_room
        self._reserve: int | None = None
        self._refill()

    def accept(self) -> tuple[socket.socket, Any]:
        self._refill()
        try:
            return super().accept()
        except OSError as error:
            if error.errno not in EXHAUSTED:
                raise
        if self._drain() or self._make_room():
            try:
                return super().accept()
            except OSError as error:  # another thread was quicker
                if error.errno not in EXHAUSTED:
                    raise
        self._pause()
        raise BlockingIOError(errno.EAGAIN, "no descriptor is left for a connection")

    def close(self) -> None:
        self._drain()
        super().close()

    def _refill(self) -> None:
        if self._reserve is None:
            try:
                self._reserve = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                return  # there is none to be had now

    def _drain(self) -> bool:
        reserve, self._reserve = self._reserve, None
        if reserve is not None:
            os.close(reserve)
        return reserve is not None

    def _pause(self) -> None:
        loop = IOLoop.current()
        loop.update_handler(self, 0)
        loop.call_later(PAUSE_SECONDS, self._resume, loop)

    def _resume(self, loop: IOLoop) -> None:
        if self.fileno() >= 0:
            loop.update_handler(self, IOLoop.READ)
