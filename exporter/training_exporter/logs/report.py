"""Makes one record of the pairs of a line: which are metrics, of which split, or whether it is no report at all."""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import isfinite

from training_exporter.logs import names
from training_exporter.logs.counters import Counters
from training_exporter.logs.fields import Pair
from training_exporter.logs.plan import Draft, Ref
from training_exporter.model import Split

_VALIDATION = re.compile(
    r"\b(?:validat(?:e[ds]?|ion|ing)|valid(?:_\w+)?|val(?:[_-]\w+)?|evals?(?:[_-]?(?:set|metrics|results|step))?|"
    r"evaluat(?:e[ds]?|ion|ing)|dev[ _]?set|"
    r"on dev|held[- ]?out|(?:train(?:ing)?|infer(?:ence)?)_eval|dev(?=\s?:)|"
    r"saving dict for global step)\b"
)
_TEST = re.compile(r"\b(?:test(?:ing)?|test[_ ]set)\b")
_TEST_RESULTS = re.compile(r"\btest (?:results?|metrics|scores?)\b")
_ON_TEST = re.compile(r"\bon (?:the )?test\b")
_TRAIN = re.compile(r"\b(?:train(?:ing)?(?:_inner)?|train[_ ]step)\b")
_SUMMARY = re.compile(
    r"\b(?:average|averaged|summary|stats|mean over|epoch mean|overall|final train)\b|\*\*\* train metrics"
)
_RATE_UNITS = re.compile(
    r"^(?:[KMGTBP]i?[Bb]?|GF|[num]?s(?:ec|econds)?|ms|min|h|it/s|.*/(?:s|sec|step|it|epoch|gpu).*|[A-Z]i?B)$"
)
# Not a quality, but worth to be seen beside the loss.
_KEPT_AUX = frozenset({"lr", "learning_rate", "base_lr", "grad_norm", "gnorm", "global_grad_norm", "loss_scale"})
# With a split before them only these count; `eval_steps` and `train_iters` are settings.
_COUNTED = frozenset({"step", "global_step", "epoch", "iteration", "num_timesteps"})
_MAIN_COUNTER = 3  # rank of a counter that counts the run: `step`, `iteration`, not `batch`
_TRAINING_COUNTER = 5  # of one that says so: `train step`, `global step`
_FEW_LETTERS = 20  # a counter with a word or two beside it
_ROW = 4  # so many pairs in a row need no `=` to be believed
_SCALES = {"k": 1000, "K": 1000, "M": 10**6, "B": 10**9}  # of a counter: `step:20K`
_OF_TRAINING = re.compile(r"_(?:lr|learning_rate|grad_norm)$")  # `actor/lr`: of a part of the model
_TO_TRAIN_ON = re.compile(r"rollout/", re.IGNORECASE)
_OWN_TIME = re.compile(r"(?:val|valid|validation|eval)[_/ ]", re.IGNORECASE)
_OWN_RESULT = re.compile(r"(?:val|valid|validation|eval|test)/", re.IGNORECASE)
_FEW_SETTINGS = 1  # beside a counter, where nothing is measured: with more it is a configuration


def draft(pairs: Sequence[Pair], found: Counters, context: str, leftover: str = "") -> Draft | None:
    """The record of a line, or None. `context` are its words besides the pairs, in lower case."""
    split = _split_of(context, found)
    averaged = "averaged stats" in context  # DETR, torchvision: the last batch, and behind it what the line is about
    report = _Report(found, split, usable=sum(pair.value is not None for pair in pairs), averaged=averaged)
    for pair in pairs:
        if pair.value is not None and not _best_of_nothing(pair):
            report.add(pair, pair.value)
    split = split or (report.counted if report.counted in ("val", "test") else None)
    if split in ("val", "test"):
        report.assign(split)
    elif split is None and report.only_results:
        report.assign("val")
    elif split is None and report.trains:
        split = "train"
    if report.repeats_best:
        return None
    whole = split in ("val", "test") and (found.whole or (found.step_total is not None and not report.measured))
    told = split in ("val", "test") and report.told  # both the words and the names say so
    if not (whole or told or report.says_something(leftover)):
        return None
    return Draft(
        "record",
        event="train_summary" if report.summary or _SUMMARY.search(context) else "",
        split=split,
        epoch=found.epoch,
        epoch_total=found.epoch_total,
        step=found.step,
        step_total=found.step_total,
        plain=_unique(report.groups["plain"]),
        train=_unique(report.groups["train"]),
        validation=_unique(report.groups["val"]),
        test=_unique(report.groups["test"]),
        averages=tuple(report.averages) if found.bracketed else (),
        suffix=report.suffix,
        role="validation" if whole else "plain",
        partial=report.partial,
        lone=report.lone(leftover),
        sure=sum(names.is_evaluation_only(name) for name, _ in report.groups["plain"]) > 1,
        units=(found.unit, 1),
        outcome="finished" if report.last else None,
    )


class _Report:
    """The pairs of one record, sorted."""

    def __init__(self, found: Counters, split: Split | None, usable: int, *, averaged: bool = False) -> None:
        self.groups: dict[str, list[tuple[str, Ref]]] = {"plain": [], "train": [], "val": [], "test": []}
        self.averages: list[tuple[str, Ref]] = []
        self.suffix: Ref | None = None
        self.counted: Split | None = None  # split in the name of a counter: `Eval num_timesteps=5000`
        self.partial = False
        self._runtime: str | None = None  # the split that is said to have run so long, or an empty text
        self._found = found
        self._split = split  # what the words around the pairs say
        self._usable = usable
        self._averaged = averaged
        self._quality = 0
        self._lead: Split | None = None  # what the first name says
        self._aux = 0
        self._settings = 0
        self._timed = False  # how long an evaluation took: `eval_s:151.2`
        self.trains = False  # there is something that only training has
        self.told = False  # a result says by its own name of which split it is: `eval/aime24`

    @property
    def measured(self) -> bool:
        return any(self.groups.values())

    @property
    def summary(self) -> bool:
        """Whether it has the HF Trainer's last words, and none of those that it has for every step."""
        return self._runtime is not None and not any(name in names.RATES for name, _ in self.groups["plain"])

    @property
    def last(self) -> bool:
        """Whether the HF Trainer says by it that its training is over: `'train_runtime': 641.9`."""
        return self.summary and self._runtime == "train"

    @property
    def repeats_best(self) -> bool:
        """Whether all that is measured is the best of what was measured before: `best_step=399 best_score=0.37`."""
        measured = [name for group in self.groups.values() for name, _ in group]
        return bool(measured) and all(name.startswith("best_") and not name[5:6].isdigit() for name in measured)

    @property
    def only_results(self) -> bool:
        """Whether there are results, and nothing beside them that only training prints.

        Another loss behind a result is of the same split: `avg val loss 1.62 | mel loss 0.82`.
        """
        plain = self.groups["plain"]
        loss = (lambda name: name == "loss") if self._lead == "val" else names.is_loss
        training = self.trains or any(loss(name) or name in _KEPT_AUX for name, _ in plain)
        results = self.groups["val"] or (self._timed and plain)
        return bool(results) and not self.groups["train"] and not training

    def add(self, pair: Pair, value: Ref) -> None:
        """Take a pair for what its name says."""
        self.partial |= pair.name.lower().startswith("running ")
        name, own = names.normalise(pair.name)
        if own == "test" and self._split == "val" and not pair.name.lower().startswith("test"):
            own = "val"  # of a task that is called so: `arc_easy_test_rc_5shot`
        self._runtime = (own or "") if name == "runtime" and own != "val" else self._runtime
        if name == "position":  # EAGLE prints one line for each, with the same names
            self.suffix = value
        elif not name:
            return
        elif pair.name[:6].lower() == "total " and name.startswith("total_") and "steps" in name:
            return  # so many in all, behind the counter that is printed first
        elif _counts(name, own) and self._found.take(name, value, _SCALES.get(pair.unit, 1)):
            self.counted = own or self.counted
        elif names.is_aux(name) or _RATE_UNITS.match(pair.unit):
            self._aux += 1
            self._timed |= own == "val" and bool(_OWN_TIME.match(pair.name))
            self.trains |= own != "val" and bool(_OF_TRAINING.search(name)) and name not in _KEPT_AUX
            if name in _KEPT_AUX and own != "val" and not pair.rest:
                self.groups["train" if own == "train" else "plain"].append((name, value))
        elif names.is_setting(name):
            self._settings += 1
        elif self._credible(pair, name) and not (own in ("val", "test") and names.is_length(name)):
            self.told |= own in ("val", "test") and bool(_OWN_RESULT.match(pair.name))
            self.trains |= own is None and bool(_TO_TRAIN_ON.match(pair.name))
            self._measure(pair, name, value, own)

    def assign(self, split: Split) -> None:
        """What no name assigns belongs to the split that the words around it name."""
        plain = self.groups["plain"]
        self.groups[split] += [
            (name, ref) for name, ref in plain if name not in _KEPT_AUX and not names.is_length(name)
        ]
        self.groups["plain"] = []

    def says_something(self, leftover: str) -> bool:
        """Whether there is a quality, or a step with a value, or a step and hardly anything else."""
        if self._quality:
            return True
        if self._found.step is None or self._found.rank < _MAIN_COUNTER or self._settings > _FEW_SETTINGS:
            return False
        return bool(self.groups["plain"]) or self._aux > 0 or _letters(leftover) <= _FEW_LETTERS

    def lone(self, leftover: str) -> bool:
        """Whether a counter stands alone, and not in brackets as in OLMo's `[step=500/2000,epoch=1,eta=41m]`."""
        told = self._found.epoch is not None or self._found.rank >= _TRAINING_COUNTER
        counted = told and self._found.step_total is not None  # `Epoch 1/5 Step 3/117 done`, `Train step 3/585`
        return not (self._quality or self.measured or self._aux or counted or "[" in leftover)

    def _measure(self, pair: Pair, name: str, value: Ref, own: Split | None) -> None:
        self._lead = own if not self.measured else self._lead
        self._quality += names.is_quality(name)
        value = pair.average if self._averaged and pair.average is not None else value
        target = self.groups[own or "plain"]
        target.append((f"{name}_0" if pair.rest else name, value))
        target.extend((f"{name}_{index}", ref) for index, ref in enumerate(pair.rest, 1))
        if pair.average is not None:
            self.averages.append((name, pair.average))

    def _credible(self, pair: Pair, name: str) -> bool:
        """Whether a pair without `=` or `:` is one, and not two words of prose."""
        return pair.tight or names.is_quality(name) or (self._usable >= _ROW and pair.words == 1)


def _best_of_nothing(pair: Pair) -> bool:
    """Whether it is the best value before there is any: `'best_train_loss': inf` in a state printed at the start."""
    return isinstance(pair.value, float) and not isfinite(pair.value) and "best_" in pair.name


def _counts(name: str, own: Split | None) -> bool:
    """Whether a name may count the run; fairseq prints `valid_num_updates`, and `train_num_updates` with means."""
    return own is None or name in _COUNTED or (own == "val" and name == "num_updates")


def _letters(text: str) -> int:
    return len(re.sub(r"[\W\d_]", "", text))


def _split_of(context: str, found: Counters) -> Split | None:
    if found.split is not None:
        return found.split
    if _ON_TEST.search(context):
        return "test"
    if _VALIDATION.search(context):
        return "val"
    if _TEST_RESULTS.search(context):
        return "test"
    if _TRAIN.search(context):
        return "train"
    return "test" if _TEST.search(context) else None


def _unique(pairs: list[tuple[str, Ref]]) -> tuple[tuple[str, Ref], ...]:
    """Without repetitions; the first value of a name stays."""
    return tuple(dict(reversed(pairs)).items())[::-1]
