"""URLs as names: without what gives access to them."""

import pytest

from polymux.core.errors import CaptureError
from polymux.core.urls import place_of, with_credentials_of, without_credentials


@pytest.mark.parametrize(
    ("url", "name", "place"),
    [
        ("s3://key:se%2Fcret@bucket/a@b/c.pcap?region=x", "s3://bucket/a@b/c.pcap", "s3://bucket"),
        ("s3://key@bucket", "s3://bucket", "s3://bucket"),
        ("abfs://box:secret@host/a?client_secret=b", "abfs://box@host/a", "abfs://box@host"),
        ("hdfs://user@node:8020/a", "hdfs://user@node:8020/a", "hdfs://user@node:8020"),
        ("gs://bucket/a%3Fb?scheme=http", "gs://bucket/a%3Fb", "gs://bucket"),
        ("/data/key:secret@a?b", "/data/key:secret@a?b", ""),
    ],
)
def test_a_url_is_named_without_what_gives_access_to_it(url: str, name: str, place: str) -> None:
    assert without_credentials(url) == name == without_credentials(name)
    assert place_of(url) == place_of(name) == place
    assert place == "" or with_credentials_of(name, url) == url
    assert str(CaptureError("is gone", url, 7)) == f"{name} at byte 7: is gone"
