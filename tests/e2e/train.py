"""A small data-parallel training on the CPU that prints and saves like the speculators trainer.

Started by torchrun. What it does next is written by the test into `CONTROL/command`:
train, validate (reads the data files only, until told otherwise), block (rank 1 opens `CONTROL/fifo` and waits for a
writer while the others wait in the collective), spin (rank 1 burns one core until SIGUSR1), fail (rank 1 raises),
finish (ends after the epoch).
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from rich.logging import RichHandler
from torch.nn.parallel import DistributedDataParallel

logger = logging.getLogger("trainer")


def parse_arguments() -> argparse.Namespace:
    """The command line, with options named as the real trainer names them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--save-path", type=Path, required=True)
    parser.add_argument("--control", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=1000)
    parser.add_argument("--steps-per-epoch", type=int, default=40)
    parser.add_argument("--step-seconds", type=float, default=0.1)
    return parser.parse_args()


class Trainer:
    """One rank of the training."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.rank = dist.get_rank()
        self.model = DistributedDataParallel(torch.nn.Linear(64, 64))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        self.files = sorted(arguments.data.iterdir())
        self.global_step = 0
        self.validated_files = 0
        self.released = False
        signal.signal(signal.SIGUSR1, self.release)

    def release(self, *_: object) -> None:
        self.released = True

    def command(self) -> str:
        """The command of rank 0's view of the file, the same on all ranks."""
        words = [None]
        if self.rank == 0:
            try:
                words = [(self.arguments.control / "command").read_text().strip()]
            except FileNotFoundError:
                words = ["train"]
        dist.broadcast_object_list(words)
        return str(words[0])

    def say(self, text: str) -> None:
        if self.rank == 0:
            logger.info(text)

    def read(self, index: int) -> None:
        self.files[index % len(self.files)].read_bytes()

    def step(self, epoch: int) -> None:
        time.sleep(self.arguments.step_seconds)
        self.read(self.global_step * dist.get_world_size() + self.rank)
        loss = self.model(torch.randn(8, 64)).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.global_step += 1
        if self.global_step % 5 == 0:
            self.say(
                f"train/loss_0={loss.item():.3f}, train/full_acc_0=0.552, train/cond_acc_0=0.552, "
                f"train/loss_1=2.991, train/full_acc_1=0.339, train/loss={2 * loss.item():.3f}, "
                f"profile/step_ms={1000 * self.arguments.step_seconds:.3f}, epoch={epoch}, lr=5.00e-05, "
                f"global_step={self.global_step}"
            )

    def save(self, epoch: int) -> None:
        """Write in the order of the speculators trainer, its marker last."""
        folder = self.arguments.save_path / str(epoch)
        if self.rank == 0:
            self.say(f"Saving checkpoint to {folder}")
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "config.json").write_text("{}")
            (folder / "model.safetensors").write_bytes(os.urandom(1 << 20))
            torch.save(self.optimizer.state_dict(), folder / "optimizer_state_dict.pt")
            (folder / "scheduler_state_dict.pt").write_bytes(b"scheduler")
            (folder / "training_state.json").write_text(
                json.dumps({"epoch": epoch, "global_step": self.global_step, "local_step": 0})
            )
            self.say(f"Checkpoint saved to {folder}")
        dist.barrier()

    def validate(self, epoch: int) -> None:
        """Read files, a few at a time, for as long as the command says so and at least once through a few."""
        self.say(f"Validation epoch {epoch + 1}/{self.arguments.epochs} started")
        while True:
            for _ in range(20):
                self.read(self.validated_files)
                self.validated_files += 1
            time.sleep(0.2)
            if self.command() != "validate":
                break
        accuracy = 0.5 + 0.001 * (epoch % 100)
        self.say(
            f"val/loss_0_epoch=2.381, val/full_acc_0_epoch={accuracy:.3f}, val/cond_acc_0_epoch={accuracy:.3f}, "
            f"val/loss_1_epoch=3.104, val/full_acc_1_epoch=0.351, val/cond_acc_1_epoch=0.624, "
            f"val/loss_epoch=5.485, epoch={epoch}"
        )
        self.say(f"Validation epoch {epoch + 1}/{self.arguments.epochs} completed")

    def obey(self, command: str, epoch: int) -> None:
        if command == "validate":
            self.validate(epoch)
        elif command == "block" and self.rank == 1:
            with (self.arguments.control / "fifo").open("rb") as fifo:
                fifo.read()
        elif command == "spin" and self.rank == 1:
            while not self.released:
                pass
            self.released = False
        elif command == "fail" and self.rank == 1:
            message = "the data went missing"
            raise RuntimeError(message)

    def run(self) -> None:
        for epoch in range(self.arguments.epochs):
            self.say(f"Training epoch {epoch + 1}/{self.arguments.epochs} started")
            finishing = False
            for _ in range(self.arguments.steps_per_epoch):
                command = self.command()
                finishing = finishing or command == "finish"
                self.obey(command, epoch)
                self.step(epoch)
            self.say(f"Training epoch {epoch + 1}/{self.arguments.epochs} completed")
            self.save(epoch)
            self.validate(epoch)
            if finishing:
                break


def main() -> None:
    """Train until told to finish."""
    handlers: list[logging.Handler] = [RichHandler()]
    logging.basicConfig(level=logging.INFO, format="%(message)s", datefmt="[%X]", handlers=handlers)
    torch.set_num_threads(1)
    arguments = parse_arguments()
    dist.init_process_group("gloo")
    logger.info(
        "Started distributed with local_rank=%s, world_size=%s", os.environ["LOCAL_RANK"], dist.get_world_size()
    )
    Trainer(arguments).run()
    dist.destroy_process_group()
    if os.environ["RANK"] == "0":
        logger.info("Destroyed distributed process group")
    sys.exit(0)


if __name__ == "__main__":
    main()
