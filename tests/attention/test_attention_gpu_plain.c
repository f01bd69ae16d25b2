/* The plain kernels of attention on a GPU, forward and backward, against float64: every type, values of D that the fast
   kernels do not support, every layout (gaps, heads outermost, reversed rows) and every set of runs; dk and dv are
   accumulated only in the rows of the runs; the same bits twice. Without a GPU all of it is skipped. */
/* labels: gpu */
#include "attention_support.h"

#include "attention/device.h"

#define GPU 1

static bool no_gpu(void) {
    int ordinal;
    if (carry_device_count() > 1 && carry_attention_device_of(GPU, &ordinal) != NULL) {
        return false;
    }
    (void)printf("skipped: there is no GPU here, or this build has no attention for it\n");
    return true;
}

static void *held[64];
static int held_count;

static int free_held(void **state) {
    while (held_count > 0) {
        carry_device_free(ctxs[0], GPU, held[--held_count]);
    }
    return free_kept(state);
}

static void *device_bytes(size_t bytes) {
    void *data;
    assert_in_range(held_count, 0, 63);
    assert_ok(ctxs[0], carry_device_alloc(ctxs[0], &data, GPU, bytes > 0 ? bytes : 1));
    held[held_count++] = data;
    return data;
}

static void move(void *to, int to_device, const void *from, int from_device, size_t bytes) {
    assert_ok(ctxs[0], carry_device_copy(ctxs[0], to, to_device, from, from_device, bytes, NULL));
    assert_ok(ctxs[0], carry_stream_wait(ctxs[0], GPU, NULL));
}

/* Copies all of its memory to the GPU; the tensor is at the same offset there. */
static carry_tensor send(const placed *p) {
    carry_tensor there = p->t;
    unsigned char *memory = device_bytes(p->bytes);
    move(memory, GPU, p->memory, 0, p->bytes);
    there.device = GPU;
    there.data = memory + ((unsigned char *)p->t.data - p->memory);
    return there;
}

static void fetch(const placed *p, const carry_tensor *there) {
    const unsigned char *memory = (const unsigned char *)there->data - ((unsigned char *)p->t.data - p->memory);
    move(p->memory, 0, memory, GPU, p->bytes);
}

typedef struct shape {
    int64_t T, S, H, D;
} shape;

static const shape shapes[] = {{1, 1, 1, 1},     {3, 2, 2, 5},    {17, 40, 3, 6},   {33, 65, 2, 32}, {9, 130, 1, 48},
                               {40, 20, 2, 256}, {5, 33, 2, 257}, {300, 9, 2, 576}, {3, 70, 1, 640}};

/* Scores are D terms below 1 times the scale, sums have S of them: 2^-24 for each, in two orders. */
static double slack(const shape *s) {
    return 16.0 * (double)(s->D + s->S + 8) * 0x1p-24;
}

typedef struct call {
    placed q, k, v, o, d_o, dq, dk, dv;
    array lse;
    carry_key_run run[CARRY_MAX_KEY_RUNS];
    carry_attention_backward_args here, there;
} call;

static call make(carry_dtype type, const shape *s, int layout, int set) {
    call c = {.q = random_placed(type, s->T, s->H, s->D, layout, 1.0f),
              .k = random_placed(type, s->S, s->H, s->D, (layout + 1) % LAYOUTS, 1.0f),
              .v = random_placed(type, s->S, s->H, s->D, (layout + 2) % LAYOUTS, 1.0f),
              .o = place(type, s->T, s->H, s->D, (layout + 3) % LAYOUTS),
              .d_o = random_placed(type, s->T, s->H, s->D, (layout + 1) % LAYOUTS, 1.0f),
              .dq = place(type, s->T, s->H, s->D, layout),
              .dk = random_placed(type, s->S, s->H, s->D, (layout + 2) % LAYOUTS, 0.0f),
              .dv = random_placed(type, s->S, s->H, s->D, (layout + 3) % LAYOUTS, 0.0f),
              .lse = poisoned(CARRY_F32, 2, SHAPE(s->H, s->T))};
    const int runs = some_runs(c.run, set, s->S);
    c.here = (carry_attention_backward_args){.dq = c.dq.t,
                                             .dk = c.dk.t,
                                             .dv = c.dv.t,
                                             .d_o = c.d_o.t,
                                             .forward = {.o = c.o.t,
                                                         .lse = c.lse.t,
                                                         .q = c.q.t,
                                                         .k = c.k.t,
                                                         .v = c.v.t,
                                                         .runs = runs,
                                                         .scale = set == 2 ? -0.3f : 0.0f}};
    c.there = c.here;
    c.there.dq = send(&c.dq);
    c.there.dk = send(&c.dk);
    c.there.dv = send(&c.dv);
    c.there.d_o = send(&c.d_o);
    c.there.forward.o = send(&c.o);
    c.there.forward.q = send(&c.q);
    c.there.forward.k = send(&c.k);
    c.there.forward.v = send(&c.v);
    c.there.forward.lse.device = GPU;
    c.there.forward.lse.data = device_bytes((size_t)c.lse.count * 4);
    return c;
}

static void run(call *c) {
    carry_ctx *ctx = ctxs[0];
    c->here.forward.run = c->there.forward.run = c->run;
    const size_t forward = carry_attention_workspace(&c->there.forward);
    const size_t backward = carry_attention_backward_workspace(&c->there);
    const size_t bytes = forward > backward ? forward : backward;
    void *workspace = device_bytes(bytes);
    assert_ok(ctx, carry_attention(ctx, &c->there.forward, workspace, bytes));
    assert_ok(ctx, carry_attention_backward(ctx, &c->there, workspace, bytes));
    assert_ok(ctx, carry_stream_wait(ctx, GPU, carry_ctx_stream(ctx, GPU)));
    fetch(&c->o, &c->there.forward.o);
    fetch(&c->dq, &c->there.dq);
    fetch(&c->dk, &c->there.dk);
    fetch(&c->dv, &c->there.dv);
    move(c->lse.t.data, 0, c->there.forward.lse.data, GPU, (size_t)c->lse.count * 4);
}

static void compare(const call *c, const shape *s) {
    carry_ctx *ctx = ctxs[0];
    const size_t queries = (size_t)(s->T * s->H * s->D);
    const size_t keys = (size_t)(s->S * s->H * s->D);
    double *o = keep(calloc(queries, sizeof *o)), *lse = keep(calloc((size_t)(s->H * s->T), sizeof *lse));
    double *dq = keep(calloc(queries, sizeof *dq)), *dk = keep(calloc(keys, sizeof *dk));
    double *dv = keep(calloc(keys, sizeof *dv));
    const double bound = slack(s);
    /* backward starts from an o rounded to the type, and its gradients are sums over queries */
    const double back = bound * (double)(s->T + 4) + 4.0 * rounding(c->q.t.dtype) * (double)(s->T + s->D);
    assert_ok(ctx, carry_attention_reference(ctx, o, lse, &c->here.forward));
    assert_ok(ctx, carry_attention_reference_backward(ctx, dq, dk, dv, &c->here));
    assert_placed_near("o", &c->o.t, o, bound);
    for (int64_t i = 0; i < s->H * s->T; i++) {
        const double have = ((const float *)c->lse.t.data)[i];
        assert_true(have == lse[i] || fabs(have - lse[i]) <= bound + 0x1p-20 * fabs(lse[i]));
    }
    assert_placed_near("dq", &c->dq.t, dq, back);
    assert_placed_near("dk", &c->dk.t, dk, back);
    assert_placed_near("dv", &c->dv.t, dv, back);
    assert_gaps_untouched("o", &c->o);
    assert_gaps_untouched("dq", &c->dq);
    assert_gaps_untouched("dk", &c->dk);
    assert_gaps_untouched("dv", &c->dv);
}

static void test_every_type_size_and_layout_matches_float64(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        for (int set = 0; set < RUN_SETS; set++) {
            for (int type = 0; type < 3; type++) {
                call c = make(types[type], &shapes[i], (int)(i + (size_t)set) % LAYOUTS, set);
                run(&c);
                compare(&c, &shapes[i]);
                (void)free_held(NULL);
            }
        }
    }
}

static void test_two_runs_give_the_same_bits(void **state) {
    (void)state;
    const shape s = {37, 91, 3, 40};
    call one = make(CARRY_F32, &s, 0, 1);
    unsigned char *start = keep(malloc(one.dk.bytes)), *dq = keep(malloc(one.dq.bytes));
    unsigned char *dk = keep(malloc(one.dk.bytes));
    memcpy(start, one.dk.memory, one.dk.bytes);
    run(&one);
    memcpy(dq, one.dq.memory, one.dq.bytes);
    memcpy(dk, one.dk.memory, one.dk.bytes);
    memcpy(one.dk.memory, start, one.dk.bytes); /* what dk adds to */
    one.there.dk = send(&one.dk);
    run(&one);
    assert_memory_equal(one.dq.memory, dq, one.dq.bytes);
    assert_memory_equal(one.dk.memory, dk, one.dk.bytes);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_every_type_size_and_layout_matches_float64, free_held),
        cmocka_unit_test_teardown(test_two_runs_give_the_same_bits, free_held),
    };
    if (no_gpu()) {
        return 77;
    }
    return cmocka_run_group_tests(tests, open_contexts, close_contexts);
}
