"""Run a command that is quiet for long, and say what it does: `python -m tools.step LABEL CMD...`.

Prints the label at once, every ten seconds how long it has taken and what is under way, and at the
end how long it took. What the command printed is shown only if it fails.
"""

import re
import subprocess
import sys
import threading
import time

REPORT_INTERVAL = 10.0  # seconds
PROGRESS_LINE = re.compile(
    r"^\s*((?:polymux: |Collecting |Downloading |Installing |Building ).{0,80})"
)


class CommandOutput:
    """What a command prints, kept, and the newest line of it that tells where it is."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.newest = ""

    def read(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self.lines.append(line)
            if match := PROGRESS_LINE.match(line):
                self.newest = match[1].strip()


def run(label: str, command: list[str], interval: float = REPORT_INTERVAL) -> int:
    """Run it; returns its exit code."""
    say(f"{label} ...")
    began = time.monotonic()
    output = CommandOutput()
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    )
    reader = threading.Thread(target=output.read, args=(process,))
    reader.start()
    while True:
        reader.join(interval)
        took = f"{time.monotonic() - began:.0f} s"
        if not reader.is_alive():
            break
        say(f"{label}: {took}{f', {output.newest}' if output.newest else ''}")
    code = process.wait()
    if code:
        sys.stdout.writelines(output.lines)
    say(f"{label}: {'done' if not code else f'failed with exit code {code}'} after {took}")
    return code


def say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(run(sys.argv[1], sys.argv[2:]))
