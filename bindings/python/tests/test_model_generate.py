"""Generation from Python: Ctrl-C, callbacks that use their model, other threads, ends of texts, saved folders."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import libcarry
from libcarry._llm import PROCEED
from test_model import VOCABULARY, write

DEADLINE = 120.0  # seconds; nothing waits this long unless it fails


@pytest.fixture
def folder(tmp_path: Path, rng: np.random.Generator) -> Path:
    (tmp_path / "model").mkdir()
    write(tmp_path / "model", rng)
    return tmp_path / "model"


@pytest.fixture
def model(folder: Path) -> libcarry.model.Model:
    return libcarry.load(folder)


CHILD = """
import os, signal, sys, threading
import libcarry
from libcarry import _llm
model, has_callback = libcarry.load(sys.argv[1]), sys.argv[2] == "on_token"
guard, caught = _llm.Interrupts.guard, 0

class Count:
    def __init__(self, most):
        self.count, self.most, self.reached = 0, most, threading.Event()
    def __call__(self, *_):
        self.count += 1
        if self.count == self.most:
            self.reached.set()

def interrupt(count):
    count.reached.wait()
    os.kill(os.getpid(), signal.SIGINT)

for most in range(20, 30):
    state, count = model.state(), Count(most)
    if not has_callback:
        _llm.Interrupts.guard = lambda *given: (count(), guard(*given))[1]
    thread = threading.Thread(target=interrupt, args=(count,))
    thread.start()
    try:
        model.generate([1, 2, 3], 10**9, state=state, eos_token_id=(), on_token=count if has_callback else None)
    except KeyboardInterrupt:
        caught += 1
    thread.join()
    length = len(state)
    assert length >= 3 + most - 1, (length, most)
    assert len(model.generate([5], 4, eos_token_id=(), state=state)) == 4 and len(state) == length + 1 + 3
print("caught", caught, signal.getsignal(signal.SIGINT) is signal.default_int_handler)
"""


@pytest.mark.parametrize("how", ["on_token", "without"])
def test_ctrl_c_ends_generation_every_time(folder: Path, how: str) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", CHILD, str(folder), how]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=DEADLINE, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["caught", "10", "True"], done.stdout + done.stderr


def test_ctrl_c_in_a_long_prompt_ends_it_between_pieces(model: libcarry.model.Model, monkeypatch) -> None:
    prompt, state = np.arange(2000) % VOCABULARY, model.state()
    whole = model.generate(prompt, 3, temperature=0, eos_token_id=())

    def with_signal(proceed):
        return PROCEED(lambda user: (signal.raise_signal(signal.SIGINT), proceed(user))[1])

    with monkeypatch.context() as patch:
        patch.setattr(libcarry.model, "PROCEED", with_signal)
        with pytest.raises(KeyboardInterrupt):
            model.generate(prompt, 3, state=state)
    read = len(state)
    assert 0 < read < 2000
    assert model.generate(prompt[read:], 3, temperature=0, eos_token_id=(), state=state) == whole


def test_a_handler_that_does_not_raise_lets_the_text_go_on(model: libcarry.model.Model) -> None:
    seen: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _frame: seen.append(number))
    try:
        made = model.generate([1], 5, eos_token_id=(), on_token=lambda _: signal.raise_signal(signal.SIGINT))
    finally:
        signal.signal(signal.SIGINT, before)
    assert len(made) == 5 and seen == [signal.SIGINT] * 5


def test_closing_and_reentering_inside_on_token_raise(model: libcarry.model.Model) -> None:
    with pytest.raises(RuntimeError, match="close it after generate returns"):
        model.generate([1], 5, on_token=lambda _: model.close())
    state = model.state()
    uses = (
        lambda _: model.generate([1], 2, state=state),
        lambda token: state.read([token]),
        lambda _: state.clear(),
        lambda _: state.load("nowhere"),
    )
    for use in uses:
        with pytest.raises(RuntimeError, match="use a copy"):
            model.generate([1], 5, eos_token_id=(), state=state, on_token=use)
        assert len(model.generate([1], 5, eos_token_id=(), state=state)) == 5


def test_other_states_can_be_used_inside_on_token(model: libcarry.model.Model) -> None:
    state = model.state()
    others: list[list[int]] = []

    def use(token: int) -> None:
        others.append(model.generate([token], 2, temperature=0, state=state.copy(), eos_token_id=()))
        model.logits([token])
        model.state()  # freed again while the outer call goes on
        gc.collect()

    made = model.generate([1, 2], 6, temperature=0, state=state, eos_token_id=(), on_token=use)
    assert [pair[0] for pair in others[:5]] == made[1:]
    assert made == model.generate([1, 2], 6, temperature=0, eos_token_id=())


def test_close_of_another_thread_waits_for_generate(model: libcarry.model.Model) -> None:
    began, closing = threading.Event(), threading.Event()

    def close() -> None:
        began.wait(DEADLINE)
        closing.set()
        model.close()

    def use(_token: int) -> None:
        began.set()
        assert closing.wait(DEADLINE)

    thread = threading.Thread(target=close)
    thread.start()
    state = model.state()
    assert len(model.generate([1], 200, eos_token_id=(), state=state, on_token=use)) == 200
    thread.join(DEADLINE)
    assert not thread.is_alive()
    for call in (lambda: model.generate([1], 2), lambda: model.state(), lambda: len(state), lambda: state.copy()):
        with pytest.raises(ValueError, match="closed"):
            call()
    model.close()


def test_threads_take_turns(model: libcarry.model.Model) -> None:
    wanted = model.generate([1, 2], 30, temperature=0, eos_token_id=())
    found: list[list[int]] = []

    def run() -> None:
        found.append(model.generate([1, 2], 30, temperature=0, eos_token_id=()))

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE)
    assert found == [wanted] * 4


def test_models_and_states_in_a_cycle_are_freed_in_any_order(folder: Path) -> None:
    for _ in range(20):
        model = libcarry.load(folder)
        model.kept = [model.state(), model.state()]
        del model
        gc.collect()


def test_the_state_of_another_model_is_refused_with_both_names(model, tmp_path: Path, rng) -> None:
    (tmp_path / "second").mkdir()
    write(tmp_path / "second", rng)
    other = libcarry.load(tmp_path / "second")
    with pytest.raises(ValueError) as refusal:
        other.generate([1], 3, state=model.state())
    assert repr(model.folder) in str(refusal.value) and repr(other.folder) in str(refusal.value)


def test_texts_end_where_the_folder_says(folder: Path, rng: np.random.Generator) -> None:
    with libcarry.load(folder) as model:
        assert model.end_token_ids == []
        whole = model.generate([1, 2, 3], 12, temperature=0)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [whole[5], whole[8], 10**6]}))
    with libcarry.load(folder) as model:
        assert {*model.end_token_ids} == {whole[5], whole[8]}
        ends = min(whole.index(whole[5]), whole.index(whole[8]))
        assert model.generate([1, 2, 3], 12, temperature=0) == whole[:ends]
        assert model.generate([1, 2, 3], 12, temperature=0, eos_token_id=()) == whole
        third = np.int64(whole[2])
        assert model.generate([1, 2, 3], 12, temperature=0, eos_token_id=third) == whole[: whole.index(whole[2])]


def test_a_device_that_is_not_here_is_named(folder: Path) -> None:
    with pytest.raises(RuntimeError, match="there is no device cuda:98"):
        libcarry.load(folder, device="cuda:98")


def test_saved_folders_keep_tokenizer_template_and_generation_config(folder: Path, tmp_path: Path) -> None:
    texts = {
        "tokenizer.json": "{}", "tokenizer_config.json": '{"a": 1}', "chat_template.jinja": "{{ x }}",
        "generation_config.json": '{"eos_token_id": 3}', "special_tokens_map.json": "{}",
    }  # fmt: skip
    for name, text in texts.items():
        (folder / name).write_text(text)
    (folder / "notes.txt").write_text("not part of a model")
    model = libcarry.load(folder)
    for saved in (tmp_path / "saved", tmp_path / "saved", folder):  # new, over an old one, over itself
        model.save(saved)
        assert {name: (saved / name).read_text() for name in texts} == texts
    found = {path.name for path in (tmp_path / "saved").iterdir()}
    assert found == {*texts, "config.json", "model.safetensors"}


def test_a_list_of_prompts_gives_the_text_of_each(model: libcarry.model.Model) -> None:
    prompts = [list(range(1, 2 + i % 7)) for i in range(20)]
    for options in ({"temperature": 0}, {"temperature": 0.9, "seed": 5}):
        alone = [model.generate(prompt, 6, eos_token_id=(), **options) for prompt in prompts]
        assert model.generate(prompts, 6, eos_token_id=(), **options) == alone
    end = alone[0][2]
    assert model.generate([np.array(prompts[0])], 6, temperature=0.9, seed=5, eos_token_id=end)[0] == alone[0][:2]
    with pytest.raises(ValueError, match="one prompt"):
        model.generate(prompts, 6, state=model.state())
    with pytest.raises(RuntimeError, match="of the prompt is"):
        model.generate([[1], [VOCABULARY]], 6)
    assert model.generate(prompts[:2], 3, eos_token_id=()) == [model.generate(p, 3, eos_token_id=()) for p in prompts[:2]]
