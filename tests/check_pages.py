#!/usr/bin/env python3
"""Checks the commands that the pages name: check_pages.py CARRY PROJECT [PAGE...]

Pages are README.md, HACKING.md, docs/*.md and docs/results/*.md; commands are the lines of their sh blocks and code in the
text. Of each `carry` command the verb must exist, its options must be in the help text of the verb, and its problems must
be accepted by `carry plan`. Scripts, tests, experiments, presets and targets of make must exist. Commands of blocks
that need no model, GPU, network or second terminal are run in a folder like a clone; RUN lists their beginnings.
"""
import functools
import glob
import os
import re
import shlex
import subprocess
import sys
import tempfile

RUN = ["carry list", "carry plan", "carry cards", "carry runs list", "carry runs show", "carry runs export", "carry runs import",
       "carry runs gc", "carry check delta", "carry check scan", "carry bench --unchecked cluster", "carry tokenizer train"]
FAMILIES = "scan delta matmul allscan attention block allreduce allgather reducescatter broadcast sendrecv cluster generate streamcluster train stream"
PROBLEM = re.compile(r"^(" + "|".join(FAMILIES.split()) + r"):[a-z0-9:=._+-]+$")


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def commands(text):
    """(line, command, whether it is a line of a block) of each command of a page."""
    block, number, joined = None, 0, ""
    for number, line in enumerate(text.split("\n"), 1):
        if line.lstrip().startswith("```"):
            block = line.strip()[3:] if block is None else None
            joined = ""
        elif block == "sh":
            joined += line.strip()
            if joined.endswith("\\"):
                joined = joined[:-1] + " "
                continue
            yield number, joined, True
            joined = ""
    outside = re.sub(r"^```.*?^```$", lambda found: re.sub(r"[^\n]", " ", found.group(0)), text, flags=re.M | re.S)
    for found in re.finditer(r"`([^`]+)`", outside):
        yield outside[:found.start()].count("\n") + 1, " ".join(found.group(1).split()), False


def words_of(command):
    """The simple commands of a line; none where it is not shell that can be split."""
    if re.search(r"<<|\$\(|\.\.\.|[{}\[\]…]", command):
        command = re.sub(r"\s*(\.\.\.|…).*|\[[^\]]*\]|\{[^}]*\}", "", command)
    try:
        words = shlex.split(command, comments=True)
    except ValueError:
        return []
    found = [[]]
    for word in words:
        if word in ("|", "&&", ";", "||", "&"):
            found.append([])
        else:
            found[-1].append(word.rstrip(";"))
    return [words for words in found if words]


class Checker:
    def __init__(self, carry, project):
        self.carry, self.project, self.failures, self.checked, self.ran = carry, project, 0, 0, 0
        self.verbs = {line.split("  ")[0].strip() for line in self.output("list", "verbs").split("\n") if line.strip()}
        self.tests = {os.path.basename(path).rpartition(".")[0] for path in glob.glob(project + "/tests/**/*.*", recursive=True)}

    def output(self, *words):
        return subprocess.run([self.carry, *words], capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False).stdout

    @functools.lru_cache(maxsize=None)
    def options(self, verb):
        return set(re.findall(r"--[a-z][a-z0-9-]*", self.output(*verb.split(), "--help") + self.output("--help")))

    @functools.lru_cache(maxsize=None)
    def plans(self, problem):
        answer = subprocess.run([self.carry, "plan", problem], capture_output=True, text=True, check=False,
                                env=dict(os.environ, CARRY_WISDOM="none", CARRY_CEILINGS="rough"))
        return None if answer.returncode == 0 else answer.stderr.strip()

    def fault(self, words):
        """What is wrong with a simple command, or None."""
        while words and re.fullmatch(r"[A-Za-z_]+=.*", words[0]):
            words = words[1:]
        if words[:1] == ["mpirun"] or words[:1] == ["srun"]:
            words = words[next((i for i, word in enumerate(words) if word.endswith("carry")), len(words)):]
        if not words:
            return None
        name = words[0]
        if os.path.basename(name) == "carry":
            return self.carry_fault(words[1:])
        if name == "make" and len(words) > 1 and re.fullmatch(r"[a-z-]+", words[1]):
            return None if re.search(rf"^{words[1]}\b.*:", read(self.project + "/Makefile"), re.M) else f"make has no target {words[1]}"
        if re.match(r"(\./)?(tools|tests|examples|experiments)/[\w./-]+$|\./(demo|test)\.sh$", name) or (name in ("sh", "python3") and len(words) > 1):
            path = name if "/" in name else words[1]
            is_named = re.fullmatch(r"[a-z0-9_./-]+", path) and "/" in path and not path.startswith(("/", "build/"))  # NAME is a placeholder
            if is_named and not os.path.exists(os.path.join(self.project, path)) and os.path.basename(path) not in self.tests:
                return f"{path} does not exist"
        found = re.fullmatch(r"build/[\w-]+/tests/([\w]+)", name)
        return f"there is no program {found.group(1)}" if found and found.group(1) not in self.tests else None

    def carry_fault(self, words):
        while words and words[0].startswith("--"):
            words = words[2 if words[0] in ("--ranks", "--processes", "--threads", "--kernels", "--seed", "--wisdom") else 1:]
        if not words or not re.fullmatch(r"[a-z]+", words[0]) or words[0] in ("help",):
            return None
        verb = words[0]
        if verb not in self.verbs:
            return None if verb in ("job", "pull", "serve", "merge") else f"there is no verb {verb}"
        known = self.options(verb)
        if verb == "profile":
            inner = next((word for word in words[1:] if word in self.verbs), None)
            known = known | self.options(inner) if inner else known
        if " ".join(words[:2]) in self.verbs:
            known = known | self.options(" ".join(words[:2]))
        for word in words[1:words.index("--") if "--" in words else None]:
            option = word.partition("=")[0]
            if re.fullmatch(r"--[a-z][a-z0-9-]*", option) and option not in known:
                return f"carry {verb} has no option {option}"
            if re.match(r"experiments/[\w./-]+\.yaml$", word) and not os.path.exists(os.path.join(self.project, word)):
                return f"{word} does not exist"
            if PROBLEM.match(word) and "device=" not in word:
                answer = self.plans(word)
                if answer and "in this build" not in answer:
                    return answer
        return None

    def check(self, page, folder):
        text = read(page)
        relative = os.path.relpath(page, self.project)
        for line, command, is_block in commands(text):
            for words in words_of(command):
                self.checked += bool(re.match(r"(\S*/)?carry$|(\./)?(tools|tests|build)/|\./\w+\.sh|make$|sh$|python3$", words[0])) and len(words) > 1
                fault = self.fault(words)
                if fault:
                    self.report(relative, line, fault)
            if is_block and folder and command.startswith(tuple(RUN)) and "device=cuda" not in command and "..." not in command:
                self.ran += 1
                answer = subprocess.run(["sh", "-eu", "-c", command], cwd=folder, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False,
                                        env=dict(os.environ, PATH=folder + "/bin:" + os.environ["PATH"], CARRY_WISDOM="none", CARRY_CEILINGS="rough"))
                if answer.returncode != 0:
                    self.report(relative, line, f"'{command}' ends with {answer.returncode}: {(answer.stderr or answer.stdout).strip()[-200:]}")

    def report(self, page, line, text):
        print(f"FAILED: {page}:{line}: {text}")
        self.failures += 1


def main():
    carry, project = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
    pages = [os.path.abspath(page) for page in sys.argv[3:]] or [
        project + "/README.md", project + "/HACKING.md", *sorted(glob.glob(project + "/docs/*.md")), *sorted(glob.glob(project + "/docs/results/*.md"))]
    checker = Checker(carry, project)
    with tempfile.TemporaryDirectory() as folder:
        os.mkdir(folder + "/bin")
        os.symlink(carry, folder + "/bin/carry")
        for name in ("README.md", "HACKING.md", "experiments", "models", "library", "docs", "examples"):
            os.symlink(os.path.join(project, name), os.path.join(folder, name))
        with open(folder + "/book.txt", "w", encoding="utf-8") as file:
            file.write(read(project + "/README.md") + read(project + "/docs/streaming.md"))
        if any("carry runs show" in read(page) for page in pages):  # there must be a run
            subprocess.run([carry, "run", "experiments/stream-cluster.yaml", "-q"], cwd=folder, capture_output=True, check=False)
        for page in pages:
            checker.check(page, folder)
    print(f"{checker.checked} commands, {checker.ran} of them run, {checker.failures} failures")
    sys.exit(1 if checker.failures else 0)


if __name__ == "__main__":
    main()
