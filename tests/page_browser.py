"""A headless Chromium, driven over its DevTools port: only what the test of the page needs."""
import base64
import json
import os
import shutil
import subprocess
import tempfile
import time
import urllib.request

import websocket


def find():
    for name in ("chromium", "chromium-browser", "google-chrome"):
        path = shutil.which(name)
        if path:
            return path
    return None


class Browser:
    def __init__(self, path, width=1440, height=1000):
        self.folder = tempfile.mkdtemp(prefix="carry-page-")
        command = [path, "--headless=new", "--remote-debugging-port=0", "--remote-allow-origins=*", "--no-first-run",
                   "--disable-gpu", "--disable-dev-shm-usage", "--disable-extensions", "--disable-background-networking",
                   f"--user-data-dir={self.folder}", f"--window-size={width},{height}"]
        if os.geteuid() == 0:
            command.append("--no-sandbox")
        self.process = subprocess.Popen(command + ["about:blank"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        port = self._port()
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list", timeout=120) as answer:
            pages = [page for page in json.load(answer) if page["type"] == "page"]
        self.socket = websocket.create_connection(pages[0]["webSocketDebuggerUrl"], timeout=120, max_size=None)
        self.number = 0
        self.errors = []  # what went to the console as an error, exceptions, and requests that failed
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def _port(self):
        name = os.path.join(self.folder, "DevToolsActivePort")
        for _ in range(3000):
            if self.process.poll() is not None:
                raise RuntimeError(f"the browser ended by itself with {self.process.returncode}")
            if os.path.exists(name) and os.path.getsize(name) > 0:
                with open(name, encoding="utf-8") as file:
                    return int(file.readline())
            time.sleep(0.1)
        raise RuntimeError("the browser did not open its port in five minutes")

    def _note(self, event):
        method, what = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            details = what["exceptionDetails"]
            self.errors.append(details.get("exception", {}).get("description", details["text"]))
        elif method == "Runtime.consoleAPICalled" and what["type"] in ("error", "assert", "warning"):
            self.errors.append(" ".join(str(arg.get("value", arg.get("description"))) for arg in what["args"]))
        elif method == "Log.entryAdded" and what["entry"]["level"] == "error":
            self.errors.append(f'{what["entry"]["text"]} {what["entry"].get("url", "")}')

    def call(self, method, **parameters):
        self.number += 1
        self.socket.send(json.dumps({"id": self.number, "method": method, "params": parameters}))
        while True:
            answer = json.loads(self.socket.recv())
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise RuntimeError(f'{method}: {answer["error"]}')
                return answer["result"]
            self._note(answer)

    def open(self, address):
        self.call("Page.navigate", url=address)
        self.wait("document.readyState === 'complete'")

    def value(self, expression):
        result = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in result:
            raise RuntimeError(f'{expression}: {result["exceptionDetails"]}')
        return result["result"].get("value")

    def wait(self, expression, seconds=120):
        """Waits until the expression is true and returns its value."""
        until = time.monotonic() + seconds
        while True:
            value = self.value(expression)
            if value:
                return value
            if time.monotonic() > until:
                raise AssertionError(f"never true in {seconds} s: {expression}")
            time.sleep(0.05)

    def press(self, key, code, text=""):
        number = ord(key.upper()) if len(key) == 1 else 13
        common = {"key": key, "code": code, "windowsVirtualKeyCode": number}
        self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **common)
        self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    def type(self, text):
        self.call("Input.insertText", text=text)

    def screenshot(self, path):
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)["data"]
        with open(path, "wb") as file:
            file.write(base64.b64decode(data))

    def close(self):
        try:
            self.call("Browser.close")
        except (OSError, RuntimeError, websocket.WebSocketException):
            pass
        try:
            self.process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)
