"""Lines that say where a run is: begin and end of training, epochs, validation, checkpoints, compilation."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from training_exporter.logs import counters, fields, names
from training_exporter.logs.lexer import N, T, index_of
from training_exporter.logs.plan import Draft, Ref
from training_exporter.model import LogPhase

_FLAGS = re.IGNORECASE


def _re(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, _FLAGS)


_ANY = f"(?:{N}|{T})"
# Behind the words of an end the statement is over, or goes on with when and how; an object, a step, a fold or a share
# there says that only a part is done.
_OVER = (
    rf"(?![^.!]*\b(?:so far|moving on|next|to go|remaining|continu\w+|resum\w+|folds?|stages?|phase|trial)\b)"
    rf"(?!.*(?:{N}\s?%|\b(?:step|batch|epoch|iteration)s?\W*{N}\s?(?:/|of)|{N} of {N}))"
    rf"(?=\s*(?:$|[^\w\s`'\"{N[1:-1]}{T[1:-1]}]|(?:in|at|after|with|due|because|as|early|successfully|normally|now|"
    rf"and|run|job|loop|process|took|for {N} (?:epochs|steps|iterations|updates))\b))"
)
_TRAIN_END = _re(
    rf"^\W*(?:training (?:is )?(?:complete[ds]?|finished|done|ended|has (?:completed|finished|ended))\b"
    rf"(?!.*\bepoch\b){_OVER}|"
    rf"(?:\w+ )?(?:trainer|orchestrator) (?:has )?(?:finished|completed?)\b{_OVER}|pipeline complete[.!]*$|"
    rf"(?:finished|completed|done with|done) training\b{_OVER}|train(?:ing)? (?:complete|done|finished)[.!]*$|"
    r"\[after training is done\]|`?trainer\.fit`? stopped|destroyed distributed process group|process group destroyed|"
    rf"{N} epochs completed in|overall training speed\W*{N} \w+ in\b|"
    rf"total training time\s*(?:[:=(]|is\b|was\b|{_ANY})|\| - training time|"
    rf"training time\s?:?\s(?:{N} days?, )?{T}\s*$|the training was finished\b|"
    r"early[ -]stopping(?: triggered|:| condition)|\*+ best metric|exiting program at iteration|"
    rf"(?:epoch {N}: early stopping)|training (?:run )?(?:stopped|succeeded)\b{_OVER}|"
    r"experiment (?:finished|completed)|"
    rf"end of training\b{_OVER}|all (?:epochs|done|training) (?:completed?|finished|done)|"
    rf"(?:finished fine-?tuning|fine-?tuning (?:completed?|finished|done))\b{_OVER}|"
    r"max(?:imum)?[_ ](?:steps|epochs|iterations) reached|reached max[_ ]\w+)"
)
_TRAIN_BEGIN = _re(
    r"^\W*(?:running training\b|(?:start(?:ing|ed)?|begin(?:ning)?|launching) (?:the )?(?:offline |online )?"
    r"(?:training|finetuning|fine-tuning)\b(?! run| epoch| process| step| iteration| batch)|"
    r"training starts? at|training start\b\W*$|training (?:started|begins)\b|"
    r"\[before the start of training step\]|start iterating|let's train)"
)
_EPOCH_BEGIN = _re(
    rf"^\W*(?:(?:begin(?:ning)?|start(?:ing|ed)?|now)(?: training)?(?: with| of| in)? epoch\W*{N}|"
    rf"training epoch {N}(?:\s?/\s?{N})? started|the training of epoch {N} starts\b|"
    rf"going into epoch\W*{N}|{N}/{N}epoch started|"
    rf"epoch[\s:#\[(]*{N}(?:\s*(?:/|of)\s*{N})?\s*[:.\])-]*\s*(?:started|begins?|start(?:ing)?)?\s*$|"
    rf"[-=]+ ?epoch {N}(?: ?/ ?{N})? ?[-=]+\s*$)"
)
_EPOCH_END = _re(
    rf"^\W*(?:end of epoch\W*{N}|training epoch {N}(?:\s?/\s?{N})? (?:completed|finished|done)|"
    rf"(?:finished|completed) (?:training )?epoch\W*{N}|training finished iteration {N} at\b|"
    rf"the training of epoch {N} ends\b|"
    rf"epoch\W*{N}(?:\s*(?:/|of)\s*{N})? (?:completed|finished|"
    rf"done|ended|took)\b)"
)
_VAL_BEGIN = _re(
    r"^\W*(?:running (?:evaluation|validation|prediction|test(?:ing)?\b|(?:[a-z]+ )?evals?\b|sanity)|"
    r"(?:begin(?:ning)?|start(?:ing|ed)?|launching|entering) (?:the )?(?:validation|evaluation|eval\b|evaluating|"
    r"validating|testing)|"
    rf"(?:validation|evaluation|eval) (?:epoch )?(?:{N}(?:\s?/\s?{N})? )?(?:started|begins?|starting)|"
    rf"(?:validat|evaluat)ing(?:\s*(?:[.…:({{]|$)|\s+(?:the )?(?:on|model|epoch|at|iter|"
    rf"policy|agent|network|validation|test|"
    rf"dev|checkpoint|{N}|\S+[/.]|\S+ \()|.*\.\.\.\s*$)|"
    rf"eval(?:uate)? (?:the )?(?:policy|agent|model) (?:at|after)\b|"
    rf"evaluat(?:e|ing) (?:in main process|\S+ for {N} steps)|computing validation|evaluating (?:perplexity|reward)\b|"
    r"evaluation\W*$|validation\s*$|performing (?:validation|evaluation)|"
    r"(?:eval(?:uation)?|test|validation|predict) (?:results?|"
    r"metrics)\b|"
    r"begin validation on|start(?:ing)? (?:inference|zero-shot)|evaluation start time)"
)
_VAL_END = _re(
    rf"^\W*(?:(?:validation|evaluation|eval) (?:epoch )?(?:{N}(?:\s?/\s?{N})? )?"
    rf"(?:completed?|finished|done|ended|took)|"
    r"(?:finished|completed|done with) (?:the )?(?:validation|evaluation|evaluating|validating|"
    r"(?:[a-z]+ )?evals?\b(?! (?:step|batch|iter))))"
)
_COMPILE = _re(
    r"^\W*(?:compiling (?:the )?(?:model|each|graph|function|loss|transformer|blocks?|module|train)|"
    r"compilation (?:started|of)|"
    r"torch\.compile\b|(?:applying|using|enabling|running|with) torch\.compile|autotune \w|singleprocess autotune|"
    r"compiled cluster using xla|"
    r"capturing (?:cuda )?graph|capturing cudagraph|.*\bwith torch\.compile\b|.*dry-run (?:batch|forward)|jit compil|"
    r"compiling .*(?:jit|xla|inductor))"
)
_RESUME = _re(
    r"\b(?:resum(?:e|ed|ing)(?: training)? (?:from|at|training)|(?:loaded|loading|restor(?:ed|"
    r"ing)) (?:the )?(?:checkpoint|state|model checkpoint) (?:from|at)|"
    r"found checkpoint at|continuing training from|warm start(?:ed|ing)? from|(?:successfully )?loaded checkpoint)"
)
_NO_RESUME = _re(
    r"\b(?:no (?:existing|previous|checkpoint)|not found|none found|from scratch|starting fresh)\b|:\s?none\s*$"
)

_SAVE_NOT = _re(
    r"\b(?:will be (?:saved|written)|(?<!about )to be saved|can be saved|would save|"
    r"(?:is )?deleting|deleted?\b|removing|removed|loading|loaded|"
    r"restor\w+|resum\w+|rewinding|"
    r"manager created|was not in top|no existing|no previous|not found|skipping|skip to|failed to save|could not|"
    r"cannot|"
    r"gradient checkpoint\w*|"
    r"activation checkpoint\w*|checkpoint(?:ing)? (?:dir|directory|folder|path|interval|every|enabled|disabled)|"
    r"saving (?:the )?(?:config\w*|arg\w*|hyper-?parameters|logs?|results?|metrics|figures?|images?|samples?|"
    r"predictions?)|"
    r"experiment state|save_\w+ *[=:]|updated checkpoint_best|memory[- ]saving|keeping)\b|checkpoint_best ->"
)
_OBJECT = r"(?:check-?points?|ckpt|model|weights|state|states|snapshot|adapter|optimi[sz]er|training state)"
_KEPT = r"(?:check-?points?|ckpts?|model|weights|adapter|snapshot)"
_SAVED = _re(
    rf"^\W*(?:(?:successfully |finished |done |training |trainer |trial \S+ )?(?:saved|wrote|stored) .*?{_OBJECT}|"
    rf"(?:finished|completed|done) (?:saving|writing) .*?{_OBJECT}|"
    rf".{{0,80}}?\b{_KEPT}\b.{{0,160}}?\b(?:successfully )?(?:saved|finalized successfully|uploaded|written)\b|"
    r".{0,80}?\bsaving (?:the )?(?:model |full )*(?:checkpoint|model) took\b|"
    rf".{{0,40}}\b{_KEPT} (?:save )?(?:completed?|finished|done)\b|"
    rf"current checkpoints:|(?:best|new best|last) {_OBJECT}.*\bsaved\b|finished saving\b|"
    rf"\S{{1,200}}\.(?:pth?|ckpt|safetensors|pdparams|keras|h5)\W{{1,3}}saved\b|"
    r"(?:global |local )?checkpoint save\b.*\bsave duration\b|(?:\[[^\]]{0,80}\]\s?){1,4}finished saving\b|"
    r"(?:\w+ )?(?:train(?:ing|er)?|accelerator) state (?:was )?saved\b|"
    r"saved \S{1,200}\.(?:pth?|ckpt|safetensors|pdparams|keras|h5)\b|\[?\w*\]?\s?check-?point \S+ is ready now|"
    rf"saved (?:full )?(?:training )?state\b|saved to\b.*(?:ckpt|checkpoint)|finished saving (?:model|checkpoint) to)"
)
_SAVING = _re(
    rf"^\W*(?:now )?(?:saving|writing|dumping|storing)\b.*?\b{_OBJECT}\b|^\W*(?:now )?saving\b.*\bto\b|"
    rf"\bsaving (?:the |a |an |best |current |full |final |new |last |training |trained )*{_OBJECT}\b|"
    rf"^\W*save (?:the |best |latest |last |final )*{_OBJECT} ?(?:is |in |to\b|:)|"
    rf"\.(?:pth?|ckpt|safetensors|pdparams|keras|h5)\W{{1,3}}saving\b|"
    rf"\b(?:preparing to save|taking) (?:the |a )?{_OBJECT}|\b{_KEPT} .*?\babout to be saved|"
    rf"^\W*local_global_step_folder:|^\W*checkpointing\b|"
    rf"^\W*checkpoint (?:policy|model|agent|network) (?:at|after) (?:step|iteration|epoch)\b|"
    rf"(?:started|scheduled) (?:an )?async\w* checkpoint save"
)
_PROGRESS = _re(
    r"\b(?:configuration saved in|config(?:uration)? file saved|model weights saved in|tokenizer config file saved|"
    r"special tokens file saved|"
    r"(?:optimi[sz]er|scheduler|sampler|scaler|random|gradscaler) states? saved|state dict saved|"
    r"zero checkpoint saved|"
    r"saved (?:model )?configuration|"
    r"checkpoint of size .* saved|storing distributed optimizer|finished staging|chat template saved|"
    r"model checkpoint of size)"
)
_SHARD = _re(r"\bmodel checkpoint of size")  # torchtune: all that some of its recipes say of a save
_ASYNC = _re(r"\basync\w*\b|finalized successfully|in the background")
_STEP_NAME = _re(
    r"(?:global[_ ]?step|(?<![a-z])step|iter(?:ation)?|checkpoints?/|(?:checkpoint|ckpt)(?![a-z0-9])|"
    r"(?<![a-z])ba|updates?)"
    rf"[-_= ]*(?:at |for )?0*(?:(?P<digits>\d+)|(?P<mark>{N}))(?![\w.]*\w?%|\s?epochs?\b)"
)
_FAIRSEQ = _re(rf"@ (?P<mark>{N}) updates|\bcheckpoint_\d+_(?P<digits>\d+)\.pt\b")  # epoch and step in one name
_EPOCH_NAME = _re(rf"(?:\bepochs?|\bep)[-_= ]*(?:(?P<digits>\d+)|(?P<mark>{N}))|(?P<before>{N}) epochs?\b")
# `trainer: training finished`, `(loop.py:77) saved ...`, `main | I | saved ...`: heads of loggers of all kinds
_LEADS = re.compile(
    rf"^(?!\w*(?:error|warning|note))(?:\s*(?:\[[^\]]{{0,60}}\]|\([^)]{{0,60}}\)|[\w./-]{{1,60}}\.py:{N}(?=\s)|"
    r"[a-z_][\w.]{0,60}\s?(?:\||:(?=\s))|new best\b[!,:]?|[^\w\s\[(]{1,8}))*\s*",
    re.IGNORECASE,
)
_SENTENCE = re.compile(r"[^.!]{1,80}[.!](?=\s)")
_EPOCH_LEAD = _re(rf"^\W*epoch\W*{N}\s*:\s*")
_RESULTS = _re(r"^\W*(?:validation|evaluation|eval|test) (?:results?|metrics)\b")
_MAY_REPORT = frozenset({"train_end", "val_begin", "val_end", "epoch_begin", "epoch_end"})
MAX_TEXT = 600  # characters; what is longer says no such thing
_BEST = _re(
    r"^\W*(?:max(?:imum)?|minimum|best|highest|lowest)\b|\b(?:new best(?!\W*$)|reached .*\(best|"
    r"better (?:model|score|metric)|"
    r"best (?:epoch|step|iteration|score|metric|model|value|checkpoint|val\w*|loss|acc\w*)\b|"
    r"was not in top|updated checkpoint_best|"
    r"loading best|best so far|early stopping counter|earlystopping|as top)|@\[ *iou="
)
# `val_loss improved from 0.60 to 0.51`, `no improvement for 3 epochs`, `improved=true`: beside a result they say
# nothing new, and by themselves they repeat it.
_NUMBER = rf"(?:{N}%?|[-+]?inf\b|nan\b)"
_IMPROVEMENT = _re(
    rf"[(\[]?\b(?:(?:did|does|has|have)(?: not|n't)? |not? |without )?improve(?:d|s|ments?)?\b"
    rf"(?:\s?=\s?\w+|[\s:!]*(?:(?:from|by|to|over|since|for|in|of)\s|\()?\s*{_NUMBER}"
    rf"(?:\s?(?:to|=>|-+>|→|>=)\s?{_NUMBER})*"
    r"\s?(?:epochs?|evaluations?|steps?|checks?)?)?[)\]]?"
)


@dataclass(frozen=True, slots=True)
class Mark:
    """A recognised line: its draft, and whether it may carry metrics of its own besides."""

    draft: Draft
    bare: bool = True  # numbers in it repeat others or count something: no metrics


def is_best(text: str) -> bool:
    """Whether a line repeats a value because it is the best so far."""
    return bool(_BEST.search(text[:MAX_TEXT]))


def find(text: str) -> Mark | None:
    """The mark in a masked message, or None. Saves come first: they mention training, epochs and validation."""
    if len(text) > MAX_TEXT:
        return None
    said = _LEADS.sub("", text)
    if saved := _checkpoint(text) or _checkpoint(said):
        return Mark(saved)
    found, _ = counters.extract(text)
    for pattern, event, phase in _MARKS:
        if pattern.search(text) or (said is not text and pattern.search(said)):
            return of(event, phase, found, reports=may_report(event, text))
    if _RESUME.search(text) and not _NO_RESUME.search(text):
        return Mark(Draft("mark", event="resume", step=_name_ref(_STEP_NAME, text), epoch=found.epoch))
    return None


def of(event: str, phase: LogPhase | None, found: counters.Counters | None = None, *, reports: bool = False) -> Mark:
    """The mark of an event; the end of a training says how it went."""
    found = counters.Counters() if found is None else found
    draft = Draft(
        "mark",
        event=event,
        phase=phase,
        epoch=found.epoch,
        epoch_total=found.epoch_total,
        step=found.step,
        step_total=found.step_total,
        outcome="finished" if event == "train_end" else None,
    )
    return Mark(draft, bare=not reports)


def without_improvement(text: str) -> str:
    """A masked message without the words that say whether a result is better than the one before, and by how much."""
    return _IMPROVEMENT.sub(" , ", text)


def closing(text: str) -> Draft | None:
    """The end of the training, where a save is told in the same breath: `Training completed! Saving the model to D`."""
    sentence = _SENTENCE.match(text)
    if sentence is None or not _TRAIN_END.search(sentence[0]):
        return None
    return Draft("mark", event="train_end", phase="done", outcome="finished")


_MARKS: tuple[tuple[re.Pattern[str], str, LogPhase | None], ...] = (
    (_TRAIN_END, "train_end", "done"),
    (_EPOCH_BEGIN, "epoch_begin", "train"),
    (_EPOCH_END, "epoch_end", None),
    (_VAL_END, "val_end", None),
    (_VAL_BEGIN, "val_begin", "validation"),
    (_TRAIN_BEGIN, "train_begin", "train"),
    (_COMPILE, "compile", "compile"),
)


def may_report(event: str, text: str) -> bool:
    """Whether a begin or end line carries results of its own."""
    if event not in _MAY_REPORT:
        return False
    if "{" in text:
        return True
    _, rest = counters.extract(text)
    if event == "train_end":  # `End of training | test loss 4.91`
        return any(names.normalise(pair.name)[1] == "test" for pair in fields.scan(rest))
    told = event == "val_end" or _RESULTS.search(text) is not None
    for pair in fields.scan(rest):
        name, split = names.normalise(pair.name)
        if names.is_quality(name) and (told or pair.tight or split is not None):
            return True
    return False


def _checkpoint(text: str) -> Draft | None:
    text = _EPOCH_LEAD.sub("", text)
    if _PROGRESS.search(text):
        return Draft("mark", event="checkpoint_progress", phase="checkpoint" if _SHARD.search(text) else None)
    if _SAVE_NOT.search(text) and not re.search(r"is deleting.*saved", text):
        return None
    if _SAVED.search(text) and "about to be saved" not in text:
        event = "checkpoint_saved"
    elif _SAVING.search(text):
        event = "checkpoint_begin"
    else:
        return None
    draft = Draft("mark", event=event, phase=None if _ASYNC.search(text) else "checkpoint")
    step = _name_ref(_FAIRSEQ, text)
    return replace(
        draft, step=_name_ref(_STEP_NAME, text) if step is None else step, epoch=_name_ref(_EPOCH_NAME, text)
    )


def _name_ref(pattern: re.Pattern[str], text: str) -> Ref | None:
    for match in pattern.finditer(text):
        groups = match.groupdict()
        mark = groups.get("mark") or groups.get("before")
        if mark:
            return index_of(mark)
        return float(groups["digits"])
    return None
