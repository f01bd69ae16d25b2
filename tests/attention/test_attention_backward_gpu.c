/* The backward pass of causal attention on a GPU's tensor cores against float64: D of 64, 128 and 256, bf16 and f16,
   grouped heads, sizes around every tile, more keys than queries, documents of packed rows; gaps are not written; the
   same bits in every run; and NaN in k or v does not reach queries that do not see it, forward and backward. Without a
   GPU all of it is skipped. */
/* labels: gpu */
#include "attention_support.h"

#include "attention/device.h"

#define GPU 1
#define REPEATS 10

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

/* A tensor on the host and on the GPU, packed or with gaps between rows and heads that kernels support. */
typedef struct pair {
    placed here;
    carry_tensor there;
} pair;

static void send(pair *p) {
    assert_ok(ctxs[0], carry_device_copy(ctxs[0], p->there.data, GPU, p->here.memory, 0, p->here.bytes, NULL));
    assert_ok(ctxs[0], carry_stream_wait(ctxs[0], GPU, NULL));
}

static void fetch(pair *p) {
    assert_ok(ctxs[0], carry_device_copy(ctxs[0], p->here.memory, 0, p->there.data, GPU, p->here.bytes, NULL));
    assert_ok(ctxs[0], carry_stream_wait(ctxs[0], GPU, NULL));
}

static pair make_pair(carry_dtype type, int64_t rows, int64_t heads, int64_t dim, bool gaps) {
    const int64_t wide = gaps ? dim + 8 : dim, row = heads * wide + (gaps ? 16 : 0);
    pair p = {.here = {.t = carry_view_3d(NULL, type, rows, heads, dim), .bytes = (size_t)(rows * row) * 2}};
    p.here.t.stride[0] = row;
    p.here.t.stride[1] = wide;
    p.here.t.data = p.here.memory = keep(malloc(p.here.bytes));
    memset(p.here.memory, 255, p.here.bytes);
    p.there = p.here.t;
    p.there.device = GPU;
    p.there.data = device_bytes(p.here.bytes);
    send(&p);
    return p;
}

static void fill(pair *p) {
    const carry_tensor *t = &p->here.t;
    array a = random_array(CARRY_F32, 3, SHAPE(t->shape[0], t->shape[1], t->shape[2]), -1.0f, 1.0f);
    for (int64_t i = 0; i < a.count; i++) {
        set_value(t, i / t->shape[2] / t->shape[1], i / t->shape[2] % t->shape[1], i % t->shape[2], (float)a.v[i]);
    }
    send(p);
}

typedef struct problem {
    carry_dtype type;
    int64_t T, S, H, HK, D;
    bool gaps;
} problem;

typedef struct call {
    pair q, k, v, o, d_o, dq, dk, dv;
    array lse;
    carry_attention_backward_args here, there;
    void *workspace;
    size_t bytes;
} call;

static call make(const problem *p) {
    call c = {.q = make_pair(p->type, p->T, p->H, p->D, p->gaps),
              .k = make_pair(p->type, p->S, p->HK, p->D, p->gaps),
              .v = make_pair(p->type, p->S, p->HK, p->D, false),
              .o = make_pair(p->type, p->T, p->H, p->D, p->gaps),
              .d_o = make_pair(p->type, p->T, p->H, p->D, false),
              .dq = make_pair(p->type, p->T, p->H, p->D, p->gaps),
              .dk = make_pair(p->type, p->S, p->HK, p->D, p->gaps),
              .dv = make_pair(p->type, p->S, p->HK, p->D, false),
              .lse = poisoned(CARRY_F32, 2, SHAPE(p->H, p->T))};
    fill(&c.q);
    fill(&c.k);
    fill(&c.v);
    fill(&c.d_o);
    c.here = (carry_attention_backward_args){
        .dq = c.dq.here.t,
        .dk = c.dk.here.t,
        .dv = c.dv.here.t,
        .d_o = c.d_o.here.t,
        .forward = {
            .o = c.o.here.t, .lse = c.lse.t, .q = c.q.here.t, .k = c.k.here.t, .v = c.v.here.t, .causal = true}};
    c.there = (carry_attention_backward_args){
        .dq = c.dq.there,
        .dk = c.dk.there,
        .dv = c.dv.there,
        .d_o = c.d_o.there,
        .forward = {.o = c.o.there, .lse = c.lse.t, .q = c.q.there, .k = c.k.there, .v = c.v.there, .causal = true}};
    c.there.forward.lse.device = GPU;
    c.there.forward.lse.data = device_bytes((size_t)c.lse.count * 4);
    const size_t forward = carry_attention_workspace(&c.there.forward);
    const size_t backward = carry_attention_backward_workspace(&c.there);
    c.bytes = forward > backward ? forward : backward;
    c.workspace = device_bytes(c.bytes);
    return c;
}

static void fetch_all(call *c) {
    fetch(&c->o);
    fetch(&c->dq);
    fetch(&c->dk);
    fetch(&c->dv);
}

static void forward(call *c) {
    assert_ok(ctxs[0], carry_device_fill(ctxs[0], c->workspace, GPU, 255, c->bytes, NULL));
    assert_ok(ctxs[0], carry_attention(ctxs[0], &c->there.forward, c->workspace, c->bytes));
}

static void run(call *c) {
    forward(c);
    assert_ok(ctxs[0], carry_device_fill(ctxs[0], c->workspace, GPU, 255, c->bytes, NULL));
    assert_ok(ctxs[0], carry_attention_backward(ctxs[0], &c->there, c->workspace, c->bytes));
    fetch_all(c);
}

/* P, dS and o are rounded to 16 bits before they are multiplied, with independent errors: the norm of the error is a
   few roundings of that of the result. One wrong key of hundreds gives far more. Where the result is 0, as dq of a
   query that sees one key, the remainder of f32 is below 1e-4 an element. */
static void assert_norm_near(const char *what, const carry_tensor *got, const double *want, double added) {
    double error = 0.0, norm = 0.0, largest = 0.0, most = 0.0;
    const int64_t count = got->shape[0] * got->shape[1] * got->shape[2];
    for (int64_t i = 0; i < count; i++) {
        const int64_t h = i / got->shape[2] % got->shape[1], r = i / got->shape[2] / got->shape[1];
        const double wanted = want[i] + added, off = value(got, r, h, i % got->shape[2]) - wanted;
        error += off * off;
        norm += wanted * wanted;
        largest = fabs(off) > largest || isnan(off) ? fabs(off) : largest;
        most = fabs(wanted) > most ? fabs(wanted) : most;
    }
    const double u = rounding(got->dtype);
    if (!(sqrt(error) <= 6.0 * u * sqrt(norm) + 1e-4 * sqrt((double)count)) || !(largest <= 12.0 * u * most + 1e-3)) {
        fail_msg("%s (%s) [%lld, %lld, %lld]: error %.3g of norm %.3g, largest %.3g of %.3g", what,
                 carry_dtype_name(got->dtype), (long long)got->shape[0], (long long)got->shape[1],
                 (long long)got->shape[2], sqrt(error), sqrt(norm), largest, most);
    }
}

static void compare(const carry_attention_backward_args *here, double added) {
    const int64_t queries = carry_tensor_count(&here->dq), keys = carry_tensor_count(&here->dk);
    double *dq = keep(calloc((size_t)queries, sizeof *dq));
    double *dk = keep(calloc((size_t)keys, sizeof *dk)), *dv = keep(calloc((size_t)keys, sizeof *dv));
    assert_ok(ctxs[0], carry_attention_reference_backward(ctxs[0], dq, dk, dv, here));
    assert_norm_near("dq", &here->dq, dq, 0.0);
    assert_norm_near("dk", &here->dk, dk, added);
    assert_norm_near("dv", &here->dv, dv, added);
}

static void set_all(pair *p, float number) {
    const carry_tensor *t = &p->here.t;
    for (int64_t i = 0; i < t->shape[0] * t->shape[1] * t->shape[2]; i++) {
        set_value(t, i / t->shape[2] / t->shape[1], i / t->shape[2] % t->shape[1], i % t->shape[2], number);
    }
    send(p);
}

static void gradients_match_float64(void **state) {
    (void)state;
    /* T, S, H, HK; tiles have 64 or 128 queries and 32 to 128 keys. Most of the time goes to the CPU's float64. */
    static const int64_t shapes[][4] = {{1, 1, 1, 1},     {63, 63, 2, 1},   {64, 64, 1, 1},   {65, 65, 3, 3},
                                        {128, 128, 2, 2}, {129, 129, 4, 2}, {33, 200, 2, 1},  {1, 300, 4, 1},
                                        {100, 513, 1, 1}, {257, 257, 3, 1}, {300, 300, 1, 1}, {448, 448, 1, 1}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        for (int64_t D = 64; D <= 256; D *= 2) {
            for (int half = 0; half < 2; half++) {
                if (!support_takes((int)(i * 6 + (size_t)(D / 64) * 2) + half, 5)) {
                    continue;
                }
                const int64_t *s = shapes[i];
                const problem p = {half ? CARRY_F16 : CARRY_BF16, s[0], s[1], s[2], s[3], D, i % 2 == 1};
                call c = make(&p);
                assert_string_not_equal(carry_attention_backward_method(&c.there), "plain");
                set_all(&c.dq, 7.0f); /* also gives the gaps on the GPU the bytes that are checked */
                set_all(&c.dk, 0.5f);
                set_all(&c.dv, 0.5f);
                run(&c);
                compare(&c.here, 0.5);
                assert_gaps_untouched("dq", &c.dq.here);
                assert_gaps_untouched("dk", &c.dk.here);
                (void)free_held(NULL);
            }
        }
    }
}

/* Documents that end inside tiles, an empty one, and one of one row. */
static void documents_match_float64(void **state) {
    (void)state;
    static const int64_t starts[] = {0, 100, 164, 164, 165, 422, 550, 555};
    enum { COUNT = sizeof starts / sizeof *starts - 1 };
    const int64_t T = starts[COUNT];
    for (int64_t D = 64; D <= 256; D *= 2) {
        const problem p = {D == 128 ? CARRY_F16 : CARRY_BF16, T, T, 4, 2, D, false};
        call c = make(&p);
        const carry_attention_documents documents = {starts, COUNT};
        for (int i = 0; i < COUNT; i++) {
            carry_attention_args one = c.there.forward;
            const int64_t rows = starts[i + 1] - starts[i];
            carry_tensor *const tensors[] = {&one.q, &one.k, &one.v, &one.o};
            for (size_t j = 0; j < 4; j++) {
                *tensors[j] = carry_slice(*tensors[j], starts[i], rows);
            }
            one.lse = carry_view_2d((float *)c.there.forward.lse.data + starts[i] * 4, CARRY_F32, 4, rows);
            one.lse.device = GPU;
            if (rows > 0) {
                assert_ok(ctxs[0], carry_attention(ctxs[0], &one, c.workspace, c.bytes));
            }
        }
        const size_t bytes = carry_attention_backward_documents_workspace(&c.there, 257);
        void *workspace = device_bytes(bytes);
        assert_ok(ctxs[0], carry_device_fill(ctxs[0], workspace, GPU, 255, bytes, NULL));
        assert_ok(ctxs[0], carry_attention_backward_documents(ctxs[0], &c.there, &documents, workspace, bytes));
        fetch_all(&c);
        for (int i = 0; i < COUNT; i++) {
            carry_attention_backward_args one = c.here;
            carry_tensor *const tensors[] = {&one.dq,        &one.dk,        &one.dv,        &one.d_o,
                                             &one.forward.q, &one.forward.k, &one.forward.v, &one.forward.o};
            for (size_t j = 0; j < 8; j++) {
                *tensors[j] = carry_slice(*tensors[j], starts[i], starts[i + 1] - starts[i]);
            }
            one.forward.lse = carry_view_2d(c.lse.t.data, CARRY_F32, 4, starts[i + 1] - starts[i]); /* not read */
            if (starts[i + 1] > starts[i]) {
                compare(&one, 0.0);
            }
        }
        (void)free_held(NULL);
    }
}

static void repeated_runs_give_the_same_bits(void **state) {
    (void)state;
    for (int64_t D = 64; D <= 256; D *= 2) {
        const problem p = {CARRY_BF16, 700, 700, 8, 4, D, false};
        call c = make(&p);
        unsigned char *first[3] = {NULL, NULL, NULL};
        for (int i = 0; i < support_cases(REPEATS, 2); i++) {
            pair *const results[] = {&c.dq, &c.dk, &c.dv};
            set_all(&c.dk, 0.0f);
            set_all(&c.dv, 0.0f);
            run(&c);
            for (int j = 0; j < 3; j++) {
                if (i == 0) {
                    first[j] = keep(malloc(results[j]->here.bytes));
                    memcpy(first[j], results[j]->here.memory, results[j]->here.bytes);
                }
                assert_memory_equal(first[j], results[j]->here.memory, results[j]->here.bytes);
            }
        }
        (void)free_held(NULL);
    }
}

/* Rows of a result before `end` equal those of `before`, up to the rounding of the type: the scale of a warp's sums may
   depend on a row of another query. Every row from `end` on contains a NaN. */
static void assert_contained(const char *what, const pair *result, const unsigned char *before, int64_t end) {
    const carry_tensor *t = &result->here.t;
    carry_tensor old = *t;
    old.data = (void *)before;
    double error = 0.0, norm = 0.0;
    for (int64_t i = 0; i < end * t->shape[1] * t->shape[2]; i++) {
        const int64_t d = i % t->shape[2], h = i / t->shape[2] % t->shape[1], r = i / t->shape[2] / t->shape[1];
        const double was = value(&old, r, h, d), off = value(t, r, h, d) - was;
        error += off * off;
        norm += was * was;
    }
    if (!(sqrt(error) <= rounding(t->dtype) * sqrt(norm))) {
        fail_msg("%s (%s), D %lld: rows before %lld are %.3g apart, of norm %.3g", what, carry_dtype_name(t->dtype),
                 (long long)t->shape[2], (long long)end, sqrt(error), sqrt(norm));
    }
    for (int64_t i = end; i < t->shape[0]; i++) {
        bool is_nan = false;
        for (int64_t d = 0; d < t->shape[2]; d++) {
            is_nan = is_nan || isnan(value(t, i, 0, d));
        }
        assert_true(is_nan);
    }
}

/* Puts NaN into one row of k or v and checks the rows of o and dq before and after it. */
static void spoil(const problem *p, int64_t row, bool in_keys) {
    call c = make(p);
    pair *const spoiled = in_keys ? &c.k : &c.v;
    set_all(&c.dk, 0.0f);
    set_all(&c.dv, 0.0f);
    run(&c);
    unsigned char *o = keep(malloc(c.o.here.bytes)), *dq = keep(malloc(c.dq.here.bytes));
    memcpy(o, c.o.here.memory, c.o.here.bytes);
    memcpy(dq, c.dq.here.memory, c.dq.here.bytes);
    set_value(&spoiled->here.t, row, 0, 5, NAN);
    send(spoiled);
    run(&c);
    assert_contained(in_keys ? "o, NaN in k" : "o, NaN in v", &c.o, o, row);
    assert_contained(in_keys ? "dq, NaN in k" : "dq, NaN in v", &c.dq, dq, row);
    (void)free_held(NULL);
}

static void nan_reaches_only_queries_that_see_it(void **state) {
    (void)state;
    static const int64_t lengths[] = {64, 200, 330};
    for (int64_t D = 64; D <= 256; D *= 2) {
        for (int i = 0; i < 12; i++) {
            const int64_t T = lengths[i % 3];
            const problem p = {i >= 6 ? CARRY_F16 : CARRY_BF16, T, T, 2, 1, D, false};
            if (support_takes(i, 4)) {
                spoil(&p, T / 2 + 7 * i / 3, i % 2 == 1);
            }
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(gradients_match_float64, free_held),
        cmocka_unit_test_teardown(documents_match_float64, free_held),
        cmocka_unit_test_teardown(repeated_runs_give_the_same_bits, free_held),
        cmocka_unit_test_teardown(nan_reaches_only_queries_that_see_it, free_held),
    };
    if (no_gpu()) {
        return 77;
    }
    return cmocka_run_group_tests(tests, open_contexts, close_contexts);
}
