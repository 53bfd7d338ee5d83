"""What each source says in a scenario."""

from __future__ import annotations

import random

import pytest

from training_exporter.model import CheckpointTarget, LogTarget, ProcessTable
from training_exporter.scenario.draws import drawer
from training_exporter.scenario.files import CheckpointDirectory
from training_exporter.scenario.gpus import GpuModel
from training_exporter.scenario.load import parse
from training_exporter.scenario.log_lines import LogFile
from training_exporter.scenario.processes import ProcessModel
from training_exporter.scenario.records import Scenario, Segment
from training_exporter.scenario.spawn import Spawner

EPOCH = 1_000_000.0
MIB = 1024 * 1024


def scenario(segments: str, run: str = "") -> Scenario:
    """A scenario with two ranks; `run` is put behind its other words."""
    return parse(
        "example.yaml",
        "name: example\nranks: 2\ngpu: {idle_watts: 60, limit_watts: 600, memory_total_mib: 80000, name: H100}\n"
        f"run: {{name: example-run, script: fit.py{run}}}\nsegments:\n{segments}",
    )


class World:
    """The processes and GPUs of a scenario, advanced by hand."""

    def __init__(self, story: Scenario) -> None:
        self.story = story
        self.second = 0
        spawner = Spawner(story.run, story.ranks, epoch_seconds=EPOCH, directory="/srv/x", log="/srv/x/train.log")
        self.processes = ProcessModel(spawner, visible=True)
        self.gpus = GpuModel(story, self.processes)

    def live(self, number: int, seconds: int = 1) -> ProcessTable:
        """Enter a segment and let it last."""
        segment = self.story.segments[number]
        generator = random.Random(1)  # noqa: S311 - repeatable, not secret
        draws = [drawer(rank, generator) for rank in segment.ranks]
        self.processes.enter(segment, EPOCH + self.second)
        self.gpus.enter(segment)
        for _ in range(seconds):
            self.moments = tuple(draw() for draw in draws)
            self.processes.advance(segment, self.moments, EPOCH + self.second)
            self.gpus.advance(self.moments)
            self.second += 1
        self.segment: Segment = segment
        return self.processes.table(EPOCH + self.second)

    def samples(self) -> tuple:
        return self.gpus.sample(self.segment, self.moments, EPOCH + self.second)


def by_name(table: ProcessTable) -> dict[str, list]:
    """The processes of a table by their names."""
    found: dict[str, list] = {}
    for process in table.processes.values():
        found.setdefault(process.name, []).append(process)
    return found


class TestProcesses:
    def test_a_launcher_and_its_ranks(self) -> None:
        """The table holds a launcher and, as its children, the ranks with what torchrun tells them."""
        found = by_name(World(scenario("  - {for: 1m}")).live(0))
        (launcher,) = found["pt_elastic"]
        ranks = found["python3"]
        assert launcher.command == (
            "python3",
            "/usr/local/bin/torchrun",
            "--nproc-per-node=2",
            "fit.py",
            "--output_dir",
            "output",
        )
        assert [rank.environment["RANK"] for rank in ranks] == ["0", "1"]
        assert {rank.parent_pid for rank in ranks} == {launcher.pid}
        assert launcher.outputs[0].path == "/srv/x/train.log"

    def test_counters_grow_by_the_rates(self) -> None:
        """CPU time, bytes and faults are the rates of the scenario added up; a loader reads for its rank."""
        table = World(
            scenario("  - {for: 1m, cores: {rank: 0.5, loader: 0.25}, read: 1MiB, write: 2KiB, faults: 40}")
        ).live(0, 8)
        found = by_name(table)
        rank, loader = found["python3"][0], found["pt_data_worker"][0]
        assert (rank.cpu_seconds, rank.read_bytes, rank.written_bytes, rank.major_faults) == (4.0, 0, 16384, 320)
        assert (loader.cpu_seconds, loader.read_bytes, loader.parent_pid) == (2.0, 8 * MIB, rank.pid)

    def test_one_that_does_nothing_is_the_same_record(self) -> None:
        """A process without work keeps its counters and its context switches."""
        world = World(scenario("  - {for: 1m, ranks: {0: {state: disk_sleep}}}"))
        before, after = world.live(0), world.live(0)
        pid = by_name(before)["python3"][0].pid
        assert before.processes[pid] is after.processes[pid]
        assert after.processes[pid].state == "disk_sleep"

    def test_gone_with_its_children(self) -> None:
        """A rank that is gone takes its loaders with it; the launcher and the others stay."""
        world = World(scenario("  - {for: 1m, cores: {loader: 1}}\n  - {for: 1m, ranks: {1: {state: gone}}}"))
        world.live(0)
        found = {name: len(processes) for name, processes in by_name(world.live(1)).items()}
        assert found == {"pt_elastic": 1, "python3": 1, "pt_data_worker": 1}

    def test_ranks_without_their_launcher(self) -> None:
        """Ranks that outlive their launcher are children of init."""
        world = World(scenario("  - {for: 1m}\n  - {for: 1m, launcher: gone}"))
        world.live(0)
        assert {rank.parent_pid for rank in world.live(1).processes.values()} == {1}

    def test_restart_replaces_the_workers(self) -> None:
        """A restart has new workers with a count under the same launcher."""
        world = World(scenario("  - {for: 1m}\n  - {for: 1m, restart: true}"))
        first, second = by_name(world.live(0)), by_name(world.live(1))
        assert second["pt_elastic"][0].key == first["pt_elastic"][0].key
        assert not {rank.pid for rank in first["python3"]} & {rank.pid for rank in second["python3"]}
        assert second["python3"][0].environment["TORCHELASTIC_RESTART_COUNT"] == "1"

    def test_a_new_attempt_replaces_everything(self) -> None:
        """After an end the same command comes back under other PIDs, its workers counted from nought."""
        gone = "launcher: gone, ranks: {0: {state: gone}, 1: {state: gone}}"
        world = World(scenario(f"  - {{for: 1m}}\n  - {{for: 1m, {gone}}}\n  - {{for: 1m, attempt: 2}}"))
        first, nothing, second = (world.live(number) for number in range(3))
        assert not nothing.processes
        assert len(second.processes) == 3
        assert not first.processes.keys() & second.processes.keys()

    def test_other_children_live_while_they_are_named(self) -> None:
        """Compilers and named children are there only in the segments that speak of them."""
        world = World(scenario("  - {for: 1m, cores: {other: 2}, children: [{name: vllm, gpu: true}]}\n  - {for: 1m}"))
        assert {"pt_compile", "vllm"} <= by_name(world.live(0)).keys()
        assert by_name(world.live(1)).keys() == {"pt_elastic", "python3"}


class TestGpus:
    def test_one_sample_each(self) -> None:
        """Percent become ratios, MiB bytes and MHz hertz; energy is the power added up."""
        world = World(
            scenario(
                "  - {for: 1m, gpu: {util: 50, mem_util: 25, watts: 300, memory_mib: 1000, sm_mhz: 1410, temp_c: 60}}"
            )
        )
        world.live(0, 10)
        sample = world.samples()[1]
        assert (sample.device.gpu, sample.device.name) == ("1", "H100")
        assert (sample.utilization_ratio, sample.memory_utilization_ratio) == (0.5, 0.25)
        assert (sample.power_watts, sample.energy_joules) == (300, 3000)
        assert (sample.memory_used_bytes, sample.sm_clock_hertz, sample.temperature_celsius) == (1000 * MIB, 1.41e9, 60)

    def test_who_holds_it(self) -> None:
        """The driver lists the rank, its children with a context, and a neighbour with memory of its own."""
        world = World(
            scenario("  - {for: 1m, gpu: {memory_mib: 1000, other_mib: 300}, children: [{name: vllm, gpu: true}]}")
        )
        table = world.live(0)
        sample = world.samples()[0]
        assert [table.processes[holder.pid].name for holder in sample.processes] == ["python3", "vllm", "python3"]
        assert [holder.memory_bytes for holder in sample.processes] == [500 * MIB, 500 * MIB, 300 * MIB]
        assert sample.memory_used_bytes == 1300 * MIB

    @pytest.mark.parametrize("state", ["gone", "zombie"])
    def test_memory_that_nobody_holds(self, state: str) -> None:
        """Memory that is left behind by a dead rank belongs to no process."""
        world = World(scenario(f"  - {{for: 1m, gpu: {{memory_mib: 1000}}, ranks: {{0: {{state: {state}}}}}}}"))
        world.live(0)
        assert world.samples()[0].processes == ()
        assert world.samples()[0].memory_used_bytes == 1000 * MIB

    def test_the_driver_s_own_memory_is_no_context(self) -> None:
        """The few MiB that the driver keeps do not make a rank a holder of its GPU."""
        world = World(scenario("  - {for: 1m, gpu: {memory_mib: 4}}"))
        world.live(0)
        assert world.samples()[0].processes == ()

    def test_an_error_is_told_once(self) -> None:
        """An Xid comes with the first sample after the segment began, and never again."""
        world = World(scenario("  - {for: 1m, ranks: {1: {gpu: {xid: 79, lost: true}}}}"))
        world.live(0)
        first, second = world.samples()[1], world.samples()[1]
        assert ([event.xid for event in first.xids], first.lost, first.power_watts) == ([79], True, None)
        assert (second.xids, second.lost) == ((), True)

    def test_mig_tells_no_work(self) -> None:
        """In MIG mode utilisation is unknown, and memory and holders belong to the instances."""
        world = World(scenario("  - {for: 1m, gpu: {util: 90, memory_mib: 1000}}", run=", mig: true"))
        world.live(0)
        physical, instance = world.samples()[:2]
        assert (physical.utilization_ratio, physical.memory_used_bytes, physical.processes) == (None, None, None)
        assert (instance.device.gpu, instance.device.parent, instance.power_watts) == ("0:0", "0", None)
        assert len(instance.processes) == 1


class TestLog:
    TARGETS = (LogTarget("example-run", "/srv/x/train.log"),)

    def said(self, segments: str, until: float) -> list[tuple[float, str]]:
        log, said = LogFile("/srv/x/train.log", EPOCH), []
        coming = list(scenario(segments).segments)
        for second in range(int(until)):
            while coming and coming[0].start_seconds <= second:
                log.enter(coming.pop(0))
            log.grow(second)
            said += [(second, chunk.data.decode()) for chunk in log.read(self.TARGETS, EPOCH + second) if chunk.data]
        return said

    def test_repeated_lines_count(self) -> None:
        """A repeated line carries its numbers on and ends before the next segment begins."""
        said = self.said(
            '  - {for: 30s, log: [{every: 10s, line: "step {n} loss {x:.1f}",'
            " n: {start: 5, by: 5}, x: {start: 2, by: -0.5}}]}\n"
            '  - {for: 10s, log: [{at: 0s, line: "over"}]}',
            60,
        )
        assert said == [(10, "step 5 loss 2.0\n"), (20, "step 10 loss 1.5\n"), (30, "over\n")]

    def test_the_order_of_the_file_holds(self) -> None:
        """Lines of the same moment come in the order in which the file names them."""
        said = self.said(
            '  - {for: 30s, log: [{every: 20s, line: "b"}, {at: 20s, line: "a"}, {at: 1s, cr: true, line: "c"}]}', 30
        )
        assert said == [(1, "c\r"), (20, "b\na\n")]

    def test_a_late_line_is_said(self) -> None:
        """A single line past the end of its segment is said at its time, among those of the next one."""
        said = self.said(
            '  - {for: 5s, log: [{at: 7s, line: "late"}]}\n  - {for: 10s, log: [{at: 1s, line: "new"}]}', 20
        )
        assert said == [(6, "new\n"), (7, "late\n")]

    def test_the_clock(self) -> None:
        """{clock} is the virtual time of day, doubled braces are braces."""
        assert self.said('  - {for: 90s, log: [{at: 80s, line: "[{clock}] {{a}}"}]}', 90) == [(80, "[13:48:00] {a}\n")]

    def test_nothing_is_lost_while_nobody_reads(self) -> None:
        """What is said before anybody follows the file is read once somebody does."""
        log = LogFile("/srv/x/train.log", EPOCH)
        log.enter(scenario('  - {for: 5s, log: [{at: 1s, line: "a"}, {at: 2s, line: "b"}]}').segments[0])
        log.grow(3)
        assert log.read((), EPOCH + 3) == ()
        (chunk,) = log.read(self.TARGETS, EPOCH + 4)
        assert (chunk.data, chunk.opens) == (b"a\nb\n", 1)
        assert log.read(self.TARGETS, EPOCH + 5) == ()

    def test_another_reader_enters_it_at_its_end(self) -> None:
        """What was said before comes as one restored chunk, read or not, and what comes after does not."""
        log = LogFile("/srv/x/train.log", EPOCH)
        words = '[{at: 1s, line: "a"}, {at: 2s, line: "b"}, {at: 3s, line: "c"}]'
        log.enter(scenario(f"  - {{for: 5s, log: {words}}}").segments[0])
        chunks = []
        for second in (1, 2, 3):
            log.grow(second)
            if second == 2:
                log.reopen()
            chunks += log.read(self.TARGETS, EPOCH + second)
        assert [(chunk.data, chunk.restored, chunk.opens) for chunk in chunks] == [
            (b"a\n", False, 1),
            (b"a\nb\n", True, 1),
            (b"c\n", False, 0),
        ]


class TestCheckpoints:
    TARGETS = (CheckpointTarget("example-run", "/srv/x/output"), CheckpointTarget("example-run", "/elsewhere"))

    def directory(self, words: str) -> CheckpointDirectory:
        directory = CheckpointDirectory("/srv/x/output", EPOCH)
        directory.enter(scenario(f"  - {{for: 5m, checkpoint: {{{words}}}}}").segments[0])
        return directory

    def test_files_grow_and_the_marker_comes_last(self) -> None:
        """Half the time has written half the bytes, and the file that says it is whole comes at the end."""
        directory = self.directory("at: 10s, name: global_step5, layout: deepspeed, mib: 100, takes: 20s")
        grown = [directory.grow(second, EPOCH + second) for second in range(31)]
        listing, elsewhere = directory.list(self.TARGETS, EPOCH + 31)
        assert sum(grown[:21]) == 50 * MIB
        assert sum(grown) == 100 * MIB
        assert [entry.text for entry in listing.entries if entry.path == "latest"] == ["global_step5"]
        assert not elsewhere.exists

    def test_the_marker_is_not_there_before(self) -> None:
        """One second before the end nothing says that the checkpoint is whole."""
        directory = self.directory("at: 0s, name: global_step5, layout: deepspeed, mib: 100, takes: 20s")
        for second in range(20):
            directory.grow(second, EPOCH + second)
        assert not [entry for entry in directory.list(self.TARGETS, EPOCH)[0].entries if entry.path == "latest"]

    def test_partial_stops_half_way(self) -> None:
        """A partial checkpoint never has more than half of its bytes."""
        directory = self.directory("name: a.pt, layout: file, mib: 100, takes: 20s, partial: true")
        assert sum(directory.grow(second, EPOCH + second) for second in range(60)) == 50 * MIB

    def test_a_dead_writer_leaves_it_half_written(self) -> None:
        """What is not yet written when the writer dies never will be."""
        directory = self.directory("name: a.pt, layout: file, mib: 100, takes: 20s")
        for second in range(6):
            directory.grow(second, EPOCH + second)
        directory.interrupt()
        assert [directory.grow(second, EPOCH + second) for second in range(6, 30)] == [0] * 24

    def test_named_writes_are_not_counted_twice(self) -> None:
        """A checkpoint whose writes the scenario names adds none to the counters of rank 0."""
        directory = CheckpointDirectory("/srv/x/output", EPOCH)
        words = "write: 0, checkpoint: {name: a.pt, layout: file, mib: 100, takes: 20s}"
        directory.enter(scenario(f"  - {{for: 5m, {words}}}").segments[0])
        assert {directory.grow(second, EPOCH + second) for second in range(30)} == {0}
        assert max(entry.bytes for entry in directory.list(self.TARGETS, EPOCH)[0].entries) == 100 * MIB
