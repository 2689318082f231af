"""Options of TLS and WebSocket that would have no effect are refused, before anything is opened."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.conftest import Ran
from tests.record.certificate_authority import Authority

PLAIN, SECURE = "tcp://127.0.0.1:0", "tls://127.0.0.1:0"
SERVE = ("serve", PLAIN, "--protocol", "mplex")
CONNECT = ("connect", "tcp://127.0.0.1:9", "--protocol", "mplex", "--send", "x")
COLLECT = ("collect", "--listen", PLAIN, "--protocol", "mplex", "--out", "captures")
RECORD = ("record", PLAIN, "tcp://127.0.0.1:9", "-o", "talk.pcapng")
LISTENING = ("--cert", "--key", "--client-ca", "--crl")
CASES = [
    *((command, option) for command in (SERVE, COLLECT, RECORD) for option in LISTENING),
    *((RECORD, option) for option in ("--ca", "--server-name", "--client-cert", "--client-key")),
    *((CONNECT, option) for option in ("--ca", "--server-name", "--cert", "--key")),
]


@pytest.mark.parametrize(("command", "option"), CASES)
def test_an_option_of_tls_without_tls_is_refused(
    command: tuple[str, ...],
    option: str,
    run: Callable[..., Ran],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = run(*command, option, "file.pem")
    assert ran.code == 2
    assert f"{option} has no effect without TLS, and tcp://127.0.0.1:" in ran.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("option", ["--client-ca", "--cert"])
def test_clients_are_not_asked_for_certificates_at_some_of_the_urls_only(
    option: str, tmp_path: Path, run: Callable[..., Ran]
) -> None:
    authority = Authority(tmp_path / "authority")
    given = ["--cert", authority.cert, "--key", authority.key]
    if option == "--client-ca":
        given += [option, authority.ca]
    # An --out that is no directory: the other options are looked at first.
    ran = run(*COLLECT[:-1], authority.cert, "--listen", SECURE, *given)
    if option == "--client-ca":
        assert ran.code == 2
        assert f"--client-ca: {PLAIN} has no TLS" in ran.err
    else:
        assert "--cert" not in ran.err


@pytest.mark.parametrize("command", [RECORD, CONNECT])
def test_not_to_verify_what_is_not_encrypted_is_refused(
    command: tuple[str, ...], run: Callable[..., Ran]
) -> None:
    ran = run(*command, "--insecure")
    assert ran.code == 2
    assert "--insecure has no effect without TLS" in ran.err


@pytest.mark.parametrize("command", [SERVE, COLLECT])
@pytest.mark.parametrize(
    ("url", "origin", "word"),
    [
        (PLAIN, "https://example.com", "--origin has no effect"),
        ("ws://127.0.0.1:0", "example.com", "'example.com' is no origin"),
        ("ws://127.0.0.1:0", "https://example.com/page", "is no origin"),
    ],
)
def test_an_origin_that_means_nothing_is_refused(
    command: tuple[str, ...], url: str, origin: str, word: str, run: Callable[..., Ran]
) -> None:
    words = [url if each == PLAIN else each for each in command]
    words[words.index("mplex")] = "omnistreams"
    ran = run(*words, "--origin", origin)
    assert ran.code == 2
    assert word in ran.err


def test_a_certificate_without_its_key_is_named(tmp_path: Path, run: Callable[..., Ran]) -> None:
    authority = Authority(tmp_path / "authority")
    other = authority.issue("other.example")
    serve = ("serve", SECURE, "--protocol", "mplex")
    without = run(*serve, "--cert", authority.cert)
    assert without.code == 2
    assert "has no private key; name the file that has it (--key)" in without.err
    wrong = run(*serve, "--cert", authority.cert, "--key", other[1])
    assert wrong.code == 2
    assert "the private key does not belong to the certificate" in wrong.err
    alone = run(*serve, "--key", authority.key)
    assert alone.code == 2
    assert "needs a certificate to listen with" in alone.err
    dialed = run("connect", "tls://127.0.0.1:9", "--protocol", "mplex", "--key", authority.key)
    assert dialed.code == 2
    assert "without a certificate" in dialed.err


@pytest.mark.parametrize("command", [SERVE, (*SERVE, "--record", "talk.pcapng"), COLLECT, RECORD])
def test_an_audit_log_that_cannot_be_written_leaves_nothing_behind(
    command: tuple[str, ...],
    run: Callable[..., Ran],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = run(*command, "--audit", "missing/audit.jsonl")
    assert ran.code == 5
    assert "missing/audit.jsonl: cannot be written: No such file or directory" in ran.err
    assert list(tmp_path.iterdir()) == []
