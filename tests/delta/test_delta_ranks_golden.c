/* The delta rule over ranks against golden vectors: every case on 2 and 3 ranks, and the shortest one split in two at
   every token. */
#include "delta_ranks_support.h"

#include "file/safetensors.h"

static carry_ctx *ctx;
static carry_safetensors file;

static const carry_tensor *find(const char *name, const char *tensor) {
    char whole_name[2 * CARRY_SAFETENSORS_NAME];
    (void)snprintf(whole_name, sizeof whole_name, "%.255s.%.255s", name, tensor);
    return carry_safetensors_find(&file, whole_name);
}

static bool copy(float *to, const char *name, const char *tensor, int64_t count) {
    const carry_tensor *from = find(name, tensor);
    if (from == NULL) {
        return false;
    }
    int64_t has = 1;
    for (int i = 0; i < from->rank; i++) {
        has *= from->shape[i];
    }
    assert_true(from->dtype == CARRY_F32 && has == count);
    memcpy(to, from->data, (size_t)count * sizeof *to);
    return true;
}

static whole read_case(const char *name) {
    const carry_tensor *q = find(name, "q");
    const carry_tensor *v = find(name, "v");
    const carry_tensor *borders = find(name, "cu_seqlens");
    assert_true(q != NULL && v != NULL);
    carry_delta_problem p = {.batch = q->shape[0],
                             .tokens = q->shape[1],
                             .heads = q->shape[2],
                             .key = q->shape[3],
                             .value_heads = v->shape[2],
                             .value = v->shape[3],
                             .gate = find(name, "g") != NULL ? CARRY_DELTA_HEAD_GATE : CARRY_DELTA_NO_GATE,
                             .sequences = borders != NULL ? borders->shape[0] - 1 : 0};
    const char *about = carry_safetensors_metadata(&file, name);
    const char *scale = about != NULL ? strstr(about, "\"scale\": \"") : NULL;
    assert_non_null(scale);
    p.scale = strtof(scale + strlen("\"scale\": \""), NULL);
    whole w = make_whole(ctx, p, borders != NULL ? borders->data : NULL);
    bool all = copy(w.q, name, "q", w.count[2]) && copy(w.k, name, "k", w.count[2]) &&
               copy(w.v, name, "v", w.count[0]) && copy(w.beta, name, "beta", w.count[5]) &&
               copy(w.grad_o, name, "do", w.count[0]) && copy(w.initial, name, "initial_state", w.count[1]) &&
               copy(w.dfinal, name, "dfinal_state", w.count[1]);
    assert_true(all && (p.gate == CARRY_DELTA_NO_GATE || copy(w.g, name, "g", w.count[5])));
    return w;
}

/* Relative RMS, with the bounds for one rank (bench/golden/golden.c): 1e-5, and 1e-4 for gradients. */
static void compare_case(split *s, int ranks, const char *name) {
    static const char *const tensor[] = {"o", "final_state", "dq", "dk", "dv", "dbeta", "dinitial_state", "dg"};
    whole *w = s->w;
    if (!has_ranks(ranks)) {
        return;
    }
    run_on_ranks(s, ranks, name);
    for (int r = 0; r < 8; r++) {
        if (!copy(w->wanted[r], name, tensor[r], w->count[r])) {
            continue;
        }
        double off = 0.0;
        double size = 0.0;
        for (int64_t i = 0; i < w->count[r]; i++) {
            double d = (double)w->got[r][i] - (double)w->wanted[r][i];
            off += d * d;
            size += (double)w->wanted[r][i] * (double)w->wanted[r][i];
        }
        if (!(sqrt(off) <= (r < 2 ? 1e-5 : 1e-4) * sqrt(size))) {
            fail_msg("%s on %d ranks cut at %lld: %s is off by %.3g", name, ranks, (long long)s->cut[1], tensor[r],
                     sqrt(off / size));
        }
    }
}

static void every_case_on_2_and_3_ranks(void **unused) {
    (void)unused;
    int cases = 0;
    for (int64_t i = 0; i < file.count; i++) {
        char name[CARRY_SAFETENSORS_NAME];
        (void)snprintf(name, sizeof name, "%s", file.entries[i].name);
        char *end = strrchr(name, '.');
        if (end == NULL || strcmp(end, ".q") != 0) {
            continue;
        }
        *end = '\0';
        whole w = read_case(name);
        for (int ranks = 2; ranks <= 3; ranks++) {
            split s = {.w = &w};
            cut_evenly(&s, ranks);
            compare_case(&s, ranks, name);
        }
        discard_whole(&w);
        cases++;
    }
    assert_true(cases > 0);
}

static void the_shortest_case_cut_at_every_token(void **unused) {
    (void)unused;
    whole w = read_case("single_head");
    for (int64_t cut = 0; cut <= w.p.tokens; cut += support_cases(1, 9)) {
        split s = {.w = &w, .cut = {0, cut, w.p.tokens}};
        compare_case(&s, 2, "single_head");
    }
    discard_whole(&w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_case_on_2_and_3_ranks),
        cmocka_unit_test(the_shortest_case_cut_at_every_token),
    };
    char vectors[512];
    ctx = support_ctx(1, NULL, NULL);
    if (!support_vectors(vectors, sizeof vectors, "gated_delta_rule.safetensors") ||
        carry_safetensors_open(ctx, &file, vectors) != CARRY_OK) {
        print_error("%s\n", carry_ctx_error(ctx));
        return 1;
    }
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    carry_safetensors_close(&file);
    carry_ctx_free(ctx);
    return failed;
}
