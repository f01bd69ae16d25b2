"""The page in a headless Chromium: frames arrive and change, controls act, a cut and a pause do what they say, a server
that goes away and comes back is noticed, and nothing is written to the console.

    page_test.py [--record FOLDER] [--token TOKEN] -- COMMAND...

COMMAND serves the page; the first line of its output that has "port N" in it tells where. Exit 0, 1 (failed), 77 (skipped).
"""
import argparse
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.parse

try:
    from page_browser import Browser, find
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

# Counts the pixels of the canvas by their strongest colour, without those that are nearly grey.
COLOURS = """(() => {
  const canvas = at("video"), pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
  const count = { red: 0, green: 0, blue: 0 };
  for (let i = 0; i < pixels.length; i += 4) {
    const [r, g, b] = [pixels[i], pixels[i + 1], pixels[i + 2]], most = Math.max(r, g, b);
    if (most - Math.min(r, g, b) < 80) continue;
    count[most === r ? "red" : most === g ? "green" : "blue"]++;
  }
  return count;
})()"""
STATE = f'fetch(withToken("/api/state")).then((answer) => answer.json())'


class Served:
    """The command that serves the page."""

    def __init__(self, command):
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.port = None
        for line in self.process.stdout:
            found = re.search(r"(?:port |:)(\d{2,5})\b", line)
            if found:
                self.port = int(found.group(1))
                threading.Thread(target=self._drain, daemon=True).start()  # or it would stop at a full pipe
                return
        raise AssertionError(f"{command} ended with {self.process.wait()} and told no port")

    def _drain(self):
        for _ in self.process.stdout:
            pass

    def stop(self):
        self.process.send_signal(signal.SIGINT)
        try:
            return self.process.wait(timeout=120)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise AssertionError("the server did not end within 120 s of Ctrl-C") from None


def expect(truth, sentence):
    if not truth:
        raise AssertionError(sentence)


def frames_arrive_and_change(page):
    page.wait("view.number > 3n")
    first, number = page.value('at("video").toDataURL()'), page.value("Number(view.number)")
    page.wait(f"Number(view.number) > {number} + 5")
    expect(page.value('at("video").toDataURL()') != first, "the picture does not change")
    page.wait('at("status").dataset.kind === "live"')
    page.wait('Number(at("fact-fps").textContent) > 0')
    box = page.value("""(() => { const { width, height } = at("video").getBoundingClientRect(), screen = at("screen").getBoundingClientRect();
      return [width - screen.width, height - screen.height]; })()""")
    expect(box == [0, 0], f"the picture is {box} pixels larger than its screen")


def watch_epochs(page):
    """From now on, records the epoch and number of every drawn picture."""
    page.value("""(() => { window.drawn = []; const before = draw;
      draw = (bitmap) => { window.drawn.push([Number(view.epoch), Number(view.number)]); before(bitmap); }; })()""")


def type_prompt(page, text):
    page.value('(() => { const area = document.querySelector("#prompts textarea"); area.focus(); area.select(); })()')
    page.type(text)
    page.press("Enter", "Enter", "\r")


def a_prompt_acts(page):
    type_prompt(page, "blue square")
    page.wait(f'({COLOURS}).blue > 500')
    expect(page.value(f"{STATE}.then((state) => state.controls.prompt[0].text)") == "blue square", "the prompt did not arrive")
    type_prompt(page, 'green "ſquare" \u2603 <b>')
    page.wait(f'({COLOURS}).green > 500')
    got = page.value(f"{STATE}.then((state) => state.controls.prompt[0].text)")
    expect(got == 'green "ſquare" \u2603 <b>', f"the prompt came back as {got}")


def prompts_have_weights(page):
    page.value('at("add").click()')
    page.type("a second one")
    page.value("""(() => { const slider = at("weight-1"); slider.value = "0.5"; slider.dispatchEvent(new Event("input")); })()""")
    expect(page.value('!at("apply").disabled'), "edited prompts cannot be applied")
    page.value('at("apply").click()')
    page.wait(f"{STATE}.then((state) => state.controls.prompt.length === 2 && state.controls.prompt[1].weight === 0.5)")
    page.value('document.querySelectorAll("#prompts li button")[1].click()')
    page.value('at("apply").click()')
    page.wait(f"{STATE}.then((state) => state.controls.prompt.length === 1)")


def fields_act(page):
    for field, low in (("noise", 1.0), ("kv_bias", 0.0), ("transition", 4)):
        page.value(f'(() => {{ const f = at("{field}"); f.value = f.min; f.focus(); }})()')
        page.press("ArrowRight", "ArrowRight")
        page.value(f'at("{field}").dispatchEvent(new Event("input"))')
        page.wait(f'{STATE}.then((state) => state.controls.{field} === Number(at("{field}").value))')
        expect(page.value(f'at("{field}").value') != str(low), f"{field} did not move")
    page.value("""(() => { const seed = at("seed"); seed.focus(); seed.select(); })()""")
    page.type("9007199254740993")  # more than a double holds
    page.press("Enter", "Enter", "\r")
    page.wait('fetch(withToken("/api/state")).then((a) => a.text()).then((t) => t.includes(\'"seed": 9007199254740993,\'))')
    page.wait('at("seed").value === "9007199254740993"')
    page.value("document.querySelector('[data-steps=\"2\"]').click()")
    page.wait(f'{STATE}.then((state) => state.controls.steps.join() === "1000,500")')
    page.wait('at("steps").value === "1000, 500"')


def a_refusal_is_a_sentence(page):
    page.value('(() => { const steps = at("steps"); steps.focus(); steps.select(); })()')
    page.type("5, 9")
    page.press("Enter", "Enter", "\r")
    page.wait('!at("problem").hidden && at("problem").textContent.includes("steps")')
    page.wait('at("steps").value === "1000, 500"')  # what the server has
    page.value('at("problem").querySelector("button").click()')
    expect(page.value('at("problem").hidden'), "the sentence cannot be dismissed")


def a_refused_prompt_stays_to_be_mended(page):
    before = page.value(f"{STATE}.then((state) => state.controls.prompt[0].text)")
    type_prompt(page, "é" * 3000)  # more bytes than a prompt may have
    page.wait('!at("problem").hidden && at("problem").textContent.includes("6000 bytes")')
    for _ in range(2):  # two states later
        page.value("void (window.seen = state)")
        page.wait("state !== window.seen")
    expect(page.value('document.querySelector("#prompts textarea").value.length') == 3000, "what was typed is gone")
    expect(page.value('!at("apply").disabled && !at("revert").hidden'), "it cannot be applied again, or reverted")
    page.value('at("revert").click()')
    expect(page.value('document.querySelector("#prompts textarea").value') == before, "it is not what the server has")
    page.value('at("problem").querySelector("button").click()')


def sliders_show_what_others_set(page):
    page.value("""fetch(withToken("/api/controls"), { method: "POST", body: '{"transition": 100}' })""")
    page.wait('document.querySelector(\'output[for="transition"]\').textContent === "100 chunks"')


def every_figure_and_field_is_explained(page):
    bare = page.value("""[...document.querySelectorAll(".facts div, .field > label, #cut, figcaption")]
      .filter((node) => node.title === "").map((node) => node.textContent)""")
    expect(bare == [], f"nothing says what {bare} are")


def pause_and_cut_act(page):
    page.value("document.activeElement.blur()")
    page.press(" ", "Space", " ")
    page.wait('at("status").dataset.kind === "paused" && at("pause").getAttribute("aria-pressed") === "true"')
    number, until = None, time.monotonic() + 120
    while number != page.value("Number(view.number)"):  # what was made before is shown to its end
        expect(time.monotonic() < until, "frames are shown while it is paused")
        number = page.value("Number(view.number)")
        time.sleep(2.0)
    page.value('at("pause").click()')
    page.wait(f"Number(view.number) > {number}")
    for _ in range(3):
        epoch = page.value("Number(view.epoch)")
        page.press("c", "KeyC", "c")
        page.wait(f"Number(view.epoch) > {epoch}")
    drawn = page.value("window.drawn")
    expect(len(drawn) > 10 and drawn == sorted(drawn), "a frame of before a cut, or an older one, was shown")


def recording_acts(page, folder):
    page.wait('!at("record").disabled')
    page.press("r", "KeyR", "r")
    page.wait("state.recording.on && state.recording.frames > 3")
    page.value('at("record").click()')
    page.wait("!state.recording.on")
    files = [name for name in os.listdir(folder) if name.endswith(".avi")]
    expect(len(files) == 1 and os.path.getsize(os.path.join(folder, files[0])) > 1000, f"recorded: {files}")


def a_server_that_comes_back_is_noticed(page, served, command):
    expect(served.stop() == 0, "the server did not end with 0")
    page.wait('!at("lost").hidden && at("status").dataset.kind === "bad"')
    served = Served(command + ["--port", str(served.port)])
    page.wait('at("lost").hidden && at("status").dataset.kind === "live"', 240)
    page.wait("view.number > 3n")
    return served


def a_wrong_token_is_refused(page, base):
    page.open(f"{base}/?token=wrong")
    expect("token" in page.value("document.body.textContent"), "a wrong token opens the page")


def run(page, served, options):
    base = f"http://127.0.0.1:{served.port}"
    page.open(f"{base}/" + (f"?token={urllib.parse.quote(options.token, safe='')}" if options.token else ""))
    frames_arrive_and_change(page)
    watch_epochs(page)
    if not options.brief:
        a_prompt_acts(page)
    prompts_have_weights(page)
    fields_act(page)
    a_refusal_is_a_sentence(page)
    a_refused_prompt_stays_to_be_mended(page)
    sliders_show_what_others_set(page)
    every_figure_and_field_is_explained(page)
    pause_and_cut_act(page)
    if options.record:
        recording_acts(page, options.record)
    if options.screenshot:
        page.screenshot(options.screenshot)
    expect(page.errors == [], f"errors on the console: {page.errors}")
    if not options.brief:  # from here on the browser itself complains of what we do to it
        served = a_server_that_comes_back_is_noticed(page, served, options.command)
    if options.token:
        a_wrong_token_is_refused(page, base)
    return served


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--record")
    parser.add_argument("--token")
    parser.add_argument("--brief", action="store_true", help="what holds for any stream, whatever it shows")
    parser.add_argument("--screenshot", help="where to keep a picture of the page")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    browser = find()
    if browser is None:
        print("skipped: there is no Chromium here")
        return 77
    served, page = Served(options.command), None
    try:
        page = Browser(browser)
        served = run(page, served, options)
        expect(served.stop() == 0, "the server did not end with 0 after Ctrl-C")
    except AssertionError as failed:
        print(f"FAILED: {failed}")
        if page is not None:
            print(f"console: {page.errors}")
        return 1
    finally:
        if page is not None:
            page.close()
        if served.process.poll() is None:
            served.stop()
    print("ok")
    return 0


if __name__ == "__main__":
    sys.exit(main())
