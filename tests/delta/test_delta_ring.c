/* Steps with a ring: on the CPU, and on a GPU if there is one, tokens and states equal the float64 recurrence; a copy
   of state and ring is a snapshot; unsupported arguments are refused by name. */
/* labels: gpu */
#include <math.h>

#include "core/tensor.h"
#include "support.h"

enum { Q, KEY, V, BETA, G, A_LOG, DT_BIAS, STATE, O, ALL };

/* All tokens on the CPU and on the device; a step uses one of them. */
typedef struct decode {
    carry_ctx *ctx;
    carry_delta_problem p; /* of one step */
    int64_t tokens, length;
    carry_tensor here[ALL], there[ALL];
    carry_delta_plan *plan;
    void *workspace, *ring;
    size_t ring_bytes;
} decode;

static size_t bytes_of(const carry_tensor *t) {
    return (size_t)carry_tensor_count(t) * carry_dtype_size(t->dtype);
}

static carry_tensor shape_of(const decode *d, int which) {
    const carry_delta_problem *p = &d->p;
    if (which == Q || which == KEY) {
        return carry_view_4d(NULL, p->dtype, p->batch, d->tokens, p->heads, p->key);
    }
    if (which == V || which == O) {
        return carry_view_4d(NULL, p->dtype, p->batch, d->tokens, p->value_heads, p->value);
    }
    if (which == G && p->gate == CARRY_DELTA_KEY_GATE) {
        return carry_view_4d(NULL, CARRY_F32, p->batch, d->tokens, p->value_heads, p->key);
    }
    if (which == G || which == BETA) {
        return carry_view_3d(NULL, CARRY_F32, p->batch, d->tokens, p->value_heads);
    }
    return which == STATE ? carry_view_4d(NULL, CARRY_F32, p->batch, p->value_heads, p->key, p->value)
                          : carry_view_1d(NULL, CARRY_F32, p->value_heads);
}

static void copy(const decode *d, void *to, int to_device, const void *from, int from_device, size_t bytes) {
    assert_ok(d->ctx, carry_device_copy(d->ctx, to, to_device, from, from_device, bytes, NULL));
    assert_ok(d->ctx, carry_stream_wait(d->ctx, d->p.device, NULL));
}

static decode open_decode(carry_ctx *ctx, carry_delta_problem p, int64_t tokens, int64_t length) {
    decode d = {.ctx = ctx, .p = p, .tokens = tokens, .length = length};
    d.p.tokens = 1;
    for (int i = 0; i < ALL; i++) {
        d.here[i] = d.there[i] = shape_of(&d, i);
        d.here[i].data = malloc(bytes_of(&d.here[i]));
        assert_non_null(d.here[i].data);
        assert_ok(ctx, carry_random_normal(ctx, d.here[i], 5, (uint64_t)i, 0.0f, i == STATE ? 0.3f : 1.0f));
        float *x = d.here[i].data;
        for (int64_t j = 0; (i == BETA || (i == G && !p.gate_inside)) && j < carry_tensor_count(&d.here[i]); j++) {
            x[j] = i == BETA ? 1.0f / (1.0f + expf(-x[j])) : j % 11 == 7 ? -1000.0f : -0.3f * fabsf(x[j]);
        }
        d.there[i].device = p.device;
        assert_ok(ctx, carry_device_alloc(ctx, &d.there[i].data, p.device, bytes_of(&d.here[i])));
        copy(&d, d.there[i].data, p.device, d.here[i].data, 0, bytes_of(&d.here[i]));
    }
    assert_ok(ctx, carry_delta_plan_new(ctx, &d.plan, &d.p, NULL));
    d.ring_bytes = carry_delta_ring_bytes(d.plan, length);
    assert_ok(ctx, carry_device_alloc(ctx, &d.workspace, p.device, carry_delta_forward_workspace(d.plan)));
    assert_ok(ctx, carry_device_alloc(ctx, &d.ring, p.device, d.ring_bytes));
    /* the counts are zero, all bytes after them are arbitrary */
    assert_ok(ctx, carry_device_fill(ctx, d.ring, p.device, 0xff, d.ring_bytes, NULL));
    assert_ok(ctx, carry_device_fill(ctx, d.ring, p.device, 0, (size_t)(p.batch * p.value_heads) * 32, NULL));
    return d;
}

static void close_decode(decode *d) {
    for (int i = 0; i < ALL; i++) {
        free(d->here[i].data);
        carry_device_free(d->ctx, d->p.device, d->there[i].data);
    }
    carry_device_free(d->ctx, d->p.device, d->workspace);
    carry_device_free(d->ctx, d->p.device, d->ring);
    carry_delta_plan_free(d->plan);
}

/* Token t of a tensor of all tokens. */
static carry_tensor token_of(carry_tensor all, int64_t t) {
    all.data = (char *)all.data + t * all.stride[1] * (int64_t)carry_dtype_size(all.dtype);
    all.shape[1] = 1;
    return all;
}

static carry_delta_forward_args args_of(const carry_delta_problem *p, const carry_tensor t[ALL], carry_tensor *g) {
    return (carry_delta_forward_args){.o = t[O],
                                      .q = t[Q],
                                      .k = t[KEY],
                                      .v = t[V],
                                      .beta = t[BETA],
                                      .g = p->gate != CARRY_DELTA_NO_GATE ? *g : (carry_tensor){0},
                                      .A_log = p->gate_inside ? t[A_LOG] : (carry_tensor){0},
                                      .dt_bias = p->gate_inside ? t[DT_BIAS] : (carry_tensor){0}};
}

static carry_status step(decode *d, int64_t t) {
    carry_tensor one[ALL];
    for (int i = 0; i < ALL; i++) {
        one[i] = i < A_LOG || i == O ? token_of(d->there[i], t) : d->there[i];
    }
    carry_delta_forward_args args = args_of(&d->p, one, &one[G]);
    return carry_delta_step_ring(d->plan, one[O], d->there[STATE], (carry_delta_ring_memory){d->ring, d->length}, &args,
                                 d->workspace, carry_delta_forward_workspace(d->plan));
}

static void compare(const decode *d, int which, const double *wanted) {
    const carry_tensor *got = &d->here[which];
    double largest = 1e-30;
    double tolerance = 3e-5 + (got->dtype == CARRY_BF16 ? 0x1p-7 : got->dtype == CARRY_F16 ? 0x1p-10 : 0.0);
    for (int64_t i = 0; i < carry_tensor_count(got); i++) {
        largest = fabs(wanted[i]) > largest ? fabs(wanted[i]) : largest;
    }
    for (int64_t i = 0; i < carry_tensor_count(got); i++) {
        double value = carry_tensor_at(got, i);
        if (!(fabs(value - wanted[i]) <= tolerance * largest)) {
            fail_msg("device %d, ring of %lld, K=%lld V=%lld gate %d %s: %s[%lld] is %g and should be %g", d->p.device,
                     (long long)d->length, (long long)d->p.key, (long long)d->p.value, (int)d->p.gate,
                     carry_dtype_name(d->p.dtype), which == O ? "o" : "state", (long long)i, value, wanted[i]);
        }
    }
}

static void check_decode(decode *d) {
    carry_delta_problem p = d->p;
    p.tokens = d->tokens;
    p.device = 0;
    double *o = calloc((size_t)carry_tensor_count(&d->here[O]), sizeof *o);
    double *state = calloc((size_t)carry_tensor_count(&d->here[STATE]), sizeof *state);
    assert_true(o != NULL && state != NULL);
    carry_delta_forward_args args = args_of(&p, d->here, &d->here[G]);
    args.initial_state = d->here[STATE];
    assert_ok(d->ctx, carry_delta_reference(d->ctx, o, state, &p, &args));
    for (int64_t t = 0; t < d->tokens; t++) {
        assert_ok(d->ctx, step(d, t));
    }
    assert_ok(d->ctx, carry_delta_ring_flush(d->plan, d->there[STATE], (carry_delta_ring_memory){d->ring, d->length}));
    assert_ok(d->ctx, carry_stream_wait(d->ctx, d->p.device, NULL));
    copy(d, d->here[O].data, 0, d->there[O].data, d->p.device, bytes_of(&d->here[O]));
    copy(d, d->here[STATE].data, 0, d->there[STATE].data, d->p.device, bytes_of(&d->here[STATE]));
    compare(d, O, o);
    compare(d, STATE, state);
    free(o);
    free(state);
}

static int devices(void) {
    return carry_device_count() > 1 && carry_delta_name(1, 0) != NULL ? 2 : 1;
}

static void steps_equal_the_recurrence(void **unused) {
    (void)unused;
    static const int64_t shapes[][5] = {{2, 1, 2, 128, 128}, {3, 2, 2, 64, 64},  {1, 1, 3, 200, 36},
                                        {2, 1, 1, 32, 256},  {1, 2, 4, 16, 100}, {1, 1, 1, 1, 4}};
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    for (int device = 0; device < devices(); device++) {
        for (int form = 0; form < 18; form++) {
            const int64_t *s = shapes[form % 6];
            carry_delta_problem p = {.batch = s[0],
                                     .heads = s[1],
                                     .value_heads = s[2],
                                     .key = s[3],
                                     .value = s[4],
                                     .dtype = (carry_dtype)(form % 3),
                                     .gate = (carry_delta_gate)(form / 6),
                                     .gate_inside = form / 6 == 1 && form % 2 == 1,
                                     .l2norm = true,
                                     .device = device};
            static const int64_t lengths[] = {16, 1, 5, 2, 8, 13, 3};
            const int64_t length = lengths[form % 7];
            decode d = open_decode(ctx, p, 2 * length + 3, length);
            check_decode(&d);
            close_decode(&d);
        }
    }
    carry_ctx_free(ctx);
}

/* Heads of 128, for which Hopper GPUs have a kernel of their own, with more units than multiprocessors. */
static void heads_of_128_equal_the_recurrence(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    for (int device = 0; device < devices(); device++) {
        for (int form = 0; form < 9; form++) {
            static const int64_t lengths[] = {16, 7, 4};
            carry_delta_problem p = {.batch = device > 0 ? 19 : 1,
                                     .heads = 4,
                                     .value_heads = device > 0 ? 16 : 4,
                                     .key = 128,
                                     .value = 128,
                                     .dtype = (carry_dtype)(form % 3),
                                     .gate = (carry_delta_gate)(form / 3),
                                     .gate_inside = form == 4,
                                     .l2norm = true,
                                     .device = device};
            decode d = open_decode(ctx, p, lengths[form % 3] + 6, lengths[form % 3]);
            check_decode(&d);
            close_decode(&d);
        }
    }
    carry_ctx_free(ctx);
}

/* Restores a copy of state and ring and continues: the same bits, wherever in the ring it was taken. */
static void a_copy_of_both_is_a_snapshot(void **unused) {
    (void)unused;
    enum { LENGTH = 4, TOKENS = 14 };
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    for (int device = 0; device < devices(); device++) {
        for (int64_t taken = 0; taken < 6; taken++) {
            decode d = open_decode(ctx,
                                   (carry_delta_problem){.batch = 2,
                                                         .heads = 1,
                                                         .value_heads = 2,
                                                         .key = taken % 2 == 0 ? 24 : 128,
                                                         .value = taken % 2 == 0 ? 40 : 128,
                                                         .gate = CARRY_DELTA_HEAD_GATE,
                                                         .l2norm = true,
                                                         .device = device},
                                   TOKENS, LENGTH);
            const size_t state = bytes_of(&d.here[STATE]);
            const size_t o = bytes_of(&d.here[O]);
            char *kept = malloc(state + d.ring_bytes + o);
            assert_non_null(kept);
            for (int64_t t = 0; t < taken; t++) {
                assert_ok(ctx, step(&d, t));
            }
            copy(&d, kept, 0, d.there[STATE].data, device, state);
            copy(&d, kept + state, 0, d.ring, device, d.ring_bytes);
            for (int run = 0; run < 2; run++) {
                copy(&d, d.there[STATE].data, device, kept, 0, state);
                copy(&d, d.ring, device, kept + state, 0, d.ring_bytes);
                for (int64_t t = taken; t < TOKENS; t++) {
                    assert_ok(ctx, step(&d, t));
                }
                copy(&d, d.here[O].data, 0, d.there[O].data, device, o);
                if (run == 0) {
                    memcpy(kept + state + d.ring_bytes, d.here[O].data, o);
                }
            }
            assert_memory_equal(kept + state + d.ring_bytes, d.here[O].data, o);
            free(kept);
            close_decode(&d);
        }
    }
    carry_ctx_free(ctx);
}

/* Restores the counts of a ring: tokens since then have no effect. */
static void tokens_since_a_copy_of_the_counts_are_dropped(void **unused) {
    (void)unused;
    enum { LENGTH = 8, TAKEN = 3, DRAFTS = 4, TOKENS = 12 };
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    carry_delta_problem p = {.batch = 2,
                             .heads = 1,
                             .value_heads = 2,
                             .key = 128,
                             .value = 128,
                             .gate = CARRY_DELTA_HEAD_GATE,
                             .l2norm = true};
    for (p.device = 0; p.device < devices(); p.device++) {
        char *o[2];
        size_t bytes = 0;
        for (int drafts = 0; drafts < 2; drafts++) {
            decode d = open_decode(ctx, p, TOKENS, LENGTH);
            const size_t counts = carry_delta_ring_count_bytes(d.plan);
            char *kept = malloc(counts);
            bytes = bytes_of(&d.here[O]);
            o[drafts] = malloc(bytes);
            assert_true(kept != NULL && o[drafts] != NULL);
            for (int64_t t = 0; t < TAKEN; t++) {
                assert_ok(ctx, step(&d, t));
            }
            copy(&d, kept, 0, d.ring, p.device, counts);
            for (int64_t t = TAKEN; t < TAKEN + DRAFTS && drafts > 0; t++) {
                assert_ok(ctx, step(&d, t));
            }
            copy(&d, d.ring, p.device, kept, 0, counts);
            for (int64_t t = TAKEN + DRAFTS; t < TOKENS; t++) {
                assert_ok(ctx, step(&d, t));
            }
            for (int64_t t = TAKEN; t < TAKEN + DRAFTS; t++) { /* outputs of the drafts are written in both runs */
                copy(&d, kept, 0, d.ring, p.device, counts);
                assert_ok(ctx, step(&d, t));
                copy(&d, d.ring, p.device, kept, 0, counts);
            }
            copy(&d, o[drafts], 0, d.there[O].data, p.device, bytes);
            free(kept);
            close_decode(&d);
        }
        assert_memory_equal(o[0], o[1], bytes);
        free(o[0]);
        free(o[1]);
    }
    carry_ctx_free(ctx);
}

static void what_it_does_not_take_is_refused(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    carry_delta_problem p = {.batch = 1, .heads = 1, .value_heads = 1, .key = 128, .value = 128};
    decode d = open_decode(ctx, p, 1, 16);
    assert_int_equal(carry_delta_ring_length(d.plan), 0); /* a plain step is faster on the CPU */
    d.length = 17;
    assert_refused(ctx, CARRY_EARGUMENT, "a ring of 17 tokens: it takes 1 to 16", step(&d, 0));
    assert_int_equal(carry_delta_ring_bytes(d.plan, 17), 0);
    d.length = 16;
    void *ring = d.ring;
    d.ring = (char *)ring + 4;
    assert_refused(ctx, CARRY_EALIGN, "not a multiple of 16", step(&d, 0));
    d.ring = ring;
    carry_delta_plan *plan = d.plan;
    p.tokens = 1;
    p.state_transposed = true;
    assert_ok(ctx, carry_delta_plan_new(ctx, &d.plan, &p, NULL));
    assert_int_equal(carry_delta_ring_length(d.plan), 0);
    assert_refused(ctx, CARRY_EUNSUPPORTED, "this plan has no ring: states are transposed", step(&d, 0));
    carry_delta_plan_free(d.plan);
    p.state_transposed = false;
    p.tokens = 2;
    assert_ok(ctx, carry_delta_plan_new(ctx, &d.plan, &p, NULL));
    assert_refused(ctx, CARRY_EUNSUPPORTED, "one token for each of batch sequences", step(&d, 0));
    carry_delta_plan_free(d.plan);
    d.plan = plan;
    close_decode(&d);
    carry_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_equal_the_recurrence),
        cmocka_unit_test(heads_of_128_equal_the_recurrence),
        cmocka_unit_test(a_copy_of_both_is_a_snapshot),
        cmocka_unit_test(tokens_since_a_copy_of_the_counts_are_dropped),
        cmocka_unit_test(what_it_does_not_take_is_refused),
    };
    return cmocka_run_group_tests_name("delta/ring", tests, NULL, NULL);
}
