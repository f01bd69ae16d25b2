"""carry chat with a small random model of bytes: piped lines, and a terminal. Usage: chat_test.py CARRY MODEL ENDLESS"""

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time

CARRY, MODEL, ENDLESS = sys.argv[1:4]
COMMAND = [CARRY, "chat", MODEL, "--device", "cpu", "--memory", "64M"]
PATIENCE = 60
RATES = re.compile(r"\[(\d+) tokens, [\d.]+ tokens/s; prompt of (\d+) tokens, (\d+) cached")


def piped(lines, *options):
    done = subprocess.run([*COMMAND, *options], input="\n".join(lines).encode() + b"\n", capture_output=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    return done.stdout.decode(), [tuple(map(int, m)) for m in RATES.findall(done.stderr.decode())], done.stderr.decode()


def lines_of_a_pipe_are_messages_and_commands():
    question = "Once upon a time " * 12
    text, rates, _ = piped([question, "/save one", "Go on", "/quit", "not read"], "-n", "10")
    assert len(rates) == 2 and text
    saved = json.load(open("one", encoding="utf-8"))
    assert [m["role"] for m in saved] == ["user", "assistant"] and saved[0]["content"] == question
    first = text.split("\n")[0] if saved[1]["content"] else ""
    assert saved[1]["content"].startswith(first[:5])
    # The saved state is found again: the prompt is not read from its beginning.
    _, loaded, messages = piped(["/load one", "Go on"], "-n", "10")
    assert "2 messages and their state" in messages and loaded[0][2] >= rates[0][1], (rates, loaded)
    _, again, messages = piped(["/load one", "/undo", "/undo", "/retry", "/system Short.", "Hi", "/retry"], "-n", "5")
    assert "no question to remove" in messages and "no question to answer" in messages
    assert len(again) == 2 and again[0][1] == again[1][1]
    for wrong, part in (("/load none", "none"), ("/save", "needs the name"), ("/what", "unknown command")):
        assert part in piped([wrong])[2]
    open("bad", "w", encoding="utf-8").write('[{"role": "king", "content": "x"}]')
    assert "line 1: expected a message" in piped(["/load bad"])[2]
    with open("one.state", "r+b") as state:
        state.seek(-3, os.SEEK_END)
        state.write(b"xyz")
    assert "one.state" in piped(["/load one"])[2]


def json_has_a_line_for_each_line():
    lines = ["Hello", "/system Be brief.", "Again", "/undo", "/undo", "/undo", "/what", "/save three", "Once more", "/save three", "/retry",
             "/load none", "/quit"]
    text, _, errors = piped(lines, "-n", "6", "--json")
    answers = [json.loads(line) for line in text.splitlines()]
    assert len(answers) == len(lines) and "tokens/s" not in errors, (text, errors)
    for line, answer in zip(lines, answers):
        if line[0] != "/" or line == "/retry":
            assert answer["role"] == "assistant" and isinstance(answer["content"], str) and answer["ended"] in ("length", "end")
            assert answer["prompt_tokens"] > 0 and 0 <= answer["tokens"] <= 6 and "error" not in answer, answer
        else:
            assert answer["command"] == line.split()[0], answer
    assert [a["messages"] for a in answers] == [2, 3, 5, 3, 1, 1, 1, 1, 3, 3, 3, 3, 3], answers
    assert ["error" in a for a in answers] == [line in ("/what", "/load none") or i == 5 for i, line in enumerate(lines)], answers


def undo_after_load_goes_on_from_a_saved_state():
    lines = ["Tell me a long story. " * 40, "Go on " * 30, "And then? " * 20, "/save four"]
    first = [json.loads(line) for line in piped(lines, "-n", "10", "--json")[0].splitlines()]
    _, undone, answer = (json.loads(line) for line in piped(["/load four", "/undo", "Why?"], "-n", "10", "--json")[0].splitlines())
    assert undone == {"command": "/undo", "messages": 4}
    assert answer["cached_tokens"] > first[1]["prompt_tokens"], (answer, first)


class Terminal:
    """The program on a separate terminal."""

    def __init__(self, *options, model=MODEL):
        self.text = b""
        child, self.fd = pty.fork()
        if child == 0:
            os.execv(CARRY, [*COMMAND[:2], model, *COMMAND[3:], *options])
        self.child = child

    def until(self, pattern, start=0):
        """Reads until the pattern is in the text after `start`; returns where it ends."""
        deadline = time.monotonic() + PATIENCE
        while True:
            found = re.search(pattern, self.text[start:], re.DOTALL)
            if found:
                return start + found.end()
            assert time.monotonic() < deadline, self.text[-400:]
            if select.select([self.fd], [], [], 1)[0]:
                try:
                    more = os.read(self.fd, 65536)
                except OSError:  # the program has ended
                    more = b""
                assert more, self.text[-400:]
                self.text += more

    def type(self, text):
        os.write(self.fd, text if isinstance(text, bytes) else text.encode())

    def end(self):
        while True:
            try:
                if not os.read(self.fd, 65536):
                    break
            except OSError:
                break
        return os.waitstatus_to_exitcode(os.waitpid(self.child, 0)[1])


def a_terminal_has_editing_history_and_ctrl_c():
    t = Terminal("-n", "8")
    at = t.until(rb"> ")
    t.type("Hxllo\x1b[D\x1b[D\x1b[D\x1b[D\x1b[3~e\x05!\x17Hi there\x7f\x7f\x7f\r")  # the line becomes "Hi th"
    at = t.until(rb"Hi th.*tokens/s", at)
    at = t.until(rb"> ", at)
    t.type("/save typed\r")
    at = t.until(rb"saved: typed", at)
    assert json.load(open("typed", encoding="utf-8"))[0]["content"] == "Hi th"
    t.type("\x1b[A\x1b[A")  # two lines back in the history
    at = t.until(rb"Hi th", at)
    t.type("\x03")  # clears the line, and the program goes on
    at = t.until(rb"\n.*> ", at)
    t.type("/quit\r")
    assert t.end() == 0
    t = Terminal()
    t.until(rb"> ")
    t.type("\x04")
    assert t.end() == 0


def ctrl_c_stops_the_answer_alone():
    t = Terminal("--context", "100000000", "-n", "90000000", model=ENDLESS)
    at = t.until(rb"> ")
    t.type("Hello\r")
    at = t.until(rb"Hello[^\n]*\n.+", at)
    os.kill(t.child, signal.SIGINT)
    at = t.until(rb"tokens/s", at)
    at = t.until(rb"> ", at)
    t.type("/quit\r")
    assert t.end() == 0


if __name__ == "__main__":
    for case in (lines_of_a_pipe_are_messages_and_commands, json_has_a_line_for_each_line,
                 undo_after_load_goes_on_from_a_saved_state, a_terminal_has_editing_history_and_ctrl_c,
                 ctrl_c_stops_the_answer_alone):  # fmt: skip
        case()
        print(f"ok: {case.__name__}")
