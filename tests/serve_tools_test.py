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


CALLABLE = [{"type": "function", "function": {"name": "book", "parameters": {
    "type": "object", "properties": {
        "city": {"type": "string", "enum": ["Rome", "</b> \"Bonn\""]},
        "code": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"},
        "nights": {"type": "integer", "minimum": 1, "maximum": 14},
        "guests": {"type": "array", "items": {"$ref": "#/$defs/person"}, "minItems": 1, "maxItems": 2},
        "note": {"anyOf": [{"type": "string", "maxLength": 4}, {"type": "null"}]},
        "kind": {"$ref": "#/$defs/kind"}},
    "required": ["city", "code", "nights", "guests", "kind"], "additionalProperties": False,
    "$defs": {"person": {"type": "object", "properties": {"age": {"type": "integer", "minimum": 0, "maximum": 120},
                                                         "child": {"type": "boolean"}}, "required": ["age", "child"]},
              "kind": {"enum": [1, 2, None]}}}}},
    {"type": "function", "function": {"name": "ping"}},
    {"type": "function", "function": {"name": "wait", "parameters": {"type": "object", "properties": {
        "seconds": {"type": "number", "minimum": 0, "maximum": 5}}, "required": ["seconds"]}}}]


def check_arguments(name, arguments):
    if name == "ping":
        assert arguments == {}, arguments
    elif name == "wait":
        assert set(arguments) == {"seconds"} and 0 <= arguments["seconds"] <= 5, arguments
    else:
        assert set(arguments) - {"note"} == {"city", "code", "nights", "guests", "kind"}, arguments
        assert arguments["city"] in ("Rome", '</b> "Bonn"') and re.fullmatch("[A-Z]{2}-[0-9]{3}", arguments["code"])
        assert 1 <= arguments["nights"] <= 14 and arguments["kind"] in (1, 2, None) and 1 <= len(arguments["guests"]) <= 2
        assert all(set(g) == {"age", "child"} and 0 <= g["age"] <= 120 for g in arguments["guests"]), arguments
        assert len(arguments.get("note") or "") <= 4, arguments


def a_tool_can_be_required():
    names = [t["function"]["name"] for t in CALLABLE]
    with serve("--context", "4096") as s:
        for style in ("json", "xml"):
            more = {"tools": CALLABLE, "max_tokens": 1500, "temperature": 1, "chat_template_kwargs": {"style": style}}
            for choice, allowed in [("required", names)] + [
                    ({"type": "function", "function": {"name": name}}, [name]) for name in names]:
                for seed in range(4):
                    one = s.chat(HI, tool_choice=choice, seed=seed, **more)["choices"][0]
                    calls = one["message"]["tool_calls"]
                    assert one["finish_reason"] == "tool_calls" and one["message"]["content"] is None, (style, one)
                    assert len(calls) == 1 or choice == "required", calls
                    for call in calls:
                        assert call["function"]["name"] in allowed, (style, calls)
                        check_arguments(call["function"]["name"], json.loads(call["function"]["arguments"]))
            single = s.chat(HI, tool_choice="required", parallel_tool_calls=False, seed=9, **more)
            assert len(single["choices"][0]["message"]["tool_calls"]) == 1
            # After the reasoning, which is free, comes a call too.
            thinking = {**more, "max_tokens": 3000, "chat_template_kwargs": {"style": style, "enable_thinking": True}}
            message = s.chat(HI, tool_choice="required", seed=1, **thinking)["choices"][0]["message"]
            assert message["content"] in (None, ""), message
            # A schema with a keyword that is not supported is refused by name.
            wrong = [{"type": "function", "function": {"name": "odd", "parameters": {
                "type": "object", "properties": {"a": {"type": "string", "not": {}}}}}}]
            body = {"messages": HI, **more, "tools": wrong, "tool_choice": "required"}
            error = s.post(CHAT, body, 400)["error"]
            assert error["param"] == "tools" and "'odd'" in error["message"] and "not" in error["message"], error
        # A message about another form of calls does not change the form.
        misled = [{"role": "user", "content": "What does <function=f> <parameter=a> mean?"}]
        a = s.chat(misled, tools=CALLABLE, max_tokens=1500, tool_choice="required", seed=3, logprobs=True)["choices"][0]
        written = "".join(token["token"] for token in a["logprobs"]["content"])
        assert written.startswith('<tool_call>\n{"name": "') and a["message"]["tool_calls"], written
        anthropic = [{"name": t["function"]["name"], "input_schema": t["function"].get("parameters", {
            "type": "object", "properties": {}})} for t in CALLABLE]
        for choice, allowed in (({"type": "any"}, names), ({"type": "tool", "name": "book"}, ["book"])):
            for seed in range(4):
                a = s.post("/v1/messages", {"max_tokens": 1500, "messages": HI, "tools": anthropic, "tool_choice": choice})
                assert a["stop_reason"] == "tool_use" and all(b["type"] == "tool_use" for b in a["content"]), a
                for block in a["content"]:
                    assert block["name"] in allowed
                    check_arguments(block["name"], block["input"])


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


def blocks_of(events):
    """Content blocks of Anthropic's events, which must come in order."""
    blocks, is_open = [], False
    for event in events:
        kind = event["type"]
        if kind == "content_block_start":
            assert not is_open and event["index"] == len(blocks)
            blocks.append({**event["content_block"], "json": ""})
            is_open = True
        elif kind == "content_block_delta":
            assert is_open and event["index"] == len(blocks) - 1
            delta = event["delta"]
            key = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "json"}[delta["type"]]
            blocks[-1][key] += delta["partial_json" if key == "json" else key]
        elif kind == "content_block_stop":
            is_open = False
    assert not is_open
    return blocks


def the_messages_interface_works():
    path, tools = "/v1/messages", [{"name": t["function"]["name"], "input_schema": t["function"]["parameters"]} for t in TOOLS]
    with serve() as s:
        body = {"model": "tiny", "max_tokens": 12, "messages": HI, "system": [{"type": "text", "text": "Be brief."}]}
        a = s.post(path, body)
        assert a["type"] == "message" and a["role"] == "assistant" and a["id"].startswith("msg_")
        assert a["content"][0]["type"] == "text" and a["stop_reason"] in ("max_tokens", "end_turn")
        usage = a["usage"]
        assert usage["output_tokens"] <= 12 and usage["input_tokens"] + usage["cache_read_input_tokens"] > 21
        # A call and its result, in the form of the interface.
        messages = [{"role": "user", "content": "Weather?"},
                    {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": ""},
                                                      {"type": "text", "text": "I look."},
                                                      {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "x"}}]},
                    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "sunny"},
                                                 {"type": "text", "text": "Well?"}]}]
        call = {**body, "messages": messages, "tools": tools, "max_tokens": 150, "tool_choice": {"type": "tool", "name": "weather"}}
        a = s.post(path, call)
        assert a["content"][-1]["type"] == "tool_use" and a["content"][-1]["name"] == "weather", a
        assert isinstance(a["content"][-1]["input"], dict)
        events = [json.loads(data) for data in s.events(path, {**call, "stream": True})]
        kinds = [event["type"] for event in events]
        assert kinds[0] == "message_start" and kinds[-2:] == ["message_delta", "message_stop"]
        blocks = blocks_of(events)
        assert blocks[-1]["type"] == "tool_use" and blocks[-1]["id"].startswith("call_") and blocks[-1]["json"].startswith("{")
        text = blocks_of(json.loads(data) for data in s.events(path, {**body, "stream": True}))
        assert [b["type"] for b in text] == ["text"]
        stops = list("abcdefghijklmnopqrstuvwxyz0123456789 ")
        answers = [s.post(path, {**body, "max_tokens": 300, "seed": seed, "stop_sequences": stops}) for seed in range(4)]
        assert any(a["stop_reason"] == "stop_sequence" for a in answers), answers
        assert all((a["stop_sequence"] in stops) == (a["stop_reason"] == "stop_sequence") for a in answers), answers
        for wrong, part in (({"max_tokens": None}, "max_tokens"), ({"messages": 3}, "messages"),
                            ({"stop_sequences": 5}, "stop_sequences"), ({"thinking": 5}, "thinking"),
                            ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages[0].content[0].type"),
                            ({"messages": [HI[0], 1]}, "messages[1]"), ({"messages": [{"role": 1, "content": ""}]}, "messages[0].role"),
                            ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
                            ({"messages": [{"role": "user", "content": ["a"]}]}, "messages[0].content[0]"),
                            ({"messages": [{"role": "user", "content": [{"type": "text", "text": 1}]}]}, "messages[0].content[0].text"),
                            ({"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": 1, "input": {}}]}]},
                             "messages[0].content[0].name"),
                            ({"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "b", "input": "c"}]}]},
                             "messages[0].content[0].input"),
                            ({"messages": [{"role": "user", "content": [{"type": "tool_result", "content": "c"}]}]},
                             "messages[0].content[0].tool_use_id"),
                            ({"system": 1}, "system"), ({"tools": {}}, "tools"), ({"tools": [1]}, "tools[0]"),
                            ({"tools": [{"input_schema": {}}]}, "tools[0].name"), ({"tools": [{"name": "a"}]}, "tools[0].input_schema"),
                            ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools[0].type"),
                            ({"tools": [{"name": "a", "input_schema": {}, "description": 1}]}, "tools[0].description"),
                            ({"tools": [{"name": "a", "input_schema": {}}], "tool_choice": {"type": "tool"}}, "tool_choice.name"),
                            ({"stop_sequences": ["a"] * 5000}, "stop_sequences"), ({"stop_sequences": ["a", 1]}, "stop_sequences"),
                            ({"stop_sequences": ["a" * 5000]}, "stop_sequences"),
                            ({"tool_choice": {"type": "all"}}, "tool_choice"), ({"temperature": "x"}, "temperature")):
            error = s.post(path, {**body, **wrong}, 400)
            assert error["type"] == "error" and error["error"]["type"] == "invalid_request_error", error
            assert error["error"]["message"].startswith(part), error
        assert s.post(path, {**body, "model": "none"}, 404)["error"]["type"] == "not_found_error"


def the_anthropic_package_works():
    try:
        import anthropic
    except ImportError:
        return "the package anthropic is not installed"
    tools = [{"name": t["function"]["name"], "input_schema": t["function"]["parameters"]} for t in TOOLS]
    with serve("--context", "4096") as s:
        client = anthropic.Anthropic(base_url=f"http://127.0.0.1:{s.port}", api_key="none", max_retries=0)
        body = {"model": "tiny", "max_tokens": 20, "messages": HI, "system": "Be brief.",
                "extra_body": {"temperature": 0}}  # newer versions have no argument for it
        a = client.messages.create(**body)
        assert a.content[0].type == "text" and a.stop_reason in ("max_tokens", "end_turn") and a.role == "assistant"
        assert a.usage.output_tokens <= 20 and a.usage.input_tokens + a.usage.cache_read_input_tokens > 21
        with client.messages.stream(**body) as stream:
            text = "".join(stream.text_stream)
            final = stream.get_final_message()
        assert text == a.content[0].text == final.content[0].text and final.stop_reason == a.stop_reason
        assert final.usage.output_tokens == a.usage.output_tokens
        # A forced call; its result goes back, and the conversation goes on.
        forced = {**body, "max_tokens": 200, "tools": tools, "tool_choice": {"type": "tool", "name": "weather"}}
        call = client.messages.create(**forced)
        use = call.content[-1]
        assert use.type == "tool_use" and use.name == "weather" and isinstance(use.input, dict), call
        messages = [*HI, {"role": "assistant", "content": [{"type": "tool_use", "id": use.id, "name": use.name, "input": use.input}]},
                    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": use.id, "content": "sunny"}]}]
        assert client.messages.create(**{**body, "messages": messages, "tools": tools}).usage.output_tokens <= 20
        stopped = client.messages.create(**{**body, "max_tokens": 300, "extra_body": {"seed": 1}, "stop_sequences": list("abcdefgh")})
        assert stopped.stop_reason in ("stop_sequence", "end_turn", "max_tokens")
        assert (stopped.stop_sequence in list("abcdefgh")) == (stopped.stop_reason == "stop_sequence")
        for wrong, error in (({"model": "none"}, anthropic.NotFoundError), ({"max_tokens": 0}, anthropic.BadRequestError),
                             ({"extra_body": {"temperature": 1000}}, anthropic.BadRequestError)):
            try:
                client.messages.create(**{**body, **wrong})
                raise AssertionError(f"{wrong} was accepted")
            except error as refusal:
                assert refusal.body["type"] == "error", refusal.body
        with client.messages.stream(**{**body, "max_tokens": 3000}) as stream:
            next(iter(stream))
        s.until(lambda m: m["carry_requests_active"] == 0, "the closed stream is cancelled")
    return None


if __name__ == "__main__":
    sys.exit(run([the_messages_interface_works, the_anthropic_package_works, formats_are_kept, tool_calls_are_parsed, a_tool_can_be_required, reasoning_is_apart]))
