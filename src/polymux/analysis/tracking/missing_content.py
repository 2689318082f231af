# mypyc: compiled
"""What is missing from a captured session: where, how much, and of which stream if that is known.

Two kinds of bytes are missing: those that were not captured, and those that were captured and could
not be decoded because of that.
"""

from mypy_extensions import i64

from polymux.core.direction import Direction


class MissingRange:
    """Bytes of one direction that are missing.

    Args:
        sender: The side that sent them.
        byte_offset: Where they begin in the bytes of that side; -1: not known.
        size: How many there are; -1: not known.
        timestamp: When they were found to be missing, in nanoseconds.
        frame_index: The frame of that side they belong to, or else its next one.
        stream: The stream of the frame that they lie in wholly; "" if there is none.
        inside_frame: Whether they lie in the payload of one frame, which was decoded.
        is_content: Whether that payload is content, in which zeros take their place.
        captured: Whether they were captured and could only not be decoded.
    """

    def __init__(
        self,
        sender: i64,
        byte_offset: i64,
        size: i64,
        timestamp: i64,
        frame_index: i64,
        stream: str = "",
        inside_frame: bool = False,
        is_content: bool = False,
        captured: bool = False,
    ) -> None:
        self.sender: i64 = sender
        self.byte_offset: i64 = byte_offset
        self.size: i64 = size
        self.timestamp: i64 = timestamp
        self.frame_index: i64 = frame_index
        self.stream: str = stream
        self.inside_frame: bool = inside_frame
        self.is_content: bool = is_content
        self.captured: bool = captured


class MissingContent:
    """Collects the missing ranges of one session.

    `ranges` are those not taken yet, `found` says whether there was any. `arrived` counts the bytes
    of each side so far, captured or not. `stopped_at` is where a gap stopped the decoding of each
    side for good, -1 if none did. `undecoded` counts the bytes of each side that were captured,
    could not be decoded, and are in a range already.
    """

    def __init__(self) -> None:
        self.ranges: list[MissingRange] = []
        self.found: bool = False
        self.arrived: list[int] = [0, 0]
        self.stopped_at: list[int] = [-1, -1]
        self.undecoded: list[int] = [0, 0]

    def add(self, missing: MissingRange) -> None:
        self.ranges.append(missing)
        self.found = True

    def add_gap(self, d: Direction, size: i64, timestamp: i64, frames_sent: i64) -> None:
        """The next `size` bytes of a direction, which does not know it yet, were not captured."""
        at: i64 = self.arrived[d.side]
        self.arrived[d.side] += int(size)
        if d.in_payload and size <= d.part_bytes_left and not d.decoding_stopped:
            stream = d.stream
            self.add(
                MissingRange(
                    d.side,
                    at,
                    size,
                    timestamp,
                    d.frame_index,
                    stream.label() if stream is not None else "",
                    True,
                    stream is not None and d.is_content and d.content_counts,
                )
            )
        else:
            frame_index = d.frame_index if d.in_payload else frames_sent
            self.add(MissingRange(d.side, at, size, timestamp, frame_index))

    def add_undecoded(self, side: i64, size: i64, timestamp: i64, frames_sent: i64) -> None:
        """The next `size` bytes of a side precede the first start of a frame that was found."""
        at: i64 = self.arrived[side]
        self.arrived[side] += int(size)
        self.undecoded[side] += int(size)
        last = self.ranges[-1] if len(self.ranges) > 0 else None
        if (
            last is not None
            and last.captured
            and last.sender == side
            and (last.byte_offset + last.size == at)
        ):
            last.size += size
        else:
            self.add(MissingRange(side, at, size, timestamp, frames_sent, captured=True))

    def add_cut_frame(self, side: i64, byte_offset: i64, size: i64, timestamp: i64) -> None:
        """The `size` bytes from `byte_offset` on are of a frame that a gap has cut."""
        if size > 0:
            self.undecoded[side] += int(size)
            self.add(MissingRange(side, byte_offset, size, timestamp, 0, captured=True))

    def take(self) -> list[MissingRange]:
        """The ranges since the last call."""
        ranges = self.ranges
        self.ranges = []
        return ranges
