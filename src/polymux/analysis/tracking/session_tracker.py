# mypyc: compiled
"""Feeds an observer what was captured, and follows its rows: timeline, stalls, content, labels."""

from mypy_extensions import i64

from polymux.analysis.output.content_rows import Contents
from polymux.analysis.output.frame_page import Page, Passing, Prelude
from polymux.analysis.tracking.looks import look_at_ends, look_at_leave, tell_silences
from polymux.analysis.tracking.stalls import Stalls
from polymux.analysis.tracking.stream_tracker import HalfTrack, Track, TrackTable
from polymux.analysis.tracking.timeline import Timeline
from polymux.capture.tcp.events import GAP, OCTETS, Events
from polymux.core.connection import Conversation
from polymux.core.direction import Direction
from polymux.core.events import Sink
from polymux.core.frames import Batch, Frames
from polymux.core.observer import Observer
from polymux.core.protocol import NO_STREAM
from polymux.core.streams import UNSEEN, Stream


class Watch(Sink):
    """One session. Make it, make the observer with it as sink, then `attach`."""

    def __init__(self, contents: Contents | None) -> None:
        self.contents: Contents | None = contents
        self.reading = self.marking = contents is not None
        self.tracks: TrackTable = TrackTable()
        self.ready: list[Page] = []
        self.page: Page | None = None
        self.pages: i64 = 0
        self.passing: list[Passing] = [Passing(), Passing()]
        self.frames: i64 = 0
        self.framed0: i64 = 0  # octets in frames
        self.framed1: i64 = 0
        self.ended0: bool = False
        self.ended1: bool = False
        self.kept: list[Track] = []  # gone, but the current bucket still has to be written
        self.prelude: Prelude = Prelude(0, 0, True)

    def attach(self, observer: Observer, timeline: Timeline, stalls: Stalls) -> None:
        assert observer.rows is not None
        self.observer: Observer = observer
        self.conversation: Conversation = observer.conversation
        self.rows: Frames = observer.rows
        self.timeline: Timeline = timeline
        self.stalls: Stalls = stalls
        self.credit: bool = observer.protocol.credit

    # --- the sink

    def opened(self, sender: i64, stream: Stream) -> None:
        self.tracks.put(Track(stream))

    def content(
        self, sender: i64, stream: Stream, data: bytes, start: i64, end: i64, final: bool
    ) -> None:
        if self.contents is not None:
            self.contents.part(sender, stream, data, start, end)

    def finished(self, sender: i64, stream: Stream | None, ordinal: i64, at: i64) -> None:
        if self.contents is not None:
            self.contents.whole(sender, stream, ordinal, at)

    def control(
        self, sender: i64, stream: Stream | None, kind: i64, amount: int, text: bytes
    ) -> None:
        contents = self.contents
        if contents is not None and kind == contents.control:
            c = self.conversation
            ordinal = c.protocol.sight.sent(sender) - 1
            contents.message(sender, text, ordinal, c.direction(sender).at)

    # --- octets in

    def skip(self, octets0: i64, octets1: i64, carrier: bool) -> None:
        """The first octets of each side are not frames: they are carrier, or else undecoded."""
        self.prelude = Prelude(octets0, octets1, carrier)

    def feed(self, events: Events, data: bytes) -> None:
        """The next events of the capture; the octets of all lie in `data`.

        Not their columns one by one: a compiled function that interpreted code hands a column
        never lets go of it again.
        """
        side = events.side
        kind = events.kind
        at = events.at
        size = events.size
        start: i64 = 0
        for n in range(events.count):
            if kind[n] == OCTETS:
                stop = start + size[n]
                if self.prelude.left > 0:
                    start += self.prelude.pass_over(self.conversation.direction(side[n]), size[n])
                if stop > start:
                    self.octets(side[n], data[start:stop], at[n])
                start = stop
            elif kind[n] == GAP:
                self.gap(side[n], size[n], at[n])
            elif side[n] == 0:
                self.ended0 = True
            else:
                self.ended1 = True

    def give_up(self, reason: str, at: i64) -> None:
        """Decode no further: the rest of both directions is undecoded."""
        for d in (self.conversation.dialer, self.conversation.acceptor):
            if not d.lost:
                self.conversation.lose(d, 0, d.offset, at, reason)

    def miss(self, side: i64, at: i64) -> None:
        """Nothing of this side was captured: what depends on its frames cannot be judged."""
        d = self.conversation.direction(side)
        self.observer.doubt()
        self.conversation.lose(d, 0, d.offset, at, "none of its packets were captured")
        d.holed = True

    def octets(self, side: i64, data: bytes, at: i64) -> None:
        self.notice(side, at)
        self.observer.feed(side, data, at)
        self.follow()
        self.begin(side, at)

    def gap(self, side: i64, size: i64, at: i64) -> None:
        last = self.passing[side].last_at
        if last != UNSEEN:
            self.stalls.path(side).lose(last, at)
        self.notice(side, at)
        before = self.conversation.unfilled
        self.observer.gap(side, size, at)
        left_out = self.conversation.unfilled - before
        stream = self.conversation.direction(side).stream
        contents = self.contents
        if left_out > 0 and contents is not None and stream is not None and contents.wanted(stream):
            contents.cut += int(left_out)
        self.follow()
        self.begin(side, at)

    def notice(self, side: i64, at: i64) -> None:
        """Octets come: is a bucket over, and was it silent in the middle of a frame?"""
        if at >= self.timeline.boundary:
            self.advance(at)
        passing = self.passing[side]
        last = passing.last_at
        if passing.ordinal >= 0 and at - last >= self.stalls.least and len(passing.silences) < 64:
            passing.silences.append((int(last), int(at)))
        passing.last_at = at

    def begin(self, side: i64, at: i64) -> None:
        """Octets came: remember when the frame began that is not whole yet."""
        passing = self.passing[side]
        d = self.conversation.direction(side)
        if not d.open and not d.begun and d.waiting() == 0:
            passing.ordinal = -1
            return
        ordinal = d.ordinal if d.open else self.conversation.protocol.sight.sent(side)
        if ordinal != passing.ordinal:
            passing.ordinal = ordinal
            passing.began = at
            if len(passing.silences) > 0:
                passing.silences = []

    # --- rows

    def follow(self) -> None:
        """Look at the rows written since the last time."""
        rows = self.rows
        while len(rows.full) > 0:
            batch = rows.full.pop(0)
            page = self.page_of(batch)
            self.read(page, batch.used)
            self.ready.append(page)
            self.page = None
        if rows.batch.used > 0:
            self.read(self.page_of(rows.batch), rows.batch.used)

    def page_of(self, batch: Batch) -> Page:
        page = self.page
        if page is None or page.batch is not batch:
            page = Page(batch, self.pages)
            self.pages += 1
            self.page = page
        return page

    def read(self, page: Page, until: i64) -> None:
        batch = page.batch
        timeline = self.timeline
        nowhere = timeline.nowhere
        track = nowhere
        for i in range(page.done, until):
            side = i64(batch.sender[i])
            at = batch.at[i]
            size = batch.size[i]
            opener = i64(batch.opener[i])
            page.at_us[i] = at // 1000
            if side == 0:
                self.framed0 += size
            else:
                self.framed1 += size
            if opener == NO_STREAM:
                track = nowhere
            else:
                number = batch.number[i]
                incarnation = batch.incarnation[i]
                if (
                    track is nowhere
                    or track.number != number
                    or track.opener != opener
                    or track.incarnation != incarnation
                ):
                    track = self.find(opener, number, incarnation)
                if track.mark != page.number:
                    track.mark = page.number
                    track.place = len(page.labels)
                    page.labels.append(track.label)
                page.stream[i] = track.place
            own = track.side(side)
            own.frames += 1
            if own.first_at == UNSEEN:
                own.first_at = at
            own.last_at = at
            began = at
            passing = self.passing[side]
            if passing.ordinal == batch.ordinal[i]:
                began = passing.began
                if len(passing.silences) > 0:
                    tell_silences(self.stalls, passing, track, side)
            path = self.stalls.path(side)
            runs = path.runs
            if len(path.held) > 0:
                self.stalls.passes(track, side, began)
            if track is not nowhere:
                timeline.touch(track)
                if track.fresh:
                    self.stalls.begin(track)
                self.look(track, side, own, at, began, batch.payload[i])
            runs.add(track, size, began, at)
            own.passed_work = runs.work
            own.passed_full = runs.full
        self.frames += until - page.done
        page.done = until

    def find(self, opener: i64, number: i64, incarnation: i64) -> Track:
        track = self.tracks.find(opener, number, incarnation)
        if track is self.tracks.none:  # the observer was restored: its streams were opened before
            streams = self.conversation.protocol.streams
            for stream in [*streams.all(), *streams.gone]:
                known = self.tracks.find(stream.opener, stream.number, stream.incarnation)
                if known is self.tracks.none:
                    self.tracks.put(Track(stream))
            track = self.tracks.find(opener, number, incarnation)
        return track

    def look(
        self, track: Track, side: i64, own: HalfTrack, at: i64, began: i64, payload: i64
    ) -> None:
        """A frame of `side` has passed: what has changed in its stream?"""
        if self.credit:
            look_at_leave(self.stalls, self.timeline, track, 0, at)
            look_at_leave(self.stalls, self.timeline, track, 1, at)
        half = own.half
        if half.octets != own.octets:
            gained = half.octets - own.octets
            own.gained += gained
            self.stalls.progress(track, side, began, at, payload, gained > payload)
            own.octets = half.octets
        look_at_ends(self.stalls, track, side, at)

    # --- ends

    def advance(self, at: i64) -> None:
        """The current bucket is over."""
        for d in (self.conversation.dialer, self.conversation.acceptor):
            stream = d.stream
            if d.open and stream is not None:  # its header has moved the ledger, its row is to come
                self.timeline.touch(self.find(stream.opener, stream.number, stream.incarnation))
        self.timeline.advance(at)
        for track in self.kept:
            self.tracks.remove(track)
        if len(self.kept) > 0:
            self.kept = []

    def leave(self, stream: Stream, at: i64) -> Track:
        """The stream left the observer's table for good: its track, for the last time."""
        track = self.find(stream.opener, stream.number, stream.incarnation)
        c = self.conversation
        whole = not c.dialer.lost and not c.acceptor.lost and stream.ending != "abandoned"
        self.stalls.finish(track, stream.closed_at if stream.closed_at != UNSEEN else at, whole)
        track.gone = True
        if track.dirty or track.waiting:
            self.kept.append(track)
        else:
            self.tracks.remove(track)
        return track

    def close(self, at: i64) -> None:
        """No more will come: finish the observer, and everything that is measured."""
        if at >= self.timeline.boundary:
            self.advance(at)
        self.finish_open(self.conversation.dialer, at)
        self.finish_open(self.conversation.acceptor, at)
        self.observer.finish(at, self.ended0, self.ended1)
        self.follow()
        for track in self.tracks.all():
            if self.credit:
                look_at_leave(self.stalls, self.timeline, track, 0, at)
                look_at_leave(self.stalls, self.timeline, track, 1, at)
        self.timeline.write(at)
        page = self.page
        if page is not None and page.done > 0:
            self.ready.append(page)
            self.page = None

    def finish_open(self, d: Direction, at: i64) -> None:
        """A frame that never became whole: what kept it?"""
        stream = d.stream
        passing = self.passing[d.side]
        if passing.ordinal >= 0 and passing.ordinal == d.ordinal and stream is not None:
            track = self.find(stream.opener, stream.number, stream.incarnation)
            track.side(d.side).speaking = True
            passing.silences.append((int(passing.last_at), int(at)))
            tell_silences(self.stalls, passing, track, d.side)

    def take_pages(self) -> list[Page]:
        pages = self.ready
        self.ready = []
        return pages
