"""carry serve over loopback, with a small model of bytes. Usage: serve_test.py CARRY MODEL [CASE ...]"""

import concurrent.futures
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

from serve_server import PATIENCE, Server, content_of, readable, run, text_of

CARRY, MODEL = sys.argv[1], sys.argv[2]
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
HI = [{"role": "user", "content": "Hi"}]


def serve(*options, **more):
    return Server(CARRY, MODEL, "--device", "cpu", "--memory", "64M", *options, **more)


def answers_have_the_form_of_the_interface():
    with serve() as s:
        assert s.ready["address"] == f"http://127.0.0.1:{s.port}" and s.ready["model"] == "tiny"
        assert s.get("/health") == {"status": "ok"}
        model = s.get("/v1/models")["data"][0]
        assert model["id"] == "tiny" and model["object"] == "model"
        assert s.get("/v1/models/tiny")["id"] == "tiny"
        assert s.get("/v1/models/none", 404)["error"]["code"] == "model_not_found"
        a = s.chat(HI, model="tiny", max_tokens=7, seed=3)
        assert a["object"] == "chat.completion" and a["id"].startswith("chatcmpl-")
        assert a["choices"][0]["finish_reason"] == "length" and a["choices"][0]["message"]["role"] == "assistant"
        assert a["usage"]["prompt_tokens"] == 21 and a["usage"]["completion_tokens"] == 7
        assert a["usage"]["total_tokens"] == 28 and a["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
        t = s.complete("Hello", max_tokens=4, temperature=0, logprobs=2)
        assert t["object"] == "text_completion" and len(t["choices"][0]["logprobs"]["tokens"]) == 4
        assert all(len(top) <= 2 for top in t["choices"][0]["logprobs"]["top_logprobs"])
        by_ids = s.complete([72, 101, 108, 108, 111], max_tokens=4, temperature=0)
        assert content_of(by_ids) == content_of(t)
        assert content_of(s.complete("Hello", max_tokens=4, temperature=0, echo=True)) == "Hello" + content_of(t)


def streams_have_the_text_of_whole_answers():
    with serve() as s:
        for path, prompt in ((CHAT, {"messages": HI}), (TEXT, {"prompt": "Hi"})):
            body = {**prompt, "max_tokens": 40, "seed": 5, "n": 3, "ignore_eos": True}
            whole = s.post(path, body)
            chunks = s.chunks(path, {**body, "stream_options": {"include_usage": True}})
            for i in range(3):
                assert text_of(chunks, i) == content_of(whole, i)
                reasons = [c["finish_reason"] for x in chunks for c in x["choices"] if c["index"] == i]
                assert reasons[-1] in ("length", "stop") and not any(reasons[:-1])
            assert content_of(whole, 0) != content_of(whole, 1)
            assert chunks[-1]["choices"] == [] and chunks[-1]["usage"]["completion_tokens"] == 120
            assert all(x["usage"] is None for x in chunks[:-1])
            assert len({x["id"] for x in chunks}) == 1
            assert content_of(s.post(path, {**body, "n": 1})) == content_of(whole, 0)


def sampling_options_take_effect():
    with serve() as s:
        seeds = [content_of(s.chat(HI, max_tokens=16, seed=seed)) for seed in (1, 1, 2)]
        assert seeds[0] == seeds[1] != seeds[2]
        assert content_of(s.chat(HI, max_tokens=8)) != content_of(s.chat(HI, max_tokens=8))
        greedy = content_of(s.complete("ab", max_tokens=12, temperature=0))
        assert content_of(s.complete("ab", max_tokens=12, top_k=1)) == greedy
        assert content_of(s.complete("ab", max_tokens=12, top_p=1e-9)) == greedy
        assert content_of(s.complete("ab", max_tokens=12, min_p=1)) == greedy
        forced = s.complete("ab", max_tokens=6, logit_bias={"65": 100, "66": 99}, temperature=0, logprobs=0)
        assert content_of(forced) == "AAAAAA"
        turns = content_of(s.complete("ab", max_tokens=4, logit_bias={"65": 100, "66": 99}, temperature=0,
                                      frequency_penalty=2))
        assert set(turns) == {"A", "B"} and turns[0] == "A", turns
        stopped = s.complete("ab", max_tokens=50, logit_bias={"65": 100, "66": 99}, temperature=0,
                             frequency_penalty=2, stop=["AB", "BA"])
        assert stopped["choices"][0]["finish_reason"] == "stop" and "AB" not in content_of(stopped)
        logs = s.chat(HI, max_tokens=3, logprobs=True, top_logprobs=5, temperature=0)["choices"][0]["logprobs"]
        assert len(logs["content"]) == 3
        assert all(len(t["top_logprobs"]) == 5 and t["logprob"] == t["top_logprobs"][0]["logprob"]
                   for t in logs["content"])
        streamed = s.chunks(CHAT, {"messages": HI, "max_tokens": 3, "logprobs": True, "temperature": 0})
        seen = [t["token"] for x in streamed for c in x["choices"] for t in c["logprobs"]["content"]]
        assert seen == [t["token"] for t in logs["content"]]


def defaults_of_sampling_are_those_of_the_model():
    folder = tempfile.mkdtemp()
    try:
        model = shutil.copytree(MODEL, os.path.join(folder, "model"))
        with open(os.path.join(model, "generation_config.json"), "w", encoding="ascii") as file:
            json.dump({"temperature": 0.7, "top_k": 1, "top_p": 0.9}, file)
        with Server(CARRY, model, "--device", "cpu") as s:
            texts = {content_of(s.complete("ab", max_tokens=12)) for _ in range(4)}
            assert texts == {content_of(s.complete("ab", max_tokens=12, temperature=0))}
            assert len({content_of(s.complete("ab", max_tokens=12, temperature=1, top_k=0)) for _ in range(4)}) > 1
    finally:
        shutil.rmtree(folder)


def texts_are_tokenized_and_back():
    with serve() as s:
        t = s.post("/tokenize", {"prompt": "Hé <|im_end|>"})
        assert t["tokens"] == [72, 195, 169, 32, 258] and t["count"] == 5
        assert s.post("/detokenize", {"tokens": t["tokens"]})["prompt"] == "Hé <|im_end|>"
        assert s.post("/tokenize", {"messages": HI})["count"] == 21
        assert s.post("/detokenize", {"tokens": [9999]}, 400)["error"]["param"] == "tokens"


def refused(s, body, field, path=CHAT, status=400):
    got, _, content = s.ask("POST", path, body)
    assert got == status, (got, content, str(body)[:80])
    error = json.loads(content)["error"]
    assert error["param"] == field and error["message"], (error, field)


def bad_requests_are_refused_and_harm_nothing():
    with serve("--context", "512") as s:
        before = content_of(s.chat(HI, max_tokens=8, seed=1))
        for more, field in (({"temperature": "x"}, "temperature"), ({"n": 99}, "n"), ({"stop": ["x"] * 5000}, "stop"), ({"stop": "x" * 5000}, "stop"),
                            ({"max_tokens": 0}, "max_tokens"), ({"logit_bias": {"999": 1}}, "logit_bias"),
                            ({"messages": "x"}, "messages"), ({"messages": [{"role": "user"}]}, "messages[0].content"),
                            ({"messages": [{"role": "user", "content": "x" * 600}]}, "messages")):
            refused(s, {"messages": HI, **more}, field)
        refused(s, {"prompt": [300]}, "prompt", TEXT)
        refused(s, {"messages": HI, "model": "other"}, "model", status=404)
        for body in (b"", b"{", b"[1]", b'"x"', b"\xff\xfe", b'{"messages":[{"role":"user","content":"\xff"}]}',
                     b"[" * 100000, b'{"a":' * 5000, b'{"messages": NaN}', b'{"temperature": Infinity}', b"\x00"):
            got, _, content = s.ask("POST", CHAT, body)
            assert got == 400 or (not body and got in (400, 411)), (body[:20], got, content)
            assert json.loads(content)["error"]["message"]
        twice = {f"a{i}": {"type": "array", "prefixItems": [{"$ref": f"#/$defs/a{i + 1}"}] * 2, "minItems": 2}
                 for i in range(40)}  # fmt: skip
        for schema in ({"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
                       {"type": "array", "items": {"type": "integer"}, "minItems": 10**9},
                       {"type": "string", "minLength": 10**7}):
            form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
            refused(s, {"messages": HI, "response_format": form}, "response_format")
        form = {"type": "json_schema", "json_schema": {"schema": {"$defs": {**twice, "a40": {}}, "$ref": "#/$defs/a0"}}}
        assert s.ask("POST", CHAT, {"messages": HI, "max_tokens": 8, "response_format": form})[0] in (200, 400)
        for pattern in ("((a{1000}){1000}){1000}", "(" * 50000):
            refused(s, {"messages": HI, "regex": pattern}, "regex")
        assert s.chat(HI, max_tokens=1, ignore_eos=True, unknown={"fields": ["are", "ignored"]})["choices"]
        got, _, content = s.ask("POST", CHAT, b"[" + b"0," * (3 << 20) + b"0]")
        assert got == 413, (got, content)
        huge = socket.create_connection(("127.0.0.1", s.port), timeout=PATIENCE)
        huge.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n")
        assert b" 413 " in huge.recv(100)
        huge.close()
        for path, status in (("/nowhere", 404), ("/v1/chat", 404)):
            got, _, content = s.ask("GET", path)
            assert got == status and json.loads(content)["error"]["type"] == "not_found_error"
        assert s.ask("GET", CHAT)[0] == 405
        assert content_of(s.chat(HI, max_tokens=8, seed=1)) == before


def other_sites_are_refused():
    with serve() as s:
        assert s.ask("GET", "/health", headers={"Host": "evil.example"})[0] in (403, 421)
        assert s.ask("POST", CHAT, {"messages": HI}, {"Origin": "http://evil.example"})[0] == 403
        assert s.ask("POST", CHAT, {"messages": HI, "max_tokens": 1}, {"Origin": f"http://127.0.0.1:{s.port}"})[0] == 200


def logprobs_end_with_the_text():
    with serve() as s:
        for regex, stop, text in (("ab(cd)+XYZ", "XY", r"ab(cd)+"), ("S TS T S S T O P!", ["T O P", "never"], "S TS T S S "),
                                  ("é+xé+!", "xé", "é+"), ("abc", "zz", "abc"), ("aaaab", "aab", "aa")):
            for path, prompt, more in ((CHAT, {"messages": HI}, {"logprobs": True}), (TEXT, {"prompt": "Hi"}, {"logprobs": 1})):
                if path == TEXT and "é" in regex:
                    continue  # this interface has no bytes of half a character
                for seed in range(3):
                    body = {**prompt, **more, "regex": regex, "stop": stop, "max_tokens": 90, "seed": seed}
                    whole = s.post(path, body)
                    given = content_of(whole)
                    if whole["choices"][0]["finish_reason"] == "stop":
                        assert re.fullmatch(text, given), (regex, given)
                    assert tokens_of(whole["choices"]) == given.encode(), (body, whole)
                    chunks = s.chunks(path, body)
                    assert tokens_of([c for x in chunks for c in x["choices"]]) == given.encode() == text_of(chunks).encode()
                    seen = reported = b""
                    for one in (c for x in chunks for c in x["choices"]):
                        seen += text_of([{"choices": [one]}]).encode()
                        reported += tokens_of([one])
                        assert seen.startswith(reported), "a token is reported before its text"


def tokens_of(choices):
    """The bytes of the tokens with log probabilities."""
    made = b""
    for one in choices:
        probabilities = one["logprobs"] or {}
        made += b"".join(bytes(t["bytes"]) for t in probabilities.get("content", []))
        made += "".join(probabilities.get("tokens", [])).encode()
        offsets = probabilities.get("text_offset", [])
        assert offsets == sorted(offsets), offsets
    return made


def long_texts_delay_nobody_and_end_with_their_client():
    with serve("--context", "4096") as s:
        body = {"prompt": "ab" * (15 << 20)}
        connections = [s.begin("/tokenize", body) for _ in range(5)]
        assert len(s.post("/tokenize", {"prompt": "short"})["tokens"]) == 5
        assert s.chat(HI, max_tokens=1, ignore_eos=True)["usage"]["completion_tokens"] == 1
        assert not all(readable(one, 0) for one in connections), "the long texts were ready before the short ones"
        for one in connections:
            one.close()
        s.until(lambda m: m["carry_requests_preparing"] == 0 and m["carry_clients_gone_total"] >= 2,
                "texts of clients that have gone are dropped")
        error = s.post("/v1/completions", {"prompt": "x" * (1 << 20)}, 400)["error"]
        assert error["code"] == "context_length_exceeded", error


def keys_are_required():
    with tempfile.NamedTemporaryFile("w") as file:
        key = "a-key-of-sixteen-or-more"
        print(key, file=file, flush=True)
        with serve("--api-key-file", file.name, key=key) as s:
            assert s.chat(HI, max_tokens=1, ignore_eos=True)["usage"]["completion_tokens"] == 1
            got, _, content = s.ask("GET", "/v1/models", headers={"Authorization": "Bearer wrong-key-of-sixteen"})
            assert got == 401 and json.loads(content)["error"]["code"] == "invalid_api_key"
            for headers in ({"Authorization": ""}, {"Authorization": "Bearer wrong-key-of-sixteen"}):
                got, _, content = s.ask("GET", "/health", headers=headers)
                assert got == 200 and json.loads(content) == {"status": "ok"}
                assert s.ask("GET", "/metrics", headers=headers)[0] == 401
    refusal = subprocess.run([CARRY, "serve", MODEL, "--host", "0.0.0.0", "--port", "0"], capture_output=True,
                             timeout=PATIENCE, check=False)
    assert refusal.returncode == 2 and refusal.stderr.count(b"\n") == 1, refusal.stderr


def conversation(s, turns, **more):
    """An agent's turns: a long task, then calls and their results. (answers, cached, prompt tokens)"""
    messages = [{"role": "system", "content": "You are an agent. " * 200}]
    answers, cached, total = [], 0, 0
    for i in range(turns):
        messages.append({"role": "user", "content": f"result {i}: " + "data " * 40})
        a = s.chat(messages, max_tokens=24, temperature=0, **more)
        messages.append({"role": "assistant", "content": content_of(a)})
        answers.append(content_of(a))
        if i > 0:
            cached += a["usage"]["prompt_tokens_details"]["cached_tokens"]
            total += a["usage"]["prompt_tokens"]
    return answers, cached, total


def conversations_reuse_their_prefix_and_texts_do_not_change():
    with serve("--context", "16384") as s, serve("--context", "16384", "--no-cache") as plain:
        answers, cached, total = conversation(s, 20, logit_bias={str(i): -100 for i in range(128, 256)})
        assert cached >= 0.95 * total, (cached, total)
        without, none, _ = conversation(plain, 20, logit_bias={str(i): -100 for i in range(128, 256)})
        assert none == 0 and without == answers
        metrics = s.metrics()
        assert metrics["carry_cached_tokens_total"] >= cached


def prefixes_survive_a_restart():
    folder = tempfile.mkdtemp()
    ascii_only = {str(i): -100 for i in range(128, 256)}
    try:
        with serve("--context", "16384", "--cache-dir", folder) as s:
            answers, _, _ = conversation(s, 3, logit_bias=ascii_only)
        with serve("--context", "16384", "--cache-dir", folder) as s:
            again, cached, total = conversation(s, 3, logit_bias=ascii_only)
            assert again == answers and cached >= 0.9 * total, (cached, total)
    finally:
        shutil.rmtree(folder)


def clients_that_go_away_cancel_their_request():
    with serve("--context", "200000", "--sequences", "2") as s:
        connections = [s.begin(CHAT, {"messages": HI, "max_tokens": 150000, "stream": stream, "ignore_eos": True})
                       for stream in (True, False)]
        s.until(lambda m: m["carry_requests_active"] == 2, "both run")
        for connection in connections:
            connection.close()
        s.until(lambda m: m["carry_requests_active"] == 0, "both are cancelled")
        assert s.metrics()["carry_generated_tokens_total"] < 300000
        s.until(lambda m: m["carry_clients_gone_total"] == 2, "both are counted")


def streams_that_are_never_read_end():
    with serve("--context", "200000", "--patience", "1") as s:
        connection = s.begin(CHAT, {"messages": HI, "max_tokens": 190000, "stream": True, "ignore_eos": True})
        s.until(lambda m: m["carry_requests_active"] == 1, "it runs")
        s.until(lambda m: m["carry_requests_active"] == 0, "it is given up")
        s.until(lambda m: m["carry_clients_gone_total"] == 1, "it is counted")
        connection.close()


def full_queues_get_429():
    with serve("--context", "100000", "--sequences", "1", "--queue", "1") as s:
        running = s.begin(CHAT, {"messages": HI, "max_tokens": 90000, "stream": True, "ignore_eos": True})
        s.until(lambda m: m["carry_requests_active"] == 1, "one runs")
        waiting = s.begin(CHAT, {"messages": HI, "max_tokens": 90000, "stream": True, "ignore_eos": True})
        s.until(lambda m: m["carry_requests_waiting"] == 1, "one waits")
        got, headers, content = s.ask("POST", CHAT, {"messages": HI, "max_tokens": 1})
        assert got == 429 and int(headers["Retry-After"]) >= 1, (got, content)
        assert json.loads(content)["error"]["type"] == "rate_limit_error"
        running.close()
        waiting.close()
        s.until(lambda m: m["carry_requests_active"] == 0 and m["carry_requests_waiting"] == 0, "both have ended")
        assert s.chat(HI, max_tokens=1, ignore_eos=True)["usage"]["completion_tokens"] == 1


def sigterm_drains():
    with serve("--context", "100000") as s:
        held = s.begin(CHAT, {"messages": HI, "max_tokens": 90000, "stream": True, "ignore_eos": True})
        events = s.events(CHAT, {"messages": HI, "max_tokens": 3000, "ignore_eos": True})
        next(events)
        s.until(lambda m: m["carry_requests_active"] >= 1, "one runs")
        s.process.send_signal(signal.SIGTERM)
        until = time.monotonic() + PATIENCE
        while s.ask("GET", "/health")[0] == 200:
            assert time.monotonic() < until
        got, headers, _ = s.ask("POST", CHAT, {"messages": HI})
        assert got == 503 and headers["Retry-After"]
        assert list(events)[-1] == "[DONE]"
        held.close()
        assert s.process.wait(PATIENCE) == 0
    with serve("--context", "200000") as s:
        connection = s.begin(CHAT, {"messages": HI, "max_tokens": 190000, "ignore_eos": True})
        s.until(lambda m: m["carry_requests_active"] == 1, "it runs")
        s.process.send_signal(signal.SIGTERM)
        while s.ask("GET", "/health")[0] == 200:
            pass
        s.process.send_signal(signal.SIGTERM)
        assert s.process.wait(PATIENCE) == 128 + signal.SIGTERM
        connection.close()


def states_survive_a_kill():
    folder = tempfile.mkdtemp()
    conversation_so_far = [{"role": "user", "content": "Remember this. " * 30},
                           {"role": "assistant", "content": "I do."}]
    following = [*conversation_so_far, {"role": "user", "content": "Go on."}]
    try:
        with serve("--states", folder) as s:
            saved = s.post("/v1/states", {"name": "talk", "messages": conversation_so_far})
            assert saved["tokens"] > 400 and saved["bytes"] > 0
            expected = content_of(s.chat(following, max_tokens=30, seed=4))
            s.process.kill()
            s.process.wait()
        with serve("--states", folder) as s:
            assert [one["name"] for one in s.get("/v1/states")["data"]] == ["talk"]
            assert s.post("/v1/states/talk/load", None)["tokens"] == saved["tokens"]
            a = s.chat(following, max_tokens=30, seed=4)
            assert a["usage"]["prompt_tokens_details"]["cached_tokens"] == saved["tokens"], a["usage"]
            assert content_of(a) == expected
            long_one = [{"role": "user", "content": "x" * 3000}]
            assert s.ask("POST", "/v1/states", {"name": "long", "messages": long_one})[0] == 400
            for name in ("../talk", "", "a/b", ".x", "x" * 65):
                assert s.ask("POST", "/v1/states", {"name": name, "messages": HI})[0] == 400
                assert s.ask("DELETE", f"/v1/states/{name}")[0] in (400, 404)
            path = os.path.join(folder, "talk.state")
            with open(path, "r+b") as file:
                file.seek(-5, os.SEEK_END)
                file.write(b"\x55\xaa\x55")
            got, _, content = s.ask("POST", "/v1/states/talk/load")
            assert got == 409 and "talk" in json.loads(content)["error"]["message"], (got, content)
            assert s.ask("DELETE", "/v1/states/talk")[0] == 200
            assert s.ask("DELETE", "/v1/states/talk")[0] == 404 and s.get("/v1/states")["data"] == []
    finally:
        shutil.rmtree(folder)


def slow_and_half_open_clients_do_not_hold_up_others():
    with serve("--patience", "2") as s:
        slow = [socket.create_connection(("127.0.0.1", s.port), timeout=PATIENCE) for _ in range(20)]
        for i, connection in enumerate(slow):
            connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
                               + (b"Content-Length: 50\r\n\r\n{" if i % 2 else b""))
        assert s.chat(HI, max_tokens=4, ignore_eos=True)["usage"]["completion_tokens"] == 4
        for connection in slow:
            while connection.recv(1000):
                pass
            connection.close()


def curl_works():
    if shutil.which("curl") is None:
        return "curl is not installed"
    with serve() as s:
        command = ["curl", "-sSN", f"http://localhost:{s.port}{CHAT}", "-H", "Content-Type: application/json", "-d",
                   json.dumps({"messages": HI, "max_tokens": 5, "stream": True})]
        out = subprocess.run(command, capture_output=True, timeout=PATIENCE, check=True).stdout
        assert out.startswith(b"data: {") and out.endswith(b"data: [DONE]\n\n")
    return None


def the_openai_package_works():
    try:
        import openai
    except ImportError:
        return "the package openai is not installed"
    with serve() as s:
        client = openai.OpenAI(base_url=f"http://127.0.0.1:{s.port}/v1", api_key="none", max_retries=0)
        assert [m.id for m in client.models.list()] == ["tiny"]
        a = client.chat.completions.create(model="tiny", messages=HI, max_completion_tokens=9, seed=2, n=2, logprobs=True,
                                           top_logprobs=2)
        assert len(a.choices) == 2 and a.usage.completion_tokens == 18
        assert a.usage.prompt_tokens_details.cached_tokens == 0
        assert len(a.choices[0].logprobs.content) == 9
        parts = client.chat.completions.create(model="tiny", messages=HI, max_completion_tokens=9, seed=2, stream=True,
                                               stream_options={"include_usage": True})
        parts = list(parts)
        text = "".join(p.choices[0].delta.content or "" for p in parts if p.choices)
        assert text == a.choices[0].message.content and parts[-1].usage.completion_tokens == 9
        t = client.completions.create(model="tiny", prompt="Hello", max_tokens=4, logprobs=1)
        assert t.choices[0].finish_reason in ("length", "stop")
        for wrong, error in (({"model": "none"}, openai.NotFoundError), ({"temperature": 1000}, openai.BadRequestError)):
            try:
                client.chat.completions.create(**{"model": "tiny", "messages": HI, **wrong})
                raise AssertionError(f"{wrong} was accepted")
            except error as refusal:
                assert refusal.param in wrong
        with client.chat.completions.create(model="tiny", messages=HI, stream=True, max_tokens=2000) as stream:
            next(iter(stream))
        s.until(lambda m: m["carry_requests_active"] == 0, "the closed stream is cancelled")
    return None


def models_without_a_tokenizer_answer_with_ids():
    with Server(CARRY, "tiny", "--random", "--device", "cpu", "--name", "ids") as s:
        a = s.complete([1, 2, 3], max_tokens=5, temperature=0, ignore_eos=True)
        assert len([int(one) for one in content_of(a).split()]) == 5
        assert s.ask("POST", TEXT, {"prompt": "text"})[0] == 400
        assert s.ask("POST", CHAT, {"messages": HI})[0] == 400
        assert s.ask("POST", TEXT, {"prompt": [1], "stop": "x"})[0] == 400


def long_prompts_do_not_starve_others():
    with serve("--context", "120000", "--sequences", "4") as s:
        times = []
        is_read = threading.Event()

        def read_long():
            s.complete([i * 7 % 256 for i in range(100000)], max_tokens=1, temperature=0)
            is_read.set()

        reader = threading.Thread(target=read_long)
        # A prompt of 100,000 tokens takes at least 195 steps of 512, and each of them has a token of the text.
        for data in s.events(TEXT, {"prompt": "a", "max_tokens": 100000, "logit_bias": {"65": 100}}):
            times.append(time.monotonic())
            if len(times) == 400:
                reader.start()
            if is_read.is_set() or data == "[DONE]":
                break
        reader.join(PATIENCE)
        assert is_read.is_set() and len(times) >= 595, len(times)


if __name__ == "__main__":
    sys.exit(run([
        answers_have_the_form_of_the_interface, streams_have_the_text_of_whole_answers, sampling_options_take_effect,
        defaults_of_sampling_are_those_of_the_model, texts_are_tokenized_and_back, bad_requests_are_refused_and_harm_nothing, other_sites_are_refused,
        logprobs_end_with_the_text, long_texts_delay_nobody_and_end_with_their_client, keys_are_required, conversations_reuse_their_prefix_and_texts_do_not_change, prefixes_survive_a_restart, clients_that_go_away_cancel_their_request,
        streams_that_are_never_read_end, full_queues_get_429, sigterm_drains, states_survive_a_kill,
        slow_and_half_open_clients_do_not_hold_up_others, long_prompts_do_not_starve_others, curl_works,
        models_without_a_tokenizer_answer_with_ids,
        the_openai_package_works,
    ]))  # fmt: skip
