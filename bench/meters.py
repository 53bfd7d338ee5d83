"""What a program costs, seen from outside: CPU and memory of a process, latency of a scrape as Prometheus makes it."""

from __future__ import annotations

import gzip
import time
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

# What Prometheus 3 sends. Prometheus keeps its connections where the exporter does.
HEADERS = {
    "Accept": "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,"
    "application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.3,"
    "text/plain;version=0.0.4;q=0.2,*/*;q=0.1",
    "Accept-Encoding": "gzip",
}
SCRAPE_TIMEOUT_SECONDS = 10.0  # Prometheus's own, unless it is told otherwise
# clock_getcpuclockid(3): the CPU clock of a process, with the threads that ended, is the number made of its PID so.
CPU_CLOCK = 2
SMAPS = ("Rss", "Pss", "Private_Clean", "Private_Dirty")


def cpu_seconds(pid: int) -> float:
    """CPU seconds of a process since its start, all threads, in nanosecond steps."""
    return time.clock_gettime((~pid << 3) | CPU_CLOCK)


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes that a process holds: resident, its fair share of what it shares (PSS), and what it has alone (USS)."""

    resident: int
    proportional: int
    unique: int

    def __add__(self, other: Memory) -> Memory:
        return Memory(
            self.resident + other.resident, self.proportional + other.proportional, self.unique + other.unique
        )


def memory(pid: int) -> Memory:
    """From /proc/PID/smaps_rollup."""
    lines = (line.split() for line in Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines())
    sizes = {words[0].rstrip(":"): int(words[1]) * 1024 for words in lines if words[0].rstrip(":") in SMAPS}
    return Memory(sizes["Rss"], sizes["Pss"], sizes["Private_Clean"] + sizes["Private_Dirty"])


class Scraper:
    """Scrapes one address again and again, over one connection where the exporter keeps it."""

    def __init__(self, url: str, timeout_seconds: float = SCRAPE_TIMEOUT_SECONDS) -> None:
        parts = urlsplit(url)
        self._path = parts.path
        self._connection = HTTPConnection(parts.hostname or "", parts.port, timeout=timeout_seconds)

    def text(self) -> str:
        """The answer, unpacked."""
        body, packed = self._fetch()
        return (gzip.decompress(body) if packed else body).decode()

    def seconds(self) -> float:
        """How long until the whole answer was here; unpacking it is not in it."""
        began = time.perf_counter()
        self._fetch()
        return time.perf_counter() - began

    def start_again(self) -> None:
        """Take another connection, after one that was given up."""
        self._connection.close()

    def _fetch(self) -> tuple[bytes, bool]:
        self._connection.request("GET", self._path, headers=HEADERS)
        response = self._connection.getresponse()
        body = response.read()
        assert response.status == 200, f"{self._path}: {response.status}"
        return body, response.getheader("Content-Encoding") == "gzip"


def samples(text: str) -> int:
    """Number of samples in an exposition."""
    return sum(bool(line) and not line.startswith("#") for line in text.splitlines())
