"""libcarry.Engine: the same tokens as Model.generate, beside others as alone; states; mistakes."""

from __future__ import annotations

import ctypes
import json
import logging
import re
import threading
from pathlib import Path

import numpy as np
import pytest

import libcarry
from libcarry import _engine
from test_model import VOCABULARY, write


@pytest.fixture
def folder(tmp_path: Path, rng: np.random.Generator) -> Path:
    (tmp_path / "model").mkdir()
    write(tmp_path / "model", rng)
    return tmp_path / "model"


@pytest.fixture
def engine(folder: Path):
    with libcarry.Engine(folder, sequences=3, context=600, memory=64 << 20) as engine:
        yield engine


def prompts(count: int) -> list[list[int]]:
    return [[(3 * i + i // 7) % VOCABULARY for i in range(1 + 23 * k)] for k in range(count)]


def test_texts_are_those_of_the_model(engine, folder):
    model = libcarry.load(folder)
    for temperature in (0.0, 0.9):
        options = {"max_new_tokens": 12, "temperature": temperature, "eos_token_id": ()}
        requests = [engine.submit(prompt, **options) for prompt in prompts(9)]
        for prompt, request in zip(prompts(9), requests):
            assert request.result() == model.generate(prompt, **options)
            assert request.reason == "length" and request.prompt_tokens == len(prompt)
    assert sum(request.cached_tokens for request in requests) > 0
    assert engine.statistics()["finished"] == 18


def test_types_of_states(folder):
    options = {"max_new_tokens": 12, "temperature": 0.0, "eos_token_id": ()}
    with libcarry.Engine(folder, memory=64 << 20, kv_type="fp8", state_type="bf16") as engine:
        assert len(engine.generate([1, 2, 3], **options)) == 12
    with pytest.raises(ValueError, match="state_type 'int8': expected f32 or bf16"):
        libcarry.Engine(folder, state_type="int8")
    with pytest.raises(ValueError, match="kv_type 'int4': expected f32, bf16, f16 or fp8"):
        libcarry.Engine(folder, kv_type="int4")


def test_guesses_change_nothing(folder):
    options = {"max_new_tokens": 60, "temperature": 0.0, "eos_token_id": ()}
    prompt = [1, 2, 3, 1, 2, 3, 1, 2]
    with libcarry.Engine(folder, memory=64 << 20, same_bits=True) as engine:
        plain = engine.generate(prompt, **options)
    with libcarry.Engine(folder, memory=64 << 20, same_bits=True, draft="ngram", draft_tokens=3) as engine:
        request = engine.submit(prompt, **options)
        assert request.result() == plain
        assert request.drafted_tokens >= request.accepted_tokens >= 0 and request.drafted_tokens >= 3
        assert engine.statistics()["drafted_tokens"] == request.drafted_tokens
    with pytest.raises(ValueError, match="draft 'bigram': expected ngram, mtp or none"):
        libcarry.Engine(folder, draft="bigram")
    with pytest.raises(NotImplementedError, match="has no multi-token heads"):
        libcarry.Engine(folder, draft="mtp")


def test_tokens_come_one_by_one_and_can_be_cancelled(engine):
    request = engine.submit([1, 2, 3], 400, eos_token_id=())
    seen = []
    for token in request:
        seen.append(token)
        if len(seen) == 5:
            request.cancel()
    assert request.reason == "cancelled" and seen == request.tokens and 5 <= len(seen) < 10


def test_states_are_forked_rolled_back_and_saved(engine, folder, tmp_path):
    first = engine.submit(prompts(5)[4], 20, keep_state=True, eos_token_id=())
    first.result()
    state = first.state
    assert len(state) == len(prompts(5)[4]) + 20
    fork = state.fork()
    fork.save(tmp_path / "state")
    state.roll_back(10)
    assert len(state) == len(fork) - 10
    whole = engine.submit([1, 2], 10, state=fork, eos_token_id=()).result()
    assert engine.submit([1, 2], 10, state=fork, eos_token_id=()).result() == whole
    replayed = first.tokens[10:] + [1, 2]
    assert engine.submit(replayed, 10, state=state, eos_token_id=()).result() == whole
    with libcarry.Engine(folder, context=600, memory=64 << 20) as other:
        assert other.submit([1, 2], 10, state=other.load_state(tmp_path / "state"), eos_token_id=()).result() == whole
    state.drop()
    with pytest.raises(ValueError, match="was dropped"):
        len(state)


def test_states_move_to_host_memory_and_to_other_engines(engine, folder):
    first = engine.submit(prompts(5)[4], 20, keep_state=True, eos_token_id=(), temperature=0.0)
    first.result()
    fork, free = first.state.fork(), engine.statistics()["free_slots"]
    expected = engine.submit([5, 6], 10, state=fork, eos_token_id=(), temperature=0.0).result()
    first.state.to_host()
    assert engine.statistics()["free_slots"] > free and len(first.state) == len(prompts(5)[4]) + 20
    assert engine.submit([5, 6], 10, state=first.state, eos_token_id=(), temperature=0.0).result() == expected
    with libcarry.Engine(folder, sequences=1, context=600, memory=64 << 20) as other:
        moved = fork.move(other)
        assert other.submit([5, 6], 10, state=moved, eos_token_id=(), temperature=0.0).result() == expected
        with pytest.raises(ValueError, match="was dropped"):
            len(fork)


def test_mistakes_are_named(engine, folder):
    with pytest.raises(ValueError, match="longer than the context of 600"):
        engine.submit([1] * 600)
    with pytest.raises((ValueError, RuntimeError), match="token 1 of the prompt is 40"):
        engine.submit([1, VOCABULARY])
    with pytest.raises(ValueError, match="no tokenizer"):
        engine.submit("text")
    with pytest.raises(ValueError, match="a row of one token or more"):
        engine.submit([])
    with pytest.raises(ValueError):
        libcarry.Engine(folder, memory=1000)
    engine.close()
    with pytest.raises(ValueError, match="was closed"):
        engine.submit([1])


def test_callbacks_of_a_step_cannot_drive_its_engine(folder, tmp_path):
    prompt, options = prompts(10)[-1], {"max_new_tokens": 4, "temperature": 0.0, "eos_token_id": ()}
    with libcarry.Engine(folder, memory=64 << 20, cache_dir=tmp_path / "cache") as engine:
        answer = engine.generate(prompt, **options)
    for file in (tmp_path / "cache").iterdir():
        file.write_bytes(file.read_bytes()[:-1])
    seen, refused = [], []

    class Drives(logging.Handler):
        """Called for the warning that a cached prefix is skipped, inside carry_engine_step."""

        def emit(self, _record):
            for call in (engine.step, engine.run, engine.close, lambda: engine.generate([1])):
                with pytest.raises(RuntimeError, match="was called by a callback of a step of the same engine"):
                    call()
                seen.append(call)
            is_busy = ctypes.c_bool()
            refused.append(_engine.lib.carry_engine_step(engine._handle, ctypes.byref(is_busy)))

    handler = Drives()
    logging.getLogger("libcarry").addHandler(handler)
    try:
        with libcarry.Engine(folder, memory=64 << 20, cache_dir=tmp_path / "cache") as engine:
            assert engine.generate(prompt, **options) == answer
    finally:
        logging.getLogger("libcarry").removeHandler(handler)
    assert len(seen) >= 4 and refused and all(status != 0 for status in refused)


def test_other_threads_submit(engine):
    results: dict[int, list[int]] = {}

    def client(number: int) -> None:
        for i in range(10):
            results[10 * number + i] = engine.submit([1 + i], 5, eos_token_id=()).result()

    threads = [threading.Thread(target=client, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert len(results) == 30
    assert all(results[i] == results[10 + i] == results[20 + i] for i in range(10))


def test_texts_match_a_regex_or_a_schema(tmp_path, rng):
    write(tmp_path, rng, vocabulary=300)  # a vocabulary of bytes has a tokenizer
    with libcarry.Engine(tmp_path, sequences=3, context=600, memory=64 << 20) as engine:
        check_constraints(engine)


def check_constraints(engine):
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 99}, "ok": {"type": "boolean"}},
        "required": ["n", "ok"],
    }
    regex = r"(yes|no)(, (yes|no)){0,2}"
    options = {"max_new_tokens": 200, "temperature": 1.0, "top_p": 1.0}
    for seed in range(6):
        answer = engine.submit("x", regex=regex, seed=seed, **options)
        value = engine.submit("x", json_schema=schema, seed=seed, eos_token_id=(), **options)
        assert re.fullmatch(regex, answer.result()) and answer.reason == "end"
        parsed = json.loads(value.result())
        assert value.reason == "end" and 0 <= parsed["n"] < 100 and isinstance(parsed["ok"], bool)
    with pytest.raises(Exception, match="character 1: \\( without"):
        engine.submit("x", regex="(a")
    with pytest.raises(Exception, match="uniqueItems"):
        engine.submit("x", json_schema={"type": "array", "uniqueItems": True})
    with pytest.raises(Exception, match="expected one of both"):
        engine.submit("x", regex="a", json_schema="true")


def test_chats_are_rendered_and_answered(tmp_path, rng):
    write(tmp_path, rng, vocabulary=300)
    template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{{ style }}"
    (tmp_path / "chat_template.jinja").write_text(template)
    messages = [{"role": "user", "content": "Hello " * 30}]
    options = {"temperature": 0.0, "eos_token_id": ()}
    with libcarry.Engine(tmp_path, context=600, memory=64 << 20) as engine:
        answer = engine.chat(messages, 8, variables={"style": "plain"}, **options)
        rendered = libcarry.render_chat(tmp_path, messages, style="plain")
        assert answer == engine.submit(rendered, 8, is_rendered=True, **options).result()
        assert engine.statistics()["cached_tokens"] > 0
        texts = engine.generate(["ab", "c"], 4, **options)
        assert texts == [engine.generate(text, 4, **options) for text in ("ab", "c")]
        assert engine.generate([[1, 2], [3]], 4, **options) == [engine.generate(row, 4, **options) for row in ([1, 2], [3])]
