"""Run a long, quiet command and print its progress: `python -m tools.step LABEL COMMAND...`.

Prints the label at once, the elapsed time and the current step every ten seconds, and the total
time at the end. The output of the command is printed only if it fails.
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
    """The output of a command, and its newest line that names a step."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.newest = ""

    def read(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdout is not None  # it is a pipe
        for line in process.stdout:
            self.lines.append(line)
            if match := PROGRESS_LINE.match(line):
                self.newest = match[1].strip()


def run(label: str, command: list[str], interval: float = REPORT_INTERVAL) -> int:
    """Run the command. Return its exit code."""
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
