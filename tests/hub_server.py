#!/usr/bin/env python3
"""A server that answers as the Hugging Face hub does, for test_pull.sh.

    hub_server.py FOLDER PORT_FILE LOG

serves the model test/model whose files are in FOLDER. Large files (*.safetensors) are redirected to another path, as the
hub redirects to its storage. Files in FOLDER change its behaviour while it runs: `damage` damages a large file once for
each line of it, `slow` stops sending after half of a range, `token` is needed if it is there, `noranges` ignores ranges,
`huge` makes large files claim a petabyte, `elsewhere` puts the second page of the list of files on another host, which
notes in LOG if it gets a token.
"""
import hashlib
import http.server
import json
import os
import sys
import time
import urllib.parse

FOLDER, PORT_FILE, LOG = sys.argv[1:4]
COMMIT = "0123456789abcdef0123456789abcdef01234567"
CONTROLS = ("damage", "slow", "token", "noranges", "huge", "elsewhere")


def control(name):
    return os.path.join(FOLDER, name)


def files():
    for root, _, names in os.walk(FOLDER):
        for name in sorted(names):
            path = os.path.relpath(os.path.join(root, name), FOLDER)
            if path not in CONTROLS:
                yield path


def content(path):
    with open(os.path.join(FOLDER, path), "rb") as file:
        return file.read()


def describe(path):
    data = content(path)
    blob = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
    made = {"type": "file", "oid": blob, "size": len(data), "path": path}
    if path.endswith(".safetensors"):
        size = 10**15 if os.path.exists(control("huge")) else len(data)
        made["lfs"] = {"oid": hashlib.sha256(data).hexdigest(), "size": size, "pointerSize": 134}
    return made


class Hub(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, code, body=b"", headers=()):
        self.send_response(code)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def send_file(self, path):
        data = content(path)
        start, end = 0, len(data) - 1
        asked = self.headers.get("Range", "")
        ranged = asked.startswith("bytes=") and not os.path.exists(control("noranges"))
        if ranged:
            first, last = asked[6:].split("-")
            start, end = int(first), min(int(last or end), end)
        body = data[start : end + 1]
        if path.endswith(".safetensors") and os.path.exists(control("damage")):
            with open(control("damage")) as file:
                left = file.readlines()
            if left:
                body = bytes([body[0] ^ 1]) + body[1:]
                with open(control("damage"), "w") as file:
                    file.writelines(left[1:])
        with open(LOG, "a") as log:
            log.write(f"{path} {start} {len(body)} {'token' if self.headers.get('Authorization') else 'plain'}\n")
        self.send_response(206 if ranged else 200)
        if ranged:
            self.send_header("Content-Range", f"bytes {start}-{end}/{len(data)}")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        half = len(body) // 2
        self.wfile.write(body[:half])
        self.wfile.flush()
        while start > 0 and os.path.exists(control("slow")):
            time.sleep(0.05)
        self.wfile.write(body[half:])

    def do_GET(self):
        path = urllib.parse.unquote(urllib.parse.urlparse(self.path).path)
        if path.startswith("/storage/"):
            return self.send_file(path[len("/storage/") :])
        is_elsewhere = self.headers["Host"].startswith("localhost:")
        if is_elsewhere and self.headers.get("Authorization"):
            with open(LOG, "a") as log:
                log.write("the token went to another host\n")
        if not is_elsewhere and os.path.exists(control("token")) and self.headers.get("Authorization") != "Bearer " + content("token").decode().strip():
            return self.answer(401, b'{"error": "Invalid credentials"}')
        if path in ("/api/models/test/model/revision/main", "/api/models/test/model/revision/v1"):
            return self.answer(200, json.dumps({"id": "test/model", "sha": COMMIT}).encode())
        tree = f"/api/models/test/model/tree/{COMMIT}"
        if path == tree:  # two pages
            listed = list(files())
            half = len(listed) // 2
            if "cursor" in self.path:
                return self.answer(200, json.dumps([describe(name) for name in listed[half:]]).encode())
            host = f"localhost:{server.server_address[1]}" if os.path.exists(control("elsewhere")) else self.headers["Host"]
            link = f"<http://{host}{tree}?recursive=true&cursor=x>; rel=\"next\""
            first = [{"type": "directory", "oid": "0" * 40, "size": 0, "path": "sub"}] + [describe(name) for name in listed[:half]]
            return self.answer(200, json.dumps(first).encode(), [("Link", link)])
        prefix = f"/test/model/resolve/{COMMIT}/"
        if path.startswith(prefix) and path[len(prefix) :] in files():
            name = path[len(prefix) :]
            if name.endswith(".safetensors"):
                made = describe(name)
                return self.answer(302, b"", [("Location", "/storage/" + urllib.parse.quote(name)), ("X-Repo-Commit", COMMIT),
                                              ("X-Linked-Etag", f'"{made["lfs"]["oid"]}"'), ("X-Linked-Size", str(made["size"]))])
            return self.send_file(name)
        return self.answer(404, b'{"error": "Repository not found"}')


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_):  # a client that was killed
        pass


server = Server(("127.0.0.1", 0), Hub)
with open(PORT_FILE + ".new", "w") as file:
    file.write(str(server.server_address[1]))
os.rename(PORT_FILE + ".new", PORT_FILE)
server.serve_forever()
