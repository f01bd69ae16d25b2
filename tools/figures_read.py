"""Reads figures: those that a page of Markdown states, and those that a stored run contains. tools/figures compares them."""
import collections
import json
import math
import re

UNITS = {}  # name: (dimension, factor)
for dimension, factors in {"time": {"ns": 1e-9, "µs": 1e-6, "us": 1e-6, "ms": 1e-3, "s": 1, "min": 60},
                           "bytes": {"bytes": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30},
                           "bandwidth": {"B/s": 1, "MB/s": 1e6, "GB/s": 1e9, "TB/s": 1e12},
                           "flops": {"FLOP/s": 1, "GFLOP/s": 1e9, "TFLOP/s": 1e12, "TF": 1e12},
                           "tokens": {"tokens/s": 1, "tokens a second": 1, "k tokens/s": 1e3, "M tokens/s": 1e6},
                           "frames": {"frames/s": 1, "frames a second": 1}, "share": {"%": 0.01, "times": 1}}.items():
    UNITS.update((name, (dimension, factor)) for name, factor in factors.items())
SHORT = {"k": "k tokens/s", "M": "M tokens/s", "us": "µs"}
# names of numbers in JSON
KEYS = [(r"tokens_per_s$", "tokens/s"), (r"frames_per_s$|^fps$", "frames/s"), (r"gflops$", "GFLOP/s"), (r"gbytes_s$", "GB/s"),
        (r"(_s|_seconds|^seconds)$|^(own|clean|denoise|decode|recompute|slower_stage|cost)$", "s"), (r"_ms$|^ms$", "ms"), (r"_us$", "µs"),
        (r"_kb$|_kB$", "kB"), (r"_MB$", "MB"), (r"_MiB$", "MiB"), (r"bytes$|^resident|^workspace$|^memory$", "bytes"),
        (r"^(share|busy|spread|value|overlap|mfu|exposed|use|score)$", "times")]
COUNT = "count"  # unit of a number in JSON whose name is not listed below: it is not a figure with a unit
UNIT = "|".join(sorted(map(re.escape, UNITS), key=len, reverse=True))
TOKEN = re.compile(r"(?<![\w.,:²³#/])[-−+]?((?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:e[-+]?\d+)?)(?![\w]|[.,:]\d)\s?(" + UNIT + r"|k|M)?(?![\w/])")
LIST_OF = re.compile(r"(\s*(,|and|to|or|/|;|against|instead of|→)\s*|\s*[\d.,]+\s*)+")  # between numbers that share a unit
GOAL = re.compile(r"(asked|goal|bound|aims?|at most|at least|limit|deadline|allowed|under|within|less than|below|above|about|tolerance|first|over)"
                  r"\W{0,3}(?:of |is |was )?$", re.I)  # before a number
SIZE = re.compile(r"\s*(x|×|·|²|³|(tokens?|sequences?|clients?|steps?|heads?|ranks?|threads?|cores?|GPUs?|layers?|words|rows|keys)\b)")  # behind it
# headers of columns without measurements, of leading columns with sizes, of columns without a unit
NOT_MEASURED = re.compile(r"asked|goal|bound|limit|tolerance|predicted|published|commit|question|page|command|path|test$|files|lines|machine|"
                          r"criterion|^which$|products$|calls|^shapes$", re.I)
SIZES = re.compile(r"heads|^tokens$|^tokens,|^batch|^K, V|^n$|^T$", re.I)
PLAIN = re.compile(r"overlap|ratio|error|score|times ours|over f32", re.I)
MORE = r"(?:(?:,| and| to) \d[\d,.]*)*"
NO_FIGURES = re.compile("|".join([
    r"`[^`]*`", r"\]\([^)]*\)", r"!\[[^\]]*", r"\b20\d\d-\d\d-\d\d\b", r"\b\d{1,2}" + MORE + r" (?:November|October)(?: \d{4})?",
    r"\b(?=[0-9a-f]*[a-f])(?=[0-9a-f]*\d)[0-9a-f]{7,10}\b", r"\b\d+\.\d+\.\d+\b",  # commits, versions
    r"\b(?:PyTorch|CUDA|Triton|Python|gcc|driver|transformers|cuBLASLt|qemu|MPI|Qwen|Wan) \d+(?:\.\d+)*(?![\d.]*\s?(?:" + UNIT + r")\b)",
    r"\b\w+ = [\d,.]+" + MORE, r"\b(?:[Ss]eed|[Ss]teps?|[Ee]xit|token|turns?|[Ee]xperiments?) \d+" + MORE,
    r"\b[\d.]+ M parameters", r"\b[A-Za-z][\w-]*\d[\w.]*", r"\b\d+(?:\.\d+)?[BMk]\b(?! tokens)"]))


class Figure:
    def __init__(self, page, line, place, text, unit, runs, is_prose=False):
        self.is_prose = is_prose
        self.page, self.line, self.place, self.text, self.unit, self.runs = page, line, place, text, unit, runs
        digits = text.replace(",", "").replace("−", "-")
        self.value = abs(float(digits))
        mantissa, _, power = digits.partition("e")
        whole, _, fraction = mantissa.partition(".")
        if fraction or power:
            self.within = 0.5 * 10.0 ** (int(power or 0) - len(fraction))
        else:
            zeros = len(whole) - len(whole.rstrip("0"))
            self.within = max(0.5, min(0.5 * 10.0**zeros, 0.01 * self.value))
        self.source = None

    def name(self):
        return f"{self.text} {self.unit}" if self.unit else self.text

    def distance(self, value, unit):
        """How far a stored value of `unit` is from this figure; infinite if it does not round to it."""
        if self.unit and (unit == COUNT or (unit is None and self.is_prose)):
            return math.inf
        mine, theirs = UNITS.get(self.unit), UNITS.get(unit)
        if mine and theirs:
            factors = [theirs[1] / mine[1]] if mine[0] == theirs[0] else []
        elif theirs and theirs[0] == "time":
            factors = [theirs[1], theirs[1] * 1e3, theirs[1] * 1e6]
        elif theirs and theirs[0] in ("bytes", "share"):
            factors = [1, theirs[1] * 1e-6, theirs[1] * 1e-9] if theirs[0] == "bytes" else [theirs[1], 100 * theirs[1]]
        else:
            factors = [1, 1e-3] if theirs else [1]
        away = min((abs(abs(value) * factor - self.value) for factor in factors), default=math.inf)
        return away if away <= self.within * 1.001 else math.inf


class Run:
    """The numbers of a stored run with their units and where each one is."""

    def __init__(self, path):
        self.numbers = []  # value, unit, where
        with open(path, encoding="utf-8") as file:
            text = file.read()
        if path.endswith(".json"):
            try:
                self.add("", json.loads(text), "")
            except ValueError:
                for number, line in enumerate(text.split("\n"), 1):
                    if line.strip():
                        self.add("", json.loads(line), f"line {number} ")
        else:
            for number, line in enumerate(text.split("\n"), 1):
                self.read(line.replace(",", " ") if path.endswith(".csv") else line, f"line {number}")

    def read(self, text, where):
        for found in TOKEN.finditer(text):
            self.numbers.append((float(found.group(1).replace(",", "")), SHORT.get(found.group(2), found.group(2)), where))

    def add(self, key, value, where):
        if isinstance(value, dict):
            if value.get("median_s"):  # a result: the rates that `carry runs show` prints
                for count, units in (("tokens", ("tokens/s", "frames/s")), ("flops", ("FLOP/s",)), ("bytes", ("B/s",))):
                    for unit in units if value.get(count) else ():
                        self.numbers.append((value[count] / value["median_s"], unit, f"{where}.{count} / median_s"))
            if "time(" in str(value.get("criterion")) and value.get("value"):  # a criterion may be a time or a ratio of times
                self.numbers.append((value["value"], "s", f"{where}.value"))
            for name, entry in value.items():
                if name not in ("command", "spec", "problem", "machine", "started", "ended", "folder", "about", "content", "row", "device") and not (
                        name == "name" and isinstance(entry, str)):
                    self.add(str(value["name"]) if name == "value" and "name" in value else name, entry, f"{where}.{name}".lstrip("."))
        elif isinstance(value, list):
            numbers = sorted(x for x in value if isinstance(x, (int, float)))
            if len(numbers) > 8:  # samples: a page states their summary, not one of them
                for name, entry in (("least", numbers[0]), ("largest", numbers[-1]), ("mean", sum(numbers) / len(numbers)),
                                    ("median", numbers[len(numbers) // 2])):
                    self.add(key, entry, f"{name} of {where}")
            else:
                for index, entry in enumerate(value):
                    self.add(key, entry, f"{where}[{index}]")
        elif isinstance(value, str):
            self.read(value, where)
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            self.numbers.append((float(value), next((unit for pattern, unit in KEYS if re.search(pattern, key)), COUNT), where))

    def find(self, figure):
        """The place of the number that is nearest to the figure and rounds to it, or None."""
        best = min(((figure.distance(value, unit), where) for value, unit, where in self.numbers), default=(math.inf, None))
        return best[1] if best[0] < math.inf else None


def cleaned(text):
    """The text with spaces for code, targets of links, dates, commits, versions and sizes."""
    return NO_FIGURES.sub(lambda found: " " * len(found.group(0)), text).replace("*", " ")


def numbers_of(text, with_all, unit):
    """Numbers of a text with their units: those that have a unit, or all of a table's cell."""
    found = list(TOKEN.finditer(text))
    for index, token in enumerate(found):
        own = token.group(2)
        for before, later in zip(found[index:], found[index + 1:]):  # "1.2, 3.4 and 5.6 ms"
            if own or not LIST_OF.fullmatch(text[before.end():later.start()]):
                break
            own = later.group(2)
        number = token.group(1)
        if own is None and (not with_all or SIZE.match(text[token.end():]) or (number.isdigit() and int(number) < 20 and not unit)):
            continue
        if not GOAL.search(text[:token.start()]):
            yield number, SHORT.get(own, own) or unit


def unit_of(text):
    found = re.search(r"(?:^|[ ,(])(" + UNIT + r")(?:$|[ ,:;)])", text)
    return found.group(1) if found else None


def unit_at_end(text):
    """The unit that a row's label or a sentence above a table ends with: "resident memory, MB", "one sequence, µs;"."""
    found = re.findall(r"(?:, |^|: )(" + UNIT + r")(?: a chunk| measured)?(?:[.:;)]|$| \()", text)
    return found[-1] if found else None


class Reader:
    """Reads the figures of a page in order, with the runs that are named for their section."""

    def __init__(self, page):
        self.page, self.figures = page, []
        self.heading, self.header, self.paragraph, self.start, self.caption = "", None, [], 0, ""
        with open(page, encoding="utf-8") as file:
            lines = file.read().split("\n")
        self.runs, heading = collections.defaultdict(set), ""
        for line in lines:  # first: a run may be named below its table
            heading = line if line.startswith("## ") else heading
            self.runs[heading].update(re.findall(r"runs/([\w.-]+\.(?:json|csv|txt))", line))
        is_code = False
        for number, line in enumerate(lines, 1):
            is_fence = line.lstrip().startswith("```")
            is_code ^= is_fence
            if is_fence or not (is_code or line.startswith("    ")):
                self.line(number, line)
        self.end_paragraph()

    def line(self, number, line):
        if line.startswith("|"):
            self.end_paragraph()
            self.row(number, line)
            return
        self.header = None
        if line.startswith(("#", "```", "- ")) or not line.strip():
            self.end_paragraph()
        if line.startswith("#"):
            self.heading, self.caption = line if line.startswith("## ") else self.heading, ""
        elif not line.startswith("```") and line.strip():
            self.start = self.start if self.paragraph else number
            self.paragraph.append(line.strip())

    def add(self, line, place, numbers, is_prose=False):
        runs = self.runs[""] | self.runs[self.heading]
        self.figures += [Figure(self.page, line, " ".join(place.split()), number, unit, runs, is_prose) for number, unit in numbers]

    def end_paragraph(self):
        self.caption = " ".join(self.paragraph) or self.caption
        for sentence in re.split(r"(?<=[.:;]) (?=[A-Z(])", " ".join(self.paragraph)):
            if not re.search(r"\bpublished\b|\b[Aa]ssumed\b|^Asked|[Pp]redicted|^Question", sentence):
                self.add(self.start, sentence.replace("`", "")[:60], numbers_of(cleaned(sentence), False, None), True)
        self.paragraph = []

    def row(self, number, line):
        cells = re.sub(r"`[^`]*`", lambda found: found.group(0).replace("|", " "), line.strip()).strip("|").split("|")
        if self.header is None:
            self.header = cells
        elif set(line) <= set("|- :") or re.match(r" *(tolerance|floor|asked|goal)", cells[0]):
            return
        for column, (cell, name) in list(enumerate(zip(cells, self.header)))[1:] if cells is not self.header else []:
            if not (NOT_MEASURED.search(name) or (column < 3 and SIZES.search(name.strip())) or re.search(r"\bpublished\b|\bassumed\b", cell)):
                text = cleaned(cell)
                unit = None if PLAIN.search(name) else unit_of(name) or unit_at_end(cleaned(cells[0]).strip()) or unit_at_end(self.caption)
                with_all = len(re.findall(r"[A-Za-z]{3,}", text)) <= 6  # not a sentence
                self.add(number, f"{cells[0].replace('`', '')[:50]} / {name.strip()[:30]}", numbers_of(text, with_all, unit))


def is_computed(figure, others):
    if figure.unit not in ("times", "%") and not PLAIN.search(figure.place):
        return False
    for a in others:
        for b in others:
            if a is not b and b.value and (a.unit == b.unit or None in (a.unit, b.unit)):
                ratio = a.value / b.value
                wide = ratio * (a.within / a.value + b.within / b.value) if a.value else 0  # both are rounded
                scale = 100 if figure.unit == "%" else 1
                values = [100 * ratio, 100 * abs(1 - ratio)] if figure.unit == "%" else [ratio]
                if any(abs(value - figure.value) <= figure.within + min(wide * scale, figure.within) for value in values):
                    return True
    return False
