/* The halo of a causal convolution: a rank gets the tokens before its own, from as many ranks as needed; the gradients
   that it gives back are added to those tokens. */
#include "comm_support.h"

enum { MOST_TOKENS = 3 * RANKS, BATCH = 2, CHANNELS = 5, MOST_WINDOW = 4 };

typedef struct shared {
    int64_t first[RANKS + 1];
    int64_t window; /* W-1 */
    carry_dtype dtype;
    float x[BATCH][MOST_TOKENS][CHANNELS];
    float dbefore[RANKS][BATCH][MOST_WINDOW][CHANNELS];
    int fails; /* the rank with another number of channels, or -1 */
} shared;

static void put(void *to, carry_dtype dtype, int64_t at, float value) {
    if (dtype == CARRY_F32) {
        ((float *)to)[at] = value;
    } else {
        ((uint16_t *)to)[at] = dtype == CARRY_BF16 ? carry_bf16_from_f32(value) : carry_f16_from_f32(value);
    }
}

static float get(const void *from, carry_dtype dtype, int64_t at) {
    if (dtype == CARRY_F32) {
        return ((const float *)from)[at];
    }
    uint16_t bits = ((const uint16_t *)from)[at];
    return dtype == CARRY_BF16 ? carry_f32_from_bf16(bits) : carry_f32_from_f16(bits);
}

static float rounded(carry_dtype dtype, float value) {
    float kept[1];
    put(kept, dtype, 0, value);
    return get(kept, dtype, 0);
}

/* The gradient that all ranks together give to token t, summed in the order of ranks. */
static float given(const shared *s, int ranks, int owner, int64_t b, int64_t t, int c) {
    float sum = 0.0f;
    for (int r = owner + 1; r < ranks; r++) {
        int64_t at = t - (s->first[r] - s->window);
        if (at >= 0 && at < s->window) {
            sum += s->dbefore[r][b][at][c];
        }
    }
    return sum;
}

static carry_status exchange(void *user, carry_comm *comm) {
    const shared *s = user;
    const int rank = carry_comm_rank(comm), size = carry_comm_size(comm);
    const int64_t first = s->first[rank], n = s->first[rank + 1] - first;
    const int64_t channels = rank == s->fails ? CHANNELS - 1 : CHANNELS;
    float memory[BATCH * (MOST_TOKENS + 1) * CHANNELS];
    float before[BATCH * MOST_WINDOW * CHANNELS + 1];
    memset(before, 0xff, sizeof before);
    /* The memory has one more row of tokens, so that there is a gap between batches. */
    carry_tensor x = carry_view_3d(memory, s->dtype, BATCH, n + 1, channels);
    x.shape[1] = n;
    for (int64_t i = 0; i < BATCH * (n + 1) * CHANNELS; i++) {
        int64_t b = i / CHANNELS / (n + 1), t = i / CHANNELS % (n + 1);
        put(memory, s->dtype, i, t < n ? s->x[b][first + t][i % CHANNELS] : -77.0f);
    }
    carry_tensor view = carry_view_3d(before, CARRY_F32, BATCH, s->window, channels);
    TRY(carry_halo_forward(comm, view, x));
    for (int64_t i = 0; i < BATCH * s->window * CHANNELS; i++) {
        int64_t b = i / CHANNELS / s->window, t = first - s->window + i / CHANNELS % s->window;
        float wanted = t < 0 ? 0.0f : rounded(s->dtype, s->x[b][t][i % CHANNELS]);
        EXPECT(comm, before[i] == wanted, "token %d is %g and should be %g", (int)t, (double)before[i], (double)wanted);
    }
    for (int64_t i = 0; i < BATCH * s->window * CHANNELS; i++) {
        before[i] = s->dbefore[rank][i / CHANNELS / s->window][i / CHANNELS % s->window][i % CHANNELS];
    }
    TRY(carry_halo_backward(comm, x, view));
    for (int64_t i = 0; i < BATCH * (n + 1) * CHANNELS; i++) {
        int64_t b = i / CHANNELS / (n + 1), t = i / CHANNELS % (n + 1);
        float wanted = -77.0f;
        if (t < n) {
            wanted = rounded(s->dtype, s->x[b][first + t][i % CHANNELS]);
            wanted = rounded(s->dtype, wanted + given(s, size, rank, b, first + t, (int)(i % CHANNELS)));
        }
        EXPECT(comm, get(memory, s->dtype, i) == wanted, "dx of token %d", (int)(first + t));
    }
    return CARRY_OK;
}

static shared make(uint64_t seed, int ranks, int64_t window) {
    shared s = {.window = window, .dtype = (carry_dtype)(seed % 3), .fails = -1};
    for (int r = 0; r < ranks; r++) { /* each rank has 0 to 3 tokens; for one seed no rank has any */
        s.first[r + 1] = s.first[r] + (seed == 4 ? 0 : draw(seed, 0, (uint64_t)r) % 4);
    }
    float *numbers[] = {&s.x[0][0][0], &s.dbefore[0][0][0][0]};
    const size_t counts[] = {sizeof s.x / sizeof(float), sizeof s.dbefore / sizeof(float)};
    for (uint64_t k = 0; k < 2; k++) {
        for (size_t i = 0; i < counts[k]; i++) {
            numbers[k][i] = (float)draw(seed, 1 + k, i) * 0x1p-31f - 1.0f;
        }
    }
    return s;
}

static void every_rank_gets_what_lies_before_it(void **unused) {
    (void)unused;
    for (uint64_t seed = 0; seed < 9; seed++) {
        for (int64_t window = 0; window <= MOST_WINDOW; window++) {
            for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
                shared s = make(seed, sizes[i], window);
                char message[512];
                if (run_ranks(sizes[i], &world, exchange, &s, message) != CARRY_OK) {
                    fail_msg("seed %d, W %d, %d ranks: %s", (int)seed, (int)window + 1, sizes[i], message);
                }
            }
        }
    }
}

static void ranks_that_differ_are_told_so(void **unused) {
    (void)unused;
    shared s = make(1, 4, 3);
    s.fails = 2;
    char message[512];
    assert_int_equal(run_ranks(4, &world, exchange, &s, message), CARRY_EARGUMENT);
    assert_non_null(strstr(message, "rank 2 one of 2 x 3 x 4"));
}

typedef struct told {
    carry_status status[RANKS];
    char message[RANKS][256];
} told;

/* Stores the status instead of returning it: a rank that fails would end the others in the middle of the call. */
static carry_status refused(void *user, carry_comm *comm) {
    told *t = user;
    const int rank = carry_comm_rank(comm);
    float data[12] = {0};
    carry_tensor x = carry_view_3d(data, CARRY_F32, 1, 2, 3);
    carry_tensor before = carry_view_3d(data + 6, CARRY_F32, 1, 1, rank == 1 ? 2 : 3);
    t->status[rank] = carry_halo_forward(comm, before, x);
    (void)snprintf(t->message[rank], sizeof t->message[rank], "%s", carry_ctx_error(carry_comm_ctx(comm)));
    return CARRY_OK;
}

/* The others do not wait for a rank that refuses. */
static void a_refusal_reaches_everybody(void **unused) {
    (void)unused;
    told t;
    assert_int_equal(run_ranks(3, &world, refused, &t, NULL), CARRY_OK);
    for (int r = 0; r < 3; r++) {
        assert_int_equal(t.status[r], r == 1 ? CARRY_ESHAPE : CARRY_EARGUMENT);
        assert_non_null(strstr(t.message[r], r == 1 ? "before has shape [1, 1, 2]" : "rank 1 has refused"));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_rank_gets_what_lies_before_it),
        cmocka_unit_test(ranks_that_differ_are_told_so),
        cmocka_unit_test(a_refusal_reaches_everybody),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
