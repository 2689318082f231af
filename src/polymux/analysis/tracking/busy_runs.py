# mypyc: compiled
"""Whose bytes a direction carried last, and how much of the time it was at work.

Consecutive frames of one stream are one run. A frame occupies its direction from its first byte to
its last and, where nothing came right before it, for as long as its bytes take on the way: a
capture often has one instant for a whole frame, and the frame passed before that instant.
"""

from typing import Final

from librt.vecs import vec
from mypy_extensions import i64

from polymux.analysis.tracking.stream_tracker import Track

KEPT: Final[i64] = 1024  # runs; what is older than these is forgotten

# How long the bytes of a frame may have been on their way before the frame's only instant: at
# 8 Mbit/s, the slowest line that is assumed. A longer silence before it was a pause.
SLOW_NS: Final[i64] = 1000  # a byte
# The same on a line that is surely full, 100 Mbit/s; and a silence that is no pause, but the
# spacing of full packets on any line.
FULL_NS: Final[i64] = 80  # a byte
SPACING: Final[i64] = 2_000_000
PACKET: Final[i64] = 1200  # bytes in it at least
PACKETS: Final[i64] = 4800  # and at most, in the few that may share an instant


class Stretch:
    """A time in which a direction was busy with others: how it began, and who had most of it."""

    def __init__(self, none: Track) -> None:
        self.began: i64 = 0
        self.octets: i64 = 0  # of all others
        self.streams: i64 = 0  # how many of them
        self.culprit: Track = none
        self.culprits: i64 = 0  # octets of the culprit
        self.work: i64 = 0  # nanoseconds in which the direction was at work for others
        self.full: i64 = 0  # and in which it was surely full


class Runs:
    """The last runs of one direction. A pause of `idle` or more parts runs even of one stream."""

    def __init__(self, none: Track, idle: i64, side: i64) -> None:
        self.none: Track = none
        self.idle: i64 = idle
        self.track: list[Track] = []
        self.octets: vec[i64] = vec[i64]([i64(0)] * KEPT)
        self.began: vec[i64] = vec[i64]([i64(0)] * KEPT)
        self.ended: vec[i64] = vec[i64]([i64(0)] * KEPT)
        self.worked: vec[i64] = vec[i64]([i64(0)] * KEPT)
        self.filled: vec[i64] = vec[i64]([i64(0)] * KEPT)
        self.count: i64 = 0
        self.marks: i64 = side  # of stretches added up; the two directions never have the same
        self.last: Track = none  # of the last frame: its stream,
        self.last_ended: i64 = 0  # its last byte,
        self.last_full: i64 = 0  # how long it surely filled the direction,
        self.last_gap: i64 = 0  # and the silence before it, if that was no pause
        # Nanoseconds in which the direction was at work so far, and in which it was surely full;
        # and what both were at the end of the last pause of `idle` or more.
        self.work: i64 = 0
        self.full: i64 = 0
        self.pause_work: i64 = 0
        self.pause_full: i64 = 0

    def add(self, track: Track, octets: i64, began: i64, ended: i64) -> None:
        """A frame of this stream passed from `began` to `ended`."""
        passed: i64 = ended - began
        if passed < 0:
            passed = 0
        work = passed
        full = passed
        start = began
        silence: i64 = 0
        last: i64 = 0
        if self.count > 0:
            gap = began - self.last_ended
            if gap > self.idle:
                self.pause_work = self.work
                self.pause_full = self.full
            elif gap > 0:
                silence = gap
                slow = octets * SLOW_NS
                if 0 < passed < slow:  # its first packet took no longer than the rest of it
                    slow = passed
                if gap < slow:
                    slow = gap
                quick = slow
                packets = gap <= SPACING and PACKET <= octets <= PACKETS
                if not packets and octets * FULL_NS < slow:
                    quick = octets * FULL_NS
                work += slow
                full += quick
                start -= slow
            last = (self.count - 1) % KEPT
        self.last_ended = ended
        self.last_full = full
        self.last_gap = silence
        self.work += work
        self.full += full
        if self.count > 0 and self.last is track and began - self.ended[last] <= self.idle:
            self.octets[last] += octets
            self.ended[last] = ended
            self.worked[last] += work
            self.filled[last] += full
            return
        self.last = track
        place = self.count % KEPT
        if self.count < KEPT:
            self.track.append(track)
        else:
            self.track[place] = track
        self.octets[place] = octets
        self.began[place] = start
        self.ended[place] = ended
        self.worked[place] = work
        self.filled[place] = full
        self.count += 1

    def follows(self, octets: i64, began: i64) -> bool:
        """Does a frame that begins now come as close behind the last one as that came itself?"""
        if self.count == 0:
            return False
        gap = began - self.last_ended
        if gap <= SPACING or gap <= self.last_gap:
            return True
        return gap <= self.idle and gap <= octets * SLOW_NS

    def before(self, waiting: Track, since: i64, until: i64) -> Stretch:
        """What others sent in the busy time that led up to `until`, back to `since` at most, or to
        this stream's own last frame, or to a pause."""
        found = Stretch(self.none)
        found.began = until
        self.marks += 2
        number = self.count - 1
        oldest = self.count - KEPT if self.count > KEPT else 0
        later = until
        while number >= oldest:
            place = number % KEPT
            track = self.track[place]
            if track is waiting or later - self.ended[place] > self.idle:
                break
            octets = self.octets[place]
            began = self.began[place]
            work = self.worked[place]
            full = self.filled[place]
            if began < since:  # only a part of it lies in the time asked for
                whole = self.ended[place] - began
                inside = self.ended[place] - since
                if inside <= 0:
                    break
                share = float(inside) / float(whole)
                octets = i64(float(octets) * share)
                work = i64(float(work) * share)
                full = i64(float(full) * share)
                began = since
            if track.tally_mark != self.marks:
                track.tally_mark = self.marks
                track.tally = 0
                found.streams += 1
            track.tally += octets
            found.octets += octets
            found.work += work
            found.full += full
            if track.stream.serial >= 0 and track.tally > found.culprits:
                found.culprits = track.tally
                found.culprit = track
            found.began = began
            later = began
            number -= 1
        return found
