#!/usr/bin/env python3
"""Renders templates with Jinja2 set up as transformers does, for test_tokenizer_template.

    pip install jinja2==3.1.6
    tests/make_templates.py            writes tests/golden/template/cases.json and chats.json
    tests/make_templates.py FILE...    renders these templates with the conversations below, to standard output

The sources are in template_cases.py (a feature each) and template_chats.py (templates in the style of model families).
"""
import datetime
import json
import os
import sys

import jinja2
import jinja2.ext
import jinja2.sandbox

NOW = "2026-01-15T12:34:56"
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)


class Generation(jinja2.ext.Extension):
    """{% generation %}: the body as it is, through a call block as in transformers."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_same"), [], [], body).set_lineno(line)

    def _same(self, caller):
        return caller()


class Namespace(jinja2.utils.Namespace):
    def __init__(*args, **kwargs):
        self, args = args[0], args[1:]
        attributes = dict(*args, **kwargs)
        for name in attributes:
            Namespace._check(name)
        jinja2.utils.Namespace.__init__(self, attributes)

    def __setitem__(self, name, value):
        Namespace._check(name)
        jinja2.utils.Namespace.__setitem__(self, name, value)

    @staticmethod
    def _check(name):
        if isinstance(name, str) and name.startswith("_"):
            raise jinja2.exceptions.SecurityError(name)


def fail(message):
    raise jinja2.exceptions.TemplateError(message)


def environment():
    made = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    made.filters["tojson"] = lambda value, ensure_ascii=False, indent=None, separators=None, sort_keys=False: json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    made.globals["raise_exception"] = fail
    made.globals["strftime_now"] = datetime.datetime.fromisoformat(NOW).strftime
    made.globals["dict"] = lambda *args, **kwargs: dict(*args, **kwargs)
    made.globals["namespace"] = Namespace
    return made


def render(template, variables):
    case = {"now": NOW, "template": template, "input": variables}
    try:
        case["expected"] = environment().from_string(template).render(**json.loads(json.dumps(variables)))
        case["expected"].encode("utf-8")
    except Exception as error:  # every failure is a result
        case.pop("expected", None)
        case["error"] = str(error)
        case["error_type"] = type(error).__name__
    return case


def write(name, cases):
    path = os.path.join(HERE, "golden", "template", name)
    with open(path, "w", encoding="utf-8") as file:
        file.write("[\n" + ",\n".join(json.dumps(case, ensure_ascii=False) for case in cases) + "\n]\n")
    failed = sum("error" in case for case in cases)
    print(f"{path}: {len(cases)} cases, {failed} of them fail as they should", file=sys.stderr)


def main(paths):
    import template_chats

    if paths:
        cases = []
        for path in paths:
            with open(path, encoding="utf-8") as file:
                source = file.read()
            for name, variables in template_chats.conversations():
                cases.append({"name": f"{os.path.basename(path)} {name}", **render(source, variables)})
        print(json.dumps(cases))
        return
    import template_cases

    write("cases.json", [render(source, template_cases.INPUT) for source in template_cases.CASES])
    chats = []
    for number, (family, source) in enumerate(template_chats.TEMPLATES.items()):
        # Every fourth case, different ones for each family, to keep the file small.
        for name, variables in list(template_chats.conversations())[number % 4::4]:
            chats.append({"name": f"{family}: {name}", **render(source, variables)})
    write("chats.json", chats)


main(sys.argv[1:])
