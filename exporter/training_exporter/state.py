"""What the exporter remembers over its own restart: one JSON file in the state directory."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)


class StateFile:
    """The file `state.json` of one directory.

    A missing, unreadable or corrupt file is an empty memory and one line in the log, never an error: the exporter
    then learns anew. A file that cannot be written is said once, until it works again.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / "state.json"
        self._failing = False

    def load(self) -> Mapping[str, Any]:
        """The remembered object, or an empty one."""
        try:
            memory = json.loads(self._path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            logger.warning("state file %s is not used: %s", self._path, error)
            return {}
        if not isinstance(memory, dict):
            logger.warning("state file %s is not used: not a JSON object", self._path)
            return {}
        return memory

    def save(self, memory: Mapping[str, Any]) -> None:
        """Replace the file as a whole, so that a crash leaves the old or the new one, never half of one.

        Not forced to the disk: a memory of living processes is worth nothing after a power cut, and fsync() would wait,
        unkillable, behind the checkpoint that the training writes to the same disk.
        """
        temporary = self._path.with_suffix(".tmp")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with temporary.open("w", encoding="utf-8") as file:
                json.dump(memory, file)
            temporary.replace(self._path)
        except OSError as error:
            if not self._failing:
                logger.warning("state file %s cannot be written: %s; a restart will forget", self._path, error)
            self._failing = True
            return
        if self._failing:
            logger.info("state file %s can be written again", self._path)
        self._failing = False
