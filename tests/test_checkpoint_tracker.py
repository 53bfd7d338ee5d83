"""`runs.checkpoints`: what grew, what was completed and how often, told from listings on a driven clock."""

from __future__ import annotations

from dataclasses import replace

from training_exporter.model import CheckpointTarget, DirectoryListing, FileEntry
from training_exporter.runs.checkpoints import ABANDONED_SECONDS, CheckpointTracker
from training_exporter.runs.layouts import marker_text, writing_order
from training_exporter.runs.view import CheckpointView

START_SECONDS = 1_700_000_000.0


class Disk:
    """Directories as a tracker is shown them: files with a size and a time, and a clock."""

    def __init__(self, tracker: CheckpointTracker, path: str = "/out", shift_seconds: float = 0.0) -> None:
        self.tracker = tracker
        self.path = path
        self.now = START_SECONDS
        self.shift_seconds = shift_seconds  # the wall clock, and the file system's, before the steady one
        self.files: dict[str, FileEntry] = {}

    @property
    def wall(self) -> float:
        """What the file system's clock says."""
        return self.now + self.shift_seconds

    def write(self, path: str, size: int = 1000, text: str | None = None) -> None:
        """Write a file now."""
        self.files[path] = FileEntry(path, size, self.wall, text=text)

    def save(self, name: str, layout: str = "hf", total: int = 100_000, each: float = 10) -> None:
        """A whole save, looked at after every file."""
        for path, size, _ in writing_order(layout, name, total):
            self.write(path, size, marker_text(path, name))
            self.look(each)

    def listing(self, **changes: object) -> DirectoryListing:
        """What stands there now."""
        target = CheckpointTarget("run", self.path)
        listing = DirectoryListing(target, self.now, self.wall, tuple(self.files.values()))
        return replace(listing, **changes)  # type: ignore[arg-type]

    def look(self, after: float = 10, **changes: object) -> CheckpointView | None:
        """Let time pass, show the tracker what stands there, and see what it makes of it."""
        self.now += after
        self.tracker.observe(self.listing(**changes))
        return self.tracker.view(self.now)

    def view(self, after: float = 10) -> CheckpointView:
        """Likewise, where something must be known."""
        view = self.look(after)
        assert view is not None
        return view


class TestView:
    def test_nothing_is_known_before_the_first_listing(self) -> None:
        """No directory, no view; and no signal."""
        tracker = CheckpointTracker()
        assert tracker.view(START_SECONDS) is None
        assert (tracker.readable, tracker.blind, tracker.stuck, tracker.last_growth_seconds) == (
            None,
            False,
            False,
            None,
        )

    def test_a_directory_that_is_not_there_yet_holds_none(self) -> None:
        """Known to be zero, not unknown."""
        disk = Disk(CheckpointTracker())
        view = disk.look(exists=False)
        assert view == CheckpointView(count=0, directories=("/out",))

    def test_the_last_complete_one_is_told(self) -> None:
        """By age, then by number: 10 after 9; with step, bytes and both times."""
        disk = Disk(CheckpointTracker(), shift_seconds=3600.0)
        disk.look()
        for step in (9, 10):
            disk.save(f"checkpoint-{step}", total=100_000 + step)
            marked = disk.now - 10
        view = disk.view()
        assert (view.count, view.last_step, view.last_name, view.last_bytes) == (2, 10, "checkpoint-10", 100_010)
        assert (view.last_seconds, view.last_wall_seconds) == (marked, marked + 3600.0)

    def test_a_time_in_the_future_is_now(self) -> None:
        """A file server's clock ahead of ours makes no checkpoint of tomorrow."""
        disk = Disk(CheckpointTracker())
        disk.files["checkpoint-1/model.safetensors"] = FileEntry("checkpoint-1/model.safetensors", 5, disk.now)
        disk.files["checkpoint-1/trainer_state.json"] = FileEntry("checkpoint-1/trainer_state.json", 5, disk.now + 999)
        view = disk.view()
        assert view.last_seconds == disk.now
        assert view.last_wall_seconds == START_SECONDS + 999

    def test_one_in_progress_counts_its_bytes(self) -> None:
        """While a save is written, its bytes are in progress and the one before it is the last."""
        disk = Disk(CheckpointTracker())
        disk.look()
        disk.save("checkpoint-1")
        disk.write("checkpoint-2/model.safetensors", 300)
        view = disk.view()
        assert (view.in_progress, view.in_progress_bytes, view.last_step, view.count) == (True, 300, 1, 1)
        disk.save("checkpoint-2")
        view = disk.view()
        assert (view.in_progress, view.in_progress_bytes, view.last_step) == (False, None, 2)

    def test_a_left_over_half_is_in_progress_no_more(self) -> None:
        """After minutes without a byte nobody writes it; and at the first look, its own time says so."""
        disk = Disk(CheckpointTracker())
        disk.look()
        disk.write("checkpoint-2/model.safetensors", 300)
        assert disk.view().in_progress
        assert not disk.view(ABANDONED_SECONDS + 1).in_progress
        late = Disk(CheckpointTracker())
        late.files = disk.files
        late.now = disk.now
        assert not late.view().in_progress

    def test_one_directory_in_another_counts_once(self) -> None:
        """Discovery may name the output directory and, from an open file, the checkpoint in it."""
        tracker = CheckpointTracker()
        outer, inner = Disk(tracker), Disk(tracker, "/out/checkpoint-1/")
        outer.look()
        inner.look()
        outer.save("checkpoint-1")
        for path, entry in outer.files.items():
            name = path.removeprefix("checkpoint-1/")
            inner.files[name] = replace(entry, path=name)
        inner.now = outer.now
        assert inner.view().count == 1
        assert tracker.completed_total == 1

    def test_what_is_none_is_named(self) -> None:
        """`status` says what lies there that is no checkpoint."""
        disk = Disk(CheckpointTracker())
        disk.write("train_config.json")
        assert disk.view().not_checkpoints == ("train_config.json",)


class TestGrowth:
    def test_the_first_look_is_no_growth(self) -> None:
        """What stood there before this exporter looked says nothing about now, also once it counts as stable."""
        disk = Disk(CheckpointTracker())
        disk.write("ckpt.pt")
        disk.write("checkpoint-1/trainer_state.json")
        disk.write("checkpoint-1/model.safetensors")
        for _ in range(20):
            disk.look()
        assert disk.view().count == 2
        assert (disk.tracker.last_growth_seconds, disk.tracker.completed_total) == (None, 0)

    def test_growing_bytes_and_completion_are_growth(self) -> None:
        """The time of the last look that found more; rest is none."""
        disk = Disk(CheckpointTracker())
        disk.look()
        disk.write("ckpt.pt", 100)
        disk.look()
        disk.write("ckpt.pt", 200)
        disk.look()
        grown = disk.now
        assert disk.tracker.last_growth_seconds == grown
        disk.look(30)
        assert disk.tracker.last_growth_seconds == grown
        disk.look(30)
        assert (disk.tracker.last_growth_seconds, disk.tracker.completed_total) == (disk.now, 1)

    def test_rewriting_the_same_size_is_growth(self) -> None:
        """A save in place may have the same size at every look; its time moves."""
        disk = Disk(CheckpointTracker())
        disk.write("ckpt.pt")
        disk.look()
        disk.write("ckpt.pt")
        disk.look()
        assert disk.tracker.last_growth_seconds == disk.now

    def test_one_of_step_0_was_written_before_any_training(self) -> None:
        """It completes, and shows no step."""
        disk = Disk(CheckpointTracker())
        disk.look()
        counts = []
        for number in (0, 10):
            disk.save(f"checkpoint-{number}")
            disk.look(60)
            counts.append((disk.tracker.completed_total, disk.tracker.trained_total))
        assert counts == [(1, 0), (2, 1)]

    def test_deletion_is_none(self) -> None:
        """Rotation frees bytes and proves nothing."""
        disk = Disk(CheckpointTracker())
        for step in (1, 2):
            disk.write(f"checkpoint-{step}/model.safetensors")
            disk.write(f"checkpoint-{step}/trainer_state.json")
        disk.look()
        del disk.files["checkpoint-1/model.safetensors"]
        disk.look()
        del disk.files["checkpoint-1/trainer_state.json"]
        assert disk.view().count == 1
        assert disk.tracker.last_growth_seconds is None

    def test_what_a_limit_hid_is_not_new(self) -> None:
        """In a directory too large to list whole, an old checkpoint that comes into sight did not grow."""
        disk = Disk(CheckpointTracker())
        disk.write("checkpoint-2/model.safetensors")
        old = disk.files["checkpoint-2/model.safetensors"]
        disk.look(truncated=True)
        disk.files["a.pt"] = replace(old, path="a.pt", modified_seconds=old.modified_seconds - 5000)
        disk.look(truncated=True)
        assert disk.tracker.last_growth_seconds is None

    def test_event_files_are_told_apart(self) -> None:
        """TensorBoard's files grow like a log: no checkpoint, but life."""
        disk = Disk(CheckpointTracker())
        disk.write("runs/events.out.tfevents.1", 100)
        disk.look()
        assert disk.tracker.event_files_growth_seconds is None
        disk.write("runs/events.out.tfevents.1", 150)
        disk.look()
        assert disk.tracker.event_files_growth_seconds == disk.now
        assert disk.tracker.last_growth_seconds is None

    def test_a_validation_result_beside_it_is_no_second_completion(self) -> None:
        """val_metrics.json changes the folder after the fact."""
        disk = Disk(CheckpointTracker())
        disk.write("0/model.safetensors")
        disk.write("0/training_state.json")
        disk.look()
        disk.write("0/val_metrics.json")
        disk.look()
        assert disk.tracker.completed_total == 0

    def test_the_same_listing_twice_is_one_look(self) -> None:
        """A file is not at rest because its only listing was shown twice."""
        disk = Disk(CheckpointTracker())
        disk.write("ckpt.pt")
        disk.now += 5000
        for _ in range(3):
            assert disk.view(0).count == 0
        assert disk.view(5).count == 1


class TestInterval:
    def test_the_median_of_what_was_seen(self) -> None:
        """Two completions make an interval; one outlier among them does not set it."""
        disk = Disk(CheckpointTracker())
        disk.look()
        for step, pause in enumerate((1000, 1000, 9000, 1000)):
            disk.save(f"checkpoint-{step}")
            assert (disk.view(0).interval_seconds is None) == (step == 0)
            disk.look(pause)
        assert disk.tracker.completed_total == 4
        assert disk.view().interval_seconds == 1100.0

    def test_the_best_beside_the_regular_ones_does_not_halve_it(self) -> None:
        """Each kind of name has its own rhythm; the quickest is typical."""
        disk = Disk(CheckpointTracker())
        disk.look()
        for epoch in range(3):
            disk.write(f"epoch_{epoch}.pth")
            disk.look()
            disk.write("best.pth")
            disk.look(70)
            disk.look(70)
            disk.look(1000)
        assert disk.view().interval_seconds == 1150.0

    def test_what_was_learnt_survives_a_restart(self) -> None:
        """The intervals go into the next tracker."""
        disk = Disk(CheckpointTracker())
        disk.look()
        for step in (1, 2):
            disk.save(f"checkpoint-{step}", each=50)
        assert disk.tracker.intervals == {"hf/checkpoint-#": [500.0]}
        assert CheckpointTracker(disk.tracker.intervals).interval_seconds == 500.0


class TestBlindness:
    def test_a_path_that_stops_answering_is_blind_and_shows_nothing(self) -> None:
        """Never the last good value; what was learnt comes back with the path."""
        disk = Disk(CheckpointTracker())
        disk.look()
        disk.save("checkpoint-1")
        grown = disk.tracker.last_growth_seconds
        assert disk.look(entries=(), readable=False, stuck=True) is None
        assert (disk.tracker.readable, disk.tracker.blind, disk.tracker.stuck) == (False, True, True)
        assert disk.view().count == 1
        assert (disk.tracker.readable, disk.tracker.blind, disk.tracker.stuck) == (True, False, False)
        assert disk.tracker.last_growth_seconds == grown

    def test_one_that_never_could_be_read_is_not_blind(self) -> None:
        """Absent is not blind: nothing was lost."""
        disk = Disk(CheckpointTracker())
        assert disk.look(readable=False, error="Permission denied") is None
        assert (disk.tracker.readable, disk.tracker.blind) == (False, False)

    def test_one_dead_directory_of_two_leaves_the_other(self) -> None:
        """The living one is shown; the run is blind all the same."""
        tracker = CheckpointTracker()
        dead, alive = Disk(tracker, "/dead"), Disk(tracker, "/alive")
        dead.look()
        alive.look()
        dead.look(readable=False, stuck=True)
        assert alive.view().directories == ("/alive",)
        assert (tracker.blind, tracker.stuck) == (True, True)
