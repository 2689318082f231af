# mypyc: compiled
"""Feeds an observer what was captured, and follows its rows: timeline, stalls, content, labels."""

from mypy_extensions import i64

from polymux.analysis.output.content_rows import ContentCollector
from polymux.analysis.output.frame_page import FramePage
from polymux.analysis.tracking.stalls import StallDetector
from polymux.analysis.tracking.stream_tracker import HalfTracker, StreamTracker, StreamTrackerTable
from polymux.analysis.tracking.timeline import Timeline
from polymux.capture.tcp.events import GAP, PAYLOAD, TcpEvents
from polymux.core.connection import Connection
from polymux.core.direction import Direction
from polymux.core.events import EventSink
from polymux.core.frames import FrameRowBatches, FrameRows
from polymux.core.observer import Observer
from polymux.core.protocol import NO_STREAM
from polymux.core.streams import ABORTED, ENDED, NOT_YET, StreamState


class PartialFrame:
    """The frame of one direction that has begun and is not whole."""

    def __init__(self) -> None:
        self.frame_index: i64 = -1
        self.started_at: i64 = 0
        self.last_at: i64 = NOT_YET  # when bytes of this direction last came
        self.silences: list[tuple[int, int]] = []


class SkippedPrefix:
    """Bytes of each side before the first frame: a negotiation, or the rest of a frame whose
    beginning was not captured."""

    def __init__(self, dialer_bytes: i64, acceptor_bytes: i64, is_overhead: bool) -> None:
        self.remaining: i64 = dialer_bytes + acceptor_bytes
        self.dialer_remaining: i64 = dialer_bytes
        self.acceptor_remaining: i64 = acceptor_bytes
        self.is_overhead: bool = is_overhead

    def consume(self, d: Direction, size: i64) -> i64:
        """Count the part of the next `size` bytes of a direction that lies before its first
        frame; returns how many they are."""
        left = self.dialer_remaining if d.side == 0 else self.acceptor_remaining
        cut = size if size < left else left
        if d.side == 0:
            self.dialer_remaining -= cut
        else:
            self.acceptor_remaining -= cut
        self.remaining -= cut
        d.total_bytes += cut
        d.offset += cut
        if self.is_overhead:
            d.overhead_bytes += cut
        else:
            d.undecoded_bytes += cut
        return cut


def update_blocked_time(
    stalls: StallDetector, timeline: Timeline, track: StreamTracker, side: i64, timestamp: i64
) -> None:
    """Has one side of the stream lost or regained its leave since the last look?

    Leave moves only with frames of the stream, and every one of them is followed by a look, so a
    time without leave that is over ended just now.
    """
    own = track.half(side)
    half = own.half
    if half.blocked_ns != own.seen_blocked_ns:
        lasted = half.blocked_ns - own.seen_blocked_ns
        began = own.seen_blocked_since if own.seen_blocked_since != NOT_YET else timestamp - lasted
        stalls.on_unblocked(track, side, began, began + lasted)
        own.seen_blocked_ns = half.blocked_ns
    if half.credit_granted != own.seen_granted:
        stalls.on_credit(track, side, timestamp)
        own.seen_granted = half.credit_granted
    own.seen_blocked_since = half.blocked_since
    if own.seen_blocked_since != NOT_YET and not track.is_blocked:
        timeline.mark_blocked(track)


def report_state_changes(
    stalls: StallDetector, track: StreamTracker, side: i64, timestamp: i64
) -> None:
    """Was an offer accepted, or has a side ended its half, reset or given up the stream?"""
    stream = track.stream
    if stream.accepted and not track.seen_accepted:
        track.seen_accepted = True
        stalls.on_accepted(track, timestamp)
    own = track.half(side)
    state = own.half.state
    if state == ENDED and stream.reset_by == side:  # it had ended its half before
        state = ABORTED
    if state != own.seen_state:
        stalls.on_half_ended(track, side, state, timestamp)


def report_silences(
    stalls: StallDetector, partial_frame: PartialFrame, track: StreamTracker, side: i64
) -> None:
    """The frame that was passing is whole: its stream stood still while nothing came."""
    if track.stream.serial >= 0:
        for since, until in partial_frame.silences:
            stalls.on_mid_frame_silence(track, side, since, until)
    partial_frame.silences = []


class SessionTracker(EventSink):
    """One session. Make it, make the observer with it as sink, then `attach`."""

    def __init__(self, content_collector: ContentCollector | None) -> None:
        self.content_collector: ContentCollector | None = content_collector
        self.wants_content = self.wants_frame_ends = content_collector is not None
        self.stream_trackers: StreamTrackerTable = StreamTrackerTable()
        self.full_pages: list[FramePage] = []
        self.page: FramePage | None = None
        self.page_count: i64 = 0
        self.partial_frames: list[PartialFrame] = [PartialFrame(), PartialFrame()]
        self.frame_count: i64 = 0
        self.dialer_frame_bytes: i64 = 0  # bytes in frames
        self.acceptor_frame_bytes: i64 = 0
        self.dialer_ended: bool = False
        self.acceptor_ended: bool = False
        self.pending_removal: list[
            StreamTracker
        ] = []  # gone, but the current bucket still has to be written
        self.skipped_prefix: SkippedPrefix = SkippedPrefix(0, 0, True)

    def attach(self, observer: Observer, timeline: Timeline, stalls: StallDetector) -> None:
        assert observer.rows is not None
        self.observer: Observer = observer
        self.connection: Connection = observer.connection
        self.rows: FrameRowBatches = observer.rows
        self.timeline: Timeline = timeline
        self.stalls: StallDetector = stalls
        self.has_credit: bool = observer.protocol.has_credit

    # --- the sink

    def opened(self, sender: i64, stream: StreamState) -> None:
        self.stream_trackers.insert(StreamTracker(stream))

    def content(
        self, sender: i64, stream: StreamState, data: bytes, start: i64, end: i64, final: bool
    ) -> None:
        if self.content_collector is not None:
            self.content_collector.add_part(sender, stream, data, start, end)

    def content_frame_ended(
        self, sender: i64, stream: StreamState | None, frame_index: i64, timestamp: i64
    ) -> None:
        if self.content_collector is not None:
            self.content_collector.end_frame(sender, stream, frame_index, timestamp)

    def control(
        self, sender: i64, stream: StreamState | None, kind: i64, amount: int, text: bytes
    ) -> None:
        contents = self.content_collector
        if contents is not None and kind == contents.control_kind:
            c = self.connection
            ordinal = c.protocol.causality.frames_sent(sender) - 1
            contents.add_control_message(sender, text, ordinal, c.direction(sender).received_at)

    # --- bytes in

    def skip_prefix(self, dialer_bytes: i64, acceptor_bytes: i64, is_overhead: bool) -> None:
        """The first bytes of each side are not frames: they are carrier, or else undecoded."""
        self.skipped_prefix = SkippedPrefix(dialer_bytes, acceptor_bytes, is_overhead)

    def feed(self, events: TcpEvents, data: bytes) -> None:
        """The next events of the capture; the bytes of all lie in `data`.

        Not their columns one by one: a compiled function that interpreted code hands a column
        never lets go of it again.
        """
        side = events.side
        kind = events.kind
        at = events.timestamp
        size = events.size
        start: i64 = 0
        for n in range(events.count):
            if kind[n] == PAYLOAD:
                stop = start + size[n]
                if self.skipped_prefix.remaining > 0:
                    start += self.skipped_prefix.consume(
                        self.connection.direction(side[n]), size[n]
                    )
                if stop > start:
                    self.feed_bytes(side[n], data[start:stop], at[n])
                start = stop
            elif kind[n] == GAP:
                self.feed_gap(side[n], size[n], at[n])
            elif side[n] == 0:
                self.dialer_ended = True
            else:
                self.acceptor_ended = True

    def stop_decoding(self, reason: str, timestamp: i64) -> None:
        """Decode no further: the rest of both directions is undecoded."""
        for d in (self.connection.dialer, self.connection.acceptor):
            if not d.decoding_stopped:
                self.connection.stop_decoding(d, 0, d.offset, timestamp, reason)

    def mark_side_missing(self, side: i64, timestamp: i64) -> None:
        """Nothing of this side was captured: what depends on its frames cannot be judged."""
        d = self.connection.direction(side)
        self.observer.mark_uncertain()
        self.connection.stop_decoding(
            d, 0, d.offset, timestamp, "none of its packets were captured"
        )
        d.stopped_by_gap = True

    def feed_bytes(self, side: i64, data: bytes, timestamp: i64) -> None:
        self.before_arrival(side, timestamp)
        self.observer.feed(side, data, timestamp)
        self.process_new_rows()
        self.after_arrival(side, timestamp)

    def feed_gap(self, side: i64, size: i64, timestamp: i64) -> None:
        last = self.partial_frames[side].last_at
        if last != NOT_YET:
            self.stalls.history(side).add_gap(last, timestamp)
        self.before_arrival(side, timestamp)
        before = self.connection.unfilled_bytes
        self.observer.gap(side, size, timestamp)
        left_out = self.connection.unfilled_bytes - before
        stream = self.connection.direction(side).stream
        contents = self.content_collector
        if (
            left_out > 0
            and contents is not None
            and stream is not None
            and contents.is_selected(stream)
        ):
            contents.truncated_bytes += int(left_out)
        self.process_new_rows()
        self.after_arrival(side, timestamp)

    def before_arrival(self, side: i64, timestamp: i64) -> None:
        """Bytes come: is a bucket over, and was it silent in the middle of a frame?"""
        if timestamp >= self.timeline.bucket_end:
            self.advance_timeline(timestamp)
        passing = self.partial_frames[side]
        last = passing.last_at
        if (
            passing.frame_index >= 0
            and timestamp - last >= self.stalls.min_stall_ns
            and len(passing.silences) < 64
        ):
            passing.silences.append((int(last), int(timestamp)))
        passing.last_at = timestamp

    def after_arrival(self, side: i64, timestamp: i64) -> None:
        """Bytes came: remember when the frame began that is not whole yet."""
        passing = self.partial_frames[side]
        d = self.connection.direction(side)
        if not d.in_payload and not d.frame_started and d.buffered_bytes() == 0:
            passing.frame_index = -1
            return
        ordinal = (
            d.frame_index if d.in_payload else self.connection.protocol.causality.frames_sent(side)
        )
        if ordinal != passing.frame_index:
            passing.frame_index = ordinal
            passing.started_at = timestamp
            if len(passing.silences) > 0:
                passing.silences = []

    # --- rows

    def process_new_rows(self) -> None:
        """Look at the rows written since the last time."""
        rows = self.rows
        while len(rows.full_batches) > 0:
            batch = rows.full_batches.pop(0)
            page = self.page_for(batch)
            self.process_rows(page, batch.used)
            self.full_pages.append(page)
            self.page = None
        if rows.batch.used > 0:
            self.process_rows(self.page_for(rows.batch), rows.batch.used)

    def page_for(self, batch: FrameRows) -> FramePage:
        page = self.page
        if page is None or page.batch is not batch:
            page = FramePage(batch, self.page_count)
            self.page_count += 1
            self.page = page
        return page

    def process_rows(self, page: FramePage, until: i64) -> None:
        batch = page.batch
        timeline = self.timeline
        nowhere = timeline.no_stream
        track = nowhere
        for i in range(page.row_count, until):
            side = i64(batch.sender[i])
            at = batch.time[i]
            size = batch.size[i]
            opener = i64(batch.opener[i])
            page.time_us[i] = at // 1000
            if side == 0:
                self.dialer_frame_bytes += size
            else:
                self.acceptor_frame_bytes += size
            if opener == NO_STREAM:
                track = nowhere
            else:
                number = batch.stream_id[i]
                incarnation = batch.incarnation[i]
                if (
                    track is nowhere
                    or track.stream_id != number
                    or track.opener != opener
                    or track.incarnation != incarnation
                ):
                    track = self.find_stream(opener, number, incarnation)
                if track.page_id != page.page_id:
                    track.page_id = page.page_id
                    track.label_index = len(page.labels)
                    page.labels.append(track.label)
                page.label_index[i] = track.label_index
            own = track.half(side)
            own.bucket_frames += 1
            if own.first_at == NOT_YET:
                own.first_at = at
            own.last_at = at
            began = at
            passing = self.partial_frames[side]
            if passing.frame_index == batch.frame_index[i]:
                began = passing.started_at
                if len(passing.silences) > 0:
                    report_silences(self.stalls, passing, track, side)
            path = self.stalls.history(side)
            runs = path.runs
            if len(path.hol_suspects) > 0:
                self.stalls.on_frame_start(track, side, began)
            if track is not nowhere:
                timeline.mark_dirty(track)
                if track.is_new:
                    self.stalls.on_first_frame(track)
                self.update_stream(track, side, own, at, began, batch.payload_bytes[i])
            runs.add(track, size, began, at)
            own.busy_ns_at_last_frame = runs.busy_ns
            own.saturated_ns_at_last_frame = runs.saturated_ns
        self.frame_count += until - page.row_count
        page.row_count = until

    def find_stream(self, opener: i64, stream_id: i64, incarnation: i64) -> StreamTracker:
        track = self.stream_trackers.find(opener, stream_id, incarnation)
        if (
            track is self.stream_trackers.empty_slot
        ):  # the observer was restored: its streams were opened before
            streams = self.connection.protocol.streams
            for stream in [*streams.all(), *streams.removed]:
                known = self.stream_trackers.find(
                    stream.opener, stream.stream_id, stream.incarnation
                )
                if known is self.stream_trackers.empty_slot:
                    self.stream_trackers.insert(StreamTracker(stream))
            track = self.stream_trackers.find(opener, stream_id, incarnation)
        return track

    def update_stream(
        self,
        track: StreamTracker,
        side: i64,
        own: HalfTracker,
        timestamp: i64,
        began: i64,
        payload: i64,
    ) -> None:
        """A frame of `side` has passed: what has changed in its stream?"""
        if self.has_credit:
            update_blocked_time(self.stalls, self.timeline, track, 0, timestamp)
            update_blocked_time(self.stalls, self.timeline, track, 1, timestamp)
        half = own.half
        if half.content_bytes != own.seen_content_bytes:
            gained = half.content_bytes - own.seen_content_bytes
            own.bucket_bytes += gained
            self.stalls.on_content(track, side, began, timestamp, payload, gained > payload)
            own.seen_content_bytes = half.content_bytes
        report_state_changes(self.stalls, track, side, timestamp)

    # --- ends

    def advance_timeline(self, timestamp: i64) -> None:
        """The current bucket is over."""
        for d in (self.connection.dialer, self.connection.acceptor):
            stream = d.stream
            if (
                d.in_payload and stream is not None
            ):  # its header has moved the ledger, its row is to come
                self.timeline.mark_dirty(
                    self.find_stream(stream.opener, stream.stream_id, stream.incarnation)
                )
        self.timeline.advance(timestamp)
        for track in self.pending_removal:
            self.stream_trackers.remove(track)
        if len(self.pending_removal) > 0:
            self.pending_removal = []

    def release_stream(self, stream: StreamState, timestamp: i64) -> StreamTracker:
        """The stream left the observer's table for good: its track, for the last time."""
        track = self.find_stream(stream.opener, stream.stream_id, stream.incarnation)
        c = self.connection
        whole = (
            not c.dialer.decoding_stopped
            and not c.acceptor.decoding_stopped
            and stream.ending != "abandoned"
        )
        self.stalls.finish(
            track, stream.closed_at if stream.closed_at != NOT_YET else timestamp, whole
        )
        track.removed = True
        if track.dirty or track.is_blocked:
            self.pending_removal.append(track)
        else:
            self.stream_trackers.remove(track)
        return track

    def close(self, timestamp: i64) -> None:
        """No more will come: finish the observer, and everything that is measured."""
        if timestamp >= self.timeline.bucket_end:
            self.advance_timeline(timestamp)
        self.finish_partial_frame(self.connection.dialer, timestamp)
        self.finish_partial_frame(self.connection.acceptor, timestamp)
        self.observer.finish(timestamp, self.dialer_ended, self.acceptor_ended)
        self.process_new_rows()
        for track in self.stream_trackers.all():
            if self.has_credit:
                update_blocked_time(self.stalls, self.timeline, track, 0, timestamp)
                update_blocked_time(self.stalls, self.timeline, track, 1, timestamp)
        self.timeline.write_bucket(timestamp)
        page = self.page
        if page is not None and page.row_count > 0:
            self.full_pages.append(page)
            self.page = None

    def finish_partial_frame(self, direction: Direction, timestamp: i64) -> None:
        """A frame that never became whole: what kept it?"""
        stream = direction.stream
        passing = self.partial_frames[direction.side]
        if (
            passing.frame_index >= 0
            and passing.frame_index == direction.frame_index
            and stream is not None
        ):
            track = self.find_stream(stream.opener, stream.stream_id, stream.incarnation)
            track.half(direction.side).ends_mid_frame = True
            passing.silences.append((int(passing.last_at), int(timestamp)))
            report_silences(self.stalls, passing, track, direction.side)

    def take_pages(self) -> list[FramePage]:
        pages = self.full_pages
        self.full_pages = []
        return pages
