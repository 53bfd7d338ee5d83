"""The configuration file: what is right becomes records, what is wrong is named with key and line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from training_exporter.config import Budgets, Config, Discovery, Match, RunConfig, check, load
from training_exporter.documents import DocumentError

WHOLE = r"""
runs:
  - name: eagle3-synth100k
    match: {cmdline: 'scripts/train\.py'}
    logs: ['/data/eagle3/logs/*.log']
    checkpoints: ['/data/eagle3/output']
    expected: true
    budgets: &budgets {idle: 10m, validation: 1h30m, start: 1800, checkpoint: 90s, progress: 1d}
    metrics: ['^my metric (?P<name>\w+) = (?P<value>\S+)$']
  - name: judge
    match: {env: {SLURM_JOB_ID: 4311}}
    page: false
    budgets:
      <<: *budgets
      idle: 1m30s500ms
discovery:
  enabled: false
  ignore: [{cmdline: jupyter}]
"""


def messages(text: str) -> list[str]:
    """Faults as `check-config` prints them."""
    return [str(fault) for fault in check(text)]


def one_run(extra: str) -> str:
    """A configuration of one run with a further line on line 3."""
    return f"runs:\n- {{name: r, logs: [/a.log],\n   {extra}}}\n"


class TestLoad:
    def test_whole_file(self, tmp_path: Path) -> None:
        """Every key of the format arrives, durations in seconds."""
        path = tmp_path / "config.yaml"
        path.write_text(WHOLE)
        budgets = Budgets(idle=600, validation=5400, start=1800, checkpoint=90, progress=86_400)
        expected = Config(
            runs=(
                RunConfig(
                    name="eagle3-synth100k",
                    match=Match(cmdline=r"scripts/train\.py"),
                    logs=("/data/eagle3/logs/*.log",),
                    checkpoints=("/data/eagle3/output",),
                    expected=True,
                    budgets=budgets,
                    metrics=(r"^my metric (?P<name>\w+) = (?P<value>\S+)$",),
                ),
                RunConfig(
                    name="judge",
                    match=Match(env={"SLURM_JOB_ID": "4311"}),
                    page=False,
                    budgets=Budgets(idle=90.5, validation=5400, start=1800, checkpoint=90, progress=86_400),
                ),
            ),
            discovery=Discovery(enabled=False, ignore=(Match(cmdline="jupyter"),)),
        )
        assert expected == load(path)

    @pytest.mark.parametrize("text", ["", "# nothing\n", "{}", "runs: []"])
    def test_empty_file(self, tmp_path: Path, text: str) -> None:
        """A file that says nothing is the configuration without a file."""
        path = tmp_path / "config.yaml"
        path.write_text(text)
        assert Config() == load(path)

    def test_faults_name_the_file(self, tmp_path: Path) -> None:
        """An unusable file raises one error that carries path, line and key of all faults."""
        path = tmp_path / "config.yaml"
        path.write_text("runs: 1\ndiscovery: 2\n")
        with pytest.raises(DocumentError) as caught:
            load(path)
        assert [
            f"{path}: line 1: runs: expected a list",
            f"{path}: line 2: discovery: expected a mapping of keys to values",
        ] == str(caught.value).splitlines()

    @pytest.mark.parametrize("content", [None, b"\xff\xfe\xff"])
    def test_unreadable_file(self, tmp_path: Path, content: bytes | None) -> None:
        """A missing file and one that is no text are faults like any other."""
        path = tmp_path / "config.yaml"
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(DocumentError, match="cannot be read"):
            load(path)

    def test_a_fifo_is_not_waited_for(self, tmp_path: Path) -> None:
        """Nobody may ever write to it."""
        path = tmp_path / "fifo"
        os.mkfifo(path)
        with pytest.raises(DocumentError, match="cannot be read: it is no regular file"):
            load(path)

    def test_a_device_is_not_read(self) -> None:
        """It has no end."""
        with pytest.raises(DocumentError, match="cannot be read: it is no regular file"):
            load(Path("/dev/zero"))

    def test_a_directory(self, tmp_path: Path) -> None:
        """It holds no text."""
        with pytest.raises(DocumentError, match="cannot be read: it is no regular file"):
            load(tmp_path)

    def test_a_file_that_is_too_large_is_not_read_to_its_end(self, tmp_path: Path) -> None:
        """Even one that takes no space on the disk."""
        path = tmp_path / "huge.yaml"
        with path.open("wb") as stream:
            stream.truncate(1 << 40)
        with pytest.raises(DocumentError, match="cannot be read: it is larger than 4000000 bytes"):
            load(path)


class TestCheck:
    def test_all_faults_at_once(self) -> None:
        """Faults of different runs and depths are reported together, in the order of lines."""
        text = """
runs:
  - name: eagle3
    match: {cmdline: 'scripts/(train'}
    budgets: {idel: 10m, start: 3 weeks}
  - nam: x
  - name: eagle3
    expected: yess
discovry: {}
"""
        assert messages(text) == [
            (
                "line 4: runs[0].match.cmdline: no valid regular expression: missing ), unterminated subpattern "
                "at position 8"
            ),
            "line 5: runs[0].budgets.idel: unknown key; did you mean 'idle'?",
            "line 5: runs[0].budgets.start: expected a duration like 90s, 10m or 1h30m",
            "line 6: runs[1].nam: unknown key; did you mean 'name'?",
            "line 6: runs[1].name: required key not provided",
            "line 7: runs[2].name: is the name of runs[0] too",
            "line 8: runs[2].expected: expected true or false",
            "line 9: discovry: unknown key; did you mean 'discovery'?",
        ]

    @pytest.mark.parametrize(
        ("extra", "message"),
        [
            ("budgets: {idle: 0}", "runs[0].budgets.idle: must be longer than nothing"),
            ("budgets: {idle: -5m}", "runs[0].budgets.idle: expected a duration like 90s, 10m or 1h30m"),
            ("budgets: {idle: .inf}", "runs[0].budgets.idle: must not be longer than ten years"),
            ("budgets: {idle: .nan}", "runs[0].budgets.idle: must be longer than nothing"),
            ("budgets: {progress: 99999999999}", "runs[0].budgets.progress: must not be longer than ten years"),
            ("budgets: {progress: 521w6d}", "runs[0].budgets.progress: must not be longer than ten years"),
            (f"budgets: {{progress: 1{'0' * 400}}}", "runs[0].budgets.progress: must not be longer than ten years"),
            (f"budgets: {{progress: 1{'0' * 400}h}}", "runs[0].budgets.progress: must not be longer than ten years"),
            ("budgets: {idle: true}", "runs[0].budgets.idle: expected a duration like 90s, 10m or 1h30m"),
            ("metrics: ['(?P<name>x)']", "runs[0].metrics[0]: lacks the named group (?P<value>...)"),
            ("metrics: ['(?P<name>(a+)+) (?P<value>.)']", ("runs[0].metrics[0]: a repetition inside a repetition can "
             "take for ever on some lines")),
            ("checkpoints: /out", "runs[0].checkpoints: expected a list"),
            ("checkpoints: [out]", ("runs[0].checkpoints[0]: must be an absolute path, because the exporter runs in a "
             "directory of its own")),
            ("match: {}", "runs[0].match: matches everything; give cmdline or env"),
            ("match: {env: {A: 1.5}}", "runs[0].match.env.A: expected text; put it in quotes"),
            ("match: {env: [A]}", "runs[0].match.env: expected a mapping of variables to values"),
            ("page: 'no'", "runs[0].page: expected true or false"),
            ("colour: red", ("runs[0].colour: unknown key; known are budgets, checkpoints, expected, logs, match, "
             "metrics, name, page")),
        ],
    )  # fmt: skip
    def test_single_fault(self, extra: str, message: str) -> None:
        """Each kind of fault has a message that says what to write instead."""
        assert [f"line 3: {message}"] == messages(one_run(extra))

    @pytest.mark.parametrize(
        ("name", "message"),
        [
            ("4311", "expected text; put it in quotes"),
            ("''", "must not be empty or hold control characters"),
            (r'"a\nb"', "must not be empty or hold control characters"),
            ("x" * 201, "longer than 200 characters"),
        ],
    )
    def test_run_name(self, name: str, message: str) -> None:
        """A run's name is a label value and must read as one."""
        assert [f"line 1: runs[0].name: {message}"] == messages(f"runs: [{{name: {name}, logs: [/a]}}]")

    def test_run_without_anything_to_watch(self) -> None:
        """A run that names no process, log or checkpoint is a mistake."""
        assert messages("runs: [{name: r}]") == [
            "line 1: runs[0]: names nothing to watch; give match, logs or checkpoints"
        ]

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("a: 1\na: 2", "line 2: a: given twice"),
            ("a: [", "line 1: no valid YAML: expected the node content, but found '<stream end>'"),
            ("a: &a [*a]", "line 1: no valid YAML: too many or too deep values"),
            ("[" * 5000, "nested too deeply"),
            ("x: 2026-99-99", "no valid YAML: month must be in 1..12"),
            ("x: \x00", "no valid YAML: unacceptable character #x0000: special characters are not allowed"),
            ("? [a]\n: b", "line 1: no valid YAML: a key must be plain text"),
            ("- a", "line 1: expected a mapping of keys to values"),
            ("#" * 1_000_001, "longer than 1000000 characters"),
            (
                "x: !!python/object:os.system {}",
                "line 1: no valid YAML: tag 'tag:yaml.org,2002:python/object:os.system' is not supported",
            ),
        ],
    )
    def test_broken_yaml(self, text: str, message: str) -> None:
        """What is no usable YAML is one fault, never an exception, and executes nothing."""
        assert [message] == messages(text)

    def test_alias_bomb(self) -> None:
        """References that would unfold to a billion values are refused before they do."""
        bomb = "a: &a [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
            f"{name}: &{name} [{','.join(['*' + before] * 10)}]\n"
            for before, name in zip("abcdefgh", "bcdefghi", strict=True)
        )
        assert [fault.message.partition(": ")[2] for fault in check(bomb)] == ["too many or too deep values"]

    @given(
        st.one_of(
            st.text(),
            st.recursive(
                st.one_of(st.none(), st.booleans(), st.floats(), st.sampled_from(["runs", "name", "10m", "(", "/a"])),
                lambda inner: st.one_of(
                    st.lists(inner, max_size=4),
                    st.dictionaries(st.sampled_from(["runs", "name", "logs", "match", "budgets", "x"]), inner),
                ),
            ).map(str),
        )
    )
    def test_any_text(self, text: str) -> None:
        """Whatever stands in the file, the answer is a list of faults."""
        assert all(fault.message for fault in check(text))


class TestDocument:
    def test_example_is_valid(self, tmp_path: Path) -> None:
        """The example of docs/configuration.md can be used as it is, and shows every key."""
        text = (Path(__file__).parent.parent / "docs" / "configuration.md").read_text()
        example = text.partition("```yaml\n")[2].partition("```")[0]
        assert messages(example) == []
        path = tmp_path / "config.yaml"
        path.write_text(example)
        run = load(path).runs[0]
        assert all((run.match, run.logs, run.checkpoints, run.expected, run.metrics))
        for key in (*RunConfig.__slots__, *Budgets.__slots__, *Match.__slots__, *Discovery.__slots__):
            assert key in text
