"""Web pages at a WebSocket server: only those of its own host and port, or those it names."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from tests.report.browser import Browser, Page, chromium

import polymux
from polymux import OmnistreamsSession
from polymux.live.transports.origin_policy import OriginPolicy
from polymux.live.urls import parse_url

LOCAL = "ws://127.0.0.1:9000/x"


@pytest.mark.parametrize(
    ("allowed", "origin", "host", "accepted"),
    [
        ((), None, "127.0.0.1:9000", True),  # no browser
        ((), "http://127.0.0.1:9000", "127.0.0.1:9000", True),
        ((), "http://localhost:9000", "localhost:9000", True),
        ((), "http://[::1]:9000", "[::1]:9000", True),
        ((), "http://192.0.2.7", "192.0.2.7", True),
        ((), "http://127.0.0.1:8000", "127.0.0.1:9000", False),
        ((), "http://localhost:9000", "127.0.0.1:9000", False),
        ((), "https://evil.example", "127.0.0.1:9000", False),
        # DNS rebinding: the page's name leads to this machine, so both headers agree.
        ((), "http://evil.example:9000", "evil.example:9000", False),
        ((), "null", "127.0.0.1:9000", False),
        ((), "http://", "127.0.0.1:9000", False),
        ((), "http://[", "127.0.0.1:9000", False),
        ((), "", "127.0.0.1:9000", False),
        (("https://app.example",), "https://app.example", "127.0.0.1:9000", True),
        (("https://app.example",), "https://APP.example:443", "127.0.0.1:9000", True),
        (("https://app.example",), "http://app.example", "127.0.0.1:9000", False),
        (("https://app.example",), "https://app.example.evil.example", "127.0.0.1", False),
        (("https://app.example",), "http://127.0.0.1:9000", "127.0.0.1:9000", True),
        (("null",), "null", "127.0.0.1:9000", True),
        (("*",), "https://evil.example", "127.0.0.1:9000", True),
    ],
)
def test_an_origin_is_accepted_if_it_is_the_servers_own_or_named(
    allowed: Sequence[str], origin: str | None, host: str, accepted: bool
) -> None:
    policy = OriginPolicy(parse_url(LOCAL), allowed)
    refusal = policy.refusal([] if origin is None else [origin], [host])
    assert (refusal == "") is accepted


def test_the_name_that_the_server_was_given_is_its_own() -> None:
    policy = OriginPolicy(parse_url("ws://mux.example:9000/"))
    assert policy.refusal(["http://mux.example:9000"], ["mux.example:9000"]) == ""


def test_several_origins_or_hosts_are_refused() -> None:
    policy = OriginPolicy(parse_url(LOCAL))
    own = "http://127.0.0.1:9000"
    assert policy.refusal([own, own], ["127.0.0.1:9000"])
    assert policy.refusal([own], ["127.0.0.1:9000"] * 2)
    assert policy.refusal([own], [])


def test_a_list_of_origins_is_checked_at_once() -> None:
    for wrong in ("example.com", "https://example.com/page", "https://"):
        with pytest.raises(ValueError, match="is no origin"):
            OriginPolicy(parse_url(LOCAL), [wrong])
    with pytest.raises(TypeError, match="is a list of origins"):
        OriginPolicy(parse_url(LOCAL), "https://example.com")


async def test_a_refused_page_gets_403_and_reaches_no_handler() -> None:
    served = []

    async def handle(session: OmnistreamsSession) -> None:
        served.append(session)

    async with polymux.serve(handle, "ws://127.0.0.1:0/", protocol="omnistreams") as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(
            f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nUpgrade: websocket\r\n"
            "Connection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
            "Sec-WebSocket-Version: 13\r\nOrigin: https://evil.example\r\n\r\n".encode()
        )
        answer = await reader.read()
        writer.close()
    assert answer.startswith(b"HTTP/1.1 403 ")
    assert b"pages of https://evil.example are not allowed here" in answer
    assert served == []


# In a browser


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with chromium(tmp_path_factory.mktemp("profile")) as started:
        yield started


class BlankPages(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<title>a page</title>")

    def log_message(self, format: str, *arguments: object) -> None:
        """Print nothing."""


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    """The origin of a web site on this machine."""
    with ThreadingHTTPServer(("127.0.0.1", 0), BlankPages) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def visit(browser: Browser, url: str) -> Page:
    target = browser.call("Target.createTarget", url=url)["targetId"]
    session = browser.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
    page = Page(browser, str(session), str(target))
    # The empty page before it is complete as well.
    page.wait(f"location.href.startsWith({url!r}) && document.readyState === 'complete'")
    return page


def outcome(page: Page, url: str) -> str:
    """Open a WebSocket in a page: "open" or "error"."""
    return str(
        page.run(f"""new Promise((resolve) => {{
            const socket = new WebSocket({url!r});
            socket.onopen = () => {{ resolve("open"); socket.close(); }};
            socket.onerror = () => resolve("error");
        }})""")
    )


@pytest.mark.parametrize("kind", ["other site", "file", "named"])
async def test_a_page_in_a_browser_cannot_drive_a_local_server_unless_it_is_named(
    kind: str, browser: Browser, site: str, tmp_path: Path
) -> None:
    served = []

    async def handle(session: OmnistreamsSession) -> None:
        served.append(session)
        await session.wait_closed()

    (tmp_path / "page.html").write_text("<title>a file</title>")
    where = (tmp_path / "page.html").as_uri() if kind == "file" else site
    origins = [site] if kind == "named" else []
    loop = asyncio.get_running_loop()
    async with polymux.serve(
        handle, "ws://127.0.0.1:0/", protocol="omnistreams", origins=origins
    ) as server:
        look: Callable[[], str] = lambda: outcome(visit(browser, where), server.url)  # noqa: E731
        seen = await loop.run_in_executor(None, look)
    assert seen == ("open" if kind == "named" else "error")
    assert len(served) == (kind == "named")
