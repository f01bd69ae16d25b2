/* Any bytes as YAML, and as a page of the library: refused with an error message, or a tree whose counts, keys and
   positions are consistent; a page that is read can be written as JSON. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "lab/cards/cards.h"
#include "lab/yaml.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void silent(void *user, carry_log_level level, const char *line) {
    (void)user;
    (void)level;
    (void)line;
}

static carry_ctx *context(void) {
    static carry_ctx *ctx;
    if (ctx == NULL && carry_ctx_new(&ctx, &(carry_ctx_options){CARRY_INIT(carry_ctx_options), .threads = 1,
                                                                .log = silent}) != CARRY_OK) {
        abort();
    }
    return ctx;
}

static void expect(int holds) {
    if (!holds) {
        abort();
    }
}

static void walk(carry_ctx *ctx, carry_yaml *node, int level) {
    int count = 0;
    expect(level <= 64 && node->line >= 1 && node->column >= 1);
    expect((node->text != NULL) == (node->kind == CARRY_YAML_SCALAR));
    for (carry_yaml *child = node->first; child != NULL; child = child->next, count++) {
        expect((child->key != NULL) == (node->kind == CARRY_YAML_MAPPING));
        if (child->key != NULL) {
            expect(carry_yaml_get(node, child->key) == child && child->seen);
        }
        walk(ctx, child, level + 1);
    }
    expect(count == node->count);
    double number;
    const char *text;
    (void)carry_yaml_number(ctx, &number, node, "input");
    expect((carry_yaml_text(ctx, &text, node, "input") == CARRY_OK) == (node->kind == CARRY_YAML_SCALAR));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    carry_ctx *ctx = context();
    const char *text = size > 0 ? (const char *)data : "";
    carry_yaml *root;
    if (carry_yaml_parse(ctx, &root, text, size, "input") == CARRY_OK) {
        walk(ctx, root, 0);
        if (root->kind == CARRY_YAML_MAPPING) {
            expect(carry_yaml_finish(ctx, root, "input", "none") == CARRY_OK); /* walk has asked for every key */
        }
    } else {
        expect(root == NULL && strlen(carry_ctx_error(ctx)) > 0);
    }
    carry_yaml_free(root);
    for (int kind = 0; kind < CARRY_PAGE_KINDS; kind++) {
        carry_page page;
        if (carry_page_parse(ctx, &page, (carry_page_kind)kind, "input.md", text, size) != CARRY_OK) {
            expect(strlen(carry_ctx_error(ctx)) > 0);
            continue;
        }
        char *line = carry_page_json(&page);
        expect(page.id != NULL && line != NULL && strchr(line, '\n') == NULL);
        free(line);
        carry_page_clear(&page);
    }
    return 0;
}
