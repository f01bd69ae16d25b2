/* A recording read back: every frame is where the index says, the header is correct at every moment, a full file
   continues in the next, and a full disk ends it with an error message. */
#include <math.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/file.h"
#include "stream/server/recording.h"
#include "stream/server/recording_avi.h"
#include "support.h"

#define WIDTH 48
#define HEIGHT 32

static char folder[] = "/tmp/carry_recording_XXXXXX";

static const char *in_folder(char path[CARRY_FILE_PATH], const char *name) {
    (void)snprintf(path, CARRY_FILE_PATH, "%s/%s", folder, name);
    return path;
}

static uint32_t word(const unsigned char *at) {
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

/* The contents of a file as a player reads them. */
typedef struct reading {
    size_t length, end;             /* bytes of the file; end of its RIFF chunk according to the header */
    uint32_t frames, index, walked; /* according to the header, the index and the list itself */
    double rate;
    int width, height;
} reading;

static reading read_back(carry_ctx *ctx, const char *path) {
    char *text;
    reading r = {0};
    assert_ok(ctx, carry_file_read(ctx, &text, &r.length, path, (size_t)64 << 20));
    const unsigned char *bytes = (const unsigned char *)text;
    assert_true(r.length >= 224);
    assert_memory_equal(bytes, "RIFF", 4);
    r.end = word(bytes + 4) + 8;
    assert_true(r.end <= r.length);
    assert_memory_equal(bytes + 8, "AVI LIST", 8);
    assert_memory_equal(bytes + 20, "hdrlavih", 8);
    assert_int_equal(word(bytes + 28), 56);
    r.frames = word(bytes + 48);
    r.width = (int)word(bytes + 64);
    r.height = (int)word(bytes + 68);
    assert_memory_equal(bytes + 88, "LIST", 4);
    assert_memory_equal(bytes + 96, "strlstrh", 8);
    assert_memory_equal(bytes + 108, "vidsMJPG", 8);
    r.rate = (double)word(bytes + 132) / word(bytes + 128);
    assert_int_equal(word(bytes + 140), r.frames);
    assert_memory_equal(bytes + 164, "strf", 4);
    size_t movi = 20 + word(bytes + 16); /* after the header's list */
    assert_memory_equal(bytes + movi, "LIST", 4);
    size_t frames_end = movi + 8 + word(bytes + movi + 4), at = movi + 12;
    assert_memory_equal(bytes + movi + 8, "movi", 4);
    assert_true(frames_end <= r.length);
    const unsigned char *index = frames_end < r.end ? bytes + frames_end : NULL;
    if (index != NULL) {
        assert_memory_equal(index, "idx1", 4);
        r.index = word(index + 4) / 16;
        assert_int_equal(frames_end + 8 + word(index + 4), r.end);
    }
    for (; at < frames_end; r.walked++) {
        assert_memory_equal(bytes + at, "00dc", 4);
        uint32_t size = word(bytes + at + 4);
        assert_true(at + 8 + size <= frames_end);
        if (index != NULL) {
            const unsigned char *entry = index + 8 + 16 * (size_t)r.walked;
            assert_memory_equal(entry, "00dc", 4);
            assert_int_equal(movi + 8 + word(entry + 8), at);
            assert_int_equal(word(entry + 12), size);
        }
        at += 8 + size + (size & 1);
    }
    assert_int_equal(at, frames_end);
    free(text);
    return r;
}

/* A frame of arbitrary bytes: the recorder does not parse them. */
static void fill(unsigned char *bytes, size_t size, unsigned seed) {
    for (size_t i = 0; i < size; i++) {
        bytes[i] = (unsigned char)(seed * 31 + i * 7);
    }
}

static void test_frames_of_any_size_stand_where_the_index_says(void **state) {
    (void)state;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    char path[CARRY_FILE_PATH];
    carry_avi *avi;
    for (unsigned count = 0; count < 40; count += 13) {
        (void)unlink(in_folder(path, "sizes.avi"));
        assert_ok(ctx, carry_avi_new(ctx, &avi, path, WIDTH, HEIGHT, 0.0, CARRY_AVI_LIMIT));
        unsigned char bytes[600];
        for (unsigned i = 0; i < count; i++) {
            fill(bytes, sizeof bytes, i);
            assert_ok(ctx, carry_avi_write(ctx, avi, bytes, 1 + 37 * i % 599, 0.125 * i));
        }
        assert_ok(ctx, carry_avi_close(ctx, avi));
        reading r = read_back(ctx, path);
        assert_int_equal(r.frames, count);
        assert_int_equal(r.walked, count);
        assert_int_equal(r.index, count);
        assert_int_equal(r.end, r.length);
        assert_int_equal(r.width, WIDTH);
        assert_int_equal(r.height, HEIGHT);
        assert_true(count < 2 || fabs(r.rate - 8.0) < 1e-3); /* the times are an eighth of a second apart */
    }
    carry_ctx_free(ctx);
}

static void test_a_killed_run_leaves_a_file_with_what_was_there_a_second_before(void **state) {
    (void)state;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    char path[CARRY_FILE_PATH];
    in_folder(path, "killed.avi");
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        carry_avi *avi;
        unsigned char bytes[333];
        fill(bytes, sizeof bytes, 1);
        if (carry_avi_new(ctx, &avi, path, WIDTH, HEIGHT, 20.0, CARRY_AVI_LIMIT) == CARRY_OK) {
            for (int i = 0; i < 30; i++) { /* 1.5 s, so that a header is written in between */
                (void)carry_avi_write(ctx, avi, bytes, sizeof bytes, 0.05 * i);
                (void)nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
            }
        }
        (void)kill(getpid(), SIGKILL);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status));
    reading r = read_back(ctx, path);
    assert_true(r.frames >= 5 && r.frames <= 30);
    assert_int_equal(r.walked, r.frames);
    assert_int_equal(r.index, 0);
    assert_true(r.length >= r.end);
    assert_true(fabs(r.rate - 20.0) < 1e-6);
    carry_ctx_free(ctx);
}

static void test_what_exists_is_not_overwritten_and_links_are_not_followed(void **state) {
    (void)state;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    char path[CARRY_FILE_PATH], target[CARRY_FILE_PATH];
    carry_avi *avi;
    in_folder(path, "there.avi");
    assert_ok(ctx, carry_file_replace(ctx, path, "mine", 4));
    assert_refused(ctx, CARRY_EIO, "File exists", carry_avi_new(ctx, &avi, path, 8, 8, 1.0, CARRY_AVI_LIMIT));
    in_folder(path, "link.avi");
    assert_int_equal(symlink(in_folder(target, "elsewhere"), path), 0);
    assert_refused(ctx, CARRY_EIO, "link.avi", carry_avi_new(ctx, &avi, path, 8, 8, 1.0, CARRY_AVI_LIMIT));
    assert_int_not_equal(access(target, F_OK), 0);
    in_folder(path, "no/such/folder.avi");
    assert_refused(ctx, CARRY_EIO, "No such file", carry_avi_new(ctx, &avi, path, 8, 8, 1.0, CARRY_AVI_LIMIT));
    carry_ctx_free(ctx);
}

typedef struct stage {
    carry_ctx *ctx;
    carry_hub *hub;
    float pixels[3 * WIDTH * HEIGHT];
} stage;

static stage open_stage(void) {
    stage s = {.ctx = support_ctx(1, NULL, NULL)};
    assert_ok(s.ctx, carry_hub_new(s.ctx, &s.hub, WIDTH, HEIGHT, 80, 0.0));
    return s;
}

static void close_stage(stage *s) {
    carry_hub_free(s->hub);
    carry_ctx_free(s->ctx);
}

/* Publishes a frame and waits until the recording has it or has ended. */
static carry_film_state publish_one(stage *s, carry_film *film, uint64_t n) {
    for (size_t i = 0; i < sizeof s->pixels / sizeof s->pixels[0]; i++) {
        s->pixels[i] = (float)((i * 13 + n * 101) % 251) / 250.0F;
    }
    carry_film_state seen;
    carry_film_look(film, &seen);
    uint64_t before = seen.frames;
    assert_ok(s->ctx, carry_hub_publish(s->hub, s->pixels, n, 0));
    for (double until = carry_seconds() + SUPPORT_PATIENCE; carry_seconds() < until;) {
        carry_film_look(film, &seen);
        if (seen.ended || seen.frames > before) {
            return seen;
        }
        (void)nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
    }
    fail_msg("the recording does not go on after %llu frames", (unsigned long long)before);
    return seen;
}

static void play_with_ffprobe(const char *path, unsigned frames) {
    char line[CARRY_FILE_PATH + 200];
    if (system("command -v ffprobe > /dev/null 2>&1") != 0) { /* NOLINT(cert-env33-c) */
        print_message("skipped: ffprobe is not here\n");
        return;
    }
    (void)snprintf(line, sizeof line,
                   "test \"$(ffprobe -v error -count_frames -show_entries stream=nb_read_frames -of csv=p=0 %s)\" = %u",
                   path, frames);
    assert_int_equal(system(line), 0); /* NOLINT(cert-env33-c) */
}

static void test_a_stream_is_recorded_and_a_full_file_goes_on_in_the_next(void **state) {
    (void)state;
    stage s = open_stage();
    char path[CARRY_FILE_PATH], second[CARRY_FILE_PATH];
    carry_film *film;
    carry_film_state seen;
    assert_refused(s.ctx, CARRY_EARGUMENT, ".avi",
                   carry_film_start(s.ctx, &film, s.hub, in_folder(path, "name.mp4"), 0));
    assert_ok(s.ctx, carry_film_start(s.ctx, &film, s.hub, in_folder(path, "film.avi"), 60000));
    carry_stream_figures figures;
    carry_hub_figures(s.hub, &figures);
    assert_int_equal(figures.viewers, 0); /* no viewers */
    for (uint64_t n = 0; n < 60; n++) {
        seen = publish_one(&s, film, n);
        assert_false(seen.ended);
    }
    carry_film_stop(film, &seen);
    assert_int_equal(seen.frames, 60);
    assert_int_equal(seen.dropped, 0);
    assert_true(seen.files >= 2);
    uint32_t found = 0;
    for (int i = 1; i <= seen.files; i++) {
        char name[32];
        (void)snprintf(name, sizeof name, i == 1 ? "film.avi" : "film-%d.avi", i);
        reading r = read_back(s.ctx, in_folder(second, name));
        assert_true(r.length <= 60000);
        assert_int_equal(r.index, r.frames);
        found += r.frames;
        if (i == 1) {
            play_with_ffprobe(second, r.frames);
        }
    }
    assert_int_equal(found, 60);
    assert_string_equal(seen.path, second);
    close_stage(&s);
}

static void test_a_full_disk_ends_the_recording_and_not_the_stream(void **state) {
    (void)state;
    stage s = open_stage();
    char path[CARRY_FILE_PATH];
    carry_film *film;
    struct rlimit before, small;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    small = before;
    small.rlim_cur = 20000; /* the kernel refuses to write past it, as a full disk does */
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    assert_ok(s.ctx, carry_film_start(s.ctx, &film, s.hub, in_folder(path, "full.avi"), 0));
    carry_film_state seen = {0};
    for (uint64_t n = 0; n < 60 && !seen.ended; n++) {
        seen = publish_one(&s, film, n);
    }
    assert_true(seen.ended);
    assert_non_null(strstr(seen.why, "ends after"));
    assert_ok(s.ctx, carry_hub_publish(s.hub, s.pixels, 100, 0)); /* the stream goes on */
    carry_film_stop(film, &seen);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    reading r = read_back(s.ctx, path);
    assert_int_equal(r.frames, seen.frames);
    assert_int_equal(r.walked, seen.frames);
    assert_int_equal(r.end, r.length);
    close_stage(&s);
}

static int make_folder(void **state) {
    (void)state;
    return mkdtemp(folder) != NULL ? 0 : -1;
}

static int remove_folder(void **state) {
    (void)state;
    static const char *const names[] = {"sizes.avi", "killed.avi", "there.avi", "link.avi", "film.avi", "full.avi"};
    char path[CARRY_FILE_PATH];
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        (void)unlink(in_folder(path, names[i]));
    }
    for (int i = 2; i < 40; i++) {
        char name[32];
        (void)snprintf(name, sizeof name, "film-%d.avi", i);
        (void)unlink(in_folder(path, name));
    }
    return rmdir(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_frames_of_any_size_stand_where_the_index_says),
        cmocka_unit_test(test_a_killed_run_leaves_a_file_with_what_was_there_a_second_before),
        cmocka_unit_test(test_what_exists_is_not_overwritten_and_links_are_not_followed),
        cmocka_unit_test(test_a_stream_is_recorded_and_a_full_file_goes_on_in_the_next),
        cmocka_unit_test(test_a_full_disk_ends_the_recording_and_not_the_stream),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
