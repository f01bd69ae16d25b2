/* Attention on a GPU against float64: sizes around every tile, layouts with gaps, runs that wrap and runs that are left
   out, more tiles than multiprocessors; the same bits in every run, and from a graph; wrong memory is refused by name.
   Cases that the fast kernels do not support are in test_attention_gpu_plain.c. Without a GPU all of it is skipped. */
/* labels: gpu */
#include "attention_support.h"

#include "attention/device.h"

#define GPU 1
#define REPEATS 50

static bool no_gpu(void) {
    int ordinal;
    if (carry_device_count() > 1 && carry_attention_device_of(GPU, &ordinal) != NULL) {
        return false;
    }
    (void)printf("skipped: there is no GPU here, or this build has no attention for it\n");
    return true;
}

/* Device memory that is freed with the test. */
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

/* As `place`, with strides that a GPU supports. 0: packed; 1: heads outermost; 2: rows and heads with gaps. */
enum { GPU_LAYOUTS = 3 };

static placed place_for_gpu(int64_t rows, int64_t heads, int64_t dim, int layout) {
    int64_t wide = layout == 2 ? dim + 8 : dim;
    placed p = {.t = carry_view_3d(NULL, CARRY_BF16, rows, heads, dim)};
    p.t.stride[1] = layout == 1 ? rows * dim : wide;
    p.t.stride[0] = layout == 1 ? dim : heads * wide + (layout == 2 ? 16 : 0);
    p.bytes = (size_t)(rows * (heads * wide + 16) + 8) * 2;
    p.memory = keep(malloc(p.bytes));
    memset(p.memory, 255, p.bytes);
    p.t.data = p.memory;
    return p;
}

static void fill(const placed *p, int64_t from, int64_t count) {
    array a = random_array(CARRY_F32, 3, SHAPE(count, p->t.shape[1], p->t.shape[2]), -1.0f, 1.0f);
    for (int64_t i = 0; i < a.count; i++) {
        int64_t d = i % p->t.shape[2];
        int64_t h = i / p->t.shape[2] % p->t.shape[1];
        set_value(&p->t, from + i / p->t.shape[2] / p->t.shape[1], h, d, (float)a.v[i]);
    }
}

typedef struct problem {
    placed q, k, v, o; /* rows of k and v that are in no run are NaN */
    array lse;
    carry_key_run run[CARRY_MAX_KEY_RUNS];
    int runs;
    carry_attention_args there;
    size_t bytes; /* of the workspace */
    void *workspace;
} problem;

static carry_tensor send(const placed *p) {
    carry_tensor there = p->t;
    there.device = GPU;
    there.data = device_bytes(p->bytes);
    assert_ok(ctxs[0], carry_device_copy(ctxs[0], there.data, GPU, p->memory, 0, p->bytes, NULL));
    assert_ok(ctxs[0], carry_stream_wait(ctxs[0], GPU, NULL));
    return there;
}

static problem make(int64_t T, int64_t S, int64_t H, int64_t D, int layout, const carry_key_run *run, int runs) {
    problem p = {.q = place_for_gpu(T, H, D, layout),
                 .k = place_for_gpu(S, H, D, (layout + 1) % GPU_LAYOUTS),
                 .v = place_for_gpu(S, H, D, (layout + 2) % GPU_LAYOUTS),
                 .o = place_for_gpu(T, H, D, (layout + 1) % GPU_LAYOUTS),
                 .lse = poisoned(CARRY_F32, 2, SHAPE(H, T)),
                 .runs = runs};
    fill(&p.q, 0, T);
    const carry_key_run all = {.first = 0, .count = S};
    for (int i = 0; i < (runs > 0 ? runs : 1); i++) {
        const carry_key_run *r = runs > 0 ? &run[i] : &all;
        p.run[i] = *r;
        if (r->bias > -INFINITY) {
            fill(&p.k, r->first, r->count);
            fill(&p.v, r->first, r->count);
        }
    }
    p.there = (carry_attention_args){
        .o = send(&p.o), .lse = p.lse.t, .q = send(&p.q), .k = send(&p.k), .v = send(&p.v), .run = p.run, .runs = runs};
    p.there.lse.device = GPU;
    p.there.lse.data = device_bytes((size_t)p.lse.count * 4);
    p.bytes = carry_attention_workspace(&p.there);
    p.workspace = p.bytes > 0 ? device_bytes(p.bytes) : NULL;
    return p;
}

static void fetch(problem *p) {
    assert_ok(ctxs[0], carry_stream_wait(ctxs[0], GPU, NULL));
    assert_ok(ctxs[0], carry_device_copy(ctxs[0], p->o.memory, 0, p->there.o.data, GPU, p->o.bytes, NULL));
    if (p->there.lse.data != NULL) {
        assert_ok(ctxs[0],
                  carry_device_copy(ctxs[0], p->lse.t.data, 0, p->there.lse.data, GPU, (size_t)p->lse.count * 4, NULL));
    }
}

/* Fills outputs and workspace with NaN. */
static void poison(problem *p) {
    assert_ok(ctxs[0], carry_device_fill(ctxs[0], p->there.o.data, GPU, 255, p->o.bytes, NULL));
    assert_ok(ctxs[0], carry_device_fill(ctxs[0], p->workspace, GPU, 255, p->bytes, NULL));
}

static void run(problem *p) {
    p->there.run = p->run;
    poison(p);
    assert_ok(ctxs[0], carry_attention(ctxs[0], &p->there, p->workspace, p->bytes));
    fetch(p);
}

static carry_tensor one_head(const carry_tensor *t, int64_t head) {
    carry_tensor one = *t;
    one.shape[1] = 1;
    one.data = (char *)t->data + head * t->stride[1] * 2;
    return one;
}

/* Probabilities are rounded to bf16, 2^-9 of each, before they are multiplied by values below 1. The error of f32 is
   far smaller. */
#define BOUND (0x1p-9 + 0x1p-14)

static void compare(const problem *p, int64_t head) {
    int64_t T = p->q.t.shape[0];
    int64_t D = p->q.t.shape[2];
    carry_tensor o = one_head(&p->o.t, head);
    double *o64 = keep(calloc((size_t)(T * D), sizeof *o64));
    double *lse64 = keep(calloc((size_t)T, sizeof *lse64));
    carry_attention_args args = {.o = o,
                                 .q = one_head(&p->q.t, head),
                                 .k = one_head(&p->k.t, head),
                                 .v = one_head(&p->v.t, head),
                                 .run = p->run,
                                 .runs = p->runs,
                                 .scale = p->there.scale};
    assert_ok(ctxs[0], carry_attention_reference(ctxs[0], o64, lse64, &args));
    assert_placed_near("o", &o, o64, BOUND);
    for (int64_t t = 0; t < T; t++) {
        double have = ((const float *)p->lse.t.data)[head * T + t];
        if (have != lse64[t] && !(fabs(have - lse64[t]) <= 0x1p-14 + 0x1p-20 * fabs(lse64[t]))) {
            fail_msg("lse[%lld, %lld] is %.9g where %.9g is expected", (long long)head, (long long)t, have, lse64[t]);
        }
    }
}

static void check(problem *p) {
    int64_t H = p->q.t.shape[1];
    run(p);
    for (int64_t head = 0; head < H; head += head == 0 && H > 2 ? H / 2 : H > 1 && head < H - 1 ? H - 1 - head : H) {
        compare(p, head);
    }
    assert_gaps_untouched("o", &p->o);
}

static void test_every_size_and_layout_matches_float64(void **state) {
    (void)state;
    /* T, S, H; tiles are 128 queries and 64, 128, 144, 160 or 176 keys */
    static const int64_t shapes[][3] = {{1, 1, 1},     {3, 2, 2},    {127, 63, 1}, {128, 64, 2}, {129, 65, 3},
                                        {255, 127, 1}, {13, 128, 2}, {64, 129, 1}, {65, 143, 2}, {20, 144, 1},
                                        {31, 145, 3},  {40, 159, 1}, {33, 161, 2}, {17, 175, 1}, {300, 176, 1},
                                        {19, 177, 2},  {5, 1009, 3}, {2, 5000, 1}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        for (int set = 0; set < RUN_SETS; set++) {
            for (int64_t D = 64; D <= 128; D += 64) {
                carry_key_run runs[CARRY_MAX_KEY_RUNS];
                int count = some_runs(runs, set, shapes[i][1]);
                int layout = (int)(i + (size_t)set) % GPU_LAYOUTS;
                problem p = make(shapes[i][0], shapes[i][1], shapes[i][2], D, layout, runs, count);
                p.there.scale = set == 2 ? 0.3f : 0.0f;
                check(&p);
                (void)free_held(NULL);
            }
        }
    }
}

/* Whole tiles first, then tiles that are split: more heads than multiprocessors, or many queries. */
static void test_more_tiles_than_multiprocessors(void **state) {
    (void)state;
    static const carry_key_run runs[] = {{.first = 250, .count = 50}, {.first = 0, .count = 200, .bias = -1.0f}};
    static const int64_t shapes[][2] = {{20, 133}, {130, 70}, {2050, 8}, {100, 300}, {128, 132}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        problem p = make(shapes[i][0], 300, shapes[i][1], i % 2 == 0 ? 128 : 64, (int)i % GPU_LAYOUTS, runs, 2);
        check(&p);
        (void)free_held(NULL);
    }
}

static void test_repeated_runs_give_the_same_bits(void **state) {
    (void)state;
    static const carry_key_run runs[] = {{.first = 500, .count = 277}, {.first = 0, .count = 450, .bias = -0.7f}};
    problem p = make(300, 777, 5, 128, 2, runs, 2);
    run(&p);
    unsigned char *first = keep(malloc(p.o.bytes));
    array first_lse = copy_of(&p.lse);
    memcpy(first, p.o.memory, p.o.bytes);
    for (int i = 0; i < REPEATS; i++) {
        run(&p);
        assert_memory_equal(p.o.memory, first, p.o.bytes);
        assert_memory_equal(p.lse.t.data, first_lse.t.data, (size_t)p.lse.count * 4);
    }
    p.there.lse = absent;
    run(&p);
    assert_memory_equal(p.o.memory, first, p.o.bytes);
}

static void test_a_graph_gives_the_same_bits(void **state) {
    (void)state;
    problem p = make(200, 500, 3, 64, 0, NULL, 0);
    carry_stream *stream;
    carry_graph *graph;
    run(&p);
    unsigned char *first = keep(malloc(p.o.bytes));
    memcpy(first, p.o.memory, p.o.bytes);
    assert_ok(ctxs[0], carry_stream_new(ctxs[0], &stream, GPU));
    carry_stream *before = carry_ctx_stream(ctxs[0], GPU);
    carry_ctx_set_stream(ctxs[0], GPU, stream);
    assert_ok(ctxs[0], carry_graph_begin(ctxs[0], GPU, stream));
    assert_ok(ctxs[0], carry_attention(ctxs[0], &p.there, p.workspace, p.bytes));
    assert_ok(ctxs[0], carry_graph_end(ctxs[0], &graph, GPU, stream));
    poison(&p);
    assert_ok(ctxs[0], carry_stream_wait(ctxs[0], GPU, NULL));
    assert_ok(ctxs[0], carry_graph_launch(ctxs[0], GPU, graph, stream));
    assert_ok(ctxs[0], carry_stream_wait(ctxs[0], GPU, stream));
    carry_graph_free(ctxs[0], GPU, graph);
    carry_ctx_set_stream(ctxs[0], GPU, before);
    carry_stream_free(ctxs[0], GPU, stream);
    fetch(&p);
    assert_memory_equal(p.o.memory, first, p.o.bytes);
}

static void test_nothing_seen_gives_zeros(void **state) {
    (void)state;
    for (int way = 0; way < 3; way++) {
        const carry_key_run left_out[] = {{.first = 3, .count = way == 1 ? 0 : 17, .bias = -INFINITY}};
        problem p = make(130, way == 2 ? 0 : 20, 3, 128, way, left_out, way == 2 ? 0 : 1);
        run(&p);
        for (int64_t i = 0; i < p.lse.count; i++) {
            assert_true(carry_tensor_at(&p.lse.t, i) == -INFINITY);
            for (int64_t d = 0; d < 128; d++) {
                assert_true(value(&p.o.t, i % 130, i / 130, d) == 0.0);
            }
        }
    }
}

/* One bias is 10^30 below the other: its keys have no weight. As the only bias it changes nothing. */
static void test_huge_biases_do_not_overflow(void **state) {
    (void)state;
    static const carry_key_run both[] = {{.first = 0, .count = 30, .bias = -1e30f}, {.first = 30, .count = 60}};
    problem p = make(10, 90, 2, 64, 0, both, 2);
    check(&p);
    for (int i = 0; i < 4; i++) { /* the largest bias is subtracted from lse, which is as exact as without one */
        static const float biases[] = {-1e4f, -1e9f, -1e30f, 1e30f};
        const carry_key_run alone[] = {{.first = 0, .count = 30, .bias = biases[i]},
                                       {.first = 30, .count = 60, .bias = biases[i] - 2.0f}};
        for (int runs = 1; runs <= 2; runs++) {
            problem same = make(10, 90, 2, 64, 0, alone, runs);
            check(&same);
        }
    }
}

static void test_wrong_memory_is_refused(void **state) {
    (void)state;
    carry_ctx *ctx = ctxs[0];
    problem p = make(8, 16, 2, 64, 0, NULL, 0);
    carry_attention_args args = p.there;
    args.q.data = p.q.t.data;
    assert_refused(ctx, CARRY_EDEVICE, "q", carry_attention(ctx, &args, p.workspace, p.bytes));
    assert_true(p.bytes > 0);
    assert_refused(ctx, CARRY_EWORKSPACE, "workspace", carry_attention(ctx, &p.there, p.workspace, p.bytes - 1));
    check(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_every_size_and_layout_matches_float64, free_held),
        cmocka_unit_test_teardown(test_more_tiles_than_multiprocessors, free_held),
        cmocka_unit_test_teardown(test_repeated_runs_give_the_same_bits, free_held),
        cmocka_unit_test_teardown(test_a_graph_gives_the_same_bits, free_held),
        cmocka_unit_test_teardown(test_nothing_seen_gives_zeros, free_held),
        cmocka_unit_test_teardown(test_huge_biases_do_not_overflow, free_held),
        cmocka_unit_test_teardown(test_wrong_memory_is_refused, free_held),
    };
    if (no_gpu()) {
        return 77;
    }
    return cmocka_run_group_tests(tests, open_contexts, close_contexts);
}
