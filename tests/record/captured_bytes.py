"""Reads the bytes of captures, for comparison with what the peers saw."""

from __future__ import annotations

from dataclasses import dataclass

from polymux.capture import read_sessions


@dataclass
class Talk:
    """One session of a capture: its bytes by sender, with `?` for those that are missing."""

    dialer: str
    acceptor: str
    raw_bytes: tuple[bytes, bytes]
    gaps: tuple[int, int]
    ends: tuple[str | None, str | None]
    protocol: str | None
    vantage: str | None


def talks(*paths: object) -> list[Talk]:
    """Every session in these files, none of which may be torn or damaged."""
    found = []
    with read_sessions([str(path) for path in paths]) as reading:
        assert all(file.status == "whole" for file in reading.files), reading.files
        for session in reading:
            chunks = [bytearray(), bytearray()]
            for piece in session.pieces():
                chunks[piece.side] += b"?" * piece.size if piece.is_gap else piece.data
            found.append(
                Talk(
                    session.dialer,
                    session.acceptor,
                    (bytes(chunks[0]), bytes(chunks[1])),
                    session.missing_bytes,
                    session.ends,
                    session.protocol_hint,
                    session.vantage_hint,
                )
            )
    return found


def by_number(*paths: object) -> dict[int, Talk]:
    """The talks of a `Room`, which begin with their number."""
    return {int.from_bytes(talk.raw_bytes[0][:4], "big"): talk for talk in talks(*paths)}
