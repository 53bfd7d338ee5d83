"""Whether a log counts its epochs from 0 or from 1, told by what it prints: the epoch that is shown counts from 0."""

from __future__ import annotations

from collections.abc import Iterable

from training_exporter.model import LogEvent

MARKS = frozenset({"epoch_begin", "epoch_end", "train_begin", "train_end", "val_begin", "val_end"})


class EpochBase:
    """Remembers which printed forms of one run's log were seen to count from 0.

    `epoch=0` counts from 0, and so does a fraction (`'epoch': 0.26`). `Epoch 1/3` counts from 1 as long as its form
    never printed a 0. A log may use both: speculators announces `Training epoch 1/5 started` and prints `epoch=0`. An
    epoch without a total counts from 1 where the first one behind such an announcement has the same number.
    """

    def __init__(self, from_zero: Iterable[str] = (), from_one: Iterable[str] = ()) -> None:
        self.from_zero = set(from_zero)
        self.from_one = set(from_one)
        self._announced: float | None = None  # the number that was last printed before a total and counts from 1

    def counted(self, event: LogEvent) -> float | None:
        """The epoch of an event, from 0 on; None where it prints none."""
        epoch = event.epoch
        if epoch is None:
            return None
        form = "mark" if event.event in MARKS else "record"
        if event.epoch_total is None:
            form = f"bare {form}"
        if epoch < 1.0 or not float(epoch).is_integer():
            self.from_zero.add(form)
        if event.epoch_total is None:
            self._compare(form, epoch)
            return epoch - 1.0 if form in self.from_one - self.from_zero else epoch
        self._announced = None if form in self.from_zero else epoch
        return epoch if form in self.from_zero else epoch - 1.0

    def _compare(self, form: str, epoch: float) -> None:
        """Learn from the first number of a form what it is beside the announced one."""
        if self._announced is None or form in self.from_zero | self.from_one:
            return
        if epoch == self._announced:
            self.from_one.add(form)
        elif epoch == self._announced - 1.0:
            self.from_zero.add(form)
