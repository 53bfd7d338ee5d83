"""Joins physical lines that are one record: wrapped, indented, tabular, literals over several lines, tracebacks."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace

from training_exporter.logs import coco, grids, literals, tables
from training_exporter.logs.block import MAX_FOREIGN, MAX_LINES, Block
from training_exporter.logs.heads import rich_prefix
from training_exporter.logs.lexer import unmask
from training_exporter.logs.names import normalise
from training_exporter.logs.plan import Draft, Plan, Record, Ref
from training_exporter.logs.tracebacks import Tracebacks
from training_exporter.model import Split

IDLE_SECONDS = 2.0  # a block is over when nothing comes for so long

_BULLET = "- "  # xtuner's lists: `- rewards/mean : 0.41`

Taking = Generator[Record, None, bool]  # yields what is complete; returns whether the line was taken
Understand = Callable[[str], tuple[Plan, Sequence[str]]]


class Assembler:
    """Lines of one stream in, records out. At most one block is open, and one traceback for each rank."""

    def __init__(self, understand: Understand) -> None:
        self._understand = understand  # of a joined text, without begin and end lines
        self._block: Block | None = None
        self._tracebacks = Tracebacks()
        self._table_prefix = ""
        self._complained_line = -1  # where the program's own logger last said that something went wrong

    @property
    def open(self) -> bool:
        return self._block is not None or self._tracebacks.open

    def complain(self, line: int) -> None:
        """The program's own logger reports trouble: a traceback right behind it was caught."""
        self._complained_line = line

    def goes_on(self, text: str, line: int, time_seconds: float) -> bool:
        """Take the next line where it only goes on where RichHandler cut the one before; most lines in a block do."""
        block = self._block
        if block is None or block.kind != "rich" or self._tracebacks.open:
            return False
        return block.wrap(text, line, time_seconds)

    def add(self, record: Record) -> Iterator[Record]:
        """Take the next line; yields what is complete by it, in the order of the lines."""
        if self._tracebacks.open:
            taken = yield from self._tracebacks.take(record)
            if taken:
                return
        if self._block is not None:
            taken = yield from self._continue(self._block, record)
            if taken:
                return
            yield from self.flush()
        yield from self._start(record)

    def idle(self, now_seconds: float) -> Iterator[Record]:
        """What is complete because nothing followed for IDLE_SECONDS."""
        block = self._block
        # the rows of a table of epochs come minutes apart
        if block is not None and block.kind != "columns" and now_seconds - block.seen_seconds >= IDLE_SECONDS:
            yield from self.flush()
        yield from self._tracebacks.end(lambda block: now_seconds - block.seen_seconds >= IDLE_SECONDS)

    def flush(self) -> Iterator[Record]:
        """End the open block."""
        block, self._block = self._block, None
        if block is None:
            return
        if block.kind in ("rich", "block"):
            yield from self._joined(block)
        elif block.kind in ("dict", "quoted"):
            yield from self._literal(block)
        elif block.kind.startswith("metrics:"):
            yield from self._metric_table(block)
        elif block.kind == "framed":
            yield self._span(block, *self._understand(tables.framed(block.texts)))
        elif block.kind in ("grid", "splits"):
            yield self._span(block, *self._understand(grids.joined(block.kind, block.texts)))
        elif block.kind == "coco" and block.values:
            draft = Draft("record", split="val", validation=tuple(block.values.items()))
            yield self._span(block, replace(block.first.plan, drafts=(draft,)), block.first.tokens)

    def close(self) -> Iterator[Record]:
        """End everything."""
        yield from self.flush()
        yield from self._tracebacks.end(lambda _: True)

    def _start(self, record: Record) -> Iterator[Record]:
        plan = record.plan
        self._table_prefix = tables.names_next(plan.message) or self._table_prefix
        if plan.opens == "traceback":
            self._tracebacks.begin(record, caught=plan.headed or self._complained_line == record.line - 1)
            return
        if plan.columns:
            self._block = self._open("columns", record)
            bars = tuple(draft for draft in plan.drafts if draft.kind == "bar")
            if bars:
                yield replace(record, plan=replace(plan, drafts=bars))
            return
        if not plan.opens:
            yield record
            return
        self._block = block = self._open(plan.opens, record)
        if plan.opens == "coco":
            self._summary_row(block, block.texts[0], record)
        marks = tuple(draft for draft in plan.drafts if draft.kind in ("mark", "message"))
        if plan.opens == "dict":
            block.depth = literals.depth_change(plan.message)
        elif marks and plan.opens in ("block", "rich"):
            yield replace(record, plan=replace(plan, drafts=marks))

    def _open(self, kind: str, record: Record) -> Block:
        block = Block(kind, record, record.end_line, record.time_seconds)
        block.texts.append(unmask(record.plan.message, record.tokens))
        block.prefix = rich_prefix(record.text) if kind == "rich" else ""
        return block

    def _continue(self, block: Block, record: Record) -> Taking:
        if block.kind == "rich":
            return (yield from self._rich_row(block, record))
        if block.kind in ("config", "summary"):
            return self._rest(block, record)
        if block.kind == "framed":
            text = unmask(record.plan.message, record.tokens)
            return text.lstrip().startswith("|") and block.add(text, record.end_line, record.time_seconds)
        if block.kind.startswith("metrics:"):
            return self._metric_row(block, record)
        if block.kind == "quoted" and not record.plan.message.lstrip().startswith(("'", '"')):
            return False
        rows = {
            "quoted": self._quoted_row,
            "block": self._block_row,
            "dict": self._literal_row,
            "columns": self._column_row,
            "coco": self._behind_summary,
            "grid": self._grid_row,
            "splits": self._grid_row,
        }
        return (yield from rows[block.kind](block, record))

    def _rich_row(self, block: Block, record: Record) -> Taking:
        """A line that only goes on where the line before was cut, or one of another rank or stream in between."""
        if block.wrap(record.text, record.end_line, record.time_seconds):
            return True
        plan = record.plan
        another = plan.rank is not None and record.rank != block.first.rank
        between = another or (plan.drafts and all(draft.kind == "message" for draft in plan.drafts))
        if not between or plan.opens or plan.joins or block.foreign >= MAX_FOREIGN:
            return False
        block.foreign += 1
        yield record
        return True

    def _rest(self, block: Block, record: Record) -> bool:
        """A line that is swallowed with its block."""
        if record.plan.headed or any(draft.kind == "message" for draft in record.plan.drafts):
            return False
        if block.kind == "summary" and not record.text[:1].isspace():
            return False
        if record.text.strip() in (")", "),"):
            self._block = None
            return True
        return block.add("", record.end_line, record.time_seconds)

    def _block_row(self, block: Block, record: Record) -> Taking:
        message = record.plan.message
        if not message.strip() and len(block.texts) == 1:
            return block.add("", record.end_line, record.time_seconds)  # a blank line below the title
        row = message[:1].isspace() or message.startswith(_BULLET)
        if not row or not message.strip() or record.plan.opens not in ("", "block"):
            return False
        if any(draft.kind == "message" for draft in record.plan.drafts):
            return False
        reports = any(draft.kind == "record" for draft in record.plan.drafts)
        # `Eval metrics/...: 3.4` is a row, not the begin of another evaluation
        others = tuple(draft for draft in record.plan.drafts if draft.kind != "record" and not reports)
        if others:
            yield replace(record, plan=replace(record.plan, drafts=others))
        return block.add(unmask(message, record.tokens).strip(), record.end_line, record.time_seconds)

    def _literal_row(self, block: Block, record: Record) -> Taking:
        if record.plan.headed or any(draft.kind == "message" for draft in record.plan.drafts):
            return False
        block.depth += literals.depth_change(record.plan.masked)
        going = block.add(record.text.strip(), record.end_line, record.time_seconds)
        if block.depth <= 0 or not going:
            yield from self.flush()
        return True

    def _quoted_row(self, block: Block, record: Record) -> Taking:
        text = unmask(record.plan.message, record.tokens).strip()
        block.add(text.rstrip(")"), record.end_line, record.time_seconds)
        if text.endswith(")") or len(block.texts) >= MAX_LINES:
            yield from self.flush()
        return True

    def _column_row(self, block: Block, record: Record) -> Taking:
        if record.plan.rule and block.rows < MAX_LINES:
            return True
        columns = block.first.plan.columns
        row = tables.cells(record.plan.message, len(columns))
        if row is None:
            between = not record.plan.columns and all(draft.kind in ("bar", "message") for draft in record.plan.drafts)
            if not between or (record.text and not record.plan.drafts):
                return False
            yield record  # bars and messages between the rows
            return True
        block.rows += 1
        prefix = self._table_prefix if columns[0].lower() not in ("epoch", "class") else ""
        split: Split | None = next((d.split for d in block.first.plan.drafts if d.split), None)
        draft = tables.row_draft(columns, row, prefix, split)
        block.seen_seconds = record.time_seconds
        bars = tuple(draft for draft in record.plan.drafts if draft.kind == "bar" and draft.role == "validation")
        yield replace(record, plan=replace(record.plan, drafts=(*bars, *((draft,) if draft else ()))))
        return True

    def _grid_row(self, block: Block, record: Record) -> Taking:
        if record.plan.rule and record.text:
            block.last_line = record.end_line
            if grids.closes(record.plan.message):
                yield from self.flush()
            return True
        text = unmask(record.plan.message, record.tokens)
        return grids.belongs(block.kind, text) and block.add(text, record.end_line, record.time_seconds)

    def _metric_row(self, block: Block, record: Record) -> bool:
        if record.plan.rule and block.rows < MAX_LINES and not (block.pairs and "└" in record.text):
            block.rows += 1
            block.last_line = record.end_line
            return True
        if tables.is_pivot(block.texts[0]):
            above = block.pairs[-1][0] if block.pairs else ""
            pair = tables.pivot_row(block.texts[0], record.plan.message, above)
            pairs: list[tuple[str, Ref]] = [] if pair is None else [pair]
        else:
            pairs = [*tables.metric_row(_as_printed(block.first), _as_printed(record))]
        if not pairs:
            return False
        block.pairs += [(name, ref, record.tokens) for name, ref in pairs]
        block.last_line, block.seen_seconds = record.end_line, record.time_seconds
        return len(block.pairs) < MAX_LINES

    def _summary_row(self, block: Block, text: str, record: Record) -> bool:
        """Take a row of pycocotools' summary; False for one that a summary already has, so that another one begins."""
        row = coco.row(text)
        name = "" if row is None else normalise(self._table_prefix + row[0])[0]
        if row is None or name in block.values:
            return False
        if row[1] != coco.UNDEFINED:
            block.values[name] = row[1]
        block.last_line, block.seen_seconds, block.rows = record.end_line, record.time_seconds, 0
        return True

    def _behind_summary(self, block: Block, record: Record) -> Taking:
        """Rows, and what follows: what a program then says in its own words is the result, or it would count twice."""
        plan = record.plan
        if plan.opens == "coco":
            return self._summary_row(block, unmask(plan.message, record.tokens), record)
        prefix = tables.names_next(plan.message)
        records = [draft for draft in plan.drafts if draft.kind == "record"]
        own = any(coco.says_the_same(name) for draft in records for name, _ in draft.validation)
        if own or plan.columns or (prefix and plan.opens):
            block.values.clear()
            return False
        self._table_prefix = prefix or self._table_prefix
        block.rows += 1
        if records or plan.opens or block.rows > coco.MAX_SWALLOWED or any(_goes_elsewhere(d) for d in plan.drafts):
            return False
        if plan.drafts:
            yield record
        return True

    def _joined(self, block: Block) -> Iterator[Record]:
        if len(block.texts) == 1:
            drafts = tuple(draft for draft in block.first.plan.drafts if draft.kind in ("record", "bar"))
            if drafts:
                yield replace(block.first, plan=replace(block.first.plan, drafts=drafts))
            return
        separator = " " if block.kind == "rich" else " | "
        head = block.first.text if block.kind == "block" else ""
        texts = [head, *block.texts[1:]] if head else block.texts
        plan, tokens = self._understand(separator.join(texts))
        yield self._span(block, plan, tokens)

    def _literal(self, block: Block) -> Iterator[Record]:
        if block.kind == "quoted":
            text = "".join(part.strip("(")[1:-1] for part in block.texts)
        else:
            text = " ".join(block.texts)
        if text.lstrip().startswith("["):
            return
        plan, tokens = self._understand(text)
        yield self._span(block, plan, tokens)

    def _metric_table(self, block: Block) -> Iterator[Record]:
        if not block.pairs:
            return
        split: Split = "test" if block.kind == "metrics:test" else "val"
        text = ", ".join(f"{split} {name}={unmask(_mark(ref, row), [])}" for name, ref, row in block.pairs)
        plan, tokens = self._understand(text)
        drafts = tuple(_as_split(draft, split) for draft in plan.drafts)
        yield self._span(block, replace(plan, drafts=drafts), tokens)

    def _span(self, block: Block, plan: Plan, tokens: Sequence[str]) -> Record:
        rank = block.first.rank
        return Record(
            plan if rank is None is plan.rank else replace(plan, rank=rank),
            tokens,
            block.first.line,
            block.last_line,
            block.seen_seconds,
            block.first.text,
        )


def _as_printed(record: Record) -> str:
    """The text behind the head; where there is none, with all its blanks, so that columns can be compared."""
    bare = not record.plan.headed and record.plan.rank is None
    return record.text if bare else unmask(record.plan.message, record.tokens)


def _goes_elsewhere(draft: Draft) -> bool:
    """Whether a bar or a mark shows that an evaluation is over."""
    return draft.kind == "bar" or (draft.kind == "mark" and not draft.event.startswith("val_"))


def _mark(ref: Ref, tokens: Sequence[str]) -> str:
    return tokens[ref] if isinstance(ref, int) else str(ref)


def _as_split(draft: Draft, split: Split) -> Draft:
    return replace(draft, split=split)
