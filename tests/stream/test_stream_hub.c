/* The hub: a slow viewer misses its own frames and delays no other; frames from before a cut are never given out again;
   memory does not grow as viewers come and go. */
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include <stdio.h> /* jpeglib.h needs FILE and does not include it */

#include <jpeglib.h>

#include "core/clock.h"
#include "core/rng.h"
#include "stream/server/hub.h"
#include "support.h"

#define WIDTH 37 /* no multiple of a JPEG block */
#define HEIGHT 23
#define PIXELS ((size_t)3 * WIDTH * HEIGHT)
#define ALIVE_SPARES \
    41 /* frames that a hub may keep beside those in the ring and those held: 40, and one being encoded */

typedef struct fixture {
    carry_ctx *ctx;
    carry_hub *hub;
    float pixels[PIXELS];
} fixture;

static fixture start(double fps) {
    fixture f = {.ctx = support_ctx(1, NULL, NULL)};
    assert_ok(f.ctx, carry_hub_new(f.ctx, &f.hub, WIDTH, HEIGHT, 90, fps));
    for (size_t i = 0; i < PIXELS; i++) {
        f.pixels[i] = (float)(i % 97) / 96.0F;
    }
    return f;
}

static void finish(fixture *f) {
    carry_hub_free(f->hub);
    carry_ctx_free(f->ctx);
}

static carry_viewer *join(fixture *f) {
    carry_viewer *viewer;
    assert_int_equal(carry_hub_join(f->hub, &viewer), CARRY_OK);
    return viewer;
}

static void publish(fixture *f, int count, uint64_t epoch) {
    for (int i = 0; i < count; i++) {
        assert_ok(f->ctx, carry_hub_publish(f->hub, f->pixels, 0, epoch));
    }
}

static bool is_jpeg(const carry_frame *frame) {
    return frame->size > 4 && frame->bytes[0] == 0xFF && frame->bytes[1] == 0xD8 &&
           frame->bytes[frame->size - 2] == 0xFF && frame->bytes[frame->size - 1] == 0xD9;
}

/* Back to [height, width, 3]. */
static void decode(const carry_frame *frame, unsigned char *rgb) {
    struct jpeg_decompress_struct jpeg;
    struct jpeg_error_mgr errors;
    jpeg.err = jpeg_std_error(&errors);
    jpeg_create_decompress(&jpeg);
    jpeg_mem_src(&jpeg, frame->bytes, (unsigned long)frame->size);
    assert_int_equal(jpeg_read_header(&jpeg, TRUE), JPEG_HEADER_OK);
    assert_int_equal(jpeg.image_width, WIDTH);
    assert_int_equal(jpeg.image_height, HEIGHT);
    assert_true(jpeg_start_decompress(&jpeg));
    while (jpeg.output_scanline < jpeg.output_height) {
        JSAMPROW row = rgb + (size_t)jpeg.output_scanline * 3 * WIDTH;
        assert_int_equal(jpeg_read_scanlines(&jpeg, &row, 1), 1);
    }
    assert_true(jpeg_finish_decompress(&jpeg));
    jpeg_destroy_decompress(&jpeg);
}

static void test_a_frame_is_the_picture_and_strange_values_are_black_or_white(void **state) {
    (void)state;
    fixture f = start(0.0);
    carry_viewer *viewer = join(&f);
    const struct {
        float value;
        int byte;
    } cases[] = {{0.0F, 0},
                 {1.0F, 255},
                 {0.5F, 128},
                 {NAN, 0},
                 {-3.0F, 0},
                 {1e30F, 255},
                 {(float)INFINITY, 255},
                 {-(float)INFINITY, 0}};
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        for (size_t i = 0; i < PIXELS; i++) { /* red has the value, green is 0.25, blue is 1 - y / height */
            size_t plane = i / (WIDTH * HEIGHT), y = i % (WIDTH * HEIGHT) / WIDTH;
            f.pixels[i] = plane == 0 ? cases[c].value : plane == 1 ? 0.25F : 1.0F - (float)y / HEIGHT;
        }
        publish(&f, 1, 0);
        carry_frame frame;
        assert_true(carry_viewer_take(viewer, &frame));
        assert_int_equal(frame.number, c);
        unsigned char rgb[PIXELS];
        memset(rgb, 0xA5, sizeof rgb);
        decode(&frame, rgb);
        for (size_t p = 0; p < WIDTH * HEIGHT; p++) {
            /* Quality 90 quantises a smooth picture in steps of up to 24 of 255 per coefficient. Half a step is
               allowed, and the rounding of the colour conversion. */
            float blue = 255.0F * (1.0F - (float)(p / WIDTH) / HEIGHT);
            if (abs(rgb[3 * p] - cases[c].byte) > 14 || abs(rgb[3 * p + 1] - 64) > 14 ||
                fabsf((float)rgb[3 * p + 2] - blue) > 20.0F) {
                fail_msg("value %g: pixel %zu is %d %d %d", (double)cases[c].value, p, rgb[3 * p], rgb[3 * p + 1],
                         rgb[3 * p + 2]);
            }
        }
    }
    carry_hub_leave(viewer);
    finish(&f);
}

static void test_a_slow_viewer_skips_to_the_newest_and_others_miss_nothing(void **state) {
    (void)state;
    fixture f = start(0.0);
    carry_viewer *fast = join(&f), *slow = join(&f);
    carry_frame frame;
    uint64_t slow_taken = 0, last = 0;
    for (uint64_t n = 0; n < 300; n++) {
        publish(&f, 1, 0);
        assert_true(carry_viewer_take(fast, &frame));
        assert_int_equal(frame.number, n);
        assert_false(carry_viewer_take(fast, &frame));
        if (n % 100 == 99) { /* far behind: the newest, at once */
            assert_true(carry_viewer_take(slow, &frame));
            assert_int_equal(frame.number, n);
            assert_true(is_jpeg(&frame));
            assert_true(slow_taken == 0 || frame.number > last);
            last = frame.number;
            slow_taken++;
        }
    }
    assert_int_equal(carry_viewer_dropped(fast), 0);
    assert_int_equal(carry_viewer_dropped(slow), 300 - slow_taken);
    publish(&f, 5, 0); /* a little behind: one after the other */
    for (uint64_t n = 300; n < 305; n++) {
        assert_true(carry_viewer_take(slow, &frame));
        assert_int_equal(frame.number, n);
    }
    assert_int_equal(carry_viewer_dropped(slow), 300 - slow_taken);
    carry_stream_figures figures;
    carry_hub_figures(f.hub, &figures);
    assert_int_equal(figures.viewers, 2);
    assert_int_equal(figures.frames, 305);
    carry_hub_leave(slow);
    carry_hub_leave(fast);
    carry_hub_figures(f.hub, &figures); /* the dropped frames of a viewer that left are still counted */
    assert_int_equal(figures.viewer_dropped, 300 - slow_taken);
    assert_int_equal(figures.viewers, 0);
    finish(&f);
}

static void test_a_cut_forgets_older_frames_and_refuses_them_later(void **state) {
    (void)state;
    fixture f = start(0.0);
    carry_viewer *viewer = join(&f);
    carry_frame held, frame;
    publish(&f, 7, 3);
    assert_true(carry_viewer_take(viewer, &held));
    unsigned char *copy = malloc(held.size);
    assert_non_null(copy);
    memcpy(copy, held.bytes, held.size);
    carry_hub_cut(f.hub, 4);
    publish(&f, 40, 3);                               /* late results from before the cut */
    assert_memory_equal(copy, held.bytes, held.size); /* a frame that is being sent stays intact */
    free(copy);
    assert_false(carry_viewer_take(viewer, &frame));
    carry_viewer *late = join(&f);
    assert_false(carry_viewer_take(late, &frame));
    publish(&f, 2, 4);
    assert_true(carry_viewer_take(viewer, &frame));
    assert_int_equal(frame.cache_epoch, 4);
    assert_true(carry_viewer_take(late, &frame));
    assert_int_equal(frame.cache_epoch, 4);
    carry_hub_cut(f.hub, 2); /* a cut older than the current one has no effect */
    assert_true(carry_viewer_take(viewer, &frame));
    publish(&f, 1, 9); /* a newer epoch is a cut by itself */
    publish(&f, 1, 8);
    assert_true(carry_viewer_take(viewer, &frame));
    assert_int_equal(frame.cache_epoch, 9);
    assert_false(carry_viewer_take(viewer, &frame));
    assert_int_equal(carry_viewer_dropped(viewer), 0); /* forgotten is not missed */
    carry_hub_leave(late);
    carry_hub_leave(viewer);
    finish(&f);
}

static void test_an_epoch_that_is_no_cut_follows_what_waits(void **state) {
    (void)state;
    fixture f = start(50.0);
    carry_viewer *viewer = join(&f);
    carry_frame frame;
    publish(&f, 5, 3);
    carry_hub_follow(f.hub, 4);
    publish(&f, 1, 3); /* too late */
    publish(&f, 2, 4);
    for (uint64_t n = 0; n < 7; n++) {
        assert_true(carry_viewer_wait(viewer, SUPPORT_PATIENCE));
        assert_true(carry_viewer_take(viewer, &frame));
        assert_int_equal(frame.number, n);
        assert_int_equal(frame.cache_epoch, n < 5 ? 3 : 4);
    }
    carry_hub_follow(f.hub, 2); /* an older epoch has no effect */
    publish(&f, 1, 4);
    assert_true(carry_viewer_wait(viewer, SUPPORT_PATIENCE));
    carry_hub_leave(viewer);
    finish(&f);
}

static void test_who_joins_sees_the_newest_frame_at_once(void **state) {
    (void)state;
    fixture f = start(0.0);
    carry_frame frame;
    publish(&f, 20, 0);
    carry_viewer *viewer = join(&f);
    assert_true(carry_viewer_take(viewer, &frame));
    assert_int_equal(frame.number, 19);
    assert_false(carry_viewer_take(viewer, &frame));
    assert_false(carry_viewer_wait(viewer, 0.01));
    publish(&f, 1, 0);
    assert_true(carry_viewer_wait(viewer, 0.0));
    carry_hub_leave(viewer);
    finish(&f);
}

static void test_256_viewers_may_look_and_one_more_is_refused(void **state) {
    (void)state;
    fixture f = start(0.0);
    carry_viewer *viewer[CARRY_HUB_VIEWERS], *more;
    for (int i = 0; i < CARRY_HUB_VIEWERS; i++) {
        viewer[i] = join(&f);
    }
    assert_int_equal(carry_hub_join(f.hub, &more), CARRY_ERANGE);
    assert_null(more);
    carry_frame frame;
    for (int i = 0; i < CARRY_HUB_VIEWERS; i++) { /* each holds a frame of its own */
        publish(&f, 1, 0);
        assert_true(carry_viewer_take(viewer[i], &frame));
    }
    assert_true(carry_hub_alive(f.hub) <= CARRY_HUB_FRAMES + CARRY_HUB_VIEWERS + ALIVE_SPARES);
    carry_hub_leave(viewer[100]);
    viewer[100] = join(&f);
    for (int i = 0; i < CARRY_HUB_VIEWERS; i++) {
        carry_hub_leave(viewer[i]);
    }
    assert_true(carry_hub_alive(f.hub) <= CARRY_HUB_FRAMES + ALIVE_SPARES);
    finish(&f);
}

static void test_who_records_is_no_viewer(void **state) {
    (void)state;
    fixture f = start(0.0);
    carry_viewer *recorder, *viewer = join(&f);
    carry_stream_figures figures;
    carry_frame frame;
    assert_int_equal(carry_hub_join_to_record(f.hub, &recorder), CARRY_OK);
    publish(&f, 1, 0);
    assert_true(carry_viewer_take(recorder, &frame));
    carry_hub_figures(f.hub, &figures);
    assert_int_equal(figures.viewers, 1);
    carry_hub_leave(viewer);
    carry_hub_leave(recorder);
    carry_hub_figures(f.hub, &figures);
    assert_int_equal(figures.viewers, 0);
    finish(&f);
}

static void test_memory_is_flat_however_long_it_runs(void **state) {
    (void)state;
    fixture f = start(0.0);
    int most = 0;
    for (int round = 0; round < 200; round++) {
        carry_viewer *comes = join(&f);
        carry_frame frame;
        publish(&f, 10, (uint64_t)(round / 20));
        assert_true(carry_viewer_take(comes, &frame));
        most = carry_hub_alive(f.hub) > most ? carry_hub_alive(f.hub) : most;
        carry_hub_leave(comes);
    }
    assert_true(most <= CARRY_HUB_FRAMES + 2); /* one held by a viewer, one being encoded */
    finish(&f);
}

/* Tests only what a busy machine cannot change: no frame comes before its time. */
static void test_a_burst_is_released_at_the_pace(void **state) {
    (void)state;
    const double fps = 50.0;
    fixture f = start(fps);
    carry_viewer *viewer = join(&f);
    double began = carry_seconds();
    publish(&f, 8, 0);
    assert_true(carry_hub_next_release(f.hub) <= 8.0 / fps);
    for (int n = 0; n < 8; n++) {
        carry_frame frame;
        assert_true(carry_viewer_wait(viewer, SUPPORT_PATIENCE));
        assert_true(carry_viewer_take(viewer, &frame));
        assert_int_equal(frame.number, n);
        if (carry_seconds() - began < n / fps - 1e-4) {
            fail_msg("frame %d came %g s after the start", n, carry_seconds() - began);
        }
    }
    assert_true(carry_hub_next_release(f.hub) < 0.0);
    publish(&f, 5, 1); /* a cut shows at once, and frames that waited are forgotten */
    carry_hub_cut(f.hub, 2);
    publish(&f, 1, 2);
    carry_frame frame;
    assert_true(carry_viewer_take(viewer, &frame));
    assert_int_equal(frame.cache_epoch, 2);
    carry_hub_leave(viewer);
    finish(&f);
}

static void test_frames_faster_than_the_pace_do_not_pile_up(void **state) {
    (void)state;
    fixture f = start(2.0);
    carry_viewer *viewer = join(&f);
    carry_frame frame;
    uint64_t taken = 0;
    for (uint64_t n = 0; n < 500; n++) {
        assert_ok(f.ctx, carry_hub_publish(f.hub, f.pixels, n / 8, 0));
        while (carry_viewer_take(viewer, &frame)) {
            taken++;
            assert_true(n - frame.number <= CARRY_HUB_FRAMES / 2);
        }
    }
    assert_true(taken >= 500 - CARRY_HUB_FRAMES / 2 - 1);
    assert_int_equal(carry_viewer_dropped(viewer), 0);
    /* The last one is shown within half a ring of intervals, however far ahead the producer was. */
    assert_true(carry_hub_next_release(f.hub) <= CARRY_HUB_FRAMES / 2 / 2.0);
    carry_hub_leave(viewer);
    finish(&f);
}

/* A pause does not count as the time of a chunk: the frames after it are not shown more slowly. */
static void test_a_pause_does_not_slow_what_follows(void **state) {
    (void)state;
    const double fps = 10.0;
    fixture f = start(fps);
    for (uint64_t chunk = 0; chunk < 2; chunk++) {
        for (int i = 0; i < 3; i++) {
            assert_ok(f.ctx, carry_hub_publish(f.hub, f.pixels, chunk, 0));
        }
        if (chunk == 0) {
            carry_hub_set_figures(f.hub, &(carry_stream_figures){.paused = true});
            (void)usleep(800000); /* counted as a chunk's time, it would make the interval 0.15 s */
        }
    }
    assert_true(carry_hub_next_release(f.hub) <= 1.0 / fps);
    finish(&f);
}

static void test_absurd_hubs_are_refused(void **state) {
    (void)state;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    carry_hub *hub;
    assert_refused(ctx, CARRY_EARGUMENT, "0 x 8 pixels", carry_hub_new(ctx, &hub, 0, 8, 80, 0.0));
    assert_refused(ctx, CARRY_EARGUMENT, "8 x 70000 pixels", carry_hub_new(ctx, &hub, 8, 70000, 80, 0.0));
    assert_refused(ctx, CARRY_EARGUMENT, "quality 0", carry_hub_new(ctx, &hub, 8, 8, 0, 0.0));
    assert_refused(ctx, CARRY_EARGUMENT, "quality 101", carry_hub_new(ctx, &hub, 8, 8, 101, 0.0));
    assert_refused(ctx, CARRY_EARGUMENT, "a second", carry_hub_new(ctx, &hub, 8, 8, 80, (double)NAN));
    assert_refused(ctx, CARRY_EARGUMENT, "-1 frames a second", carry_hub_new(ctx, &hub, 8, 8, 80, -1.0));
    assert_null(hub);
    carry_hub_free(NULL);
    carry_ctx_free(ctx);
}

/* Viewers come and go on threads of their own while frames and cuts are published. */
typedef struct crowd {
    carry_hub *hub;
    atomic_bool stop;
    atomic_ullong published_epoch; /* stored after the cut has returned */
    atomic_int wrong_order, wrong_epoch, wrong_bytes, taken, refused, woken;
} crowd;

static void look(crowd *c, carry_words *dice) {
    carry_viewer *viewer;
    if (carry_hub_join(c->hub, &viewer) != CARRY_OK) {
        atomic_fetch_add(&c->refused, 1);
        return;
    }
    uint64_t last = 0, epoch = 0;
    bool any = false;
    for (unsigned i = 0; i < 1 + dice->word[0] % 20; i++) {
        unsigned long long known = atomic_load(&c->published_epoch);
        carry_frame frame;
        if (!carry_viewer_wait(viewer, 0.002) || !carry_viewer_take(viewer, &frame)) {
            continue;
        }
        atomic_fetch_add(&c->taken, 1);
        atomic_fetch_add(&c->wrong_order, any && frame.number <= last);
        atomic_fetch_add(&c->wrong_epoch, frame.cache_epoch < known || (any && frame.cache_epoch < epoch));
        atomic_fetch_add(&c->wrong_bytes, !is_jpeg(&frame));
        any = true;
        last = frame.number;
        epoch = frame.cache_epoch;
        if (dice->word[1] % 3 == 0) {
            carry_viewer_give_back(viewer);
        }
    }
    carry_hub_leave(viewer);
}

static void *come_and_go(void *argument) {
    crowd *c = argument;
    for (uint64_t i = 0; !atomic_load(&c->stop); i++) {
        carry_words dice = carry_philox(7, (uint64_t)(uintptr_t)&i, i);
        look(c, &dice);
    }
    return NULL;
}

static void count_wakes(void *user) {
    atomic_fetch_add(&((crowd *)user)->woken, 1);
}

static void test_viewers_come_and_go_while_frames_and_cuts_are_published(void **state) {
    (void)state;
    fixture f = start(0.0);
    crowd c = {.hub = f.hub};
    pthread_t thread[6];
    carry_hub_set_wake(f.hub, count_wakes, &c);
    for (int i = 0; i < 6; i++) {
        assert_int_equal(pthread_create(&thread[i], NULL, come_and_go, &c), 0);
    }
    int most = 0;
    for (uint64_t n = 0; n < 1500; n++) {
        if (n % 50 == 49) {
            carry_hub_cut(f.hub, n / 50 + 1);
            atomic_store(&c.published_epoch, n / 50 + 1);
        }
        carry_stream_figures figures;
        carry_hub_figures(f.hub, &figures);
        carry_hub_set_figures(f.hub, &figures);
        assert_ok(f.ctx, carry_hub_publish(f.hub, f.pixels, n, (n + 1) / 50));
        most = carry_hub_alive(f.hub) > most ? carry_hub_alive(f.hub) : most;
    }
    support_wait_for(atomic_load(&c.taken) > 0); /* every viewer that joins finds the newest frame */
    carry_hub_set_wake(f.hub, NULL, NULL);
    int woken = atomic_load(&c.woken);
    publish(&f, 1, 100);
    atomic_store(&c.stop, true);
    for (int i = 0; i < 6; i++) {
        assert_int_equal(pthread_join(thread[i], NULL), 0);
    }
    assert_int_equal(woken, 1500 + 30);
    assert_int_equal(atomic_load(&c.woken), woken);
    assert_int_equal(atomic_load(&c.wrong_order), 0);
    assert_int_equal(atomic_load(&c.wrong_epoch), 0);
    assert_int_equal(atomic_load(&c.wrong_bytes), 0);
    assert_int_equal(atomic_load(&c.refused), 0);
    assert_true(atomic_load(&c.taken) > 0);
    assert_true(most <= CARRY_HUB_FRAMES + 6 + 1);
    finish(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_frame_is_the_picture_and_strange_values_are_black_or_white),
        cmocka_unit_test(test_a_slow_viewer_skips_to_the_newest_and_others_miss_nothing),
        cmocka_unit_test(test_a_cut_forgets_older_frames_and_refuses_them_later),
        cmocka_unit_test(test_an_epoch_that_is_no_cut_follows_what_waits),
        cmocka_unit_test(test_who_joins_sees_the_newest_frame_at_once),
        cmocka_unit_test(test_256_viewers_may_look_and_one_more_is_refused),
        cmocka_unit_test(test_who_records_is_no_viewer),
        cmocka_unit_test(test_memory_is_flat_however_long_it_runs),
        cmocka_unit_test(test_a_burst_is_released_at_the_pace),
        cmocka_unit_test(test_frames_faster_than_the_pace_do_not_pile_up),
        cmocka_unit_test(test_a_pause_does_not_slow_what_follows),
        cmocka_unit_test(test_absurd_hubs_are_refused),
        cmocka_unit_test(test_viewers_come_and_go_while_frames_and_cuts_are_published),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
