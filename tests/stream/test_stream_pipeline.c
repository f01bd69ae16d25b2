/* The pipeline: the same pictures for every topology and depth of its queues; cuts, pauses, ends. */
#include "stream_support.h"

#include <math.h>
#include <time.h>
#include <unistd.h>

#include "file/safetensors.h"
#include "stream/stage.h"

static void assert_same_frames(const stream *a, const stream *b, const char *what) {
    assert_int_equal(a->frames, b->frames);
    for (int i = 0; i < a->frames; i++) {
        if (a->digest[i] != b->digest[i] || a->chunk_index[i] != b->chunk_index[i]) {
            fail_msg("%s: frame %d of chunk %d differs", what, i, (int)a->chunk_index[i]);
        }
    }
}

static void run_or_fail(stream *s) {
    const carry_status status = run_stream(s);
    if (status != CARRY_OK) {
        fail_msg("%d ranks: %s: %s", s->ranks, carry_status_name(status), s->message);
    }
    for (int r = 0; r < s->ranks; r++) {
        assert_int_equal(s->status[r], CARRY_OK);
    }
}

/* With the same number of ranks in the mesh the pictures are equal bit for bit, since envelopes and generator are the
   same. */
static void test_a_stage_of_its_own_gives_the_same_pictures(void **state) {
    (void)state;
    static const carry_recompute modes[] = {CARRY_RECOMPUTE_OFF, CARRY_RECOMPUTE_ANCHOR, CARRY_RECOMPUTE_LATENT};
    for (int mesh = 1; mesh <= 3; mesh++) {
        for (size_t m = 0; m < 3; m++) {
            if (!support_takes(mesh * 3 + (int)m, 2)) {
                continue;
            }
            static stream together, apart;
            together = (stream){.options = small_stream(), .ranks = mesh};
            together.options.recompute = modes[m];
            together.options.clean_pass = modes[m] == CARRY_RECOMPUTE_OFF;
            apart = together;
            apart.ranks = mesh + 1;
            apart.options.with_stage = true;
            run_or_fail(&together);
            run_or_fail(&apart);
            assert_int_equal(together.frames, together.options.chunks * together.options.chunk);
            assert_same_frames(&together, &apart, "with a stage of its own");
            assert_int_equal(apart.figures.mesh_ranks, mesh);
            assert_true(together.digest[0] != together.digest[together.frames - 1]); /* pictures, not one picture */
        }
    }
}

static void test_the_depth_of_queues_changes_nothing_but_time(void **state) {
    (void)state;
    static stream first, other;
    for (int mode = 0; mode < 3; mode++) {
        for (int depth = 1; depth <= 4; depth += support_cases(1, 3)) {
            other = (stream){.options = small_stream(), .ranks = 2};
            other.options.with_stage = true;
            other.options.recompute = (carry_recompute)mode;
            other.options.context = 4; /* two chunks */
            other.options.chunks = 7;
            other.options.depth = depth;
            run_or_fail(&other);
            assert_true(other.under_way_most <= depth);
            assert_true(mode != 0 || other.under_way_most == depth);
            if (depth == 1) {
                first = other;
            }
            assert_same_frames(&first, &other, "another depth");
        }
    }
}

/* After a cut only chunks of the new epoch are shown: those under way are dropped and counted. */
static void test_a_cut_drops_what_is_stale(void **state) {
    (void)state;
    for (int ranks = 1; ranks <= 3; ranks++) {
        for (int depth = 1; depth <= 3; depth += support_cases(1, 2)) {
            static stream s;
            s = (stream){.options = small_stream(), .ranks = ranks, .cut_at = 3};
            s.options.with_stage = ranks > 1;
            s.options.depth = depth;
            s.options.chunks = 12;
            s.options.first_epoch = 5;
            run_or_fail(&s);
            assert_int_equal(s.cuts, 1);
            assert_int_equal(s.asked_cuts, 1);
            assert_int_equal(s.late, 0);
            assert_int_equal(s.last_cut, 6);
            assert_int_equal(s.figures.epoch, 6);
            /* At the cut, depth - 1 envelopes are under way beside the chunk that was just shown. */
            assert_int_equal(s.figures.stale_dropped, depth - 1);
            assert_int_equal(s.shown, 12 - (depth - 1));
            assert_int_equal(s.epoch[0], 5);
            assert_int_equal(s.epoch[s.frames - 1], 6);
        }
    }
}

/* The time from a change of the prompt to the first frame of a chunk that has it: 0 without a change, and never longer
   than the stream. */
static void test_the_time_to_show_a_prompt_is_told(void **state) {
    (void)state;
    for (int ranks = 1; ranks <= 2; ranks++) {
        static stream s;
        s = (stream){.options = small_stream(), .ranks = ranks};
        s.options.with_stage = ranks > 1;
        run_or_fail(&s);
        assert_true(s.figures.prompt_seconds == 0.0);
        s = (stream){.options = small_stream(), .ranks = ranks, .prompt_at = 2};
        s.options.with_stage = ranks > 1;
        const double start = carry_seconds();
        run_or_fail(&s);
        assert_true(s.figures.prompt_seconds > 0.0 && s.figures.prompt_seconds < carry_seconds() - start);
    }
}

/* There are positions for 1024 frames. Then the stream shows all chunks under way, cuts by itself and goes on. */
static void test_positions_run_out(void **state) {
    (void)state;
    for (int ranks = 1; ranks <= 2; ranks++) {
        static stream s;
        s = (stream){.options = small_stream(), .ranks = ranks};
        s.options.with_stage = ranks > 1;
        s.options.depth = 1 + ranks;
        s.options.chunk = 100;
        s.options.window = 200;
        s.options.height = s.options.width = 16;
        s.options.config.num_layers = 1;
        s.options.chunks = 12;
        run_or_fail(&s);
        assert_int_equal(s.cuts, 1);
        assert_int_equal(s.asked_cuts, 0);
        assert_int_equal(s.figures.stale_dropped, 0);
        assert_int_equal(s.shown, 12);
        assert_int_equal(s.frames, 12 * 100);
    }
}

static stream video_stream(double video, double motion) {
    stream s = {.options = small_stream(), .ranks = 1, .has_video = true, .video = video};
    s.options.strength = 0.8;
    s.options.motion = motion;
    return s;
}

static bool has_same_frames(const stream *a, const stream *b) {
    return a->frames == b->frames && memcmp(a->digest, b->digest, (size_t)a->frames * sizeof *a->digest) == 0;
}

/* A still video gets the full noise, whatever --motion is; a moving one gets less. */
static void test_motion_takes_noise_from_video_that_moves(void **state) {
    (void)state;
    static stream still, still_adapted, moving, moving_adapted;
    still = video_stream(0.0, 0.0);
    still_adapted = video_stream(0.0, 0.5);
    moving = video_stream(0.3, 0.0);
    moving_adapted = video_stream(0.3, 0.5);
    run_or_fail(&still);
    run_or_fail(&still_adapted);
    run_or_fail(&moving);
    run_or_fail(&moving_adapted);
    assert_true(has_same_frames(&still, &still_adapted));
    assert_false(has_same_frames(&moving, &moving_adapted));
}

static void test_motion_is_the_difference_of_frames(void **state) {
    (void)state;
    const float frames[] = {0.0f, 0.0f, 0.1f, 0.1f, 0.1f, 0.1f}; /* three of two values */
    const float before[] = {0.1f, 0.1f};
    assert_true(carry_stage_motion(NULL, frames, 1, 2) == 0.0);
    assert_true(fabs(carry_stage_motion(NULL, frames, 3, 2) - sqrt(0.005) / 0.25) < 1e-6);
    assert_true(fabs(carry_stage_motion(before, frames, 2, 2) - 0.1 / 0.25) < 1e-6);
    const float wild[] = {-1.0f, 1.0f};
    assert_true(carry_stage_motion(before, wild, 1, 2) == 1.0);
}

static void write_lora(const char *path, const carry_dit_config *config) {
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    const int64_t dim = config->dim;
    float *values = malloc((size_t)(4 * dim) * sizeof *values);
    assert_non_null(values);
    for (int64_t i = 0; i < 4 * dim; i++) {
        values[i] = 0.05f * (float)(i % 13 - 6);
    }
    const carry_safetensors_item items[] = {
        {"blocks.0.self_attn.o.lora_A.weight", carry_view_2d(values, CARRY_F32, 2, dim), CARRY_F32},
        {"blocks.0.self_attn.o.lora_B.weight", carry_view_2d(values + 2 * dim, CARRY_F32, dim, 2), CARRY_F32},
        {"blocks.1.cross_attn.k.lora_A.weight", carry_view_2d(values, CARRY_F32, 2, dim), CARRY_F32},
        {"blocks.1.cross_attn.k.lora_B.weight", carry_view_2d(values + 2 * dim, CARRY_F32, dim, 2), CARRY_F32}};
    assert_ok(ctx, carry_safetensors_write(ctx, path, items, 4, NULL));
    free(values);
    carry_ctx_free(ctx);
}

/* Chunks before the switch equal those without a LoRA, chunks after it do not, on every topology. */
static void test_a_lora_is_switched_between_chunks(void **state) {
    (void)state;
    static stream plain, alone, apart, mesh;
    char path[] = "/tmp/carry-test-lora-XXXXXX";
    const int made = mkstemp(path);
    assert_true(made >= 0);
    (void)close(made);
    plain = (stream){.options = small_stream(), .ranks = 1};
    plain.options.depth = 1;
    plain.options.config.num_layers = 2;
    plain.options.chunks = 5;
    write_lora(path, &plain.options.config);
    plain.options.lora[0] = (carry_lora_file){.path = path, .scale = 2.0};
    plain.options.loras = 1;
    alone = plain;
    alone.lora_at = 2;
    apart = alone;
    apart.ranks = 2;
    apart.options.with_stage = true;
    mesh = alone;
    mesh.ranks = 3;
    mesh.options.with_stage = true;
    run_or_fail(&plain);
    run_or_fail(&alone);
    run_or_fail(&apart);
    run_or_fail(&mesh);
    assert_same_frames(&alone, &apart, "a LoRA with a stage of its own");
    assert_int_equal(mesh.frames, alone.frames);
    for (int i = 0; i < plain.frames; i++) {
        assert_true((plain.digest[i] == alone.digest[i]) == (plain.chunk_index[i] < 2));
    }
    (void)unlink(path);
}

/* While stage 0 waits for the time of its next frame, the mesh waits for stage 0. */
static void test_a_pace_that_outlasts_the_deadline_is_refused(void **state) {
    (void)state;
    static stream s;
    s = (stream){.options = small_stream(), .ranks = 2};
    s.options.with_stage = true;
    s.options.fps = 1e-3;
    assert_int_equal(run_stream(&s), CARRY_EARGUMENT);
    assert_non_null(strstr(s.message, "frames a second"));
}

static void test_it_stops_between_chunks(void **state) {
    (void)state;
    for (int ranks = 1; ranks <= 3; ranks++) {
        static stream s;
        s = (stream){.options = small_stream(), .ranks = ranks, .stop_at = 4};
        s.options.with_stage = ranks > 1;
        s.options.chunks = 0;
        run_or_fail(&s);
        assert_true(s.shown >= 4 && s.shown <= 6); /* chunks that were under way are shown */
        assert_string_equal(s.figures.state, "ended");
    }
}

static void rest(double seconds) {
    nanosleep(&(struct timespec){.tv_sec = (time_t)seconds, .tv_nsec = (long)(fmod(seconds, 1.0) * 1e9)}, NULL);
}

/* Paused for longer than the deadline: stage 0 sends the mesh heartbeats and gets answers. */
static carry_status paused_rank(void *user, carry_comm *comm) {
    stream *s = user;
    if (carry_comm_rank(comm) == carry_comm_size(comm) - 1) { /* not in the pipeline: it ends the pause */
        carry_comm *part;
        carry_control_state now = {.paused = false};
        TRY(carry_comm_split(comm, &part, -1, 0));
        for (const double start = carry_seconds(); !now.paused && carry_seconds() - start < world.deadline / 2;) {
            rest(0.01); /* set too early, the end of the pause would be lost */
            carry_controls_read(s->controls, &now);
        }
        rest(13.0);
        ask(s->controls, "{\"pause\": false}");
        return CARRY_OK;
    }
    carry_comm *part;
    TRY(carry_comm_split(comm, &part, 0, 0));
    TRY(carry_comm_set_deadline(part, 10.0));
    const carry_status status = stream_rank(s, part);
    carry_comm_close(part);
    return status;
}

static void test_a_pause_may_be_longer_than_the_deadline(void **state) {
    (void)state;
    for (int with_stage = 0; with_stage < 2; with_stage++) {
        static stream s;
        carry_ctx *ctx = support_ctx(1, NULL, NULL);
        const carry_control_state start = carry_control_default();
        s = (stream){.options = small_stream(), .ranks = 4, .pause_at = 3};
        s.options.with_stage = with_stage != 0;
        s.options.chunks = 8;
        if (!with_stage) {
            s.options.config.num_heads = 6;
        }
        assert_ok(ctx, carry_controls_new(ctx, &s.controls, &start));
        const double began = carry_seconds();
        const carry_status status = run_ranks(s.ranks, &world, paused_rank, &s, s.message);
        if (status != CARRY_OK) {
            fail_msg("%s", s.message);
        }
        assert_int_equal(s.shown, 8);
        assert_true(carry_seconds() - began > 8.0);
        carry_controls_free(s.controls);
        carry_ctx_free(ctx);
    }
}

static void test_whoever_fails_ends_the_others(void **state) {
    (void)state;
    static stream s;
    s = (stream){.options = small_stream(), .ranks = 3, .fail_at = 3};
    s.options.with_stage = true;
    const double began = carry_seconds();
    assert_int_equal(run_stream(&s), CARRY_EIO);
    assert_true(carry_seconds() - began < world.deadline / 2);
    assert_int_equal(s.status[1], CARRY_EPEER);
    assert_int_equal(s.status[2], CARRY_EPEER);
}

static void test_bad_options_are_refused_with_what_would_do(void **state) {
    (void)state;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    carry_dit_config config;
    carry_pipeline_options o = small_stream();
    o.width = 70;
    assert_int_equal(carry_pipeline_check(ctx, &o, &config, 1), CARRY_ESIZE);
    assert_non_null(strstr(carry_ctx_error(ctx), "64 x 32 is the nearest"));
    o = small_stream();
    assert_true(carry_pipeline_check(ctx, &o, &config, 4) != CARRY_OK); /* 4 do not divide 6 heads */
    o.with_stage = true;
    assert_ok(ctx, carry_pipeline_check(ctx, &o, &config, 4));
    o.slow_stage0 = -1.0;
    assert_true(carry_pipeline_check(ctx, &o, &config, 1) != CARRY_OK);
    o = small_stream();
    o.depth = 9;
    assert_true(carry_pipeline_check(ctx, &o, &config, 1) != CARRY_OK);
    o = small_stream();
    o.shift = NAN;
    assert_true(carry_pipeline_check(ctx, &o, &config, 1) != CARRY_OK);
    o = small_stream();
    o.recompute = CARRY_RECOMPUTE_LATENT;
    o.context = 3;
    assert_true(carry_pipeline_check(ctx, &o, &config, 1) != CARRY_OK);
    o.context = 6; /* no room for the chunk beside it */
    assert_true(carry_pipeline_check(ctx, &o, &config, 1) != CARRY_OK);
    o = small_stream();
    o.with_stage = true;
    o.multiprocessors = 16; /* a CPU cannot be divided */
    assert_int_equal(carry_pipeline_check(ctx, &o, &config, 4), CARRY_EARGUMENT);
    carry_ctx_free(ctx);
}

/* Ranks with different options end with an error that names the difference and the rank, before they generate
   anything. */
static carry_status differing_rank(void *user, carry_comm *comm) {
    stream *s = user;
    carry_pipeline_options options = s->options;
    const carry_pipeline_hooks hooks = {.controls = s->controls, .frames = see_frames, .user = s};
    if (carry_comm_rank(comm) == 2) {
        options.window++;
    }
    return carry_pipeline_run(comm, &options, &hooks, NULL);
}

static void test_ranks_that_differ_are_told_by_rank(void **state) {
    (void)state;
    static stream s;
    s = (stream){.options = small_stream(), .ranks = 3};
    s.options.with_stage = true;
    assert_true(run_ranks(3, &world, differing_rank, &s, s.message) != CARRY_OK);
    if (strstr(s.message, "rank 2") == NULL || strstr(s.message, "window") == NULL) {
        fail_msg("%s", s.message);
    }
    assert_int_equal(s.frames, 0);
}

/* Guards: a collective of a group that this rank does not belong to fails at once, with the name of the group. */
static carry_status guarded_rank(void *user, carry_comm *comm) {
    (void)user;
    carry_pipeline_groups groups;
    carry_comm *mesh, *all;
    float value = 1.0f;
    const int rank = carry_comm_rank(comm);
    TRY(carry_pipeline_split(comm, &groups, true));
    EXPECT(comm, (groups.mesh == NULL) == (rank == 0), "the mesh on rank %d", rank);
    TRY(carry_pipeline_world(&groups, &all));
    TRY(carry_barrier(all));
    carry_pipeline_begin(&groups);
    const double began = carry_seconds();
    EXPECT(comm, carry_pipeline_world(&groups, &all) == CARRY_EARGUMENT && all == NULL, "the world while it runs");
    const carry_status told = carry_all_reduce(comm, &value, 1, CARRY_F32, CARRY_REDUCE_SUM);
    EXPECT(comm, told == CARRY_EARGUMENT, "all-reduce of the world: %s", carry_status_name(told));
    EXPECT(comm, strstr(carry_ctx_error(carry_comm_ctx(comm)), "all-reduce: rank") != NULL, "%s",
           carry_ctx_error(carry_comm_ctx(comm)));
    EXPECT(comm, carry_barrier(comm) == CARRY_EARGUMENT && carry_all_gather(comm, &value, &value, 0) == CARRY_EARGUMENT,
           "others");
    if (rank == 0) {
        EXPECT(comm, carry_pipeline_mesh(&groups, &mesh) == CARRY_EARGUMENT && mesh == NULL, "the mesh on rank 0");
        EXPECT(comm, strstr(carry_ctx_error(carry_comm_ctx(comm)), "rank 0") != NULL, "named");
    } else {
        TRY(carry_pipeline_mesh(&groups, &mesh));
        TRY(carry_all_reduce(mesh, &value, 1, CARRY_F32, CARRY_REDUCE_SUM));
        EXPECT(comm, value == 2.0f, "%g", (double)value);
    }
    EXPECT(comm, carry_seconds() - began < world.deadline / 2, "at once");
    carry_pipeline_end(&groups);
    return carry_barrier(comm); /* the world works again */
}

static void test_a_collective_of_another_group_fails_at_once(void **state) {
    (void)state;
    char message[512];
    if (run_ranks(3, &world, guarded_rank, NULL, message) != CARRY_OK) {
        fail_msg("%s", message);
    }
}

int main(void) {
    take_filter();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_stage_of_its_own_gives_the_same_pictures),
        cmocka_unit_test(test_the_depth_of_queues_changes_nothing_but_time),
        cmocka_unit_test(test_a_cut_drops_what_is_stale),
        cmocka_unit_test(test_the_time_to_show_a_prompt_is_told),
        cmocka_unit_test(test_positions_run_out),
        cmocka_unit_test(test_a_lora_is_switched_between_chunks),
        cmocka_unit_test(test_motion_takes_noise_from_video_that_moves),
        cmocka_unit_test(test_motion_is_the_difference_of_frames),
        cmocka_unit_test(test_a_pace_that_outlasts_the_deadline_is_refused),
        cmocka_unit_test(test_it_stops_between_chunks),
        cmocka_unit_test(test_a_pause_may_be_longer_than_the_deadline),
        cmocka_unit_test(test_whoever_fails_ends_the_others),
        cmocka_unit_test(test_bad_options_are_refused_with_what_would_do),
        cmocka_unit_test(test_ranks_that_differ_are_told_by_rank),
        cmocka_unit_test(test_a_collective_of_another_group_fails_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
