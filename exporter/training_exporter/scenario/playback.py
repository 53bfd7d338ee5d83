"""A scenario through everything behind the sources: what the exporter would know of it, second by second."""

from __future__ import annotations

import json
from dataclasses import replace

from training_exporter.runs.node import Node
from training_exporter.runs.view import NodeView
from training_exporter.scenario.play import EPOCH_SECONDS, HOST, Player
from training_exporter.scenario.records import Scenario

# A restart by an update of a package or an image: the old one drained, the new one up and its sources asked.
RESTART_SECONDS = 20


class Playback:
    """One exporter that watches the node of one scenario."""

    def __init__(self, scenario: Scenario, epoch_seconds: float = EPOCH_SECONDS) -> None:
        self.player = Player(scenario, epoch_seconds=epoch_seconds)
        self._node = Node(self.player.config(), HOST, None)

    def advance(self) -> NodeView:
        """The next second."""
        observation = self.player.observe(self._node.log_targets(), self._node.checkpoint_targets())
        return replace(self._node.observe(observation), health=self.player.health())

    def restart(self) -> None:
        """Start the exporter anew with what it kept in its state file; it is away for `RESTART_SECONDS`."""
        memory = json.loads(json.dumps(self._node.remember()))
        for _ in range(RESTART_SECONDS):
            self.player.skip()
        self._node = Node(self.player.config(), HOST, memory)
