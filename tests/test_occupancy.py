"""Whose a GPU is, where the driver's PIDs can be trusted and where not."""

from __future__ import annotations

import pytest

from tables import NOW_SECONDS, gpu, process, table
from training_exporter.runs.occupancy import Occupants


class TestUnowned:
    @pytest.mark.parametrize(
        ("pids", "fields", "unowned"),
        [
            ((100,), {}, 3 * 10**9),
            ((100, 200), {}, 3 * 10**9),
            ((100,), {"complete": False}, None),
            ((100,), {"host_pids": False}, None),
            ((300,), {}, None),
        ],
    )
    def test_memory_of_nobody(self, pids: tuple[int, ...], fields: dict[str, bool], unowned: int | None) -> None:
        """Used and held by no process of this node; not to be told with a partial list or in another namespace."""
        sample = gpu(0, *pids, memory_bytes=10**9, memory_used_bytes=4 * 10**9)
        there = Occupants().observe([sample], [], table(process(100, 1, "python x.py"), **fields), NOW_SECONDS)
        assert there["0"].unowned_bytes == unowned
