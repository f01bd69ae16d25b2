/* How soon a prompt is visible: a prompt that arrives while a chunk is denoised applies to the remaining steps, at
   least to the last; the next chunk has it from its first step. On every device. */
/* labels: gpu */
#include "stream_support.h"

#include "carry/device.h"
#include "core/crc32c.h"
#include "model/dit/dit.h"
#include "model/dit/dit_fp8.h"
#include "stream/generator.h"
#include "stream/mesh.h"

enum { H = 4, W = 6, FRAMES = 2, COUNT = 16 * FRAMES * H * W, STEPS = 3, CHUNKS_RUN = 3, TEXT = 4 * 16 };

/* A prompt that arrives at the n-th time the generator asks for one, counted from the start of chunk 1. */
typedef struct visitor {
    uint16_t *text;
    int at, asked;
} visitor;

static carry_status visit(void *user, carry_tensor *text) {
    visitor *v = user;
    *text = v->asked++ == v->at ? carry_view_2d(v->text, CARRY_BF16, 4, 16) : (carry_tensor){0};
    return CARRY_OK;
}

typedef struct latents {
    uint16_t chunk[CHUNKS_RUN][COUNT];
    bool is_again;
} latents;

/* RELOADED: the weights change after they were rounded to 8 bits and the generator was made. */
typedef enum products { PLAIN, IN_8_BITS, RELOADED } products;

/* Generates chunks 0 to 2 with the first text. Chunk 1 gets the second text at the `at`-th question; if `at` is below
   0, with its envelope; if above STEPS, never. */
static void generate_by(carry_ctx *ctx, int device, int at, products by, latents *out) {
    const carry_dit_config config = small_stream().config;
    static uint16_t text[2][TEXT], noise[COUNT];
    int64_t steps[STEPS] = {1000, 750, 400};
    visitor v = {.text = text[1], .at = at};
    carry_dit *dit;
    carry_generator *g;
    const carry_generator_options options = {.height = H,
                                             .width = W,
                                             .chunk = FRAMES,
                                             .window = 6,
                                             .shift = 3.0,
                                             .dtype = device == 0 && by == PLAIN ? CARRY_F32 : CARRY_BF16};
    for (int i = 0; i < 2; i++) {
        assert_ok(ctx, carry_random_normal(ctx, carry_view_1d(text[i], CARRY_BF16, TEXT), 8, (uint64_t)i, 0, 1));
    }
    assert_ok(ctx, carry_dit_new_for(ctx, &dit, &config, NULL, device, NULL, options.dtype));
    assert_ok(ctx, carry_dit_init(dit, by == RELOADED ? 4 : 3));
    assert_ok(ctx, by == PLAIN ? CARRY_OK : carry_dit_fp8_open(dit));
    assert_ok(ctx, carry_generator_new(dit, &g, &options));
    if (by == RELOADED) {
        assert_ok(ctx, carry_dit_init(dit, 3));
        assert_ok(ctx, carry_generator_reload(g));
    }
    for (int k = 0; k < CHUNKS_RUN; k++) {
        carry_result result;
        carry_generator_times times;
        const bool has_text = k == 0 || (k == 1 && at < 0);
        assert_ok(ctx, carry_random_normal(ctx, carry_view_1d(noise, CARRY_BF16, COUNT), 7,
                                           carry_generator_stream((uint64_t)k, 0), 0, 1));
        const carry_envelope e = {.version = CARRY_ENVELOPE_VERSION,
                                  .action = CARRY_INFER,
                                  .call_id = (uint64_t)k,
                                  .chunk_index = (uint64_t)k,
                                  .height = H,
                                  .width = W,
                                  .current_start_frame = k * FRAMES,
                                  .num_denoise_steps = STEPS,
                                  .expected_generator_calls = STEPS + 1,
                                  .init_cache = k == 0,
                                  .reset_cross_cache = has_text,
                                  .seed = 7,
                                  .kv_bias = 0.6f,
                                  .noise_scale = 0.9f,
                                  .conditioning = carry_view_2d(text[k], CARRY_BF16, has_text ? 4 : 0, 16),
                                  .latents_in = carry_view_4d(noise, CARRY_BF16, 16, FRAMES, H, W),
                                  .steps = carry_view_1d(steps, CARRY_I64, STEPS)};
        carry_generator_set_late(g, k == 1 ? visit : NULL, &v);
        assert_ok(ctx, carry_generator_run(g, &result, &times, &e));
        assert_int_equal(result.observed_generator_calls, STEPS + 1); /* a repeated step does not count again */
        memcpy(out->chunk[k], result.latents_out.data, sizeof out->chunk[k]);
        if (k == 1) {
            out->is_again = carry_generator_did_again(g);
            assert_int_equal(v.asked, STEPS + 1);
        }
    }
    carry_generator_free(g);
    carry_dit_free(dit);
}

static void generate(carry_ctx *ctx, int device, int at, latents *out) {
    generate_by(ctx, device, at, PLAIN, out);
}

static bool same(const latents *a, const latents *b, int chunk) {
    return memcmp(a->chunk[chunk], b->chunk[chunk], sizeof a->chunk[chunk]) == 0;
}

static void test_a_late_prompt_is_that_of_the_steps_which_are_left(void **state) {
    (void)state;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    static latents never, with_envelope, late[STEPS + 1];
    for (int device = 0; device < carry_device_count(); device++) {
        generate(ctx, device, STEPS + 1, &never);
        generate(ctx, device, -1, &with_envelope);
        for (int at = 0; at <= STEPS; at++) {
            generate(ctx, device, at, &late[at]);
            assert_true(same(&late[at], &never, 0));
            assert_false(same(&late[at], &never, 1)); /* it is seen */
            assert_false(same(&late[at], &never, 2)); /* and stays */
            assert_true(late[at].is_again == (at == STEPS));
        }
        assert_true(same(&late[0], &with_envelope, 1)); /* before the first step: as if it had come with the envelope */
        assert_true(same(&late[0], &with_envelope, 2));
        assert_false(same(&late[1], &with_envelope, 1));
        assert_false(same(&late[2], &late[1], 1));
        assert_true(same(&late[STEPS], &late[STEPS - 1], 1)); /* after the last step: that step is repeated */
        assert_true(same(&late[STEPS], &late[STEPS - 1], 2));
    }
    carry_ctx_free(ctx);
}

static void test_weights_in_8_bits_follow_the_weights(void **state) {
    (void)state;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    static latents plain, in_8_bits, reloaded;
    for (int device = 0; device < carry_device_count(); device++) {
        generate(ctx, device, STEPS + 1, &plain);
        generate_by(ctx, device, STEPS + 1, IN_8_BITS, &in_8_bits);
        generate_by(ctx, device, STEPS + 1, RELOADED, &reloaded);
        for (int k = 0; k < CHUNKS_RUN; k++) {
            assert_false(same(&in_8_bits, &plain, k));
            assert_true(same(&in_8_bits, &reloaded, k));
        }
    }
    carry_ctx_free(ctx);
}

static void post_text(carry_ctx *ctx, carry_link *stage, const uint16_t *text) {
    static _Alignas(64) unsigned char bytes[sizeof(carry_text_head) + TEXT * sizeof *text];
    const carry_text_head head = {.crc = carry_crc32c(0, text, TEXT * sizeof *text), .rows = 4};
    memcpy(bytes, &head, sizeof head);
    memcpy(bytes + sizeof head, text, TEXT * sizeof *text);
    assert_ok(ctx, carry_link_tell(stage, CARRY_MESSAGE_TEXT, bytes, sizeof bytes));
}

static void post_envelope(carry_ctx *ctx, carry_link *stage, int k, uint16_t *text) {
    static uint16_t noise[COUNT];
    int64_t steps[STEPS] = {1000, 750, 400};
    void *room;
    size_t size;
    assert_ok(ctx, carry_random_normal(ctx, carry_view_1d(noise, CARRY_BF16, COUNT), 7,
                                       carry_generator_stream((uint64_t)k, 0), 0, 1));
    const carry_envelope e = {.version = CARRY_ENVELOPE_VERSION,
                              .action = CARRY_INFER,
                              .call_id = (uint64_t)k,
                              .chunk_index = (uint64_t)k,
                              .height = H,
                              .width = W,
                              .current_start_frame = k * FRAMES,
                              .num_denoise_steps = STEPS,
                              .expected_generator_calls = STEPS + 1,
                              .init_cache = k == 0,
                              .reset_cross_cache = text != NULL,
                              .seed = 7,
                              .kv_bias = 1.0f,
                              .noise_scale = 1.0f,
                              .conditioning = carry_view_2d(text, CARRY_BF16, text != NULL ? 4 : 0, 16),
                              .latents_in = carry_view_4d(noise, CARRY_BF16, 16, FRAMES, H, W),
                              .steps = carry_view_1d(steps, CARRY_I64, STEPS)};
    assert_ok(ctx, carry_link_slot(stage, &room));
    assert_ok(ctx, carry_envelope_encode(ctx, room, carry_link_capacity(stage), &size, &e));
    assert_ok(ctx, carry_link_send(stage, CARRY_MESSAGE_ENVELOPE, size));
}

/* Runs two chunks on a mesh of one rank. The second has the last text from its start: in its envelope, or as the newest
   of several messages behind it. Returns the number of conditionings that the mesh reports. */
static uint64_t lead(carry_ctx *ctx, bool is_late, uint16_t latents_out[COUNT]) {
    enum { MOST = 1 << 16 };
    const carry_dit_config config = small_stream().config;
    const carry_link_options link = {.depth = 2, .out_most = MOST, .in_most = MOST, .group = "mesh"};
    const carry_generator_options options = {
        .height = H, .width = W, .chunk = FRAMES, .window = 6, .shift = 3.0, .dtype = CARRY_F32};
    const carry_mesh_options shapes = {.channels = 16,
                                       .height = H,
                                       .width = W,
                                       .chunk = FRAMES,
                                       .text_len = config.text_len,
                                       .text_dim = config.text_dim,
                                       .envelope_most = MOST};
    static uint16_t text[4][TEXT];
    carry_link *stage, *leader;
    carry_generator *g;
    carry_mesh *mesh;
    carry_dit *dit;
    carry_about about = {0};
    for (int i = 0; i < 4; i++) {
        assert_ok(ctx, carry_random_normal(ctx, carry_view_1d(text[i], CARRY_BF16, TEXT), 8, (uint64_t)i, 0, 1));
    }
    assert_ok(ctx, carry_dit_new(ctx, &dit, &config, NULL, 0));
    assert_ok(ctx, carry_dit_init(dit, 3));
    assert_ok(ctx, carry_generator_new(dit, &g, &options));
    assert_ok(ctx, carry_link_pair(ctx, &stage, &leader, &link));
    assert_ok(ctx, carry_mesh_new(ctx, &mesh, NULL, g, dit, &shapes));
    for (int k = 0; k < 2; k++) {
        carry_message message;
        carry_result result;
        bool closed;
        post_envelope(ctx, stage, k, k == 0 ? text[0] : is_late ? NULL : text[3]);
        for (int i = 1; k == 1 && is_late && i < 4; i++) {
            post_text(ctx, stage, text[i]);
        }
        assert_ok(ctx, carry_mesh_turn(mesh, leader, &closed));
        assert_ok(ctx, carry_link_receive(stage, &message));
        assert_int_equal(message.kind, CARRY_MESSAGE_ABOUT);
        memcpy(&about, message.bytes, sizeof about);
        assert_ok(ctx, carry_link_receive(stage, &message));
        assert_int_equal(message.kind, CARRY_MESSAGE_RESULT);
        assert_ok(ctx, carry_result_decode(ctx, &result, message.bytes, message.size));
        memcpy(latents_out, result.latents_out.data, COUNT * sizeof *latents_out);
    }
    carry_mesh_free(mesh);
    carry_link_free(stage);
    carry_link_free(leader);
    carry_generator_free(g);
    carry_dit_free(dit);
    return about.texts;
}

static void test_the_newest_of_several_late_prompts_is_taken_at_once(void **state) {
    (void)state;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    static uint16_t with_envelope[COUNT], late[COUNT];
    assert_int_equal(lead(ctx, false, with_envelope), 2);
    assert_int_equal(lead(ctx, true, late), 4);
    assert_memory_equal(late, with_envelope, sizeof late);
    carry_ctx_free(ctx);
}

static void run_or_fail(stream *s) {
    const carry_status status = run_stream(s);
    if (status != CARRY_OK) {
        fail_msg("%d ranks: %s: %s", s->ranks, carry_status_name(status), s->message);
    }
}

/* The index of the first frame that differs between two streams. */
static int first_difference(const stream *a, const stream *b) {
    int i = 0;
    assert_int_equal(a->frames, b->frames);
    while (i < a->frames && a->digest[i] == b->digest[i]) {
        i++;
    }
    return i;
}

/* The prompt is sent when chunk 2 has been shown. One rank begins the next chunk only then, so chunk 3 has it. Where a
   mesh works beside stage 0, chunk 3 may be finished by then, and chunk 4 has it. Never later, for depths up to 2. */
static void test_the_next_chunk_shows_a_prompt(void **state) {
    (void)state;
    for (int ranks = 1; ranks <= 3; ranks++) {
        for (int depth = 1; depth <= 2; depth++) {
            static stream before, s;
            before = (stream){.options = small_stream(), .ranks = ranks};
            before.options.with_stage = ranks > 1;
            before.options.depth = depth;
            before.options.chunks = 8;
            s = before;
            s.prompt_at = 3;
            run_or_fail(&before);
            run_or_fail(&s);
            const int chunk = first_difference(&s, &before) / (int)s.options.chunk;
            assert_int_equal(s.figures.prompt_changes, 1);
            assert_int_equal(chunk, 3 + (int)s.figures.prompt_between);
            assert_true(s.figures.prompt_between <= (ranks == 1 || depth == 1 ? 0 : 1));
            assert_int_equal(s.figures.prompt_between_most, s.figures.prompt_between);
            assert_true(s.figures.prompt_seconds > 0.0 && s.figures.prompt_most >= s.figures.prompt_seconds);
        }
    }
}

/* Prompts that change with every frame: at any step of a chunk, and several times in one chunk. The ranks of the mesh
   compare their results after every chunk. */
static carry_status change_always(void *user, carry_tensor frames, uint64_t chunk_index, uint64_t cache_epoch) {
    stream *s = user;
    char json[64];
    (void)snprintf(json, sizeof json, "{\"prompt\": \"number %d\", \"transition\": %d}", s->frames, s->frames % 3);
    ask(s->controls, json);
    return see_frames(user, frames, chunk_index, cache_epoch);
}

static carry_status restless_rank(void *user, carry_comm *comm) {
    stream *s = user;
    const int rank = carry_comm_rank(comm);
    const carry_pipeline_hooks hooks = {
        .controls = rank == 0 ? s->controls : NULL, .frames = change_always, .chunk = see_chunk, .user = s};
    return carry_pipeline_run(comm, &s->options, &hooks, rank == 0 ? &s->figures : NULL);
}

static void test_prompts_may_change_at_any_time(void **state) {
    (void)state;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    const carry_control_state start = carry_control_default();
    for (int ranks = 1; ranks <= 4; ranks++) {
        for (int depth = support_cases(1, 1 + ranks % 2); depth <= 4; depth += support_cases(1, 2)) {
            static stream s;
            s = (stream){.options = small_stream(), .ranks = ranks};
            s.options.with_stage = ranks > 1;
            s.options.depth = depth;
            s.options.chunks = 20;
            s.options.fps = depth == 3 ? 200.0 : 0.0;
            s.options.recompute = depth == 4 ? CARRY_RECOMPUTE_LATENT : CARRY_RECOMPUTE_OFF;
            s.options.clean_pass = depth != 4;
            assert_ok(ctx, carry_controls_new(ctx, &s.controls, &start));
            const carry_status status =
                run_ranks(ranks, &(carry_comm_options){CARRY_INIT(carry_comm_options), .deadline = 120.0},
                          restless_rank, &s, s.message);
            if (status != CARRY_OK) {
                fail_msg("%d ranks, depth %d: %s", ranks, depth, s.message);
            }
            assert_int_equal(s.frames, 20 * s.options.chunk);
            assert_true(s.figures.prompt_changes >= 10);
            assert_true(s.figures.prompt_between_most <= (uint64_t)depth);
            carry_controls_free(s.controls);
        }
    }
    carry_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_late_prompt_is_that_of_the_steps_which_are_left),
        cmocka_unit_test(test_weights_in_8_bits_follow_the_weights),
        cmocka_unit_test(test_the_newest_of_several_late_prompts_is_taken_at_once),
        cmocka_unit_test(test_the_next_chunk_shows_a_prompt),
        cmocka_unit_test(test_prompts_may_change_at_any_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
