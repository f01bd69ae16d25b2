/* One rank works while the others wait: as long as it works, but no longer than the deadline once it is gone. */
#include "comm_support.h"

#include <stdatomic.h>
#include <time.h>

#include "comm/alone.h"
#include "core/clock.h"

static void nap(double seconds) {
    nanosleep(
        &(struct timespec){.tv_sec = (time_t)seconds, .tv_nsec = (long)((seconds - (double)(time_t)seconds) * 1e9)},
        NULL);
}

typedef struct scene {
    double works, deadline; /* seconds */
    carry_status outcome;
    int root;
    bool never_comes;
    atomic_int ended; /* ranks whose call returned */
    carry_status told[RANKS], seen[RANKS];
    double seconds[RANKS];
} scene;

static carry_status work(void *user) {
    const scene *s = user;
    nap(s->works);
    return s->outcome;
}

static carry_status rank_of(void *user, carry_comm *comm) {
    scene *s = user;
    const int rank = carry_comm_rank(comm);
    TRY(carry_barrier(comm));
    TRY(carry_comm_set_deadline(comm, s->deadline));
    if (rank == s->root && s->never_comes) {
        for (const double start = carry_seconds(); s->ended < 2 && carry_seconds() - start < world.deadline;) {
            nap(0.01); /* as one that was stopped */
        }
        return CARRY_OK;
    }
    const double start = carry_seconds();
    s->told[rank] = carry_comm_alone(comm, s->root, "save", work, s, &s->seen[rank]);
    s->seconds[rank] = carry_seconds() - start;
    s->ended++;
    if (s->told[rank] == CARRY_OK && s->seen[rank] == CARRY_OK) {
        TRY(carry_barrier(comm)); /* no heartbeat is left over to be taken for another message */
    }
    return CARRY_OK;
}

static void test_work_may_take_longer_than_the_deadline(void **state) {
    (void)state;
    for (int ranks = 1; ranks <= 4; ranks += 3) {
        char message[512];
        scene s = {.works = 9.0, .deadline = 6.0, .root = ranks - 1};
        const carry_status status = run_ranks(ranks, &world, rank_of, &s, message);
        if (status != CARRY_OK) {
            fail_msg("%s", message);
        }
        for (int r = 0; r < ranks; r++) {
            assert_int_equal(s.told[r], CARRY_OK);
            assert_int_equal(s.seen[r], CARRY_OK);
            assert_true(s.seconds[r] >= 8.0);
        }
    }
}

static void test_every_rank_is_told_that_the_work_failed(void **state) {
    (void)state;
    scene s = {.works = 0.1, .deadline = world.deadline, .outcome = CARRY_EIO};
    assert_int_equal(run_ranks(3, &world, rank_of, &s, NULL), CARRY_OK);
    for (int r = 0; r < 3; r++) {
        assert_int_equal(s.told[r], CARRY_OK);
        assert_int_equal(s.seen[r], CARRY_EIO);
    }
}

static void test_a_rank_that_does_not_come_is_missed_at_the_deadline(void **state) {
    (void)state;
    scene s = {.never_comes = true, .deadline = 2.0};
    (void)run_ranks(3, &world, rank_of, &s, NULL);
    for (int r = 1; r < 3; r++) {
        assert_true(s.told[r] == CARRY_ETIMEOUT || s.told[r] == CARRY_EPEER);
        assert_true(s.seconds[r] < world.deadline / 2);
    }
}

int main(void) {
    take_filter();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_work_may_take_longer_than_the_deadline),
        cmocka_unit_test(test_every_rank_is_told_that_the_work_failed),
        cmocka_unit_test(test_a_rank_that_does_not_come_is_missed_at_the_deadline),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
