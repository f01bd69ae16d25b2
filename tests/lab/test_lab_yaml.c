/* YAML trees: accepted texts, and refusals with line and column. */
#include "lab/yaml.h"
#include "support.h"

static carry_ctx *ctx;

static int open_context(void **state) {
    (void)state;
    ctx = support_ctx(1, "plain", NULL);
    return 0;
}

static int close_context(void **state) {
    (void)state;
    carry_ctx_free(ctx);
    return 0;
}

static carry_status parse(carry_yaml **root, const char *text) {
    return carry_yaml_parse(ctx, root, text, strlen(text), "file.yaml");
}

static void refuse(const char *words, const char *text) {
    carry_yaml *root = (carry_yaml *)&ctx;
    assert_refused(ctx, CARRY_EFORMAT, words, parse(&root, text));
    assert_null(root);
}

static void test_a_tree_has_every_value_with_its_place(void **state) {
    (void)state;
    carry_yaml *root;
    assert_ok(ctx, parse(&root, "name: tree\nlist:\n  - 1.5\n  - [a, b]\ndeep: {x: {y: 'z w'}}\n"));
    assert_int_equal(root->kind, CARRY_YAML_MAPPING);
    assert_int_equal(root->count, 3);
    carry_yaml *list = carry_yaml_get(root, "list");
    assert_int_equal(list->kind, CARRY_YAML_SEQUENCE);
    assert_int_equal(list->count, 2);
    assert_int_equal(list->first->line, 3);
    assert_int_equal(list->first->column, 5);
    double number;
    assert_ok(ctx, carry_yaml_number(ctx, &number, list->first, "file.yaml"));
    assert_true(number == 1.5);
    assert_string_equal(list->first->next->first->next->text, "b");
    const char *text;
    carry_yaml *inner = carry_yaml_get(carry_yaml_get(carry_yaml_get(root, "deep"), "x"), "y");
    assert_ok(ctx, carry_yaml_text(ctx, &text, inner, "file.yaml"));
    assert_string_equal(text, "z w");
    assert_null(carry_yaml_get(root, "absent"));
    assert_null(carry_yaml_get(inner, "x"));
    carry_yaml_free(root);
}

static void test_what_nobody_asked_for_is_named(void **state) {
    (void)state;
    carry_yaml *root;
    assert_ok(ctx, parse(&root, "name: a\nnmae: b\n"));
    (void)carry_yaml_get(root, "name");
    assert_refused(ctx, CARRY_EARGUMENT, "file.yaml:2:7: unknown key 'nmae': expected name",
                   carry_yaml_finish(ctx, root, "file.yaml", "name"));
    (void)carry_yaml_get(root, "nmae");
    assert_ok(ctx, carry_yaml_finish(ctx, root, "file.yaml", "name"));
    carry_yaml_free(root);
}

static void test_scalars_of_the_wrong_sort_are_refused_with_their_place(void **state) {
    (void)state;
    carry_yaml *root;
    double number;
    const char *text;
    assert_ok(ctx, parse(&root, "a: seven\nb: [1]\nc: 1e999\nd: 12x\ne: nan\nf: ''\ng: -2e3\n"));
    for (const char *key = "abcdef"; *key != '\0'; key++) {
        char place[64];
        (void)snprintf(place, sizeof place, "file.yaml:%d:4: '%c' must be a number", (int)(*key - 'a') + 1, *key);
        assert_refused(ctx, CARRY_EARGUMENT, place,
                       carry_yaml_number(ctx, &number, carry_yaml_get(root, (char[]){*key, '\0'}), "file.yaml"));
    }
    assert_ok(ctx, carry_yaml_number(ctx, &number, carry_yaml_get(root, "g"), "file.yaml"));
    assert_true(number == -2000.0);
    assert_refused(ctx, CARRY_EARGUMENT, "file.yaml:2:4: 'b' must be a text",
                   carry_yaml_text(ctx, &text, carry_yaml_get(root, "b"), "file.yaml"));
    carry_yaml_free(root);
}

static void test_broken_text_is_refused_with_line_and_column(void **state) {
    (void)state;
    refuse("file.yaml:3:1: this is not YAML", "a: 1\nb: [1, 2\n");
    refuse("file.yaml:2:3: this is not YAML", "a: 1\n b: 2\n");
    refuse("file.yaml:2:1: this is not YAML", "a: 'open\n");
    refuse("file.yaml:2:4: this is not YAML", "a: b\nc: `d`\n");
    refuse("file.yaml:2:1: this is not YAML", "a: 1\n\tb: 2\n");
    refuse("file.yaml:3:7: this is not YAML", "a: 1\nb: 2\nc: \xc3\xa4\xc3\xb6 \xff\n"); /* bytes that are not UTF-8 */
    refuse("file.yaml:1:1: there is nothing in it", "");
    refuse("file.yaml:1:1: there is nothing in it", "# a remark\n");
}

static void test_what_hostile_files_use_is_refused(void **state) {
    (void)state;
    refuse("file.yaml:2:1: 'a' appears twice", "a: 1\na: 2\n");
    refuse("file.yaml:1:4: anchors and tags", "a: &x 1\n");
    refuse("file.yaml:1:4: anchors and tags", "a: &x [1]\n");
    refuse("file.yaml:1:4: anchors and tags", "a: !!python/name:os 1\n");
    refuse("file.yaml:1:4: anchors and tags", "a: !!set [1]\n");
    refuse("file.yaml:1:4: anchors and tags", "a: !x {b: 1}\n");
    refuse("file.yaml:1:4: aliases", "a: *x\n");
    refuse("file.yaml:2:1: a second document", "a: 1\n---\nb: 2\n");
    refuse("file.yaml:1:3: a key must be a plain word", "? [a, b]\n: 1\n");
    refuse("file.yaml:1:1: a key has a zero byte", "\"a\\0b\": 1\n");
    refuse("file.yaml:1:4: a value has a zero byte", "a: \"b\\0c\"\n");
    refuse("'?[31mred' appears twice", "\"\\e[31mred\": 1\n\"\\e[31mred\": 2\n"); /* no colours for a terminal */
}

static void test_depth_nodes_keys_and_bytes_are_bounded(void **state) {
    (void)state;
    carry_yaml *root;
    size_t room = (size_t)3 << 20;
    char *text = malloc(room);
    assert_non_null(text);
    for (int levels = 63; levels <= 66; levels++) {
        memset(text, '[', (size_t)levels);
        memset(text + levels, ']', (size_t)levels);
        text[2 * levels] = '\0';
        if (levels <= 64) {
            assert_ok(ctx, parse(&root, text));
            carry_yaml_free(root);
        } else {
            refuse("file.yaml:1:65: nested too deeply (64 levels at most)", text);
        }
    }
    memset(text, '[', 100000); /* never closed */
    text[100000] = '\0';
    refuse("nested too deeply", text);
    size_t length = 0;
    for (int i = 0; i < 100001; i++) {
        length += (size_t)sprintf(text + length, "- a\n");
    }
    refuse("too many nodes (100000 at most)", text);
    length = 0;
    for (int i = 0; i < 60000; i++) {
        length += (size_t)sprintf(text + length, "k%d: 1\n", i);
    }
    refuse("file.yaml:4097:1: too many keys in one mapping (4096 at most)", text);
    memset(text, ' ', room);
    assert_refused(ctx, CARRY_ESIZE, "more than the 1 MiB", carry_yaml_parse(ctx, &root, text, room, "file.yaml"));
    free(text);
}

/* The file cut at every byte, and every byte replaced by some special ones, gives a tree or an error message, and
   nothing else happens. */
static void test_truncated_and_damaged_at_every_byte(void **state) {
    (void)state;
    static const char whole[] =
        "name: \"t\\u00e4x\"\nlist: [1, {a: b}, 'c']\nfolded: >\n  one\n  two\n\ndeep:\n  - x: |\n"
        "      y\n    z: 3\n";
    static const char with[] = "[]{}:,'\"&*!|>-?\t\n#%@\xff\x01";
    carry_yaml *root;
    for (size_t length = 0; length < sizeof whole; length++) {
        char *exact = malloc(length + 1); /* a separate block, so that a sanitizer sees reads beyond it */
        assert_non_null(exact);
        memcpy(exact, whole, length);
        if (carry_yaml_parse(ctx, &root, exact, length, "cut.yaml") == CARRY_OK) {
            carry_yaml_free(root);
        } else {
            assert_null(root);
            assert_true(strncmp(carry_ctx_error(ctx), "cut.yaml:", 9) == 0);
        }
        for (size_t i = 0; length == sizeof whole - 1 && i < length * (sizeof with - 1); i++) {
            char kept = exact[i / (sizeof with - 1)];
            exact[i / (sizeof with - 1)] = with[i % (sizeof with - 1)];
            if (carry_yaml_parse(ctx, &root, exact, length, "cut.yaml") == CARRY_OK) {
                carry_yaml_free(root);
            }
            exact[i / (sizeof with - 1)] = kept;
        }
        free(exact);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_tree_has_every_value_with_its_place),
        cmocka_unit_test(test_what_nobody_asked_for_is_named),
        cmocka_unit_test(test_scalars_of_the_wrong_sort_are_refused_with_their_place),
        cmocka_unit_test(test_broken_text_is_refused_with_line_and_column),
        cmocka_unit_test(test_what_hostile_files_use_is_refused),
        cmocka_unit_test(test_depth_nodes_keys_and_bytes_are_bounded),
        cmocka_unit_test(test_truncated_and_damaged_at_every_byte),
    };
    return cmocka_run_group_tests(tests, open_context, close_context);
}
