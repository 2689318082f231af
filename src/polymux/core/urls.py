"""URLs as names: in tables, in texts, and as what a capture is remembered by."""

from __future__ import annotations


def without_credentials(path: str) -> str:
    """A URL without what gives access to it; any other path as it is.

    Left out are the password, the query, and of S3 the user, which is the access key. Elsewhere the
    user may be a part of the place, such as the container in `abfs://container@account/file`.
    """
    scheme, mark, _ = path.partition("://")
    if not mark:
        return path
    user, host, below, _ = _parts(path)
    name = user.partition(":")[0]
    kept = f"{name}@" if name and scheme not in ("s3", "s3a") else ""
    return f"{scheme}://{kept}{host}{below}"


def with_credentials_of(path: str, url: str) -> str:
    """A URL with the user, password, host and query of `url`."""
    user, host, _, query = _parts(url)
    place = f"{user}@{host}" if user else host
    return f"{url.partition('://')[0]}://{place}{_parts(path)[2]}{query}"


def place_of(path: str) -> str:
    """What all URLs of one host, or one bucket, begin with, without credentials; "" for a path."""
    scheme, mark, rest = without_credentials(path).partition("://")
    return f"{scheme}://{rest.partition('/')[0]}" if mark else ""


def _parts(url: str) -> tuple[str, str, str, str]:
    """The user with the password, the host, the path, and the query with its mark."""
    place, mark, query = url.partition("://")[2].partition("?")
    host, slash, path = place.partition("/")
    user, _, host = host.rpartition("@")
    return user, host, slash + path, mark + query
