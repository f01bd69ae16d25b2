/* A stream without a model, to try the page on: a square that moves, in the colour that the first prompt names, with
   the figures a pipeline would have. Usage: stream_page [--port N] [--address A] [--token T] [--record-to FOLDER]
   [--seconds S]; prints the port. Controls act as in a stream: a prompt at the next chunk, a cut raises the epoch. */
#include <math.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "carry/carry.h"
#include "core/clock.h"
#include "stream/server/server.h"

#define WIDTH 416
#define HEIGHT 240
#define CHUNK 6
#define FPS 24.0

static atomic_bool stop;

static void on_signal(int number) {
    (void)number;
    atomic_store(&stop, true);
}

static void colour_of(const char *prompt, float rgb[3]) {
    static const struct {
        const char *name;
        float rgb[3];
    } colours[] = {{"red", {0.93F, 0.26F, 0.24F}},  {"green", {0.2F, 0.75F, 0.4F}},  {"blue", {0.23F, 0.48F, 0.96F}},
                   {"yellow", {0.98F, 0.8F, 0.2F}}, {"purple", {0.6F, 0.36F, 0.9F}}, {"white", {0.95F, 0.95F, 0.95F}}};
    memcpy(rgb, (float[3]){0.6F, 0.6F, 0.6F}, sizeof(float[3]));
    const char *first = NULL;
    for (size_t i = 0; i < sizeof colours / sizeof colours[0]; i++) {
        const char *at = strstr(prompt, colours[i].name);
        if (at != NULL && (first == NULL || at < first)) {
            first = at;
            memcpy(rgb, colours[i].rgb, sizeof(float[3]));
        }
    }
}

/* A dark background with a slow gradient; the square moves in a circle from a position given by the seed. */
static void draw(float *pixels, double time, const float rgb[3], uint64_t seed) {
    double angle = time + (double)(seed % 628) / 100.0;
    double cx = WIDTH * (0.5 + 0.34 * cos(angle)), cy = HEIGHT * (0.5 + 0.28 * sin(2.0 * angle)), half = 34.0;
    for (int y = 0; y < HEIGHT; y++) {
        for (int x = 0; x < WIDTH; x++) {
            double outside = fmax(fabs(x - cx), fabs(y - cy)) - half; /* soft edge of a pixel */
            float inside = (float)fmin(fmax(0.5 - outside, 0.0), 1.0);
            float ground = 0.08F + 0.1F * (float)y / HEIGHT + 0.05F * (float)sin(0.02 * x + time);
            for (int c = 0; c < 3; c++) {
                pixels[(c * HEIGHT + y) * WIDTH + x] = inside * rgb[c] + (1.0F - inside) * ground * (c == 2 ? 1.5F : 1);
            }
        }
    }
}

/* Publishes changing figures, as a pipeline of two stages would. */
static void tell(carry_hub *hub, const carry_control_state *control, uint64_t chunk, uint64_t epoch) {
    double wave = sin(0.2 * (double)chunk), period = CHUNK / FPS;
    carry_stream_figures figures = {.chunks = chunk,
                                    .epoch = epoch,
                                    .cuts = epoch,
                                    .depth = 2,
                                    .under_way = 1 + (int)(chunk % 3 != 0),
                                    .decoded_waiting = (int)(chunk % 4 == 0),
                                    .mesh_ranks = 4,
                                    .reductions_large = 60,
                                    .reductions_small = 60,
                                    .first_frame_seconds = 0.4,
                                    .paused = control->paused};
    (void)snprintf(figures.state, sizeof figures.state, "%s", control->paused ? "paused" : "streaming");
    figures.last = (carry_chunk_times){.chunk_index = chunk,
                                       .cache_epoch = epoch,
                                       .stage0 = period * (0.7 + 0.05 * wave),
                                       .stage1 = period * (0.92 + 0.04 * wave),
                                       .decode = period * 0.55,
                                       .encode = period * 0.1,
                                       .build = period * 0.02,
                                       .denoise = period * 0.74,
                                       .recompute = 0.0,
                                       .clean = period * 0.15,
                                       .idle = period * 0.05,
                                       .period = period * (1.0 + 0.03 * wave),
                                       .depth = 2};
    figures.overlap = (carry_overlap_summary){.chunks = (int64_t)chunk,
                                              .counted = chunk > 10 ? (int64_t)chunk - 10 : 0,
                                              .score = 0.88 + 0.05 * wave,
                                              .passes = true,
                                              .stage0 = period * 0.7,
                                              .stage1 = period * 0.92,
                                              .period = period,
                                              .idle = period * 0.05,
                                              .predicted = period * 0.92,
                                              .use = 2.0 / 3.0,
                                              .decode = period * 0.55,
                                              .denoise = period * 0.74,
                                              .clean = period * 0.15};
    carry_hub_set_figures(hub, &figures);
}

static carry_status stream(carry_hub *hub, carry_controls *controls, double seconds) {
    static carry_control_state control;
    float *pixels = malloc(sizeof(float) * 3 * WIDTH * HEIGHT), rgb[3];
    carry_status status = pixels != NULL ? CARRY_OK : CARRY_EMEMORY;
    uint64_t cuts = 0, epoch = 0, chunk = 0, frame = 0;
    double end = carry_seconds() + seconds, next = carry_seconds();
    while (status == CARRY_OK && !atomic_load(&stop) && carry_seconds() < end) {
        carry_controls_read(controls, &control);
        if (control.cuts != cuts) {
            cuts = control.cuts;
            carry_hub_cut(hub, ++epoch);
            frame = 0;
        }
        tell(hub, &control, chunk, epoch);
        if (control.paused) {
            carry_controls_wait(controls, 0.1);
            next = carry_seconds();
            continue;
        }
        colour_of(control.prompt[0].text, rgb);
        for (int i = 0; i < CHUNK && status == CARRY_OK; i++, frame++) {
            draw(pixels, (double)frame / FPS, rgb, control.seed);
            status = carry_hub_publish(hub, pixels, chunk, epoch);
        }
        chunk++;
        next += CHUNK / FPS;
        double left = next - carry_seconds();
        if (left > 0.0) {
            (void)nanosleep(&(struct timespec){.tv_sec = (time_t)left, .tv_nsec = (long)(fmod(left, 1.0) * 1e9)}, NULL);
        }
    }
    free(pixels);
    return status;
}

int main(int count, char **arguments) {
    carry_server_options options = {0};
    double seconds = 3600.0;
    for (int i = 1; i + 1 < count; i += 2) {
        const char *value = arguments[i + 1];
        if (strcmp(arguments[i], "--port") == 0) {
            options.port = (int)strtol(value, NULL, 10);
        } else if (strcmp(arguments[i], "--address") == 0) {
            options.address = value;
        } else if (strcmp(arguments[i], "--token") == 0) {
            options.token = value;
        } else if (strcmp(arguments[i], "--record-to") == 0) {
            options.record_to = value;
        } else if (strcmp(arguments[i], "--seconds") == 0) {
            seconds = strtod(value, NULL);
        }
    }
    (void)signal(SIGINT, on_signal);
    (void)signal(SIGTERM, on_signal);
    carry_ctx *ctx = NULL;
    carry_hub *hub = NULL;
    carry_controls *controls = NULL;
    carry_server *server = NULL;
    static carry_control_state start;
    start = carry_control_default();
    (void)snprintf(start.prompt[0].text, sizeof start.prompt[0].text, "red square moving in a figure of eight");
    start.prompt[0].length = strlen(start.prompt[0].text);
    carry_status status = carry_ctx_new(
        &ctx, &(carry_ctx_options){CARRY_INIT(carry_ctx_options), .threads = 1, .log_level = CARRY_LOG_INFO});
    if (status == CARRY_OK && (status = carry_controls_new(ctx, &controls, &start)) == CARRY_OK &&
        (status = carry_hub_new(ctx, &hub, WIDTH, HEIGHT, 85, FPS)) == CARRY_OK &&
        (status = carry_server_start(ctx, &server, &options, hub, controls)) == CARRY_OK) {
        (void)printf("port %d\n", carry_server_port(server));
        (void)fflush(stdout);
        status = stream(hub, controls, seconds);
    }
    if (status != CARRY_OK) {
        (void)fprintf(stderr, "stream_page: %s\n", ctx != NULL ? carry_ctx_error(ctx) : "out of memory");
    }
    carry_server_stop(server);
    carry_hub_free(hub);
    carry_controls_free(controls);
    carry_ctx_free(ctx);
    return status == CARRY_OK ? 0 : 2;
}
