"""Fault rules: what they select, what they inject, and what is wrong with a malformed one."""

import pytest

from polymux.core.side import ACCEPTOR, DIALER
from polymux.relay import BadRule, RuleSet, parse_rule
from polymux.relay.faults.relayed import check_rule
from polymux.relay.faults.rules import FAULTS, MAX_RULES, StreamFacts

UPLOAD = StreamFacts("d3", "upload 7", DIALER)


@pytest.mark.parametrize(
    ("select", "matches"),
    [
        ("*", True),
        ("stream=d3", True),
        ("stream=d5", False),
        ("name~upload*", True),
        ("name~'upload 7'", True),
        ("name~upload", False),
        ("opener=dialer", True),
        ("opener=acceptor", False),
        ("name~up* opener=dialer stream=d3", True),
        ("name~up* opener=acceptor", False),
    ],
)
def test_a_rule_selects_the_streams_that_all_its_terms_match(select: str, matches: bool) -> None:
    assert parse_rule(f"{select} : reset").select.matches(UPLOAD) is matches


def test_nth_and_every_count_what_matches() -> None:
    chosen = parse_rule("every=3 : reset").select
    assert [number for number in range(1, 10) if chosen.counts_in(number)] == [3, 6, 9]
    second = parse_rule("nth=2 : reset").select
    assert [number for number in range(1, 10) if second.counts_in(number)] == [2]


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("delay 200ms", {"time": 0.2, "jitter": 0.0}),
        ("delay time=1.5s jitter=20", {"time": 1.5, "jitter": 0.02}),
        ("rate 64k", {"rate": 65536}),
        ("reorder", {"chunks": 1, "time": 1.0}),
        ("latency latency=100 jitter=10", {"latency": 0.1, "jitter": 0.01, "toxicity": 1.0}),
        ("bandwidth rate=100 toxicity=0.5", {"rate": 100, "toxicity": 0.5}),
        ("limit_data bytes=1M", {"bytes": 1 << 20, "toxicity": 1.0}),
    ],
)
def test_parameters_have_toxiproxys_units_or_their_own(text: str, values: dict[str, float]) -> None:
    assert parse_rule(f"* : {text}").values == pytest.approx(values)


def test_the_delay_of_the_slicer_is_in_microseconds() -> None:
    assert parse_rule("* : slicer 100 delay=50").values["delay"] == pytest.approx(50e-6)


def test_toward_limits_a_fault_to_one_sender() -> None:
    assert parse_rule("* : delay 1s toward=upstream").senders == (DIALER,)
    assert parse_rule("* : delay 1s toward=dialer").senders == (ACCEPTOR,)
    assert parse_rule("* : delay 1s").senders == (DIALER, ACCEPTOR)


def test_after_is_a_size_or_a_time() -> None:
    assert parse_rule("after=64k : reset").select.after_bytes == 65536
    assert parse_rule("after=2s : reset").select.after_seconds == 2.0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("delay 200ms", ["SELECT : FAULT"]),
        ("* :", ["SELECT : FAULT"]),
        ("* : delya 200ms", ["'delya'", "delay, hold, rate"]),
        ("* : delay", ["needs time="]),
        ("* : delay soon", ["'soon'", "200ms"]),
        ("* : delay 200ms 300ms", ["no parameter '300ms'", "jitter="]),
        ("* : delay 200ms time=3ms", ["time is given twice"]),
        ("* : delay 200h", ["'200h'"]),
        ("* : delay 99999999s", ["longer than a day"]),
        ("* : rate 0", ["more than 0"]),
        ("* : rate -3", ["'-3'"]),
        ("* : reset toward=dialer", ["no direction"]),
        ("* : delay 1s toward=east", ["upstream, dialer or both"]),
        ("* : illegal", ["illegal:mplex.write-after-close"]),
        ("* : latency 10 toxicity=2", ["from 0 to 1"]),
        ("colour=red : reset", ["'colour=red'", "name~GLOB"]),
        ("name=x : reset", ["'name=x'", "name~GLOB"]),
        ("stream=3 : reset", ["'3'", "d3"]),
        ("opener=me : reset", ["dialer or acceptor"]),
        ("nth=0 : reset", ["'0'", "from 1"]),
        ("nth=1 nth=2 : reset", ["nth is given twice"]),
        ("after=3 after=4s : reset", ["after is given twice"]),
        ("after=soon : reset", ["'soon'"]),
        ("stream=d1 : latency 10", ["whole connections"]),
        ("name~'x : reset", ["quotation"]),
        ("* : " + "x" * 2000, ["2004 characters"]),
    ],
)
def test_a_malformed_rule_is_an_error_that_says_what_is_possible(
    text: str, words: list[str]
) -> None:
    with pytest.raises(BadRule) as caught:
        parse_rule(text)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("text", "protocol", "word"),
    [
        ("* : withhold-credit 1s", "mplex", "no credit"),
        ("* : dribble-credit 100", "minmux", "windows only"),
        ("* : illegal:mplex.no-such-rule", "mplex", "polymux rules mplex"),
        ("* : illegal:mplex.bad-flag", "yamux", "no such rule"),
        ("* : illegal:nerdbank.bad-magic", "nerdbank:version=3", "another version"),
        ("* : illegal:yamux.ping-unanswered", "yamux", "leaving out a reply"),
        ("* : illegal:minmux.bad-item", "minmux", "profile"),
    ],
)
def test_a_rule_that_cannot_be_used_with_a_protocol_says_why(
    text: str, protocol: str, word: str
) -> None:
    with pytest.raises(BadRule, match=word):
        check_rule(parse_rule(text), protocol)


def test_every_fault_can_be_written_with_its_first_parameter_only() -> None:
    for kind in FAULTS.values():
        name = "illegal:mplex.bad-flag" if kind.name == "illegal" else kind.name
        assert parse_rule(f"* : {name}{' 10' if kind.parameters else ''}").kind is kind


def test_numbers_of_rules_are_never_used_again() -> None:
    rules = RuleSet()
    changes: list[int] = []
    rules.on_change.append(lambda: changes.append(len(rules.rules)))
    reset = parse_rule("* : reset")
    assert [rules.add(reset), rules.add(reset)] == [1, 2]
    assert rules.remove(2) is reset
    assert rules.add(reset) == 3
    assert changes == [1, 2, 1, 2]
    with pytest.raises(BadRule, match="no rule has the number 2; there are 1, 3"):
        rules.remove(2)


def test_the_number_of_rules_is_bounded() -> None:
    rules = RuleSet()
    for _ in range(MAX_RULES):
        rules.add(parse_rule("* : reset"))
    with pytest.raises(BadRule, match="remove one first"):
        rules.add(parse_rule("* : reset"))
