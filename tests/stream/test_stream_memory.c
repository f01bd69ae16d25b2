/* The GPU's memory runs out while a stream generates, at any launch of a chunk: the stream ends with that reason, all
   memory is freed, and a stream with a smaller window works after it. Runs on the emulated GPU, whose memory can be
   limited; skipped elsewhere. */
/* labels: gpu */
#include "stream_support.h"

#include "carry/device.h"

__attribute__((weak)) void carry_emulate_full_after(long launches);

enum { FULL_AT = 3 }; /* chunks shown before */

static long launches;

static void fill(void *user, const carry_chunk_times *times) {
    stream *s = user;
    see_chunk(s, times);
    if (s->shown == FULL_AT) {
        carry_emulate_full_after(launches);
    }
}

static carry_status filled_rank(void *user, carry_comm *comm) {
    stream *s = user;
    const int rank = carry_comm_rank(comm);
    const carry_pipeline_hooks hooks = {
        .controls = rank == 0 ? s->controls : NULL, .frames = see_frames, .chunk = fill, .user = s};
    s->status[rank] = carry_pipeline_run(comm, &s->options, &hooks, rank == 0 ? &s->figures : NULL);
    return s->status[rank];
}

static carry_status run_filled(carry_ctx *ctx, stream *s) {
    const carry_control_state start = carry_control_default();
    assert_ok(ctx, carry_controls_new(ctx, &s->controls, &start));
    const carry_status status = run_ranks(
        s->ranks, &(carry_comm_options){CARRY_INIT(carry_comm_options), .deadline = 60.0}, filled_rank, s, s->message);
    carry_controls_free(s->controls);
    s->controls = NULL;
    return status;
}

static void test_memory_that_runs_out_ends_the_stream_and_is_given_back(void **state) {
    (void)state;
    static const long at[] = {1, 2, 20, 137};
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    for (int ranks = 1; ranks <= 2; ranks++) {
        for (size_t i = 0; i < sizeof at / sizeof at[0]; i++) {
            static stream s;
            size_t before = 0;
            size_t after = 0;
            size_t total = 0;
            s = (stream){.options = small_stream(), .ranks = ranks};
            s.options.device = 1;
            s.options.with_stage = ranks > 1;
            s.options.no_graphs = i % 2 == 1;
            s.options.chunks = 8;
            launches = at[i];
            assert_ok(ctx, carry_device_memory(ctx, &before, &total, 1));
            assert_int_equal(run_filled(ctx, &s), CARRY_EMEMORY);
            assert_non_null(strstr(s.message, "out of memory"));
            assert_int_equal(s.status[ranks - 1], CARRY_EMEMORY);
            assert_true(s.figures.chunks >= FULL_AT && s.figures.chunks < 8);
            assert_true(s.frames >= (int)s.figures.chunks * (int)s.options.chunk); /* all generated frames were shown */
            assert_ok(ctx, carry_device_memory(ctx, &after, &total, 1));
            assert_int_equal(after, before);
            s.options.window = 3;
            s.options.first_epoch = s.figures.epoch + 1;
            s.shown = FULL_AT; /* not again */
            s.frames = 0;
            const carry_status status = run_filled(ctx, &s);
            if (status != CARRY_OK) {
                fail_msg("with a smaller window: %s", s.message);
            }
            assert_int_equal(s.frames, 8 * s.options.chunk);
        }
    }
    carry_ctx_free(ctx);
}

int main(void) {
    if (carry_device_count() < 2 || carry_emulate_full_after == NULL) {
        (void)printf("skipped: there is no emulated GPU\n");
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_memory_that_runs_out_ends_the_stream_and_is_given_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
