"""A training log of any length: the records of speculators, Megatron-LM and the HF Trainer, and bars of tqdm."""

from __future__ import annotations

import io
import logging
import random
import re
from collections.abc import Callable, Iterator
from itertools import cycle, islice
from pathlib import Path

from rich.console import Console
from rich.logging import RichHandler

SEED = 7
BLOCKS = 400  # different ones; then they come again
LINES_OF_A_KIND = 24  # in a row


def write(path: Path, lines: int) -> None:
    """A log of exactly so many lines."""
    with path.open("w", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in islice(_endless(), lines))


def _endless() -> Iterator[str]:
    random_numbers = random.Random(SEED)  # noqa: S311 - the same log in every run
    number = _numbers(random_numbers)
    templates = _speculators()
    blocks = [_block(number, step, templates) for step in range(BLOCKS)]
    for block in cycle(blocks):
        yield from block


def _numbers(source: random.Random) -> Callable[[re.Match[str]], str]:
    def another(match: re.Match[str]) -> str:
        return f"{source.random() * 9:.{len(match[1])}f}"

    return another


def _block(number: Callable[[re.Match[str]], str], step: int, templates: list[str]) -> list[str]:
    lines = list(islice(cycle(templates), 2 * LINES_OF_A_KIND))
    for index in range(LINES_OF_A_KIND):
        count = step * LINES_OF_A_KIND + index
        lines += [_hugging_face(count), _megatron(count), _tqdm(count)]
    lines.append(f"2026-06-30 10:22:{step % 60:02},919 - data - INFO - opened shard {step} in 0.100 s")
    return [re.sub(r"\d\.(\d{3,})", number, line) for line in lines]


def _speculators() -> list[str]:
    """One record as RichHandler wraps it, eight lines."""
    names = [f"train/{kind}_{index}=1.000" for index in range(3) for kind in ("loss", "full_acc", "cond_acc")]
    values = [*names, "train/loss=9.000", "profile/step_ms=4.000", "epoch=0", "lr=5.00e-05", "global_step=80"]
    out = io.StringIO()
    handler = RichHandler(console=Console(file=out, width=80), log_time_format="[%X]")
    handler.emit(logging.LogRecord("speculators", logging.INFO, "trainer.py", 498, ", ".join(values), (), None))
    return out.getvalue().splitlines()


def _hugging_face(step: int) -> str:
    return f"{{'loss': 1.8800, 'grad_norm': 2.140000, 'learning_rate': 1.980000e-05, 'epoch': {step / 1000:.2f}}}"


def _megatron(step: int) -> str:
    return (
        f" [2026-04-20 03:14:15.880433] iteration {step:8}/   20000 | consumed samples: {step * 256:12} | "
        "elapsed time per iteration (ms): 4537.1 | throughput per GPU (TFLOP/s/GPU): 316.5 | "
        "learning rate: 3.000000E-06 | global batch size:   256 | lm loss: 1.021877E+00 | loss scale: 1.0 | "
        "grad norm: 1.902 | number of skipped iterations:   0 | number of nan iterations:   0 |"
    )


def _tqdm(step: int) -> str:
    share = step * 100 // (BLOCKS * LINES_OF_A_KIND)
    bar = "█" * (share // 10)
    return f"Training: {share:3}%|{bar:10}| {step}/{BLOCKS * LINES_OF_A_KIND} [01:10<09:10,  2.31it/s, loss=1.000]"
