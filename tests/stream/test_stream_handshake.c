/* The handshake: ranks that agree continue; if one differs, all end with the same error, which names the difference and
   the rank. */
#include "comm_support.h"

#include "stream/handshake.h"

typedef struct meeting {
    int odd; /* the rank that differs; below 0: no rank */
    void (*change)(carry_handshake *mine);
    bool with_stage; /* rank 0 has no weights */
    carry_status seen[RANKS];
    char message[RANKS][512];
} meeting;

static carry_handshake usual(void) {
    return (carry_handshake){.mesh = 2,
                             .model = 0x1234,
                             .dtype = CARRY_F32,
                             .cache = {.height = 8, .width = 12, .chunk = 3, .window = 9, .sink = 1},
                             .depth = 2,
                             .build = "this one"};
}

static carry_status meet(void *user, carry_comm *comm) {
    meeting *m = user;
    const int rank = carry_comm_rank(comm);
    carry_handshake mine = usual();
    mine.has_weights = !(m->with_stage && rank == 0);
    mine.weights = mine.has_weights ? 0xBEEF : (uint64_t)rank + 77;
    if (rank == m->odd) {
        m->change(&mine);
    }
    m->seen[rank] = carry_handshake_run(comm, &mine);
    (void)snprintf(m->message[rank], 512, "%s", carry_ctx_error(carry_comm_ctx(comm)));
    /* A refusal does not end the communicator: the ranks can still report it together. */
    TRY(carry_barrier(comm));
    return CARRY_OK;
}

static void test_ranks_that_agree_go_on(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        meeting m = {.odd = -1, .with_stage = true};
        assert_int_equal(run_ranks(sizes[i], &world, meet, &m, NULL), CARRY_OK);
        for (int rank = 0; rank < sizes[i]; rank++) {
            assert_int_equal(m.seen[rank], CARRY_OK);
        }
    }
}

static void change_mesh(carry_handshake *h) {
    h->mesh = 3;
}
static void change_model(carry_handshake *h) {
    h->model++;
}
static void change_type(carry_handshake *h) {
    h->dtype = CARRY_BF16;
}
static void change_no_type(carry_handshake *h) {
    h->dtype = (carry_dtype)99;
}
static void change_height(carry_handshake *h) {
    h->cache.height = 16;
}
static void change_width(carry_handshake *h) {
    h->cache.width = -1;
}
static void change_chunk(carry_handshake *h) {
    h->cache.chunk = 4;
}
static void change_window(carry_handshake *h) {
    h->cache.window = 21;
}
static void change_sink(carry_handshake *h) {
    h->cache.sink = 0;
}
static void change_depth(carry_handshake *h) {
    h->depth = 1;
}
static void change_build(carry_handshake *h) {
    h->build = "another one, whose description is longer than there is room for in the record";
}
static void change_weights(carry_handshake *h) {
    h->weights ^= 1;
}

static const struct {
    void (*change)(carry_handshake *h);
    const char *words;
} differences[] = {
    {change_mesh, "rank 2 has a mesh of 3, rank 0 has 2"},
    {change_model, "rank 2 has model 0000000000001235, rank 0 has 0000000000001234"},
    {change_type, "rank 2 has type bf16, rank 0 has f32"},
    {change_no_type, "rank 2 has type ?, rank 0 has f32"},
    {change_height, "rank 2 has latents of height 16, rank 0 has 8"},
    {change_width, "rank 2 has latents of width -1, rank 0 has 12"},
    {change_chunk, "rank 2 has a chunk of 4, rank 0 has 3"},
    {change_window, "rank 2 has a window of 21, rank 0 has 9"},
    {change_sink, "rank 2 has a sink of 0, rank 0 has 1"},
    {change_depth, "rank 2 has a depth of 1, rank 0 has 2"},
    {change_build, "rank 2 has build 'another one, whose description is longer than there is room for', rank 0 has "
                   "'this one'"},
    /* Rank 0 is stage 0 and has no weights: the lowest rank with weights is rank 1. */
    {change_weights, "rank 2 has common weights 000000000000beee, rank 1 has 000000000000beef"},
};

static void test_every_difference_ends_all_ranks_alike(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof differences / sizeof differences[0]; i++) {
        meeting m = {.odd = 2, .change = differences[i].change, .with_stage = true};
        assert_int_equal(run_ranks(4, &world, meet, &m, NULL), CARRY_OK);
        for (int rank = 0; rank < 4; rank++) {
            assert_int_equal(m.seen[rank], CARRY_EARGUMENT);
            assert_string_equal(m.message[rank], differences[i].words);
        }
    }
}

static void change_all(carry_handshake *h) {
    for (size_t i = 0; i < sizeof differences / sizeof differences[0]; i++) {
        differences[i].change(h);
    }
}

static void test_many_differences_are_told_as_far_as_there_is_room(void **state) {
    (void)state;
    meeting m = {.odd = 0, .change = change_all};
    assert_int_equal(run_ranks(8, &world, meet, &m, NULL), CARRY_OK);
    for (int rank = 0; rank < 8; rank++) {
        assert_int_equal(m.seen[rank], CARRY_EARGUMENT);
        assert_string_equal(m.message[rank], m.message[0]);
    }
    assert_non_null(strstr(m.message[0], "rank 1 has a mesh of 2, rank 0 has 3; rank 2 has"));
    assert_non_null(strstr(m.message[0], " more"));
    assert_int_equal(m.message[0][strlen(m.message[0]) - 1], 'e'); /* not cut */
}

static void test_the_digest_of_a_model_sees_every_field(void **state) {
    (void)state;
    carry_dit_config c;
    memset(&c, 0, sizeof c);
    const uint64_t zero = carry_handshake_model(&c);
    int64_t *const number[] = {&c.dim,      &c.ffn_dim,  &c.num_heads,    &c.num_layers,    &c.in_dim,
                               &c.out_dim,  &c.text_len, &c.text_dim,     &c.freq_dim,      &c.patch[0],
                               &c.patch[1], &c.patch[2], &c.chunk_frames, &c.window_frames, &c.sink_frames,
                               &c.step[0],  &c.step[15], &c.steps};
    for (size_t i = 0; i < sizeof number / sizeof number[0]; i++) {
        *number[i] = 1;
        assert_true(carry_handshake_model(&c) != zero);
        *number[i] = 0;
    }
    c.eps = 1e-6;
    assert_true(carry_handshake_model(&c) != zero);
    c.eps = 0;
    c.shift = 5;
    assert_true(carry_handshake_model(&c) != zero);
    c.shift = 0;
    c.qk_norm = true;
    assert_true(carry_handshake_model(&c) != zero);
    c.qk_norm = false;
    c.cross_attn_norm = true;
    assert_true(carry_handshake_model(&c) != zero);
    c.cross_attn_norm = false;
    assert_true(carry_handshake_model(&c) == zero);
}

static carry_status never_come(void *user, carry_comm *comm) {
    (void)user;
    if (carry_comm_rank(comm) == 1) {
        return CARRY_ERANGE;
    }
    const carry_handshake mine = usual();
    return carry_handshake_run(comm, &mine);
}

static void test_a_rank_that_does_not_come_ends_the_others(void **state) {
    (void)state;
    assert_int_equal(run_ranks(3, &world, never_come, NULL, NULL), CARRY_ERANGE);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ranks_that_agree_go_on),
        cmocka_unit_test(test_every_difference_ends_all_ranks_alike),
        cmocka_unit_test(test_many_differences_are_told_as_far_as_there_is_room),
        cmocka_unit_test(test_the_digest_of_a_model_sees_every_field),
        cmocka_unit_test(test_a_rank_that_does_not_come_ends_the_others),
    };
    take_filter();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
