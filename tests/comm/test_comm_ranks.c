/* Ranks: all run, each with its number; a barrier waits for all ranks; a rank that fails releases the ranks that
   wait. */
#include "support.h"

#include <stdatomic.h>

#include "comm/ranks.h"

typedef struct shared {
    atomic_int seen[8];
    atomic_int arrived;
    atomic_int early; /* passed a barrier before all had arrived */
    int fails;        /* rank that fails before its second barrier, or -1 */
    atomic_int freed; /* ranks whose barrier said that a peer is missing */
} shared;

static carry_status work(void *user, const carry_rank *self) {
    shared *s = user;
    atomic_fetch_add(&s->seen[self->rank], 1);
    for (int round = 1; round <= 50; round++) {
        if (round == 2 && self->rank == s->fails) {
            return CARRY_ERANGE;
        }
        atomic_fetch_add(&s->arrived, 1);
        carry_status status = carry_rank_barrier(self);
        if (status != CARRY_OK) {
            atomic_fetch_add(&s->freed, 1);
            return carry_rank_barrier(self); /* still missing */
        }
        if (atomic_load(&s->arrived) < round * self->size) {
            atomic_fetch_add(&s->early, 1);
        }
    }
    return CARRY_OK;
}

static void test_barriers_hold_everybody(void **state) {
    (void)state;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    const int sizes[] = {1, 2, 3, 5, 8};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        shared s = {.fails = -1};
        assert_ok(ctx, carry_ranks_run(ctx, sizes[i], work, &s));
        for (int r = 0; r < 8; r++) {
            assert_int_equal(atomic_load(&s.seen[r]), r < sizes[i] ? 1 : 0);
        }
        assert_int_equal(atomic_load(&s.early), 0);
        assert_int_equal(atomic_load(&s.arrived), 50 * sizes[i]);
    }
    carry_ctx_free(ctx);
}

static void test_a_rank_that_fails_frees_the_others(void **state) {
    (void)state;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    for (int fails = 0; fails < 4; fails++) {
        shared s = {.fails = fails};
        assert_int_equal(carry_ranks_run(ctx, 4, work, &s), CARRY_ERANGE); /* and not the error of a missing peer */
        assert_int_equal(atomic_load(&s.freed), 3);
    }
    carry_ctx_free(ctx);
}

static void test_absurd_numbers_are_refused(void **state) {
    (void)state;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    shared s = {.fails = -1};
    assert_refused(ctx, CARRY_EARGUMENT, "ranks", carry_ranks_run(ctx, 0, work, &s));
    assert_refused(ctx, CARRY_EARGUMENT, "ranks", carry_ranks_run(ctx, CARRY_RANKS + 1, work, &s));
    assert_int_equal(atomic_load(&s.seen[0]), 0);
    carry_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_barriers_hold_everybody),
        cmocka_unit_test(test_a_rank_that_fails_frees_the_others),
        cmocka_unit_test(test_absurd_numbers_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
