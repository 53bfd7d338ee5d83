"""What the series of a scrape show of GPUs that train, validate, hang in a collective or work for a moment only."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from nodes import REST, SPINS, TRAINS, World
from training_exporter.metrics import families

GPUS = 4
IDLE_WATTS = 62.0
TRAINING_WATTS = (350.0, 400.0)
VALIDATING_WATTS = (197.0, 279.0)
HANGING_WATTS = 100.0  # of a limit of 600
SCRAPE_SECONDS = 60


def scraped(world: World, name: str) -> dict[str, float]:
    """The values of one GPU metric by GPU, as a scrape now would give them."""
    return {
        sample.labels["gpu"]: sample.value
        for family in families(world.view)
        for sample in family.samples
        if sample.name == name
    }


def draw(
    world: World, seconds: int, watts: tuple[float, float], numbers: random.Random, *, steps: bool
) -> Iterator[None]:
    """Let time pass, each GPU at a power of its own every second; yields after each."""
    for second in range(seconds):
        for load in world.loads:
            load.watts = numbers.uniform(*watts)
        printed = steps and second % 10 == 9
        world.pass_time(1, every=1 if printed else 0.0, first=second + 1)
        yield


def drain(seconds: Iterator[None]) -> None:
    """Let all of it pass."""
    for _ in seconds:
        pass


@pytest.fixture
def trained() -> World:
    """A node whose run loaded its model, rested for a while and then trained for ten minutes."""
    world = World(ranks=GPUS)
    world.all(TRAINS, watts=150.0)
    world.pass_time(5)
    world.all(REST, watts=IDLE_WATTS)
    world.pass_time(60)
    world.all(TRAINS)
    drain(draw(world, 600, TRAINING_WATTS, random.Random(1), steps=True))  # noqa: S311  no secret
    return world


class TestStory:
    def test_effort_while_training(self, trained: World) -> None:
        """About 1 by definition."""
        efforts = scraped(trained, "training_gpu_effort_ratio")
        assert efforts == pytest.approx(dict.fromkeys(map(str, range(GPUS)), 1.0), abs=0.1)

    def test_effort_while_validating_at_0_percent(self, trained: World) -> None:
        """Between 0.35 and 0.80 at every moment, and the run is alive by it: rest is not learnt from such power."""
        trained.all(REST)
        for second, _ in enumerate(draw(trained, 900, VALIDATING_WATTS, random.Random(2), steps=False)):  # noqa: S311
            efforts = scraped(trained, "training_gpu_effort_ratio").values()
            if second >= 5:  # a mean of the last five
                assert len(efforts) == GPUS
                assert all(0.35 <= effort <= 0.80 for effort in efforts), (second, efforts)
        assert set(scraped(trained, "training_gpu_utilization_ratio").values()) == {0.0}

    def test_a_hanging_collective_is_busy_and_does_not_work(self, trained: World) -> None:
        """100 % at 100 W: every second is busy, none is worked."""
        trained.all(SPINS, watts=HANGING_WATTS)
        trained.pass_time(2)
        busy, working = (scraped(trained, f"training_gpu_{kind}_seconds_total") for kind in ("busy", "working"))
        trained.pass_time(SCRAPE_SECONDS)
        assert scraped(trained, "training_gpu_busy_seconds_total") == pytest.approx(
            {gpu: value + SCRAPE_SECONDS for gpu, value in busy.items()}
        )
        assert scraped(trained, "training_gpu_working_seconds_total") == working

    def test_so_it_is_before_anything_was_learnt(self) -> None:
        """Then by the memory controller, which a waiting collective leaves alone."""
        world = World(ranks=GPUS)
        world.all(SPINS, watts=HANGING_WATTS)
        world.pass_time(SCRAPE_SECONDS)
        assert scraped(world, "training_gpu_effort_ratio") == {}
        assert set(scraped(world, "training_gpu_working_seconds_total").values()) == {0.0}
        assert min(scraped(world, "training_gpu_busy_seconds_total").values()) > SCRAPE_SECONDS - 5


class TestBurst:
    @pytest.mark.parametrize("seconds", [1, 3])
    def test_is_in_the_counter_of_the_next_scrape(self, trained: World, seconds: int) -> None:
        """A scrape a minute sees every second of work in between, though the gauges show none of it."""
        trained.all(REST, watts=IDLE_WATTS)
        trained.pass_time(20)
        before = scraped(trained, "training_gpu_working_seconds_total")
        trained.pass_time(20)
        trained.all(TRAINS, utilization=1.0)
        trained.pass_time(seconds)
        trained.all(REST, watts=IDLE_WATTS)
        trained.pass_time(SCRAPE_SECONDS - 20 - seconds)
        after = scraped(trained, "training_gpu_working_seconds_total")
        assert {gpu: after[gpu] - before[gpu] for gpu in after} == pytest.approx(dict.fromkeys(after, seconds))
        assert set(scraped(trained, "training_gpu_utilization_ratio").values()) == {0.0}
