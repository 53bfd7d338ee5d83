"""A scenario through everything behind the sources: what the exporter would know of it, second by second."""

from __future__ import annotations

from training_exporter.runs.node import Node
from training_exporter.runs.view import NodeView
from training_exporter.scenario.play import EPOCH_SECONDS, HOST, Player
from training_exporter.scenario.records import Scenario


class Playback:
    """One exporter that watches the node of one scenario."""

    def __init__(self, scenario: Scenario, epoch_seconds: float = EPOCH_SECONDS) -> None:
        self.player = Player(scenario, epoch_seconds=epoch_seconds)
        self._node = Node(self.player.config(), HOST, None)

    def advance(self) -> NodeView:
        """The next second."""
        return self._node.observe(self.player.observe(self._node.log_targets(), self._node.checkpoint_targets()))
