/* The leader and malformed messages: every flipped bit, every truncation, every order of numbers. It refuses a message
   before it forwards anything, sends stage 0 the message that it fails with, and never calls a generator: this test has
   no generator. */
#include "envelope_support.h"

#include "core/crc32c.h"
#include "core/memory.h"
#include "core/rng.h"
#include "stream/mesh.h"

enum { MOST = 8192 };

static carry_ctx *ctx;

/* A leader without a mesh behind it, and stage 0's end of the link. */
typedef struct scene {
    carry_link *stage, *leader;
    carry_mesh *mesh;
} scene;

static scene open_scene(void) {
    scene s;
    assert_ok(ctx, carry_link_pair(ctx, &s.stage, &s.leader,
                                   &(carry_link_options){.depth = 1, .out_most = MOST, .in_most = MOST, .group = "x"}));
    assert_ok(ctx, carry_mesh_new(ctx, &s.mesh, NULL, NULL, NULL,
                                  &(carry_mesh_options){.channels = 16,
                                                        .height = 3,
                                                        .width = 5,
                                                        .chunk = 1,
                                                        .context = 2,
                                                        .text_len = 3,
                                                        .text_dim = 5,
                                                        .envelope_most = MOST}));
    return s;
}

static void close_scene(scene *s) {
    carry_mesh_free(s->mesh);
    carry_link_free(s->stage);
    carry_link_free(s->leader);
}

/* Sends the message to the leader, which must refuse it. Stage 0 must get the same error message, and can still close
   the link. */
static void assert_leader_refuses(const void *bytes, size_t size, carry_message_kind kind, const char *words) {
    scene s = open_scene();
    carry_message message;
    bool closed = true;
    assert_ok(ctx, carry_link_tell(s.stage, kind, bytes, size));
    const carry_status status = carry_mesh_turn(s.mesh, s.leader, &closed);
    char says[512];
    (void)snprintf(says, sizeof says, "%s", carry_ctx_error(ctx));
    if (status == CARRY_OK || closed || strstr(says, words) == NULL) {
        fail_msg("the leader says %s: %s", carry_status_name(status), says);
    }
    assert_ok(ctx, carry_link_receive(s.stage, &message));
    assert_int_equal(message.kind, CARRY_MESSAGE_REFUSAL);
    assert_int_equal(message.size, strlen(says));
    assert_memory_equal(message.bytes, says, message.size);
    assert_ok(ctx, carry_link_tell(s.stage, CARRY_MESSAGE_CLOSE, NULL, 0));
    assert_ok(ctx, carry_mesh_turn(s.mesh, s.leader, &closed));
    assert_true(closed);
    close_scene(&s);
}

/* A message that the leader accepts; with a chunk, the generator would be called next. */
static size_t message_of(unsigned char *to, int which) {
    static example made;
    size_t bytes;
    example_make(&made, which);
    made.envelope.current_start_frame = which == INFER_FULL ? 2 : made.envelope.current_start_frame;
    assert_ok(ctx, example_encode(ctx, &made, to, MOST, &bytes));
    return bytes;
}

static void test_every_flipped_bit_stops_at_the_leader(void **state) {
    (void)state;
    static _Alignas(64) unsigned char encoded[MOST];
    const int which[] = {NOOP, SHUTDOWN, INFER_FULL};
    for (size_t w = 0; w < sizeof which / sizeof which[0]; w++) {
        const size_t bytes = message_of(encoded, which[w]);
        for (size_t bit = 0; bit < 8 * bytes; bit++) {
            encoded[bit / 8] ^= (unsigned char)(1U << bit % 8);
            assert_leader_refuses(encoded, bytes, CARRY_MESSAGE_ENVELOPE, "mesh: call_id ");
            encoded[bit / 8] ^= (unsigned char)(1U << bit % 8);
        }
    }
}

static void test_every_truncation_stops_at_the_leader(void **state) {
    (void)state;
    static _Alignas(64) unsigned char encoded[MOST];
    for (int which = 0; which < RESULT; which++) {
        const size_t bytes = message_of(encoded, which);
        for (size_t cut = 0; cut < bytes; cut++) {
            assert_leader_refuses(encoded, cut, CARRY_MESSAGE_ENVELOPE, "bytes");
        }
    }
}

static void test_letters_that_are_no_envelope_stop_at_the_leader(void **state) {
    (void)state;
    static _Alignas(64) unsigned char encoded[MOST];
    const size_t result = message_of(encoded, RESULT);
    assert_leader_refuses(encoded, result, CARRY_MESSAGE_ENVELOPE, "starts with CRYE");
    assert_leader_refuses(encoded, result, CARRY_MESSAGE_RESULT, "message of kind 2");
    const size_t noop = message_of(encoded, NOOP);
    for (int kind = CARRY_MESSAGE_RESULT; kind <= CARRY_MESSAGE_CLOSE; kind++) { /* CLOSE before SHUTDOWN as well */
        assert_leader_refuses(encoded, noop, (carry_message_kind)kind,
                              kind == CARRY_MESSAGE_TEXT   ? "a late prompt of"
                              : kind == CARRY_MESSAGE_LORA ? "LoRA"
                                                           : "message of kind");
    }
}

/* A prompt that follows an envelope is accepted completely or refused. */
static void test_a_damaged_late_prompt_stops_at_the_leader(void **state) {
    (void)state;
    enum { ROWS = 2, DIM = 5, BYTES = ROWS * DIM * 2 };
    _Alignas(64) unsigned char bytes[sizeof(carry_text_head) + BYTES];
    for (size_t i = 0; i < BYTES; i++) {
        bytes[sizeof(carry_text_head) + i] = (unsigned char)(7 * i);
    }
    const carry_text_head head = {.crc = carry_crc32c(0, bytes + sizeof head, BYTES), .rows = ROWS};
    memcpy(bytes, &head, sizeof head);
    for (size_t bit = 0; bit < 8 * sizeof bytes; bit++) {
        if (bit / 8 >= offsetof(carry_text_head, spare) && bit / 8 < sizeof head) {
            continue;
        }
        bytes[bit / 8] ^= (unsigned char)(1U << bit % 8);
        assert_leader_refuses(bytes, sizeof bytes, CARRY_MESSAGE_TEXT, "a late prompt");
        bytes[bit / 8] ^= (unsigned char)(1U << bit % 8);
    }
    for (size_t cut = 0; cut < sizeof bytes; cut++) {
        assert_leader_refuses(bytes, cut, CARRY_MESSAGE_TEXT, "a late prompt of");
    }
    scene s = open_scene();
    bool closed = true;
    assert_ok(ctx, carry_link_tell(s.stage, CARRY_MESSAGE_TEXT, bytes, sizeof bytes));
    assert_ok(ctx, carry_mesh_turn(s.mesh, s.leader, &closed));
    assert_false(closed);
    close_scene(&s);
}

/* Valid bytes with sizes and positions that were not agreed on with this mesh. */
static void test_chunks_that_do_not_fit_the_mesh_stop_at_the_leader(void **state) {
    (void)state;
    static _Alignas(64) unsigned char encoded[MOST];
    static uint16_t wide[16 * 2 * 6 * 10];
    static example made;
    size_t bytes;
#define REFUSE(words, change)                                                 \
    do {                                                                      \
        example_make(&made, INFER_FULL);                                      \
        carry_envelope *e = &made.envelope;                                   \
        e->current_start_frame = 2;                                           \
        change;                                                               \
        assert_ok(ctx, example_encode(ctx, &made, encoded, MOST, &bytes));    \
        assert_leader_refuses(encoded, bytes, CARRY_MESSAGE_ENVELOPE, words); \
    } while (0)
    REFUSE("first call", e->init_cache = false);
    REFUSE("first call", example_make(&made, INFER_PLAIN));
    REFUSE("current_start_frame is 9", e->current_start_frame = 9);
    REFUSE("latents_in is [16, 2, 3, 5]", e->latents_in = carry_view_4d(wide, CARRY_BF16, 16, 2, 3, 5));
    REFUSE("latents_in is [16, 1, 6, 5]", e->height = 6; e->latents_in = carry_view_4d(wide, CARRY_BF16, 16, 1, 6, 5);
           e->context_frames = carry_view_4d(wide, CARRY_BF16, 16, 2, 6, 5));
    REFUSE("conditioning is [4, 5]", e->conditioning = carry_view_2d(wide, CARRY_BF16, 4, 5));
    REFUSE("conditioning is [1, 6]", e->conditioning = carry_view_2d(wide, CARRY_BF16, 1, 6));
    REFUSE("context_frames are 3", e->context_frames = carry_view_4d(wide, CARRY_BF16, 16, 3, 3, 5));
}

typedef struct numbers {
    bool any, ended;
    uint64_t call_id, epoch;
} numbers;

/* The rule for the next numbers, written independently of the code. */
static bool may_follow(const numbers *n, bool is_end, uint64_t call_id, uint64_t epoch) {
    if (!n->any) {
        return true;
    }
    if (epoch < n->epoch || epoch > n->epoch + 1) {
        return false;
    }
    return n->ended ? is_end && (call_id == n->call_id || call_id == n->call_id + 1) : call_id == n->call_id + 1;
}

/* Sequences of NOOP and SHUTDOWN whose numbers are mostly right; each ends at its first refusal. */
static void test_numbers_that_may_not_follow_stop_at_the_leader(void **state) {
    (void)state;
    int refused = 0, longest = 0;
    for (uint64_t walk = 0; walk < 2000; walk++) {
        static _Alignas(64) unsigned char encoded[MOST];
        scene s = open_scene();
        numbers n = {.call_id = 100, .epoch = 10};
        bool goes_on = true;
        for (int step = 0; step < 30 && goes_on; step++) {
            const carry_words w = carry_philox(21, walk, (uint64_t)step);
            const bool is_end = w.word[0] % 9 == 0;
            const uint64_t call_id = n.call_id + (w.word[1] % 12 == 0 ? w.word[2] % 4 - 1ULL : 1);
            const uint64_t epoch = n.epoch + (w.word[3] % 12 == 0 ? w.word[2] / 4 % 4 - 1ULL : 0);
            const carry_envelope e = {.version = CARRY_ENVELOPE_VERSION,
                                      .action = is_end ? CARRY_SHUTDOWN : CARRY_NOOP,
                                      .call_id = call_id,
                                      .chunk_index = w.word[0], /* of no account */
                                      .cache_epoch = epoch};
            size_t bytes;
            carry_message message;
            bool closed;
            goes_on = may_follow(&n, is_end, call_id, epoch);
            assert_ok(ctx, carry_envelope_encode(ctx, encoded, MOST, &bytes, &e));
            assert_ok(ctx, carry_link_tell(s.stage, CARRY_MESSAGE_ENVELOPE, encoded, bytes));
            const carry_status status = carry_mesh_turn(s.mesh, s.leader, &closed);
            assert_int_equal(status, goes_on ? CARRY_OK : CARRY_EPEER);
            assert_ok(ctx, carry_link_receive(s.stage, &message));
            assert_int_equal(message.kind, goes_on ? CARRY_MESSAGE_PULSE : CARRY_MESSAGE_REFUSAL);
            if (goes_on) {
                assert_memory_equal(message.bytes, &call_id, sizeof call_id);
            }
            n = (numbers){.any = true, .ended = is_end, .call_id = call_id, .epoch = epoch};
            refused += !goes_on;
            longest = step > longest ? step : longest;
        }
        close_scene(&s);
    }
    assert_true(refused > 500 && longest > 10);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_flipped_bit_stops_at_the_leader),
        cmocka_unit_test(test_every_truncation_stops_at_the_leader),
        cmocka_unit_test(test_letters_that_are_no_envelope_stop_at_the_leader),
        cmocka_unit_test(test_a_damaged_late_prompt_stops_at_the_leader),
        cmocka_unit_test(test_chunks_that_do_not_fit_the_mesh_stop_at_the_leader),
        cmocka_unit_test(test_numbers_that_may_not_follow_stop_at_the_leader),
    };
    ctx = support_ctx(1, NULL, NULL);
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    carry_ctx_free(ctx);
    return failed;
}
