/* The leader and its mesh against a stage 0 that errs: bad input is refused before the mesh gets it, the mesh ends, and
   stage 0 gets the reason. Rank 0 runs a script, ranks 1 and 2 are the mesh. */
#include "stream_support.h"

#include <math.h>
#include <stdatomic.h>
#include <time.h>

#include "comm/rates.h"
#include "stream/link.h"
#include "stream/mesh.h"

enum { LATENTS = 16 * 2 * 4 * 4, TEXT = 2 * 16, MOST = 65536, DEPTH = 2 };

typedef struct scene scene;
struct scene {
    carry_status (*script)(scene *s, carry_comm *comm, carry_link *link);
    int which;             /* index into the script's table */
    bool spoils_weights;   /* rank 2 changes one of its weights */
    double slow, deadline; /* seconds, for script and mesh only, not for the setup; 0: the world's deadline */
    carry_status leader, worker;
    double leader_seconds;
    atomic_int ended; /* ranks of the mesh */
    char told[512], leader_says[512], worker_says[512];
    uint16_t latents[LATENTS], text[TEXT];
    int64_t steps[2];
};

static carry_envelope envelope(scene *s, uint64_t call_id) {
    s->steps[0] = 1000;
    s->steps[1] = 400;
    const bool is_first = call_id == 0;
    return (carry_envelope){
        .version = 1,
        .action = CARRY_INFER,
        .call_id = call_id,
        .chunk_index = call_id,
        .height = 4,
        .width = 4,
        .current_start_frame = (int32_t)(2 * call_id),
        .num_denoise_steps = 2,
        .expected_generator_calls = 3,
        .init_cache = is_first,
        .reset_cross_cache = is_first,
        .seed = 7,
        .kv_bias = 1.0f,
        .noise_scale = 1.0f,
        .conditioning = is_first ? carry_view_2d(s->text, CARRY_BF16, 2, 16) : carry_view_2d(NULL, CARRY_BF16, 0, 16),
        .latents_in = carry_view_4d(s->latents, CARRY_BF16, 16, 2, 4, 4),
        .steps = carry_view_1d(s->steps, CARRY_I64, 2),
    };
}

static carry_envelope signal_of(carry_action action, uint64_t call_id) {
    return (carry_envelope){.version = 1, .action = action, .call_id = call_id};
}

static carry_status put(carry_comm *comm, carry_link *link, const carry_envelope *e) {
    void *room;
    size_t size;
    TRY(carry_link_slot(link, &room));
    TRY(carry_envelope_encode(carry_comm_ctx(comm), room, carry_link_capacity(link), &size, e));
    return carry_link_send(link, CARRY_MESSAGE_ENVELOPE, size);
}

/* The next message that is not about a call. Stores the text of a refusal. */
static carry_status get(scene *s, carry_link *link, carry_message *message) {
    do {
        TRY(carry_link_receive(link, message));
    } while (message->kind == CARRY_MESSAGE_ABOUT);
    if (message->kind == CARRY_MESSAGE_REFUSAL) {
        (void)snprintf(s->told, sizeof s->told, "%.*s", (int)message->size, (const char *)message->bytes);
    }
    return CARRY_OK;
}

static carry_status finish(scene *s, carry_comm *comm, carry_link *link, uint64_t call_id) {
    carry_message message;
    const carry_envelope end = signal_of(CARRY_SHUTDOWN, call_id);
    TRY(put(comm, link, &end));
    TRY(get(s, link, &message));
    EXPECT(comm, message.kind == CARRY_MESSAGE_PULSE, "message %d: %s", (int)message.kind, s->told);
    TRY(carry_link_tell(link, CARRY_MESSAGE_CLOSE, NULL, 0));
    return carry_link_flush(link);
}

static carry_status run_mesh(scene *s, const carry_pipeline_groups *groups, carry_link *link) {
    const carry_pipeline_options o = small_stream();
    carry_ctx *ctx = carry_comm_ctx(groups->world);
    carry_dit *dit;
    carry_generator *generator;
    carry_mesh *mesh;
    TRY(carry_dit_new(ctx, &dit, &o.config, groups->mesh, 0));
    TRY(carry_dit_init(dit, 3));
    if (s->spoils_weights && link == NULL) {
        const carry_parameter *bias = &dit->own.parameter[dit->outer[CARRY_DIT_HEAD_BIAS]];
        dit->own.weights[bias->offset] += 0.25f;
    }
    TRY(carry_generator_new(
        dit, &generator,
        &(carry_generator_options){
            .height = 4, .width = 4, .chunk = 2, .window = 7, .sink = 1, .context = 4, .shift = 3}));
    TRY(carry_mesh_new(ctx, &mesh, groups->mesh, generator, dit,
                       &(carry_mesh_options){.channels = 16,
                                             .height = 4,
                                             .width = 4,
                                             .chunk = 2,
                                             .context = 4,
                                             .text_len = 8,
                                             .text_dim = 16,
                                             .envelope_most = MOST,
                                             .slow = s->slow}));
    if (s->deadline > 0.0) {
        TRY(carry_comm_set_deadline(groups->mesh, s->deadline));
    }
    const double start = carry_seconds();
    if (link != NULL) {
        s->leader = carry_mesh_lead(mesh, link);
        s->leader_seconds = carry_seconds() - start;
        (void)snprintf(s->leader_says, sizeof s->leader_says, "%s", carry_ctx_error(ctx));
    } else {
        s->worker = carry_mesh_work(mesh);
        (void)snprintf(s->worker_says, sizeof s->worker_says, "%s", carry_ctx_error(ctx));
    }
    s->ended++;
    carry_mesh_free(mesh);
    carry_generator_free(generator);
    carry_dit_free(dit);
    return CARRY_OK;
}

static carry_status scene_rank(void *user, carry_comm *comm) {
    scene *s = user;
    const int rank = carry_comm_rank(comm);
    carry_pipeline_groups groups;
    carry_link *link = NULL;
    TRY(carry_pipeline_split(comm, &groups, true));
    if (rank < 2) {
        TRY(carry_link_open(comm, &link, 1 - rank,
                            &(carry_link_options){.depth = DEPTH, .out_most = MOST, .in_most = MOST, .group = "x"}));
    }
    carry_pipeline_begin(&groups);
    if (s->deadline > 0.0) {
        TRY(carry_comm_set_deadline(comm, s->deadline));
    }
    const carry_status status = rank == 0 ? s->script(s, comm, link) : run_mesh(s, &groups, link);
    carry_link_free(link);
    carry_pipeline_end(&groups);
    return status;
}

static void play(scene *s) {
    char message[512];
    for (int i = 0; i < LATENTS; i++) {
        s->latents[i] = carry_bf16_from_f32((float)(draw(1, 2, (uint64_t)i) % 2000) / 1000.0f - 1.0f);
    }
    for (int i = 0; i < TEXT; i++) {
        s->text[i] = carry_bf16_from_f32((float)(i % 5) - 2.0f);
    }
    s->leader = s->worker = CARRY_EUNSUPPORTED;
    const double start = carry_seconds();
    const carry_status status = run_ranks(3, &world, scene_rank, s, message);
    if (status != CARRY_OK) {
        fail_msg("%s: %s", carry_status_name(status), message);
    }
    assert_true(carry_seconds() - start < world.deadline / 2); /* no rank waited for a deadline */
}

static void assert_says(const char *text, const char *part) {
    if (strstr(text, part) == NULL) {
        fail_msg("'%s' does not say '%s'", text, part);
    }
}

static carry_status two_chunks(scene *s, carry_comm *comm, carry_link *link) {
    carry_message message;
    for (uint64_t i = 0; i < 2; i++) {
        const carry_envelope e = envelope(s, i);
        carry_result result;
        TRY(put(comm, link, &e));
        TRY(get(s, link, &message));
        EXPECT(comm, message.kind == CARRY_MESSAGE_RESULT, "message %d: %s", (int)message.kind, s->told);
        TRY(carry_result_decode(carry_comm_ctx(comm), &result, message.bytes, message.size));
        EXPECT(comm, result.call_id == i && result.observed_generator_calls == 3, "call");
        EXPECT(comm, result.mesh_start_frame == (int)(2 * i) && result.stage1_ms > 0.0, "position");
    }
    return finish(s, comm, link, 2);
}

static void test_a_script_that_does_nothing_wrong(void **state) {
    (void)state;
    scene s = {.script = two_chunks};
    play(&s);
    assert_int_equal(s.leader, CARRY_OK);
    assert_int_equal(s.worker, CARRY_OK);
}

/* The error message about the second envelope, by its fault (one_is_wrong). */
static const char *const wrongs[] = {
    "CRC", /* a bit of metadata or tensors */
    "",    /* a bit of the header: magic, version, lengths, checksums */
    "",    /* cut short */
    "",    /* nothing at all */
    "call_id 2 came after 0",
    "call_id 0 came after 0",
    "chunk_index",
    "current_start_frame is 4 and the mesh is at frame 2",
    "latents_in is [16, 2, 4, 2]",
    "cache_epoch",
    "without reset_cache",
    "context_frames are 6",
    "conditioning is [2, 8]",
    "message of kind 2",
    "version",
};

enum { WRONGS = sizeof wrongs / sizeof wrongs[0] };

static carry_status one_is_wrong(scene *s, carry_comm *comm, carry_link *link) {
    static uint16_t context[16 * 6 * 4 * 4];
    carry_envelope e = envelope(s, 0);
    carry_message message;
    carry_message_kind kind = CARRY_MESSAGE_ENVELOPE;
    void *room;
    size_t size;
    TRY(put(comm, link, &e));
    TRY(get(s, link, &message));
    e = envelope(s, 1);
    switch (s->which) {
    case 4:
        e.call_id = 2;
        break;
    case 5:
        e.call_id = 0;
        break;
    case 6:
        e.chunk_index = 3;
        break;
    case 7:
        e.current_start_frame = 4;
        break;
    case 8:
        e.width = 2;
        e.latents_in = carry_view_4d(s->latents, CARRY_BF16, 16, 2, 4, 2);
        break;
    case 9:
        e.cache_epoch = 2;
        e.reset_cache = true;
        e.current_start_frame = 0;
        break;
    case 10:
        e.cache_epoch = 1;
        break;
    case 11:
        e.do_recompute = true;
        e.expected_generator_calls = 4;
        e.context_frames = carry_view_4d(context, CARRY_BF16, 16, 6, 4, 4);
        e.current_start_frame = 6;
        break;
    case 12:
        e.reset_cross_cache = true;
        e.conditioning = carry_view_2d(s->text, CARRY_BF16, 2, 8);
        break;
    case 13:
        kind = CARRY_MESSAGE_RESULT;
        break;
    default:
        break;
    }
    TRY(carry_link_slot(link, &room));
    TRY(carry_envelope_encode(carry_comm_ctx(comm), room, carry_link_capacity(link), &size, &e));
    unsigned char *bytes = room;
    if (s->which == 0) { /* behind the header, where only the checksum shows it */
        const size_t at = CARRY_ENVELOPE_HEADER + draw(11, 0, 0) % (size - CARRY_ENVELOPE_HEADER);
        bytes[at] ^= 0x10;
    } else if (s->which == 1) { /* anywhere in the header */
        bytes[draw(12, 0, 0) % CARRY_ENVELOPE_HEADER] ^= 0x01;
    } else if (s->which == 2) {
        size -= 1 + draw(13, 0, 0) % (size - 1);
    } else if (s->which == 3) {
        size = 0;
    } else if (s->which == 14) {
        bytes[4] = 2;
    }
    TRY(carry_link_send(link, kind, size));
    TRY(get(s, link, &message));
    EXPECT(comm, message.kind == CARRY_MESSAGE_REFUSAL, "message %d of wrong %d", (int)message.kind, s->which);
    return CARRY_OK;
}

static void test_what_is_wrong_is_refused_and_the_mesh_goes_home(void **state) {
    (void)state;
    for (int i = 0; i < WRONGS; i++) {
        scene s = {.script = one_is_wrong, .which = i};
        play(&s);
        assert_true(s.leader != CARRY_OK);
        assert_int_equal(s.worker, CARRY_OK); /* SHUTDOWN, not an error */
        assert_says(s.told, wrongs[i]);
        assert_says(s.told, "mesh: call_id ");
        assert_string_equal(s.told, s.leader_says);
    }
}

/* An envelope that cannot be sent is refused before a byte is sent, and the mesh notices nothing. */
static carry_status refused_by_the_sender(scene *s, carry_comm *comm, carry_link *link) {
    carry_message message;
    for (int i = 0; i < 4; i++) {
        carry_envelope e = envelope(s, 0);
        if (i == 0) {
            e.latents_in = carry_view_4d(s->latents, CARRY_F32, 16, 1, 4, 4); /* a type that cannot be sent */
        } else if (i == 1) {
            e.num_denoise_steps = 1; /* steps are another number */
        } else if (i == 2) {
            e.do_recompute = true; /* without context */
        } else {
            e.kv_bias = NAN;
        }
        EXPECT(comm, put(comm, link, &e) == CARRY_EARGUMENT, "wrong %d was sent", i);
    }
    const carry_envelope e = envelope(s, 0);
    TRY(put(comm, link, &e));
    TRY(get(s, link, &message));
    EXPECT(comm, message.kind == CARRY_MESSAGE_RESULT, "message %d: %s", (int)message.kind, s->told);
    return finish(s, comm, link, 1);
}

static void test_the_sender_refuses_before_a_byte(void **state) {
    (void)state;
    scene s = {.script = refused_by_the_sender};
    play(&s);
    assert_int_equal(s.leader, CARRY_OK);
    assert_int_equal(s.worker, CARRY_OK);
}

static carry_status sends_nan(scene *s, carry_comm *comm, carry_link *link) {
    carry_message message;
    s->latents[LATENTS / 2] = 0x7fc0; /* NaN */
    const carry_envelope e = envelope(s, 0);
    TRY(put(comm, link, &e));
    TRY(get(s, link, &message));
    EXPECT(comm, message.kind == CARRY_MESSAGE_REFUSAL, "message %d", (int)message.kind);
    return CARRY_OK;
}

static void test_nan_in_latents_is_stopped_and_said(void **state) {
    (void)state;
    scene s = {.script = sends_nan};
    play(&s);
    assert_int_equal(s.leader, CARRY_ERANGE);
    assert_int_equal(s.worker, CARRY_ERANGE);
    assert_says(s.told, "mesh: call_id 0, chunk_index 0, cache_epoch 0: latents_in: latent 256 is nan");
}

static carry_status sends_one(scene *s, carry_comm *comm, carry_link *link) {
    carry_message message;
    const carry_envelope e = envelope(s, 0);
    TRY(put(comm, link, &e));
    TRY(get(s, link, &message));
    EXPECT(comm, message.kind == CARRY_MESSAGE_REFUSAL, "message %d", (int)message.kind);
    return CARRY_OK;
}

static void test_ranks_of_the_mesh_that_differ_are_found_by_their_digests(void **state) {
    (void)state;
    scene s = {.script = sends_one, .spoils_weights = true};
    play(&s);
    assert_int_equal(s.leader, CARRY_EPEER);
    assert_int_equal(s.worker, CARRY_EPEER);
    assert_says(s.told, "rank 1 of the mesh has digest");
    assert_says(s.worker_says, "rank 1 of the mesh has digest");
}

/* SHUTDOWN of an idle mesh, with a call under way, and twice; nothing is accepted after it. */
static carry_status shuts_down(scene *s, carry_comm *comm, carry_link *link) {
    carry_message message;
    uint64_t call = 0;
    if (s->which == 1 || s->which == 3) { /* behind a call that is under way */
        const carry_envelope e = envelope(s, call++);
        TRY(put(comm, link, &e));
    }
    const carry_envelope noop = signal_of(CARRY_NOOP, call++);
    const carry_envelope first = signal_of(CARRY_SHUTDOWN, call++);
    const carry_envelope second = signal_of(CARRY_SHUTDOWN, call++);
    const carry_envelope late = {.version = 1, .action = CARRY_NOOP, .call_id = call};
    TRY(put(comm, link, &noop));
    TRY(put(comm, link, &first));
    if (call == 4) {
        TRY(get(s, link, &message));
        EXPECT(comm, message.kind == CARRY_MESSAGE_RESULT, "the call was finished first: %d", (int)message.kind);
    }
    for (int i = 0; i < 2; i++) {
        TRY(get(s, link, &message));
        EXPECT(comm, message.kind == CARRY_MESSAGE_PULSE, "message %d: %s", (int)message.kind, s->told);
    }
    if (s->which == 2) {
        TRY(put(comm, link, &second));
        TRY(get(s, link, &message));
        EXPECT(comm, message.kind == CARRY_MESSAGE_PULSE, "a second one: message %d: %s", (int)message.kind, s->told);
    }
    if (s->which == 3) {
        carry_envelope after = late;
        after.call_id = second.call_id;
        TRY(put(comm, link, &after));
        TRY(get(s, link, &message));
        EXPECT(comm, message.kind == CARRY_MESSAGE_REFUSAL, "after the end: message %d", (int)message.kind);
        return CARRY_OK;
    }
    TRY(carry_link_tell(link, CARRY_MESSAGE_CLOSE, NULL, 0));
    return carry_link_flush(link);
}

static void test_shutdown_idle_in_flight_and_twice(void **state) {
    (void)state;
    for (int i = 0; i < 4; i++) {
        scene s = {.script = shuts_down, .which = i};
        play(&s);
        assert_int_equal(s.worker, CARRY_OK);
        assert_true((s.leader == CARRY_OK) == (i < 3));
    }
}

/* The mesh is slow. Messages fill the sender's slots, and then the sender waits: no queue grows. */
static carry_status floods(scene *s, carry_comm *comm, carry_link *link) {
    const int count = 12;
    carry_message message;
    const double start = carry_seconds();
    for (int sent = 0, taken = 0; taken < count;) {
        bool there;
        TRY(carry_link_poll(link, &there));
        if (sent < count && sent - taken < 2 * DEPTH + 2 && !there) {
            const carry_envelope e = envelope(s, (uint64_t)sent++);
            TRY(put(comm, link, &e));
        } else {
            TRY(get(s, link, &message));
            EXPECT(comm, message.kind == CARRY_MESSAGE_RESULT, "message %d: %s", (int)message.kind, s->told);
            taken++;
        }
    }
    EXPECT(comm, carry_seconds() - start >= count * s->slow, "the mesh was not waited for");
    return finish(s, comm, link, (uint64_t)count);
}

static void test_full_queues_make_the_sender_wait(void **state) {
    (void)state;
    scene s = {.script = floods, .slow = 0.02};
    play(&s);
    assert_int_equal(s.leader, CARRY_OK);
    assert_int_equal(s.worker, CARRY_OK);
}

/* Stage 0 is alive and sends nothing: the mesh ends at its deadline, with an error message. */
static carry_status says_nothing(scene *s, carry_comm *comm, carry_link *link) {
    (void)comm;
    (void)link;
    for (const double start = carry_seconds(); s->ended < 2 && carry_seconds() - start < world.deadline;) {
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    }
    return CARRY_OK;
}

static void test_a_silent_stage_is_missed_at_the_deadline(void **state) {
    (void)state;
    char message[512];
    scene s = {.script = says_nothing, .deadline = 1.0};
    (void)run_ranks(3, &world, scene_rank, &s, message);
    assert_true(s.leader == CARRY_ETIMEOUT || s.leader == CARRY_EPEER);
    assert_true(s.worker == CARRY_ETIMEOUT || s.worker == CARRY_EPEER);
    assert_true(s.leader_seconds < world.deadline / 2); /* before stage 0 leaves */
    assert_says(s.leader_says, "s waited");
}

enum { QUEUED = 6 };

/* Stage 0 sends enough work to keep the mesh busy for a while, and then nothing. */
static carry_status says_no_more(scene *s, carry_comm *comm, carry_link *link) {
    for (int i = 0; i < QUEUED; i++) {
        const carry_envelope e = envelope(s, (uint64_t)i);
        TRY(put(comm, link, &e));
    }
    for (bool there = true; carry_link_poll(link, &there) == CARRY_OK;) {
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    return CARRY_OK; /* the communicator has ended */
}

/* The deadline counts from the last message that arrived. The queue, 6 x 4 s with a deadline of 4 s, is not finished
   first. A running call is finished, and one more may have begun before the last message was seen: 12 s in all. */
static void test_a_silent_stage_is_missed_while_its_letters_are_queued(void **state) {
    (void)state;
    char message[512];
    scene s = {.script = says_no_more, .slow = 4.0, .deadline = 4.0};
    (void)run_ranks(3, &world, scene_rank, &s, message);
    assert_true(s.leader == CARRY_ETIMEOUT || s.leader == CARRY_EPEER);
    assert_true(s.worker == CARRY_ETIMEOUT || s.worker == CARRY_EPEER);
    if (s.leader_seconds > 25.0) {
        fail_msg("%.3f s: %s", s.leader_seconds, s.leader_says);
    }
    assert_says(s.leader_says, "s waited");
}

/* Stage 0 is slow to answer, and the two sides wait for each other in turn for longer than the deadline in all: neither
   is reported as missing. */
static carry_status takes_its_time(scene *s, carry_comm *comm, carry_link *link) {
    carry_message message;
    for (uint64_t i = 0; i < 2; i++) {
        const carry_envelope e = envelope(s, i);
        TRY(put(comm, link, &e));
        TRY(get(s, link, &message));
        EXPECT(comm, message.kind == CARRY_MESSAGE_RESULT, "message %d: %s", (int)message.kind, s->told);
        nanosleep(&(struct timespec){.tv_sec = 4}, NULL);
    }
    return finish(s, comm, link, 2);
}

static void test_ends_that_take_turns_do_not_miss_each_other(void **state) {
    (void)state;
    char message[512];
    scene s = {.script = takes_its_time, .slow = 4.0, .deadline = 12.0};
    const carry_status status = run_ranks(3, &world, scene_rank, &s, message);
    if (status != CARRY_OK) {
        fail_msg("%s: %s", carry_status_name(status), message);
    }
    assert_int_equal(s.leader, CARRY_OK);
    assert_int_equal(s.worker, CARRY_OK);
}

/* Messages that the other end sent before it left are delivered, in order, although a send to it can no longer arrive.
   Only the messages after them are reported as missing. Rank 1 sends three messages without bytes, which arrive as soon
   as rank 0 looks. */
static carry_status last_letters_rank(void *user, carry_comm *comm) {
    static const carry_message_kind kinds[3] = {CARRY_MESSAGE_PULSE, CARRY_MESSAGE_ABOUT, CARRY_MESSAGE_REFUSAL};
    const bool is_poll_first = *(bool *)user;
    const int rank = carry_comm_rank(comm);
    carry_link *link;
    TRY(carry_link_open(comm, &link, 1 - rank,
                        &(carry_link_options){.depth = DEPTH, .out_most = 64, .in_most = 64, .group = "x"}));
    if (rank == 1) {
        for (int i = 0; i < 3; i++) {
            TRY(carry_link_tell(link, kinds[i], NULL, 0));
        }
        TRY(carry_link_flush(link));
        carry_link_free(link);
        return CARRY_OK;
    }
    carry_request never;
    int byte;
    bool there;
    TRY(carry_irecv(comm, &never, &byte, sizeof byte, 1, 9));
    TRY(carry_link_tell(link, CARRY_MESSAGE_PULSE, "unread", 6)); /* still in transit when rank 1 leaves */
    TRY(carry_link_poll(link, &there));
    while (carry_comm_peek(&never) == 0) {
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    for (int i = 0; i < 3; i++) {
        carry_message message = {0};
        if (is_poll_first) {
            TRY(carry_link_poll(link, &there));
            EXPECT(comm, there, "message %d is not there", i);
        }
        TRY(carry_link_receive(link, &message));
        EXPECT(comm, message.kind == kinds[i], "message %d is %d", i, (int)message.kind);
    }
    const carry_status left =
        is_poll_first ? carry_link_poll(link, &there) : carry_link_receive(link, &(carry_message){0});
    EXPECT(comm, left == CARRY_EPEER, "after the last message: %s", carry_status_name(left));
    carry_link_free(link);
    carry_comm_withdraw(&never, 1);
    return CARRY_OK;
}

static void test_letters_sent_before_the_other_end_left_are_delivered(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++) {
        char message[512];
        bool is_poll_first = i > 0;
        const carry_status status = run_ranks(2, &world, last_letters_rank, &is_poll_first, message);
        if (status != CARRY_OK) {
            fail_msg("%s: %s", carry_status_name(status), message);
        }
    }
}

int main(void) {
    take_filter();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_script_that_does_nothing_wrong),
        cmocka_unit_test(test_what_is_wrong_is_refused_and_the_mesh_goes_home),
        cmocka_unit_test(test_the_sender_refuses_before_a_byte),
        cmocka_unit_test(test_nan_in_latents_is_stopped_and_said),
        cmocka_unit_test(test_ranks_of_the_mesh_that_differ_are_found_by_their_digests),
        cmocka_unit_test(test_shutdown_idle_in_flight_and_twice),
        cmocka_unit_test(test_full_queues_make_the_sender_wait),
        cmocka_unit_test(test_letters_sent_before_the_other_end_left_are_delivered),
        cmocka_unit_test(test_a_silent_stage_is_missed_at_the_deadline),
        cmocka_unit_test(test_a_silent_stage_is_missed_while_its_letters_are_queued),
        cmocka_unit_test(test_ends_that_take_turns_do_not_miss_each_other),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
