"""What a job prints is shown without its secrets and without its terminal tricks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from training_exporter import redact
from training_exporter.redact import LONGEST_TEXT, MASK


class TestText:
    @pytest.mark.parametrize(
        ("line", "expected"),
        [
            ("HF_TOKEN=hf_abcdefghijklmnopqrst step 3", f"HF_TOKEN={MASK} step 3"),
            ("wandb: api_key: 0123456789abcdef", f"wandb: api_key: {MASK}"),
            ("{'password': 'hunter 2', \"secret\": \"x\"}", f"{{'password': {MASK}, \"secret\": {MASK}}}"),
            ("https://user:pw@host/x?X-Amz-Signature=ab&b=1", f"https://{MASK}@host/x?X-Amz-Signature={MASK}&b=1"),
            ("postgres://u:p@db/runs", f"postgres://{MASK}@db/runs"),
            ("Authorization: Bearer abcdefgh.ijkl", f"Authorization: Bearer {MASK}"),
            ("AWS_SECRET_ACCESS_KEY=wJalr/K7+x", f"AWS_SECRET_ACCESS_KEY={MASK}"),
            ("using AKIAIOSFODNN7EXAMPLE now", f"using {MASK} now"),
            ("key eyJhbGciOiJI.eyJzdWIiOiIx.abc", f"key {MASK}"),
            ("-----BEGIN RSA PRIVATE KEY-----MIIE", MASK),
            ("run --wandb-api-key abc --lr 1", f"run --wandb-api-key {MASK} --lr 1"),
            ("run --hf_token=y --token x", f"run --hf_token={MASK} --token {MASK}"),
            ("my-service.token: abc", f"my-service.token: {MASK}"),
        ],
    )
    def test_secrets_are_masked(self, line: str, expected: str) -> None:
        """Keys, tokens, passwords and the credentials of an address go, the words around them stay."""
        assert expected == redact.text(line)

    @pytest.mark.parametrize(
        "line",
        [
            "step 10 loss 0.5 num_tokens=123456 tokens/s: 1234.5 tokens_per_second=9",
            "pad_token=<pad> eos_token_id: 2 unk_token: '[UNK]' next_token=foo",
            "tokenizer=meta/llama author: Bob signature: 5",
            "epoch 1/5: 100%|████████| 1866/1866 [00:12<00:00]",
            "Saved to /data/out/checkpoint-500 (https://example.org/x)",
            "keyboard: q, monkey=3",
            "run --use-auth --lr 1e-4 --num-tokens 5 --pad-token <pad> --token 5",
        ],
    )
    def test_ordinary_words_stay(self, line: str) -> None:
        """What a training prints about tokens is no secret."""
        assert line == redact.text(line)

    def test_terminal_escapes_become_visible(self) -> None:
        """Control characters cannot move a terminal's cursor, nor turn the direction of text."""
        assert redact.text("\x1b[2Jhidden\r\u202e") == r"\x1b[2Jhidden\r\u202e"

    def test_length_is_bounded(self) -> None:
        """A line of a gibibyte costs no more than a long one."""
        assert len(redact.text("x" * 10_000_000)) == LONGEST_TEXT

    @given(st.text())
    def test_always_printable(self, line: str) -> None:
        """Whatever comes in, what goes out is printable and encodes."""
        shown = redact.text(line)
        assert shown.isprintable()
        shown.encode()

    @given(st.from_regex(r"[A-Za-z0-9]{8,40}", fullmatch=True), st.sampled_from(["--api-key", "WANDB_API_KEY", "pwd"]))
    def test_no_part_of_a_secret_stays(self, secret: str, name: str) -> None:
        """No form of assignment lets a secret through, unless it is a plain number."""
        for sign in ("=", ": ", "='", '": "'):
            shown = redact.text(f"{name}{sign}{secret}")
            assert secret.isdigit() or secret in ("None", "null") or MASK in shown
