"""Recordings spoken again: the script of a session, its pace, and the comparison of both runs.

`load_recordings` reads the sessions of captures, and `replay` speaks one side of a session to a
live peer. Needs the extra `captures`.
"""

from polymux.relay.replay.comparison import Comparison
from polymux.relay.replay.player import Pace
from polymux.relay.replay.run import load_recordings, parse_pace, replay
from polymux.relay.replay.script import CannotReplay, Recording, read_recording

__all__ = [
    "CannotReplay",
    "Comparison",
    "Pace",
    "Recording",
    "load_recordings",
    "parse_pace",
    "read_recording",
    "replay",
]
