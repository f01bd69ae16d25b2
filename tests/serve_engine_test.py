"""What servers of hybrid models get wrong, over HTTP: prefixes, faults, restarts, memory. A small model of bytes, in which
token 255 makes logits NaN in f16. Usage: serve_engine_test.py CARRY MODEL [CASE ...]"""

import concurrent.futures
import json
import os
import random
import shutil
import sys
import tempfile

from serve_server import PATIENCE, Server, content_of, readable, run, text_of

CARRY, MODEL = sys.argv[1], sys.argv[2]
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
BLOCK = 64  # tokens of a page: the cache has states at its multiples
NO_NAN = {"255": -100}
ASCII = {str(i): -100 for i in range(128, 256)}


def serve(*options):
    return Server(CARRY, MODEL, "--device", "cpu", *options)


def tools():
    return [{"type": "function", "function": {"name": f"tool_{i}", "description": f"does thing {i}. " * 30, "parameters": {
        "type": "object", "properties": {"path": {"type": "string"}, "line": {"type": "integer"}}}}}
        for i in range(20)]  # fmt: skip


def agent_turns(turns):
    """The messages of an agent: instructions and tools, then answers of the server with calls, and the calls' results."""
    chance = random.Random(5)
    messages = [{"role": "system", "content": "You are an agent with tools. " * 60}, {"role": "user", "content": "Mend the build."}]

    def add(turn, answer):
        messages.append({"role": "assistant", "content": answer, "tool_calls": [{"id": f"call_{turn}", "type": "function", "function": {
            "name": f"tool_{turn % 20}", "arguments": json.dumps({"path": f"src/{turn}.c", "line": turn})}}]})  # fmt: skip
        result = " ".join(f"line {turn}.{i} {chance.randrange(1000)}" for i in range(51))
        messages.append({"role": "tool", "tool_call_id": f"call_{turn}", "content": result})

    return messages, add, turns


def hold(s, turns, first=0, talk=None):
    """Holds turns first..turns-1 of an agent's conversation. Returns (usage of each turn, answers, the conversation)."""
    messages, add, _ = talk or agent_turns(turns)
    usages, answers = [], []
    for turn in range(first, turns):
        a = s.chat(messages, tools=tools(), max_tokens=40, temperature=0, logit_bias=ASCII, ignore_eos=True)
        usages.append(a["usage"])
        answers.append(content_of(a))
        add(turn, content_of(a))
    return usages, answers, (messages, add, turns)


def read_of(usage):
    return usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"]


def an_agent_reads_only_what_is_new():
    folder = tempfile.mkdtemp()
    options = ("--context", "40000", "--memory", "256M", "--cache-dir", folder)
    try:
        with serve(*options) as s:
            usages, answers, talk = hold(s, 20)
            assert usages[0]["prompt_tokens"] > 12000 and usages[-1]["prompt_tokens"] >= 30000, usages
            cached = sum(u["prompt_tokens_details"]["cached_tokens"] for u in usages[1:])
            assert cached >= 0.95 * sum(u["prompt_tokens"] for u in usages[1:]), usages
            # A turn reads only the tokens of its own message, on which the time to its first token depends.
            new = [b["prompt_tokens"] - a["prompt_tokens"] for a, b in zip(usages, usages[1:])]
            assert all(read_of(u) <= n + BLOCK for u, n in zip(usages[1:], new)), (new, usages)
            metrics = s.metrics()
            assert metrics["carry_cached_tokens_total"] >= cached
        with serve(*options) as s:  # goes on where it was
            later, _, _ = hold(s, 24, 20, talk)
            assert all(read_of(u) <= max(new) + 2 * BLOCK for u in later), later
        with serve("--context", "40000", "--memory", "256M", "--no-cache") as s:
            plain, same, _ = hold(s, 4)
            assert same == answers[:4] and all(u["prompt_tokens_details"]["cached_tokens"] == 0 for u in plain)
    finally:
        shutil.rmtree(folder)


def random_conversations_are_the_same_with_and_without_the_cache():
    chance = random.Random(11)
    talks = []
    for _ in range(200):
        opening = f"opening {chance.randrange(6)} " * chance.randrange(1, 60)
        turns = ["turn %d " % chance.randrange(1000) * chance.randrange(1, 20) for _ in range(chance.randrange(1, 4))]
        talks.append((opening, turns, chance.randrange(1 << 30)))

    def talk(s, one):
        opening, turns, seed = one
        messages, found = [{"role": "system", "content": opening}], []
        for turn in turns:
            messages.append({"role": "user", "content": turn})
            a = s.chat(messages, max_tokens=8, seed=seed, logprobs=True, temperature=0.8, logit_bias=NO_NAN)
            found.append([(t["bytes"], t["logprob"]) for t in a["choices"][0]["logprobs"]["content"]])
            messages.append({"role": "assistant", "content": f"answer {len(found)}"})
        return found

    with serve("--same-bits") as s, serve("--same-bits", "--no-cache") as plain:
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            cached = list(pool.map(lambda t: talk(s, t), talks))
            without = list(pool.map(lambda t: talk(plain, t), talks))
        assert cached == without
        assert s.metrics()["carry_cached_tokens_total"] > 0 and plain.metrics()["carry_cached_tokens_total"] == 0


def cancelled_and_failed_requests_leave_the_others_unchanged():
    with serve("--sequences", "8", "--memory", "64M", "--dtype", "f16", "--same-bits") as s:
        kinds = 40

        def body(i, **more):
            i %= kinds
            ids = list(f"prompt {i % 10} ".encode() * (1 + i % 23)) + [i]
            return {"prompt": ids, "max_tokens": 12, "seed": i, "ignore_eos": True, "logit_bias": NO_NAN, **more}

        alone = [content_of(s.post(TEXT, body(i))) for i in range(kinds)]
        fates = [random.Random(i).random() for i in range(1000)]

        def one(i):
            if fates[i] < 1 / 3:  # cancelled
                connection = s.begin(TEXT, body(i, max_tokens=2000, stream=True))
                if i % 2:
                    readable(connection, PATIENCE)
                connection.close()
                return None
            if fates[i] < 0.4:  # NaN at the end, or in the middle, of the prompt
                ids = body(i)["prompt"]
                ids.insert(len(ids) - (i % 2) * (len(ids) // 2), 255)
                return s.post(TEXT, {**body(i), "prompt": ids}, 500)["error"]
            return content_of(s.post(TEXT, body(i)))

        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            found = list(pool.map(one, range(1000)))
        for i, got in enumerate(found):
            if 1 / 3 <= fates[i] < 0.4:
                assert got["type"] == "server_error" and "NaN" in got["message"], got
            elif fates[i] >= 0.4:
                assert got == alone[i % kinds], i
        s.until(lambda m: m["carry_requests_active"] == 0 and m["carry_requests_waiting"] == 0, "all have ended")
        assert s.metrics()["carry_requests_failed_total"] == sum(1 / 3 <= f < 0.4 for f in fates)


def a_stream_with_nan_ends_with_an_error():
    with serve("--dtype", "f16") as s:
        # Token 255 is likelier from its fourth position on: the text has begun when the logits become NaN.
        events = list(s.events(TEXT, {"prompt": "a", "max_tokens": 20, "temperature": 0, "logit_bias": {"255": 90, "65": 100},
                                      "frequency_penalty": 2, "presence_penalty": 2}))  # fmt: skip
        assert events[-1] == "[DONE]" and "NaN" in json.loads(events[-2])["error"]["message"], events[-2:]
        assert text_of([json.loads(e) for e in events[:-2]]).startswith("A"), events
        assert s.complete("a", max_tokens=3, logit_bias=NO_NAN, ignore_eos=True)["usage"]["completion_tokens"] == 3


def states_in_the_cache_folder_survive_a_kill():
    folder = tempfile.mkdtemp()
    prompt = "Remember this. " * 60
    options = ("--cache-dir", folder, "--context", "4096")
    try:
        with serve(*options) as s:
            expected = content_of(s.complete(prompt, max_tokens=20, temperature=0, logit_bias=NO_NAN))
        with serve(*options) as s:  # the folder has it now
            s.process.kill()
            s.process.wait()
        with serve(*options) as s:
            a = s.complete(prompt, max_tokens=20, temperature=0, logit_bias=NO_NAN)
            assert a["usage"]["prompt_tokens_details"]["cached_tokens"] >= len(prompt) - 2 * BLOCK, a["usage"]
            assert content_of(a) == expected
        for name in os.listdir(folder):
            path = os.path.join(folder, name)
            if os.path.isfile(path):
                with open(path, "r+b") as file:
                    file.seek(-9, os.SEEK_END)
                    file.write(b"\x55\xaa\x55\xaa")
        with serve(*options) as s:  # damaged: read again, with the same text
            assert content_of(s.complete(prompt, max_tokens=20, temperature=0, logit_bias=NO_NAN)) == expected
    finally:
        shutil.rmtree(folder)


def choices_share_their_prompt():
    prompt = [i * 7 % 250 for i in range(3000)]
    body = {"max_tokens": 10, "seed": 4, "ignore_eos": True, "logit_bias": NO_NAN}
    with serve("--sequences", "8", "--context", "4096") as s, serve("--sequences", "8", "--context", "4096", "--no-cache") as plain:
        for server in (s, plain):
            a = server.complete(prompt, n=6, **body)
            m = server.metrics()
            read = m["carry_prompt_tokens_total"] - m["carry_cached_tokens_total"]
            assert len({content_of(a, i) for i in range(6)}) > 1
            assert read <= 3000 + 5 * BLOCK, m
        alone = [content_of(plain.complete(prompt, n=1, **body)), content_of(plain.complete(prompt, n=2, **body), 1)]
        assert alone == [content_of(a, 0), content_of(a, 1)]


def memory_is_bounded_and_requests_wait():
    with serve("--memory", "4M", "--context", "4096", "--sequences", "4") as s:
        before = s.metrics()
        bodies = [{"prompt": [i % 250] + [j * 3 % 250 for j in range(2000)], "max_tokens": 6, "ignore_eos": True,
                   "logit_bias": NO_NAN} for i in range(40)]  # fmt: skip
        with concurrent.futures.ThreadPoolExecutor(40) as pool:
            answers = list(pool.map(lambda b: s.post(TEXT, b), bodies))
        assert all(a["usage"]["completion_tokens"] == 6 for a in answers)
        after = s.metrics()
        for name in ("carry_slots", "carry_pages"):
            assert after.get(name) == before.get(name), name
        assert after["carry_requests_failed_total"] == 0


if __name__ == "__main__":
    sys.exit(run([
        an_agent_reads_only_what_is_new, random_conversations_are_the_same_with_and_without_the_cache,
        cancelled_and_failed_requests_leave_the_others_unchanged, a_stream_with_nan_ends_with_an_error,
        states_in_the_cache_folder_survive_a_kill, choices_share_their_prompt, memory_is_bounded_and_requests_wait,
    ]))  # fmt: skip
