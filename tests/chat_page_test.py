"""The chat page of carry serve in a headless Chromium. Usage: chat_page_test.py CARRY MODEL [CASE ...]

The model is random; regular expressions in the field "More fields of the request" make it write what the cases are about. Exit 0, 1
(failed), 77 (skipped)."""
import json
import sys

from serve_server import Server, run

try:
    from chat_page import ANSWERS, LAST, ChatPage, by, literally
    from page_browser import find
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

CARRY, MODEL = sys.argv[1], sys.argv[2]
KEY = "0123456789abcdef+/key"
LONG = "A question with many words, so that the server keeps states of it. " * 4  # the model's tokens are bytes
page = server = None


def files_have_a_strict_policy():
    for path, kind in (("/", "text/html"), ("/chat.js", "text/javascript"), ("/chat.css", "text/css"), ("/chat.svg", "image/svg+xml")):
        status, headers, body = server.ask("GET", path)
        assert status == 200 and headers["Content-Type"].startswith(kind) and body, (path, status)
        policy = headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy and "script-src 'self'" in policy and "unsafe" not in policy, policy
        assert headers["X-Content-Type-Options"] == "nosniff" and headers["Referrer-Policy"] == "no-referrer"
    _, _, body = server.ask("GET", "/")
    assert b"http" not in body.replace(b"http-equiv", b""), "the page names another address"


def page_opens():
    page.wait('at("model").dataset.kind === "live"')
    assert page.value('at("model").textContent').strip() == "tiny"
    assert page.value('!at("welcome").hidden && document.activeElement === at("input")')
    assert page.value('[...document.querySelectorAll("button, input, textarea, select, a")].every((one) =>'
                      ' one.ariaLabel || one.textContent.trim() || one.closest("label"))'), "a control has no name"


def answers_are_streamed_and_stopped():
    page.fresh()
    page.more(ignore_eos=True, max_tokens=1500)
    # About 300 bytes a token: the answer takes a minute unless it is stopped.
    page.call("Network.emulateNetworkConditions", offline=False, latency=0, downloadThroughput=8000, uploadThroughput=-1)
    try:
        page.type_and_send("Tell me everything.")
        page.wait(f"{LAST}?.querySelector('.md:last-of-type') && store.current && runs.size === 1 && [...runs.values()][0].node.content.length > 3")
        assert page.value('at("send").hidden && !at("halt").hidden')
        assert page.value(f"{LAST}.ariaBusy") == "true"
        page.press("Escape", "Escape")
        page.answered()
    finally:
        page.call("Network.emulateNetworkConditions", offline=False, latency=0, downloadThroughput=-1, uploadThroughput=-1)
    assert page.value("shownPath(store.current).at(-1).state") == "stopped"
    assert "stopped" in page.value(f"{LAST}.querySelector('.stats').textContent")
    server.until(lambda m: m.get("carry_requests_active", 0) == 0, "the server stops too")


def stats_are_shown():
    page.fresh()
    page.say(LONG, "Ten words are written here, and a few more follow.")
    stats = page.value(f"{LAST}.querySelector('.stats').textContent")
    assert "tokens/s" in stats and "tokens cached" in stats, stats
    s = page.value("shownPath(store.current).at(-1).stats")
    assert s["prompt"] > len(LONG) and s["tokens"] >= 50 and 0 <= s["cached"] <= s["prompt"], s


def answers_are_written_again():
    page.fresh()
    page.say(LONG, "One")
    page.answer_again("Two")
    assert page.value(f"{LAST}.querySelector('.switch').textContent") == "2/2"
    stats, s = page.value(f"{LAST}.querySelector('.stats').textContent"), page.value("shownPath(store.current).at(-1).stats")
    assert f"forked: {s['cached']} of {s['prompt']} tokens cached" in stats and s["cached"] > 0, stats
    page.click(f"{LAST}.querySelector('.switch [data-step=\"-1\"]')")
    page.wait(f"{LAST}.textContent.includes('One')")
    assert page.value(f"{LAST}.querySelector('.switch').textContent") == "1/2"
    assert page.value("document.activeElement.closest('.switch') !== null"), "the focus is lost"


def messages_are_edited_and_branched():
    page.fresh()
    page.say("First " + LONG, "Alpha")
    page.say("Second", "Beta")
    page.more(regex="Gamma")
    page.value('at("input").focus()')
    page.press("ArrowUp", "ArrowUp")  # edits the last message
    page.wait('document.activeElement.matches(".edit textarea")')
    assert page.value("document.activeElement.value") == "Second"
    page.value("document.activeElement.select()")
    page.type("Another second")
    page.press("Enter", "Enter", "\r")
    page.wait(f"{LAST}.textContent.includes('Gamma')")
    page.answered()
    assert page.texts(".bubble")[1:] == ["Another second"] and "forked" in page.value(f"{LAST}.querySelector('.stats').textContent")
    page.click("[...document.querySelectorAll('.message.user')].at(-1).querySelector('[data-step=\"-1\"]')")
    page.wait("document.querySelectorAll('.bubble')[1].textContent === 'Second'")
    assert "Beta" in page.value(f"{LAST}.textContent")
    # From the answer in the middle.
    page.click(f"{ANSWERS}[0].querySelector('[data-act=\"branch\"]')")
    page.wait('!at("branching").hidden')
    assert page.texts(".bubble")[1:] == []
    page.say("Third", "Delta")
    assert page.texts(".bubble")[1:] == ["Third"] and page.value('at("branching").hidden')
    assert page.value("[...document.querySelectorAll('.message.user')].at(-1).querySelector('.switch').textContent") == "3/3"
    s = page.value("shownPath(store.current).at(-1).stats")
    assert s["cached"] > 0, s
    # An answer of a message in the middle.
    page.more(regex="Epsilon")
    page.click("document.querySelectorAll('.message.user')[0].querySelector('[data-act=\"branch\"]')")
    page.wait(f"{LAST}.textContent.includes('Epsilon')")
    page.answered()
    assert page.texts(".bubble")[1:] == [] and page.value(f"{LAST}.querySelector('.switch').textContent") == "2/2"
    page.value('act.edit(shownPath(store.current)[0])')
    page.press("Escape", "Escape")
    page.wait('!document.querySelector(".edit")')


def conversations_are_kept():
    page.fresh()
    page.say("Remember me", "Yes")
    assert page.value('at("title").textContent') == "Remember me"
    page.reload()
    page.wait('document.querySelectorAll(".message").length === 2')
    assert "Yes" in page.value(f"{LAST}.textContent")
    identity = page.value("store.current.id")
    row = f"#list li[data-id='{identity}']"
    page.click(by(f"{row} [data-act='rename']"))
    page.wait('document.activeElement.matches("#list input")')
    page.value("document.activeElement.select()")
    page.type("Kept")
    page.press("Enter", "Enter", "\r")
    page.wait('at("title").textContent === "Kept"')
    assert json.loads(page.value(f'localStorage.getItem(PREFIX + "{identity}")'))["title"] == "Kept"
    page.click(by(f"{row} [data-act='delete']"))
    page.wait(f"{by(row)} === null && store.current.order.length === 0")
    assert page.value(f'localStorage.getItem(PREFIX + "{identity}")') is None
    page.click(by("#toast button"))
    page.wait(f"{by(row)} !== null && store.current.id === '{identity}'")
    page.call("Input.dispatchKeyEvent", type="keyDown", key="n", code="KeyN", windowsVirtualKeyCode=78, modifiers=1)
    page.wait('!at("welcome").hidden && document.activeElement === at("input")')
    page.call("Input.dispatchKeyEvent", type="keyUp", key="n", code="KeyN", windowsVirtualKeyCode=78)


def settings_are_sent():
    page.fresh()
    page.value("""(() => { window.sent = []; const real = fetch;
      window.fetch = (path, options) => { if (options?.body) window.sent.push(JSON.parse(options.body)); return real(path, options); }; })()""")
    page.click('at("settings-open")')
    page.wait('!at("settings").hidden && document.activeElement === at("system")')
    wanted = {"temperature": 0.5, "top_p": 0.9, "top_k": 20, "min_p": 0.05, "max_tokens": 7, "seed": 42}
    for name, value in wanted.items():
        page.set_field(f"set-{name}", str(value))
    page.set_field("system", "Be brief.")
    page.value('at("set-thinking").value = "off"')
    page.set_field("set-more", '{"stop": ["END"]}')
    for _ in range(2):
        count = page.value(f"{ANSWERS}.length")
        page.type_and_send("Hello")
        page.wait(f"{ANSWERS}.length > {count}")
        page.answered()
        page.value("act.open(store.current)")
        sent = page.value("window.sent.at(-1)")
        assert all(sent[name] == value for name, value in wanted.items()), sent
        assert sent["stop"] == ["END"] and sent["chat_template_kwargs"] == {"enable_thinking": False} and sent["model"] == "tiny"
        assert sent["messages"][0] == {"role": "system", "content": "Be brief."}
    assert len(page.value("window.sent.at(-1)")["messages"]) == 4
    stats = page.value("shownPath(store.current).at(-1).stats")
    assert stats["tokens"] <= 7
    for name, value, said in (("set-temperature", "-1", "Temperature"), ("set-top_k", "1.5", "whole number"), ("set-more", "{", "not JSON")):
        before, was = page.value("window.sent.length"), page.value(f'at("{name}").value')
        page.set_field(name, value)
        page.wait(f'!at("settings-problem").hidden && at("settings-problem").textContent.includes("{said}")')
        page.type_and_send("Not sent")
        assert page.value("window.sent.length") == before
        page.set_field(name, was)
        page.value('at("input").value = ""')
    page.press("Escape", "Escape")
    page.wait('at("settings").hidden')


SAMPLE = """# Title

A *first* paragraph with **bold**, `code < tag`, ~~old~~ text and
a second line with https://example.org/a_b(c). And [a link](https://example.org "t"), [bad](javascript:alert(1)).

1. one
   - nested `x`
   - again
2. two

   with a paragraph

- [x] done
- [ ] open

| a | b |
| :-- | --: |
| 1 | `p|q` |
| **2** | \\| |

> quoted
> - list

```c
int main(void) { return 0; } /* <b>no</b> */
\ttab
```

---
2 * 3 * 4 and snake_case_name __strong__ ***both***
"""


def markdown_becomes_elements():
    count = page.value(f"""(() => {{ window.box = document.createElement("div"); showMarkdown(box, {json.dumps(SAMPLE)});
      return Object.fromEntries("h2 strong em del code a ol ul li table th td blockquote pre hr br script b".split(" ")
        .map((tag) => [tag, box.querySelectorAll(tag).length])); }})()""")
    expected = {"h2": 1, "strong": 4, "em": 2, "del": 1, "code": 4, "a": 2, "ol": 1, "ul": 3, "li": 7, "table": 1, "th": 2, "td": 4,
                "blockquote": 1, "pre": 1, "hr": 1, "br": 1, "script": 0, "b": 0}
    assert count == expected, {name: (count[name], expected[name]) for name in count if count[name] != expected[name]}
    assert page.value("[...box.querySelectorAll('a')].every((a) => a.rel.includes('noopener') && a.target === '_blank')")
    assert page.value("box.querySelector('pre').textContent.includes('\\ttab')"), "tabs of code are kept"
    assert page.value("box.lastChild.textContent") == "2 * 3 * 4 and snake_case_name strong both"
    # Drawn part by part it is the same, and blocks that are complete keep their elements.
    same = page.value(f"""(() => {{ const text = {json.dumps(SAMPLE)}, grown = document.createElement("div"); let first = null, kept = true;
      for (let n = 1; n <= text.length; n++) {{
        showMarkdown(grown, text.slice(0, n), true);
        if (n > 9) {{ first ??= grown.firstChild; kept = kept && grown.firstChild === first; }}
      }}
      showMarkdown(grown, text);
      return kept && grown.innerHTML === box.innerHTML; }})()""")
    assert same, "an answer drawn part by part differs"
    hostile = page.value("""(() => { const texts = ["*".repeat(20000), "[".repeat(20000), "> ".repeat(5000), "`".repeat(3000) + "x", "- ".repeat(5000),
        "_a".repeat(10000), "**a ".repeat(5000), "|".repeat(10000) + "\\n" + "|-".repeat(5000), "h".repeat(20000), "#".repeat(20000)];
      for (const text of texts) for (const open of [false, true]) showMarkdown(document.createElement("div"), text, open);
      return texts.length; })()""")
    assert hostile == 10


def answers_are_never_html():
    page.fresh()
    bad = ("<img src=x onerror=window.pwned=1><script>window.pwned=1</script> [x](javascript:window.pwned=1) "
           "![p](https://example.org/p.png) <a href=\"javascript:window.pwned=1\">y</a>")
    page.say("<b onclick=window.pwned=1>Hi</b><img src=x onerror=window.pwned=1>", bad)
    assert "<script>window.pwned=1</script>" in page.value(f"{LAST}.textContent")
    identity, title = page.value("store.current.id"), "<img src=x onerror=window.pwned=1>"
    page.value("act.rename(store.current)")
    page.value("document.activeElement.select()")
    page.type(title)
    page.press("Enter", "Enter", "\r")
    page.wait(f"at('title').textContent === {json.dumps(title)}")
    page.reload()
    page.wait(f'store.current.id === "{identity}" && document.querySelectorAll(".message").length === 2')
    assert page.value("""[...document.querySelectorAll("#messages img, #messages script, #list img, header img, #toast img, #messages b")].length""") == 0
    assert page.value("[...document.querySelectorAll('#messages a')].every((a) => /^https?:/.test(a.href))")
    assert page.value("window.pwned") is None
    refused = page.value("(() => { try { document.createElement('p').innerHTML = '<b>x</b>'; return false; } catch { return true; } })()")
    assert refused, "the browser takes texts as HTML"


def thinking_is_folded():
    page.fresh()
    page.say("Think", "<think>\nHmm **so**.\n</think>\n\nDone.")
    assert page.value(f"{LAST}.querySelector('.thinking').open") is False
    assert "Thought" in page.value(f"{LAST}.querySelector('summary').textContent")
    assert page.value(f"{LAST}.querySelector('.thinking strong').textContent") == "so"
    node = page.value("shownPath(store.current).at(-1)")
    assert node["content"].strip() == "Done." and "Hmm" in node["reasoning"], node
    split = page.value("splitThinking({ content: '<think>a</think>b' })")
    assert split == {"thinking": "a", "content": "b", "isThinking": False}, split


def tool_calls_are_shown():
    page.fresh()
    tools = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}]
    page.more(tools=tools, regex=literally('<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'))
    page.type_and_send("Weather in Rome?")
    page.wait(f"{by('.call')} !== null")
    page.answered()
    assert page.value(f"{by('.call')}.textContent").startswith("Tool call weather") and '"city": "Rome"' in page.value(f"{by('.call')}.textContent")
    page.more(tools=tools, regex="Sunny")
    page.value(f"{by('.results textarea')}.focus()")
    page.type('{"sky": "clear"}')
    page.click(by(".results button"))
    page.wait(f"{LAST}.textContent.includes('Sunny')")
    page.answered()
    roles = page.value("messagesTo(store.current, shownPath(store.current).at(-1)).map((one) => one.role)")
    assert roles == ["user", "assistant", "tool", "assistant"], roles


def errors_are_words_with_a_retry():
    page.fresh()
    page.more(temperature=1000)
    page.type_and_send("Too hot")
    page.wait(f"{by('.problem')} !== null")
    assert "temperature" in page.value(f"{by('.problem')}.textContent")
    page.more(regex="Fine")
    page.value("window.realFetch = fetch; window.fetch = () => Promise.reject(new TypeError('no network'))")
    page.click(by(".problem button"))
    page.wait(f"{by('.problem')}?.textContent.includes('does not answer')")
    page.value("window.fetch = window.realFetch")
    page.click(by(".problem button"))
    page.wait(f"{LAST}.textContent.includes('Fine')")
    page.answered()
    assert page.value(f"{by('.problem')} === null && {ANSWERS}.length === 1 && {by('.switch')} === null")


CONTRAST = """(() => {
  const parse = (colour) => { const c = document.createElement("canvas").getContext("2d"); c.fillStyle = colour; c.fillRect(0, 0, 1, 1); return [...c.getImageData(0, 0, 1, 1).data]; };
  const light = ([r, g, b]) => [r, g, b].map((v) => v / 255).map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)).reduce((s, v, i) => s + v * [0.2126, 0.7152, 0.0722][i], 0);
  const ground = (e) => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor; if (parse(c)[3] === 255) return c; } return "white"; };
  const worst = [...document.querySelectorAll("p, h1, h2, span, button, code, small, kbd, td, th, label, legend, a, .bubble, .brand")]
    .filter((e) => e.checkVisibility({ opacityProperty: true }) && !e.disabled && [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim()))
    .map((e) => { const a = light(parse(getComputedStyle(e).color)), b = light(parse(ground(e)));
      return [(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), e.outerHTML.slice(0, 80)]; }).sort((a, b) => a[0] - b[0]);
  return worst[0]; })()"""


def dark_and_light_are_readable():
    page.fresh()
    page.say("Show code", "# T\n\n`x` [l](https://a.b/)\n\n| a |\n| - |\n| 1 |\n\n```c\nint f(void) { return 1; } // \"s\"\n```\n")
    page.value("showSettings(true)")
    grounds = []
    for scheme in ("light", "dark"):
        page.colours(scheme)
        ratio, worst = page.value(CONTRAST)
        assert ratio >= 4.5, f"{scheme}: contrast {ratio:.2f} of {worst}"
        grounds.append(page.value("getComputedStyle(document.body).backgroundColor"))
    page.colours(None)
    page.value("showSettings(false)")
    assert grounds[0] != grounds[1]


def phones_have_a_layout():
    page.fresh()
    page.say("A " + "long" * 80, "| " + " | ".join("column" + str(i) for i in range(9)) + " |\n|" + " - |" * 9 + "\n\n```\n" + "wide " * 40 + "\n```\n")
    page.call("Emulation.setDeviceMetricsOverride", width=360, height=700, deviceScaleFactor=2, mobile=True)
    try:
        page.wait("innerWidth === 360")
        assert page.value("document.documentElement.scrollWidth") <= 360
        assert page.value("[...document.querySelectorAll('.message, #composer, header')].every((one) => one.getBoundingClientRect().right <= 360)")
        box = page.value("(() => { const b = at('composer').getBoundingClientRect(); return [b.top, b.bottom]; })()")
        assert 0 < box[0] < box[1] <= 700, box
        page.wait("at('side').inert && getComputedStyle(at('side')).visibility === 'hidden'")
        page.click('at("side-open")')
        page.wait("!at('side').inert && getComputedStyle(at('side')).visibility === 'visible' && at('side').getBoundingClientRect().left === 0")
        page.press("Escape", "Escape")
        page.wait("at('side').inert")
        page.click('at("settings-open")')
        page.wait("!at('settings').hidden && at('settings').getBoundingClientRect().right <= 360")
        page.press("Escape", "Escape")
        page.wait("at('settings').hidden")
    finally:
        page.call("Emulation.clearDeviceMetricsOverride")
        page.wait("innerWidth > 1000")


def keys_do_everything():
    page.fresh()
    page.value('at("input").focus()')
    page.type("one")
    page.call("Input.dispatchKeyEvent", type="keyDown", key="Enter", code="Enter", windowsVirtualKeyCode=13, modifiers=8, text="\r")
    page.call("Input.dispatchKeyEvent", type="keyUp", key="Enter", code="Enter", windowsVirtualKeyCode=13, modifiers=8)
    page.type("two")
    assert page.value('at("input").value') == "one\ntwo" and page.value("runs.size") == 0
    page.more(regex="Ok")
    page.value('at("input").focus()')
    page.press("Enter", "Enter", "\r")
    page.wait(f"{ANSWERS}.length === 1")
    page.answered()
    seen = []
    page.value("document.activeElement.blur()")
    for _ in range(60):
        page.call("Input.dispatchKeyEvent", type="keyDown", key="Tab", code="Tab", windowsVirtualKeyCode=9)
        page.call("Input.dispatchKeyEvent", type="keyUp", key="Tab", code="Tab", windowsVirtualKeyCode=9)
        one = page.value("""(() => { const e = document.activeElement, s = getComputedStyle(e), frame = getComputedStyle(e.closest("#composer") ?? e);
          return e === document.body ? null : { name: e.id || e.ariaLabel || e.textContent, shown: s.outlineStyle !== "none" || frame.boxShadow !== "none" }; })()""")
        if one is None:  # behind the last one
            continue
        assert one["shown"], f"the focus on {one['name']} cannot be seen"
        seen.append(one["name"])
    for name in ("new", "input", "settings-open", "Copy", "Answer again", "Edit and send as a new branch"):
        assert name in seen, (name, seen)


def a_key_is_asked_for():
    with Server(CARRY, MODEL, "--device", "cpu", "--memory", "64M", "--api-key-file", "key", key=KEY) as locked:
        status, _, _ = locked.ask("GET", "/v1/models", headers={"Authorization": "Bearer wrong-wrong-wrong"})
        assert status == 401
        page.open(f"http://127.0.0.1:{locked.port}/")
        page.wait('at("key-dialog").open')
        page.type("wrong-wrong-wrong")
        page.press("Enter", "Enter", "\r")
        page.wait('at("key-dialog").open && at("key-text").textContent.includes("does not accept")')
        page.value('at("key").select()')
        page.type(KEY)
        page.press("Enter", "Enter", "\r")
        page.wait('!at("key-dialog").open && at("model").dataset.kind === "live"')
        page.say("Hello", "Welcome")
        assert "Welcome" in page.value(f"{LAST}.textContent")
        page.value("sessionStorage.clear()")  # the key is lost: an answer asks for it and is then written
        page.more(regex="Again")
        page.type_and_send("Hello")
        page.wait('at("key-dialog").open')
        page.type(KEY)
        page.press("Enter", "Enter", "\r")
        page.wait(f"{LAST}.textContent.includes('Again')")
        page.answered()
        assert page.value("Object.keys(localStorage).every((name) => localStorage.getItem(name).includes('0123456789abcdef') === false)")
    page.open(f"http://127.0.0.1:{server.port}/")


def main():
    global page, server
    path = find()
    if not path:
        print("skipped: Chromium is not installed")
        return 77
    with open("key", "w", encoding="ascii") as file:
        file.write(KEY + "\n")
    page = ChatPage(path, 1280, 900)
    try:
        with Server(CARRY, MODEL, "--device", "cpu", "--memory", "64M") as server:
            page.open(f"http://127.0.0.1:{server.port}/")
            status = run([files_have_a_strict_policy, page_opens, answers_are_streamed_and_stopped, stats_are_shown, answers_are_written_again,
                          messages_are_edited_and_branched, conversations_are_kept, settings_are_sent, markdown_becomes_elements,
                          answers_are_never_html, thinking_is_folded, tool_calls_are_shown, errors_are_words_with_a_retry,
                          dark_and_light_are_readable, phones_have_a_layout, keys_do_everything, a_key_is_asked_for])
            expected = ("status of 401", "status of 400", "net::ERR_", "TrustedHTML")  # what the cases cause
            errors = [one for one in page.errors if not any(part in one for part in expected)]
            if errors:
                print(f"FAILED: the console has {errors}")
            return 1 if errors else status
    finally:
        page.close()


if __name__ == "__main__":
    sys.exit(main())
