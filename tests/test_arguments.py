"""Command lines as launchers and users write them."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from training_exporter.runs.arguments import invocation, launch, options, placeless


class TestInvocation:
    @pytest.mark.parametrize(
        ("command", "program", "arguments"),
        [
            ("python -u train.py --lr 1", "train.py", ["--lr", "1"]),
            ("/opt/py/bin/python3.11 -X dev -W ignore a/train.py", "a/train.py", []),
            ("python3 -u -m torchtitan.train --x", "torchtitan.train", ["--x"]),
            ("python3 -um pkg.mod", "pkg.mod", []),
            ("python3 /usr/bin/torchrun --standalone", "/usr/bin/torchrun", ["--standalone"]),
            ("/usr/local/bin/nanny --x", "/usr/local/bin/nanny", ["--x"]),
            ("python3", "", []),
        ],
    )
    def test_program(self, command: str, program: str, arguments: list[str]) -> None:
        """Interpreter and its options are looked through."""
        found = invocation(shlex.split(command))
        assert (found.program, list(found.arguments)) == (program, arguments)

    def test_code_is_no_script(self) -> None:
        """`-c` runs code, which is kept apart."""
        found = invocation(["python3", "-c", "from multiprocessing.spawn import spawn_main", "--multiprocessing-fork"])
        assert (found.program, found.code) == ("-c", "from multiprocessing.spawn import spawn_main")

    def test_a_rewritten_title_is_one_text(self) -> None:
        """A process that rewrote its title shows one argument with blanks."""
        assert invocation(["slurmstepd: [4311.0]"]).name == "slurmstepd:"

    @pytest.mark.parametrize("command", [None, [], [""], [" "]])
    def test_nothing_known(self, command: list[str] | None) -> None:
        """A kernel thread or an unreadable command runs the program ""."""
        assert invocation(command).name == ""

    @given(st.lists(st.text(max_size=8), max_size=6))
    def test_any_command_is_survived(self, command: list[str]) -> None:
        """Arguments are hostile text."""
        assert isinstance(invocation(command).program, str)


class TestLaunch:
    @pytest.mark.parametrize(
        ("words", "script", "arguments"),
        [
            ("--nproc-per-node=4 train.py --lr 1", "train.py", ["--lr", "1"]),
            ("--nproc_per_node 4 --nnodes 2 train.py x", "train.py", ["x"]),
            ("--standalone train.py --standalone", "train.py", ["--standalone"]),
            ("--standalone -m pkg.train --x 1", "pkg.train", ["--x", "1"]),
            ("--unheard-of train.py -a", "train.py", ["-a"]),
            ("--no-python ./run.sh", "./run.sh", []),
            ("--multi_gpu --mixed_precision bf16 run_sft.py", "run_sft.py", []),
            ("--help", "", []),
        ],
    )
    def test_script(self, words: str, script: str, arguments: list[str]) -> None:
        """The launcher's options end where the script begins."""
        found = launch(words.split())
        assert (found.script, list(found.arguments)) == (script, arguments)

    def test_the_last_of_a_repeated_option_counts(self) -> None:
        """As in argparse; both spellings are one name."""
        assert launch("--nproc-per-node=4 --nproc_per_node 8 t.py".split()).option("nproc_per_node") == "8"  # noqa: SIM905


class TestOptions:
    def test_every_way_to_write_one(self) -> None:
        """Dashes, underscores, equals signs, Hydra's pluses; a switch has no value."""
        words = ["--save-dir", "a", "--output_dir=b", "trainer.default_root_dir=c", "++run.dir=d", "--fp16", "--x", "1"]
        assert list(options(words)) == [
            ("save_dir", "a"),
            ("output_dir", "b"),
            ("trainer.default_root_dir", "c"),
            ("run.dir", "d"),
            ("x", "1"),
        ]


class TestPlaceless:
    def test_what_differs_between_nodes_goes(self) -> None:
        """Node, rank, master and rendezvous are left out with their values, everything else stays in order."""
        words = "--node-rank 1 --lr 1 --local-rank=3 --master_addr h --rdzv-endpoint=h:1 --local_rank 0 data --x"
        assert placeless(words.split()) == ("--lr", "1", "data", "--x")
