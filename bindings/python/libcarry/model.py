"""Language models from a folder: logits, states, generation and training steps. include/carry/model.h from Python.

model = libcarry.load("Qwen3.5-0.8B", dtype="bf16")
print(model.generate("Once upon a time", max_new_tokens=64))
ids = model.generate([1, 2, 3], max_new_tokens=64, temperature=0)
"""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterable
from ctypes import byref, c_double, c_int64, c_void_p
from typing import Any

import numpy as np

from . import _context
from .chat import render_chat
from ._library import lib
from ._llm import ON_TOKEN, PROCEED, Batch, Generation, Interrupts, Options, Owner
from ._together import Rules, generate_together, is_list_of_prompts
from ._values import device_number, dtype_number, id_list, token_array
from .tokenizer import Tokenizer


# Files of a transformers folder beside its weights and configuration.
_BESIDE = (
    "tokenizer.json", "tokenizer.model", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    "vocab.json", "vocab.txt", "merges.txt", "chat_template.jinja", "chat_template.json", "generation_config.json",
)  # fmt: skip


def _copy(path: str, to: str) -> None:
    """Copy a file if there is one, replacing the other as a whole: after a crash it is the old or the new one."""
    if not os.path.isfile(path) or (os.path.exists(to) and os.path.samefile(path, to)):
        return
    handle, name = tempfile.mkstemp(prefix=".carry-", dir=os.path.dirname(to))
    try:
        with open(path, "rb") as source, open(handle, "wb") as target:
            shutil.copyfileobj(source, target)
            target.flush()
            os.fsync(target.fileno())
        shutil.copymode(path, name)
        os.replace(name, to)
    except BaseException:
        os.unlink(name)
        raise


def _address(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])


class State:
    """What a model remembers of the tokens that it has read. Made by `Model.state`."""

    def __init__(self, model: Model) -> None:
        self._model, self._owner = model, model._owner
        made = c_void_p()
        with self._owner.lock:
            self._owner.call(lib.carry_llm_state_new, model._opened(), byref(made))
            self._handle = int(made.value or 0)
            self._owner.states.add(self._handle)
            weakref.finalize(self, self._owner.drop, self._handle).atexit = False

    def __len__(self) -> int:
        """The number of tokens read."""
        with self._owner.lock:
            return int(lib.carry_llm_state_length(self._opened()))

    def _opened(self) -> int:
        if self._handle not in self._owner.states:
            raise ValueError("the state's model was closed")
        return self._handle

    def _writable(self) -> int:
        """The handle, for a call that changes the state."""
        if self._opened() in self._owner.generating:
            raise RuntimeError("the state is in generate, which called on_token: use a copy of it, or another state")
        return self._handle

    def _call(self, function: Callable[..., int], *arguments: Any, writes: bool = True) -> None:
        with self._owner.lock:
            self._owner.call(function, self._writable() if writes else self._opened(), *arguments)

    def read(self, ids: Any) -> np.ndarray:
        """Read tokens, or text; the logits of the next token, [vocabulary]."""
        row = self._model._row(ids, "ids", self)
        logits = np.empty(self._model.vocabulary, np.float32)
        self._call(lib.carry_llm_read, _address(row), row.size, _address(logits))
        return logits

    def clear(self) -> None:
        """Forget everything."""
        self._call(lib.carry_llm_state_clear)

    def copy(self) -> State:
        """A snapshot, which goes on by itself."""
        made = State(self._model)
        made._call(lib.carry_llm_state_copy, self._opened())
        return made

    def save(self, path: str | os.PathLike[str]) -> None:
        """To a file, from which `load` of the same model goes on."""
        self._call(lib.carry_llm_state_save, os.fsencode(path), writes=False)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Become what was saved."""
        self._call(lib.carry_llm_state_load, os.fsencode(path))


class Model:
    """A language model that was opened by `load`. A call from another thread waits until the one under way ends."""

    def __init__(self, folder: str | os.PathLike[str], dtype: str, device: str | int, trains: bool) -> None:
        self.folder = os.fspath(folder)
        self._owner = Owner(_context.Context(_context._threads))
        self._tokenizer: Tokenizer | None = None
        self._ends: list[int] | None = None
        options = Options(device=device_number(device), dtype=dtype_number(dtype), trains=trains)
        context, made = self._owner.context, c_void_p()
        self._owner.call(lib.carry_llm_open, context.handle, byref(made), os.fsencode(folder), byref(options))
        self._owner.model = made.value
        weakref.finalize(self, self._owner.close).atexit = False
        self.folder = os.fsdecode(lib.carry_llm_folder(made))  # of a training run: its newest step
        self.vocabulary = int(lib.carry_llm_vocabulary(made))
        self.parameters = int(lib.carry_llm_parameters(made))

    def _opened(self) -> int:
        if self._owner.model is None:
            raise ValueError("the model was closed")
        return self._owner.model

    def _call(self, function: Callable[..., int], *arguments: Any) -> None:
        with self._owner.lock:
            self._owner.call(function, self._opened(), *arguments)

    def close(self) -> None:
        """Free the weights now, and the states that were made of them. Not inside on_token."""
        self._owner.close()

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    @property
    def tokenizer(self) -> Tokenizer:
        """The folder's tokenizer.json."""
        if self._tokenizer is None:
            self._tokenizer = Tokenizer(self.folder)
        return self._tokenizer

    def _row(self, prompt: Any, what: str, state: State | None = None) -> np.ndarray:
        """Token numbers of a row or of a text. A start token is added only before the first text that a state reads."""
        if isinstance(prompt, str):
            is_continuation = state is not None and len(state) > 0
            prompt = self.tokenizer.encode(prompt, is_continuation=is_continuation, is_unfinished=True)
        return token_array(prompt, what, 1)

    @property
    def end_token_ids(self) -> list[int]:
        """The tokens that end a text, as `carry generate` uses them: of the folder's configurations and tokenizer."""
        if self._ends is None:
            with self._owner.lock:
                model = self._opened()
                ends = (c_int64 * lib.carry_llm_ends(model, None, 0))()
                lib.carry_llm_ends(model, ends, len(ends))
            self._ends = list(ends)
        return self._ends

    def logits(self, ids: Any) -> np.ndarray:
        """The logits after every token of a row, or of a text, in one pass: [tokens, vocabulary]."""
        row = self._row(ids, "ids")
        logits = np.empty((row.size, self.vocabulary), np.float32)
        self._call(lib.carry_llm_logits, _address(row), row.size, _address(logits))
        return logits

    def render_chat(self, messages: list[dict[str, Any]], **variables: Any) -> str:
        """The prompt of a conversation by the folder's chat template: see libcarry.render_chat. Give it to generate as
        tokens without further special tokens: model.tokenizer.encode(text, add_special_tokens=False).ids."""
        return render_chat(self.folder, messages, **variables)

    def chat(
        self,
        messages: list[dict[str, Any]],
        max_new_tokens: int = 1024,
        *,
        variables: dict[str, Any] | None = None,
        **options: Any,
    ) -> str:
        """The answer to a conversation, a list of {"role": ..., "content": ...}.

        Args:
            variables: of the chat template, such as tools and enable_thinking.
            options: as in `generate`.

        `Engine.chat` is the same without reading earlier messages again.
        """
        text = self.render_chat(messages, **(variables or {}))
        ids = self.tokenizer.encode(text, add_special_tokens=False)
        return self.tokenizer.decode(self.generate(ids, max_new_tokens, **options))

    def state(self) -> State:
        """A state that has read nothing."""
        self._opened()
        return State(self)

    def generate(
        self,
        prompt: Any,
        max_new_tokens: int = 128,
        *,
        temperature: float = 0.8,
        top_k: int = 0,
        top_p: float = 0.95,
        min_p: float = 0.0,
        repetition_penalty: float = 1.0,
        seed: int = 1,
        eos_token_id: int | Iterable[int] | None = None,
        state: State | None = None,
        on_token: Callable[[int], Any] | None = None,
    ) -> Any:
        """Continue a prompt: token numbers give a list of token numbers, a str gives a str. A list of prompts gives a list
        of these; the texts are generated together, 16 at a time.

        Args:
            prompt: token numbers (a list, an array, a tensor), or text; or a list of such prompts.
            temperature: 0 takes the likeliest token.
            eos_token_id: the token or tokens that end the text; they are not part of it. None: `end_token_ids` of the
                model. (): none.
            state: goes on from it, and leaves it after the text but for its last token. None: a new one.
            on_token: called with every token as it is generated; False ends the text. It may use the model and other
                states; closing the model or using `state` there raises RuntimeError.

        Ctrl-C ends the call with KeyboardInterrupt at the next token, or at the next 512 tokens of a long prompt (4096
        on a GPU). The state can be used afterwards.
        """
        if state is not None and state._model is not self:
            raise ValueError(f"the state is of the model {state._model.folder!r}, and this model is {self.folder!r}")
        ends = self.end_token_ids if eos_token_id is None else id_list(eos_token_id)
        if is_list_of_prompts(prompt):
            if state is not None or on_token is not None:
                raise ValueError("state and on_token go with one prompt: libcarry.Engine has both for several")
            rows = [self._row(one, f"prompt {i}") for i, one in enumerate(prompt)]
            rules = Rules(temperature, top_k, top_p, min_p, repetition_penalty, seed, ends)
            with self._owner.lock:
                texts = generate_together(self._owner.context, self._opened(), rows, max_new_tokens, rules)
            return [self.tokenizer.decode(t) if isinstance(p, str) else t for p, t in zip(prompt, texts, strict=True)]
        row = self._row(prompt, "prompt", state)
        made: list[int] = []
        interrupts = Interrupts()

        def append(_user: int | None, token: int) -> bool:
            made.append(token)
            return interrupts.guard(on_token, token)

        options = Generation(
            tokens=max_new_tokens,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            repetition=repetition_penalty,
            seed=seed,
            ends=(c_int64 * len(ends))(*ends),
            end_count=len(ends),
            on_token=ON_TOKEN(append),
            proceed=PROCEED(lambda _user: interrupts.raised is None),
        )
        self._run(self.state() if state is None else state, row, options, interrupts)
        return self.tokenizer.decode(made) if isinstance(prompt, str) else made

    def _run(self, state: State, row: np.ndarray, options: Generation, interrupts: Interrupts) -> None:
        owner = self._owner
        with owner.lock:
            handle = state._writable()
            with interrupts:
                owner.generating.append(handle)
                try:
                    status = lib.carry_llm_generate(handle, _address(row), row.size, byref(options))
                finally:
                    owner.generating.pop()
            if interrupts.raised is not None:
                raise interrupts.raised
            owner.context.check(status)
            owner.free_unused()

    def train_step(
        self,
        ids: Any,
        labels: Any = None,
        *,
        rate: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.95),
        eps: float = 1e-8,
        decay: float = 0.0,
        clip: float = 1.0,
    ) -> float:
        """One step of AdamW over rows of tokens; the mean loss before it. The model was loaded with trains=True.

        labels: what each token should be followed by, -100 where nothing counts. None: the next token of the row.
        """
        rows = token_array(ids, "ids", 2)
        if labels is None:
            wanted = np.full_like(rows, -100)
            wanted[:, :-1] = rows[:, 1:]
        else:
            wanted = token_array(labels, "labels", 2)
            if wanted.shape != rows.shape:
                raise ValueError(f"labels have shape {wanted.shape} and ids {rows.shape}: they must be equal")
        batch = Batch(
            batch=rows.shape[0],
            tokens=rows.shape[1],
            ids=_address(rows),
            labels=_address(wanted),
            rate=rate,
            b1=betas[0],
            b2=betas[1],
            eps=eps,
            decay=decay,
            clip=clip,
        )
        loss = c_double()
        self._call(lib.carry_llm_train_step, byref(batch), byref(loss))
        return loss.value

    def save(self, folder: str | os.PathLike[str], dtype: str = "f32") -> None:
        """A folder that transformers and flash-linear-attention load: config.json and model.safetensors, and copies of
        the tokenizer, the chat template and generation_config.json of the folder that the model was loaded from."""
        os.makedirs(folder, exist_ok=True)
        for name in _BESIDE:
            _copy(os.path.join(self.folder, name), os.path.join(folder, name))
        self._call(lib.carry_llm_save, os.fsencode(folder), dtype_number(dtype))


def load(
    folder: str | os.PathLike[str], *, dtype: str = "f32", device: str | int = "cpu", trains: bool = False
) -> Model:
    """Open a model's folder as Hugging Face has it: config.json and its safetensors files.

    The folder of a training run means its newest complete step. Files that differ from the checksums that `carry train`
    wrote beside them are refused.

    Args:
        dtype: what is computed in: f32, bf16 or f16.
        device: cpu, cuda or cuda:N.
        trains: the weights will be changed by `train_step`; otherwise 16-bit ones stay in the mapped files.
    """
    return Model(folder, dtype, device, trains)
