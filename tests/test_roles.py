"""What a single process can be taken for."""

from __future__ import annotations

import pytest

from tables import process
from training_exporter.runs import roles


class TestUncounted:
    @pytest.mark.parametrize(
        "command",
        [
            "wandb-core --port-filename x",
            "gpu_stats --portfile x",
            "python3 /usr/bin/tensorboard --logdir runs",
            "python3 -m tensorboard.main --logdir runs",
            "/venv/ray/core/src/ray/raylet/raylet --x",
            "python3 -u /venv/site-packages/ray/dashboard/agent.py --x",
            "python3 /venv/site-packages/ray/_private/log_monitor.py",
            "ray::IDLE",
            "nvidia-smi dmon",
            "py-spy record --pid 1",
            "nvitop-exporter --port 1",
            "dcgm-exporter",
            "/usr/bin/prometheus-node-exporter",
            "python3 /usr/bin/training-exporter serve",
            "python3 -m training_exporter",
        ],
    )
    def test_companions(self, command: str) -> None:
        """Trackers, Ray's services, profilers, GPU tools and exporters, by name or by program."""
        assert roles.is_uncounted(process(1, 0, command))

    @pytest.mark.parametrize(
        "command",
        [
            "python3 wandb_train.py",
            "python3 tensorboard_demo.py",
            "python3 train_prometheus.py",
            "python3 comet_ml_train.py",
            "python3 train.py --wandb",
            "ray::WorkerDict.update",
            "watchdog-trainer",
            "python3 -m perf_train",
        ],
    )
    def test_a_name_that_only_begins_alike(self, command: str) -> None:
        """A training script may be called after its tracker."""
        assert not roles.is_uncounted(process(1, 0, command))


class TestLooksLikeTraining:
    @pytest.mark.parametrize(
        ("command", "expected"),
        [
            ("python train.py", True),
            ("python scripts/run_sft.py", True),
            ("python -m verl.trainer.main_ppo", True),
            ("python finetune-lora.py", True),
            ("python dpo.py", True),
            ("python /home/u/training/serve.py", False),
            ("python main.py", False),
            ("python -c 'import train'", False),
            ("python main.py --num-epochs 3", True),
            ("python main.py trainer.max_epochs=3", True),
            ("python -m server --batch-size 4", False),
            ("vim train.py", False),
        ],
    )
    def test_by_the_script(self, command: str, expected: bool) -> None:
        """The script's own name counts, not its directory, and what it is told; and only if Python runs it."""
        assert roles.looks_like_training(process(1, 0, command)) is expected


class TestRankNumber:
    @pytest.mark.parametrize(
        ("environment", "expected"),
        [
            ({"RANK": "3", "SLURM_PROCID": "0"}, 3),
            ({"OMPI_COMM_WORLD_RANK": "2"}, 2),
            ({"SLURM_PROCID": "5", "SLURM_STEP_ID": "0"}, 5),
            ({"SLURM_PROCID": "0"}, None),
            ({"RANK": "-1"}, None),
            ({"RANK": "x"}, None),
            ({"RANK": "\u0663"}, None),
            ({}, None),
            (None, None),
        ],
    )
    def test_sources(self, environment: dict[str, str] | None, expected: int | None) -> None:
        """RANK before MPI before Slurm; a batch script's SLURM_PROCID and text that is no number say nothing."""
        assert roles.rank_number(environment) == expected
