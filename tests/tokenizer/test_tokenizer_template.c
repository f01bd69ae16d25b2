/* Chat templates render as Jinja2 does in transformers' environment. tests/golden/template has templates, inputs and
   Jinja2's outputs (tests/make_templates.py); CARRY_TEMPLATES names another file of the same form. */
#include <dirent.h>
#include <time.h>

#include "core/file.h"
#include "core/json.h"
#include "support.h"
#include "tokenizer/template/template.h"

#define GOLDEN CARRY_SOURCE "/tests/golden/template"

static carry_ctx *ctx;

static struct tm time_of(const char *text) {
    struct tm now = {.tm_isdst = -1};
    assert_non_null(strptime(text, "%Y-%m-%dT%H:%M:%S", &now));
    now.tm_isdst = 0;
    return now;
}

/* NULL if the output is as expected; else a description of the difference, which the caller frees. */
static char *check_case(const carry_json *one) {
    const carry_json *source = carry_json_find(one, "template"), *expected = carry_json_find(one, "expected");
    const carry_json *input = carry_json_find(one, "input"), *error = carry_json_find(one, "error");
    const char *now_text = carry_json_string(carry_json_find(one, "now"));
    const bool raises = carry_json_is_text(carry_json_find(one, "error_type"), "TemplateError");
    struct tm now = time_of(now_text != NULL ? now_text : "2026-01-15T12:34:56");
    carry_template *parsed;
    char *text = NULL, *raised = NULL, *report = NULL;
    size_t length = 0;
    carry_status status = carry_template_parse(ctx, &parsed, source->as.text.bytes, source->as.text.length, "template");
    if (status == CARRY_OK) {
        carry_template_input from = {.objects = &input, .count = 1, .now = &now, .raised = &raised};
        status = carry_template_render(ctx, parsed, &from, &text, &length);
    }
    bool same = expected != NULL ? status == CARRY_OK && length == expected->as.text.length &&
                                       memcmp(text, expected->as.text.bytes, length) == 0
                                 : status != CARRY_OK;
    if (raises && error != NULL) {
        same = raised != NULL && strcmp(raised, error->as.text.bytes) == 0;
    }
    if (!same) {
        const char *wanted = expected != NULL ? expected->as.text.bytes : error->as.text.bytes;
        const char *found = status == CARRY_OK ? text : carry_ctx_error(ctx);
        size_t at = 0;
        while (status == CARRY_OK && wanted[at] != '\0' && wanted[at] == found[at]) {
            at++;
        }
        const carry_json *name = carry_json_find(one, "name");
        assert_true(asprintf(&report, "%s: %.300s\n  found    %.200s\n  expected %.200s\n",
                             name != NULL ? name->as.text.bytes : "", name != NULL ? "" : source->as.text.bytes,
                             found + at, wanted + at) > 0);
    }
    carry_template_free(parsed);
    free(text);
    free(raised);
    return report;
}

static int64_t check_file(const char *path, int64_t *wrong) {
    carry_json *root;
    int64_t count = 0;
    assert_ok(ctx, carry_json_read(ctx, &root, path, (size_t)64 << 20));
    for (const carry_json *one = carry_json_first(root); one != NULL; one = one->next, count++) {
        char *report = check_case(one);
        if (report != NULL) {
            print_error("%s, case %lld: %s", path, (long long)count, report);
            (*wrong)++;
        }
        free(report);
    }
    carry_json_free(root);
    return count;
}

static void test_templates_render_as_jinja_does(void **state) {
    (void)state;
    int64_t wrong = 0, count = 0;
    const char *other = getenv("CARRY_TEMPLATES");
    if (other != NULL) {
        count = check_file(other, &wrong);
    } else {
        DIR *folder = opendir(GOLDEN);
        assert_non_null(folder);
        for (struct dirent *entry; (entry = readdir(folder)) != NULL;) {
            char path[CARRY_FILE_PATH];
            if (strstr(entry->d_name, ".json") != NULL) {
                assert_ok(ctx, carry_file_in(ctx, path, GOLDEN, entry->d_name));
                count += check_file(path, &wrong);
            }
        }
        (void)closedir(folder);
        assert_true(count >= 324);
    }
    print_message("%lld renderings, %lld differ\n", (long long)count, (long long)wrong);
    assert_int_equal(wrong, 0);
}

static carry_status render(const char *source, carry_template_limits limits) {
    carry_template *parsed;
    char *text;
    size_t length;
    carry_status status = carry_template_parse(ctx, &parsed, source, strlen(source), "template");
    if (status == CARRY_OK) {
        carry_template_input from = {.limits = limits};
        status = carry_template_render(ctx, parsed, &from, &text, &length);
        free(text);
    }
    carry_template_free(parsed);
    return status;
}

static void test_unsupported_features_are_named_with_their_line(void **state) {
    (void)state;
    static const struct {
        const char *source, *message;
    } cases[] = {
        {"a\n{% include 'x' %}", "template, line 2: the tag 'include' is not supported"},
        {"{% block x %}{% endblock %}", "template, line 1: the tag 'block' is not supported"},
        {"\n\n{{ x | urlize }}", "template, line 3: the filter urlize is not supported"},
        {"{{ 99999999999999999999 }}", "template, line 1: an integer of more than 64 bits is not supported"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_int_equal(render(cases[i].source, (carry_template_limits){0}), CARRY_EUNSUPPORTED);
        assert_string_equal(carry_ctx_error(ctx), cases[i].message);
    }
}

static void test_hostile_templates_end(void **state) {
    (void)state;
    static const char *const sources[] = {
        "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ 'x' * 1000000000000 }}",
        "{{ [0] * 100000000 }}",
        "{% set ns = namespace(s='xxxxxxxx') %}{% for i in range(64) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
        "{% set ns = namespace(l=[]) %}{% for i in range(9999) %}{% set ns.l = [ns.l] %}{% endfor %}{{ ns.l }}",
        "{% set ns = namespace(l=[]) %}{% for i in range(9999) %}{% set ns.l = [ns.l] %}{% endfor %}{{ ns.l|tojson }}",
        "{% set ns = namespace(l=[]) %}{% for i in range(9999) %}{% set ns.l = [ns.l] %}{% endfor %}"
        "{% set ns.k = ns.l %}{% set ns.m = [] %}{% for i in range(9999) %}{% set ns.m = [ns.m] %}{% endfor %}"
        "{{ ns.k == ns.m }}",
        "{% for a in range(100000) %}{% for b in range(1000) %}{{ 'xxxxxxxxxxxxxxxx' }}{% endfor %}{% endfor %}",
        "{{ '%99999d' % 1 ~ '{:99999999999}'.format(1) }}",
        "{{ 2 ** 64 }}",
        "{{ 'a'.replace('', 'b' * 100000).replace('', 'c' * 100000) }}",
    };
    for (size_t i = 0; i < sizeof sources / sizeof sources[0]; i++) {
        carry_template_limits limits = {.steps = 3000000, .memory = (size_t)64 << 20, .output = (size_t)8 << 20};
        assert_int_not_equal(render(sources[i], limits), CARRY_OK);
    }
    /* Depth: of brackets, of a chain of operators, of tags. */
    static char deep[200000];
    memset(deep, 0, sizeof deep);
    strcpy(deep, "{{ ");
    memset(deep + 3, '(', 100000);
    assert_int_equal(render(deep, (carry_template_limits){0}), CARRY_EFORMAT);
    char *at = deep + 3;
    for (int i = 0; i < 20000; i++) {
        at = stpcpy(at, "1+");
    }
    (void)stpcpy(at, "1 }}");
    assert_int_equal(render(deep, (carry_template_limits){0}), CARRY_EFORMAT);
    at = deep;
    for (int i = 0; i < 9000; i++) {
        at = stpcpy(at, "{% if 1 %}");
    }
    assert_int_equal(render(deep, (carry_template_limits){0}), CARRY_EFORMAT);
}

static void test_truncated_templates_are_refused_or_render(void **state) {
    (void)state;
    static const char source[] =
        "{%- macro f(a, b='x') -%}{{ a ~ b|upper }}{%- endmacro %}{# c #}{% for i in [1, {'k': 2}] "
        "if i is not none %}{{ f(i[0:1:2], **{'b': \"\\u00e9\"}) }}{% else %}{% raw %}{{{% endraw %}"
        "{% endfor %}{% set ns = namespace(a=1.5e3) %}{% set ns.a = -ns.a if 1 else 2 %}";
    for (size_t length = 0; length < sizeof source; length++) {
        carry_template *parsed;
        char *copy = malloc(length + 1);
        memcpy(copy, source, length);
        carry_status status = carry_template_parse(ctx, &parsed, copy, length, "template");
        assert_true(status == CARRY_OK || strlen(carry_ctx_error(ctx)) > 0);
        carry_template_free(parsed);
        free(copy);
    }
}

int main(void) {
    ctx = support_ctx(1, NULL, NULL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_templates_render_as_jinja_does),
        cmocka_unit_test(test_unsupported_features_are_named_with_their_line),
        cmocka_unit_test(test_hostile_templates_end),
        cmocka_unit_test(test_truncated_templates_are_refused_or_render),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    carry_ctx_free(ctx);
    return failed;
}
