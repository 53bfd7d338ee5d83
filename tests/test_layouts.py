"""`runs.layouts`: which checkpoints in a directory are whole, told from real files that are written step by step."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from fakes import FakeClock
from training_exporter.model import CheckpointTarget
from training_exporter.runs.layouts import Checkpoint, Judgement, judge, marker_text, writing_order
from training_exporter.runs.shards import shards_complete
from training_exporter.sources.directory_scan import DirectoryScanner

LOOK_SECONDS = 10.0
WRITE_SECONDS = 20.0
HOUR_LOOKS = 40  # of 100 s each


@dataclass
class Site:
    """A checkpoint directory on disk, looked at on a driven clock."""

    root: Path
    clock: FakeClock = field(default_factory=FakeClock)
    judgement: Judgement | None = None

    def __post_init__(self) -> None:
        self.root.mkdir(exist_ok=True)
        self._scanner = DirectoryScanner(CheckpointTarget("run", str(self.root)), self.clock)

    def write(self, path: str, size: int = 1000, text: str | None = None) -> None:
        """Write a file now, on the driven clock."""
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text) if text is not None else file.write_bytes(b"x" * size)
        self.touch(path)

    def touch(self, path: str) -> None:
        """Give a file the time of the driven clock."""
        os.utime(self.root / path, (self.clock.now(), self.clock.now()))

    def look(self, after: float = LOOK_SECONDS) -> dict[str, Checkpoint]:
        """Let time pass and look; what stands there by name."""
        self.clock.advance(after)
        (listing,) = self._scanner.scan()
        self.judgement = judge(listing, self.judgement)
        return {checkpoint.name: checkpoint for checkpoint in self.judgement.checkpoints}

    def complete(self, after: float = LOOK_SECONDS) -> set[str]:
        """Names of what is whole after some time."""
        return {name for name, checkpoint in self.look(after).items() if checkpoint.complete}


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """An empty directory."""
    return Site(tmp_path / "output")


@dataclass(frozen=True)
class Save:
    """One save as a framework makes it: files in the order of its writer, the marker last."""

    name: str
    files: tuple[str, ...]
    step: int | None
    text: str | None = None  # of a marker that names the checkpoint
    enough: int = 1  # so many files from the end may be missing and what is there can still be used


SAVES = {
    "speculators": Save(
        "3",
        (
            "3/config.json",
            "3/model.safetensors",
            "3/optimizer_state_dict.pt",
            "3/train_command.txt",
            "3/scheduler_state_dict.pt",
            "3/training_state.json",
        ),
        None,
        enough=3,  # a save of the best has no training_state.json
    ),
    "speculators-0.5": Save(
        "3", ("3/model.safetensors", "3/optimizer_state_dict.pt", "3/scheduler_state_dict.pt"), None
    ),
    "hf": Save(
        "checkpoint-1500",
        (
            "checkpoint-1500/config.json",
            "checkpoint-1500/model-00001-of-00002.safetensors",
            "checkpoint-1500/model-00002-of-00002.safetensors",
            "checkpoint-1500/model.safetensors.index.json",
            "checkpoint-1500/tokenizer.json",
            "checkpoint-1500/training_args.bin",
            "checkpoint-1500/optimizer.pt",
            "checkpoint-1500/scheduler.pt",
            "checkpoint-1500/rng_state_0.pth",
            "checkpoint-1500/trainer_state.json",
        ),
        1500,
    ),
    "hf-peft": Save(
        "checkpoint-20",
        (
            "checkpoint-20/adapter_model.safetensors",
            "checkpoint-20/adapter_config.json",
            "checkpoint-20/optimizer.pt",
            "checkpoint-20/trainer_state.json",
        ),
        20,
    ),
    "hf-deepspeed": Save(
        "checkpoint-20",
        (
            "checkpoint-20/model.safetensors",
            "checkpoint-20/global_step20/mp_rank_00_model_states.pt",
            "checkpoint-20/global_step20/zero_pp_rank_0_mp_rank_00_optim_states.pt",
            "checkpoint-20/latest",
            "checkpoint-20/trainer_state.json",
        ),
        20,
    ),
    "accelerate": Save(
        "checkpoint_7",
        (
            "checkpoint_7/model.safetensors",
            "checkpoint_7/optimizer.bin",
            "checkpoint_7/scheduler.bin",
            "checkpoint_7/sampler.bin",
            "checkpoint_7/random_states_0.pkl",
        ),
        None,
    ),
    "diffusers": Save(
        "checkpoint-500",
        (
            "checkpoint-500/unet/config.json",
            "checkpoint-500/unet/diffusion_pytorch_model.safetensors",
            "checkpoint-500/optimizer.bin",
            "checkpoint-500/scheduler.bin",
            "checkpoint-500/random_states_0.pkl",
        ),
        500,
    ),
    "deepspeed": Save(
        "global_step100",
        (
            "global_step100/mp_rank_00_model_states.pt",
            "global_step100/bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt",
            "global_step100/bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt",
            "latest",
        ),
        100,
        text="global_step100",
    ),
    "megatron": Save(
        "iter_0000600",
        (
            "iter_0000600/common.pt",
            "iter_0000600/__0_0.distcp",
            "iter_0000600/__1_0.distcp",
            "iter_0000600/.metadata",
            "iter_0000600/metadata.json",
            "latest_checkpointed_iteration.txt",
        ),
        600,
        text="600",
    ),
    "megatron-torch": Save(
        "iter_0000600",
        (
            "iter_0000600/mp_rank_00_000/model_optim_rng.pt",
            "iter_0000600/mp_rank_01_000/model_optim_rng.pt",
            "latest_checkpointed_iteration.txt",
        ),
        600,
        text="600",
    ),
    "dcp": Save("mine", ("mine/__0_0.distcp", "mine/__1_0.distcp", "mine/.metadata"), None),
    "torchtitan": Save(
        "step-2000",
        ("checkpoint/step-2000/__0_0.distcp", "checkpoint/step-2000/__1_0.distcp", "checkpoint/step-2000/.metadata"),
        2000,
    ),
    "lightning-folder": Save(
        "epoch=0-step=250.ckpt",
        (
            "lightning_logs/version_0/checkpoints/epoch=0-step=250.ckpt/__0_0.distcp",
            "lightning_logs/version_0/checkpoints/epoch=0-step=250.ckpt/.metadata",
            "lightning_logs/version_0/checkpoints/epoch=0-step=250.ckpt/meta.pt",
        ),
        250,
    ),
    "olmo-core": Save(
        "step500",
        ("step500/train/rank0.pt", "step500/model_and_optim/.metadata", "step500/.metadata.json"),
        500,
    ),
    "specforge": Save(
        "eagle3-step800",
        ("eagle3-step800/training_state_rank0.pt", "eagle3-step800/training_state.pt", "eagle3-latest"),
        800,
    ),
    "mmengine": Save("iter_2000.pth", ("iter_2000.pth", "last_checkpoint"), 2000, text="/out/iter_2000.pth", enough=2),
    "detectron2": Save(
        "model_0004999.pth", ("model_0004999.pth", "last_checkpoint"), 4999, text="model_0004999.pth", enough=2
    ),
}
MARKED = [pytest.param(save, id=name) for name, save in SAVES.items()]


def put(site: Site, save: Save, path: str) -> None:
    """Write one file of a save to its end."""
    if path.endswith("-latest"):
        (site.root / path).unlink(missing_ok=True)
        (site.root / path).symlink_to(save.name)
        os.utime(site.root / path, (site.clock.now(), site.clock.now()), follow_symlinks=False)
    else:
        site.write(path, text=save.text if path == save.files[-1] and save.text else None)


class TestMarkedLayouts:
    @pytest.mark.parametrize("save", MARKED)
    def test_is_complete_with_its_marker_and_not_before(self, site: Site, save: Save) -> None:
        """Every file written in order, half and whole: complete only with the last, whose time is the age."""
        for path in save.files[:-1]:
            site.write(path, 500)
            assert site.complete(WRITE_SECONDS) == set()
            put(site, save, path)
            assert site.complete(WRITE_SECONDS) == set()
        put(site, save, save.files[-1])
        marked = site.clock.now()
        checkpoint = site.look()[save.name]
        assert (checkpoint.complete, checkpoint.step, checkpoint.wall_seconds) == (True, save.step, marked)

    @pytest.mark.parametrize("save", MARKED)
    def test_what_was_left_half_written_never_is(self, tmp_path: Path, save: Save) -> None:
        """A writer that dies at any file, or in the middle of one, leaves nothing that counts, however long it lies."""
        for count in range(1, len(save.files) + 1 - save.enough):
            for whole in (False, True):
                site = Site(tmp_path / f"{count}{whole}")
                for path in save.files[: count - 1]:
                    put(site, save, path)
                site.write(save.files[count - 1], 1000 if whole else 500)
                found = [site.complete(100) for _ in range(HOUR_LOOKS)]
                assert found == [set()] * HOUR_LOOKS, save.files[count - 1]

    @pytest.mark.parametrize("save", [param for param in MARKED if param.id not in {"mmengine", "detectron2"}])
    def test_an_old_marker_says_nothing_about_new_data(self, site: Site, save: Save) -> None:
        """Overwritten in place: from the first new byte until the new marker it is not complete."""
        for path in save.files:
            put(site, save, path)
        assert site.complete() == {save.name}
        site.clock.advance(1800)
        for path in save.files[:-1]:
            site.write(path, 500)
            assert site.complete(WRITE_SECONDS) == set()
        assert [site.complete(100) for _ in range(HOUR_LOOKS)] == [set()] * HOUR_LOOKS
        for path in save.files:
            put(site, save, path)
        assert site.complete() == {save.name}

    @pytest.mark.parametrize("save", MARKED)
    def test_is_complete_at_the_first_look(self, site: Site, save: Save) -> None:
        """What a marker vouches for needs no second look, so that a start of the exporter hides nothing."""
        for path in save.files:
            put(site, save, path)
            site.clock.advance(WRITE_SECONDS)
        assert site.complete() == {save.name}
        assert not site.look()[save.name].changed

    @pytest.mark.parametrize("save", MARKED)
    def test_being_deleted_is_not_complete(self, site: Site, save: Save) -> None:
        """Rotation removes the data first or last; with one file gone the marker vouches for nothing."""
        for path in save.files:
            put(site, save, path)
        site.look()
        (site.root / save.files[0]).unlink()
        assert site.complete() == set()
        assert site.complete() == set()

    def test_an_empty_marker_is_none_yet(self, site: Site) -> None:
        """Between its creation and its first byte the marker says nothing."""
        site.write("checkpoint-1/model.safetensors")
        site.write("checkpoint-1/trainer_state.json", 0)
        assert site.complete() == set()

    def test_weights_soon_after_the_marker_are_the_next_save(self, site: Site) -> None:
        """Only files that other ranks write may follow the marker; new weights may not, however soon they come."""
        for file in SAVES["hf-peft"].files:
            put(site, SAVES["hf-peft"], file)
        site.clock.advance(30)
        site.write("checkpoint-20/adapter_model.safetensors", 500)
        assert [site.complete(100) for _ in range(4)] == [set()] * 4

    def test_a_missing_shard_outweighs_the_marker(self, site: Site) -> None:
        """A marker beside one of two shards vouches for nothing."""
        site.write("checkpoint-1/model-00001-of-00002.safetensors")
        site.write("checkpoint-1/trainer_state.json")
        assert [site.complete(100) for _ in range(4)] == [set()] * 4


class TestSpeculators:
    def save(self, site: Site, name: str, *, state: bool = True) -> None:
        """One save of version 0.7."""
        for file in SAVES["speculators"].files[: None if state else -1]:
            site.write(file.replace("3/", f"{name}/"))
            site.clock.advance(1)

    def test_interrupted_without_a_state_is_complete_once_stable(self, site: Site) -> None:
        """A save on SIGTERM has no training_state.json; its last file and a minute of rest must do."""
        self.save(site, "interrupted", state=False)
        assert [site.complete(20) for _ in range(5)] == [set(), set(), set(), {"interrupted"}, {"interrupted"}]

    def test_interrupted_twice_and_killed_is_not(self, site: Site) -> None:
        """New weights beside the last files of the interruption before: half-written, at rest or not."""
        self.save(site, "interrupted", state=False)
        site.clock.advance(500)
        site.write("interrupted/model.safetensors", 1200)
        assert [site.complete(100) for _ in range(4)] == [set()] * 4

    def test_links_are_no_checkpoints_but_tell_the_step(self, site: Site) -> None:
        """checkpoint_best and epoch0_step420 point at 0: one checkpoint, of step 420."""
        self.save(site, "0")
        for link in ("checkpoint_best", "epoch0_step420"):
            (site.root / link).symlink_to("0")
        found = site.look()
        assert {name: checkpoint.step for name, checkpoint in found.items()} == {"0": 420}
        assert site.judgement is not None
        assert site.judgement.not_checkpoints == ()

    def test_metrics_of_the_validation_come_later(self, site: Site) -> None:
        """val_metrics.json is written after the validation and makes the checkpoint neither younger nor unfinished."""
        self.save(site, "0")
        before = site.look()["0"]
        site.clock.advance(900)
        site.write("0/val_metrics.json", 200)
        after = site.look()["0"]
        assert (after.complete, after.wall_seconds) == (True, before.wall_seconds)

    def test_epoch_folders_sort_by_number(self, site: Site) -> None:
        """9 comes before 10, and an epoch is no step."""
        for name in ("9", "10"):
            self.save(site, name)
        found = site.look()
        assert max(found.values(), key=lambda checkpoint: checkpoint.key).name == "10"
        assert [found[name].order for name in ("9", "10")] == [9, 10]
        assert found["10"].step is None

    def test_the_story(self, site: Site) -> None:
        """A directory that holds only train_config.json has no checkpoint, and that file is named."""
        site.write("train_config.json")
        assert site.look() == {}
        assert site.judgement == Judgement(not_checkpoints=("train_config.json",))


class TestStableFiles:
    @pytest.mark.parametrize(
        ("name", "step"),
        [
            ("ckpt.pt", None),
            ("epoch=0-step=250.ckpt", 250),
            ("last.ckpt", None),
            ("checkpoint_1_500.pt", 500),
            ("checkpoint12.pt", None),
            ("checkpoint-3.pth.tar", None),
            ("epoch_3.pth", None),
            ("ep2-ba800-rank0.pt", 800),
            ("model_step_1200.pt", 1200),
            ("model.keras", None),
            ("weights/last.pt", None),
            ("model.safetensors", None),
        ],
    )
    def test_is_complete_after_a_minute_of_rest(self, site: Site, name: str, step: int | None) -> None:
        """A single file that grows is not complete; two looks and 60 s without a change make it so."""
        found = []
        site.look()
        for size in (100, 200, 300):
            site.write(name, size)
            written = site.clock.now()
            found.append(site.complete(50))
        assert found == [set(), set(), set()]
        assert [bool(site.complete(20)) for _ in range(5)] == [False, False, True, True, True]
        (checkpoint,) = site.look().values()
        assert (checkpoint.step, checkpoint.wall_seconds, checkpoint.bytes) == (step, written, 300)

    def test_rewritten_in_place_starts_anew(self, site: Site) -> None:
        """The same name and size with a new time is a new save, incomplete until it rests."""
        site.write("ckpt.pt")
        site.look()
        assert site.complete(60) == {"ckpt.pt"}
        site.write("ckpt.pt")
        assert [site.complete(30) for _ in range(3)] == [set(), set(), {"ckpt.pt"}]

    def test_a_file_server_whose_clock_is_behind(self, site: Site) -> None:
        """A file that grows under our eyes must rest for a minute of ours, whatever its own time says."""
        site.look()
        for size in (100, 200):
            site.write("ckpt.pt", size)
            os.utime(site.root / "ckpt.pt", (site.clock.now() - 3600, site.clock.now() - 3600))
            site.look()
        assert [site.complete(10) for _ in range(7)] == [set()] * 5 + [{"ckpt.pt"}] * 2

    def test_a_temporary_file_in_the_folder(self, site: Site) -> None:
        """At rest or not, a folder without a marker is not whole while one of its files has a temporary name."""
        site.write("step_700/model.pt")
        site.write("step_700/optim.pt.tmp")
        assert [site.complete(100) for _ in range(4)] == [set()] * 4
        (site.root / "step_700/optim.pt.tmp").rename(site.root / "step_700/optim.pt")
        site.look()
        assert site.complete(100) == {"step_700"}

    def test_an_old_file_needs_two_looks_only(self, site: Site) -> None:
        """What lay there for ten minutes at the first look is complete at the second, for a short `status`."""
        site.write("ckpt.pt")
        assert [site.complete(after) for after in (700, 5)] == [set(), {"ckpt.pt"}]

    @pytest.mark.parametrize(
        "name",
        [
            "ckpt.pt.tmp",
            "tmp.pth.tar",
            "model.safetensors.part",
            "tmp-checkpoint-500/trainer_state.json",
            "step500-tmp/.metadata.json",
            "100.orbax-checkpoint-tmp/_CHECKPOINT_METADATA",
            "_tmp_save/step_5.pt",
        ],
    )
    def test_a_temporary_name_is_never_complete(self, site: Site, name: str) -> None:
        """Until the rename, however long it takes; but its bytes are seen."""
        site.write(name)
        site.write(f"{Path(name).parent}/model.safetensors.tmp" if "/" in name else name)
        assert [site.complete(100) for _ in range(HOUR_LOOKS)] == [set()] * HOUR_LOOKS
        assert sum(checkpoint.bytes for checkpoint in site.look().values()) >= 1000

    def test_a_rename_makes_it_complete(self, site: Site) -> None:
        """Transformers 4.36 to 4.38 wrote into tmp-checkpoint-<step> and renamed that."""
        for file in ("model.safetensors", "optimizer.pt", "trainer_state.json"):
            site.write(f"tmp-checkpoint-500/{file}")
        assert site.complete() == set()
        (site.root / "tmp-checkpoint-500").rename(site.root / "checkpoint-500")
        assert site.complete() == {"checkpoint-500"}


class TestOtherLayouts:
    @pytest.mark.parametrize(
        ("files", "name", "layout", "step"),
        [
            (["epoch_1/model-00001-of-00001.safetensors", "epoch_1/recipe_state.pt"], "epoch_1", "torchtune", None),
            (["global_step_10/actor/model_world_size_1_rank_0.pt"], "global_step_10", "verl", 10),
            (["300/items/manifest.ocdbt", "300/_CHECKPOINT_METADATA"], "300", "orbax", 300),
            (["m--step=99-consumed_samples=640.0-last/weights/x.distcp"], None, "nemo", 99),
            (["step-00000200/lit_model.pth", "step-00000200/model_config.yaml"], "step-00000200", "litgpt", 200),
            (["state_3/pytorch_model.bin", "state_3/config.json"], "state_3", "eagle", None),
            (["epoch_1_step_900/training_state.pt", "epoch_1_step_900/model.safetensors"], None, "specforge", 900),
            (["ep0-ba500/__0_0.distcp", "ep0-ba500/.metadata"], "ep0-ba500", "dcp", 500),
            (["step_700/model.pt", "step_700/optim.pt"], "step_700", "folder", 700),
            (["final/model.safetensors", "final/config.json"], "final", "weights", None),
        ],
    )
    def test_is_found_and_complete_once_at_rest(
        self, site: Site, files: list[str], name: str | None, layout: str, step: int | None
    ) -> None:
        """Every further row of the table finds its checkpoint, once."""
        for file in files:
            site.write(file)
        site.look()
        (checkpoint,) = site.look(90).values()
        assert (checkpoint.layout, checkpoint.step, checkpoint.complete) == (layout, step, True)
        assert checkpoint.name == (name or files[0].split("/", maxsplit=1)[0])

    def test_nemo_waits_for_its_marker_to_go(self, site: Site) -> None:
        """`<name>-unfinished` stands beside the checkpoint from the first byte to the last."""
        site.write("m-step=99-last-unfinished", 0)
        site.write("m-step=99-last/weights/x.distcp")
        assert [site.complete(100) for _ in range(4)] == [set()] * 4
        (site.root / "m-step=99-last-unfinished").unlink()
        assert site.complete() == {"m-step=99-last"}


class TestSeveral:
    def test_an_older_one_stays_complete_when_the_marker_moves_on(self, site: Site) -> None:
        """DeepSpeed's `latest` names one; an older one of the same make counts too, a half-written one does not."""
        for step, size in ((100, 1000), (200, 400), (300, 1000)):
            site.write(f"global_step{step}/mp_rank_00_model_states.pt", size)
            site.write(f"global_step{step}/zero_pp_rank_0_mp_rank_00_optim_states.pt", size)
            site.clock.advance(300)
        site.write("latest", text="global_step300\n")
        site.look()
        assert site.complete(90) == {"global_step100", "global_step300"}

    def test_a_higher_number_than_the_marker_names_is_not(self, site: Site) -> None:
        """Left over from before a rollback, or never finished: `latest` would name it if it were whole."""
        for step in (400, 300):
            site.write(f"global_step{step}/mp_rank_00_model_states.pt")
            site.clock.advance(300)
        site.write("latest", text="global_step300")
        site.look()
        assert site.complete(90) == {"global_step300"}

    def test_the_name_of_the_directory_is_no_sign(self, tmp_path: Path) -> None:
        """Files in a directory that happens to be called like a checkpoint are checkpoints each."""
        site = Site(tmp_path / "ablation_step_5")
        for name in ("a.pt", "b.pt"):
            site.write(name)
        site.look()
        assert site.complete(90) == {"a.pt", "b.pt"}

    def test_a_slow_rank_may_write_after_the_marker(self, site: Site) -> None:
        """DeepSpeed's rank 0 writes `latest` before the last barrier; a shard a moment later is still of that save."""
        for file in SAVES["deepspeed"].files:
            put(site, SAVES["deepspeed"], file)
        site.clock.advance(15)
        site.write("global_step100/bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt", 1200)
        assert [site.complete(30) for _ in range(4)] == [set(), set(), {"global_step100"}, {"global_step100"}]

    def test_a_marker_that_cannot_be_read_names_the_newest_at_best(self, site: Site) -> None:
        """Without the text of `latest` no other than the highest number can be meant."""
        for step in (100, 200):
            site.write(f"global_step{step}/mp_rank_00_model_states.pt")
        site.write("latest", 2000)  # too long to be a tag, so it is not read
        assert site.complete() == {"global_step200"}

    def test_the_final_model_beside_the_checkpoints(self, site: Site) -> None:
        """The Trainer's root folder holds the final model; logs and event files beside it are none of it."""
        for file in SAVES["hf"].files:
            site.write(file)
        for file in (
            "config.json",
            "model.safetensors",
            "training_args.bin",
            "train.log",
            "runs/events.out.tfevents.1",
        ):
            site.write(file)
        site.look()
        assert site.complete(90) == {"checkpoint-1500", "output"}
        assert site.judgement is not None
        assert site.judgement.not_checkpoints == ("runs", "train.log")
        assert site.judgement.event_bytes == 1000
        site.write("train.log", 5000)
        assert site.complete() == {"checkpoint-1500", "output"}

    def test_a_log_inside_a_checkpoint_is_none_of_it(self, site: Site) -> None:
        """Event files and logs in its folder grow on after the save; it neither grows nor becomes unfinished."""
        for file in ("model.safetensors", "trainer_state.json"):
            site.write(f"checkpoint-1/{file}")
        before = site.look()["checkpoint-1"]
        for file in ("events.out.tfevents.1", "train.log", "metrics.jsonl"):
            site.write(f"checkpoint-1/{file}")
        after = site.look()["checkpoint-1"]
        assert (after.complete, after.bytes, after.changed) == (True, before.bytes, False)

    @pytest.mark.parametrize("name", ["hf", "megatron", "dcp", "speculators"])
    def test_a_directory_that_is_a_checkpoint_itself(self, tmp_path: Path, name: str) -> None:
        """The target may be one checkpoint; what would lie beside it cannot be seen, so rest must do there."""
        save = SAVES[name]
        outer = Site(tmp_path / "outer")
        for file in save.files:
            put(outer, save, file)
        inner = Site(outer.root / save.name)
        inner.look()
        (checkpoint,) = inner.look(700).values()
        assert (checkpoint.complete, checkpoint.name, checkpoint.step) == (True, save.name, save.step)

    def test_a_cache_of_tensors_is_no_thousand_checkpoints(self, site: Site) -> None:
        """Hidden states for training are kept as thousands of .pt files in one folder."""
        for number in range(600):
            site.write(f"hidden_states/data_{number}.pt", 10)
        assert site.look() == {}

    def test_a_launcher_log_tree_is_none(self, site: Site) -> None:
        """Torchrun --log-dir makes folders with bare numbers; nothing in them looks like weights."""
        site.write("logs/none_abc/attempt_0/0/stdout.log")
        assert site.look() == {}


class TestShards:
    @pytest.mark.parametrize(
        ("paths", "whole"),
        [
            (["m-00001-of-00002.safetensors"], False),
            (["m-00001-of-00002.safetensors", "m-00002-of-00002.safetensors"], True),
            (["model.safetensors.index.json"], False),
            (["model.safetensors.index.json", "model-00001-of-00001.safetensors"], True),
            (["__0_0.distcp", "__2_0.distcp"], False),
            (["__0_0.distcp", "__0_1.distcp", "__1_0.distcp"], True),
            (["actor/model_world_size_2_rank_1.pt"], False),
            (["actor/model_world_size_2_rank_0.pt", "actor/model_world_size_2_rank_1.pt"], True),
            (["zero_pp_rank_1_mp_rank_00_optim_states.pt"], False),
            (["zero_pp_rank_0_mp_rank_00_model_states.pt", "zero_pp_rank_1_mp_rank_00_model_states.pt"], False),
            (["zero_pp_rank_0_mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_optim_states.pt"], True),
            (["random_states_1.pkl"], False),
            (["anything.pt"], True),
        ],
    )
    def test_every_index_must_be_there(self, paths: list[str], *, whole: bool) -> None:
        """Pieces that say how many they are, are numbered from 0, come in pairs, or are listed in an index."""
        assert shards_complete(paths) is whole


class TestWritingOrder:
    @pytest.mark.parametrize(
        ("layout", "name", "step"),
        [
            ("speculators", "0", None),
            ("hf", "checkpoint-500", 500),
            ("deepspeed", "global_step100", 100),
            ("megatron", "iter_0000600", 600),
            ("dcp", "42000", 42000),
            ("lightning", "epoch=0-step=250.ckpt", 250),
            ("file", "ckpt.pt", None),
        ],
    )
    def test_what_it_lists_is_judged_as_that_layout(self, site: Site, layout: str, name: str, step: int | None) -> None:
        """Written in that order it is whole at the end and at no time before, and has the bytes asked for."""
        files = writing_order(layout, name, 50_000)
        for path, size, _ in files:
            assert site.complete() == set()
            site.write(path, size, marker_text(path, name))
        site.look()
        found = site.look(90)
        assert {key: (item.complete, item.step) for key, item in found.items()} == {name: (True, step)}
        assert sum(size for _, size, _ in files) == 50_000

    def test_an_unknown_layout_is_an_error(self) -> None:
        """The scenario player must not invent one."""
        with pytest.raises(KeyError):
            writing_order("floppy", "a", 1)


class TestRotation:
    def test_removal_leaves_the_others(self, site: Site) -> None:
        """A checkpoint that is deleted is gone from the next look and changes no other."""
        for step in (100, 200):
            for file in SAVES["hf"].files:
                site.write(file.replace("1500", str(step)))
        assert site.complete() == {"checkpoint-100", "checkpoint-200"}
        shutil.rmtree(site.root / "checkpoint-100")
        assert site.complete() == {"checkpoint-200"}
