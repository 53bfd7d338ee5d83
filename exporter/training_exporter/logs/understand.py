"""From a line to what it says: the slow way, taken once for each shape of line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from training_exporter.logs import bars, counters, fields, literals, marks, messages, names, novelty, tables
from training_exporter.logs.heads import Head, take_head
from training_exporter.logs.lexer import N, T, index_of, is_time, unmask
from training_exporter.logs.plan import Draft, Plan, Ref
from training_exporter.model import Split

# Text whose numbers decide what it means (an exit code, an Xid): two lines of that shape are not alike.
_VALUE_DECIDES = re.compile(rf"exit ?code|return code|Xid|got signal|exit status|['\"]{N}['\"]\s*:")
_RULE = re.compile(r"^[\s\-=*_─━═┃│║┏┓┗┛┡┩├┤└┘┌┐╇╈┳┻┴┬┼╔╗╚╝+|:~#·.•>]*$")
_IGNORED = re.compile(r"^(?:wandb: |swanlab: |tensorboard |COMET INFO: )")
_VALIDATION = re.compile(
    r"\b(?:validat(?:e[ds]?|ion|ing)|valid(?:_\w+)?|val(?:[_-]\w+)?|eval(?:[_-]?(?:set|metrics|results|step))?|evaluat(?:e[ds]?|ion|ing)|dev[ _]?set|"
    r"on dev|held[- ]?out)\b"
)
_TEST = re.compile(r"\b(?:test(?:ing)?|test[_ ]set)\b")
_TRAIN = re.compile(r"\b(?:train(?:ing)?(?:_inner)?|train[_ ]step)\b")
_SUMMARY = re.compile(r"\b(?:average|averaged|summary|stats|mean over|epoch mean|overall|final train)\b")
_BLOCK_HEADER = re.compile(
    rf"^\s*(?:\*{{3,}}.*\*{{3,}}|(?:\[[^\]]*{N}[^\]]*\]\s*)+(?:\S.*:|:)?|.*\b(?:metrics|results|scores|evaluation|validation|eval|statistics)\b[^:]*:)\s*$",
    re.IGNORECASE,
)
# `Inference done 11/5000. Dataloading: ...`
_VALIDATED = re.compile(
    rf"^\W*(?:inference done|evaluated|validated)\W*(?P<count>{N})\s*(?:/|of)\s*(?P<total>{N})", re.IGNORECASE
)
_WORD_SETTING = re.compile(r"\b[\w.]+=(?!nan|NaN|inf|None|True|False|tensor|array|np\.)[A-Za-z/'][\w./'-]*")
_LABELS = (
    "event",
    "msg",
    "message",
    "split",
    "mode",
    "phase",
    "stage",
    "tag",
    "type",
    "name",
    "set",
    "dataset",
    "kind",
)
_RATE_UNITS = re.compile(
    r"^(?:[KMGTBP]i?[Bb]?|GF|[num]?s(?:ec|econds)?|ms|min|h|it/s|.*/(?:s|sec|step|it|epoch|gpu).*|[A-Z]i?B)$"
)
_KEPT_AUX = frozenset({"lr", "learning_rate", "base_lr", "grad_norm", "gnorm", "global_grad_norm", "loss_scale"})
# With a split before them only these count; `eval_steps` and `train_iters` are settings.
_COUNTED = frozenset({"step", "global_step", "epoch", "iteration"})
_MASKS = re.compile(f"{N}|{T}")


def understand(literal_parts: tuple[str, ...], tokens: list[str], masked: str) -> tuple[Plan, bool]:
    """The plan of a masked line, and whether it holds for every line of the same literals."""
    head = take_head(masked)
    times = tuple(index for index, token in enumerate(tokens) if is_time(token))
    plan = Plan(
        masked=masked,
        message=head.message,
        headed=head.headed,
        rich=head.rich,
        rank=head.rank,
        times=times,
        novelty=novelty.masked_line(literal_parts),
        quiet=novelty.is_heartbeat(masked),
    )
    if not masked or _IGNORED.match(masked):
        return plan, True
    if _RULE.match(head.message):
        return replace(plan, rule=True), True
    printed = unmask(head.message, tokens)
    found = messages.find(printed, head.level)
    if found is not None:
        draft = Draft(
            "message",
            event="warning",
            warning=found.name,
            severity=found.severity,
            outcome=found.outcome,
            reason=found.reason,
        )
        drafts = (draft, *_compile_mark(head.message))
        opens = "traceback" if found.name == "traceback" else ("rich" if head.rich else "")
        trouble = found.severity != "benign"
        plan = replace(plan, drafts=drafts, opens=opens, trouble=trouble, quiet=plan.quiet or trouble)
        return plan, not _VALUE_DECIDES.search(masked)
    columns = tables.header(head.message)
    drafts = statements(head, tokens)
    if tables.of_classes(columns):
        drafts = tuple(replace(draft, role="validation") if draft.kind == "bar" else draft for draft in drafts)
    plan = replace(plan, drafts=drafts, opens=_opens(head), columns=columns)
    return plan, not _VALUE_DECIDES.search(masked)


def statements(head: Head, tokens: Sequence[str]) -> tuple[Draft, ...]:
    """What a message without known warning says."""
    message = head.message
    bar = bars.find(message)
    if bar is not None:
        return _of_bar(bar, tokens)
    progress = _VALIDATED.match(message)
    if progress is not None:
        count, total = index_of(progress["count"]), index_of(progress["total"])
        return (Draft("record", split="val", role="validation", partial=True, step=count, step_total=total),)
    mark = marks.find(message)
    best = marks.is_best(message)
    drafts: list[Draft] = [mark.draft] if mark is not None else []
    total = counters.total_steps(message)
    if total is not None:
        return (*drafts, Draft("mark", event="total", step_total=total))
    if (mark is None or not mark.bare) and not best:
        record = _record(message, head.logger, tokens)
        if record is not None:
            drafts.append(record)
    return tuple(drafts)


def _compile_mark(message: str) -> tuple[Draft, ...]:
    mark = marks.find(message)
    return (mark.draft,) if mark is not None and mark.draft.event == "compile" else ()


def _of_bar(bar: bars.Bar, tokens: Sequence[str]) -> tuple[Draft, ...]:
    found, rest = counters.extract(bar.description)
    record = _metrics(fields.scan(rest + " , " + bar.postfix), counters.Counters(), "")
    draft = Draft(
        "bar",
        event=bar.description,
        role=bar.role,
        step=bar.count,
        step_total=bar.total,
        epoch=found.epoch,
        epoch_total=found.epoch_total,
    )
    if record is not None:
        draft = replace(
            draft, plain=record.plain, train=record.train, validation=record.validation, test=record.test, averages=()
        )
    if not bar.rest.strip():
        return (draft,)
    glued = take_head(bar.rest.lstrip())
    return (draft, *statements(glued, tokens))


def _record(message: str, logger: str, tokens: Sequence[str]) -> Draft | None:
    brace = message.find("{")
    literal = literals.read(message, brace) if brace >= 0 else None
    if literal is None:
        found, rest = counters.extract(message)
        pairs = fields.scan(rest)
        if len(_WORD_SETTING.findall(message)) >= 3:  # noqa: PLR2004 - names with words as values: a configuration
            return None
        context = f"{logger} {_context(rest, pairs)}" if pairs else f"{logger} {message}"
        return _metrics(pairs, found, context.lower(), leftover=rest)
    entries, end = literal
    if entries.listed:
        return None
    prefix, suffix = message[:brace], message[end:]
    found, rest = counters.extract(prefix)
    pairs = [fields.Pair(unmask(name, tokens), ref) for name, ref in entries.numbers]
    words = " ".join(text for key, text in entries.strings.items() if key.lower() in _LABELS)
    if len(entries.numbers) * 2 < entries.entries and not (found.known or "step" in message):
        return None  # mostly words: a configuration
    return _metrics(pairs, found, f"{logger} {rest} {suffix} {words}".lower())


def _context(text: str, pairs: list[fields.Pair]) -> str:
    """The words between the pairs: names say which split *they* are, the words which split the record is."""
    kept = []
    position = 0
    for pair in pairs:
        kept.append(text[position : pair.start])
        position = pair.end
    kept.append(text[position:])
    return " ".join(kept)


def _split_of(context: str, found: counters.Counters) -> Split | None:
    if found.split is not None:
        return found.split
    if _VALIDATION.search(context):
        return "val"
    if _TRAIN.search(context):
        return "train"
    return "test" if _TEST.search(context) else None


def _metrics(pairs: list[fields.Pair], found: counters.Counters, context: str, leftover: str = "") -> Draft | None:
    split = _split_of(context, found)
    groups: dict[str, list[tuple[str, Ref]]] = {"plain": [], "train": [], "val": [], "test": []}
    averages: list[tuple[str, Ref]] = []
    suffix: Ref | None = None
    quality = aux = 0
    partial = False
    usable = sum(pair.value is not None for pair in pairs)
    for pair in pairs:
        lowered = pair.name.lower()
        if lowered.startswith("running "):
            partial = True
        name, own = names.normalise(pair.name)
        if name == "position":
            suffix = pair.value
            continue
        if pair.value is None or not name or ((own is None or name in _COUNTED) and found.take(name, pair.value)):
            continue
        if names.is_aux(name) or _RATE_UNITS.match(pair.unit):
            aux += 1
            if name in _KEPT_AUX and own != "val" and not pair.rest:
                groups["train" if own == "train" else "plain"].append((name, pair.value))
            continue
        if names.is_setting(name) or not _credible(pair, name, usable):
            continue
        quality += names.is_quality(name)
        target = groups[own or "plain"]
        target.append((name, pair.value) if not pair.rest else (f"{name}_0", pair.value))
        target.extend((f"{name}_{index}", ref) for index, ref in enumerate(pair.rest, 1))
        if pair.average is not None:
            averages.append((name, pair.average))
    if split in ("val", "test"):
        groups[split] += [(name, ref) for name, ref in groups["plain"] if name not in _KEPT_AUX]
        groups["plain"] = []
    steps_only = found.step is not None and found.rank >= 3 and (aux > 0 or len(re.sub(r"[\W\d_]", "", leftover)) <= 20)  # noqa: PLR2004 - a counter and a word or two
    measured = bool(groups["val"] or groups["test"] or groups["plain"] or groups["train"])
    whole = split in ("val", "test") and (found.whole or (found.step_total is not None and not measured))
    if not quality and not steps_only and not whole and not (found.rank >= 3 and groups["plain"]):  # noqa: PLR2004 - as above
        return None
    return Draft(
        "record",
        event="train_summary" if _SUMMARY.search(context) else "",
        split=split,
        epoch=found.epoch,
        epoch_total=found.epoch_total,
        step=found.step,
        step_total=found.step_total,
        plain=_unique(groups["plain"]),
        train=_unique(groups["train"]),
        validation=_unique(groups["val"]),
        test=_unique(groups["test"]),
        averages=tuple(averages) if found.bracketed else (),
        suffix=suffix,
        role="validation" if whole else "plain",
        partial=partial,
        sure=all(names.is_evaluation_only(name) for name, _ in groups["plain"]) and len(groups["plain"]) > 1,
    )


def _credible(pair: fields.Pair, name: str, pairs: int) -> bool:
    """Whether a pair without `=` or `:` is one, and not two words of prose."""
    return pair.tight or names.is_quality(name) or (pairs >= 4 and pair.words == 1)  # noqa: PLR2004 - a row of pairs


def _unique(pairs: list[tuple[str, Ref]]) -> tuple[tuple[str, Ref], ...]:
    return tuple(dict(reversed(pairs)).items())[::-1]


def _opens(head: Head) -> str:
    message = head.message
    if head.rich:
        return "rich"
    if table := tables.metric_table(message):
        return table
    stripped = message.strip()
    if stripped.endswith("(") and not message[:1].isspace() and "=" not in stripped:
        return "config"
    depth = literals.depth_change(message)
    if "{" in message and depth > 0 and (stripped == "{" or "'" in message or '"' in message or "{" == stripped[-1]):
        return "dict"
    if stripped == "[":
        return "dict"
    if _BLOCK_HEADER.match(message) and len(_MASKS.findall(message)) <= 4:  # noqa: PLR2004 - step, total, epoch, total
        return "block"
    return ""
