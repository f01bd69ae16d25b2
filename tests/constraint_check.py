"""Texts of random walks through masks against Python's re and jsonschema: constraint_check.py TEST_TOKENIZER_CONSTRAINT."""
import json
import re
import subprocess
import sys

REGEXES = [
    r"[a-z]{1,8}@[a-z]+\.(com|org)", r"(\d{3}-){2}\d{4}", r"[^\d\s]{3,6}", r"(yes|no|maybe)(, (yes|no))*",
    r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?", r"\w+(\s\w+){2,5}", r"[\u4e00-\u9fff]{2,4}", r"(a|ab)(c|bcd)(d*)", r".{5}",
    r"\[(\d+(, \d+)*)?\]", r"^#[0-9a-fA-F]{6}$", r"(?:x?y?z?){3}", r"[\W_]{2}\D\S", r"a*?b+?c{2,}?",
]

PERSON = {
    "type": "object", "required": ["name", "age"], "additionalProperties": False,
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
        "email": {"type": ["string", "null"], "format": "email"},
        "tags": {"type": "array", "items": {"enum": ["a", "b\"c", "d\n"]}, "maxItems": 3},
    },
}
SCHEMAS = [
    PERSON, {"type": "object"}, {"type": "array", "items": PERSON, "minItems": 1, "maxItems": 2},
    {"type": "integer", "minimum": -37, "maximum": 1204}, {"type": "integer", "exclusiveMinimum": 99},
    {"type": "integer", "maximum": -8}, {"type": "number", "minimum": -3, "maximum": 12},
    {"type": "number", "maximum": -1}, {"type": "number"},
    {"type": "string", "pattern": "^[A-Z][a-z]+( [A-Z][a-z]+)*$"}, {"type": "string", "pattern": "\\d\\d"},
    {"type": "string", "pattern": "^\"|\\\\$"}, {"type": "string", "format": "date"}, {"type": "string", "format": "uuid"},
    {"type": "string", "format": "date-time"}, {"type": "string", "format": "ipv4"}, {"type": "string", "format": "email"},
    {"anyOf": [{"type": "null"}, {"type": "string", "maxLength": 3}, {"const": {"a": [1, 2.5]}}]},
    {"$ref": "#/$defs/t", "$defs": {"t": {"type": "object", "properties": {"v": {"type": "boolean"}, "n": {"$ref": "#/$defs/t"}}}}},
    {"type": "object", "properties": {"a": {"type": "integer"}, "ab": {"type": "null"}}, "additionalProperties": {"type": "string"},
     "required": ["z"]},
    {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "minItems": 2},
    {"oneOf": [{"type": "object", "properties": {"k": {"const": "x"}}, "required": ["k"]},
               {"type": "object", "properties": {"k": {"const": "y"}, "n": {"type": "number"}}, "required": ["k", "n"]}]},
    {"enum": ["x", 1, None, [1, {"a": "b"}], True, -2.5]}, True,
]


def walks(program, kind, text):
    output = subprocess.run([program, kind, text, "60"], check=True, capture_output=True).stdout.decode()
    return [json.loads(line) for line in output.split("\n") if line]


def main():
    program = sys.argv[1]
    count = 0
    for regex in REGEXES:
        texts = walks(program, "regex", regex)
        for text in texts:
            assert re.fullmatch(regex, text, re.ASCII), (regex, text)
        count += len(texts)
    try:
        import jsonschema
    except ImportError:
        print(f"{count} texts match; schemas skipped: the package jsonschema is missing")
        return 77
    checker = jsonschema.FormatChecker()
    for schema in SCHEMAS:
        texts = walks(program, "schema", json.dumps(schema))
        assert texts, schema
        for text in texts:
            value = json.loads(text)
            jsonschema.Draft202012Validator(schema, format_checker=checker).validate(value)
        count += len(texts)
    print(f"{count} texts match")
    return 0


sys.exit(main())
