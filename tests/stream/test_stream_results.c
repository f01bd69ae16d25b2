/* Stage 0 against a leader that errs: a result is shown only if it is the one that was asked for, took the right number
   of calls, and is finite and complete. Rank 1 is a script that answers every envelope with zeros. */
#include "stream_support.h"

#include "stream/link.h"
#include "stream/stage.h"

enum { MOST = 65536, LATENTS = 16 * 2 * 4 * 4, WRONG_AT = 2 };

typedef struct fault {
    const char *says;
    carry_status status;
    void (*change)(carry_result *result, uint16_t *latents);
    void (*damage)(unsigned char *bytes, size_t *size);
    carry_message_kind kind; /* 0: a result */
} fault;

static void other_call(carry_result *r, uint16_t *latents) {
    (void)latents;
    r->call_id++;
}

static void same_call(carry_result *r, uint16_t *latents) {
    (void)latents;
    r->call_id--;
    r->chunk_index--;
}

static void other_epoch(carry_result *r, uint16_t *latents) {
    (void)latents;
    r->cache_epoch++;
}

static void more_calls(carry_result *r, uint16_t *latents) {
    (void)latents;
    r->observed_generator_calls++;
}

static void other_place(carry_result *r, uint16_t *latents) {
    (void)latents;
    r->mesh_start_frame += 2;
}

static void other_digest(carry_result *r, uint16_t *latents) {
    (void)latents;
    r->digest ^= 1;
}

static void other_shape(carry_result *r, uint16_t *latents) {
    r->latents_out = carry_view_4d(latents, CARRY_BF16, 16, 1, 4, 4);
}

static void infinite(carry_result *r, uint16_t *latents) {
    latents[LATENTS - 1] = 0xff80; /* minus infinity */
    r->digest = carry_stream_digest(latents, LATENTS * sizeof *latents);
}

static void not_a_number(carry_result *r, uint16_t *latents) {
    latents[7] = 0x7fc1;
    r->digest = carry_stream_digest(latents, LATENTS * sizeof *latents);
}

static void cut_short(unsigned char *bytes, size_t *size) {
    (void)bytes;
    *size -= 2;
}

static void flip(unsigned char *bytes, size_t *size) {
    bytes[*size / 2] ^= 0x40;
}

static const fault faults[] = {
    {"the result is of call 3", CARRY_EPEER, other_call, NULL, 0},
    {"the result is of call 1, chunk 1", CARRY_EPEER, same_call, NULL, 0},
    {"epoch 1", CARRY_EPEER, other_epoch, NULL, 0},
    {"made 4 calls at frame 4 where 3 at frame 4", CARRY_EPEER, more_calls, NULL, 0},
    {"made 3 calls at frame 6 where 3 at frame 4", CARRY_EPEER, other_place, NULL, 0},
    {"digest", CARRY_EPEER, other_digest, NULL, 0},
    {"latents_out is [16, 1, 4, 4]", CARRY_ESHAPE, other_shape, NULL, 0},
    {"not finite", CARRY_ERANGE, infinite, NULL, 0},
    {"not finite", CARRY_ERANGE, not_a_number, NULL, 0},
    {"", CARRY_EFORMAT, NULL, cut_short, 0},
    {"CRC", CARRY_EFORMAT, NULL, flip, 0},
    {"message of kind 3", CARRY_EPEER, NULL, NULL, CARRY_MESSAGE_PULSE},
    {"the leader stopped the stream: because", CARRY_EPEER, NULL, NULL, CARRY_MESSAGE_REFUSAL},
};

typedef struct scene {
    stream seen;
    const fault *wrong;
    carry_status stage;
    char says[512];
} scene;

static carry_status answer(carry_comm *comm, carry_link *link, const carry_envelope *e, const fault *wrong) {
    static uint16_t latents[LATENTS];
    void *room;
    size_t size;
    memset(latents, 0, sizeof latents);
    carry_result r = {.version = 1,
                      .call_id = e->call_id,
                      .chunk_index = e->chunk_index,
                      .cache_epoch = e->cache_epoch,
                      .observed_generator_calls = e->expected_generator_calls,
                      .mesh_start_frame = e->current_start_frame,
                      .digest = carry_stream_digest(latents, sizeof latents),
                      .stage1_ms = 1,
                      .latents_out = carry_view_4d(latents, CARRY_BF16, 16, 2, 4, 4)};
    const carry_about about = {.call_id = e->call_id};
    if (wrong != NULL && wrong->kind != 0) {
        return carry_link_tell(link, wrong->kind, "because", 7);
    }
    if (wrong != NULL && wrong->change != NULL) {
        wrong->change(&r, latents);
    }
    TRY(carry_link_tell(link, CARRY_MESSAGE_ABOUT, &about, sizeof about));
    TRY(carry_link_slot(link, &room));
    /* The sender's own check would refuse some of these results. */
    const carry_status status = carry_result_encode(carry_comm_ctx(comm), room, carry_link_capacity(link), &size, &r);
    EXPECT(comm, status == CARRY_OK, "%s", carry_ctx_error(carry_comm_ctx(comm)));
    if (wrong != NULL && wrong->damage != NULL) {
        wrong->damage(room, &size);
    }
    return carry_link_send(link, CARRY_MESSAGE_RESULT, size);
}

static carry_status lead(scene *s, carry_comm *comm, carry_link *link) {
    for (int calls = 0;; calls++) {
        carry_message message;
        carry_envelope e;
        TRY(carry_link_receive(link, &message));
        if (message.kind == CARRY_MESSAGE_CLOSE) {
            return CARRY_OK;
        }
        TRY(carry_envelope_decode(carry_comm_ctx(comm), &e, message.bytes, message.size));
        if (e.action != CARRY_INFER) {
            TRY(carry_link_tell(link, CARRY_MESSAGE_PULSE, &e.call_id, sizeof e.call_id));
            continue;
        }
        const bool is_wrong = s->wrong != NULL && calls == WRONG_AT;
        TRY(answer(comm, link, &e, is_wrong ? s->wrong : NULL));
        if (is_wrong) {
            return carry_link_flush(link);
        }
    }
}

static carry_status scene_rank(void *user, carry_comm *comm) {
    scene *s = user;
    carry_ctx *ctx = carry_comm_ctx(comm);
    const bool is_stage = carry_comm_rank(comm) == 0;
    const carry_link_options ends = {
        .depth = 2, .out_most = MOST, .in_most = MOST, .group = is_stage ? "stage0" : "mesh"};
    const carry_pipeline_hooks hooks = {
        .controls = s->seen.controls, .frames = see_frames, .cut = see_cut, .chunk = see_chunk, .user = &s->seen};
    carry_link *link;
    TRY(carry_link_open(comm, &link, is_stage ? 1 : 0, &ends));
    carry_status status;
    if (is_stage) {
        carry_stage *stage;
        status = carry_stage_open(ctx, &stage, &s->seen.options, &hooks, &s->seen.options.config, link, true, 10.0);
        status = status == CARRY_OK ? carry_stage_open_text(stage) : status;
        s->stage = status == CARRY_OK ? carry_stage_run(stage) : status;
        (void)snprintf(s->says, sizeof s->says, "%s", carry_ctx_error(ctx));
        s->seen.figures = stage->figures;
        carry_stage_close(stage);
        status = CARRY_OK;
    } else {
        status = lead(s, comm, link);
    }
    carry_link_free(link);
    return status;
}

static void play(scene *s) {
    char message[512];
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    carry_control_state start = carry_control_default();
    start.steps = 2;
    start.step[0] = 1000;
    start.step[1] = 500;
    s->seen.options = small_stream();
    s->seen.options.with_stage = true;
    assert_ok(ctx, carry_controls_new(ctx, &s->seen.controls, &start));
    const carry_status status = run_ranks(2, &world, scene_rank, s, message);
    if (status != CARRY_OK) {
        fail_msg("%s: %s", carry_status_name(status), message);
    }
    carry_controls_free(s->seen.controls);
    carry_ctx_free(ctx);
}

static void test_a_leader_that_does_nothing_wrong(void **state) {
    (void)state;
    static scene s;
    s = (scene){0};
    play(&s);
    assert_int_equal(s.stage, CARRY_OK);
    assert_int_equal(s.seen.shown, 6);
}

static void test_a_result_that_is_wrong_is_not_shown(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++) {
        static scene s;
        s = (scene){.wrong = &faults[i]};
        play(&s);
        if (s.stage != faults[i].status || strstr(s.says, faults[i].says) == NULL ||
            strstr(s.says, "stage0: call_id 2, chunk_index 2, cache_epoch 0") == NULL) {
            fail_msg("fault %d: %s: %s", (int)i, carry_status_name(s.stage), s.says);
        }
        assert_int_equal(s.seen.shown, WRONG_AT);
        assert_int_equal(s.seen.frames, 2 * WRONG_AT);
    }
}

int main(void) {
    take_filter();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_leader_that_does_nothing_wrong),
        cmocka_unit_test(test_a_result_that_is_wrong_is_not_shown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
