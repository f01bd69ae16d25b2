/* Envelopes and results: an encoded message decodes to the same values; damaged, truncated, invalid and out-of-order
   ones are refused; the bytes equal those of tests/golden/envelope. With one argument, a folder, the program writes the
   golden files instead. */
#include "envelope_support.h"

#include <math.h>

#include "core/clock.h"
#include "core/file.h"
#include "core/memory.h"
#include "core/rng.h"

#define GOLDEN CARRY_SOURCE "/tests/golden/envelope/"

static carry_ctx *ctx;

static unsigned char *aligned(size_t bytes) {
    unsigned char *block = carry_aligned_new(bytes + 64);
    assert_non_null(block);
    memset(block, 0xA5, bytes + 64);
    return block;
}

/* The encoded message of example e; the caller frees it. */
static unsigned char *message_of(int e, size_t *bytes) {
    static example made;
    example_make(&made, e);
    assert_ok(ctx, example_encode(ctx, &made, NULL, 0, bytes));
    unsigned char *message = aligned(*bytes);
    size_t written;
    assert_ok(ctx, example_encode(ctx, &made, message, *bytes, &written));
    assert_int_equal(written, *bytes);
    assert_int_equal(message[*bytes], 0xA5); /* not past the end */
    return message;
}

static carry_status decode_any(const void *message, size_t bytes, bool is_result) {
    static carry_envelope envelope;
    static carry_result result;
    return is_result ? carry_result_decode(ctx, &result, message, bytes)
                     : carry_envelope_decode(ctx, &envelope, message, bytes);
}

static void assert_same_tensor(const carry_tensor *a, const carry_tensor *b) {
    assert_int_equal(a->rank, b->rank);
    if (a->rank == 0) {
        assert_null(b->data);
        return;
    }
    assert_int_equal(a->dtype, b->dtype);
    assert_memory_equal(a->shape, b->shape, (size_t)a->rank * sizeof a->shape[0]);
    size_t bytes;
    assert_true(carry_size_product(&bytes, a->shape, a->rank, carry_dtype_size(a->dtype)));
    assert_memory_equal(a->data, b->data, bytes);
}

static void test_what_is_encoded_is_decoded(void **state) {
    (void)state;
    for (int e = 0; e < EXAMPLES; e++) {
        static example made;
        size_t bytes, follow;
        unsigned char *message = message_of(e, &bytes);
        example_make(&made, e);
        assert_ok(ctx, carry_envelope_follows(ctx, &follow, message, bytes, made.is_result));
        assert_int_equal(follow, bytes - CARRY_ENVELOPE_HEADER);
        if (made.is_result) {
            carry_result r;
            memset(&r, 0xFF, sizeof r);
            assert_ok(ctx, carry_result_decode(ctx, &r, message, bytes));
            assert_same_tensor(&made.result.latents_out, &r.latents_out);
            assert_true(r.version == 1 && r.call_id == made.result.call_id && r.digest == made.result.digest);
            assert_true(r.chunk_index == made.result.chunk_index && r.cache_epoch == made.result.cache_epoch);
            assert_true(r.observed_generator_calls == made.result.observed_generator_calls);
            assert_true(r.mesh_start_frame == made.result.mesh_start_frame);
            assert_true(r.stage1_ms == made.result.stage1_ms && r.mesh_idle_ms == made.result.mesh_idle_ms);
        } else {
            const carry_envelope *was = &made.envelope;
            carry_envelope is;
            memset(&is, 0xFF, sizeof is);
            assert_ok(ctx, carry_envelope_decode(ctx, &is, message, bytes));
            assert_true(is.version == 1 && is.action == was->action && is.call_id == was->call_id);
            assert_true(is.chunk_index == was->chunk_index && is.cache_epoch == was->cache_epoch);
            assert_true(is.height == was->height && is.width == was->width && is.seed == was->seed);
            assert_true(is.current_start_frame == was->current_start_frame);
            assert_true(is.num_denoise_steps == was->num_denoise_steps);
            assert_true(is.expected_generator_calls == was->expected_generator_calls);
            assert_true(is.do_recompute == was->do_recompute && is.init_cache == was->init_cache);
            assert_true(is.reset_cache == was->reset_cache && is.reset_cross_cache == was->reset_cross_cache);
            assert_true(is.kv_bias == was->kv_bias && is.noise_scale == was->noise_scale);
            assert_same_tensor(&was->conditioning, &is.conditioning);
            assert_same_tensor(&was->latents_in, &is.latents_in);
            assert_same_tensor(&was->steps, &is.steps);
            assert_same_tensor(&was->context_frames, &is.context_frames);
            /* A received message can be forwarded, and stays the same message. */
            unsigned char *again = aligned(bytes);
            size_t written;
            assert_ok(ctx, carry_envelope_encode(ctx, again, bytes, &written, &is));
            assert_int_equal(written, bytes);
            assert_memory_equal(again, message, bytes);
            free(again);
        }
        free(message);
    }
}

static void test_the_bytes_are_the_golden_ones(void **state) {
    (void)state;
    for (int e = 0; e < EXAMPLES; e++) {
        char path[256];
        char *golden;
        size_t bytes, length;
        unsigned char *message = message_of(e, &bytes);
        (void)snprintf(path, sizeof path, GOLDEN "%s.bin", example_name[e]);
        assert_ok(ctx, carry_file_read(ctx, &golden, &length, path, (size_t)1 << 20));
        assert_int_equal(length, bytes);
        assert_memory_equal(golden, message, bytes);
        free(golden);
        free(message);
    }
}

/* The tables of the README in tests/golden/envelope equal those that the code prints. */
static void test_the_description_is_the_golden_one(void **state) {
    (void)state;
    char *readme, text[8192];
    size_t length;
    assert_ok(ctx, carry_file_read(ctx, &readme, &length, GOLDEN "README.md", (size_t)1 << 20));
    for (int is_result = 0; is_result < 2; is_result++) {
        const size_t used = carry_envelope_layout(text, sizeof text, is_result);
        assert_true(used < sizeof text && strlen(text) == used);
        assert_non_null(strstr(readme, text));
        char little[10];
        memset(little, 'x', sizeof little);
        assert_int_equal(carry_envelope_layout(little, 9, is_result), used);
        assert_int_equal(strlen(little), 8);
        assert_int_equal(little[9], 'x');
        assert_int_equal(carry_envelope_layout(NULL, 0, is_result), used);
    }
    free(readme);
}

static void test_every_truncation_is_refused(void **state) {
    (void)state;
    for (int e = 0; e < EXAMPLES; e++) {
        size_t bytes;
        unsigned char *message = message_of(e, &bytes);
        const bool is_result = e == RESULT;
        for (size_t cut = 0; cut < bytes; cut++) {
            unsigned char *part =
                aligned(cut); /* exactly this size, so that a sanitizer sees a read of one byte too many */
            memcpy(part, message, cut);
            assert_refused(ctx, CARRY_EFORMAT, "bytes", decode_any(part, cut, is_result));
            free(part);
        }
        assert_refused(ctx, CARRY_EFORMAT, "bytes", decode_any(message, bytes + 1, is_result));
        assert_refused(ctx, CARRY_EFORMAT, "bytes", decode_any(message, bytes + 8, is_result));
        free(message);
    }
}

static void test_every_flipped_bit_is_refused(void **state) {
    (void)state;
    for (int e = 0; e < EXAMPLES; e++) {
        size_t bytes;
        unsigned char *message = message_of(e, &bytes);
        for (size_t bit = 0; bit < 8 * bytes; bit++) {
            message[bit / 8] ^= (unsigned char)(1U << bit % 8);
            if (decode_any(message, bytes, e == RESULT) != CARRY_EFORMAT) {
                fail_msg("%s with bit %zu flipped is taken", example_name[e], bit);
            }
            message[bit / 8] ^= (unsigned char)(1U << bit % 8);
        }
        assert_ok(ctx, decode_any(message, bytes, e == RESULT));
        free(message);
    }
}

/* A CRC of 32 bits finds every burst of up to 32 bits. Here random bytes change and the CRCs are corrected, as a
   hostile peer would. The message must be refused, or be one that this program could have written. */
static void test_hostile_bytes_with_right_crcs_are_refused_or_canonical(void **state) {
    (void)state;
    int taken = 0, refused = 0;
    for (uint64_t round = 0; round < 20000; round++) {
        const carry_words w = carry_philox(7, round, 0);
        const int e = (int)(w.word[0] % EXAMPLES);
        size_t bytes, written;
        unsigned char *message = message_of(e, &bytes);
        const size_t head = bytes < 300 ? bytes : 300; /* the bytes that are parsed */
        message[w.word[1] % head] = (unsigned char)(w.word[2] & 1 ? w.word[3] : w.word[3] % 4);
        message_seal(message, bytes);
        carry_envelope envelope;
        const carry_status status =
            e == RESULT ? decode_any(message, bytes, true) : carry_envelope_decode(ctx, &envelope, message, bytes);
        if (status != CARRY_OK) {
            assert_true(status == CARRY_EFORMAT || status == CARRY_EARGUMENT);
            assert_true(carry_ctx_error(ctx)[0] != '\0');
            refused++;
        } else if (e != RESULT) {
            unsigned char *again = aligned(bytes);
            assert_ok(ctx, carry_envelope_encode(ctx, again, bytes, &written, &envelope));
            assert_int_equal(written, bytes);
            assert_memory_equal(again, message, bytes);
            free(again);
            taken++;
        }
        free(message);
    }
    assert_true(taken > 100 && refused > 100);
}

/* Replaces one number of the message and corrects the CRCs. */
static void with(int e, size_t at, uint64_t value, int width, carry_status expected, const char *words) {
    size_t bytes;
    unsigned char *message = message_of(e, &bytes);
    for (int i = 0; i < width; i++) {
        message[at + (size_t)i] = (unsigned char)(value >> 8 * i);
    }
    message_seal(message, bytes);
    assert_refused(ctx, expected, words, decode_any(message, bytes, e == RESULT));
    free(message);
}

static void test_wrong_headers_fields_and_specs_are_named(void **state) {
    (void)state;
    enum { METADATA = 32, SPEC = 104, SPEC_RESULT = 88 };
    with(INFER_FULL, 0, 0x52595243, 4, CARRY_EFORMAT, "starts with CRYE"); /* a result */
    with(RESULT, 0, 0x45595243, 4, CARRY_EFORMAT, "starts with CRYR");
    with(INFER_FULL, 4, 2, 4, CARRY_EFORMAT, "version 2, and this program speaks 1");
    with(NOOP, 4, 0, 4, CARRY_EFORMAT, "version 0");
    with(RESULT, 4, 0x01000000, 4, CARRY_EFORMAT, "version 16777216");
    with(INFER_FULL, 8, 73, 4, CARRY_EFORMAT, "73 bytes of metadata");
    with(INFER_FULL, 12, 5, 4, CARRY_EFORMAT, "5 tensors");
    with(INFER_FULL, 12, 0xFFFFFFFF, 4, CARRY_EFORMAT, "4294967295 tensors");
    with(INFER_FULL, 12, 3, 4, CARRY_EFORMAT, "bytes after its header");
    with(INFER_FULL, 16, UINT64_MAX, 8, CARRY_EFORMAT, "18446744073709551615");
    with(INFER_FULL, 16, UINT64_MAX - 7, 8, CARRY_EFORMAT, "18446744073709551608");
    with(INFER_FULL, 16, CARRY_ENVELOPE_BYTES, 8, CARRY_EFORMAT, "bytes after its header");
    with(NOOP, METADATA, 3, 4, CARRY_EARGUMENT, "action is 3");
    with(NOOP, METADATA, 0xFFFFFFFF, 4, CARRY_EARGUMENT, "action is 4294967295");
    with(NOOP, METADATA, 1, 4, CARRY_EARGUMENT, "height");
    with(INFER_FULL, METADATA, 0, 4, CARRY_EARGUMENT, "NOOP carries a tensor");
    with(INFER_FULL, METADATA + 4, 0x1F, 4, CARRY_EFORMAT, "flags 0000001f");
    with(INFER_FULL, METADATA + 4, 0x8000000F, 4, CARRY_EFORMAT, "flags 8000000f");
    with(INFER_FULL, METADATA + 68, 1, 4, CARRY_EFORMAT, "00000001 at byte 68");
    with(INFER_FULL, SPEC, 0x58585858, 4, CARRY_EFORMAT, "tensor 58 58 58 58");
    with(INFER_FULL, SPEC + 56, 0x444E4F43, 4, CARRY_EFORMAT, "there twice");    /* COND again */
    with(INFER_FULL, SPEC, 0x4954414C, 4, CARRY_EFORMAT, "latents_in has rank"); /* LATI */
    with(INFER_FULL, SPEC + 4, 0x20343649, 4, CARRY_EFORMAT, "conditioning has type 49 36 34 20 where BF16");
    with(INFER_FULL, SPEC + 112 + 4, 0x36314642, 4, CARRY_EFORMAT, "steps has type");
    with(INFER_FULL, SPEC + 8, 3, 4, CARRY_EFORMAT, "conditioning has rank 3 where 2");
    with(INFER_FULL, SPEC + 12, 1, 4, CARRY_EFORMAT, "conditioning has rank");
    with(INFER_FULL, SPEC + 16, UINT64_MAX, 8, CARRY_EFORMAT, "size -1 at index 0");
    with(INFER_FULL, SPEC + 16, (uint64_t)1 << 62, 8, CARRY_EFORMAT, "which its shape [4611686018427387904");
    with(INFER_FULL, SPEC + 16, 1, 8, CARRY_EFORMAT, "conditioning claims");
    with(INFER_FULL, SPEC + 32, 1, 8, CARRY_EFORMAT, "size 1 at index 2");
    with(INFER_FULL, SPEC + 48, 8, 8, CARRY_EFORMAT, "conditioning claims 8 bytes");
    with(RESULT, SPEC_RESULT + 16, 15, 8, CARRY_EFORMAT, "latents_out claims");
}

/* Fields that fit the format but not each other are refused by carry_envelope_validate, on both sides. */
static void test_wrong_values_are_refused_by_the_receiver_too(void **state) {
    (void)state;
    enum { METADATA = 32 };
    with(INFER_FULL, METADATA + 4, 0xE, 4, CARRY_EARGUMENT, "context_frames are there");
    with(INFER_FULL, METADATA + 4, 0x7, 4, CARRY_EARGUMENT, "reset_cross_cache is false");
    with(INFER_PLAIN, METADATA + 4, 0x8, 4, CARRY_EARGUMENT, "reset_cross_cache is true");
    with(INFER_FULL, METADATA + 40, 4, 4, CARRY_EARGUMENT, "latents_in has shape");
    with(INFER_FULL, METADATA + 48, 0xFFFFFFFF, 4, CARRY_EARGUMENT, "current_start_frame is -1");
    with(INFER_FULL, METADATA + 52, 0x80000000, 4, CARRY_EARGUMENT, "num_denoise_steps is -2147483648");
    with(INFER_FULL, METADATA + 56, 6, 4, CARRY_EARGUMENT, "expected_generator_calls is 6");
    with(INFER_FULL, METADATA + 60, 0x7FC00000, 4, CARRY_EARGUMENT, "kv_bias is nan");
    with(INFER_FULL, METADATA + 60, 0x80000000, 4, CARRY_EARGUMENT, "kv_bias is -0");
    with(INFER_FULL, METADATA + 64, 0x7F800000, 4, CARRY_EARGUMENT, "noise_scale is inf");
    with(SHUTDOWN, METADATA + 32, 1, 8, CARRY_EARGUMENT, "SHUTDOWN has a field of INFER");
    with(NOOP, METADATA + 60, 0x7FC00000, 4, CARRY_EARGUMENT, "NOOP has a field of INFER");
    with(RESULT, METADATA + 32, 0x7FF8000000000000, 8, CARRY_EARGUMENT, "stage1_ms and mesh_idle_ms are nan");
    with(RESULT, METADATA + 48, 0, 4, CARRY_EARGUMENT, "observed_generator_calls is 0");
    with(RESULT, METADATA + 52, 0xFFFFFFFF, 4, CARRY_EARGUMENT, "mesh_start_frame is -1");
}

static void test_room_and_alignment(void **state) {
    (void)state;
    static example made;
    size_t bytes, again;
    example_make(&made, INFER_FULL);
    unsigned char *message = message_of(INFER_FULL, &bytes);
    unsigned char *small = aligned(bytes);
    for (size_t room = 0; room < bytes; room += room < 40 ? 1 : 97) {
        again = 0;
        assert_refused(ctx, CARRY_ERANGE, "there is room for",
                       carry_envelope_encode(ctx, small, room, &again, &made.envelope));
        assert_int_equal(again, bytes); /* the size that is needed is returned */
        for (size_t i = 0; i < bytes; i++) {
            assert_int_equal(small[i], 0xA5); /* and not a byte written */
        }
    }
    assert_refused(ctx, CARRY_ERANGE, "room", carry_envelope_encode(ctx, NULL, bytes, &again, &made.envelope));
    memmove(small + 4, message, bytes);
    assert_refused(ctx, CARRY_EARGUMENT, "multiple of 8", decode_any(small + 4, bytes, false));
    size_t follow = 1;
    assert_refused(ctx, CARRY_ERANGE, "at most", carry_envelope_follows(ctx, &follow, message, bytes - 33, false));
    assert_int_equal(follow, 0);
    assert_ok(ctx, carry_envelope_follows(ctx, &follow, message, bytes - 32, false));
    assert_refused(ctx, CARRY_EFORMAT, "CRYR", carry_envelope_follows(ctx, &follow, message, bytes, true));
    message[20]++;
    assert_refused(ctx, CARRY_EFORMAT, "CRC", carry_envelope_follows(ctx, &follow, message, SIZE_MAX, false));
    message[16] = 0xF8; /* the largest size that the header may claim, above the accepted maximum */
    message[17] = message[18] = 0xFF;
    message[19] = 0x0F;
    message[20] = 0;
    message_seal(message, bytes);
    assert_refused(ctx, CARRY_ERANGE, "follow", carry_envelope_follows(ctx, &follow, message, SIZE_MAX, false));
    free(small);
    free(message);
}

/* A refused envelope writes no byte. */
static void refuse(const carry_envelope *envelope, const char *words) {
    static unsigned char to[1 << 16];
    size_t bytes = 77;
    memset(to, 0xA5, sizeof to);
    assert_refused(ctx, CARRY_EARGUMENT, words, carry_envelope_validate(ctx, envelope));
    assert_refused(ctx, CARRY_EARGUMENT, words, carry_envelope_encode(ctx, to, sizeof to, &bytes, envelope));
    assert_int_equal(bytes, 0);
    for (size_t i = 0; i < sizeof to; i++) {
        assert_int_equal(to[i], 0xA5);
    }
}

#define REFUSE(words, change)               \
    do {                                    \
        example_make(&made, INFER_FULL);    \
        carry_envelope *e = &made.envelope; \
        change;                             \
        refuse(e, words);                   \
    } while (0)

static void test_the_sender_refuses_before_any_byte(void **state) {
    (void)state;
    static example made;
    /* Metadata that cannot be serialised. */
    REFUSE("version is 0", e->version = 0);
    REFUSE("version is 2", e->version = 2);
    REFUSE("action is 7", e->action = (carry_action)7);
    REFUSE("kv_bias is nan", e->kv_bias = NAN);
    REFUSE("kv_bias is -0.5", e->kv_bias = -0.5F);
    REFUSE("kv_bias is 0", e->kv_bias = 0);
    REFUSE("kv_bias is 1.5", e->kv_bias = 1.5F);
    REFUSE("noise_scale is nan", e->noise_scale = NAN);
    REFUSE("noise_scale is -1", e->noise_scale = -1);
    REFUSE("noise_scale is inf", e->noise_scale = INFINITY);
    REFUSE("height and width are 0", e->height = 0);
    REFUSE("and -3", e->width = -3);
    REFUSE("current_start_frame is -1", e->current_start_frame = -1);
    /* An unsupported type, and shapes that do not match. */
    REFUSE("latents_in has type f32", e->latents_in.dtype = CARRY_F32);
    REFUSE("latents_in has type ?", e->latents_in.dtype = (carry_dtype)99);
    REFUSE("conditioning has type f16", e->conditioning.dtype = CARRY_F16);
    REFUSE("context_frames has type i64", e->context_frames.dtype = CARRY_I64);
    REFUSE("steps has type bf16", e->steps.dtype = CARRY_BF16);
    REFUSE("latents_in has rank 3", e->latents_in.rank = 3);
    REFUSE("latents_in has rank 0", e->latents_in = (carry_tensor){.dtype = CARRY_BF16});
    REFUSE("latents_in has rank 7", e->latents_in.rank = 7);
    REFUSE("latents_in has rank -1", e->latents_in.rank = -1);
    REFUSE("size 0 must be 16", e->latents_in.shape[0] = 4);
    REFUSE("size 1 must be at least 1", e->latents_in.shape[1] = 0);
    REFUSE("size 2 must be 3", e->latents_in.shape[2] = 2);
    REFUSE("size 3 must be 7", e->width = 7);
    REFUSE("context_frames has shape", e->context_frames.shape[3] = 4);
    REFUSE("at least 1", e->conditioning.shape[1] = 0);
    REFUSE("at least 1", e->conditioning.shape[0] = -4);
    REFUSE("gaps", e->latents_in.stride[0]++);
    REFUSE("device 1", e->latents_in.device = 1);
    REFUSE("latents_in has no data", e->latents_in.data = NULL);
    REFUSE("multiple of 2", e->latents_in.data = (char *)e->latents_in.data + 1);
    REFUSE("multiple of 8", e->steps.data = (char *)e->steps.data + 4);
    /* Sizes that overflow, and messages above the limit. */
    REFUSE("larger than memory", e->conditioning = carry_view_2d(made.words, CARRY_BF16, INT64_MAX, INT64_MAX));
    REFUSE("larger than memory", e->conditioning = carry_view_2d(made.words, CARRY_BF16, INT64_MAX, 1));
    REFUSE("at most 268435456", e->conditioning = carry_view_2d(made.words, CARRY_BF16, INT64_MAX / 4, 1));
    REFUSE("at most 268435456", e->conditioning = carry_view_2d(made.words, CARRY_BF16, 1 << 14, 1 << 13));
    /* The list of steps. */
    REFUSE("steps has shape [3]", e->num_denoise_steps = 2; e->expected_generator_calls = 3);
    REFUSE("steps has shape [2]", e->steps.shape[0] = 2);
    REFUSE("num_denoise_steps is 0", e->num_denoise_steps = 0);
    REFUSE("num_denoise_steps is 65", e->num_denoise_steps = 65);
    REFUSE("steps[1] is 1000", made.step[1] = 1000);
    REFUSE("steps[2] is 0", made.step[2] = 0);
    REFUSE("steps[0] is 1001", made.step[0] = 1001);
    REFUSE("steps[2] is -9223372036854775808", made.step[2] = INT64_MIN);
    REFUSE("expected_generator_calls is 3", e->expected_generator_calls = 3);
    REFUSE("expected_generator_calls is 6", e->expected_generator_calls = 6);
    /* Recompute without context, context without recompute; conditioning likewise. */
    REFUSE("context_frames are not there", e->context_frames = (carry_tensor){0});
    REFUSE("context_frames are there", e->do_recompute = false);
    REFUSE("conditioning has 3 rows and reset_cross_cache is false", e->reset_cross_cache = false);
    REFUSE("conditioning has 0 rows", e->conditioning = carry_view_2d(NULL, CARRY_BF16, 0, 5));
    /* Envelopes that must be empty. */
    REFUSE("SHUTDOWN carries a tensor", e->action = CARRY_SHUTDOWN);
    REFUSE("NOOP has a field", example_make(&made, NOOP); e->init_cache = true);
    REFUSE("SHUTDOWN has a field", example_make(&made, SHUTDOWN); e->expected_generator_calls = 1);
}

static void test_the_number_of_calls_follows_from_steps_and_passes(void **state) {
    (void)state;
    static example made;
    for (int recompute = 0; recompute < 2; recompute++) {
        for (int32_t calls = 0; calls < 8; calls++) {
            example_make(&made, recompute ? INFER_FULL : INFER_PLAIN);
            const int32_t least = made.envelope.num_denoise_steps + recompute;
            made.envelope.expected_generator_calls = calls;
            assert_int_equal(carry_envelope_validate(ctx, &made.envelope) == CARRY_OK,
                             calls == least || calls == least + 1);
        }
    }
}

static void test_results_that_are_none_are_refused(void **state) {
    (void)state;
    static example made;
    size_t bytes;
#define REFUSE_RESULT(words, change)                                                               \
    do {                                                                                           \
        example_make(&made, RESULT);                                                               \
        carry_result *r = &made.result;                                                            \
        change;                                                                                    \
        assert_refused(ctx, CARRY_EARGUMENT, words, carry_result_encode(ctx, NULL, 0, &bytes, r)); \
    } while (0)
    REFUSE_RESULT("version is 3", r->version = 3);
    REFUSE_RESULT("observed_generator_calls is -1", r->observed_generator_calls = -1);
    REFUSE_RESULT("mesh_start_frame is -2", r->mesh_start_frame = -2);
    REFUSE_RESULT("stage1_ms", r->stage1_ms = NAN);
    REFUSE_RESULT("stage1_ms", r->mesh_idle_ms = -1);
    REFUSE_RESULT("latents_out has type f32", r->latents_out.dtype = CARRY_F32);
    REFUSE_RESULT("latents_out has rank 0", r->latents_out = (carry_tensor){.dtype = CARRY_BF16});
    REFUSE_RESULT("size 0 must be 16", r->latents_out.shape[0] = 15);
}

static void test_gaps_repeats_and_jumps_are_refused(void **state) {
    (void)state;
    static example made;
    carry_envelope_order order = {0};
    carry_envelope *e = &made.envelope;
#define SEEN(made_action, call, chunk, epoch)                                                            \
    (e->action = (made_action), e->call_id = (call), e->chunk_index = (chunk), e->cache_epoch = (epoch), \
     carry_envelope_follow(ctx, &order, e))
    assert_ok(ctx, SEEN(CARRY_NOOP, 41, 99, 7)); /* the first may have any */
    assert_ok(ctx, SEEN(CARRY_INFER, 42, 12, 7));
    assert_refused(ctx, CARRY_EPEER, "call_id 42 came after 42: a repeat", SEEN(CARRY_INFER, 42, 13, 7));
    assert_refused(ctx, CARRY_EPEER, "call_id 44 came after 42: a gap", SEEN(CARRY_INFER, 44, 13, 7));
    assert_refused(ctx, CARRY_EPEER, "repeat", SEEN(CARRY_INFER, 0, 13, 7));
    assert_refused(ctx, CARRY_EPEER, "chunk_index 12 came after 12", SEEN(CARRY_INFER, 43, 12, 7));
    assert_refused(ctx, CARRY_EPEER, "chunk_index 14 came after 12 (call_id 43): a gap", SEEN(CARRY_INFER, 43, 14, 7));
    assert_refused(ctx, CARRY_EPEER, "cache_epoch 6 came after 7", SEEN(CARRY_INFER, 43, 13, 6));
    assert_refused(ctx, CARRY_EPEER, "cache_epoch 9 came after 7", SEEN(CARRY_INFER, 43, 13, 9));
    assert_true(order.call_id == 42 && order.chunk_index == 12 && order.cache_epoch == 7); /* refusals leave no trace */
    assert_ok(ctx, SEEN(CARRY_INFER, 43, 13, 8));
    assert_ok(ctx, SEEN(CARRY_NOOP, 44, 0, 8)); /* a NOOP has no chunk number */
    assert_ok(ctx, SEEN(CARRY_INFER, 45, 14, 8));
    assert_refused(ctx, CARRY_EPEER, "gap", SEEN(CARRY_SHUTDOWN, 47, 0, 8));
    assert_refused(ctx, CARRY_EPEER, "repeat", SEEN(CARRY_SHUTDOWN, 45, 0, 8));
    assert_ok(ctx, SEEN(CARRY_SHUTDOWN, 46, 0, 8));
    assert_ok(ctx, SEEN(CARRY_SHUTDOWN, 46, 0, 8)); /* harmless */
    assert_ok(ctx, SEEN(CARRY_SHUTDOWN, 47, 0, 8));
    assert_refused(ctx, CARRY_EPEER, "after SHUTDOWN", SEEN(CARRY_INFER, 48, 15, 8));
    assert_refused(ctx, CARRY_EPEER, "after SHUTDOWN", SEEN(CARRY_NOOP, 48, 0, 8));
    order = (carry_envelope_order){0};
    assert_ok(ctx, SEEN(CARRY_INFER, UINT64_MAX, UINT64_MAX, UINT64_MAX));
    assert_refused(ctx, CARRY_EPEER, "repeat", SEEN(CARRY_INFER, 0, 0, 0)); /* numbers do not go round */
}

static void test_crc32c_is_that_of_others(void **state) {
    (void)state;
    unsigned char bytes[32];
    /* RFC 3720, B.4, and the usual check value for CRCs. */
    memset(bytes, 0, sizeof bytes);
    assert_int_equal(carry_crc32c(0, bytes, 32), 0x8A9136AA);
    memset(bytes, 0xFF, sizeof bytes);
    assert_int_equal(carry_crc32c(0, bytes, 32), 0x62A8AB43);
    for (unsigned i = 0; i < 32; i++) {
        bytes[i] = (unsigned char)i;
    }
    assert_int_equal(carry_crc32c(0, bytes, 32), 0x46DD794E);
    assert_int_equal(carry_crc32c(0, "123456789", 9), 0xE3069283);
    assert_int_equal(carry_crc32c(0, "", 0), 0);
    print_message("crc32c: %s\n", carry_crc32c_name());
}

static void test_crc32c_ways_agree_in_any_pieces(void **state) {
    (void)state;
    unsigned char data[300];
    for (size_t i = 0; i < sizeof data; i++) {
        data[i] = (unsigned char)carry_philox(3, 0, i).word[0];
    }
    for (size_t start = 0; start < 9; start++) {
        for (size_t length = 0; length < 290; length += length < 40 ? 1 : 13) {
            const uint32_t whole = carry_crc32c(0, data + start, length);
            assert_int_equal(whole, carry_crc32c_plain(0, data + start, length));
            for (size_t cut = 0; cut <= length; cut += 7) {
                const uint32_t first = carry_crc32c(0, data + start, cut);
                assert_int_equal(carry_crc32c(first, data + start + cut, length - cut), whole);
            }
        }
    }
}

static void test_the_digest_sees_every_bit_and_the_length(void **state) {
    (void)state;
    unsigned char data[67] = {0};
    const int64_t empty = carry_stream_digest(data, 0);
    for (size_t length = 1; length < sizeof data; length++) {
        assert_true(carry_stream_digest(data, length) != carry_stream_digest(data, length - 1));
        const int64_t whole = carry_stream_digest(data, length);
        for (size_t bit = 0; bit < 8 * length; bit++) {
            data[bit / 8] ^= (unsigned char)(1U << bit % 8);
            assert_true(carry_stream_digest(data, length) != whole);
            data[bit / 8] ^= (unsigned char)(1U << bit % 8);
        }
        data[length - 1] = (unsigned char)(length * 37);
    }
    assert_true(carry_stream_digest(data, 0) == empty);
    /* This value must never change: ranks of other builds compare it. */
    assert_true(carry_stream_digest("123456789", 9) == DIGEST_OF_123456789);
}

/* Prints the throughput and asserts nothing: timings here are for ratios. */
static void test_throughput_is_told(void **state) {
    (void)state;
    const size_t bytes = (size_t)8 << 20;
    unsigned char *data = aligned(bytes);
    double best[3] = {1e9, 1e9, 1e9};
    uint64_t sum = 0;
    for (int round = 0; round < 3; round++) {
        const double t0 = carry_seconds();
        sum += carry_crc32c(0, data, bytes);
        const double t1 = carry_seconds();
        sum += carry_crc32c_plain(0, data, bytes);
        const double t2 = carry_seconds();
        sum += (uint64_t)carry_stream_digest(data, bytes);
        const double t3 = carry_seconds();
        best[0] = fmin(best[0], t1 - t0);
        best[1] = fmin(best[1], t2 - t1);
        best[2] = fmin(best[2], t3 - t2);
    }
    print_message("of 8 MiB: crc32c (%s) %.2f GB/s, plain %.2f GB/s, digest %.2f GB/s (%llx)\n", carry_crc32c_name(),
                  (double)bytes / best[0] / 1e9, (double)bytes / best[1] / 1e9, (double)bytes / best[2] / 1e9,
                  (unsigned long long)sum);
    free(data);
}

static int write_golden(const char *folder) {
    for (int e = 0; e < EXAMPLES; e++) {
        static example made;
        char path[512];
        unsigned char message[8192];
        size_t bytes;
        example_make(&made, e);
        (void)snprintf(path, sizeof path, "%s/%s.bin", folder, example_name[e]);
        FILE *file = fopen(path, "wb");
        if (file == NULL || example_encode(ctx, &made, message, sizeof message, &bytes) != CARRY_OK ||
            fwrite(message, 1, bytes, file) != bytes || fclose(file) != 0) {
            (void)fprintf(stderr, "%s: %s\n", path, carry_ctx_error(ctx));
            return 1;
        }
    }
    char text[8192];
    for (int is_result = 0; is_result < 2; is_result++) {
        (void)carry_envelope_layout(text, sizeof text, is_result);
        (void)printf("%s\n", text);
    }
    return 0;
}

int main(int count, char **arguments) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_is_encoded_is_decoded),
        cmocka_unit_test(test_the_bytes_are_the_golden_ones),
        cmocka_unit_test(test_the_description_is_the_golden_one),
        cmocka_unit_test(test_every_truncation_is_refused),
        cmocka_unit_test(test_every_flipped_bit_is_refused),
        cmocka_unit_test(test_hostile_bytes_with_right_crcs_are_refused_or_canonical),
        cmocka_unit_test(test_wrong_headers_fields_and_specs_are_named),
        cmocka_unit_test(test_wrong_values_are_refused_by_the_receiver_too),
        cmocka_unit_test(test_room_and_alignment),
        cmocka_unit_test(test_the_sender_refuses_before_any_byte),
        cmocka_unit_test(test_the_number_of_calls_follows_from_steps_and_passes),
        cmocka_unit_test(test_results_that_are_none_are_refused),
        cmocka_unit_test(test_gaps_repeats_and_jumps_are_refused),
        cmocka_unit_test(test_crc32c_is_that_of_others),
        cmocka_unit_test(test_crc32c_ways_agree_in_any_pieces),
        cmocka_unit_test(test_the_digest_sees_every_bit_and_the_length),
        cmocka_unit_test(test_throughput_is_told),
    };
    ctx = support_ctx(1, NULL, NULL);
    const int failed = count == 2 ? write_golden(arguments[1]) : cmocka_run_group_tests(tests, NULL, NULL);
    carry_ctx_free(ctx);
    return failed;
}
