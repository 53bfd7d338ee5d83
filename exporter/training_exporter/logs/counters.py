"""Finds epochs and steps in masked text and takes them out, so that what is left are metrics."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from training_exporter.logs.lexer import N, T, index_of
from training_exporter.logs.plan import Ref
from training_exporter.model import Split

_OF = rf"(?:\s*(?:/|of)\s*(?P<{{0}}>{N}))?"
# `Epoch(val) [1][40/40]`, `Iter(train) [ 500/80000]`, and `Epoch(val) [1][5000]` with the number of batches
_MMENGINE = re.compile(
    rf"(?P<unit>Epoch|Iter)\((?P<split>\w+)\)\s*(?:\[\s*(?P<epoch>{N})\])?\s*\[\s*(?P<step>{N})(?:/\s*(?P<total>{N}))?\]"
)
# `Train: 0 [  50/1251 (  4%)]`, `Test: [  48/48]`, `Test (EMA): [  48/48]`,
# `Train Epoch: 0 [ 258560/2969600 (9%)]`, `Epoch: [0][ 10/5005]`, `Train: [0/300][10/1251]`
_BRACKETED = re.compile(
    rf"\b(?:(?P<split>train(?:ing)?|test|val\w*|eval\w*)(?:\s\([A-Za-z]{{1,20}}\))?)?\s?(?:epoch)?\s*:?\s*"
    rf"\[?(?P<epoch>{N})?(?:\s?/\s?(?P<epochs>{N}))?\]?\s*:?\s*"
    rf"\[\s*(?P<step>{N})\s*/\s*(?P<total>{N})\s*(?:\(\s*{N}%\s*\))?\s*\]",
    re.IGNORECASE,
)
_EPOCH_RANGE = re.compile(
    rf"\bepochs?\s*[:=#]?\s*[\[(]\s*(?P<epoch>{N})\s*/\s*(?P<total>{N})\s*[\])]"
    rf"(?:\s?\[\s*(?P<step>{N})\s*/\s*(?P<steps>{N})\s*\])?",
    re.IGNORECASE,
)
# Counted within an evaluation: `[eval_step=1/10]`
_EVAL_STEP = re.compile(
    rf"\b(?P<split>eval|val|valid|validation|test)[_ ](?:step|iter(?:ation)?|batch)"
    rf"\s?[=:]?\s?(?P<step>{N})\s?/\s?(?P<total>{N})",
    re.IGNORECASE,
)
# `[100] loss=3.9, ...`, `[10]<tab>train-rmse:0.5`
_LED = re.compile(rf"^\s*\[(?P<step>{N})\]\s+(?=[A-Za-z][^\s=:]{{0,60}}(?:\s[^\s=:]{{1,60}})?\s?[=:])")
# `[0/5][50/1583]`, `[1,  2000] loss: 2.1`, `loss: 2.29  [ 6464/60000]`: PyTorch's own examples
_EXAMPLES = re.compile(
    rf"^\s*\[(?P<epoch>{N})(?:/(?P<epochs>{N}))?(?:\]\s?\[|,)\s*(?P<step>{N})(?:/(?P<total>{N}))?\]|"
    rf"(?<={N})\s+\[\s*(?P<last>{N})\s?/\s?(?P<whole>{N})\]\s*$"
)
_RANGE = re.compile(rf"{N}-(?P<last>\d{{1,12}})\s?batch(?:es)?\b")  # ESPnet: `1epoch:train:1-500batch:`
_EPOCH = re.compile(
    rf"(?:\bepochs?\b|\bep\.)(?:\s?#)?\s*[:=@]?\s*[\[(]?\s*(?P<epoch>{N}){_OF.format('total')}\s*[\])]?|"
    # a number in front is the epoch's only where none stands behind: `loss=2.5 epoch=1`
    rf"(?<!\w)(?P<after>{N})(?:/(?P<of>{N}))?(?:st|nd|rd|th)?\s?epoch\b(?!\s*[:=@#]?\s*[\[(]?\s*{N})",
    re.IGNORECASE,
)
# `Eval loss at step 1000: 1.61`
_BETWEEN = re.compile(
    rf"\s(?:at|after|@)\s(?:global[_ ])?(?P<name>step|iter(?:ation)?|epoch)\s(?P<count>{N})\s?[:=]\s?(?={N})",
    re.IGNORECASE,
)
_STEP = re.compile(
    rf"(?P<lead>^\W*|[,|;:\[()\]{{>@\t✨-]\s*|(?<={N})/|\s\s|[{N[1:-1]}{T[1:-1]}]\W?\s|"
    r"\b(?:completed|train|training|validate|validation|eval|evaluation|evaluating|validating|at|after|global|test|"
    rf"current|finished|done|for|in|learning)\s+|"
    rf"\b(?!accumulation|warm-?up|logging|save|num|max)[a-z]{{2,12}}\s(?=steps?\s?=\s?{N}))"
    r"(?P<name>global[ _-]?steps?|train(?:er)?/global_step|optimi[sz]er[ _]steps?|train(?:ing)?[_/]steps?|num_updates|"
    r"current_steps?|updates?|steps?|iter(?:ation)?s?|it|batch|micro[_ ]?(?:batch|step)|mini-?batch|results|round|"
    r"episode|timesteps?|total_timesteps|up\.)"
    rf"(?:\b|(?<=\.))\s*(?:[:=#@]|no\.?)?\s*[\[(]?\s*(?P<step>{N})(?![\w%]*\w){_OF.format('total')}\s*[\])]?",
    re.IGNORECASE,
)
# DeepSpeed's engine counts epochs for itself, and not those of the training: `epoch=0/micro_step=8/global_step=4`
_ENGINE = re.compile(rf"\bepoch={N}/(?=micro_step=)")
_UPDATES = re.compile(rf"@ (?P<step>{N}) updates")
_FRACTION = re.compile(rf"^\W*(?<!/)(?P<step>{N})\s*/\s*(?P<total>{N})(?=\s)(?!\s*\()")
_FRACTION_OF = re.compile(
    rf"(?P<step>{N})\s*/\s*(?P<total>{N})\s*(?P<unit>batch(?:es)?|steps?|iter(?:ation)?s?|updates)\b", re.IGNORECASE
)
_TOTAL_STEPS = re.compile(
    rf"(?:^|\|)\s*(?:total optimi[sz]ation steps|total (?:train(?:ing)? )?steps|max[_ ]steps)"
    rf"\s*[:=]\s*(?P<total>{N})\s*$",
    re.IGNORECASE,
)

_MAX_STEPS = 16  # counters of one line; a line with more is no report
# How well a name counts the run as a whole: batches of an epoch are the last choice, and micro batches none.
_RANKS = {
    "global_step": 6,
    "global_steps": 6,
    "trainer_global_step": 6,
    "num_updates": 5,
    "up.": 5,
    "current_steps": 5,
    "current_step": 5,
    "optimizer_step": 5,
    "optimizer_steps": 5,
    "updates": 3,
    "update": 3,
    "step": 4,
    "steps": 4,
    "training_step": 5,
    "train_step": 5,
    "timesteps": 4,
    "timestep": 4,
    "total_timesteps": 4,
    "num_timesteps": 4,
    "iteration": 3,
    "iterations": 3,
    "iter": 3,
    "iters": 3,
    "it": 2,
    "round": 2,
    "episode": 2,
    "results": 2,
    "batch": 1,
    "batches": 1,
    "minibatch": 0,
    "micro_step": -1,  # not taken: parts of a step
    "micro_batch": -1,
}
_TOTALS = {"total_steps", "max_steps", "num_steps", "total_iterations", "max_iters"}
_EPOCH_NAMES = {"epoch", "epochs", "current_epoch", "trainer_epoch", "epch", "ep"}
_OFTEN_EPISODES = "ep"  # an epoch only where nothing else is
_EPOCH_TOTALS = {"total_epochs", "num_epochs", "max_epochs", "num_train_epochs"}


@dataclass(slots=True)
class Counters:
    """Epoch and step of a line, as references."""

    epoch: Ref | None = None
    epoch_total: Ref | None = None
    step: Ref | None = None
    step_total: Ref | None = None
    rank: int = -1  # how good the step is, see _RANKS
    unit: int = 1  # what the step is printed in: `step:20K`
    doubtful: bool = False  # the epoch may be an episode
    split: Split | None = None  # where the counter names one: Epoch(val)
    whole: bool = False  # `[i/n]`: result only when i reaches n
    bracketed: bool = False

    def offer(self, name: str, step: Ref, total: Ref | None = None, unit: int = 1) -> None:
        """Take a step counter if it is better than the one there."""
        rank = _RANKS.get(name.lower().replace(" ", "_").replace("-", "_").replace("/", "_").replace("__", "_"), 2)
        if rank > self.rank:
            self.step, self.step_total, self.rank, self.unit = step, total, rank, unit

    def take(self, name: str, value: Ref, unit: int = 1) -> bool:
        """Whether a normalised pair name is a counter; then it is taken."""
        if name in _EPOCH_NAMES:
            if self.epoch is None or self.doubtful:
                self.epoch, self.doubtful = value, name == _OFTEN_EPISODES
        elif name in _EPOCH_TOTALS:
            self.epoch_total = value
        elif name in _TOTALS:
            self.step_total = value
        elif name in _RANKS and name != "results":
            self.offer(name, value, unit=unit)
        else:
            return False
        return True

    @property
    def known(self) -> bool:
        return self.step is not None or self.epoch is not None


def extract(text: str) -> tuple[Counters, str]:
    """The counters of a masked message, and the message without them."""
    found = Counters()
    text = _between(_ENGINE.sub("", text), found)
    for match in _once(_MMENGINE, text):
        found.split = _split(match["split"])
        found.epoch = _ref(match["epoch"])
        if match["total"]:
            found.offer("iter", index_of(match["step"]), index_of(match["total"]))
        found.whole = True
        text = _cut(text, match)
    if not found.whole:
        for match in _once(_EPOCH_RANGE, text):
            found.epoch, found.epoch_total = index_of(match["epoch"]), index_of(match["total"])
            if match["step"]:
                found.offer("batch", index_of(match["step"]), index_of(match["steps"]))
            text = _cut(text, match)
        for match in _once(_BRACKETED, text):
            if not (match["split"] or "epoch" in match[0].lower()):
                continue
            found.split = _split(match["split"] or "")
            found.epoch = _ref(match["epoch"]) if match["epoch"] else found.epoch
            found.epoch_total = _ref(match["epochs"]) if match["epochs"] else found.epoch_total
            found.offer("batch", index_of(match["step"]), index_of(match["total"]))
            found.whole = found.bracketed = True
            text = _cut(text, match)
    for match in _once(_EPOCH, text):
        mark = match["epoch"] or match["after"]
        found.epoch = index_of(mark) if found.epoch is None else found.epoch
        found.epoch_total = _ref(match["total"] or match["of"]) if found.epoch_total is None else found.epoch_total
        text = _cut(text, match)
    text = _steps(text, found)
    return found, text


def _between(text: str, found: Counters) -> str:
    for match in _once(_BETWEEN, text):
        if match["name"].lower() == "epoch":
            found.epoch = index_of(match["count"])
        else:
            found.offer(match["name"], index_of(match["count"]))
        text = f"{text[: match.start()]}: {text[match.end() :]}"
    return text


def _steps(text: str, found: Counters) -> str:
    for match in _once(_EVAL_STEP, text):
        found.split, found.whole = _split(match["split"]), True
        found.offer("step", index_of(match["step"]), index_of(match["total"]))
        text = _cut(text, match)
    text = _of_examples(text, found)
    for match in _once(_LED, text):
        found.offer("iteration", index_of(match["step"]))
        text = _cut(text, match)
    for match in _once(_RANGE, text):
        found.offer("batch", float(match["last"]))
        text = _cut(text, match)
    for match in _once(_UPDATES, text):
        found.offer("num_updates", index_of(match["step"]))
        text = _cut(text, match)
    for match in _once(_FRACTION_OF, text):
        found.offer(match["unit"], index_of(match["step"]), index_of(match["total"]))
        text = _cut(text, match)
    for _ in range(_MAX_STEPS):
        step = _STEP.search(text)
        if step is None:
            break
        found.offer(_named(step), index_of(step["step"]), _ref(step["total"]))
        text = text[: step.start()] + step["lead"] + " " + _tail(text[step.end() :])
    if found.step is None:
        for match in _once(_FRACTION, text):
            found.offer("batch", index_of(match["step"]), index_of(match["total"]))
            text = _cut(text, match)
    return text


def _of_examples(text: str, found: Counters) -> str:
    for match in _once(_EXAMPLES, text):
        found.epoch = _ref(match["epoch"]) if found.epoch is None else found.epoch
        found.epoch_total = _ref(match["epochs"]) if found.epoch_total is None else found.epoch_total
        found.offer("batch", index_of(match["step"] or match["last"]), _ref(match["total"] or match["whole"]))
        text = _cut(text, match)
    return text


def _named(step: re.Match[str]) -> str:
    """The name of a counter: of `Step 1/117 Train step 1/585` the second counts the run."""
    lead = step["lead"].strip().lower()
    return f"train {step['name']}" if lead in ("train", "training") else step["name"]


def total_steps(text: str) -> Ref | None:
    """The announced number of steps: `Total optimization steps = 390`."""
    match = _TOTAL_STEPS.search(text)
    return None if match is None else index_of(match["total"])


def _tail(text: str) -> str:
    # what follows a counter is a new field, whatever stands between
    return ", " + text.lstrip(" :,|/")


def _cut(text: str, match: re.Match[str]) -> str:
    return text[: match.start()].rstrip(" /") + " " + _tail(text[match.end() :])


def _once(pattern: re.Pattern[str], text: str) -> Iterable[re.Match[str]]:
    match = pattern.search(text)
    return () if match is None else (match,)


def _ref(mark: str | None) -> Ref | None:
    return None if mark is None else index_of(mark)


def _split(word: str) -> Split | None:
    word = word.lower()
    if word.startswith("train"):
        return "train"
    if word.startswith("test"):
        return "test"
    return "val" if word.startswith(("val", "eval")) else None
