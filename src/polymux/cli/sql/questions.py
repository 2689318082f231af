"""Ready questions: `polymux sql --examples` prints them, and the documentation shows them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Question:
    """A question in words, and the query that answers it."""

    title: str
    query: str


QUESTIONS: Final = (
    Question(
        "Which streams waited longest, and why?",
        """\
select session_id, stream, sender, cause, count(*) as stalls, sum(duration_us) as waited_us
from stalls where cause <> 'sender-idle'
group by all order by waited_us desc, session_id, stream, sender limit 20""",
    ),
    Question(
        "How much time was lost to each cause, by protocol?",
        """\
select protocol, cause, count(*) as stalls, sum(duration_us) / 1e6 as seconds
from stalls join sessions using (session_id) where cause <> 'sender-idle'
group by all order by seconds desc""",
    ),
    Question(
        "Which stream blocked the others?",
        """\
select session_id, blocking_stream, count(distinct stream) as blocked_streams,
    sum(duration_us) as blocked_us
from stalls where cause = 'head-of-line' group by all order by blocked_us desc""",
    ),
    Question(
        "Which rules were broken, by which side, how often?",
        """\
select rule, severity, certainty, sender, count(*) as times, min(time) as first
from violations group by all order by severity, times desc""",
    ),
    Question(
        "Which peers break rules?",
        """\
select protocol, if(sender = 'dialer', dialer, acceptor) as peer, rule, count(*) as times
from violations join sessions using (session_id) where severity <> 'note'
group by all order by times desc""",
    ),
    Question(
        "How long does the first reply take?",
        """\
with replies as (
    select session_id, epoch_us(if(opener = 'dialer', first_at_acceptor, first_at_dialer))
        - epoch_us(opened_at) as reply_us
    from streams
)
select protocol, count(*) as streams, quantile_cont(reply_us, 0.5) as p50_us,
    quantile_cont(reply_us, 0.9) as p90_us, quantile_cont(reply_us, 0.99) as p99_us
from replies join sessions using (session_id) where reply_us >= 0
group by all order by protocol""",
    ),
    Question(
        "Which streams lasted longest?",
        """\
select session_id, stream, name, ending, epoch_us(closed_at) - epoch_us(opened_at) as lasted_us
from streams where closed_at is not null and opened_at is not null
order by lasted_us desc, session_id, stream limit 20""",
    ),
    Question(
        "Which streams are limited by their window?",
        """\
select session_id, stream, name, window_bytes_dialer, throughput_bps_dialer,
    window_limit_bps_dialer
from streams where throughput_bps_dialer > 0.7 * window_limit_bps_dialer
order by bytes_dialer desc, session_id, stream limit 20""",
    ),
    Question(
        "How long had each side no credit?",
        """\
select protocol, sum(blocked_us_dialer) / 1e6 as dialer_seconds,
    sum(blocked_us_acceptor) / 1e6 as acceptor_seconds
from streams join sessions using (session_id) group by all order by protocol""",
    ),
    Question(
        "Which streams were reset, by which side, with which error?",
        """\
select session_id, stream, name, ending, reset_by, error
from streams where reset_by is not null order by session_id, stream""",
    ),
    Question(
        "Which streams did not end?",
        """\
select session_id, stream, name, ending, ended_dialer, ended_acceptor
from streams where ending in ('open', 'half-closed', 'never-accepted')
order by session_id, stream""",
    ),
    Question(
        "Which names carry the most bytes?",
        """\
select name, count(*) as streams, sum(bytes_dialer) as bytes_dialer,
    sum(bytes_acceptor) as bytes_acceptor
from streams group by all order by sum(bytes_dialer + bytes_acceptor) desc, name limit 20""",
    ),
    Question(
        "How much of the traffic is framing?",
        """\
select protocol, kind, count(*) as frames, avg(payload_bytes) as mean_payload,
    100.0 * sum(size - payload_bytes) / sum(size) as framing_percent
from frames join sessions using (session_id) group by all order by frames desc""",
    ),
    Question(
        "How many bytes passed in each second?",
        """\
select date_trunc('second', time) as second, sender, count(*) as frames, sum(size) as bytes
from frames group by all order by second, sender""",
    ),
    Question(
        "Which sessions are incomplete in the capture?",
        """\
select session_id, protocol, ending, missing_bytes_dialer + missing_bytes_acceptor as missing,
    undecoded_bytes_dialer + undecoded_bytes_acceptor as undecoded, note
from sessions where ending <> 'clean' order by missing desc""",
    ),
)
