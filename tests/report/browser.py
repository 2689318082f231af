"""Headless Chromium, driven over the DevTools protocol: a page, its errors and its requests."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import ClientConnection, connect

CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-extensions",
    "--disable-dev-shm-usage", "--hide-scrollbars", "--remote-debugging-port=0",
)  # fmt: skip


def need_chromium() -> str:
    """The browser's path; skips without one, or fails where nothing may be skipped."""
    if CHROMIUM is None:
        reason = "no Chromium on this machine (Debian: apt install chromium)"
        if os.environ.get("POLYMUX_NO_SKIP") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    return CHROMIUM


@contextmanager
def chromium(profile: Path) -> Iterator[Browser]:
    """A browser with a fresh profile, terminated at the end."""
    command = [need_chromium(), *FLAGS, f"--user-data-dir={profile}", "about:blank"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        address = _address(profile / "DevToolsActivePort", process)
        with connect(address, max_size=None, open_timeout=60, proxy=None) as socket:
            yield Browser(socket)
            socket.send(json.dumps({"id": 0, "method": "Browser.close"}))
    finally:
        try:
            process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _address(file: Path, process: subprocess.Popen[bytes]) -> str:
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"Chromium ended at once with status {process.returncode}")
        lines = file.read_text().split() if file.exists() else []
        if len(lines) == 2:
            return f"ws://127.0.0.1:{lines[0]}{lines[1]}"
        time.sleep(0.05)
    raise RuntimeError("Chromium did not open its DevTools port within 90 s")


class Browser:
    """Commands and events of one browser."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.last = 0
        self.events: list[dict[str, Any]] = []

    def call(self, method: str, session: str | None = None, **params: object) -> dict[str, Any]:
        """Send a command and wait for its answer; events received meanwhile are kept."""
        self.last += 1
        message: dict[str, object] = {"id": self.last, "method": method, "params": params}
        if session:
            message["sessionId"] = session
        self.socket.send(json.dumps(message))
        while True:
            answer = json.loads(self.socket.recv(timeout=60))
            if answer.get("id") == self.last:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return dict(answer["result"])
            self.events.append(answer)

    def open(self, file: Path, dark: bool = False, width: int = 1400, height: int = 1000) -> Page:
        """Open a file in a new tab and wait until the report says it is ready."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Page(self, str(session), str(target))
        for domain in ("Page", "Runtime", "Network", "Log"):
            page.call(f"{domain}.enable")
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        page.call("Emulation.setEmulatedMedia", features=[scheme])
        page.call("Emulation.setDeviceMetricsOverride", width=width, height=height,
                  deviceScaleFactor=1, mobile=False)  # fmt: skip
        page.call("Network.emulateNetworkConditions", offline=True, latency=0,
                  downloadThroughput=0, uploadThroughput=0)  # fmt: skip
        page.call("Page.addScriptToEvaluateOnNewDocument", source=TRAPS)
        page.call("Page.navigate", url=file.as_uri())
        page.wait("document.documentElement?.dataset.ready !== undefined")
        return page


# Hostile code that is executed calls one of these; policy violations are recorded as well.
TRAPS = """
window.__heard = [];
for (const word of ["alert", "confirm", "prompt", "open", "fetch", "pwned"]) {
  window[word] = (...given) => { window.__heard.push(word + ": " + given.join()); };
}
document.addEventListener("securitypolicyviolation", (event) => {
  window.__heard.push("policy: " + event.violatedDirective + " " + event.blockedURI);
});
"""


class Page:
    """One tab."""

    def __init__(self, browser: Browser, session: str, target: str) -> None:
        self.browser = browser
        self.session = session
        self.target = target

    def call(self, method: str, **params: object) -> dict[str, Any]:
        return self.browser.call(method, self.session, **params)

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True,
                           awaitPromise=True)  # fmt: skip
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{script}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def reload(self) -> None:
        """Reload the page and wait until the new document is ready."""
        self.run("delete document.documentElement.dataset.ready")
        self.call("Page.reload")
        self.wait("document.documentElement?.dataset.ready !== undefined")

    def wait(self, condition: str, seconds: float = 90) -> None:
        """Wait until a JavaScript expression is true, also across a navigation."""
        deadline = time.monotonic() + seconds
        while not self._holds(condition):
            if time.monotonic() > deadline:
                raise AssertionError(f"not true within {seconds} s: {condition}; {self.troubles()}")
            time.sleep(0.02)

    def _holds(self, condition: str) -> bool:
        try:
            return bool(self.run(condition))
        except RuntimeError as error:
            if "navigated or closed" in str(error):  # the document was replaced meanwhile
                return False
            raise

    def settle(self) -> None:
        """Wait until pending changes have been painted."""
        self.run(
            "new Promise((done) => requestAnimationFrame("
            "() => requestAnimationFrame(() => done(true))))"
        )

    def press(self, key: str, text: str | None = None, shift: bool = False) -> None:
        """Press and release a key."""
        typed = (
            text if text is not None else key if len(key) == 1 else "\r" if key == "Enter" else ""
        )
        codes = {"Enter": 13, "Tab": 9, "Escape": 27, "ArrowLeft": 37, "ArrowUp": 38,
                 "ArrowRight": 39, "ArrowDown": 40, "End": 35, "Home": 36}  # fmt: skip
        common: dict[str, object] = {"key": key, "modifiers": 8 if shift else 0}
        if key in codes:
            common |= {"windowsVirtualKeyCode": codes[key], "code": key}
        self.call("Input.dispatchKeyEvent", type="keyDown", text=typed, **common)
        self.call("Input.dispatchKeyEvent", type="keyUp", **common)
        self.settle()

    def type(self, text: str) -> None:
        self.call("Input.insertText", text=text)
        self.settle()

    def click(self, selector: str) -> None:
        """Click the middle of the element the selector finds."""
        found = json.dumps(selector)
        self.run(f"document.querySelector({found}).scrollIntoView({{block: 'center'}})")
        box = self.run(
            f"(() => {{ const b = document.querySelector({found}).getBoundingClientRect();"
            " return [b.x + b.width / 2, b.y + b.height / 2]; })()"
        )
        self.drag(box[0], box[1], box[0], box[1])

    def drag(self, x: float, y: float, to_x: float, to_y: float) -> None:
        steps = (
            ("mouseMoved", x, y),
            ("mousePressed", x, y),
            ("mouseMoved", to_x, to_y),
            ("mouseReleased", to_x, to_y),
        )
        for kind, a, b in steps:
            self.call("Input.dispatchMouseEvent", type=kind, x=a, y=b, button="left", clickCount=1)
        self.settle()

    def heard(self) -> list[str]:
        """What hostile content executed, and what the policy refused."""
        return list(self.run("window.__heard"))

    def troubles(self) -> list[str]:
        """Console errors, uncaught exceptions and log entries so far."""
        found = []
        for event in self._own():
            params = event["params"]
            if event["method"] == "Runtime.exceptionThrown":
                found.append(str(params["exceptionDetails"]))
            elif event["method"] == "Runtime.consoleAPICalled" and params["type"] != "log":
                found.append(str(params["args"]))
            elif event["method"] == "Log.entryAdded":
                found.append(str(params["entry"]))
        return found

    def requests(self) -> list[str]:
        """The addresses of all requests so far."""
        return [
            str(event["params"]["request"]["url"])
            for event in self._own()
            if event["method"] == "Network.requestWillBeSent"
        ]

    def screenshot(self, file: Path, whole: bool = False) -> None:
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=whole, **self._clip(whole))
        file.write_bytes(base64.b64decode(shot["data"]))

    def close(self) -> None:
        self.browser.call("Target.closeTarget", targetId=self.target)

    def _clip(self, whole: bool) -> dict[str, object]:
        if not whole:
            return {}
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        return {
            "clip": {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        }

    def _own(self) -> list[dict[str, Any]]:
        self.run("1")  # pending events arrive before the answer
        return [event for event in self.browser.events if event.get("sessionId") == self.session]
