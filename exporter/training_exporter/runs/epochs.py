"""Whether a log counts its epochs from 0 or from 1, told by what it prints: the epoch that is shown counts from 0."""

from __future__ import annotations

from collections.abc import Iterable

from training_exporter.model import LogEvent

MARKS = frozenset({"epoch_begin", "epoch_end", "train_begin", "train_end", "val_begin", "val_end"})


class EpochBase:
    """Remembers which printed forms of one run's log were seen to count from 0.

    `epoch=0` counts from 0, and so does a fraction (`'epoch': 0.26`). `Epoch 1/3` counts from 1 as long as its form
    never printed a 0. A log may use both: speculators announces `Training epoch 1/5 started` and prints `epoch=0`.
    """

    def __init__(self, from_zero: Iterable[str] = ()) -> None:
        self.from_zero = set(from_zero)

    def counted(self, event: LogEvent) -> float | None:
        """The epoch of an event, from 0 on; None where it prints none."""
        epoch = event.epoch
        if epoch is None or event.epoch_total is None:
            return epoch
        form = "mark" if event.event in MARKS else "record"
        if epoch < 1.0 or not float(epoch).is_integer():
            self.from_zero.add(form)
        return epoch if form in self.from_zero else epoch - 1.0
