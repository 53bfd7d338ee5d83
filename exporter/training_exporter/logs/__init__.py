"""Log understanding: bytes in, events out; no I/O, no clock, no configuration per framework."""

from __future__ import annotations

from training_exporter.logs.parser import LogParser
from training_exporter.logs.runs import RunLogs
from training_exporter.logs.side_files import side_targets
from training_exporter.patterns import PatternError, compile_patterns

__all__ = ["LogParser", "PatternError", "RunLogs", "compile_patterns", "side_targets"]
