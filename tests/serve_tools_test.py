"""Formats, tools and reasoning of carry serve, with a small model of bytes. Usage: serve_tools_test.py CARRY MODEL [CASE ...]

The model is random: regular expressions make it write what the cases are about."""

import json
import re
import sys

from serve_server import Server, content_of, run, text_of

CARRY, MODEL = sys.argv[1], sys.argv[2]
CHAT = "/v1/chat/completions"
HI = [{"role": "user", "content": "Hi"}]
TOOLS = [{"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {
    "city": {"type": "string"}, "days": {"type": "integer"}}}}} for name in ("weather", "time.now")]
JSON_CALL = r'Well\.\n<tool_call>\n\{"name": "weather", "arguments": \{"city": "[a-z]{3}", "days": [1-9]\}\}\n</tool_call>'
XML_CALL = (r"<tool_call>\n<function=weather>\n<parameter=city>\n[a-z]{3}\n</parameter>\n<parameter=days>\n[1-9]\n</parameter>\n"
            r"</function>\n</tool_call>")


def serve(*options):
    return Server(CARRY, MODEL, "--device", "cpu", "--memory", "64M", *options)


def check_call(message, reason):
    call = message["tool_calls"][0]
    arguments = json.loads(call["function"]["arguments"])
    assert reason == "tool_calls" and call["type"] == "function" and call["function"]["name"] == "weather"
    assert call["id"].startswith("call_") and len(message["tool_calls"]) == 1
    assert len(arguments["city"]) == 3 and 1 <= arguments["days"] <= 9


def formats_are_kept():
    schema = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 50}, "ok": {"type": "boolean"}},
              "required": ["n", "ok"], "additionalProperties": False}
    with serve() as s:
        for seed in range(4):
            options = {"max_tokens": 200, "seed": seed, "temperature": 1}
            a = s.chat(HI, response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}, **options)
            value = json.loads(content_of(a))
            assert value["n"] <= 50 and isinstance(value["ok"], bool) and a["choices"][0]["finish_reason"] == "stop"
            a = s.chat(HI, regex="(yes|no)!", **options)
            assert re.fullmatch("(yes|no)!", content_of(a))
            a = s.chat(HI, response_format={"type": "json_object"}, logit_bias={"125": 8, "34": 8}, **options)
            if a["choices"][0]["finish_reason"] == "stop":
                assert isinstance(json.loads(content_of(a)), dict)
            else:
                assert content_of(a)[:1] == "{"
        for wrong, field, part in (
            ({"regex": "(a"}, "regex", "character 1"),
            ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"not": {}}}}},
             "response_format", "not"),
            ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {
                "type": "string", "maxLength": 10000000}}}}, "response_format", "262144 nodes"),
        ):
            error = s.post(CHAT, {"messages": HI, **wrong}, 400)["error"]
            assert error["param"].startswith(field) and part in error["message"], error


def tool_calls_are_parsed():
    with serve() as s:
        for regex, content in ((JSON_CALL, "Well."), (XML_CALL, None)):
            body = {"messages": HI, "max_tokens": 300, "seed": 2, "tools": TOOLS, "regex": regex}
            choice = s.post(CHAT, body)["choices"][0]
            assert choice["message"]["content"] == content
            check_call(choice["message"], choice["finish_reason"])
            merged, reasons = {"tool_calls": []}, []
            for chunk in s.chunks(CHAT, body):
                for one in chunk["choices"]:
                    reasons.append(one["finish_reason"])
                    for call in one["delta"].get("tool_calls", []):
                        if "id" in call:
                            merged["tool_calls"].append({**call, "function": dict(call["function"])})
                        else:
                            merged["tool_calls"][call["index"]]["function"]["arguments"] += call["function"]["arguments"]
            check_call(merged, reasons[-1])
            unseen = s.post(CHAT, {**body, "tool_choice": "none"})["choices"][0]
            assert unseen["finish_reason"] == "stop" and "<tool_call>" in unseen["message"]["content"]


def a_tool_can_be_required():
    with serve() as s:
        for style in ("json", "xml"):
            more = {"tools": TOOLS, "max_tokens": 120, "temperature": 1, "chat_template_kwargs": {"style": style}}
            for choice, names in (("required", ("weather", "time.now")),
                                  ({"type": "function", "function": {"name": "time.now"}}, ("time.now",))):
                for seed in range(3):
                    a = s.chat(HI, tool_choice=choice, seed=seed, **more)
                    assert a["choices"][0]["message"]["tool_calls"][0]["function"]["name"] in names, a


def reasoning_is_apart():
    with serve() as s:
        more = {"max_tokens": 100, "seed": 1, "regex": r"<think>\nhm+ [a-z]{3}\n</think>\n\n[A-Z]{5}"}
        message = s.chat(HI, **more)["choices"][0]["message"]
        assert re.fullmatch("[A-Z]{5}", message["content"]) and re.fullmatch("hm+ [a-z]{3}", message["reasoning_content"])
        deltas = [c["delta"] for x in s.chunks(CHAT, {"messages": HI, **more}) for c in x["choices"]]
        assert "".join(d.get("reasoning_content") or "" for d in deltas) == message["reasoning_content"]
        assert "".join(d.get("content") or "" for d in deltas) == message["content"]
        # A prompt that ends inside <think>: the format holds after </think>.
        a = s.chat(HI, max_tokens=400, seed=3, regex="[0-9]{4}", chat_template_kwargs={"enable_thinking": True})
        message = a["choices"][0]["message"]
        assert message["content"] == "" or re.fullmatch("[0-9]{4}", message["content"]), a
        assert message.get("reasoning_content"), a


if __name__ == "__main__":
    sys.exit(run([formats_are_kept, tool_calls_are_parsed, a_tool_can_be_required, reasoning_is_apart]))
