#!/usr/bin/env python3
"""Makes tests/golden/tokenizers/ with the `tokenizers` package: small tokenizers whose parts are those of published ones,
the texts of texts.txt, and what the package makes of them.

    python3 tests/make_tokenizers.py FOLDER      tokenizers 0.23.3 made the files that are kept

texts.txt has a text a line, in hexadecimal. KIND.txt has for each its tokens, special ones of the template included, then
" : " and the text that they are decoded to, "=" where it is the text itself. Used by test_tokenizer_kinds.c and
compare_tokenizers.py."""

import json
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|"
END = r"\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = CONTRACTIONS + r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + END
QWEN3_5 = CONTRACTIONS + r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|" + END
GPT4 = CONTRACTIONS + r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + END
GPT4O = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + END
)
MARK = "\u2581"


def split(regex, behavior="Isolated", invert=False):
    return {"type": "Split", "pattern": {"Regex": regex}, "behavior": behavior, "invert": invert}


def byte_level(regex, trim=True):
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": trim, "use_regex": regex}


def sequence(name, *parts):
    return {"type": "Sequence", name: list(parts)}


def template(token, number, after=None):
    single = [{"SpecialToken": {"id": token, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    specials = {token: {"id": token, "ids": [number], "tokens": [token]}}
    if after is not None:
        single.append({"SpecialToken": {"id": after[0], "type_id": 0}})
        specials[after[0]] = {"id": after[0], "ids": [after[1]], "tokens": [after[0]]}
    pair = single + [{"Sequence": {"id": "B", "type_id": 1}}]
    return {"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": specials}


REPLACE = {"type": "Replace", "pattern": {"String": " "}, "content": MARK}
PREPEND = {"type": "Prepend", "prepend": MARK}
UNREPLACE = {"type": "Replace", "pattern": {"String": MARK}, "content": " "}
STRIP = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
FALLBACK = [UNREPLACE, {"type": "ByteFallback"}, {"type": "Fuse"}]
QWEN_ADDED = [("<|endoftext|>", 1, 0), ("<|im_start|>", 1, 0), ("<|im_end|>", 1, 0), ("<tool_call>", 0, 0), ("<think>", 0, 0), ("</think>", 0, 0)]
OLMO_ADDED = [("<|endoftext|>", 1, 0), ("<|pad|>", 1, 0), ("|||EMAIL|||", 0, 1), ("  ", 0, 1)]
LLAMA_ADDED = [("<unk>", 1, 0), ("<s>", 1, 0), ("</s>", 1, 0)]


def metaspace(scheme, splits):
    return {"type": "Metaspace", "replacement": MARK, "prepend_scheme": scheme, "split": splits}


# kind: (normalizer, pre_tokenizer, post_processor, decoder, added tokens (content, special, normalized), of the model)
KINDS = {
    "qwen2": ({"type": "NFC"}, sequence("pretokenizers", split(QWEN2), byte_level(False, False)), byte_level(False, False), byte_level(False, False), QWEN_ADDED, {}),
    "qwen3_5": ({"type": "NFC"}, sequence("pretokenizers", split(QWEN3_5), byte_level(False, False)), byte_level(False, False), byte_level(False, False), QWEN_ADDED, {}),
    "olmo2": (None, sequence("pretokenizers", split(GPT4, "Removed", True), byte_level(False)), None, byte_level(True), OLMO_ADDED, {}),
    "neox": ({"type": "NFC"}, byte_level(True), byte_level(True), byte_level(True), OLMO_ADDED, {}),
    "llama3": (None, sequence("pretokenizers", split(GPT4), byte_level(False)), sequence("processors", byte_level(False), template("<|begin_of_text|>", 1)), byte_level(True), [("<|end_of_text|>", 1, 0), ("<|begin_of_text|>", 1, 0)], {"ignore_merges": True}),
    "gpt4o": (None, sequence("pretokenizers", split(GPT4O), byte_level(False)), None, byte_level(True), QWEN_ADDED, {}),
    "digits": (None, sequence("pretokenizers", {"type": "Digits", "individual_digits": True}, byte_level(True)), None, byte_level(True), OLMO_ADDED, {}),
    "llama2": (sequence("normalizers", PREPEND, REPLACE), None, template("<s>", 1), sequence("decoders", *FALLBACK, STRIP), LLAMA_ADDED, {}),
    "llama2_old": (sequence("normalizers", PREPEND, REPLACE), None, template("<s>", 1, ("</s>", 2)), sequence("decoders", *FALLBACK, STRIP), [("<unk>", 1, 1), ("<s>", 1, 1), ("</s>", 1, 1)], {}),
    "mistral": (None, metaspace("first", False), template("<s>", 1), sequence("decoders", *FALLBACK, STRIP), LLAMA_ADDED, {"ignore_merges": True}),
    "metaspace": (None, metaspace("always", True), template("<s>", 1), metaspace("always", True), LLAMA_ADDED, {}),
    "marks": (REPLACE, None, template("<bos>", 1), sequence("decoders", *FALLBACK), [("<pad>", 1, 0), ("<bos>", 1, 0), ("\n\n", 0, 0)], {}),
}


def texts():
    """Texts that have caused errors in tokenizers."""
    many = [
        "", " ", "  ", "   a", "a   ", "\n", "\r\n", "a\n\nb", "a \n b", "\t\tx", "x\u00a0y\u3000z\u2003w\u2028v\u2029u\u0085t", "a\u180eb\u200bc\ufeffd",
        "Hello, world! It's 2026, isn't it? I'LL say: they've, we're, you'd, I'm. 'S'T'RE'VE'M'LL'D don'\u017f K\u212a",
        "1 22 333 4444 55555 666666 1,234,567.89 0x1F \u0661\u0662\u0663 \u2167 \u00bd\u00b2 \u0967\u0968 \U0001d7d8\U0001d7d9",
        "The quick brown fox jumps over the lazy dog. " * 3,
        "Fran\u00e7ais na\u00efve \u0153uvre; Fran\u0063\u0327ais nai\u0308ve; \u00c5 A\u030a \u212b; \u1e69 s\u0323\u0307 s\u0307\u0323 \u1e9b\u0323",
        "\u0439 \u0438\u0306 \u0419\u0438\u0306; \u03ac \u03b1\u0301; \u0390 \u03b9\u0308\u0301; \u1ea5 a\u0302\u0301 \u00e2\u0301", "\u0958 \u0915\u093c \u09dc \u0b48 \u0b47\u0b56 \ufb31 \u2adc \u0f43",
        "\ud55c\uad6d\uc5b4 \u1112\u1161\u11ab\u1100\u116e\u11a8\u110b\u1165 \u3131 \uac00\u11a8 \uac01", "\u65e5\u672c\u8a9e\u306e\u30c6\u30ad\u30b9\u30c8\u3002\u304b\u3099 \u30cf\u309a \u30cf\u3099", "\u4e2d\u6587\uff0c\u6c49\u5b57\u3002\uff11\uff12\uff13 \uf900 \u2f00 \u8c48",
        "\u0627\u0644\u0639\u0631\u0628\u064a\u0629 \u0645\u064f\u062d\u064e\u0645\u0651\u064e\u062f \u0661\u0662 \u0622 \u0627\u0653", "\u05e2\u05d1\u05e8\u05d9\u05ea \u05e9\u05c1\u05c1 \u05e9\u05bc\u05c1", "\u0939\u093f\u0928\u094d\u0926\u0940 \u0915\u094d\u0937\u0947\u0924\u094d\u0930", "\u0e44\u0e17\u0e22\u0e44\u0e21\u0e48\u0e21\u0e35\u0e0a\u0e48\u0e2d\u0e07\u0e27\u0e48\u0e32\u0e07", "\u1019\u103c\u1014\u103a\u1019\u102c \u1781\u17d2\u1798\u17c2\u179a \u0f56\u0f7c\u0f51",
        "\u10e5\u10d0\u10e0\u10d7\u10e3\u10da\u10d8 \u0540\u0561\u0575\u0565\u0580\u0565\u0576 \u1275\u130d\u122d\u129b \u13e3\u13b3\u13a9 \u14c4\u14c7 \U00010428\U00010429 \U0001e900\U0001e901", "\U00011380\U00011390 \U00010d4a \U0001e5d0 \u1c89 \U000113c5\U000113c2 \U00016121\U0001611f",
        "\U0001f600\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466 \U0001f1e9\U0001f1ea\U0001f3f4\U000e0067\U000e0062\U000e007f \u2764\ufe0f\u200d\U0001f525 \U0001f44d\U0001f3fd\u200d x", "#\ufe0f\u20e3 1\ufe0f\u20e3 \u00a9\ufe0f",
        "".join(chr(c) for c in range(32)) + "\x7f" + "".join(chr(c) for c in range(0x80, 0xa0)), "\u0300\u0301a \u0300 x\n\u0301", "a" + "\u0301\u0316" * 20, "\ufffd\ufffe\uffff\U0010ffff \ue000",
        "<|endoftext|>", "a<|endoftext|>b <|im_start|>user\nHi<|im_end|>\n<think>\n\n</think>\n\nok <|im_start", "<s>", "x<s>y </s> z<s></s> <unk>", " <s> hello", "<s>hello", "  <s>  ", "<|begin_of_text|>x", "|||EMAIL||| a|||EMAIL|||b", "<0x41> \u2581 \u2581\u2581a", "\u2581a b\u2581 c", "a\n\nb\n\n\nc",
        "w" * 500, "ab" * 100, "na\u00efve" * 30, "-" * 150 + "=" * 77, " " * 90 + "x", "\n" * 50 + "  y", "the" * 70, "x " * 50, "\u00e9" * 100, "0123456789" * 30,
        "def f(x):\n    if x > 0:\n\t\treturn {'a': [1, 2.5e-3]}  # ok\r\n\r\n", "https://example.org/?q=%20a&b=c#d_e-f", "camelCase HTMLParser fooBAR \u0130stanbul \u01c5 \u02b0 \u00aa \u00df STRASSE", "...!?\u2026\u2014\u201c\u201d '' \"\" ``` $$ \u20ac\u00a3 \u00b1\u00d7 \u2190",
    ]
    scraps = ["the", " and", "\n", "  ", "\r\n", "'s", "'LL", "3", "12345", "\u00e9", "e\u0301", "\u6f22", "\U0001f642", "\u200d", "\u0301", "<s>", "<|im_end|>", "\u2581", "\t", "\u3000", ".", "?!", "\u0627", "\u093e", "X", "\x00", "\u1100\u1161"]
    seed = 12345
    for _ in range(60):
        text = ""
        for _ in range(seed % 23 + 1):
            seed = (seed * 1103515245 + 12345) % 2**31
            text += scraps[(seed >> 8) % len(scraps)]
        many.append(text)
    return many


def learn(tokenizers, kind, sample):
    """The sample's vocabulary, without added tokens, and its merges."""
    normalizer, cut, _, _, added, _ = KINDS[kind]
    by_bytes = "ByteLevel" in json.dumps(cut)
    first = {"\u0100": 0} if by_bytes else {}
    base = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": normalizer, "pre_tokenizer": cut or metaspace("never", True), "post_processor": None, "decoder": None,
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "vocab": first, "merges": []}}
    made = tokenizers.Tokenizer.from_str(json.dumps(base))
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet() if by_bytes else []
    made.train_from_iterator(sample, tokenizers.trainers.BpeTrainer(vocab_size=560 if by_bytes else 330, min_frequency=3, initial_alphabet=alphabet, limit_alphabet=256 if by_bytes else 90, show_progress=False))
    learned = json.loads(made.to_str())["model"]
    names = sorted(learned["vocab"], key=learned["vocab"].get)
    return names, learned["merges"], by_bytes


def build(tokenizers, kind, sample):
    normalizer, cut, post, decoder, added, more = KINDS[kind]
    names, merges, by_bytes = learn(tokenizers, kind, sample)
    first = [] if by_bytes and kind != "llama3" else [content for content, _, _ in added]
    if not by_bytes:
        first = first + ["<0x%02X>" % byte for byte in range(256)]
    vocab = {name: at for at, name in enumerate(first + [name for name in names if name not in first])}
    listed, number = [], len(vocab)
    for content, special, normalized in added:
        at = vocab.get(content, number)
        number += at == number
        listed.append({"id": at, "content": content, "single_word": False, "lstrip": False, "rstrip": False, "normalized": bool(normalized), "special": bool(special)})
    listed.sort(key=lambda token: token["id"])
    model = {"type": "BPE", "dropout": None, "unk_token": None if by_bytes else first[0], "continuing_subword_prefix": "" if kind == "qwen2" else None, "end_of_word_suffix": "" if kind == "qwen2" else None,
             "fuse_unk": not by_bytes, "byte_fallback": not by_bytes, "ignore_merges": False}
    model.update(more)
    model["vocab"] = vocab
    model["merges"] = [" ".join(pair) if kind in ("llama2", "olmo2") else list(pair) for pair in merges]
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": listed, "normalizer": normalizer, "pre_tokenizer": cut, "post_processor": post, "decoder": decoder, "model": model}


def main(folder):
    import tokenizers

    os.makedirs(folder, exist_ok=True)
    sample = open(os.path.join(HERE, "golden", "tokenizer", "text.txt"), encoding="utf-8").read().splitlines(True) + texts()[:40] * 3
    with open(os.path.join(folder, "texts.txt"), "w", encoding="ascii") as out:
        for text in texts():
            out.write(text.encode().hex() + "\n")
    for kind in KINDS:
        made = json.dumps(build(tokenizers, kind, sample), ensure_ascii=False, separators=(",", ":"))
        with open(os.path.join(folder, kind + ".json"), "w", encoding="utf-8") as out:
            out.write(made + "\n")
        theirs = tokenizers.Tokenizer.from_str(made)
        with open(os.path.join(folder, kind + ".txt"), "w", encoding="ascii") as out:
            for text in texts():
                ids = theirs.encode(text).ids
                decoded = theirs.decode(ids, skip_special_tokens=False)
                out.write(" ".join(map(str, ids)) + " : " + ("=" if decoded == text else decoded.encode().hex()) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
