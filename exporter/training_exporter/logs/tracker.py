"""The state of one log: turns drafts into events, given what came before them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from training_exporter.logs import names
from training_exporter.logs.plan import BarRole, Draft, Record, Ref, value
from training_exporter.model import LogEvent, LogPhase, MessageClass, Split

MAX_NAMES = 512  # names of which the last value is remembered, to tell a repeated result from a new one
MAX_STEP = 2**63
_GRADIENT = ("grad_norm", "gnorm", "global_grad_norm")


class Tracker:
    """Phase, counters and last results of one stream, and the events that follow from the next draft."""

    def __init__(self) -> None:
        self.phase: LogPhase = "setup"
        self._validating = False  # opened by a line that says so, not by a bar
        self._record_steps = False  # records print the step, so bars are only bars
        self._train_total: int | None = None
        self._bars: dict[str, tuple[float, float | None]] = {}  # last count by description
        self._bar_phase: LogPhase | None = None
        self._last_results: dict[tuple[str, str], float] = {}
        self._epoch: float | None = None
        self._last_step: int | None = None

    def events(self, record: Record) -> list[LogEvent]:
        """What a record means now; raises ValueError where a token is not the number that its plan expects."""
        found: list[LogEvent] = []
        for draft in record.plan.drafts:
            if draft.kind == "record":
                self._record(draft, record, found)
            elif draft.kind == "bar":
                self._bar(draft, record, found)
            elif draft.kind == "mark":
                self._mark(draft, record, found)
            else:
                self._message(draft, record, found)
        return found

    # --- single statements -------------------------------------------------------------------------------------

    def _message(self, draft: Draft, record: Record, found: list[LogEvent]) -> None:
        if draft.outcome == "failed":
            self.phase = "failed"
        found.append(
            self._event(
                record,
                "warning",
                warning=draft.warning,
                severity=draft.severity,
                outcome=draft.outcome,
                reason=draft.reason,
                text=record.text,
            )
        )

    def _mark(self, draft: Draft, record: Record, found: list[LogEvent]) -> None:
        counts = _counts(draft, record.tokens)
        if draft.event == "total":
            self._train_total = counts["step_total"]
            return
        if draft.phase is not None and not (draft.phase == "compile" and self.phase not in ("setup", "compile")):
            self.phase = draft.phase
        if draft.event == "val_begin":
            self._validating = True
        elif draft.event in ("val_end", "epoch_begin", "train_begin", "train_end"):
            self._validating = False
        if draft.event == "epoch_begin":
            self._epoch = counts["epoch"]
        split: Split | None = "val" if draft.event.startswith("val") else None
        found.append(self._event(record, draft.event, split=split, outcome=draft.outcome, **counts))

    def _bar(self, draft: Draft, record: Record, found: list[LogEvent]) -> None:
        counts = _counts(draft, record.tokens)
        step, total = counts["step"], counts["step_total"]
        role = self._role(draft, total)
        advanced = self._advanced(draft.event, step, total, counts["epoch"])
        if role == "setup":
            found.append(self._event(record, "progress", setup=True, step=step, step_total=total))
        elif role == "validation":
            if self.phase != "validation":
                self.phase = "validation"
                found.append(self._event(record, "val_begin", split="val", epoch=counts["epoch"]))
            found.append(self._event(record, "val_progress", split="val", **counts))
        elif role in ("train", "plain"):
            self._train_bar(draft, record, found, counts, advanced=advanced)
        else:
            found.append(self._event(record, "checkpoint_progress" if role == "save" else "progress"))
        if role not in ("setup", "validation"):
            self._bar_results(draft, record, found, counts)
        elif role == "validation" and draft.validation and step is not None and step == total:
            self._results(draft.validation, "val", draft, record, found, stale=True)

    def _role(self, draft: Draft, total: int | None) -> BarRole:
        """A bar without a description of its own is of the validation while one is open and its length is another."""
        role = draft.role
        nameless = role == "plain" or (role == "train" and draft.epoch is not None)
        if nameless and self.phase == "validation" and self._validating and total != self._train_total:
            return "validation"
        return role

    def _train_bar(
        self,
        draft: Draft,
        record: Record,
        found: list[LogEvent],
        counts: dict[str, float | int | None],
        *,
        advanced: bool,
    ) -> None:
        step, total = counts["step"], counts["step_total"]
        if not step or not advanced:
            found.append(self._event(record, "progress", **counts))
            return
        if total is not None:
            self._train_total = int(total)
        self._enter_train()
        name = "progress" if self._record_steps else "train_step"
        metrics = self._numbers((*draft.plain, *draft.train), draft, record.tokens)
        found.append(self._event(record, name, split="train", metrics=metrics, **counts))

    def _bar_results(
        self, draft: Draft, record: Record, found: list[LogEvent], counts: dict[str, float | int | None]
    ) -> None:
        for split, refs in (("val", draft.validation), ("test", draft.test)):
            if refs:
                self._results(refs, split, draft, record, found, stale=True, epoch=counts["epoch"])

    def _advanced(self, key: str, step: int | None, total: int | None, epoch: float | None) -> bool:
        if step is None:
            return False
        key = f"{key[:40]}/{total}"
        before = self._bars.get(key)
        if len(self._bars) >= MAX_NAMES:
            self._bars.clear()
        self._bars[key] = (step, epoch)
        return before != (step, epoch)

    # --- records -----------------------------------------------------------------------------------------------

    def _record(self, draft: Draft, record: Record, found: list[LogEvent]) -> None:
        counts = _counts(draft, record.tokens)
        if draft.role == "validation":
            self._partial(draft, record, found, counts)
            return
        own = bool(draft.validation or draft.test)
        if draft.split in ("val", "test") or (own and not draft.plain and not self._steps_train(draft, counts)):
            self._validation(draft, record, found, counts)
        elif own:
            self._train(draft, record, found, counts)
            self._both(draft, record, found, counts)
        elif self._reads_as_validation(draft, counts):
            self._plain_validation(draft, record, found, counts)
        else:
            self._train(draft, record, found, counts)

    def _steps_train(self, draft: Draft, counts: Mapping[str, float | int | None]) -> bool:
        """A record with train values, a step and no split word is a training record that repeats results."""
        return bool(draft.train) and counts["step"] is not None and any(not names.is_loss(n) for n, _ in draft.train)

    def _reads_as_validation(self, draft: Draft, counts: Mapping[str, float | int | None]) -> bool:
        if draft.split == "train" or draft.train or not draft.plain:
            return False
        if counts["step"] is not None or any(name in ("lr", "learning_rate", *_GRADIENT) for name, _ in draft.plain):
            return draft.sure and self.phase == "validation"
        if self.phase == "validation":
            return counts["epoch"] is None or draft.sure or self._validating
        return draft.sure

    def _plain_validation(
        self, draft: Draft, record: Record, found: list[LogEvent], counts: dict[str, float | int | None]
    ) -> None:
        self.phase = "validation"
        self._results(draft.plain, "val", draft, record, found, **counts)

    def _partial(
        self, draft: Draft, record: Record, found: list[LogEvent], counts: dict[str, float | int | None]
    ) -> None:
        """`[i/n]` of a validation: a result only when i reaches n, and then the running averages are the values."""
        self.phase = "validation"
        step, total = counts["step"], counts["step_total"]
        if counts["epoch"] is None:
            counts["epoch"] = self._epoch
        refs = (*draft.validation, *draft.test)
        if draft.partial or not refs or (step is not None and total is not None and step < total):
            metrics = self._numbers(refs, draft, record.tokens)  # of the part so far: no result
            found.append(self._event(record, "val_progress", split="val", metrics=metrics, **counts))
            return
        averages = dict(draft.averages)
        final = tuple((name, averages.get(name, ref)) for name, ref in refs)
        self._results(final, "val", draft, record, found, **counts)

    def _validation(
        self, draft: Draft, record: Record, found: list[LogEvent], counts: dict[str, float | int | None]
    ) -> None:
        if draft.train:
            metrics = self._numbers(draft.train, draft, record.tokens)
            found.append(self._event(record, "train_summary", split="train", metrics=metrics, epoch=counts["epoch"]))
        self.phase = "validation"
        if draft.partial or not (draft.validation or draft.test):
            metrics = self._numbers((*draft.validation, *draft.test), draft, record.tokens)
            found.append(self._event(record, "val_progress", split="val", metrics=metrics, **counts))
            return
        for split, refs in (("val", draft.validation), ("test", draft.test)):
            if refs:
                self._results(refs, split, draft, record, found, **counts)

    def _both(self, draft: Draft, record: Record, found: list[LogEvent], counts: dict[str, float | int | None]) -> None:
        for split, refs in (("val", draft.validation), ("test", draft.test)):
            if refs:
                self._results(refs, split, draft, record, found, stale=True, **counts)

    def _train(
        self, draft: Draft, record: Record, found: list[LogEvent], counts: dict[str, float | int | None]
    ) -> None:
        metrics = self._numbers((*draft.plain, *draft.train), draft, record.tokens)
        bare_loss = any(name == "loss" or names.is_loss(name) for name, _ in draft.plain)
        is_step = draft.event != "train_summary" and (
            counts["step"] is not None or (bare_loss and draft.suffix is None)
        )
        if draft.suffix is not None:
            is_step = False
        if not is_step:
            if metrics or counts["step"] is not None:
                found.append(self._event(record, "train_summary", split="train", metrics=metrics, **counts))
            return
        if counts["step"] is not None:
            self._record_steps = True
        if counts["epoch"] is not None:
            self._epoch = counts["epoch"]
        self._enter_train()
        found.append(self._event(record, "train_step", split="train", metrics=metrics, **counts))
        self._nonfinite(metrics, record, found)

    def _enter_train(self) -> None:
        self.phase = "train"
        self._validating = False

    def _nonfinite(self, metrics: Mapping[str, float], record: Record, found: list[LogEvent]) -> None:
        """Judged by value under a name, never by the word: `number of nan iterations: 0` is healthy."""
        warning: tuple[str, MessageClass] | None = None
        for name, number in metrics.items():
            if math.isfinite(number):
                continue
            if names.is_loss(name):
                warning = ("nan_loss", "fatal")
                break
            if name in _GRADIENT:
                warning = ("nan_grad_norm", "suspect")
        if warning is not None:
            found.append(self._event(record, "warning", warning=warning[0], severity=warning[1], text=record.text))

    def _results(
        self,
        refs: Sequence[tuple[str, Ref]],
        split: str,
        draft: Draft,
        record: Record,
        found: list[LogEvent],
        *,
        stale: bool = False,
        **counts: float | int | None,
    ) -> None:
        """A validation event; with `stale` only if a value differs from the last result of that name."""
        metrics = self._numbers(refs, draft, record.tokens)
        if not metrics:
            return
        key: Split = "test" if split == "test" else "val"
        if stale and all(self._repeats(key, name, number) for name, number in metrics.items()):
            return
        if len(self._last_results) >= MAX_NAMES:
            self._last_results.clear()
        for name, number in metrics.items():
            self._last_results[key, name] = number
        self.phase = "validation"
        found.append(self._event(record, "validation", split=key, metrics=metrics, **counts))

    def _repeats(self, split: str, name: str, number: float) -> bool:
        before = self._last_results.get((split, name))
        if before is None:
            return False
        # printed again with fewer digits
        return before == number or math.isclose(before, number, rel_tol=2e-3) or (before != before and number != number)  # noqa: PLR0124 - nan

    def _numbers(self, refs: Sequence[tuple[str, Ref]], draft: Draft, tokens: Sequence[str]) -> dict[str, float]:
        if draft.suffix is None:
            return {name: value(ref, tokens) for name, ref in refs}
        index = int(value(draft.suffix, tokens))
        return {f"{name}_{index}": value(ref, tokens) for name, ref in refs}

    def _event(self, record: Record, event: str, **fields: object) -> LogEvent:
        rank = record.plan.rank
        return LogEvent(  # type: ignore[arg-type]
            line=record.line,
            end_line=record.end_line,
            event=event,
            phase=self.phase,
            time_seconds=record.time_seconds,
            rank=None if rank is None else int(value(rank, record.tokens)),
            **fields,
        )


def _whole(ref: Ref | None, tokens: Sequence[str]) -> int | None:
    if ref is None:
        return None
    number = value(ref, tokens)
    return int(number) if abs(number) < MAX_STEP else None


def _counts(draft: Draft, tokens: Sequence[str]) -> dict[str, float | int | None]:
    return {
        "epoch": None if draft.epoch is None else value(draft.epoch, tokens),
        "epoch_total": None if draft.epoch_total is None else value(draft.epoch_total, tokens),
        "step": _whole(draft.step, tokens),
        "step_total": _whole(draft.step_total, tokens),
    }
