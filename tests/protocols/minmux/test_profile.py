"""Profiles: valid files, and the messages about invalid ones."""

from pathlib import Path

import pytest

from polymux.protocols.minmux.item_codecs import (
    CODEC_SIZED,
    DEFAULT_MAX_ITEM_BYTES,
    ENDLESS,
    PREFIXED,
    Fixed,
    Prefixed,
    Sized,
)
from polymux.protocols.minmux.packets import U64_MAX, key_of
from polymux.protocols.minmux.profile import Profile, StreamFormat, byte_profile, load_profile
from polymux.protocols.minmux.protocol import Minmux
from polymux.protocols.registry import BadProtocolString, create

PAGE = """
reuse = false          # may an id be used again once both sides are done with it?
[default]              # streams not named below; without this table they are unassigned
item = 1               # bytes of an item
last = 0               # bytes of the last item; 0 = unit; "never" = the stream cannot end
[stream.4]
item = 4               # or "prefixed": a VarU64 length before each item (also for last)
last = 1
"""


def loaded(tmp_path: Path, text: str) -> Profile:
    path = tmp_path / "profile.toml"
    path.write_text(text)
    return load_profile(str(path))


def sizes(shape: StreamFormat | None) -> tuple[int, int] | None:
    return None if shape is None else (shape.item_size, shape.last_item_size)


def test_the_profile_of_the_page_says_what_it_says(tmp_path: Path) -> None:
    profile = loaded(tmp_path, PAGE)
    assert not profile.reuse
    assert sizes(profile.format_of(4)) == (4, 1)
    assert sizes(profile.format_of(5)) == (1, 0)
    assert sizes(profile.format_of(key_of(U64_MAX))) == (1, 0)


def test_words_stand_for_sizes(tmp_path: Path) -> None:
    profile = loaded(
        tmp_path,
        'max_item = 100\n[stream.0]\nitem="prefixed"\nlast="prefixed"\n'
        '[stream.18446744073709551615]\nitem=0\nlast="never"',
    )
    assert sizes(profile.format_of(0)) == (PREFIXED, PREFIXED)
    assert sizes(profile.format_of(key_of(U64_MAX))) == (0, ENDLESS)
    assert profile.format_of(2) is None
    assert profile.assigned_ids == [0, U64_MAX]
    assert profile.max_item_bytes == 100


def test_what_a_stream_leaves_out_it_has_from_the_default(tmp_path: Path) -> None:
    profile = loaded(tmp_path, "[default]\nitem=8\nlast=2\n[stream.1]\nlast=3\n[stream.2]\nitem=9")
    assert sizes(profile.format_of(1)) == (8, 3)
    assert sizes(profile.format_of(2)) == (9, 2)
    bare = loaded(tmp_path, "[stream.1]\n")
    assert sizes(bare.format_of(1)) == (1, 0)


def test_the_built_in_profile_assigns_every_id_to_bytes() -> None:
    profile = byte_profile()
    assert sizes(profile.format_of(0)) == sizes(profile.format_of(key_of(U64_MAX))) == (1, 0)
    assert not profile.reuse
    assert profile.max_item_bytes == DEFAULT_MAX_ITEM_BYTES


def test_a_profile_can_be_made_in_python() -> None:
    profile = Profile(reuse=True)
    profile.assign(0, Fixed(4), Prefixed())
    profile.assign(1, Prefixed(), endless=True)
    profile.assign(2, Sized(lambda data, pos, end: 1))
    assert sizes(profile.format_of(0)) == (4, PREFIXED)
    assert sizes(profile.format_of(1)) == (PREFIXED, ENDLESS)
    assert sizes(profile.format_of(2)) == (CODEC_SIZED, 0)
    with pytest.raises(ValueError, match="0 to 2"):
        profile.assign(-1, Fixed(1))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no stream is assigned"),
        ("reuse = 1\n[default]", "reuse is true or false, not 1"),
        ("colour = 1\n[default]", "has no 'colour'"),
        ("[default]\nitem = -1", r"\[default\] item is 0 to 2147483647 bytes"),
        ("[default]\nitem = true", "not True"),
        ("[default]\nitem = 1.5", "not 1.5"),
        ("[default]\nitem = 'never'", "not 'never'"),
        ("[default]\nlast = 'sometimes'", '"prefixed" or "never", not'),
        ("[default]\nlast = 99999999999", "not 99999999999"),
        ("[default]\nsize = 1", "has no 'size'"),
        ("[stream.x]\nitem = 1", "a stream id is a decimal number"),
        ("[stream.01]\nitem = 1", "a stream id is a decimal number"),
        ("[stream.18446744073709551616]\nitem = 1", "at most 2"),
        ("[stream]\n4 = 4", r"\[stream.4\] is a table"),
        ("stream = 4", "one table for each stream"),
        ("default = 4", r"\[default\] is a table"),
        ("max_item = 0\n[default]", "max_item is 1 to"),
        ("[default", "not TOML"),
        ("a = " + "[" * 20_000, "nested too deeply"),
        ("a = 1\n" * 200_000, "more than 1048576 bytes"),
    ],
)
def test_a_profile_that_says_something_else_is_refused_in_one_line(
    tmp_path: Path, text: str, words: str
) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(text)
    with pytest.raises(BadProtocolString, match=words) as caught:
        create(f"minmux:profile={path}")
    assert "\n" not in str(caught.value)
    assert "bad.toml" in str(caught.value)


def test_a_profile_that_is_not_there_or_not_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadProtocolString, match="no such file"):
        create(f"minmux:profile={tmp_path}/none.toml")
    with pytest.raises(BadProtocolString, match="no such file"):
        create(f"minmux:profile={tmp_path}")
    (tmp_path / "noise.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BadProtocolString, match="not TOML"):
        create(f"minmux:profile={tmp_path}/noise.toml")


def test_the_other_options_of_the_string_are_checked() -> None:
    strict, lenient = create("minmux"), create("minmux:canonical=no,oops=ignore")
    assert isinstance(strict, Minmux)
    assert isinstance(lenient, Minmux)
    assert (strict.canonical_only, strict.answers_oops) == (True, True)
    assert (lenient.canonical_only, lenient.answers_oops) == (False, False)
    for text in ("minmux:canonical=maybe", "minmux:oops=sorry", "minmux:window=5"):
        with pytest.raises(BadProtocolString):
            create(text)
