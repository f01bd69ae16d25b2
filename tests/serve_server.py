"""A carry serve under test, and a client of few lines over sockets. Used by serve_test.py and serve_soak.py."""

import http.client
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time

PATIENCE = 120  # seconds for anything to happen: a busy machine is slow


class Server:
    """carry serve on a free port; `options` follow the model."""

    def __init__(self, carry, model, *options, key=None):
        self.key = key
        self.process = subprocess.Popen(
            [carry, "serve", model, "--port", "0", "--json", *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"no server: {self.process.stderr.read().decode()}")
        self.ready = json.loads(line)
        self.port = self.ready["port"]

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        was_running = self.process.poll() is None
        if was_running:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        errors = self.process.stderr.read().decode()
        self.process.stdout.close()
        self.process.stderr.close()
        if kind is None and was_running and self.process.returncode != 0:
            raise AssertionError(f"the server ended with {self.process.returncode}: {errors[-2000:]}")

    def headers(self, more=None):
        own = {"Content-Type": "application/json"}
        if self.key:
            own["Authorization"] = f"Bearer {self.key}"
        own.update(more or {})
        return own

    def ask(self, method, path, body=None, headers=None):
        """(status, headers, bytes)"""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        data = body if isinstance(body, (bytes, type(None))) else json.dumps(body).encode()
        connection.request(method, path, data, self.headers(headers))
        response = connection.getresponse()
        content = response.read()
        connection.close()
        return response.status, response.headers, content

    def post(self, path, body, status=200):
        got, _, content = self.ask("POST", path, body)
        assert got == status, (got, content)
        return json.loads(content)

    def get(self, path, status=200):
        got, _, content = self.ask("GET", path)
        assert got == status, (got, content)
        return json.loads(content)

    def chat(self, messages, **more):
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        return self.post("/v1/chat/completions", {"messages": messages, **more})

    def complete(self, prompt, **more):
        return self.post("/v1/completions", {"prompt": prompt, **more})

    def begin(self, path, body):
        """Sends a request and returns the connection, without reading the response."""
        data = json.dumps(body).encode()
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE)
        head = "".join(f"{name}: {value}\r\n" for name, value in self.headers().items())
        connection.sendall(
            f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\nContent-Length: {len(data)}\r\n{head}\r\n".encode()
            + data
        )
        return connection

    def events(self, path, body):
        """The data of a streamed answer, one by one."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        connection.request("POST", path, json.dumps({**body, "stream": True}).encode(), self.headers())
        response = connection.getresponse()
        assert response.status == 200, response.read()
        assert response.headers["Content-Type"] == "text/event-stream"
        for line in response:
            if line.startswith(b"data: "):
                yield line[6:].rstrip(b"\n").decode()
        connection.close()

    def chunks(self, path, body):
        data = list(self.events(path, body))
        assert data[-1] == "[DONE]", data[-1:]
        return [json.loads(one) for one in data[:-1]]

    def metrics(self):
        _, _, content = self.ask("GET", "/metrics")
        lines = [line.rsplit(" ", 1) for line in content.decode().splitlines() if not line.startswith("#")]
        return {name: float(value) for name, value in lines}

    def until(self, condition, what):
        """Waits until the metrics fulfil a condition."""
        end = time.monotonic() + PATIENCE
        while not condition(self.metrics()):
            assert time.monotonic() < end, f"waited in vain: {what}: {self.metrics()}"
            time.sleep(0.02)


def text_of(chunks, choice=0):
    parts = [c for chunk in chunks for c in chunk["choices"] if c["index"] == choice]
    return "".join(c["delta"].get("content") or "" if "delta" in c else c["text"] for c in parts)


def content_of(answer, choice=0):
    one = answer["choices"][choice]
    return one["message"]["content"] if "message" in one else one["text"]


def run(cases):
    """Runs functions without arguments by name and returns the exit status."""
    failures = 0
    only = sys.argv[3:]
    for case in cases:
        if only and case.__name__ not in only:
            continue
        try:
            skipped = case()
            print(f"{'skipped: ' + skipped if skipped else 'ok'}: {case.__name__}", flush=True)
        except Exception as error:  # noqa: BLE001
            failures += 1
            print(f"FAILED: {case.__name__}: {type(error).__name__}: {error}", flush=True)
            if os.environ.get("CARRY_TEST_TRACE"):
                raise
    return 1 if failures else 0


def readable(connection, seconds):
    return bool(select.select([connection], [], [], seconds)[0])
