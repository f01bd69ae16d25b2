/* The delta rule over ranks that share a GPU equals that of one rank on the CPU: 1 to 8 ranks, packed and not, uneven
   and empty parts, forward and backward, messages by "peer" and by "staged". Skipped without a GPU. In f32, so that the
   test compares the rule and not its rounding: tolerances are those of ranks on the CPU, and the rounding of another
   order of sums, which tolerance_of takes from other chunks. */
/* labels: gpu */
#include "delta_ranks_support.h"

enum { SKIPPED = 77 };

static const char *const ways[] = {"peer", "staged"};

enum { MOST = 8 };

/* With backward, for which a pass from the right initial state is kept, and forward only, where outputs are
   corrected. */
static void compare_both(split *s, int ranks, const char *what) {
    s->forward_only = false;
    compare_split(s, ranks, 1e-5, what);
    s->forward_only = true;
    compare_split(s, ranks, 1e-5, what);
}

static void compare_halves(split *s, int ranks, const char *what) {
    s->forward_only = false;
    compare_split(s, ranks, 2e-2, what);
    s->forward_only = true;
    compare_split(s, ranks, 2e-2, what);
}

static bool emulated(void) {
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    carry_device_properties there = {CARRY_INIT(carry_device_properties)};
    assert_ok(ctx, carry_device_properties_of(ctx, &there, 1));
    carry_ctx_free(ctx);
    return strstr(there.name, "mulat") != NULL;
}

static void ranks_that_share_a_gpu_equal_one(void **unused) {
    (void)unused;
    static const carry_delta_problem forms[] = {
        {.batch = 1, .tokens = 90, .heads = 2, .value_heads = 2, .key = 16, .value = 16, .gate = CARRY_DELTA_HEAD_GATE},
        {.batch = 2,
         .tokens = 41,
         .heads = 1,
         .value_heads = 2,
         .key = 13,
         .value = 7,
         .gate = CARRY_DELTA_HEAD_GATE,
         .gate_inside = true,
         .beta_sigmoid = true,
         .l2norm = true},
    };
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    for (size_t f = 0; f < sizeof forms / sizeof forms[0]; f++) {
        whole w = make_whole(ctx, forms[f], NULL);
        run_whole(ctx, &w, f == 1, f == 0);
        for (int ranks = 1; ranks <= MOST; ranks++) {
            split s = {.w = &w, .no_initial = f == 1, .no_dfinal = f == 0, .way = ways[(size_t)ranks % 2]};
            cut_evenly(&s, ranks);
            compare_both(&s, ranks, "even parts");
            for (int r = 1; r < ranks; r++) { /* each part is longer than the one before */
                s.cut[r] = w.p.tokens * r * r / (ranks * ranks);
            }
            compare_both(&s, ranks, "unequal parts");
            cut_evenly(&s, ranks);
            for (int r = 1; r < ranks; r++) { /* some have none */
                s.cut[r] = r % 3 == 2 ? s.cut[r - 1] : s.cut[r];
            }
            compare_both(&s, ranks, "empty parts");
        }
        discard_whole(&w);
    }
    carry_ctx_free(ctx);
}

static void packed_rows_on_a_gpu_equal_one_rank(void **unused) {
    (void)unused;
    static const int64_t borders[] = {0, 0, 5, 30, 30, 31, 80, 80};
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    whole w = make_whole(ctx,
                         (carry_delta_problem){.batch = 1,
                                               .tokens = 80,
                                               .heads = 1,
                                               .value_heads = 2,
                                               .key = 9,
                                               .value = 11,
                                               .sequences = 7,
                                               .gate = CARRY_DELTA_HEAD_GATE,
                                               .gate_inside = true,
                                               .l2norm = true},
                         borders);
    run_whole(ctx, &w, false, false);
    for (int ranks = 1; ranks <= MOST; ranks++) {
        split s = {.w = &w, .way = ways[ranks % 2]};
        cut_evenly(&s, ranks);
        compare_both(&s, ranks, "packed, even");
        for (int r = 1; r < ranks; r++) {
            s.cut[r] = borders[7 * r / ranks];
        }
        compare_both(&s, ranks, "packed, cut at borders");
    }
    for (int64_t cut = 0; cut <= 80; cut += 5) {
        split s = {.w = &w, .cut = {0, cut, 80}, .way = "peer"};
        compare_split(&s, 2, 1e-5, "packed, two ranks");
    }
    discard_whole(&w);
    carry_ctx_free(ctx);
}

/* On a Hopper GPU these sizes use the method that computes pairs before outputs, by groups of heads (ranks_split.c);
   130 tokens are three chunks, 600 are enough for segments. bf16 rounds states, corrected values and outputs by 2^-9 of
   themselves each, and the differences add up over a sequence: 2e-2 of the largest, as on one rank
   (test_delta_gpu.c). */
static void ranks_in_bf16_equal_one(void **unused) {
    (void)unused;
    static const carry_delta_problem forms[] = {
        {.batch = 1,
         .tokens = 600,
         .heads = 4,
         .value_heads = 4,
         .key = 128,
         .value = 128,
         .gate = CARRY_DELTA_HEAD_GATE},
        {.batch = 2, .tokens = 130, .heads = 1, .value_heads = 2, .key = 64, .value = 64, .gate_inside = true},
        {.batch = 1, .tokens = 2600, .heads = 2, .value_heads = 2, .key = 64, .value = 128},
    };
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    const int count = emulated() ? 1 : (int)(sizeof forms / sizeof forms[0]);
    for (int f = 0; f < count; f++) {
        carry_delta_problem p = forms[f];
        p.l2norm = true;
        p.gate = CARRY_DELTA_HEAD_GATE;
        if (emulated()) { /* a token takes milliseconds there */
            p.tokens = 70;
            p.key = p.value = 32;
        }
        whole w = make_whole(ctx, p, NULL);
        round_whole(&w);
        run_whole(ctx, &w, f == 1, f == 0);
        for (int ranks = 1; ranks <= MOST; ranks += ranks < 4 ? 1 : 4) {
            split s = {
                .w = &w, .no_initial = f == 1, .no_dfinal = f == 0, .way = ways[(size_t)ranks % 2], .halves = true};
            for (s.options.groups = 0; s.options.groups <= 3; s.options.groups += 3) {
                cut_evenly(&s, ranks);
                compare_halves(&s, ranks, "bf16, even parts");
            }
            for (int r = 1; r < ranks; r++) { /* some have none, others little */
                const int64_t at = s.cut[r] - r % 2 * 17;
                s.cut[r] = r % 3 == 2 || at < s.cut[r - 1] ? s.cut[r - 1] : at;
            }
            compare_halves(&s, ranks, "bf16, unequal and empty parts");
        }
        discard_whole(&w);
    }
    carry_ctx_free(ctx);
}

static void every_algorithm_on_a_gpu_equals_one_rank(void **unused) {
    (void)unused;
    static const carry_delta_problem small = {.batch = 1,
                                              .tokens = 64,
                                              .heads = 2,
                                              .value_heads = 2,
                                              .key = 24,
                                              .value = 40,
                                              .gate = CARRY_DELTA_HEAD_GATE,
                                              .l2norm = true};
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    whole w = make_whole(ctx, small, NULL);
    run_whole(ctx, &w, false, false);
    for (int a = 0; carry_all_scan_name(a) != NULL; a++) {
        split s = {.w = &w, .options.all_scan_algorithm = carry_all_scan_name(a), .way = "peer"};
        cut_evenly(&s, 5);
        compare_split(&s, 5, 1e-5, carry_all_scan_name(a));
        s.options.wire = CARRY_BF16; /* as on the CPU (test_delta_ranks.c): one rounding a hop */
        compare_split(&s, 5, 5.0 / 512.0, "bf16 on the wire");
    }
    discard_whole(&w);
    carry_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_that_share_a_gpu_equal_one),
        cmocka_unit_test(packed_rows_on_a_gpu_equal_one_rank),
        cmocka_unit_test(ranks_in_bf16_equal_one),
        cmocka_unit_test(every_algorithm_on_a_gpu_equals_one_rank),
    };
    if (carry_device_count() < 2 || is_under_mpi()) {
        print_message("skipped: there is no GPU here\n");
        return SKIPPED;
    }
    take_filter();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
