"""Run as a child with the plain source first in its path: nanoseconds a frame, interpreted."""

import json
import sys
import time

from polymux.core import conversation
from polymux.core.observer import Observer
from polymux.protocols.registry import create

from .traffic import content


def main() -> None:
    assert conversation.__file__.endswith(".py"), "this must run the plain source"
    traffic = content(sys.argv[1], [64] * 5000)
    walls, cpus = [], []
    for _ in range(int(sys.argv[2])):
        observer = Observer(create(traffic.protocol), True)
        for side, data in traffic.opening:
            observer.feed(side, data, 0)
        wall, cpu = time.perf_counter(), time.process_time()
        observer.feed(0, traffic.content, 0)
        cpus.append(time.process_time() - cpu)
        walls.append(time.perf_counter() - wall)
    print(json.dumps({"frames": traffic.frames, "wall": walls, "cpu": cpus}))


if __name__ == "__main__":
    main()
