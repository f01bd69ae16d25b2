/* The reference library: a page reads as written; every rule of check finds a library that breaks it and accepts one
   that keeps it; a page cut off anywhere is refused or read, never a crash. */
#include "support.h"

#include <sys/stat.h>
#include <unistd.h>

#include "core/file.h"
#include "lab/cards/cards.h"

static const char card_a[] = "---\nid: a\ntitle: 'The first: a card'\nsource: A. Author. A Paper. 2001.\ntype: paper\n"
                             "tier: 3\ntopics: [t]\npriority: 1\nwhy: it says why\nclaims:\n"
                             "  - text: a claim of 4.2 things\n    evidence: section 1\nactionables:\n"
                             "  - {text: do it, figure: 17 times}\n  - text: do that\nrelated: [b]\n---\n\nThe body.\n";
static const char card_b[] =
    "---\nid: b\ntitle: The second\nsource: B.\ntype: paper\ntier: 1\ntopics: [t]\n"
    "priority: 2\nwhy: because\nclaims: [{text: another, evidence: table 2}]\nneeds: [a]\n---\n";
static const char topic_t[] = "---\nid: t\ntitle: A topic\ncards:\n  - {id: b, priority: 1}\n"
                              "  - {id: a, priority: 1}\n---\nWhat they say together.\n";
static const char finding_f[] = "---\nid: f\ntitle: A finding\nmeasured: time\nwhere: here\nfigures:\n"
                                "  - {value: 6.2, unit: ms, what: median, source: docs/results/x.md}\n"
                                "  - {value: 4.2, unit: things, what: claimed, source: a}\ncards: [a]\n---\n";
static const char results[] = "| loop | 6.2 ms |\n";

static char root[128];

static void put(carry_ctx *ctx, const char *path, const char *text) {
    char whole[256];
    (void)snprintf(whole, sizeof whole, "%s/%s", root, path);
    assert_ok(ctx, carry_file_replace(ctx, whole, text, strlen(text)));
}

static void drop(const char *path) {
    char whole[256];
    (void)snprintf(whole, sizeof whole, "%s/%s", root, path);
    (void)remove(whole);
}

/* A library that keeps every rule. */
static void put_good(carry_ctx *ctx) {
    put(ctx, "library/cards/a.md", card_a);
    put(ctx, "library/cards/b.md", card_b);
    put(ctx, "library/topics/t.md", topic_t);
    put(ctx, "library/findings/f.md", finding_f);
    put(ctx, "docs/results/x.md", results);
}

static carry_library *open_library(carry_ctx *ctx) {
    char folder[256];
    carry_library *library;
    (void)snprintf(folder, sizeof folder, "%s/library", root);
    assert_ok(ctx, carry_library_open(ctx, &library, folder));
    return library;
}

static int set_up(void **unused) {
    (void)unused;
    (void)snprintf(root, sizeof root, "%s/carry-cards-XXXXXX", getenv("TMPDIR") != NULL ? getenv("TMPDIR") : "/tmp");
    return mkdtemp(root) != NULL ? 0 : -1;
}

static int tear_down(void **unused) {
    static const char *const paths[] = {"library/cards/a.md",
                                        "library/cards/b.md",
                                        "library/cards/c.md",
                                        "library/topics/t.md",
                                        "library/findings/f.md",
                                        "library/cards",
                                        "library/topics",
                                        "library/findings",
                                        "library",
                                        "docs/results/x.md",
                                        "docs/results",
                                        "docs",
                                        ""};
    (void)unused;
    for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++) {
        drop(paths[i]);
    }
    return 0;
}

static void a_page_is_read_as_written(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    carry_page page;
    assert_ok(ctx, carry_page_parse(ctx, &page, CARRY_PAGE_CARD, "cards/a.md", card_a, strlen(card_a)));
    assert_string_equal(page.id, "a");
    assert_string_equal(page.title, "The first: a card");
    assert_true(page.tier == 3 && page.priority == 1);
    assert_int_equal(page.topics.count, 1);
    assert_string_equal(page.topics.item[0].part[CARRY_ITEM_ID], "t");
    assert_int_equal(page.claims.count, 1);
    assert_string_equal(page.claims.item[0].part[CARRY_ITEM_EVIDENCE], "section 1");
    assert_int_equal(page.claims.item[0].line, 11); /* as an editor counts them */
    assert_int_equal(page.actionables.count, 2);
    assert_string_equal(page.actionables.item[0].part[CARRY_ITEM_FIGURE], "17 times");
    assert_null(page.actionables.item[1].part[CARRY_ITEM_FIGURE]);
    assert_string_equal(page.body, "\nThe body.\n");
    char *line = carry_page_json(&page);
    assert_non_null(line);
    assert_non_null(strstr(line, "\"evidence\":\"section 1\""));
    assert_null(strchr(line, '\n'));
    free(line);
    carry_page_clear(&page);
    carry_ctx_free(ctx);
}

/* Every prefix, and every byte replaced by a few hostile ones. An accepted page has an id. */
static void a_page_cut_off_or_damaged_anywhere_is_no_crash(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    carry_page page;
    int accepted = 0;
    for (size_t length = 0; length < strlen(card_a); length++) {
        char *cut = malloc(length + 1); /* exactly this size, so that a sanitizer sees a read beyond it */
        assert_non_null(cut);
        memcpy(cut, card_a, length);
        if (carry_page_parse(ctx, &page, CARRY_PAGE_CARD, "cards/a.md", cut, length) == CARRY_OK) {
            assert_non_null(page.id);
            accepted++;
            carry_page_clear(&page);
        } else {
            assert_true(strlen(carry_ctx_error(ctx)) > 0);
        }
        free(cut);
    }
    /* A page cut behind its closing line of dashes, whose newline may be missing, is still a page. */
    assert_int_equal(accepted, (int)strlen("\n\nThe body.\n"));
    static const char bytes[] = {'\0', '\n', '"', ':', '[', '{', '-', '&', '*', '!', '|', '\t', (char)0xff, '\x1b'};
    for (size_t at = 0; at < strlen(card_a); at++) {
        for (size_t i = 0; i < sizeof bytes; i++) {
            char damaged[sizeof card_a];
            memcpy(damaged, card_a, sizeof card_a);
            damaged[at] = bytes[i];
            if (carry_page_parse(ctx, &page, CARRY_PAGE_CARD, "cards/a.md", damaged, strlen(card_a)) == CARRY_OK) {
                assert_non_null(page.id);
                carry_page_clear(&page);
            }
        }
    }
    carry_ctx_free(ctx);
}

static void hostile_front_matter_is_refused_with_a_place(void **unused) {
    (void)unused;
    static const struct {
        const char *text, *words;
    } bad[] = {
        {"", "cards/x.md:1:1"},
        {"id: a\n", "between two lines of ---"},
        {"---\nid: a\n", "between two lines of ---"},
        {"---\r\nid: a\r\n---\r\n", "not plain UTF-8 text (byte 0d)"},
        {"---\n---\n", "cards/x.md"},
        {"---\n- a\n- b\n---\n", "must be a mapping"},
        {"---\nid: [a]\n---\n", "cards/x.md:2"},
        {"---\ntitle: no id\n---\n", "needs an id"},
        {"---\nid: ''\n---\n", "needs an id"},
        {"---\nid: a\ntopics: t\n---\n", "cards/x.md:3:9: topics must be a list"},
        {"---\nid: a\nclaims: [one]\n---\n", "claims must be a mapping"},
        {"---\nid: a\nclaims: [{text: [x]}]\n---\n", "cards/x.md:3"},
        {"---\nid: &x a\ntitle: *x\n---\n", "cards/x.md:2"},
        {"---\nid: a\nid: b\n---\n", "twice"},
        {"---\nid: a\ntitle: \"\\e[31mred\"\n---\n", "cards/x.md:3:8: a text has a control character"},
        {"---\nid: \xff\n---\n", "not plain UTF-8 text (byte ff)"},
        {"---\nid: a\n---\nbody \x1b[2J\n", "cards/x.md:4:1"},
        {"---\nid: a\n--- \nbody\n", "between two lines of ---"},
    };
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        carry_page page;
        carry_status status =
            carry_page_parse(ctx, &page, CARRY_PAGE_CARD, "cards/x.md", bad[i].text, strlen(bad[i].text));
        if (status == CARRY_OK || strstr(carry_ctx_error(ctx), bad[i].words) == NULL) {
            fail_msg("case %zu: expected '%s', got %s", i, bad[i].words, carry_ctx_error(ctx));
        }
    }
    carry_ctx_free(ctx);
}

static bool fires(const carry_library *library, const char *rule, const char *words) {
    for (int i = 0; i < library->problems; i++) {
        if (strcmp(library->problem[i].rule, rule) == 0 && strstr(library->problem[i].message, words) != NULL) {
            return true;
        }
    }
    return false;
}

static void a_good_library_has_no_problems(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    put_good(ctx);
    carry_library *library = open_library(ctx);
    assert_ok(ctx, carry_library_check(ctx, library));
    if (library->problems > 0) {
        fail_msg("%s: %s: %s", library->problem[0].path, library->problem[0].rule, library->problem[0].message);
    }
    assert_int_equal(library->count, 4);
    carry_library_close(library);
    carry_ctx_free(ctx);
}

/* Each case replaces one page of the good library. */
static const struct {
    const char *rule, *words, *path, *text;
} broken[] = {
    {"unreadable", "library", "library/cards/c.md", NULL}, /* a folder, made below */
    {"unreadable", "needs an id", "library/cards/c.md", "---\ntitle: x\n---\n"},
    {"missing-key", "'why'", "library/cards/b.md",
     "---\nid: b\ntitle: T\nsource: B.\ntype: p\ntier: 1\ntopics: [t]\npriority: 2\nclaims: [{text: a, evidence: "
     "e}]\n---\n"},
    {"missing-key", "'topics'", "library/cards/b.md",
     "---\nid: b\ntitle: T\nsource: B.\ntype: p\ntier: 1\npriority: 2\nwhy: w\nclaims: [{text: a, evidence: "
     "e}]\n---\n"},
    {"missing-key", "lacks 'unit'", "library/findings/f.md",
     "---\nid: f\ntitle: F\nmeasured: m\nwhere: w\nfigures: [{value: 6.2, what: x, source: docs/results/x.md}]\ncards: "
     "[a]\n---\n"},
    {"unknown-key", "'claim'", "library/cards/b.md",
     "---\nid: b\ntitle: T\nsource: B.\ntype: p\ntier: 1\ntopics: [t]\npriority: 2\nwhy: w\nclaim: []\n---\n"},
    {"unknown-key", "'evidense'", "library/cards/b.md",
     "---\nid: b\ntitle: T\nsource: B.\ntype: p\ntier: 1\ntopics: [t]\npriority: 2\nwhy: w\nclaims: [{text: a, "
     "evidense: e}]\n---\n"},
    {"wrong-id", "'bb'", "library/cards/b.md",
     "---\nid: bb\ntitle: T\nsource: B.\ntype: p\ntier: 1\ntopics: [t]\npriority: 2\nwhy: w\nclaims: [{text: a, "
     "evidence: e}]\n---\n"},
    {"duplicate-id", "cards/a.md", "library/cards/b.md",
     "---\nid: a\ntitle: T\nsource: B.\ntype: p\ntier: 1\ntopics: [t]\npriority: 2\nwhy: w\nclaims: [{text: a, "
     "evidence: e}]\n---\n"},
    {"duplicate-id", "other name 'a'", "library/cards/b.md",
     "---\nid: b\ntitle: T\nsource: B.\ntype: p\ntier: 1\ntopics: [t]\npriority: 2\nwhy: w\nclaims: [{text: a, "
     "evidence: e}]\nalso: [other, a]\n---\n"},
    {"bad-level", "tier is '4'", "library/cards/b.md",
     "---\nid: b\ntitle: T\nsource: B.\ntype: p\ntier: 4\ntopics: [t]\npriority: 2\nwhy: w\nclaims: [{text: a, "
     "evidence: e}]\n---\n"},
    {"bad-level", "priority is '9'", "library/topics/t.md",
     "---\nid: t\ntitle: T\ncards: [{id: a, priority: 9}, {id: b, priority: 1}]\n---\nx\n"},
    {"broken-id", "'nobody'", "library/cards/b.md",
     "---\nid: b\ntitle: T\nsource: B.\ntype: p\ntier: 1\ntopics: [t]\npriority: 2\nwhy: w\nclaims: [{text: a, "
     "evidence: e}]\nrelated: [nobody]\n---\n"},
    {"broken-id", "not a card", "library/findings/f.md",
     "---\nid: f\ntitle: F\nmeasured: m\nwhere: w\nfigures: [{value: 6.2, unit: u, what: x, source: "
     "docs/results/x.md}]\ncards: [t]\n---\n"},
    {"broken-id", "not a topic", "library/findings/f.md",
     "---\nid: f\ntitle: F\nmeasured: m\nwhere: w\nfigures: [{value: 6.2, unit: u, what: x, source: "
     "docs/results/x.md}]\ncards: [a]\ntopics: [a]\n---\n"},
    {"topic-mismatch", "does not list", "library/topics/t.md",
     "---\nid: t\ntitle: T\ncards: [{id: b, priority: 1}]\n---\nx\n"},
    {"topic-mismatch", "does not name", "library/cards/b.md",
     "---\nid: b\ntitle: T\nsource: B.\ntype: p\ntier: 1\ntopics: []\npriority: 2\nwhy: w\nclaims: [{text: a, "
     "evidence: e}]\n---\n"},
    {"circular-needs", "itself", "library/cards/a.md",
     "---\nid: a\ntitle: T\nsource: B.\ntype: p\ntier: 1\ntopics: [t]\npriority: 2\nwhy: 4.2\nclaims: [{text: a, "
     "evidence: e}]\nneeds: [b]\n---\n"},
    {"no-evidence", "no evidence", "library/cards/b.md",
     "---\nid: b\ntitle: T\nsource: B.\ntype: p\ntier: 1\ntopics: [t]\npriority: 2\nwhy: w\nclaims: [{text: "
     "a}]\n---\n"},
    {"no-evidence", "claims nothing", "library/cards/b.md",
     "---\nid: b\ntitle: T\nsource: B.\ntype: p\ntier: 1\ntopics: [t]\npriority: 2\nwhy: w\n---\n"},
    {"no-figures", "no figures", "library/findings/f.md",
     "---\nid: f\ntitle: F\nmeasured: m\nwhere: w\ncards: [a]\n---\n"},
    {"no-figures", "no number", "library/findings/f.md",
     "---\nid: f\ntitle: F\nmeasured: m\nwhere: w\nfigures: [{value: many, unit: u, what: x, source: a}]\ncards: "
     "[a]\n---\n"},
    {"no-cards", "names no card", "library/findings/f.md",
     "---\nid: f\ntitle: F\nmeasured: m\nwhere: w\nfigures: [{value: 6.2, unit: u, what: x, source: "
     "docs/results/x.md}]\ncards: []\n---\n"},
    {"no-synthesis", "says nothing", "library/topics/t.md",
     "---\nid: t\ntitle: T\ncards: [{id: b, priority: 1}, {id: a, priority: 2}]\n---\n \n"},
    {"lost-figure", "6.2 is not in", "docs/results/x.md", "| loop | 6.25 ms, 16.2 ms |\n"},
    {"lost-figure", "4.2 is not in", "library/cards/a.md",
     "---\nid: a\ntitle: T\nsource: B.\ntype: p\ntier: 1\ntopics: [t]\npriority: 2\nwhy: w\nclaims: [{text: a, "
     "evidence: e}]\n---\n"},
    {"lost-figure", "7.5 is not in 'docs/results/x.md', which", "library/cards/b.md",
     "---\nid: b\ntitle: T\nsource: B.\ntype: p\ntier: 1\ntopics: [t]\npriority: 2\nwhy: w\nclaims: [{text: a, "
     "evidence: e}]\nactionables: [{text: a, figure: \"H200: 9 of others; ours 6.2, not 7.5 (docs/results/x.md).\"}]\n"
     "---\n"},
    {"lost-figure", "which the actionable cites, cannot be read", "library/cards/b.md",
     "---\nid: b\ntitle: T\nsource: B.\ntype: p\ntier: 1\ntopics: [t]\npriority: 2\nwhy: w\nclaims: [{text: a, "
     "evidence: e}]\nactionables: [{text: a, figure: ours 6.2 (docs/results/y.md)}]\n---\n"},
    {"lost-figure", "cannot be read", "library/findings/f.md",
     "---\nid: f\ntitle: F\nmeasured: m\nwhere: w\nfigures: [{value: 6.2, unit: u, what: x, source: "
     "docs/results/y.md}]\ncards: [a]\n---\n"},
    {"lost-figure", "not among", "library/findings/f.md",
     "---\nid: f\ntitle: F\nmeasured: m\nwhere: w\nfigures: [{value: 2, unit: u, what: x, source: b}]\ncards: "
     "[a]\n---\n"},
    {"lost-figure", "neither a card nor a file", "library/findings/f.md",
     "---\nid: f\ntitle: F\nmeasured: m\nwhere: w\nfigures: [{value: 6.2, unit: u, what: x, source: "
     "../docs/results/x.md}]\ncards: [a]\n---\n"},
    {"lost-figure", "neither a card nor a file", "library/findings/f.md",
     "---\nid: f\ntitle: F\nmeasured: m\nwhere: w\nfigures: [{value: 6.2, unit: u, what: x, source: "
     "/etc/hostname}]\ncards: [a]\n---\n"},
};

static void put_broken(carry_ctx *ctx, const char *path, const char *text) {
    char folder[256];
    if (text != NULL) {
        put(ctx, path, text);
        return;
    }
    (void)snprintf(folder, sizeof folder, "%s/%s", root, path);
    assert_int_equal(mkdir(folder, 0777), 0);
}

static void every_rule_fires(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    for (size_t i = 0; i < sizeof broken / sizeof broken[0]; i++) {
        put_good(ctx);
        drop("library/cards/c.md");
        put_broken(ctx, broken[i].path, broken[i].text);
        carry_library *library = open_library(ctx);
        assert_ok(ctx, carry_library_check(ctx, library));
        if (!fires(library, broken[i].rule, broken[i].words)) {
            fail_msg("case %zu: %s with '%s' does not fire; %d others do", i, broken[i].rule, broken[i].words,
                     library->problems);
        }
        carry_library_close(library);
    }
    for (const carry_library_rule *rule = carry_library_rules; rule->name != NULL; rule++) {
        bool tested = false;
        for (size_t i = 0; i < sizeof broken / sizeof broken[0]; i++) {
            tested = tested || strcmp(rule->name, broken[i].rule) == 0;
        }
        if (!tested) {
            fail_msg("no case breaks the rule %s", rule->name);
        }
    }
    carry_ctx_free(ctx);
}

static void a_figure_stands_as_a_whole(void **unused) {
    (void)unused;
    static const char text[] = "t4096 takes 6.2 ms, 1,550 MB, 1.4e-6, 3x (75 %), chunk32, 58 of 60 shapes; 512³ and 7.";
    static const char *const stands[] = {"6.2", "1,550", "1.4e-6", "3", "75 %", "75", "58 of 60", "512", "7", "60"};
    static const char *const stands_not[] = {"4096", "6", "2", "550", "1", "1.4", "6.", "5", "32", "58 of 6", "", "8"};
    for (size_t i = 0; i < sizeof stands / sizeof stands[0]; i++) {
        if (!carry_figure_stands_in(stands[i], text)) {
            fail_msg("'%s' is not found", stands[i]);
        }
    }
    for (size_t i = 0; i < sizeof stands_not / sizeof stands_not[0]; i++) {
        if (carry_figure_stands_in(stands_not[i], text)) {
            fail_msg("'%s' is found", stands_not[i]);
        }
    }
}

static void words_are_found_and_syntax_is_only_words(void **unused) {
    (void)unused;
    static const char *const hostile[] = {"\"",     "a AND", "NEAR(",  "title:x", "*",     "-- DROP",    "^first",
                                          "\"\"\"", "OR",    "first)", "{a b}",   "a+b\"", "';--",       "\xff\xfe",
                                          "",       "NOT",   "\\",     "a*",      "\"a\"", "(\"x\" OR)", "\n"};
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    put_good(ctx);
    drop("library/cards/c.md");
    carry_library *library = open_library(ctx);
    carry_found *found;
    int count;
    bool some;
    const char *const first[] = {"FIRST", "cards"}; /* any case, any form */
    assert_ok(ctx, carry_library_find(ctx, library, first, 2, &found, &count, &some));
    assert_true(count == 1 && !some && strcmp(found[0].page->id, "a") == 0);
    assert_true(found[0].lines >= 1 && found[0].line[0].number == 3);
    free(found);
    const char *const partly[] = {"first", "zebra"};
    assert_ok(ctx, carry_library_find(ctx, library, partly, 2, &found, &count, &some));
    assert_true(count >= 1 && some && strcmp(found[0].page->id, "a") == 0);
    free(found);
    for (size_t i = 0; i < sizeof hostile / sizeof hostile[0]; i++) {
        const char *const words[] = {hostile[i], "second"};
        assert_ok(ctx, carry_library_find(ctx, library, words, 2, &found, &count, &some));
        free(found);
        carry_status status = carry_library_find(ctx, library, words, 1, &found, &count, &some);
        if (status != CARRY_OK && (status != CARRY_EARGUMENT || strstr(carry_ctx_error(ctx), "a letter") == NULL)) {
            fail_msg("'%s': %s", hostile[i], carry_ctx_error(ctx));
        }
        free(found);
    }
    carry_library_close(library);
    carry_ctx_free(ctx);
}

/* The topic lists b first, but b needs a; a circle of needs terminates. */
static void an_order_puts_first_what_is_needed(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    put_good(ctx);
    drop("library/cards/c.md");
    for (int circular = 0; circular < 2; circular++) {
        if (circular) {
            put(ctx, "library/cards/a.md", "---\nid: a\ntitle: T\ntopics: [t]\npriority: 2\nneeds: [b, a]\n---\n");
        }
        carry_library *library = open_library(ctx);
        carry_reading *reading;
        int count;
        assert_ok(ctx, carry_library_order(ctx, library, carry_library_page(library, "t"), &reading, &count));
        assert_int_equal(count, 2);
        assert_string_equal(reading[0].card->id, "a");
        assert_non_null(strstr(reading[0].reason, "b needs it"));
        assert_string_equal(reading[1].card->id, "b");
        free(reading);
        carry_library_close(library);
    }
    carry_ctx_free(ctx);
}

static void a_folder_that_is_not_a_library_is_refused(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    carry_library *library;
    assert_refused(ctx, CARRY_ENOTFOUND, "is not a library", carry_library_open(ctx, &library, "/dev"));
    assert_null(library);
    char longer[8192];
    memset(longer, 'x', sizeof longer - 1);
    longer[sizeof longer - 1] = '\0';
    assert_refused(ctx, CARRY_ESIZE, "too long", carry_library_open(ctx, &library, longer));
    carry_ctx_free(ctx);
}

/* A page that cites an older run of an experiment gets a warning, unless it also cites the newest. */
static void superseded_runs_are_warned_of(void **state) {
    (void)state;
    carry_ctx *ctx = support_ctx(1, "plain", NULL);
    put_good(ctx);
    char folder[256];
    (void)snprintf(folder, sizeof folder, "%s/docs/results/runs", root);
    (void)mkdir(folder, 0777);
    put(ctx, "docs/results/runs/old.json", "{\"started\": 10, \"spec\": \"# a\\nname: x\\ngrid:\"}");
    put(ctx, "docs/results/runs/new.json", "{\"started\": 20, \"spec\": \"name: x\\n\"}");
    put(ctx, "docs/results/runs/other.json", "{\"started\": 30, \"spec\": \"name: y\\n\"}");
    put(ctx, "docs/results/runs/lines.json", "{\"a\": 1}\n{\"a\": 2}\n");
    static const struct {
        const char *cited;
        int count;
    } cases[] = {{"runs/old.json", 1}, {"runs/new.json", 0}, {"runs/old.json and runs/new.json", 0}, {"nothing", 0}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[1024];
        (void)snprintf(text, sizeof text, "%sMeasured in docs/results/%s.\n", finding_f, cases[i].cited);
        put(ctx, "library/findings/f.md", text);
        carry_library *library = open_library(ctx);
        carry_library_warning *all;
        int count;
        assert_ok(ctx, carry_library_superseded(ctx, library, &all, &count));
        assert_int_equal(count, cases[i].count);
        if (count > 0) {
            assert_string_equal(all[0].path, "findings/f.md");
            assert_non_null(strstr(all[0].message, "old.json, and new.json of the same experiment (x) is newer"));
        }
        free(all);
        carry_library_close(library);
    }
    static const char *const files[] = {"old", "new", "other", "lines"};
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        char file[64];
        (void)snprintf(file, sizeof file, "docs/results/runs/%s.json", files[i]);
        drop(file);
    }
    (void)rmdir(folder);
    carry_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_page_is_read_as_written),
        cmocka_unit_test(a_page_cut_off_or_damaged_anywhere_is_no_crash),
        cmocka_unit_test(hostile_front_matter_is_refused_with_a_place),
        cmocka_unit_test(a_good_library_has_no_problems),
        cmocka_unit_test(every_rule_fires),
        cmocka_unit_test(a_figure_stands_as_a_whole),
        cmocka_unit_test(words_are_found_and_syntax_is_only_words),
        cmocka_unit_test(an_order_puts_first_what_is_needed),
        cmocka_unit_test(superseded_runs_are_warned_of),
        cmocka_unit_test(a_folder_that_is_not_a_library_is_refused),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
