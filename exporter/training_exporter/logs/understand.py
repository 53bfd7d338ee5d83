"""From a line to what it says: the slow way, taken once for each shape of line."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from training_exporter.logs import (
    bars,
    coco,
    counters,
    fields,
    grids,
    labels,
    literals,
    marks,
    messages,
    names,
    novelty,
    report,
    splits,
    tables,
)
from training_exporter.logs.heads import Head, take_head
from training_exporter.logs.lexer import N, T, index_of, is_time, unmask
from training_exporter.logs.plan import Draft, Plan, quick_of

# Text whose numbers decide what it means (an exit code, an Xid): two lines of that shape are not alike.
_VALUE_DECIDES = re.compile(rf"exit ?code|return code|Xid|got signal|exit status|['\"]{N}['\"]\s*:")
_RULE = re.compile(r"^[\s\-=*_─━═┃│║┏┓┗┛┡┩├┤└┘┌┐╇╈┳┻┴┬┼╔╗╚╝+|:~#·.•>]*$")
# Another log, cited: `> [13:41:00] ERROR CUDA error: ...`
_CITED = re.compile(rf"^> (?=\[?{T}|\[?(?:INFO|WARN|ERROR)|\w*(?:Error|Exception)\b|Traceback)")
_IGNORED = re.compile(r"^(?:wandb: |swanlab: |tensorboard |COMET INFO: )")
# What a model heard or wrote, beside what it should have.
_SAMPLE = re.compile(
    r"^<\|\w+\|>|^\W*example (?:hypothesis|reference)\b|^\W*\[(?:prompt|response|ground_truth|answer)\]\s|"
    r"^\W*(?:(?:reference|predict(?:ed|ion)|hypothes[ie]s|target|generated|decoded|transcript|prompt|completion)s?|"
    r"(?:first|last|example) (?:rollout )?(?:sample|example)|finish(?:ed)? rollout)\s?:",
    re.IGNORECASE,
)
_COMPILER = re.compile(r"\btorch/_(?:dynamo|inductor|functorch)/[^\]\s]*\]")  # its numbers are guards and sizes
_BLOCK_HEADER = re.compile(
    rf"^\s*(?:\*{{3,}}.*\*{{3,}}|\[(?:[a-z]{{1,20}}_)?(?:metrics|results)\]|results? for \S+:|-->\s.*|"
    rf"learning iteration {N}/{N}|"
    rf"(?:\[[^\]{N[1:-1]}]*{N}[^\]]*\]\s*){{1,4}}(?:\S.*:|:)?|.*\b(?:metrics|results|scores|evaluation|"
    rf"validation|eval|statistics)\b[^:]*:|(?:test|val\w*|eval\w*) (?:error|performance|accuracy|loss)\s*:)\s*$",
    re.IGNORECASE,
)
# `Inference done 11/5000. Dataloading: ...`
_VALIDATED = re.compile(
    rf"^\W*(?:(?:inference done|evaluated|validated|evaluating iter)\W*(?P<count>{N})\s*(?:/|of)\s*(?P<total>{N})|"
    rf"completed eval step:? (?P<done>{N})(?=\s*$|,))",
    re.IGNORECASE,
)
_TIMERS = re.compile(r"^\W*(?:rank\S* )?(?:time|timers?|\(min, max\) time)\b.*\(ms\)", re.IGNORECASE)
# `Accuracy of the network on the 10000 test images: 55 %`
_PROSE = re.compile(
    rf"\b(?P<name>accuracy|acc|loss|perplexity|f1|error)\b(?: of the \w+)? on (?:the )?(?:{N} )?"
    r"(?P<split>test|val\w*|eval\w*)\b(?: ?(?:set|data\w*|images|samples|examples|split))?\s*(?:[:=]|is)\s*",
    re.IGNORECASE,
)
_WORD_SETTING = re.compile(
    r"\b(?!device|dtype|grad_fn)[\w.]{1,80}=(?!nan|NaN|inf|None|True|False|tensor|array|np\.)[A-Za-z/'][\w./'-]*"
)
# `[train] loss=2.1`, `train: loss=2.1`, `Train - loss: 2.1`
_SECTION = re.compile(
    r"(?P<open>\[)?\b(?P<split>train|training|valid|val|validation|eval|dev|test)(?(open)\]|\s?(?::|\s-)\s(?=[A-Za-z]))",
    re.IGNORECASE,
)
# What a run was told: `config: lr=0.1 eval_every=200`, `Namespace(lr=0.1, ...)`, a line of help
_SETTINGS = re.compile(
    r"(?i:^\W*(?:config(?:uration)?|arg(?:ument)?s|settings|hyper-?param\w*|options)\s*:\s)|"
    r"\b(?:Namespace|[A-Z]\w*(?:Config|Args|Arguments|Options|Params))\(|\(default:? "
)
_LEADER = re.compile(r"^\s*[\w/()-]{1,80} \.{3,}[\s:]")  # `loss_scale ........... 0`: a setting, or a timer
_IGNORED_BY_PYTHON = "Exception ignored in"  # a destructor failed: the traceback behind it ends nothing
_MASKS = re.compile(f"{N}|{T}")
_QUOTED = re.compile(r"^\(['\"].*['\"]$")  # a long text that pprint cut into several
_MAX_COUNTERS = 4  # of a block's header: step, total, epoch, total
_MAX_HEADER = 300  # characters of a block's header
MAX_PROSE = 8192  # characters in which names and values are searched; a literal is read to its end
MAX_BARS = 8  # of those glued to one line the last ones say how far it is


def understand(literal_parts: tuple[str, ...], tokens: list[str], masked: str) -> tuple[Plan, bool]:
    """The plan of a masked line, and whether it holds for every line of the same literals."""
    head = take_head(masked)
    plan = Plan(
        masked=masked,
        message=head.message,
        headed=head.headed,
        rich=head.rich,
        complaint=head.complaint or head.message.startswith(_IGNORED_BY_PYTHON),
        rank=head.rank,
        times=tuple(index for index, token in enumerate(tokens) if is_time(token)),
        novelty=novelty.masked_line(literal_parts),
    )
    if not masked or _IGNORED.match(masked) or _IGNORED.match(head.message) or _CITED.match(masked):
        return plan, True
    if _SAMPLE.match(head.message):
        return plan, True
    if _RULE.match(head.message):
        return replace(plan, rule=True), True
    holds = not (_VALUE_DECIDES.search(masked) or splits.listed(masked))
    found = messages.find(unmask(head.message, tokens), head.level)
    if found is None and _COMPILER.search(masked):
        return plan, holds
    return (_reporting(plan, head, tokens) if found is None else _warning(plan, head, found, tokens)), holds


def _warning(plan: Plan, head: Head, found: messages.Message, tokens: Sequence[str]) -> Plan:
    """The plan of a known message: it gives no metrics, but it may begin a block, or say that something compiles."""
    draft = Draft(
        "message",
        event="warning",
        warning=found.name,
        severity=found.severity,
        outcome=found.outcome,
        reason=found.reason,
    )
    opens = "traceback" if found.name == "traceback" else ("rich" if head.rich else "")
    trouble = found.severity != "benign"
    drawn, behind = _drawn(head)
    if drawn and messages.find(unmask(behind.message, tokens), behind.level) is None:
        drawn = ()  # the message is what the bar is called
    return replace(
        plan,
        drafts=(*drawn, draft, *_compile_mark(behind.message)),
        opens=opens,
        joins=bool(opens),
        trouble=trouble,
        quiet=trouble or novelty.is_heartbeat(plan.masked, reports=True),
    )


def _reporting(plan: Plan, head: Head, tokens: list[str]) -> Plan:
    """The plan of a line without a known message."""
    columns = tables.header(head.message)
    drafts = statements(head, tokens)
    if tables.of_classes(columns):
        drafts = tuple(replace(draft, role="validation") if draft.kind == "bar" else draft for draft in drafts)
    opens = _opens(head)
    unknown = not drafts or any(draft.kind == "bar" and draft.role in ("setup", "other") for draft in drafts)
    return replace(
        plan,
        drafts=drafts,
        opens=opens,
        columns=columns,
        joins=bool(opens or columns or tables.names_next(head.message)),
        counting=unknown,
        quick=None if opens else quick_of(drafts, head.rank),
        quiet=novelty.is_heartbeat(plan.masked, reports=bool(drafts)),
    )


def statements(head: Head, tokens: Sequence[str]) -> tuple[Draft, ...]:
    """What a message without known warning says."""
    drawn, behind = _drawn(head)
    return (*drawn, *_said(behind, tokens)) if behind.message else drawn


def _drawn(head: Head) -> tuple[tuple[Draft, ...], Head]:
    """The bars at the begin of a message, and what is glued behind them."""
    drawn: deque[Draft] = deque(maxlen=MAX_BARS)
    while (bar := bars.find(head.message)) is not None:
        drawn.append(_of_bar(bar))
        rest = bar.rest.lstrip()
        if not rest:
            return tuple(drawn), Head("")
        head = take_head(rest)
    return tuple(drawn), head


def _said(head: Head, tokens: Sequence[str]) -> tuple[Draft, ...]:
    """What a message says that is no bar."""
    message = head.message
    progress = _VALIDATED.match(message)
    if progress is not None:
        done = index_of(progress["count"] or progress["done"])
        whole = index_of(progress["total"]) if progress["total"] else None
        return (Draft("record", split="val", role="validation", partial=True, step=done, step_total=whole),)
    mark = marks.find(message) or _labelled(message)
    best = marks.is_best(message)
    drafts: list[Draft] = [mark.draft] if mark is not None else []
    if mark is not None and mark.draft.event == "checkpoint_begin" and (closing := marks.closing(message)):
        drafts.append(closing)
    total = counters.total_steps(message)
    if total is not None:
        return (*drafts, Draft("mark", event="total", step_total=total))
    if (mark is None or not mark.bare) and not best:
        record = _record(message, head.logger, tokens)
        if record is not None:
            drafts.append(record)
    return tuple(drafts)


def _labelled(message: str) -> marks.Mark | None:
    """The mark that a structured record names: `event=eval_end`, `"message": "training finished"`."""
    for words in labels.happened(message[: marks.MAX_TEXT]):
        named = labels.event(words)
        mark = marks.find(words) if named is None else marks.of(*named)
        if mark is not None:
            counted = _counted(message)
            draft = replace(
                mark.draft,
                epoch=counted.epoch,
                epoch_total=counted.epoch_total,
                step=counted.step,
                step_total=counted.step_total,
            )
            return replace(mark, draft=draft, bare=mark.bare and not marks.may_report(draft.event, message))
    return None


def _counted(message: str) -> counters.Counters:
    """The epoch and the step of a structured record."""
    brace = message.find("{")
    literal = literals.read(message, brace) if brace >= 0 else None
    if literal is None:
        found, rest = counters.extract(message)
        printed = [(pair.name, pair.value) for pair in fields.scan(rest) if pair.tight and pair.value is not None]
    else:
        found, printed = counters.Counters(), literal[0].numbers
    for name, ref in printed:
        found.take(names.normalise(name)[0], ref)
    return found


def _compile_mark(message: str) -> tuple[Draft, ...]:
    mark = marks.find(message)
    return (mark.draft,) if mark is not None and mark.draft.event == "compile" else ()


def _of_bar(bar: bars.Bar) -> Draft:
    found, rest = counters.extract(bar.description)
    record = report.draft(fields.scan(rest + " , " + bar.postfix), counters.Counters(), "")
    draft = Draft(
        "bar",
        event=bar.description,
        role=bar.role,
        step=bar.count,
        step_total=bar.total,
        epoch=found.epoch,
        epoch_total=found.epoch_total,
        sure=bar.whole,
        units=bar.units,
    )
    if record is None:
        return draft
    return replace(
        draft, plain=record.plain, train=record.train, validation=record.validation, test=record.test, averages=()
    )


def _record(message: str, logger: str, tokens: Sequence[str]) -> Draft | None:
    if _TIMERS.match(message) or _LEADER.match(message) or _SETTINGS.search(message):
        return None
    brace = message.find("{")
    literal = literals.read(message, brace) if brace >= 0 else None
    if literal is None:
        message = _PROSE.sub(lambda match: f"{match['split']} {match['name']}: ", message[:MAX_PROSE])
        message = splits.named(marks.without_improvement(message), tokens)
        found, rest = counters.extract(message)
        pairs = _by_section(rest, fields.scan(rest))
        if len(_WORD_SETTING.findall(message)) >= 3:
            return None
        context = f"{logger} {_context(rest, pairs) if pairs else message} {labels.context(message)}"
        return report.draft(pairs, found, context.lower(), leftover=rest)
    entries, end = literal
    if entries.listed:
        return None
    prefix, suffix = message[:brace][-MAX_PROSE:], message[end:][:MAX_PROSE]
    found, rest = counters.extract(prefix)
    pairs = [fields.Pair(unmask(name, tokens), ref) for name, ref in entries.numbers]
    if len(entries.numbers) * 2 < entries.entries and not (found.known or "step" in message):
        return None  # mostly words: a configuration
    return report.draft(pairs, found, f"{logger} {rest} {suffix} {labels.context_of(entries.strings)}".lower())


def _by_section(text: str, pairs: list[fields.Pair]) -> list[fields.Pair]:
    """The pairs with the split in their names where a line has sections: `train: loss=2.1 | val: loss=2.4`."""
    sections = list(_SECTION.finditer(text))
    if len({section["split"].lower() for section in sections}) < 2:
        return pairs
    named = []
    for pair in pairs:
        words = [section["split"] for section in sections if section.end() <= pair.end]
        name = pair.name.rpartition("]")[2].strip()
        named.append(replace(pair, name=f"{words[-1]} {name}") if words else pair)
    return named


def _context(text: str, pairs: list[fields.Pair]) -> str:
    """The words between the pairs: names say which split *they* are, the words which split the record is."""
    kept = []
    position = 0
    for pair in pairs:
        # of `Eval 3: loss 0.8`, `Validation took 3.2s, loss 0.4` the first says what the others are
        about = not (pair.tight or names.is_quality(names.normalise(pair.name)[0]))
        kept.append(text[position : pair.end if about else pair.start])
        position = pair.end
    kept.append(text[position:])
    return " ".join(kept)


def _opens(head: Head) -> str:
    """The kind of block that a line may begin, or an empty text."""
    if head.rich:
        return "rich"
    message = head.message
    framed = "framed" if tables.is_section(message) else ""
    table = tables.metric_table(message) or framed or ("coco" if coco.is_row(message) else "")
    if kind := table or grids.kind(message):
        return kind
    stripped = message.strip()
    if _QUOTED.match(stripped):
        return "quoted"
    if _goes_on(message, stripped):
        return "dict"
    if stripped.endswith("(") and not message[:1].isspace() and "=" not in stripped:
        return "config"
    short = len(message) <= _MAX_HEADER and len(_MASKS.findall(message)) <= _MAX_COUNTERS
    return "block" if short and _BLOCK_HEADER.match(message) else ""


def _goes_on(message: str, stripped: str) -> bool:
    """Whether a dict or list is left open: with something quoted in it, or nothing yet."""
    if stripped == "[":
        return True
    if "{" not in message or literals.depth_change(message) <= 0:
        return False
    return stripped.endswith("{") or "'" in message or '"' in message
