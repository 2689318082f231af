# mypyc: compiled
"""Minmux: 2^64 one-way streams of items under credit, with limits and a last item.

Here are the verbs. The packets are in `minmux_packets`, the rules in `minmux_rules`, what items
are in `minmux_profile` and `minmux_items`, the bytes in `minmux_wire`, the law in `minmux_law`.
"""

from mypy_extensions import i64

from polymux.core.frames import Frame, FrameHeader
from polymux.core.limits import Limits
from polymux.core.protocol import NO_ID, Protocol
from polymux.core.rules import PendingReply
from polymux.core.side import DIALER, Side
from polymux.core.streams import OPEN, StreamBuffers, StreamState
from polymux.protocols.minmux.codec import MinmuxCodec
from polymux.protocols.minmux.item_codecs import ENDLESS
from polymux.protocols.minmux.packets import (
    FORGO_CREDIT,
    GIVE_CREDIT,
    STOP_READ,
    STOP_WRITE,
    U64_MAX,
    WRITE,
    key_of,
    writer_of,
)
from polymux.protocols.minmux.profile import (
    UNIT_LAST_ITEM,
    Profile,
    StreamFormat,
    byte_profile,
    load_profile,
)


class Minmux(MinmuxCodec):
    """One conversation of an instance. Both sides may use every assigned stream at once, so
    `reach` is how a program gets hold of one; `allocate` only finds one that is still unused."""

    def __init__(
        self,
        limits: Limits,
        vantage: i64,
        profile: Profile,
        canonical_only: bool = True,
        answers_oops: bool = True,
    ) -> None:
        super().__init__(limits, vantage, profile, canonical_only, answers_oops)
        self.next_dialer_id: i64 = 1
        self.next_acceptor_id: i64 = 0
        self.next_frame_items: i64 = 0  # items in the piece that `cut` has just measured

    # --- streams

    def get_stream(self, side: i64, stream_id: int) -> StreamState:
        """The stream with this id, for reading or writing: the current one, or the next use of an
        id that is over and may be used again. ValueError if the id is not assigned."""
        key = key_of(stream_id)
        if self.profile.format_of(key) is None:
            raise ValueError(f"stream {stream_id} is not assigned by the profile")
        stream = self.reserve_stream(side, key)
        if stream.buffers is None:
            stream.buffers = StreamBuffers()
        return stream

    def reserve_stream(self, side: i64, key: i64) -> StreamState:
        stream = self.streams.find(key)
        if stream is not None and not (self.profile.reuse and self.is_over(stream)):
            return stream
        waiting = self.reserved_streams.get(key)
        if waiting is None:
            waiting = self.new_stream(key)
            self.reserved_streams[key] = waiting
        return waiting

    def allocate(self, side: i64) -> i64:
        """An id this side writes that nobody has used; never 2^64-1, whose key is NO_ID."""
        if self.profile.default is None:
            for number in self.profile.assigned_ids:
                key = key_of(number)
                if key != NO_ID and writer_of(key) == side and self.is_free(key):
                    return key
            return NO_ID
        following: i64 = self.next_dialer_id if side == DIALER else self.next_acceptor_id
        while not self.is_free(following):
            following += 2
        if side == DIALER:
            self.next_dialer_id = following + 2
        else:
            self.next_acceptor_id = following + 2
        return following

    def is_free(self, key: i64) -> bool:
        if key in self.reserved_streams:
            return False
        stream = self.streams.find(key)
        return stream is None or (self.profile.reuse and self.is_over(stream))

    def writer_credit(self, stream: StreamState) -> int:
        """Credit the writer of a stream has now."""
        half = stream.half(stream.opener)
        return half.credit_granted - half.credit_spent

    def last_item_offset(self, stream: StreamState) -> i64:
        """Bytes of content before the last item, or -1 while that has not come."""
        return stream.protocol_state - 1

    # --- verbs

    def fill_content_header(
        self, side: i64, stream: StreamState, head: FrameHeader, final: bool
    ) -> None:
        head.kind = WRITE
        own = stream.half(side)
        if own.promised_limit == 0:
            head.amount = 1
            head.credit_cost = 0
        else:
            head.amount = self.next_frame_items
            head.credit_cost = self.next_frame_items

    def next_frame_size(
        self, side: i64, stream: StreamState, rest: i64, quantum: i64, last: bool
    ) -> i64:
        """Whole items only, as many as there is credit and limit for; one at least fits a frame."""
        own = stream.half(side)
        shape = self.profile.format_of(stream.key)
        if shape is None or own.state != OPEN:
            return -1
        if own.promised_limit == 0:
            return rest
        leave = own.credit_granted - own.credit_spent
        if 0 <= own.promised_limit < leave:
            leave = own.promised_limit
        if leave <= 0:
            return -1
        room: i64 = quantum if quantum < rest else rest
        if shape.item_size > 0:
            items: i64 = room // shape.item_size
            if items == 0:
                items = 1
            most: int = items
            if leave < most:
                items = i64(leave)
            self.next_frame_items = items
            return items * shape.item_size
        return self.next_variable_frame_size(stream, shape, room, leave)

    def next_variable_frame_size(
        self, stream: StreamState, stream_format: StreamFormat, room: i64, credit: int
    ) -> i64:
        """The same for items that say their own length: look at the piece itself."""
        lane = stream.buffers
        if lane is None:
            return -1
        piece = lane.outgoing[lane.next_piece]
        start = lane.piece_bytes_sent
        pos = start
        end: i64 = len(piece)
        items: i64 = 0
        whole: int = end
        most: i64 = i64(credit) if credit < whole else end  # no item is shorter than a byte
        while pos < end and items < most:
            size, _ = self.measure_item(stream_format.item_codec, piece, pos, end)
            if size < 0 or (items > 0 and pos + size - start > room):
                break
            pos += size
            items += 1
        self.next_frame_items = items
        return pos - start if items > 0 else -1

    def send_error(self, side: i64, stream: StreamState, data: bytes) -> str:
        """Why this content could never leave: half an item, another's stream, past one's limit."""
        shape = self.profile.format_of(stream.key)
        if shape is None or stream.opener != side:
            return f"stream {stream.label()} is written by the {Side(stream.opener).name.lower()}"
        limit = stream.half(side).promised_limit
        queued = self.queued_items(side, stream) if limit >= 0 else 0  # counting walks the queue
        if limit >= 0 and queued >= limit:
            if shape.last_item_size == UNIT_LAST_ITEM or queued > limit:
                return f"stream {stream.label()} has announced its end: nothing more can follow"
            if not self.holds_items(shape, True, 1, data):
                return f"{len(data)} bytes are not the last item of stream {stream.label()}"
            return ""
        items = self.count_items(shape, data)
        if items < 0:
            return f"{len(data)} bytes are no whole items of stream {stream.label()}"
        if 0 <= limit < queued + items:
            return f"stream {stream.label()} has announced {limit - queued} more items, not {items}"
        return ""

    def count_items(self, stream_format: StreamFormat, data: bytes) -> int:
        """Regular items in these bytes, or -1 if they are not whole."""
        if stream_format.item_size > 0:
            return (
                len(data) // stream_format.item_size
                if len(data) % stream_format.item_size == 0
                else -1
            )
        return (
            -1
            if stream_format.item_size == 0
            else self.count_encoded(stream_format.item_codec, data, 0)
        )

    def queued_items(self, side: i64, stream: StreamState) -> int:
        """Regular items that wait in the stream's lane; one more than the announced limit if the
        last item waits behind them."""
        lane = stream.buffers
        shape = self.profile.format_of(stream.key)
        if lane is None or shape is None or lane.queued_bytes == 0:
            return 0
        limit = stream.half(side).promised_limit
        size: int = shape.item_size
        if size > 0:
            waiting: int = lane.queued_bytes
            return limit + 1 if 0 <= limit * size < waiting else waiting // size
        items = 0
        sent = lane.piece_bytes_sent
        for i in range(lane.next_piece, len(lane.outgoing)):
            if 0 <= limit <= items:
                return limit + 1
            items += self.count_encoded(shape.item_codec, lane.outgoing[i], sent)
            sent = 0
        return items

    def stop_write_frame(self, side: i64, stream: StreamState) -> Frame:
        """Announce that what is queued is all: the stream ends, or its last item may be sent, once
        that has left. To be put at once; content sent after it is the last item."""
        return Frame(STOP_WRITE, stream.key, b"", self.queued_items(side, stream))

    def end_frame(self, side: i64, stream: StreamState) -> Frame | None:
        """The writer will write no more (its last item may follow), or the reader give no more."""
        return self.abort_frame(side, stream, b"")

    def abort_frame(self, side: i64, stream: StreamState, text: bytes) -> Frame | None:
        """Minmux has no abort: the nearest is a limit of 0. An endless stream has none at all."""
        if stream.opener != side:
            return self.stop_reading_frame(side, stream)
        shape = self.profile.format_of(stream.key)
        if (
            shape is None
            or shape.last_item_size == ENDLESS
            or stream.half(side).promised_limit == 0
        ):
            return None
        return Frame(STOP_WRITE, stream.key, b"", 0)

    def stop_reading_frame(self, side: i64, stream: StreamState) -> Frame | None:
        if stream.opener == side or stream.half(side).promised_limit == 0:
            return None
        return Frame(STOP_READ, stream.key, b"", 0)

    def credit_frame(self, side: i64, stream: StreamState, amount: int) -> Frame | None:
        """Credit, as far as our own limit and 2^64-1 allow it."""
        if stream.opener == side:
            return None
        own, peer = stream.half(side), stream.half(stream.opener)
        most = U64_MAX - (peer.credit_granted - peer.credit_spent)
        if 0 <= own.promised_limit < most:
            most = own.promised_limit
        if amount > most:
            amount = most
        if amount <= 0 or peer.state != OPEN:
            return None
        return Frame(GIVE_CREDIT, stream.key, b"", amount)

    def reply_frame(self, reply: PendingReply) -> Frame | None:
        """Answer an Oops with all credit above its wish; a last item only its writer can give.

        A reader that has announced a limit may never give that credit again, so nothing is given
        up while items wait for it.
        """
        stream = self.streams.find(reply.key)
        if reply.kind != FORGO_CREDIT or stream is None:
            return None
        reader = stream.half(1 - reply.side)
        amount = self.writer_credit(stream) - self.pending_oops.get(reply.key, 0)
        waits = (
            reader.promised_limit >= 0
            and stream.buffers is not None
            and stream.buffers.queued_bytes > 0
        )
        if amount <= 0 or waits or stream.half(reply.side).state != OPEN:
            self.reply_received(reply.side, reply.kind, reply.key)
            return None
        return Frame(FORGO_CREDIT, reply.key, b"", amount, stream.incarnation)

    def reply_discards_queued(self, reply: PendingReply) -> bool:
        return False

    # --- saved state

    def save(self) -> dict[str, object]:
        saved = super().save()
        saved["next"] = [self.next_dialer_id, self.next_acceptor_id]
        saved["wishes"] = list(self.pending_oops.items())
        saved["murky"] = sorted(self.ambiguous_ids)
        saved["left"] = list(self.previous_credit.items())
        saved["slack"] = list(self.forgiven_credit.items())
        return saved

    def load(self, saved: dict[str, object]) -> None:
        super().load(saved)
        numbers, wishes = saved["next"], saved["wishes"]
        murky, left, slack = saved["murky"], saved["left"], saved["slack"]
        assert isinstance(numbers, list)
        assert isinstance(wishes, list)
        assert isinstance(murky, list)
        assert isinstance(left, list)
        assert isinstance(slack, list)
        self.next_dialer_id, self.next_acceptor_id = numbers[0], numbers[1]
        self.pending_oops = dict(wishes)
        self.ambiguous_ids = set(murky)
        self.previous_credit = dict(left)
        self.forgiven_credit = dict(slack)


def from_options(options: dict[str, str], limits: Limits, vantage: i64) -> Protocol:
    """`profile=FILE.toml`; `canonical=no` also takes numbers that are longer than need be;
    `oops=ignore` keeps credit that the reader would like to have back."""
    profile = load_profile(options["profile"]) if "profile" in options else byte_profile()
    canonical = options.get("canonical", "yes")
    if canonical not in ("yes", "no"):
        raise ValueError(f"canonical is yes or no, not {canonical!r}")
    answer = options.get("oops", "answer")
    if answer not in ("answer", "ignore"):
        raise ValueError(f"oops is answer or ignore, not {answer!r}")
    return Minmux(limits, vantage, profile, canonical == "yes", answer == "answer")
