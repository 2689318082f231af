"""The table macros that a database has besides the tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

BAR_CHARACTERS: Final = 40  # width of the bars of `waterfall`


@dataclass(frozen=True, slots=True)
class Macro:
    """A table macro: how it is called, what it answers, and the query behind it."""

    call: str
    meaning: str
    query: str


# The parameters have names that no column has: they would stand for the column.
MACROS: Final = (
    Macro(
        "why(wanted)",
        "What happened to a stream, in the order of time: opened, accepted, every stall with its "
        "cause, every violation, and how it ended. The stream is written as in `streams`, or with "
        "the first characters of its session: `why('d1')`, `why('3f2a/d1')`.",
        """
with picked as materialized (
    select * from streams
    where stream = split_part(wanted, '/', -1)
      and (not contains(wanted, '/') or starts_with(session_id, split_part(wanted, '/', 1)))
), happened as (
    select session_id, stream, opened_at as time, 'opened' as what, opener as sender,
        null::bigint as duration_us, name as detail
    from picked where opened_at is not null
    union all
    select session_id, stream, accepted_at, 'accepted',
        case opener when 'dialer' then 'acceptor' else 'dialer' end, null, null
    from picked where accepted_at is not null
    union all
    select session_id, stream, started_at, 'stall: ' || cause, sender, duration_us,
        coalesce('behind ' || blocking_stream || coalesce(': ' || detail, ''), detail)
    from stalls semi join picked using (session_id, stream)
    union all
    select session_id, stream, time, severity || ': ' || rule, sender, null, detail
    from violations semi join picked using (session_id, stream)
    union all
    select session_id, stream, coalesce(closed_at, greatest(last_at_dialer, last_at_acceptor)),
        'ended: ' || ending, reset_by, null, error
    from picked
)
select * from happened order by session_id, stream, time, what
""",
    ),
    Macro(
        "waterfall(wanted)",
        "The streams of a session, named by the first characters of its id, in the order in which "
        "they began, each with its bytes, its stalls, how it ended, and a bar that shows when it "
        "was open.",
        f"""
with spans as (
    select t.*, s.started_at,
        greatest(1, epoch_us(s.ended_at) - epoch_us(s.started_at)) as total_us,
        epoch_us(coalesce(opened_at, least(first_at_dialer, first_at_acceptor), s.started_at))
            - epoch_us(s.started_at) as start_us,
        epoch_us(coalesce(closed_at, greatest(last_at_dialer, last_at_acceptor), s.ended_at))
            - epoch_us(s.started_at) as end_us
    from streams t join sessions s using (session_id)
    where starts_with(session_id, wanted)
)
select session_id, stream, name, start_us, end_us - start_us as lasted_us,
    bytes_dialer + bytes_acceptor as bytes, stalled_us_dialer + stalled_us_acceptor as stalled_us,
    ending,
    repeat('.', least({BAR_CHARACTERS - 1}, start_us * {BAR_CHARACTERS} // total_us)) || repeat('#',
        greatest(1, (end_us - start_us) * {BAR_CHARACTERS} // total_us)) as bar
from spans order by session_id, start_us, stream
""",
    ),
)
