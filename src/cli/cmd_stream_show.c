/* The output of carry stream: on a terminal a line that is redrawn, and a table at the end; or JSON. */
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "cli/cmd_stream.h"
#include "core/clock.h"

#define RANDOM "the weights are random: what is shown means nothing"

void stream_show_clear(stream_display *display) {
    if (display->line_is_open) {
        (void)putchar('\n');
        display->line_is_open = false;
    }
}

void stream_show_line(stream_display *display, const char *line) {
    if (display->json) {
        cli_json_open();
        cli_json_text("note", line);
        cli_json_close();
    } else {
        stream_show_clear(display);
        (void)printf("%s\n", line);
    }
    (void)fflush(stdout);
}

static void show_address(stream_display *display, const stream_session *session) {
    char line[160];
    if (stream_page_address(session, line, sizeof line)) {
        stream_show_line(display, line);
    }
}

void stream_show_start(stream_display *display, const stream_session *session) {
    const carry_pipeline_options *o = &session->pipeline;
    const carry_dit_config *c = &session->model.config;
    const int ranks = cli_ranks();
    const bool is_apart = o->with_stage && ranks > 1;
    display->redraws = !display->json && isatty(STDOUT_FILENO) != 0;
    const bool is_random = session->model.folder[0] == '\0';
    char device[CLI_DEVICE];
    const bool is_again = display->has_started; /* memory ran out, and the stream continues with a smaller window */
    display->has_started = true;
    if (display->json || is_again) {
        if (is_random && !is_again) {
            stream_show_line(display, RANDOM);
        }
        show_address(display, session);
        return;
    }
    (void)printf("%s%s%s on %s: %lld blocks of %lld, %lld heads; %lld x %lld, chunks of %lld frames, a window of "
                 "%lld%s%s%s\n",
                 cli_bold(), session->model.folder[0] != '\0' ? session->model.folder : session->options->config,
                 cli_plain(), cli_device_name(device, session->ctx, o->device), (long long)c->num_layers,
                 (long long)c->dim, (long long)c->num_heads, (long long)o->width, (long long)o->height,
                 (long long)o->chunk, (long long)o->window, o->fp8 ? "; products in 8-bit floats" : "",
                 is_random ? "\n" : "", is_random ? RANDOM : "");
    if (is_apart) {
        (void)printf("stage 0 and a mesh of %d; up to %d envelopes under way\n", ranks - 1, o->depth);
    } else {
        (void)printf("%d rank%s: no stage has a rank of its own, so the stages take turns\n", ranks,
                     ranks > 1 ? "s" : "");
    }
    (void)fflush(stdout);
    show_address(display, session);
}

void stream_show_chunk(stream_display *display, const carry_stream_figures *f, const carry_chunk_times *t) {
    if (display->json) {
        cli_json_open();
        cli_json_integer("chunk", (int64_t)t->chunk_index);
        cli_json_integer("epoch", (int64_t)t->cache_epoch);
        cli_json_number("stage0_s", t->stage0);
        cli_json_number("stage1_s", t->stage1);
        cli_json_number("period_s", t->period > 0.0 ? t->period : NAN);
        cli_json_number("hidden_s", carry_overlap_hidden(t));
        cli_json_number("decode_s", t->decode);
        cli_json_number("encode_s", t->encode);
        cli_json_number("build_s", t->build);
        cli_json_number("denoise_s", t->denoise);
        cli_json_number("recompute_s", t->recompute);
        cli_json_number("clean_s", t->clean);
        cli_json_number("mesh_idle_s", t->idle);
        cli_json_number("prompt_s", t->prompt > 0.0 ? t->prompt : NAN);
        cli_json_integer("under_way", t->depth);
        cli_json_integer("frames", (int64_t)f->frames);
        cli_json_number("fps", f->fps);
        cli_json_number("score", f->overlap.score);
        cli_json_close();
        (void)fflush(stdout);
        return;
    }
    if (!display->redraws) {
        return;
    }
    char period[32];
    char score[16] = "...";
    if (!isnan(f->overlap.score)) {
        (void)snprintf(score, sizeof score, "%.2f", f->overlap.score);
    }
    (void)printf("\r\033[Kchunk %llu  epoch %llu  %llu frames  %.1f frames/s  period %s  score %s  %d under way",
                 (unsigned long long)t->chunk_index, (unsigned long long)t->cache_epoch, (unsigned long long)f->frames,
                 f->fps, carry_time_text(period, t->period), score, f->under_way);
    display->line_is_open = true;
    (void)fflush(stdout);
}

/* The time from a change of prompts to the first frame made with it, in seconds and in periods of a chunk. */
static void print_json_prompts(const carry_stream_figures *f) {
    const double n = (double)f->prompt_changes;
    cli_json_number("prompt_s", n > 0.0 ? f->prompt_seconds : NAN);
    cli_json_number("prompt_chunks", n > 0.0 ? f->prompt_chunks : NAN);
    cli_json_integer("prompt_changes", (int64_t)f->prompt_changes);
    cli_json_number("prompt_mean_s", n > 0.0 ? f->prompt_sum / n : NAN);
    cli_json_number("prompt_most_s", n > 0.0 ? f->prompt_most : NAN);
    cli_json_number("prompt_mean_chunks", f->prompt_chunks_sum / (double)f->prompt_timed);
    cli_json_number("prompt_most_chunks", n > 0.0 ? f->prompt_chunks_most : NAN);
    cli_json_integer("prompt_between_most", (int64_t)f->prompt_between_most);
    cli_json_integer("prompt_steps_again", (int64_t)f->prompt_steps_again);
}

static void print_json(const stream_session *session) {
    const carry_stream_figures *f = &session->figures;
    const carry_overlap_summary *o = &f->overlap;
    cli_json_open();
    cli_json_bool("done", true);
    cli_json_integer("chunks", (int64_t)f->chunks);
    cli_json_integer("frames", (int64_t)f->frames);
    cli_json_number("fps", f->fps);
    cli_json_number("first_frame_s", f->first_frame_seconds);
    print_json_prompts(f);
    cli_json_number("gpu_used_bytes", f->gpu_total > 0.0 ? f->gpu_used : NAN);
    cli_json_number("gpu_total_bytes", f->gpu_total > 0.0 ? f->gpu_total : NAN);
    cli_json_integer("epoch", (int64_t)f->epoch);
    cli_json_integer("cuts", (int64_t)f->cuts);
    cli_json_integer("stale_dropped", (int64_t)f->stale_dropped);
    cli_json_integer("restarts", (int64_t)f->restarts);
    cli_json_integer("mesh_ranks", f->mesh_ranks);
    cli_json_integer("depth", f->depth);
    cli_json_number("stage0_s", o->stage0);
    cli_json_number("stage1_s", o->stage1);
    cli_json_number("period_s", o->period);
    cli_json_number("hidden_s", o->hidden);
    cli_json_number("predicted_s", o->predicted);
    cli_json_number("use", o->use);
    cli_json_number("mesh_idle_s", o->idle);
    cli_json_number("denoise_s", o->denoise);
    cli_json_number("recompute_s", o->recompute);
    cli_json_number("clean_s", o->clean);
    cli_json_number("decode_s", o->decode);
    cli_json_number("encode_s", o->encode);
    cli_json_number("score", o->score);
    cli_json_integer("counted", o->counted);
    cli_json_bool("passes", o->passes);
    cli_json_integer("reductions_large", f->reductions_large);
    cli_json_integer("reductions_small", f->reductions_small);
    cli_json_bool("saved", session->unsaved[0] == '\0');
    if (session->unsaved[0] != '\0') {
        cli_json_text("unsaved", session->unsaved);
    }
    cli_json_close();
}

static void print_block(const char *name, const char *where, double seconds, double of) {
    char time[32];
    if (seconds > 0.0) {
        (void)printf("  %-10s %-8s %10s %5.0f %%\n", name, where, carry_time_text(time, seconds), 100.0 * seconds / of);
    }
}

static void print_table(const stream_session *session) {
    const carry_stream_figures *f = &session->figures;
    const carry_overlap_summary *o = &f->overlap;
    char a[32];
    char b[32];
    const double period = o->period;
    (void)printf("%llu chunk%s, %llu frames, the first after %s; %llu cut%s, %llu stale results dropped\n",
                 (unsigned long long)f->chunks, f->chunks == 1 ? "" : "s", (unsigned long long)f->frames,
                 carry_time_text(a, f->first_frame_seconds), (unsigned long long)f->cuts, f->cuts == 1 ? "" : "s",
                 (unsigned long long)f->stale_dropped);
    if (f->gpu_total > 0.0) {
        (void)printf("%.1f of %.1f GB of the GPU are used\n", 1e-9 * f->gpu_used, 1e-9 * f->gpu_total);
    }
    if (f->prompt_changes > 0) {
        (void)printf("%llu change%s of the prompt shown after %s (%.2f chunks), at most %s (%.2f)\n",
                     (unsigned long long)f->prompt_changes, f->prompt_changes == 1 ? "" : "s",
                     carry_time_text(a, f->prompt_sum / (double)f->prompt_changes),
                     f->prompt_timed > 0 ? f->prompt_chunks_sum / (double)f->prompt_timed : 0.0,
                     carry_time_text(b, f->prompt_most), f->prompt_chunks_most);
    }
    if (!(period > 0.0)) {
        return;
    }
    (void)printf("%sa chunk (medians)        time  of the period%s\n", cli_dim(), cli_plain());
    print_block("denoise", "stage 1", o->denoise, period);
    print_block("recompute", "stage 1", o->recompute, period);
    print_block("clean pass", "stage 1", o->clean, period);
    print_block("all", "stage 1", o->stage1, period);
    print_block("decode", "stage 0", o->decode, period);
    print_block("encode", "stage 0", o->encode, period);
    print_block("all", "stage 0", o->stage0, period);
    if (session->pipeline.fps > 0.0) {
        (void)printf("  idle       mesh     %10s  of which the pace of %g frames a second is most\n",
                     carry_time_text(a, o->idle), session->pipeline.fps);
    } else {
        print_block("idle", "mesh", o->idle, period);
    }
    print_block("hidden", "overlap", o->hidden, period);
    (void)printf("period %s, predicted %s; B/(B+P-1) %.1f %%\n", carry_time_text(a, period),
                 carry_time_text(b, o->predicted), 100.0 * o->use);
    if (f->mesh_ranks > 1) {
        (void)printf("all-reduces of the mesh a forward: %lld (%lld large, %lld small)\n",
                     (long long)f->reductions_large + f->reductions_small, (long long)f->reductions_large,
                     (long long)f->reductions_small);
    }
    if (cli_ranks_kind_of() == CLI_RANKS_ALONE) {
        (void)printf(
            "overlap score: none, since one rank denoises and decodes in turn (carry --ranks 2 overlaps them)\n");
    } else if (o->counted > 0) {
        (void)printf("overlap score %s%.2f%s over %lld chunks: %s the gate of %.2f\n",
                     o->passes ? cli_green() : cli_red(), o->score, cli_plain(), (long long)o->counted,
                     o->passes ? "passes" : "below", CARRY_OVERLAP_GATE);
    } else {
        (void)printf("overlap score: none before chunk %d\n", CARRY_OVERLAP_WARMUP + 1);
    }
}

void stream_show_end(stream_display *display, const stream_session *session) {
    stream_show_clear(display);
    if (display->json) {
        print_json(session);
    } else {
        print_table(session);
    }
    (void)fflush(stdout);
}
