"""Text to token ids and back, without another package: carry/tokenizer.h.

    tokenizer = libcarry.Tokenizer("Qwen3.5-0.8B")      # a folder, or a tokenizer.json
    ids = tokenizer.encode("Once upon a time")
    tokenizer.decode(ids)
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable
from ctypes import (
    POINTER,
    byref,
    c_bool,
    c_char_p,
    c_int,
    c_int64,
    c_size_t,
    c_void_p,
    create_string_buffer,
    string_at,
)
from typing import Any

from ._context import Context, current
from ._library import lib
from ._structs import Sized


class EncodeOptions(Sized):
    """carry_encode_options"""

    _fields_ = [
        ("size", c_size_t),
        ("is_bare", c_bool),
        ("is_continuation", c_bool),
        ("is_unfinished", c_bool),
        ("specials_as_text", c_bool),
    ]


_IDS, _SIZE, _TEXT = POINTER(c_int64), POINTER(c_size_t), POINTER(c_void_p)

PROTOTYPES: dict[str, tuple[Any, list[Any]]] = {
    "carry_tokenizer_open": (c_int, [c_void_p, POINTER(c_void_p), c_char_p]),
    "carry_tokenizer_close": (None, [c_void_p]),
    "carry_tokenizer_size": (c_int64, [c_void_p]),
    "carry_tokenizer_find": (c_int64, [c_void_p, c_char_p]),
    "carry_tokenizer_is_special": (c_bool, [c_void_p, c_int64]),
    "carry_tokenizer_eos": (c_int64, [c_void_p]),
    "carry_tokenizer_encode": (
        c_int,
        [c_void_p, c_void_p, _IDS, c_int64, _IDS, c_char_p, c_size_t, POINTER(EncodeOptions)],
    ),
    "carry_tokenizer_decode": (c_int, [c_void_p, c_void_p, c_char_p, c_size_t, _SIZE, _IDS, c_int64, c_bool]),
    "carry_decoder_new": (c_int, [c_void_p, POINTER(c_void_p), c_void_p, c_bool]),
    "carry_decoder_free": (None, [c_void_p]),
    "carry_decoder_put": (c_int, [c_void_p, c_int64, _TEXT, _SIZE]),
    "carry_decoder_end": (c_int, [c_void_p, _TEXT, _SIZE]),
}

for _name, (_result, _arguments) in PROTOTYPES.items():
    try:
        _function = getattr(lib, _name)
    except AttributeError:
        raise ImportError(f"the library has no function {_name}: it was built from other sources") from None
    _function.restype, _function.argtypes = _result, _arguments


class Tokenizer:
    """A tokenizer.json, or the one in a folder. Ids and texts equal those of the package tokenizers.

    Threads may share it. Kinds that the library does not support are refused by name.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        context, handle = current(), c_void_p()
        context.check(lib.carry_tokenizer_open(context.handle, byref(handle), os.fsencode(path)))
        self.path = os.fspath(path)
        self._handle = handle
        weakref.finalize(self, lib.carry_tokenizer_close, handle).atexit = False

    def __len__(self) -> int:
        """The size of the vocabulary: ids are 0..size-1."""
        return int(lib.carry_tokenizer_size(self._handle))

    def token_to_id(self, token: str) -> int | None:
        """The id of an added token such as "<|im_end|>"; None if the tokenizer does not have it."""
        found = int(lib.carry_tokenizer_find(self._handle, token.encode()))
        return found if found >= 0 else None

    def is_special(self, id: int) -> bool:
        """Special tokens are left out of decoded text unless they are asked for."""
        return bool(lib.carry_tokenizer_is_special(self._handle, id))

    @property
    def eos_token_id(self) -> int | None:
        """eos_token of tokenizer_config.json."""
        found = int(lib.carry_tokenizer_eos(self._handle))
        return found if found >= 0 else None

    def encode(
        self,
        text: str,
        *,
        add_special_tokens: bool = True,
        is_continuation: bool = False,
        is_unfinished: bool = False,
        specials_as_text: bool = False,
    ) -> list[int]:
        """The ids of a text.

        Args:
            add_special_tokens: add the tokens that the tokenizer puts before and after a whole text, such as <s>.
            is_continuation: other text precedes; nothing is put before this one, neither a token nor a space.
            is_unfinished: other text follows, as after a prompt; nothing is put after this one.
            specials_as_text: "<|endoftext|>" in the text is text, for text from strangers.
        """
        context, data, count = current(), text.encode(errors="surrogateescape"), c_int64()
        options = EncodeOptions(
            is_bare=not add_special_tokens,
            is_continuation=is_continuation,
            is_unfinished=is_unfinished,
            specials_as_text=specials_as_text,
        )
        capacity = len(data) + 8
        while True:  # twice if the text has more tokens than bytes
            ids = (c_int64 * capacity)()
            context.check(
                lib.carry_tokenizer_encode(
                    context.handle, self._handle, ids, capacity, byref(count), data, len(data), byref(options)
                )
            )
            if count.value <= capacity:
                return ids[: count.value]
            capacity = count.value

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        """The text of ids. Bytes that are not UTF-8 become U+FFFD."""
        context, length = current(), c_size_t()
        given = [*ids]
        row = (c_int64 * len(given))(*given)
        capacity = 16 * len(given) + 64
        while True:  # twice if the tokens are long
            text = create_string_buffer(capacity)
            context.check(
                lib.carry_tokenizer_decode(
                    context.handle, self._handle, text, capacity, byref(length), row, len(given), not skip_special_tokens
                )
            )
            if length.value < capacity:
                return text.raw[: length.value].decode()
            capacity = length.value + 1

    def decoder(self, *, skip_special_tokens: bool = True) -> Decoder:
        """Decodes token by token, for text that is shown as it is generated."""
        return Decoder(self, skip_special_tokens)


class Decoder:
    """Made by `Tokenizer.decoder`. Incomplete characters are held back until the tokens that complete them."""

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer  # outlives the decoder
        self._context = Context(1)  # not that of a thread: the decoder keeps it
        self._handle = c_void_p()
        self._context.check(
            lib.carry_decoder_new(
                self._context.handle, byref(self._handle), tokenizer._handle, not skip_special_tokens
            )
        )
        weakref.finalize(self, lib.carry_decoder_free, self._handle).atexit = False

    def _take(self, function: Any, *arguments: Any) -> str:
        text, length = c_void_p(), c_size_t()
        self._context.check(function(self._handle, *arguments, byref(text), byref(length)))
        return string_at(text, length.value).decode()

    def put(self, id: int) -> str:
        """The text that this token completes, often ""."""
        return self._take(lib.carry_decoder_put, id)

    def end(self) -> str:
        """The end of the text: U+FFFD if a character was not completed. The next token starts another text."""
        return self._take(lib.carry_decoder_end)
