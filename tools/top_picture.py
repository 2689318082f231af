"""Write docs/top.svg: the screen of `polymux top` over real sessions, some of whose streams wait.

python -m tools.top_picture
"""

from __future__ import annotations

import asyncio
import io
import re
import tempfile
from pathlib import Path

from rich.console import Console

import polymux
from polymux.capture import RotatingWriter
from polymux.cli.support.capture_options import CaptureRequest
from polymux.cli.top.captures import CaptureWatch
from polymux.cli.top.view import TopView
from polymux.record import RecordingProxy

PICTURE = Path(__file__).parent.parent / "docs" / "top.svg"
WIDTH, HEIGHT = 100, 18
NAMES = ("video", "logs", "metrics", "thumbnails", "chat", "backup", "search", "mail")
UNREAD = ("backup", "thumbnails")  # names of streams that the server accepts and does not read


async def serve_some(session: polymux.Session) -> None:
    """Answer on streams, but for those that are named as not read."""

    async def answer(stream: polymux.Stream) -> None:
        if stream.name in UNREAD:
            await asyncio.Event().wait()
        async for chunk in stream:
            await stream.send(chunk[:100])

    await session.serve_streams(answer)


async def send(session: polymux.Session, number: int, name: str) -> None:
    stream = await session.open(name)
    while True:
        await stream.send(bytes(2000 + 3000 * number))
        await asyncio.sleep(0.05 + 0.01 * number)


async def main() -> None:
    request = CaptureRequest((f"{tempfile.mkdtemp()}/talk.pcapng",))
    server = await polymux.serve(serve_some, "tcp://127.0.0.1:0", protocol="nerdbank:window=20480")
    with RotatingWriter(request.files[0]) as writer:
        proxy = RecordingProxy("tcp://127.0.0.1:0", server.url, writer, protocol="nerdbank")
        async with proxy, polymux.connect(proxy.url, protocol="nerdbank") as session:
            sending = [
                asyncio.create_task(send(session, number, name))
                for number, name in enumerate(NAMES)
            ]
            watch = CaptureWatch(request, request.analysis_options())
            view = TopView()
            for _ in range(16):
                await asyncio.sleep(0.2)
                watch.pump(1.0)
                view.show(watch.state())
            view.state.title = "unix:///run/user/1000/proxy.sock (talk.pcapng)"
            console = Console(
                file=io.StringIO(), record=True, width=WIDTH, force_terminal=True, highlight=False
            )
            for line in view.lines(WIDTH, HEIGHT):
                console.print(line, no_wrap=True, crop=True)
            drawn = console.export_svg(title="polymux top", unique_id="top")
            drawn = re.sub(r"@font-face \{.*?\}|<!--.*?-->", "", drawn, flags=re.DOTALL)
            PICTURE.write_text(drawn)  # without the fonts that the page would load
            for task in sending:
                task.cancel()
            watch.close()
            session.abort()
    await server.close()


if __name__ == "__main__":
    asyncio.run(main())
