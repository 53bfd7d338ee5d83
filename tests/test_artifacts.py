"""Checkpoint directories by arguments, environment and open files."""

from __future__ import annotations

import pytest

from tables import CWD, process
from training_exporter.runs.artifacts import MAX_DIRECTORIES, CheckpointPlaces, directory, opened, told


class TestTold:
    @pytest.mark.parametrize(
        ("arguments", "expected"),
        [
            ("--output_dir out", f"{CWD}/out"),
            ("--output-dir=out/", f"{CWD}/out"),
            ("--save /ckpt/run1", "/ckpt/run1"),
            ("--save-path ../x/y", "/data/x/y"),
            ("--checkpoint-path=/c/last.ckpt", "/c"),
            ("trainer.default_local_dir=/v", "/v"),
            ("+trainer.default_root_dir='l'", f"{CWD}/l"),
            ("--job.dump_folder ./outputs", f"{CWD}/outputs"),
            ("--out_dir=out-shakespeare", f"{CWD}/out-shakespeare"),
            ("--work-dir w", f"{CWD}/w"),
        ],
    )
    def test_usual_arguments(self, arguments: str, expected: str) -> None:
        """Every usual option, every way to write it, against the working directory."""
        assert told(process(1, 0, f"python train.py {arguments}")) == [expected]

    @pytest.mark.parametrize(
        "arguments",
        [
            "--output_dir s3://bucket/x",
            "--save_dir none",
            "--save 1000",
            "--output_dir --fp16",
            "--output result.json",
            "--load /old",
            "--resume_from_checkpoint /old/checkpoint-5",
            "--output_dir ~/x",
            "--save-path /",
        ],
    )
    def test_what_is_no_directory(self, arguments: str) -> None:
        """Object stores, switches, numbers, files, sources of weights, other people's home directories."""
        assert told(process(1, 0, f"python train.py {arguments}")) == []

    def test_the_most_telling_first(self) -> None:
        """An option named after checkpoints comes before a general one, the environment last."""
        environment = {"SM_MODEL_DIR": "/opt/ml/model"}
        found = told(process(1, 0, "python t.py --output_dir o --checkpoint-dir c", environment=environment))
        assert found == [f"{CWD}/c", f"{CWD}/o", "/opt/ml/model"]

    def test_no_working_directory(self) -> None:
        """A relative path means nothing without one."""
        assert directory("out", None) is None


class TestOpened:
    @pytest.mark.parametrize(
        ("path", "expected"),
        [
            ("/o/checkpoint-500/model-00001-of-2.safetensors", "/o"),
            ("/o/tmp-checkpoint-500/optimizer.pt", "/o"),
            ("/o/global_step7/mp_rank_00_model_states.pt", "/o"),
            ("/o/iter_0000100/mp_rank_00/model_optim_rng.pt", "/o"),
            ("/o/global_step_10/actor/model_world_size_8_rank_0.pt", "/o"),
            ("/o/step-100/__0_0.distcp", "/o"),
            ("/o/last.ckpt.tmp", "/o"),
            ("/o/epoch=3-step=10.ckpt", "/o"),
        ],
    )
    def test_the_directory_that_holds_them(self, path: str, expected: str) -> None:
        """A file of a checkpoint leads to where the checkpoints stand."""
        assert opened(process(1, 0, "x", open_files=(path,))) == [expected]

    def test_other_files(self) -> None:
        """Logs, events and caches are no checkpoints."""
        files = ("/o/train.log", "/o/events.out.tfevents.1.x", "/c/x.json", "/model.pt")
        assert opened(process(1, 0, "x", open_files=files)) == []


class TestCheckpointPlaces:
    def test_what_was_open_once_is_kept(self) -> None:
        """A checkpoint is open only while it is written."""
        places = CheckpointPlaces()
        head = process(1, 0, "python train.py")
        writing = process(1, 0, "python train.py", open_files=("/o/checkpoint-5/model.safetensors",))
        places.find("r", [writing])
        assert [(target.path, target.uid) for target in places.find("r", [head])] == [("/o", 1000)]

    def test_a_root_that_is_gone(self) -> None:
        """Once the process that had the file open ended, its peer's view of the container is used."""
        places = CheckpointPlaces()
        writer = process(1, 0, "python t.py", root="/proc/1/root", open_files=("/o/checkpoint-5/a.pt",))
        places.find("r", [writer])
        (target,) = places.find("r", [process(2, 0, "python t.py", root="/proc/2/root")])
        assert (target.path, target.root) == ("/o", "/proc/2/root")

    def test_nothing_twice(self) -> None:
        """What lies below a directory that was told is found there."""
        head = process(1, 0, "python train.py --output_dir /o", open_files=("/o/sub/x.pt",))
        assert [target.path for target in CheckpointPlaces().find("r", [head, head])] == ["/o"]

    def test_bounded(self) -> None:
        """A process that opens files everywhere does not make the scan grow."""
        head = process(1, 0, "python train.py", open_files=tuple(f"/d{n}x/a.pt" for n in range(100)))
        assert len(CheckpointPlaces().find("r", [head])) == MAX_DIRECTORIES

    def test_through_the_root_of_a_container(self) -> None:
        """The directory is that of the process that was told."""
        head = process(1, 0, "python train.py --save out", root="/proc/1/root")
        (target,) = CheckpointPlaces().find("r", [head])
        assert (target.path, target.root) == (f"{CWD}/out", "/proc/1/root")
