"""Writes tests/golden/unigram: a small Unigram tokenizer as spiece.model and as tokenizer.json, and texts with their ids.

Needs sentencepiece 0.2.2 and tokenizers 0.23.3. Usage: python3 tests/make_unigram.py TEXT FOLDER
TEXT is what it is trained on: any UTF-8. Run again with another version, pieces may differ."""
import base64, io, json, os, sys
import sentencepiece as spm
from sentencepiece import sentencepiece_model_pb2 as pb
from tokenizers import Tokenizer

CASES = ["", " ", "a", "red circle moving left", "  Two   spaces\tand a tab \n", "naïve café — “quotes”", "日本語のテキスト",
         "ﬁne ﬀ ligatures ①②③ ｆｕｌｌ", "emoji 🎥🎬 mix", "ÀÉÎÕÜ ßæø", "A cinematic shot of a fox, 4k, 35mm (bokeh:1.2)",
         "</s> <pad> <unk> <0x41>", "word" * 40, "Ω≈ç√∫˜µ≤≥÷", "e\u0301 combining, \u200b zero width, \u3000 wide space",
         "new\nline\r\nand\u00a0nbsp", "Привет, мир! مرحبا שלום", "\u2581 already there", "1234567890 3.14159 -1e-5"]

def main(text, folder):
    os.makedirs(folder, exist_ok=True)
    for name, fallback in (("bytes", True), ("unknown", False)):
        out = io.BytesIO()
        spm.SentencePieceTrainer.train(input=text, model_writer=out, model_type="unigram", vocab_size=700,
                                       byte_fallback=fallback, pad_id=0, eos_id=1, unk_id=2, bos_id=-1,
                                       character_coverage=0.995, num_threads=1, normalization_rule_name="nmt_nfkc",
                                       hard_vocab_limit=False, minloglevel=2)
        place = os.path.join(folder, name)
        os.makedirs(place, exist_ok=True)
        with open(os.path.join(place, "spiece.model"), "wb") as f:
            f.write(out.getvalue())
        proto = pb.ModelProto.FromString(out.getvalue())
        pieces = [[p.piece, p.score] for p in proto.pieces]
        special = [{"id": i, "content": p.piece, "special": True, "single_word": False, "lstrip": False, "rstrip": False,
                    "normalized": False} for i, p in enumerate(proto.pieces) if p.type in (2, 3)]
        charsmap = base64.b64encode(proto.normalizer_spec.precompiled_charsmap).decode()
        tokenizer = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": special,
                     "normalizer": {"type": "Sequence", "normalizers": [
                         {"type": "Precompiled", "precompiled_charsmap": charsmap},
                         {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}]},
                     "pre_tokenizer": {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": True},
                     "post_processor": None, "decoder": {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always"},
                     "model": {"type": "Unigram", "unk_id": 2, "vocab": pieces, "byte_fallback": fallback}}
        if fallback:  # once is enough
            os.makedirs(os.path.join(place, "json"), exist_ok=True)
            with open(os.path.join(place, "json", "tokenizer.json"), "w") as f:
                json.dump(tokenizer, f, ensure_ascii=False)
        processor = spm.SentencePieceProcessor(model_proto=out.getvalue())
        other = Tokenizer.from_str(json.dumps(tokenizer))
        with open(os.path.join(place, "cases.txt"), "w") as f:
            for case in CASES:
                ids = processor.encode(case) + [1]
                if other.encode(case).ids + [1] != ids:
                    print(name, "tokenizers differs for", repr(case), processor.encode(case), other.encode(case).ids)
                f.write(json.dumps(case) + "\t" + " ".join(map(str, ids)) + "\n")

main(sys.argv[1], sys.argv[2])
