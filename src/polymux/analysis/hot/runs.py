"""Whose octets a direction carried last: consecutive frames of one stream are one run."""

from typing import Final

from librt.vecs import vec
from mypy_extensions import i64

from .tracks import Track

KEPT: Final[i64] = 1024  # runs; what is older than these is forgotten


class Stretch:
    """A time in which a direction was busy with others: how it began, and who had most of it."""

    def __init__(self, none: Track) -> None:
        self.began: i64 = 0
        self.octets: i64 = 0  # of all others
        self.streams: i64 = 0  # how many of them
        self.culprit: Track = none
        self.culprits: i64 = 0  # octets of the culprit


class Runs:
    """The last runs of one direction. A pause of `idle` or more parts runs even of one stream."""

    def __init__(self, none: Track, idle: i64, side: i64) -> None:
        self.none: Track = none
        self.idle: i64 = idle
        self.track: list[Track] = []
        self.octets: vec[i64] = vec[i64]([i64(0)] * KEPT)
        self.began: vec[i64] = vec[i64]([i64(0)] * KEPT)
        self.ended: vec[i64] = vec[i64]([i64(0)] * KEPT)
        self.count: i64 = 0
        self.marks: i64 = side  # of stretches added up; the two directions never have the same

    def add(self, track: Track, octets: i64, began: i64, ended: i64) -> None:
        """A frame of this stream passed from `began` to `ended`."""
        if self.count > 0:
            last = (self.count - 1) % KEPT
            if self.track[last] is track and began - self.ended[last] <= self.idle:
                self.octets[last] += octets
                self.ended[last] = ended
                return
        place = self.count % KEPT
        if self.count < KEPT:
            self.track.append(track)
        else:
            self.track[place] = track
        self.octets[place] = octets
        self.began[place] = began
        self.ended[place] = ended
        self.count += 1

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
            if began < since:  # only a part of it lies in the time asked for
                whole = self.ended[place] - began
                inside = self.ended[place] - since
                if inside <= 0:
                    break
                octets = i64(float(octets) * (float(inside) / float(whole)))
                began = since
            if track.tally_mark != self.marks:
                track.tally_mark = self.marks
                track.tally = 0
                found.streams += 1
            track.tally += octets
            found.octets += octets
            if track is not self.none and track.tally > found.culprits:
                found.culprits = track.tally
                found.culprit = track
            found.began = began
            later = began
            number -= 1
        return found
