# mypyc: compiled
"""Feed captured bytes to an observer and measure each frame: timeline, stalls, content, labels.

The observer decodes and writes one row per complete frame. After each chunk the tracker processes
the new rows, finds the stream of each (`StreamTrackerTable`), compares its state with the state at
the last update (`HalfTracker.seen_*`) and reports the differences to the stall detector and the
timeline. Nothing is kept per frame; the rows leave as pages (`take_pages`).
"""

from mypy_extensions import i64

from polymux.analysis.output.row_columns import ContentCollector, FramePage
from polymux.analysis.tls.records import OffsetMap
from polymux.analysis.tracking.missing_content import MissingContent
from polymux.analysis.tracking.stalls import StallDetector
from polymux.analysis.tracking.stream_tracker import HalfTracker, StreamTracker, StreamTrackerTable
from polymux.analysis.tracking.timeline import Timeline
from polymux.capture.tcp.reassembly import GAP, PAYLOAD, UNDECODABLE, TcpEvents
from polymux.core.boundary_search import GAP as HELD_GAP
from polymux.core.boundary_search import RECEIVED, SKIPPED, HeldChunk
from polymux.core.connection import Connection
from polymux.core.direction import Direction
from polymux.core.events import EventSink
from polymux.core.frames import FrameRowBatches, FrameRows
from polymux.core.observer import Observer
from polymux.core.protocol import NO_STREAM
from polymux.core.streams import ABORTED, ENDED, NOT_YET, StreamState


class PartialFrame:
    """The frame of one direction that has started and is not complete; `frame_index` -1: none."""

    def __init__(self) -> None:
        self.frame_index: i64 = -1
        self.started_at: i64 = 0
        self.last_at: i64 = NOT_YET  # when bytes of this direction last arrived
        self.silences: list[tuple[int, int]] = []  # (start, end) of pauses inside the frame


class SkippedPrefix:
    """Bytes of each side before the first frame: a negotiation, which counts as overhead."""

    def __init__(self, dialer_bytes: i64, acceptor_bytes: i64) -> None:
        self.remaining: i64 = dialer_bytes + acceptor_bytes
        self.dialer_remaining: i64 = dialer_bytes
        self.acceptor_remaining: i64 = acceptor_bytes

    def consume(self, d: Direction, size: i64) -> i64:
        """Count how many of the next `size` bytes of a direction precede its first frame.

        They are added to the direction's overhead. Return their number.
        """
        left = self.dialer_remaining if d.side == 0 else self.acceptor_remaining
        cut = size if size < left else left
        if d.side == 0:
            self.dialer_remaining -= cut
        else:
            self.acceptor_remaining -= cut
        self.remaining -= cut
        d.total_bytes += cut
        d.offset += cut
        d.overhead_bytes += cut
        return cut


def update_blocked_time(
    stalls: StallDetector, timeline: Timeline, track: StreamTracker, side: i64, timestamp: i64
) -> None:
    """Report to stalls and timeline whether a side lost or regained credit since the last update.

    Credit changes only with frames of the stream, and every frame is followed by an update, so a
    blocked time that is over ended with the current frame.
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
    """Report an accepted offer, and a half that was ended, reset or cancelled."""
    stream = track.stream
    if stream.accepted and not track.seen_accepted:
        track.seen_accepted = True
        stalls.on_accepted(track, timestamp)
    own = track.half(side)
    state = own.half.state
    if state == ENDED and stream.reset_by == side:  # it had ended its half before the reset
        state = ABORTED
    if state != own.seen_state:
        stalls.on_half_ended(track, side, state, timestamp)


def report_silences(
    stalls: StallDetector, partial_frame: PartialFrame, track: StreamTracker, side: i64
) -> None:
    """The partial frame is complete: report the pauses inside it, if it belongs to a stream."""
    if track.stream.serial >= 0:
        for since, until in partial_frame.silences:
            stalls.on_mid_frame_silence(track, side, since, until)
    partial_frame.silences = []


def unfinished_frame_offset(observer: Observer, d: Direction) -> i64:
    """Where the frame of a direction begins whose bytes are arriving, or else its next frame."""
    start = d.frame_offset if d.in_payload else d.offset
    websocket = observer.websocket
    if websocket is not None:
        message = i64(websocket.direction_decoder(d.side).decoder.message_start_offset())
        if 0 <= message < start:
            return message
    return start


class SessionTracker(EventSink):
    """Feeds and measures one session.

    Create it, create the observer with it as sink, then call `attach`. `feed` takes the events of
    the capture, `close` ends the session. `missing` collects what was not captured, if given; the
    caller takes it out after each `feed`.
    """

    def __init__(
        self, content_collector: ContentCollector | None, missing: MissingContent | None = None
    ) -> None:
        self.content_collector: ContentCollector | None = content_collector
        self.missing: MissingContent | None = missing
        self.wants_content = self.wants_frame_ends = content_collector is not None
        self.stream_trackers: StreamTrackerTable = StreamTrackerTable()
        self.full_pages: list[FramePage] = []
        self.page: FramePage | None = None
        self.page_count: i64 = 0
        self.partial_frames: list[PartialFrame] = [PartialFrame(), PartialFrame()]
        self.frame_count: i64 = 0
        self.dialer_frame_bytes: i64 = 0  # total size of the frames of each side
        self.acceptor_frame_bytes: i64 = 0
        self.dialer_ended: bool = False
        self.acceptor_ended: bool = False
        # Removed streams that still have a row in the current timeline bucket:
        self.pending_removal: list[StreamTracker] = []
        self.skipped_prefix: SkippedPrefix = SkippedPrefix(0, 0)
        # From the offsets of opened bytes to those on the wire; None if the session is not in TLS.
        self.dialer_offsets: OffsetMap | None = None
        self.acceptor_offsets: OffsetMap | None = None

    def attach(self, observer: Observer, timeline: Timeline, stalls: StallDetector) -> None:
        assert observer.rows is not None
        self.observer: Observer = observer
        self.connection: Connection = observer.connection
        self.rows: FrameRowBatches = observer.rows
        self.timeline: Timeline = timeline
        self.stalls: StallDetector = stalls
        self.has_credit: bool = observer.protocol.has_credit

    # EventSink

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
        collector = self.content_collector
        if collector is not None and kind == collector.control_kind:
            c = self.connection
            frame_index = c.protocol.causality.frames_sent(sender) - 1
            collector.add_control_message(
                sender, text, frame_index, c.direction(sender).received_at
            )

    # Receiving

    def skip_prefix(self, dialer_bytes: i64, acceptor_bytes: i64) -> None:
        """Skip the first bytes of each side: they count as overhead, or else as undecoded."""
        self.skipped_prefix = SkippedPrefix(dialer_bytes, acceptor_bytes)

    def feed(self, events: TcpEvents, data: bytes) -> None:
        """Process the next events of the capture; `data` holds the payload of all of them.

        Takes the event batch and not its columns: a `vec` that interpreted code passes to compiled
        code is never freed.
        """
        side = events.side
        kind = events.kind
        at = events.timestamp
        size = events.size
        start: i64 = 0
        missing = self.missing
        self.forget_offsets(self.connection.dialer, self.dialer_offsets)
        self.forget_offsets(self.connection.acceptor, self.acceptor_offsets)
        for n in range(events.count):
            if kind[n] == PAYLOAD:
                stop = start + size[n]
                if self.skipped_prefix.remaining > 0:
                    skipped = self.skipped_prefix.consume(
                        self.connection.direction(side[n]), size[n]
                    )
                    if missing is not None:
                        missing.arrived[side[n]] += int(skipped)
                    start += skipped
                if stop > start:
                    self.feed_bytes(side[n], data[start:stop], at[n])
                start = stop
            elif kind[n] == GAP:
                if size[n] > 0:
                    self.feed_gap(side[n], size[n], at[n])
                else:  # of an encapsulation: something may be missing here
                    self.observer.mark_uncertain()
            elif kind[n] == UNDECODABLE:
                self.stop_side(side[n], at[n])
            elif side[n] == 0:
                self.dialer_ended = True
            else:
                self.acceptor_ended = True

    def stop_decoding(self, reason: str, timestamp: i64) -> None:
        """Stop decoding: the rest of both directions counts as undecoded."""
        self.release_held()
        for d in (self.connection.dialer, self.connection.acceptor):
            if not d.decoding_stopped:
                self.connection.stop_decoding(d, 0, d.offset, timestamp, reason)
        self.observer.end_search()

    def release_held(self) -> None:
        """Decide where frames begin, and process what was held until then."""
        if self.observer.has_searched:
            self.observer.boundaries.decide_now()
            self.process_ready()

    def stop_side(self, side: i64, timestamp: i64) -> None:
        """The encapsulation can read no more of this side."""
        self.release_held()
        d = self.connection.direction(side)
        self.observer.mark_uncertain()
        if not d.decoding_stopped:
            self.connection.stop_decoding(
                d, 0, d.offset, timestamp, "its TLS records are not opened any further"
            )

    # Offsets on the wire

    def use_wire_offsets(self, dialer: OffsetMap, acceptor: OffsetMap) -> None:
        """Report offsets on the wire: the bytes that `feed` gets were opened."""
        self.dialer_offsets = dialer
        self.acceptor_offsets = acceptor

    def wire_offset(self, side: i64, offset: i64) -> i64:
        """The offset on the wire of a byte of a direction."""
        offsets = self.dialer_offsets if side == 0 else self.acceptor_offsets
        return offset if offsets is None or offset < 0 else offsets.to_wire(offset)

    def forget_offsets(self, d: Direction, offsets: OffsetMap | None) -> None:
        """Drop what no frame refers to any more: all rows up to now have their offsets."""
        if offsets is None:
            return
        offsets.forget_before(unfinished_frame_offset(self.observer, d), d.offset)

    def mark_side_missing(self, side: i64, timestamp: i64) -> None:
        """No packet of this side was captured: rules that depend on its frames are not checked."""
        d = self.connection.direction(side)
        self.observer.mark_uncertain()
        self.connection.stop_decoding(
            d, 0, d.offset, timestamp, "none of its packets were captured"
        )
        d.stopped_by_gap = True

    def feed_bytes(self, side: i64, data: bytes, timestamp: i64) -> None:
        if self.connection.searching:
            self.observer.boundaries.push(HeldChunk(RECEIVED, side, data, 0, timestamp))
            self.process_ready()
        else:
            self.decode_bytes(side, data, timestamp)

    def feed_gap(self, side: i64, size: i64, timestamp: i64) -> None:
        if self.connection.searching:
            self.observer.boundaries.push(HeldChunk(HELD_GAP, side, b"", size, timestamp))
            self.process_ready()
        else:
            self.decode_gap(side, size, timestamp)

    def process_ready(self) -> None:
        """Process what the search for the start of a frame no longer holds."""
        boundaries = self.observer.boundaries
        chunk = boundaries.next_ready()
        while chunk is not None:
            if chunk.kind == RECEIVED:
                self.decode_bytes(chunk.side, chunk.data, chunk.timestamp)
            elif chunk.kind == HELD_GAP:
                self.decode_gap(chunk.side, chunk.size, chunk.timestamp)
            else:
                if chunk.kind == SKIPPED and self.missing is not None:
                    sent = self.connection.protocol.causality.frames_sent(chunk.side)
                    self.missing.add_undecoded(chunk.side, len(chunk.data), chunk.timestamp, sent)
                self.observer.process(chunk)
            chunk = boundaries.next_ready()

    def decode_bytes(self, side: i64, data: bytes, timestamp: i64) -> None:
        if self.missing is not None:
            self.missing.arrived[side] += len(data)
        self.before_arrival(side, timestamp)
        self.observer.decode_bytes(side, data, timestamp)
        self.process_new_rows()
        self.after_arrival(side, timestamp)

    def decode_gap(self, side: i64, size: i64, timestamp: i64) -> None:
        last = self.partial_frames[side].last_at
        if last != NOT_YET:
            self.stalls.history(side).add_gap(last, timestamp)
        self.before_arrival(side, timestamp)
        before = self.connection.unfilled_bytes
        d = self.connection.direction(side)
        missing = self.missing
        frame_start = d.frame_offset if d.in_payload else d.offset
        was_decoding = not d.decoding_stopped
        if missing is not None:
            sent = self.connection.protocol.causality.frames_sent(side)
            missing.add_gap(d, size, timestamp, sent)
        undecoded = d.undecoded_bytes
        self.observer.decode_gap(side, size, timestamp)
        if missing is not None and was_decoding and d.searching:
            missing.add_cut_frame(side, frame_start, d.undecoded_bytes - undecoded, timestamp)
        elif missing is not None and was_decoding and d.decoding_stopped:
            missing.stopped_at[side] = int(frame_start)
        left_out = self.connection.unfilled_bytes - before
        stream = d.stream
        collector = self.content_collector
        if (
            left_out > 0
            and collector is not None
            and stream is not None
            and collector.is_selected(stream)
        ):
            collector.truncated_bytes += int(left_out)
        self.process_new_rows()
        self.after_arrival(side, timestamp)

    def before_arrival(self, side: i64, timestamp: i64) -> None:
        """Before bytes are processed: advance the timeline, and note a pause inside a frame."""
        if timestamp >= self.timeline.bucket_end:
            self.advance_timeline(timestamp)
        partial = self.partial_frames[side]
        last = partial.last_at
        if (
            partial.frame_index >= 0
            and timestamp - last >= self.stalls.min_stall_ns
            and len(partial.silences) < 64
        ):
            partial.silences.append((int(last), int(timestamp)))
        partial.last_at = timestamp

    def after_arrival(self, side: i64, timestamp: i64) -> None:
        """After bytes were processed: remember when the partial frame started."""
        partial = self.partial_frames[side]
        d = self.connection.direction(side)
        if not d.in_payload and not d.frame_started and d.buffered_bytes() == 0:
            partial.frame_index = -1
            return
        frame_index = (
            d.frame_index if d.in_payload else self.connection.protocol.causality.frames_sent(side)
        )
        if frame_index != partial.frame_index:
            partial.frame_index = frame_index
            partial.started_at = timestamp
            if len(partial.silences) > 0:
                partial.silences = []

    # Frame rows

    def process_new_rows(self) -> None:
        """Process the rows that the observer wrote since the last call."""
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
        """The page of a batch of rows; a new one for a new batch."""
        page = self.page
        if page is None or page.batch is not batch:
            page = FramePage(batch, self.page_count)
            self.page_count += 1
            self.page = page
        return page

    def process_rows(self, page: FramePage, until: i64) -> None:
        """Process the rows of a page up to `until`: one loop, because it runs for every frame."""
        batch = page.batch
        timeline = self.timeline
        no_stream = timeline.no_stream
        track = no_stream
        for i in range(page.row_count, until):
            side = i64(batch.sender[i])
            at = batch.time[i]
            size = batch.size[i]
            opener = i64(batch.opener[i])
            page.time_us[i] = at // 1000
            if self.dialer_offsets is not None:
                batch.byte_offset[i] = self.wire_offset(side, batch.byte_offset[i])
            if side == 0:
                self.dialer_frame_bytes += size
            else:
                self.acceptor_frame_bytes += size
            if opener == NO_STREAM:
                track = no_stream
            else:
                number = batch.stream_id[i]
                incarnation = batch.incarnation[i]
                if (
                    track is no_stream
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
            partial = self.partial_frames[side]
            if partial.frame_index == batch.frame_index[i]:
                began = partial.started_at
                if len(partial.silences) > 0:
                    report_silences(self.stalls, partial, track, side)
            history = self.stalls.history(side)
            runs = history.runs
            if len(history.hol_suspects) > 0:
                self.stalls.on_frame_start(track, side, began)
            if track is not no_stream:
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
        """The tracker of a stream that the observer knows."""
        track = self.stream_trackers.find(opener, stream_id, incarnation)
        if track is self.stream_trackers.empty_slot:
            # The observer was restored: its streams were opened before the tracker was attached.
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
        """Report what a frame of `side` changed in its stream."""
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

    # Ends of buckets, streams and the session

    def advance_timeline(self, timestamp: i64) -> None:
        """The current bucket ends before `timestamp`: write it."""
        for d in (self.connection.dialer, self.connection.acceptor):
            stream = d.stream
            if d.in_payload and stream is not None:
                # Its header has changed the credit; its row follows.
                self.timeline.mark_dirty(
                    self.find_stream(stream.opener, stream.stream_id, stream.incarnation)
                )
        self.timeline.advance(timestamp)
        for track in self.pending_removal:
            self.stream_trackers.remove(track)
        if len(self.pending_removal) > 0:
            self.pending_removal = []

    def forget_removed(self, timestamp: i64) -> None:
        """End the current bucket at `timestamp` without a next one, and drop removed streams.

        For a session without a known end, whose timeline is not wanted: its bucket would never
        end, and hold every stream that was removed in it.
        """
        self.timeline.write_bucket(timestamp)
        self.timeline.take_rows()
        for track in self.pending_removal:
            self.stream_trackers.remove(track)
        if len(self.pending_removal) > 0:
            self.pending_removal = []

    def release_stream(self, stream: StreamState, timestamp: i64) -> StreamTracker:
        """The stream was removed from the observer's table: finish and return its tracker."""
        track = self.find_stream(stream.opener, stream.stream_id, stream.incarnation)
        c = self.connection
        complete = (
            not c.dialer.has_unseen_frames()
            and not c.acceptor.has_unseen_frames()
            and stream.ending != "abandoned"
        )
        self.stalls.finish(
            track, stream.closed_at if stream.closed_at != NOT_YET else timestamp, complete
        )
        track.removed = True
        if track.dirty or track.is_blocked:
            self.pending_removal.append(track)
        else:
            self.stream_trackers.remove(track)
        return track

    def close(self, timestamp: i64) -> None:
        """The session ends at `timestamp`: finish the observer, the stalls and the timeline."""
        self.release_held()
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
        """Report the pauses inside a frame that was not complete when the capture ended."""
        stream = direction.stream
        partial = self.partial_frames[direction.side]
        if (
            partial.frame_index >= 0
            and partial.frame_index == direction.frame_index
            and stream is not None
        ):
            track = self.find_stream(stream.opener, stream.stream_id, stream.incarnation)
            track.half(direction.side).ends_mid_frame = True
            partial.silences.append((int(partial.last_at), int(timestamp)))
            report_silences(self.stalls, partial, track, direction.side)

    def frame_rows(self) -> list[FrameRows]:
        """The rows of all pages that were not taken yet."""
        found = [page.batch for page in self.full_pages]
        if self.page is not None:
            found.append(self.page.batch)
        return found

    def take_pages(self) -> list[FramePage]:
        """The full pages of rows since the last call."""
        pages = self.full_pages
        self.full_pages = []
        return pages
