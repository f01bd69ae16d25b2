/* Small training runs for tests: in a temporary folder, on ranks that are threads. */
#ifndef CARRY_TESTS_TRAIN_SUPPORT_H
#define CARRY_TESTS_TRAIN_SUPPORT_H

#include <math.h>
#include <unistd.h>

#include "support.h"

#include "core/file.h"
#include "train/loop.h"

#define SUPPORT_STEPS 64
#define SUPPORT_RANKS 4

#define assert_near(got, wanted, apart)                                                                 \
    do {                                                                                                \
        const double got_ = (double)(got);                                                              \
        const double wanted_ = (double)(wanted);                                                        \
        if (!(fabs(got_ - wanted_) <= (apart))) {                                                       \
            fail_msg("%s is %.9g, not %.9g: more than %g apart", #got, got_, wanted_, (double)(apart)); \
        }                                                                                               \
    } while (0)

/* Figures and messages that a run reported. */
typedef struct told {
    double loss[SUPPORT_STEPS + 1], norm[SUPPORT_STEPS + 1], rate[SUPPORT_STEPS + 1]; /* by step, from 1 */
    double evaluation, accuracy, memory;
    int64_t last;
    int notes;
    char note[512];
    char error[512];
} told;

typedef struct told_run {
    const carry_train_options *options;
    const carry_train_hooks *hooks;
} told_run;

static inline void on_report(void *user, const carry_train_report *r) {
    told *t = user;
    assert_in_range(r->step, 1, SUPPORT_STEPS);
    t->loss[r->step] = r->loss;
    t->norm[r->step] = r->norm;
    t->rate[r->step] = r->rate;
    t->memory = r->memory;
    t->last = r->step;
}

static inline void on_evaluation(void *user, const carry_train_evaluation *e) {
    told *t = user;
    t->evaluation = e->loss;
    t->accuracy = e->accuracy;
}

static inline void on_note(void *user, int64_t step, const char *line) {
    told *t = user;
    (void)step;
    t->notes++;
    (void)snprintf(t->note, sizeof t->note, "%s", line);
}

static inline carry_status run_rank(void *user, carry_comm *comm) {
    const told_run *run = user;
    return carry_train_run(comm, run->options, run->hooks);
}

/* A tiny model on the copying task, which reports every step. */
static inline carry_train_options tiny(const char *out) {
    carry_train_options o = carry_train_options_default();
    (void)snprintf(o.task, sizeof o.task, "copy");
    (void)snprintf(o.out, sizeof o.out, "%s", out);
    o.vocab = 6;
    o.length = 16;
    o.hidden = 16;
    o.layers = 2;
    o.heads = 2;
    o.head_dim = 8;
    o.batch = 8;
    o.steps = 12;
    o.log_every = 1;
    o.save_every = 4;
    o.eval_every = 0;
    return o;
}

static inline carry_status train_on(int ranks, const carry_train_options *options, bool resume, bool (*stop)(void),
                                    told *t) {
    carry_ctx *ctxs[SUPPORT_RANKS] = {NULL};
    carry_train_hooks hooks = {.sink = {.user = t, .note = on_note},
                               .report = on_report,
                               .evaluated = on_evaluation,
                               .user = t,
                               .stop = stop,
                               .resume = resume};
    told_run run = {.options = options, .hooks = &hooks};
    memset(t, 0, sizeof *t);
    for (int i = 0; i < ranks; i++) {
        ctxs[i] = support_ctx(1, NULL, NULL);
    }
    carry_status status = carry_comm_threads(ctxs, ranks, NULL, run_rank, &run);
    (void)snprintf(t->error, sizeof t->error, "%s", carry_ctx_error(ctxs[0]));
    for (int i = 0; i < ranks; i++) {
        carry_ctx_free(ctxs[i]);
    }
    return status;
}

static inline void train_ok(int ranks, const carry_train_options *options, bool resume, told *t) {
    if (train_on(ranks, options, resume, NULL, t) != CARRY_OK) {
        fail_msg("training failed: %s", t->error);
    }
}

/* The bytes of a file below a folder. */
static inline char *bytes_of(const char *folder, const char *name, size_t *length) {
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    char path[CARRY_FILE_PATH];
    char *bytes;
    assert_ok(ctx, carry_file_in(ctx, path, folder, name));
    assert_ok(ctx, carry_file_read(ctx, &bytes, length, path, (size_t)1 << 24));
    carry_ctx_free(ctx);
    return bytes;
}

static inline bool same_file(const char *a, const char *b, const char *name) {
    size_t length[2];
    char *left = bytes_of(a, name, &length[0]);
    char *right = bytes_of(b, name, &length[1]);
    bool same = length[0] == length[1] && memcmp(left, right, length[0]) == 0;
    free(left);
    free(right);
    return same;
}

static inline int make_folder(void **state) {
    char *folder = strdup("/tmp/carry-train-XXXXXX");
    assert_non_null(mkdtemp(folder));
    *state = folder;
    return 0;
}

static inline int remove_folder(void **state) {
    char command[256];
    (void)snprintf(command, sizeof command, "rm -rf '%s'", (char *)*state);
    int code = system(command); /* NOLINT: a name of our own making */
    free(*state);
    return code;
}

static inline const char *below(char path[256], void **state, const char *name) {
    (void)snprintf(path, 256, "%s/%s", (const char *)*state, name);
    return path;
}

#endif
