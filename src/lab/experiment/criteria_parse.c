/* Parses criteria, a small expression language, to a tree. */
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "lab/experiment/criteria_tree.h"

#define MOST_DEPTH 32

static double time_of(const carry_outcome *of, const carry_outcome *against) {
    (void)against;
    return of->median;
}

static double speedup_of(const carry_outcome *of, const carry_outcome *against) {
    return against->median / of->median;
}

static double error_of(const carry_outcome *of, const carry_outcome *against) {
    (void)against;
    return of->error;
}

static double absolute_of(const carry_outcome *of, const carry_outcome *against) {
    (void)against;
    return of->error_absolute;
}

static double products_of(const carry_outcome *of, const carry_outcome *against) {
    (void)against;
    return (double)of->products;
}

static double memory_of(const carry_outcome *of, const carry_outcome *against) {
    (void)against;
    return of->workspace;
}

static double use_of(const carry_outcome *of, const carry_outcome *against) {
    (void)against;
    return of->share;
}

static double gflops_of(const carry_outcome *of, const carry_outcome *against) {
    (void)against;
    return 1e-9 * of->flops / of->median;
}

static double gbytes_of(const carry_outcome *of, const carry_outcome *against) {
    (void)against;
    return 1e-9 * of->bytes / of->median;
}

static double tokens_of(const carry_outcome *of, const carry_outcome *against) {
    (void)against;
    return of->tokens / of->median;
}

static double received_of(const carry_outcome *of, const carry_outcome *against) {
    (void)against;
    return of->ranks > 0 ? of->received : NAN;
}

static double exposed_of(const carry_outcome *of, const carry_outcome *against) {
    (void)against;
    return of->ranks > 0 ? of->exposed : NAN;
}

static double perplexity_of(const carry_outcome *of, const carry_outcome *against) {
    (void)against;
    return of->perplexity > 0.0 ? of->perplexity : NAN;
}

static double busy_of(const carry_outcome *of, const carry_outcome *against) {
    (void)against;
    return of->busy > 0.0 ? of->busy : NAN;
}

static double cost_of(const carry_outcome *of, const carry_outcome *against) {
    (void)against;
    return of->cost > 0.0 ? of->cost : NAN;
}

static double money_of(const carry_outcome *of, const carry_outcome *against) {
    (void)against;
    return of->cost > 0.0 && of->price > 0.0 ? of->cost / 3600.0 * of->price : NAN;
}

static double overlap_of(const carry_outcome *of, const carry_outcome *against) {
    (void)against;
    return of->slower_stage > 0.0 ? of->overlap : NAN;
}

static double slower_stage_of(const carry_outcome *of, const carry_outcome *against) {
    (void)against;
    return of->slower_stage > 0.0 ? of->slower_stage : NAN;
}

static double denoise_of(const carry_outcome *of, const carry_outcome *against) {
    (void)against;
    return of->denoise > 0.0 ? of->denoise : NAN;
}

static double recompute_of(const carry_outcome *of, const carry_outcome *against) {
    (void)against;
    return of->recompute > 0.0 ? of->recompute : NAN;
}

static double clean_of(const carry_outcome *of, const carry_outcome *against) {
    (void)against;
    return of->clean > 0.0 ? of->clean : NAN;
}

static double decode_of(const carry_outcome *of, const carry_outcome *against) {
    (void)against;
    return of->decode > 0.0 ? of->decode : NAN;
}

static const measure measures[] = {
    {"speedup", "of a method over another on the same problem", 2, LEAST, true, speedup_of},
    {"time", "median, seconds", 1, LARGEST, true, time_of},
    {"error", "largest difference from float64 over the reference's largest value", 1, LARGEST, false, error_of},
    {"absolute_error", "largest difference from float64", 1, LARGEST, false, absolute_of},
    {"products", "matrix products done", 1, LARGEST, false, products_of},
    {"memory", "bytes of workspace", 1, LARGEST, false, memory_of},
    {"use", "share of the ceiling that binds, 0 to 1", 1, LEAST, true, use_of},
    {"gflops", "GFLOP/s", 1, LEAST, true, gflops_of},
    {"gbytes", "GB/s, inputs and outputs once", 1, LEAST, true, gbytes_of},
    {"tokens_per_s", "tokens a second", 1, LEAST, true, tokens_of},
    {"received", "bytes that a rank received, of the one that received most", 1, LARGEST, false, received_of},
    {"exposed", "share of the time that would be saved if no rank had to wait, 0 to 1", 1, LARGEST, true, exposed_of},
    {"perplexity", "of a model at the end of its training", 1, LARGEST, false, perplexity_of},
    {"busy", "share of a training's steps in which its device worked, 0 to 1", 1, LEAST, true, busy_of},
    {"cost", "seconds of its device that a whole training took", 1, LARGEST, true, cost_of},
    {"money", "price of that time, by the experiment's `price`", 1, LARGEST, true, money_of},
    {"overlap", "share of a stream's shorter stage that is hidden behind the longer one", 1, LEAST, true, overlap_of},
    {"slower_stage", "seconds that a stream's slower stage takes a chunk", 1, LARGEST, true, slower_stage_of},
    {"denoise", "seconds that a stream denoises a chunk", 1, LARGEST, true, denoise_of},
    {"recompute", "seconds that a stream rebuilds its cache before a chunk", 1, LARGEST, true, recompute_of},
    {"clean", "seconds of a stream's last pass over a chunk, for the cache", 1, LARGEST, true, clean_of},
    {"decode", "seconds that a stream decodes a chunk", 1, LARGEST, true, decode_of},
};
#define MEASURES ((int)(sizeof measures / sizeof measures[0]))

typedef struct parser {
    carry_ctx *ctx;
    carry_criterion *c;
    const char *at;
    int depth;
} parser;

static void skip_space(parser *p) {
    while (isspace((unsigned char)*p->at)) {
        p->at++;
    }
}

static carry_status wrong(parser *p, const char *what) {
    return carry_fail(p->ctx, CARRY_EARGUMENT, "the criterion '%s', column %d: %s", p->c->text,
                      (int)(p->at - p->c->text) + 1, what);
}

static carry_status new_node(parser *p, int *index, node_kind kind) {
    if (p->c->count == MOST_NODES) {
        return wrong(p, "this is too long");
    }
    *index = p->c->count++;
    p->c->nodes[*index] = (node){.kind = kind, .left = -1, .right = -1};
    return CARRY_OK;
}

/* Reads a word of letters, digits, _ . -, such as hillis_steele, matmul4 or 0.5. */
static carry_status take_word(parser *p, char word[WORD], const char *what) {
    skip_space(p);
    int length = 0;
    while ((isalnum((unsigned char)p->at[length]) || strchr("_.", p->at[length]) != NULL) && p->at[length] != '\0') {
        length++;
    }
    if (length == 0 || length >= WORD) {
        char message[96];
        (void)snprintf(message, sizeof message, "%s is expected here", what);
        return wrong(p, message);
    }
    memcpy(word, p->at, (size_t)length);
    word[length] = '\0';
    p->at += length;
    return CARRY_OK;
}

static bool take_sign(parser *p, char sign) {
    skip_space(p);
    if (*p->at == sign) {
        p->at++;
        return true;
    }
    return false;
}

static carry_status expect_sign(parser *p, char sign) {
    char message[32];
    (void)snprintf(message, sizeof message, "'%c' is expected here", sign);
    return take_sign(p, sign) ? CARRY_OK : wrong(p, message);
}

static carry_status take_filters(parser *p, node *n) {
    while (take_sign(p, ',')) {
        if (n->filters == MOST_FILTERS) {
            return wrong(p, "too many filters");
        }
        filter *f = &n->filter[n->filters++];
        CARRY_TRY(take_word(p, f->key, "a filter such as t=128 or bf16"));
        if (take_sign(p, '=')) {
            CARRY_TRY(take_word(p, f->value, "a value"));
        }
    }
    return expect_sign(p, ')');
}

static carry_status take_measure(parser *p, int *index, const measure *m, int column) {
    CARRY_TRY(new_node(p, index, MEASURE));
    node *n = &p->c->nodes[*index];
    n->measure = m;
    n->column = column;
    CARRY_TRY(take_word(p, n->method[0], "a method"));
    if (m->methods == 2) {
        CARRY_TRY(expect_sign(p, ','));
        CARRY_TRY(take_word(p, n->method[1], "a second method"));
    }
    return take_filters(p, n);
}

static carry_status take_sum(parser *p, int *index);

static carry_status take_wrapped(parser *p, int *index, node_kind kind) {
    int inner;
    CARRY_TRY(take_sum(p, &inner));
    CARRY_TRY(new_node(p, index, kind));
    p->c->nodes[*index].left = inner;
    if (kind != LOG2 && p->c->nodes[inner].kind != MEASURE) {
        return wrong(p, "min, max, mean and grows stand around one function such as speedup(...)");
    }
    if (kind == GROWS) {
        CARRY_TRY(expect_sign(p, ','));
        CARRY_TRY(take_word(p, p->c->nodes[*index].along, "a size such as t"));
    }
    return expect_sign(p, ')');
}

static carry_status take_call(parser *p, int *index) {
    const char *start = p->at;
    char name[WORD];
    CARRY_TRY(take_word(p, name, "a number or a function"));
    CARRY_TRY(expect_sign(p, '('));
    static const struct {
        const char *name;
        node_kind kind;
    } wrappers[] = {{"min", MIN}, {"max", MAX}, {"mean", MEAN}, {"grows", GROWS}, {"log2", LOG2}};
    for (size_t i = 0; i < sizeof wrappers / sizeof wrappers[0]; i++) {
        if (strcmp(name, wrappers[i].name) == 0) {
            return take_wrapped(p, index, wrappers[i].kind);
        }
    }
    for (int i = 0; i < MEASURES; i++) {
        if (strcmp(name, measures[i].name) == 0) {
            return take_measure(p, index, &measures[i], (int)(start - p->c->text) + 1);
        }
    }
    p->at = start;
    char message[128];
    (void)snprintf(message, sizeof message, "there is no function '%s' (carry run --help lists them)", name);
    return wrong(p, message);
}

static carry_status take_value(parser *p, int *index) {
    carry_status status;
    skip_space(p);
    if (++p->depth > MOST_DEPTH) {
        return wrong(p, "nested too deeply");
    }
    if (take_sign(p, '(')) {
        status = take_sum(p, index);
        status = status == CARRY_OK ? expect_sign(p, ')') : status;
    } else if (take_sign(p, '-')) {
        int inner = -1;
        status = take_value(p, &inner);
        status = status == CARRY_OK ? new_node(p, index, NEGATE) : status;
        if (status == CARRY_OK) {
            p->c->nodes[*index].left = inner;
        }
    } else if (isdigit((unsigned char)*p->at) || *p->at == '.') {
        char *end;
        double number = strtod(p->at, &end);
        status = end != p->at && isfinite(number) ? new_node(p, index, NUMBER) : wrong(p, "this is not a number");
        if (status == CARRY_OK) {
            p->c->nodes[*index].number = number;
            p->at = end;
        }
    } else {
        status = take_call(p, index);
    }
    p->depth--;
    return status;
}

static carry_status take_pairs(parser *p, int *index, const char *signs, const node_kind kinds[2],
                               carry_status (*take)(parser *, int *)) {
    CARRY_TRY(take(p, index));
    for (;;) {
        skip_space(p);
        const char *sign = *p->at != '\0' ? strchr(signs, *p->at) : NULL;
        if (sign == NULL) {
            return CARRY_OK;
        }
        p->at++;
        int right;
        int pair;
        CARRY_TRY(take(p, &right));
        CARRY_TRY(new_node(p, &pair, kinds[sign - signs]));
        p->c->nodes[pair].left = *index;
        p->c->nodes[pair].right = right;
        *index = pair;
    }
}

static carry_status take_product(parser *p, int *index) {
    static const node_kind kinds[] = {MULTIPLY, DIVIDE};
    return take_pairs(p, index, "*/", kinds, take_value);
}

static carry_status take_sum(parser *p, int *index) {
    static const node_kind kinds[] = {ADD, SUBTRACT};
    return take_pairs(p, index, "+-", kinds, take_product);
}

static carry_status take_comparison(parser *p) {
    CARRY_TRY(take_sum(p, &p->c->left));
    skip_space(p);
    if (*p->at != '<' && *p->at != '>' && strncmp(p->at, "==", 2) != 0) {
        return wrong(p, "one of >= > <= < == is expected here");
    }
    p->c->compare[0] = *p->at++;
    if (*p->at == '=') {
        p->c->compare[1] = *p->at++;
    }
    CARRY_TRY(take_sum(p, &p->c->right));
    skip_space(p);
    return *p->at == '\0' ? CARRY_OK : wrong(p, "the criterion should end here");
}

carry_status carry_criterion_parse(carry_ctx *ctx, carry_criterion **criterion, const char *text) {
    *criterion = NULL;
    if (strlen(text) >= CARRY_CRITERION_TEXT) {
        return carry_fail(ctx, CARRY_EARGUMENT, "a criterion of %zu letters is longer than the %d that are taken",
                          strlen(text), CARRY_CRITERION_TEXT - 1);
    }
    carry_criterion *c = calloc(1, sizeof *c);
    if (c == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: a criterion");
    }
    (void)snprintf(c->text, sizeof c->text, "%s", text);
    parser p = {.ctx = ctx, .c = c, .at = c->text};
    carry_status status = take_comparison(&p);
    if (status != CARRY_OK) {
        free(c);
        return status;
    }
    *criterion = c;
    return CARRY_OK;
}

void carry_criterion_free(carry_criterion *criterion) {
    free(criterion);
}

const char *carry_criterion_function(int index, const char **about) {
    if (index < 0 || index >= MEASURES) {
        return NULL;
    }
    *about = measures[index].about;
    return measures[index].name;
}
