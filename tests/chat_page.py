"""The chat page of carry serve, driven in a headless Chromium. Used by chat_page_test.py and tools/pictures."""
import json

from page_browser import Browser

ANSWERS = 'document.querySelectorAll(".message.assistant")'
LAST = '[...document.querySelectorAll(".message.assistant")].at(-1)'


def literally(text):
    """A regular expression that matches only this text."""
    return "".join("\\" + sign if sign in "\\.^$|?*+()[]{}" else sign for sign in text)


def by(selector):
    return f"document.querySelector({json.dumps(selector)})"


class ChatPage(Browser):
    def set_field(self, name, value):
        self.value(f"""(() => {{ const field = at({json.dumps(name)}); field.value = {json.dumps(value)};
          field.dispatchEvent(new Event("input", {{ bubbles: true }})); }})()""")

    def more(self, **fields):
        """Fields of the next requests."""
        self.set_field("set-more", json.dumps(fields) if fields else "")

    def click(self, expression):
        self.value(f"(() => {{ const one = {expression}; one.focus(); one.click(); }})()")

    def answered(self):
        self.wait('runs.size === 0 && !at("send").hidden')

    def type_and_send(self, text):
        self.value('at("input").focus()')
        self.type(text)
        self.press("Enter", "Enter", "\r")

    def say(self, text, answer=None, **fields):
        """Sends a message and waits for the answer, which is `answer` if given."""
        self.more(**({"regex": literally(answer)} if answer else {"max_tokens": 20}), **fields)
        count = self.value(f"{ANSWERS}.length")
        self.type_and_send(text)
        self.wait(f"{ANSWERS}.length > {count}")
        self.answered()

    def answer_again(self, answer):
        self.more(regex=literally(answer))
        self.click(f"{LAST}.querySelector('[data-act=\"again\"]')")
        self.wait(f"shownPath(store.current).at(-1).content === {json.dumps(answer)}")
        self.answered()

    def fresh(self):
        """Starts a new conversation with the initial settings."""
        self.value("""(() => { for (const name of numbers) at("set-" + name).value = ""; at("set-thinking").value = ""; at("set-more").value = "";
          saveSettings(); act.create(); })()""")

    def reload(self):
        self.value("window.isOld = true")
        self.call("Page.reload")
        while True:  # wait has the deadline
            try:
                self.wait("!window.isOld && document.readyState === 'complete'")
                return
            except RuntimeError:  # the old page went away during a question
                continue

    def texts(self, selector):
        return self.value(f"[...document.querySelectorAll({json.dumps(selector)})].map((one) => one.textContent)")

    def colours(self, scheme):
        """Sets the colours: light, dark, or None for those of the system."""
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}] if scheme else [])
        if scheme:
            self.wait(f"matchMedia('(prefers-color-scheme: {scheme})').matches")
        self.wait("document.getAnimations().every((one) => !(one instanceof CSSTransition))")
