"""The state of one log: turns drafts into events, given what came before them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

from training_exporter.logs import names
from training_exporter.logs.nested import Nested
from training_exporter.logs.plan import BarRole, Draft, Quick, Record, value
from training_exporter.logs.results import Results
from training_exporter.logs.said import NO_COUNTS, Counts, Refs, Said
from training_exporter.model import LogEvent, LogPhase, MessageClass, Split

MAX_BARS = 256
MAX_NAMES = 256  # different sets of names in records
MAX_BEHIND = 40  # lines behind a result in which more of the same evaluation may come without a word about it
BY_VALUE = "value"  # event of a draft that was made of a printed value
_EPOCH_BAR = re.compile(r"(?i)(?:train(?:ing)? )?epochs?")  # counts them, where records say the steps
# A new attempt in the same file takes these back.
_ENDED: frozenset[LogPhase] = frozenset({"done", "failed"})


class Tracker:
    """Phase, counters and last results of one stream, and the events that follow from the next draft."""

    def __init__(self) -> None:
        self.phase: LogPhase = "setup"
        self._validating = False  # opened by a line that says so, not by a bar
        self._awaiting = False  # begun, and no result yet
        self._result_line = 0  # of the last result
        self._record_steps = False  # records print the step, so bars are only bars
        self._rounded: int | None = None  # the step that was last printed in thousands
        self._train_total: int | None = None
        self._epoch: float | None = None
        self._announced: float | None = None  # epoch of the last line that began one
        self._nested = Nested()
        self._bars: dict[tuple[str, int | None], tuple[int | None, float | None]] = {}  # last count by description
        self._results = Results()
        self._train_names: set[tuple[str, ...]] = set()  # of records that were the training's
        self._events: list[LogEvent] = []

    def events(self, record: Record) -> list[LogEvent]:
        """What a record means now; raises ValueError where a token is not the number that its plan expects."""
        self._events = []
        for draft in record.plan.drafts:
            said = Said(draft, record)
            if draft.kind == "record":
                self._record(said)
            elif draft.kind == "bar":
                self._bar(said)
            elif draft.kind == "mark":
                self._mark(said)
            else:
                self._message(said)
        return self._events

    def quick(self, quick: Quick, tokens: Sequence[str], line: int, time_seconds: float) -> LogEvent | None:
        """The same as `events` for a plan with a `quick` way, without building what it would not use.

        None where a number is not as plain as it was: the long way knows what to do.
        """
        event = quick.event(tokens, line, time_seconds)
        if event is None:
            return None
        if event.epoch is not None:
            self._epoch = event.epoch
        self._record_steps |= event.step is not None
        self._enter_train()
        return event

    def _message(self, said: Said) -> None:
        if said.draft.outcome == "failed":
            self.phase = "failed"
        self._warn(said, said.draft)

    def _warn(self, said: Said, message: Draft) -> None:
        self._emit(said, "warning", message=message)

    def _mark(self, said: Said) -> None:
        draft, counts = said.draft, said.counts
        if draft.event == "total":
            self._train_total = counts.step_total
            return
        if draft.event in ("resume", "train_begin"):
            self._nested = Nested()  # another attempt may have bars of other lengths
        if draft.event == "resume" and self.phase in _ENDED:
            self.phase = "setup"
        elif draft.phase is not None and (draft.phase != "compile" or self.phase == "setup"):
            over = self.phase == "done" and draft.phase == "checkpoint"  # the model is saved when all is over
            self.phase = self.phase if over else draft.phase
        event = draft.event
        if event == "val_begin":
            event = "val_progress" if self._validating and self._awaiting else event
            self._validating = self._awaiting = True
        elif draft.event in ("val_end", "epoch_begin", "train_begin", "train_end"):
            self._validating = False
        if draft.event == "epoch_begin":
            self._epoch = self._announced = counts.epoch
            self._nested.epoch()
        self._emit(said, event, split="val" if event.startswith("val") else None, counts=counts, message=draft)

    def _bar(self, said: Said) -> None:
        counts = said.counts
        role = self._role(said.draft, counts)
        if role == "setup":
            self._emit(said, "progress", counts=counts, setup=True)
        elif role == "validation":
            self._validation_bar(said)
        else:
            if role in ("train", "plain"):
                self._train_bar(said)
            else:
                self._emit(said, "checkpoint_progress" if role == "save" else "progress")
            if said.draft.validation or said.draft.test:
                self._repeatable(said, Counts(epoch=self._announced if counts.epoch is None else counts.epoch))

    def _role(self, draft: Draft, counts: Counts) -> BarRole:
        """A bar without a description of its own is of the validation while one is open and its length is another."""
        if self.phase == "validation" and self._validating:
            said = "train" in draft.event.lower()
            bare = draft.role == "train" and (draft.epoch is not None or draft.plain) and not said
            nameless = draft.role == "plain" or bare
            return "validation" if nameless and counts.step_total != self._train_total else draft.role
        trains = draft.plain or draft.train
        if draft.role == "train" and not trains and self._nested.shorter(counts):
            again = bool(draft.validation) if draft.epoch is None else self._nested.repeats_epoch(counts)
            if again:
                return "validation"
        if draft.role != "plain" or draft.train or draft.validation:
            return draft.role
        inner = self._nested.behind_epoch(counts) if draft.sure else not draft.plain and self._evaluates(counts)
        return "validation" if inner else draft.role

    def _evaluates(self, counts: Counts) -> bool:
        return self._nested.evaluates(counts, self.phase)

    def _validation_bar(self, said: Said) -> None:
        counts = said.counts
        if self.phase != "validation":
            self.phase, self._awaiting = "validation", True
            self._emit(said, "val_begin", split="val", counts=Counts(epoch=counts.epoch))
        self._emit(said, "val_progress", split="val", counts=counts)
        if counts.step is not None and counts.step == counts.step_total:
            self._repeatable(said, NO_COUNTS)
            if said.draft.sure:
                self._report(said, said.draft.plain, "val", NO_COUNTS, repeatable=True)

    def _train_bar(self, said: Said) -> None:
        counts = said.counts
        last = self.phase == "done" and counts.step == counts.step_total  # drawn once more when all is over
        if last or not self._advanced(said.draft.event, counts) or not counts.step:
            self._emit(said, "progress", counts=counts)
            return
        if _EPOCH_BAR.fullmatch(said.draft.event) and self._record_steps:
            self._emit(said, "progress", split="train", counts=Counts(float(counts.step), counts.step_total))
            return
        if counts.step_total is not None:
            self._train_total = counts.step_total
        self._enter_train()
        metrics = said.numbers((*said.draft.plain, *said.draft.train))
        name = "progress" if self._record_steps else "train_step"
        self._nested.train(counts, loss=any(map(names.is_loss, metrics)))
        self._emit(said, name, split="train", counts=counts, metrics=metrics)
        self._judge_finite(said, metrics)

    def _advanced(self, description: str, counts: Counts) -> bool:
        key = (description[:40], counts.step_total)
        if len(self._bars) >= MAX_BARS and key not in self._bars:
            self._bars.clear()
        before, now = self._bars.get(key), (counts.step, self._announced if counts.epoch is None else counts.epoch)
        self._bars[key] = now
        return before != now

    def _record(self, said: Said) -> None:
        draft, counts = said.draft, said.counts
        own = bool(draft.validation or draft.test)
        values = any(name not in names.RATES for name, _ in draft.plain)
        if draft.role == "validation":
            self._part(said)
        elif draft.split in ("val", "test") or (own and not values and not _steps_train(draft, counts)):
            self._validation(said)
        elif own:
            self._train(said)
            self._repeatable(said, counts)
        elif self._reads_as_validation(draft, counts, said.record.line):
            self._report(said, draft.plain, "val", counts)
        else:
            self._train(said)

    def _reads_as_validation(self, draft: Draft, counts: Counts, line: int) -> bool:
        """Whether values that nothing assigns to a split are of a validation."""
        if draft.split == "train" or draft.train or not draft.plain:
            return False
        if counts.step is not None or any(name in names.RATES for name, _ in draft.plain):
            scores_only = draft.sure and not any(names.is_loss(name) for name, _ in draft.plain)
            return scores_only and self.phase == "validation"
        if not (draft.sure or self._awaiting) and _names(draft) in self._train_names:
            return False  # `loss: 2.1`, as before the result
        near = self._awaiting or line - self._result_line <= MAX_BEHIND
        within = self.phase == "validation" and near
        return draft.sure or (within and (counts.epoch is None or self._validating))

    def _part(self, said: Said) -> None:
        """`[i/n]` of a validation: a result only when i reaches n, and then the running averages are the values."""
        draft, counts = said.draft, said.counts
        self.phase = "validation"
        if counts.epoch is None:
            counts = counts._replace(epoch=self._epoch)
        refs = (*draft.validation, *draft.test)
        unfinished = counts.step is not None and counts.step_total is not None and counts.step < counts.step_total
        if draft.partial or not refs or unfinished:
            self._emit(said, "val_progress", split="val", counts=counts, metrics=said.numbers(refs))
            return
        averages = dict(draft.averages)
        self._report(said, [(name, averages.get(name, ref)) for name, ref in refs], "val", counts)

    def _validation(self, said: Said) -> None:
        draft, counts = said.draft, said.counts
        if draft.train:
            event = "train_step" if self._counts_epochs(draft, counts) else "train_summary"
            epoch = Counts(counts.epoch, counts.epoch_total)
            self.phase = "train" if event == "train_step" else self.phase
            self._nested.loss(None)
            self._emit(said, event, split="train", counts=epoch, metrics=said.numbers(draft.train))
        self.phase = "validation"
        if draft.partial or not (draft.validation or draft.test):
            metrics = said.numbers((*draft.validation, *draft.test))
            self._emit(said, "val_progress", split="val", counts=counts, metrics=metrics)
            return
        self._report(said, draft.validation, "val", counts)
        self._report(said, draft.test, "test", counts)

    def _repeatable(self, said: Said, counts: Counts) -> None:
        """Results on a line that prints them again and again: news only when one changed."""
        if said.draft.validation:
            self._report(said, said.draft.validation, "val", counts, repeatable=True)
        if said.draft.test:
            self._report(said, said.draft.test, "test", counts, repeatable=True)

    def _report(self, said: Said, refs: Refs, split: Split, counts: Counts, *, repeatable: bool = False) -> None:
        metrics = said.numbers(refs)
        if not metrics or (repeatable and self._results.repeats(split, metrics)):
            return
        self._results.note(split, metrics)
        self.phase = "validation"
        self._awaiting, self._result_line = False, said.record.end_line
        self._emit(said, "validation", split=split, counts=counts, metrics=metrics)
        self._judge_finite(said, {name: number for name, number in metrics.items() if names.is_loss(name)})

    def _train(self, said: Said) -> None:
        draft, counts = said.draft, said.counts
        if draft.lone and not self._record_steps:
            return  # `Step 1/5: loading` of a script
        metrics = said.numbers((*draft.plain, *draft.train))
        with_loss = any(names.is_loss(name) for name, _ in draft.plain) or self._counts_epochs(draft, counts)
        with_loss |= draft.event == "row" and counts.epoch is not None  # of a table, whatever its columns are called
        if draft.event == "train_summary" or draft.suffix is not None or (counts.step is None and not with_loss):
            if draft.split == "train" or draft.train or counts.step is not None or counts.epoch is not None:
                self._emit(said, "train_summary", split="train", counts=counts, metrics=metrics)
            if draft.outcome is not None:
                self.phase, self._validating = "done", False
                self._emit(said, "train_end", message=draft)
            return
        if counts.step is not None:
            self._record_steps = True
            counts = self._unrounded(draft, counts)
        if counts.epoch is not None:
            self._epoch = counts.epoch
        if with_loss:
            self._nested.loss(counts.step_total)
        if len(self._train_names) < MAX_NAMES:
            self._train_names.add(_names(draft))
        self._enter_train()
        self._emit(said, "train_step", split="train", counts=counts, metrics=metrics)
        self._judge_finite(said, metrics)

    def _unrounded(self, draft: Draft, counts: Counts) -> Counts:
        """Without a step in thousands that is printed again: the steps between are told by what is measured there."""
        if draft.units[0] == 1:
            return counts
        before, self._rounded = self._rounded, counts.step
        return counts._replace(step=None) if counts.step == before else counts

    def _counts_epochs(self, draft: Draft, counts: Counts) -> bool:
        """Whether a line for each epoch is all that this training prints: then it is its step."""
        only = not self._record_steps and self._train_total is None and draft.event != "train_summary"
        return only and counts.epoch is not None and any(names.is_loss(name) for name, _ in draft.train)

    def _enter_train(self) -> None:
        self.phase = "train"
        self._validating = False

    def _judge_finite(self, said: Said, metrics: Mapping[str, float]) -> None:
        """By value under a name, never by the word: `number of nan iterations: 0` is healthy."""
        if all(map(math.isfinite, metrics.values())):
            return
        wrong = [name for name, number in metrics.items() if not math.isfinite(number)]
        if any(names.is_loss(name) for name in wrong):
            self._warn(said, _warning("nan_loss", "fatal"))
        elif not names.GRADIENTS.isdisjoint(wrong):
            self._warn(said, _warning("nan_grad_norm", "suspect"))

    def _emit(  # noqa: PLR0913 - the fields of an event, by keyword
        self,
        said: Said,
        event: str,
        *,
        split: Split | None = None,
        counts: Counts = NO_COUNTS,
        metrics: Mapping[str, float] | None = None,
        message: Draft | None = None,
        setup: bool = False,
    ) -> None:
        record = said.record
        rank = record.plan.rank
        self._events.append(
            LogEvent(
                line=record.line,
                end_line=record.end_line,
                event=event,
                phase=self.phase,
                time_seconds=record.time_seconds,
                split=split,
                epoch=counts.epoch,
                epoch_total=counts.epoch_total,
                step=counts.step,
                step_total=counts.step_total,
                metrics={} if metrics is None else metrics,
                warning=None if message is None else message.warning,
                severity=None if message is None else message.severity,
                rank=None if rank is None else int(value(rank, record.tokens)),
                outcome=None if message is None else message.outcome,
                setup=setup,
                reason=None if message is None else message.reason,
                text=record.text if event == "warning" else None,
                by_value=message is not None and message.event == BY_VALUE,
            )
        )


def _steps_train(draft: Draft, counts: Counts) -> bool:
    """Training values beside a step are a training record that repeats results, unless they are only the loss."""
    return counts.step is not None and any(not names.is_loss(name) for name, _ in draft.train)


def _names(draft: Draft) -> tuple[str, ...]:
    return tuple(name for name, _ in draft.plain)


def _warning(name: str, severity: MessageClass) -> Draft:
    return Draft("message", event=BY_VALUE, warning=name, severity=severity)
