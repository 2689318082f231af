"""The benchmark measures what it says: its C floor judges the same, its ratios are right."""

import pytest
from bench import harness
from bench.__main__ import PARTS, with_companions
from bench.byte_traffic import content, mixed_sizes
from bench.harness import Effort, Floor, Line, Times, measure_alternating, missed_targets
from bench.pure_python import Decoder, Encoder
from bench.reference import Reference
from bench.reference_agreement import check_agreement


def times(*seconds: float) -> Times:
    made = Times()
    for each in seconds:
        made.add(each * 2, each)
    return made


@pytest.mark.parametrize("protocol", ["mplex", "nerdbank"])
def test_the_c_reference_finds_the_same_violations(protocol: str) -> None:
    assert check_agreement(Reference(), content(protocol, [64] * 200)) > 1000


@pytest.mark.parametrize("protocol", ["mplex", "nerdbank"])
def test_frames_have_the_size_they_were_asked_for(protocol: str) -> None:
    assert len(content(protocol, [64] * 50).content) == 50 * 64
    sizes = mixed_sizes(100_000)
    assert len(content(protocol, sizes).content) == pytest.approx(sum(sizes), rel=0.01)


def test_a_ratio_compares_speeds_for_the_same_work() -> None:
    floor = Floor("floor", times(0.5, 0.25), 0.5, amount=10)
    line = Line("line", times(2.0, 1.0), 20, "ns/frame", [floor])
    (verdict,) = line.comparisons()
    assert verdict.ratio == pytest.approx(0.5)
    assert verdict.met
    assert line.value == pytest.approx(1.0 / 20 * 1e9)


def test_a_line_under_its_target_is_behind() -> None:
    line = Line(
        "line", times(1.0), 1, "x", [Floor("floor", times(0.2), 0.25), Floor("n", times(1))]
    )
    assert [(each.name, verdict.floor) for each, verdict in missed_targets([line])] == [
        ("line", "floor")
    ]


@pytest.mark.parametrize(("seconds", "turns"), [(0.0, 3), (60.0, 12)])
def test_candidates_take_turns_and_quick_ones_more(
    seconds: float, turns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(harness, "EFFORT", Effort(seconds=seconds))
    order: list[str] = []
    acts = {name: lambda name=name: order.append(name) for name in "ab"}
    found = measure_alternating(acts, rounds=3)  # type: ignore[arg-type]  # the default argument is bound
    assert "".join(order[:8]) == "ab" + "ab" + "ba" + "ab"
    assert len(found["a"].cpu) == len(found["b"].cpu) == turns


def test_the_pure_decoder_reads_what_the_pure_encoder_writes() -> None:
    encoder, decoder = Encoder(), Decoder()
    decoder.receive(content("mplex", [], 3).opening[0][1])
    for number, size in ((1, 5), (3, 300), (5, 0), (1, 7000)):
        encoder.send(number, bytes(size))
    data = encoder.data_to_send()
    arrived = [each for i in range(len(data)) for each in decoder.receive(data[i : i + 1])][:3]
    assert [len(each.data) for each in arrived] == [5, 300, 0]


def test_what_belongs_together_is_measured_together_and_once() -> None:
    assert with_companions(["live", "pairs", "kernels"]) == [
        "live", "pairs", "pings", "fairness", "kernels",
    ]  # fmt: skip
    assert with_companions(["pairs"]) == ["pairs", "pings", "fairness"]
    assert with_companions([]) == []
    assert set(with_companions(list(PARTS))) == set(PARTS)


def test_the_protocols_to_measure_can_be_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "CHOSEN_PROTOCOLS", ["yamux"])
    assert harness.chosen(["mplex", "yamux"]) == ["yamux"]
    monkeypatch.setattr(harness, "CHOSEN_PROTOCOLS", [])
    assert harness.chosen(["mplex", "yamux"]) == ["mplex", "yamux"]
