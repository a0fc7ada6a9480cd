"""A headless Chromium that tests steer over its pipe: pages, frames, keys, pictures, and a log of its requests."""

from __future__ import annotations

import base64
import itertools
import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage",
    "--disable-features=IsolateSandboxedIframes", "--force-device-scale-factor=1",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1", "--remote-debugging-pipe",
)  # fmt: skip


class Browser:
    """One page. What it asks of any machine is in `requests`."""

    def __init__(self, profile: Path, width: int = 1500, height: int = 1300) -> None:
        ours_in, theirs_out = os.pipe()
        theirs_in, ours_out = os.pipe()
        # The shell puts the two ends where the browser expects them, whatever their numbers here are.
        command = [
            "bash", "-c", f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}', "-", CHROMIUM, *FLAGS,
            f"--user-data-dir={profile}", f"--window-size={width},{height}", "about:blank",
        ]  # fmt: skip
        self._process = subprocess.Popen(
            command, pass_fds=(theirs_in, theirs_out), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._in, self._out = os.fdopen(ours_in, "rb"), os.fdopen(ours_out, "wb")
        self._numbers = itertools.count(1)
        self._session: str | None = None
        self.requests: list[str] = []
        self.faults: list[str] = []
        self.contexts: dict[str, int] = {}
        pages = self.call("Target.getTargets")["targetInfos"]
        page = next(target["targetId"] for target in pages if target["type"] == "page")
        self._session = self.call("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> Any:
        """Asks the browser, and notes what it tells meanwhile."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        self._out.write(json.dumps(message).encode() + b"\0")
        self._out.flush()
        while True:
            answer = self._read()
            if answer.get("id") == number:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]

    def _read(self) -> dict[str, Any]:
        raw = bytearray()
        while (one := self._in.peek(1)) and b"\0" not in one:
            raw += self._in.read(len(one))
        end = one.index(b"\0")
        raw += self._in.read(end)
        self._in.read(1)
        told: dict[str, Any] = json.loads(raw)
        about = told.get("params", {})
        if told.get("method") == "Network.requestWillBeSent":
            self.requests.append(about["request"]["url"])
        elif told.get("method") == "Network.webSocketCreated":
            self.requests.append(about["url"])
        elif told.get("method") == "Runtime.executionContextCreated":
            where = about["context"]["auxData"]
            if where.get("isDefault"):
                self.contexts[where["frameId"]] = about["context"]["id"]
        elif told.get("method") == "Runtime.exceptionThrown":
            self.faults.append(json.dumps(about["exceptionDetails"])[:500])
        return told

    def evaluate(self, script: str, frame: str | None = None) -> Any:
        """The value of an expression, in the page or in the newest frame inside it."""
        params: dict[str, Any] = {"expression": script, "returnByValue": True, "awaitPromise": True}
        if frame == "inner":
            inner = self.call("Page.getFrameTree")["frameTree"].get("childFrames", [])
            if not inner or inner[-1]["frame"]["id"] not in self.contexts:
                return None
            params["contextId"] = self.contexts[inner[-1]["frame"]["id"]]
        result = self.call("Runtime.evaluate", **params)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def until(self, script: str, frame: str | None = None, seconds: float = 30) -> Any:
        """Waits for an expression to be true, and gives it."""
        end = time.monotonic() + seconds
        while True:
            try:
                value = self.evaluate(script, frame)
            except AssertionError as error:  # a frame that is just being replaced
                value, problem = None, error
            else:
                problem = None
            if value:
                return value
            assert time.monotonic() < end, f"never true: {script} ({problem})"
            time.sleep(0.05)

    def open(self, url: str) -> None:
        self.call("Page.navigate", url=url)

    def press(self, key: str) -> None:
        """One key, to whatever has the focus."""
        text = {"text": key} if len(key) == 1 else {}
        for kind in ("keyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent", type=kind, key=key, code=key, **(text if kind == "keyDown" else {})
            )

    def click(self, selector: str) -> None:
        """A real click on the middle of an element of the page."""
        box = self.evaluate(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
            " e.scrollIntoView({block: 'center'});"
            " const b = e.getBoundingClientRect(); return [b.x + b.width / 2, b.y + b.height / 2]; })()"
        )
        self.click_at(*box)

    def click_at(self, x: float, y: float) -> None:
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", buttons=1, clickCount=1)

    def picture(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._in.close()
        self._out.close()
