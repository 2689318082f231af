# mypyc: compiled
"""A page that short sessions share."""

from librt.vecs import vec
from mypy_extensions import i32, i64

from polymux.analysis.output.frame_page import Page
from polymux.analysis.output.string_dictionary import LabelPlaces
from polymux.core.frames import Batch


class SharedPage:
    """Rows of several sessions of one protocol, copied from their own pages in the order they come.

    `session` is the place of each row's session among `sessions`. The page is handed on whole and
    never reused.
    """

    def __init__(self, room: i64) -> None:
        self.page: Page = Page(Batch(room), 0)
        self.session: vec[i32] = vec[i32]([i32(0)] * room)
        self.sessions: dict[str, int] = {}
        self.streams: LabelPlaces = LabelPlaces()
        self.page.labels = self.streams.labels

    def has_room(self, page: Page) -> bool:
        """Can the rows of this page be added?"""
        return page.done <= self.page.batch.room - self.page.done

    def add(self, page: Page, session: str) -> None:
        """Copy the rows of a page, for which there must be room."""
        assert self.has_room(page)
        own = i32(self.sessions.setdefault(session, len(self.sessions)))
        places: vec[i64] = vec[i64]([0] * len(page.labels))
        for n in range(i64(len(page.labels))):
            places[n] = self.streams.of(page.labels[n])
        new = self.page
        to = new.batch
        rows = page.batch
        end = new.done
        for i in range(page.done):
            self.session[end] = own
            to.sender[end] = rows.sender[i]
            to.ordinal[end] = rows.ordinal[i]
            new.at_us[end] = page.at_us[i]
            to.offset[end] = rows.offset[i]
            to.size[end] = rows.size[i]
            to.kind[end] = rows.kind[i]
            stream = page.stream[i]
            new.stream[end] = places[stream] if stream >= 0 else stream
            to.amount[end] = rows.amount[i]
            to.payload[end] = rows.payload[i]
            to.verdict[end] = rows.verdict[i]
            end += 1
        new.done = end
