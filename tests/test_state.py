"""`state`: what is remembered over a restart of the exporter."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from training_exporter.state import StateFile


class TestStateFile:
    def test_what_was_saved_is_loaded(self, tmp_path: Path) -> None:
        """The folder is made when it is missing."""
        StateFile(tmp_path / "new").save({"version": 1, "runs": {"a": [1.5, None]}})
        assert StateFile(tmp_path / "new").load() == {"version": 1, "runs": {"a": [1.5, None]}}

    def test_no_file_is_an_empty_memory_without_a_word(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        """A first start is no fault."""
        assert StateFile(tmp_path).load() == {}
        assert caplog.messages == []

    @pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\x00\xff\xfe", b'{"a": '])
    def test_a_corrupt_file_is_an_empty_memory_and_one_line(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes
    ) -> None:
        """A broken memory is named and ignored, never an error."""
        (tmp_path / "state.json").write_bytes(content)
        assert StateFile(tmp_path).load() == {}
        assert len(caplog.messages) == 1
        assert str(tmp_path / "state.json") in caplog.messages[0]

    def test_a_folder_that_cannot_be_written_is_said_once_each_way(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A full or read-only disk costs one line, and one when it works again."""
        blocker = tmp_path / "state"
        blocker.write_text("a file where the folder should be")
        state = StateFile(blocker)
        with caplog.at_level(logging.INFO):
            for _ in range(5):
                state.save({"a": 1})
            blocker.unlink()
            for _ in range(5):
                state.save({"a": 1})
        assert len(caplog.messages) == 2
        assert "cannot be written" in caplog.messages[0]
        assert "can be written again" in caplog.messages[1]

    def test_a_save_does_not_wait_for_the_disk(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A disk that is busy with a checkpoint may take minutes, in which the process could not even be killed."""
        forced: list[str] = []
        for name in ("fsync", "fdatasync", "sync"):
            monkeypatch.setattr(os, name, lambda *_, name=name: forced.append(name))
        StateFile(tmp_path).save({"a": 1})
        assert StateFile(tmp_path).load() == {"a": 1}
        assert forced == []

    def test_a_failed_save_leaves_the_old_memory(self, tmp_path: Path) -> None:
        """What cannot be written as JSON replaces nothing."""
        state = StateFile(tmp_path)
        state.save({"a": 1})
        with pytest.raises(TypeError):
            state.save({"a": object()})
        assert StateFile(tmp_path).load() == {"a": 1}
