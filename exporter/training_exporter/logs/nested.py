"""Tells the bar of an evaluation from the bar of the training, where neither says what it counts."""

from __future__ import annotations

from training_exporter.logs.said import Counts
from training_exporter.model import LogPhase


class Nested:
    """What is known of the bars without a description, and of those of Keras.

    HF's Trainer evaluates while the bar of the training stands in the middle. Loops over `tqdm(train)` and `tqdm(val)`
    draw one after the other. Either way the shorter bar is the evaluation's, once the longer one is known to train.
    """

    def __init__(self) -> None:
        self._outer = Counts()  # where the bar of the training stands
        self._inner = Counts()  # where the bar of the evaluation stands
        self._printed: int | None = None  # how many steps there are to an epoch or a run, as records say
        self._trained = False  # a loss of the training was seen
        self._epochs = False  # epochs are announced
        self._complete = False  # the bar of the training was drawn to its end since then

    def train(self, counts: Counts, *, loss: bool) -> None:
        """A bar of the training was drawn."""
        self._outer = counts
        self._trained |= loss
        self._complete |= counts.step == counts.step_total

    def loss(self, total: int | None) -> None:
        """A record with a loss of the training; `total` is behind its step, as in `iter 10/1849`."""
        self._trained = True
        self._printed = total or self._printed

    def epoch(self) -> None:
        """An epoch was announced."""
        self._epochs, self._complete = True, False

    def evaluates(self, counts: Counts, phase: LogPhase) -> bool:
        """Whether a bar that says nothing of itself is of an evaluation; it is remembered where it stands."""
        step, total = counts.step, counts.step_total
        outer = self._outer.step_total or self._printed
        if step is None or total is None or outer is None or total >= outer:
            return False
        before = self._inner
        if before.step_total == total and before.step is not None and before.step < step and phase == "train":
            self._inner = Counts()
            return False  # a record of the training came while it was drawn: it is the training's
        if before.step_total != total and not (self._trained or self._unfinished):
            return False
        self._inner = counts
        return True

    def shorter(self, counts: Counts) -> bool:
        """Whether a bar is shorter than that of the training."""
        return (counts.step_total or 0) < (self._outer.step_total or 0)

    def repeats_epoch(self, counts: Counts) -> bool:
        """Whether a bar is of the epoch whose training was drawn to its end, and shorter: `Epoch 1/2` twice."""
        outer = self._outer
        done = self._trained and outer.epoch is not None and outer.step == outer.step_total
        return done and counts.epoch == outer.epoch and self.shorter(counts)

    def behind_epoch(self, counts: Counts) -> bool:
        """Whether a bar of Keras follows on an epoch that is over, with no other announced: it is of `evaluate()`."""
        step, total = counts.step, counts.step_total
        if step is None or total is None or not (self._epochs and self._complete):
            return False
        return total != self._outer.step_total or (self._outer.step is not None and step < self._outer.step)

    @property
    def _unfinished(self) -> bool:
        step, total = self._outer.step, self._outer.step_total
        return step is not None and total is not None and 0 < step < total
