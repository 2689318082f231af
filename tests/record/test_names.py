"""What records and counts says what it is."""

from __future__ import annotations

from pathlib import Path

import polymux
from polymux.capture import PcapngWriter, read_sessions
from polymux.metrics import Meter
from polymux.record import Collector, Recorder, RecordingProxy


async def idle(session: polymux.Session) -> None:
    await session.wait_closed()


async def test_captured_sessions_taps_collectors_and_meters_name_themselves(tmp_path: Path) -> None:
    path = str(tmp_path / "a.pcapng")
    meter = Meter()
    with PcapngWriter(path) as sink:
        async with polymux.serve(
            idle, "tcp://127.0.0.1:0", protocol="mplex", recorder=Recorder(sink), meter=meter
        ) as server:
            async with polymux.connect(server.url, protocol="mplex") as session:
                async with session.open("a"):
                    assert repr(meter) == "<polymux meter, sessions open: 1>"
            async with RecordingProxy("tcp://127.0.0.1:0", server.url, sink) as tap:
                assert repr(tap) == f"<polymux recording proxy at {tap.url} to {server.url}>"
    (seen,) = [repr(session) for session in read_sessions([path])]
    assert seen.startswith("<polymux TCP session of 127.0.0.1:")
    assert f"with {server.url.removeprefix('tcp://')}, " in seen
    async with Collector(str(tmp_path / "out")) as collector:
        assert repr(collector) == f"<polymux collector at no URL yet into {tmp_path}/out>"
        url = await collector.listen("tcp://127.0.0.1:0", "mplex")
        assert repr(collector) == f"<polymux collector at {url} into {tmp_path}/out>"
