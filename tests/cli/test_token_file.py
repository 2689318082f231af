"""`--token-file`: who may read the file, what it holds, and what a client is told."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.conftest import Ran
from tests.cli.threaded_server import COMMAND, Serving

from polymux.core.token_exchange import SharedToken, TokenAcceptor, TokenDialer

TOKEN = "correct horse battery staple"
URL = "tcp://127.0.0.1:0"
Run = Callable[..., Ran]


def token_file(path: Path, text: str = TOKEN + "\n", mode: int = 0o600) -> str:
    path.write_text(text)
    path.chmod(mode)
    return str(path)


def test_a_client_with_the_token_is_answered_and_others_are_told_what_to_do(
    tmp_path: Path, run: Run
) -> None:
    own = token_file(tmp_path / "own")
    other = token_file(tmp_path / "other", "another one, of 24 bytes")
    audit = tmp_path / "audit.jsonl"
    with Serving(URL, "--protocol", "mplex", "--action", "echo", "--token-file", own,
                 "--audit", str(audit)) as serving:  # fmt: skip
        dial = ("connect", serving.url, "--protocol", "mplex", "--send", "hello")
        right = run(*dial, "--token-file", own)
        assert (right.code, right.out) == (0, "hello")
        wrong = run(*dial, "--token-file", other)
        assert wrong.code == 4
        assert "the server refused the token" in wrong.err
        none = run(*dial)
        assert none.code == 4
        assert "the peer asks for a token: present it with --token-file" in none.err
    said = right.err + wrong.err + none.err + audit.read_text()
    assert TOKEN not in said
    events = [json.loads(line) for line in audit.read_text().splitlines()]
    reasons = [event["reason"] for event in events if event["event"] == "refused"]
    assert reasons == ["it presented another token", "it presented no token"]


@pytest.mark.parametrize(
    ("text", "mode", "word"),
    [
        (TOKEN, 0o640, "other users have access to this token (mode 0640): chmod 600 it"),
        ("short\n", 0o600, "a token has 16 to 1024 bytes, not 5"),
        ("x" * 2000, 0o600, "a token has 16 to 1024 bytes"),
        (None, 0o600, "cannot be read: No such file or directory"),
    ],
)
@pytest.mark.parametrize("command", ["serve", "connect", "collect"])
def test_a_file_that_holds_no_token_or_is_not_secret_is_refused(
    command: str, text: str | None, mode: int, word: str, tmp_path: Path, run: Run
) -> None:
    path = tmp_path / "token"
    if text is not None:
        token_file(path, text, mode)
    where = ("--listen", URL, "--out", str(tmp_path / "out")) if command == "collect" else (URL,)
    ran = run(command, *where, "--protocol", "mplex", "--token-file", str(path))
    assert ran.code == 2
    assert word in ran.err
    assert TOKEN not in ran.err
    assert not (tmp_path / "out").exists()


def test_a_token_is_not_asked_for_where_it_protects_nothing(tmp_path: Path, run: Run) -> None:
    own = token_file(tmp_path / "own")
    ran = run("serve", "tcp://0.0.0.0:0", "--protocol", "mplex", "--token-file", own)
    assert ran.code == 2
    assert "a token needs TLS, a Unix socket or a loopback address" in ran.err


def test_frames_behind_the_exchange_are_decoded_from_a_file_and_from_a_pipe(
    capture: Callable[..., str], run: Run
) -> None:
    token = SharedToken(TOKEN)
    acceptor, dialer = TokenAcceptor(token, b"a" * 16), TokenDialer(token, b"d" * 16)
    challenge = acceptor.initial_bytes()
    proof = dialer.receive(challenge)
    answer = acceptor.receive(proof)
    path = capture(
        [(1, challenge, 1), (0, proof, 2), (1, answer, 3),
         (0, b"\x08\x04good\x0a\x05hello\x0c\x00", 4), (1, b"\x09\x02ok\x0b\x00", 5)],
    )  # fmt: skip
    kinds = ["NewStream", "MessageInitiator", "CloseInitiator", "MessageReceiver", "CloseReceiver"]
    for protocol in ("mplex", "auto"):
        ran = run("frames", path, "--protocol", protocol, "--json")
        assert [json.loads(line)["kind"] for line in ran.out.splitlines()] == kinds
        piped = subprocess.run(
            [*COMMAND, "frames", "-", "--protocol", protocol, "--json"],
            input=Path(path).read_bytes(), capture_output=True, check=False,
        )  # fmt: skip
        assert [json.loads(line)["kind"] for line in piped.stdout.splitlines()] == kinds
    assert run("check", path).code == 0
