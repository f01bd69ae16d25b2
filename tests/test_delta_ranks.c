/* The delta rule over ranks gives what one rank gives: for every number of ranks, wherever the tokens are cut, whatever
   the sequences are; and ends with a sentence where it cannot. */
#include "delta_ranks_support.h"

static void even(split *s, int ranks) {
    for (int r = 0; r <= ranks; r++) {
        s->cut[r] = s->w->p.tokens * r / ranks;
    }
}

/* Some ranks without tokens, the others any number. */
static void uneven(split *s, int ranks, uint64_t seed) {
    s->cut[0] = 0;
    s->cut[ranks] = s->w->p.tokens;
    for (int r = 1; r < ranks; r++) {
        s->cut[r] = draw(seed, 5, (uint64_t)r) % (uint32_t)(s->w->p.tokens + 1);
        if (draw(seed, 6, (uint64_t)r) % 4 == 0) {
            s->cut[r] = s->cut[r - 1];
        }
    }
    for (int i = 1; i < ranks; i++) {
        for (int j = i + 1; j < ranks; j++) {
            if (s->cut[j] < s->cut[i]) {
                int64_t t = s->cut[i];
                s->cut[i] = s->cut[j];
                s->cut[j] = t;
            }
        }
    }
}

static void every_number_of_ranks_equals_one(void **unused) {
    (void)unused;
    static const carry_delta_problem forms[] = {
        {.batch = 1,
         .tokens = 150,
         .heads = 4,
         .value_heads = 4,
         .key = 16,
         .value = 16,
         .gate = CARRY_DELTA_HEAD_GATE},
        {.batch = 2, .tokens = 97, .heads = 3, .value_heads = 6, .key = 13, .value = 7, .l2norm = true},
        {.batch = 3,
         .tokens = 70,
         .heads = 2,
         .value_heads = 2,
         .key = 5,
         .value = 33,
         .gate = CARRY_DELTA_HEAD_GATE,
         .gate_inside = true,
         .beta_sigmoid = true,
         .l2norm = true,
         .scale = 0.5f},
        {.batch = 1,
         .tokens = 131,
         .heads = 5,
         .value_heads = 15,
         .key = 1,
         .value = 1,
         .gate = CARRY_DELTA_HEAD_GATE,
         .l2norm = true,
         .beta_sigmoid = true,
         .beta_factor = 2.0f},
    };
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    for (size_t f = 0; f < sizeof forms / sizeof forms[0]; f++) {
        whole w = make_whole(ctx, forms[f], NULL);
        run_whole(ctx, &w, f == 1, f == 2);
        for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
            split s = {.w = &w, .no_initial = f == 1, .no_dfinal = f == 2};
            even(&s, sizes[i]);
            compare_split(&s, sizes[i], 0.0, "even parts");
            for (uint64_t seed = 0; seed < 3; seed++) {
                s.options.groups = (int64_t)seed * 3;
                uneven(&s, sizes[i], seed);
                compare_split(&s, sizes[i], 0.0, "uneven parts");
            }
        }
        discard_whole(&w);
    }
    carry_ctx_free(ctx);
}

/* Borders anywhere: empty sequences at the start, in the middle and at the end; cuts at borders and beside them. */
static void packed_rows_equal_one_rank(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    for (uint64_t seed = 0; seed < 12; seed++) {
        int64_t borders[10] = {0};
        int64_t count = 1 + draw(seed, 0, 0) % 9;
        for (int64_t i = 1; i <= count; i++) {
            uint32_t length = draw(seed, 1, (uint64_t)i) % 5;
            borders[i] = borders[i - 1] + (length == 0 ? 0 : length == 1 ? 1 : draw(seed, 2, (uint64_t)i) % 80);
        }
        borders[count] += borders[count] == 0;
        whole w = make_whole(ctx,
                             (carry_delta_problem){.batch = 1,
                                                   .tokens = borders[count],
                                                   .heads = 2,
                                                   .value_heads = 4,
                                                   .key = 9,
                                                   .value = 11,
                                                   .sequences = count,
                                                   .gate = CARRY_DELTA_HEAD_GATE,
                                                   .gate_inside = seed % 2 == 1,
                                                   .l2norm = true},
                             borders);
        run_whole(ctx, &w, seed % 3 == 2, false);
        for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
            split s = {.w = &w, .no_initial = seed % 3 == 2};
            even(&s, sizes[i]);
            compare_split(&s, sizes[i], 0.0, "packed, even");
            uneven(&s, sizes[i], seed);
            compare_split(&s, sizes[i], 0.0, "packed, uneven");
            for (int r = 1; r < sizes[i]; r++) { /* exactly at borders, several ranks empty */
                s.cut[r] = borders[count * r / sizes[i]];
            }
            compare_split(&s, sizes[i], 0.0, "packed, cut at borders");
        }
        discard_whole(&w);
    }
    carry_ctx_free(ctx);
}

/* Two ranks, cut at every token, also before the first and behind the last. */
static void a_cut_may_be_at_any_token(void **unused) {
    (void)unused;
    static const int64_t borders[] = {0, 5, 5, 17, 24};
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    for (int packed = 0; packed < 2; packed++) {
        whole w = make_whole(ctx,
                             (carry_delta_problem){.batch = packed ? 1 : 2,
                                                   .tokens = 24,
                                                   .heads = 2,
                                                   .value_heads = 2,
                                                   .key = 8,
                                                   .value = 6,
                                                   .sequences = packed ? 4 : 0,
                                                   .gate = CARRY_DELTA_HEAD_GATE,
                                                   .l2norm = true},
                             packed ? borders : NULL);
        run_whole(ctx, &w, false, false);
        for (int64_t cut = 0; cut <= 24; cut++) {
            split s = {.w = &w, .cut = {0, cut, 24}};
            compare_split(&s, 2, 0.0, "two ranks");
        }
        discard_whole(&w);
    }
    carry_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_number_of_ranks_equals_one),
        cmocka_unit_test(packed_rows_equal_one_rank),
        cmocka_unit_test(a_cut_may_be_at_any_token),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    print_message("largest difference from one rank: %.2g of a tensor's largest element\n", worst_seen);
    return failed;
}
