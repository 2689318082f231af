"""The documentation page of Minmux agrees with the code, and its examples run."""

import re
from pathlib import Path

import pytest
from librt.strings import BytesWriter

from polymux.core.frames import FrameHeader
from polymux.core.limits import Limits
from polymux.core.side import Vantage
from polymux.core.varint import put_varu64
from polymux.protocols.minmux.packets import KINDS, put_u64, remove_id_bias
from polymux.protocols.minmux.profile import byte_profile, load_profile
from polymux.protocols.minmux.protocol import Minmux

PAGE = (Path(__file__).parent.parent.parent.parent / "docs" / "protocols" / "minmux.md").read_text()


def value(text: str) -> int:
    base, _, rest = text.partition("^")
    if not rest:
        return int(base)
    power, _, less = rest.partition("-")
    whole: int = int(base) ** int(power)
    return whole - int(less or 0)


def cells(text: str) -> list[list[str]]:
    return [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in PAGE.split(text, 1)[1].split("\n\n", 2)[1].splitlines()[2:]
    ]


def raw_bytes(text: str) -> list[bytes]:
    return [bytes.fromhex(found) for found in re.findall(r"`([0-9a-f ]+)`", text)]


def test_its_numbers_are_the_ones_we_write() -> None:
    rows = cells("A value above 2^64-64 is malformed.")
    assert len(rows) == 14
    for amount, plain, from_one, _, number, biased in rows:
        for i, printed_text in enumerate(amount.split(", ")):
            out, less = BytesWriter(), BytesWriter()
            put_u64(out, value(printed_text))
            assert out.getvalue() == raw_bytes(plain)[i]
            if value(printed_text):
                put_u64(less, value(printed_text) - 1)
                assert less.getvalue() == raw_bytes(from_one)[i]
        if number:
            out = BytesWriter()
            pattern = value(number) - 2**64 if value(number) >= 2**63 else value(number)
            put_varu64(out, remove_id_bias(pattern))
            assert [out.getvalue()] == raw_bytes(biased)


def test_its_packets_are_read_as_it_says() -> None:
    rows = cells("Every header byte is valid.")
    assert len(rows) == 6
    for wire, *printed_text in rows:
        for side, words in enumerate(printed_text):
            if words:
                head = FrameHeader()
                data = raw_bytes(wire)[0]
                book = Minmux(Limits(), Vantage.MIDDLE, byte_profile())
                assert book.decode_header(side, data, 0, len(data), head) == 2
                assert words.startswith(KINDS[head.kind].name)
                assert str(head.amount) in words


def test_its_profile_can_be_loaded(tmp_path: Path) -> None:
    (tmp_path / "page.toml").write_text(re.findall(r"```toml\n(.*?)```", PAGE, re.S)[0])
    assert load_profile(str(tmp_path / "page.toml")).assigned_ids == [4]


@pytest.mark.parametrize("code", re.findall(r"```python\n(.*?)```", PAGE, re.S))
def test_its_examples_run_and_print_what_they_say(
    code: str, capsys: pytest.CaptureFixture[str]
) -> None:
    exec(code, {})
    printed = capsys.readouterr().out.split("\n")[0]
    assert printed == "" or f"# {printed}" in code
