"""Every byte is accounted for, and a reassembly that loses some is caught."""

import json
from pathlib import Path

from tests.interpreted_source import run_interpreted
from tests.spark.random_captures import conversations, record

from polymux.cli.support.output import plural


def test_a_broken_reassembly_is_caught_and_the_run_says_so(tmp_path: Path) -> None:
    capture = tmp_path / "all.pcapng"
    talks = [talk for talk in conversations(11, 4) if talk[0] == "mplex"]
    record([capture], talks)
    done = run_interpreted("-m", "tests.spark.batch.broken_reassembly", str(capture), str(tmp_path))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    sound = found.pop("sound")
    assert sound["conserved"]
    assert (sound["sessions"], sound["unbalanced"]) == (len(talks), [])
    assert "every byte of every session is accounted for" in sound["summary"]
    missed = found.pop("missed")  # a packet of the index that no task has analyzed
    assert not missed["conserved"]
    assert "were analyzed of" in missed["summary"]
    assert "unaccounted" not in missed["summary"]
    assert sorted(found) == ["doubled", "lost", "short"]
    for broken in found.values():
        assert not broken["conserved"]
        assert broken["unbalanced"] == sorted(broken["notes"])
        assert len(broken["notes"]) == len(talks)
        assert all("bytes are not conserved" in note for note in broken["notes"].values())
        sessions = plural(len(talks), "session")
        line = f"conservation: bytes are unaccounted for in {sessions}: {broken['unbalanced'][0]}"
        assert line in broken["summary"]
