/* State and figures of the stream: JSON for the page and scripts, text for Prometheus. */
#include <math.h>
#include <string.h>

#include "core/clock.h"
#include "core/memory.h"
#include "stream/server/server_internal.h"

#define QUIET 10.0 /* minimum number of seconds without a frame that count as unhealthy */
#define AT_ONCE 4  /* maximum number of frames that a codec makes from one latent frame */

static void put_number(carry_json_text *text, const char *key, double value) {
    carry_json_put_key(text, key);
    if (isfinite(value)) {
        carry_json_put_double(text, value);
    } else {
        carry_json_put_raw(text, "null");
    }
    carry_json_put_raw(text, ",");
}

static void put_count(carry_json_text *text, const char *key, uint64_t value) {
    carry_json_put_raw(text, "\"%s\":%llu,", key, (unsigned long long)value);
}

static void put_times(carry_json_text *text, const carry_chunk_times *last) {
    carry_json_put_raw(text, "\"last\":{");
    put_count(text, "chunk", last->chunk_index);
    put_count(text, "epoch", last->cache_epoch);
    put_number(text, "stage0", last->stage0);
    put_number(text, "stage1", last->stage1);
    put_number(text, "decode", last->decode);
    put_number(text, "encode", last->encode);
    put_number(text, "build", last->build);
    put_number(text, "denoise", last->denoise);
    put_number(text, "recompute", last->recompute);
    put_number(text, "clean", last->clean);
    put_number(text, "idle", last->idle);
    put_number(text, "period", last->period);
    put_number(text, "hidden", carry_overlap_hidden(last));
    carry_json_put_raw(text, "\"depth\":%d},", last->depth);
}

static void put_overlap(carry_json_text *text, const carry_overlap_summary *overlap) {
    carry_json_put_raw(text, "\"overlap\":{\"chunks\":%lld,\"counted\":%lld,\"passes\":%s,", (long long)overlap->chunks,
                       (long long)overlap->counted, overlap->passes ? "true" : "false");
    put_number(text, "score", overlap->counted > 0 ? overlap->score : (double)NAN);
    put_number(text, "stage0", overlap->stage0);
    put_number(text, "stage1", overlap->stage1);
    put_number(text, "period", overlap->period);
    put_number(text, "hidden", overlap->hidden);
    put_number(text, "idle", overlap->idle);
    put_number(text, "predicted", overlap->predicted);
    put_number(text, "use", overlap->use);
    carry_json_put_raw(text, "\"gate\":%g},", CARRY_OVERLAP_GATE);
}

static void put_figures(carry_server *server, carry_json_text *text) {
    carry_stream_figures figures;
    carry_hub_figures(server->hub, &figures);
    int width, height;
    double pace = carry_hub_pace(server->hub, &width, &height);
    carry_json_put_raw(text, "{\"width\":%d,\"height\":%d,", width, height);
    put_number(text, "pace", pace);
    put_number(text, "fps", figures.fps);
    put_number(text, "first_frame_seconds", figures.first_frame_seconds);
    put_number(text, "prompt_seconds", figures.prompt_seconds > 0.0 ? figures.prompt_seconds : (double)NAN);
    put_number(text, "prompt_chunks", figures.prompt_changes > 0 ? figures.prompt_chunks : (double)NAN);
    put_number(text, "gpu_used", figures.gpu_total > 0.0 ? figures.gpu_used : (double)NAN);
    put_number(text, "gpu_total", figures.gpu_total > 0.0 ? figures.gpu_total : (double)NAN);
    put_count(text, "chunks", figures.chunks);
    put_count(text, "frames", figures.frames);
    put_count(text, "epoch", figures.epoch);
    put_count(text, "stale_dropped", figures.stale_dropped);
    put_count(text, "cuts", figures.cuts);
    put_count(text, "restarts", figures.restarts);
    put_count(text, "viewer_dropped", figures.viewer_dropped);
    carry_json_put_raw(text, "\"depth\":%d,\"under_way\":%d,\"decoded_waiting\":%d,\"mesh_ranks\":%d,\"viewers\":%d,",
                       figures.depth, figures.under_way, figures.decoded_waiting, figures.mesh_ranks, figures.viewers);
    carry_json_put_raw(text, "\"reductions_large\":%lld,\"reductions_small\":%lld,",
                       (long long)figures.reductions_large, (long long)figures.reductions_small);
    put_overlap(text, &figures.overlap);
    put_times(text, &figures.last);
    carry_json_put_raw(text, "\"paused\":%s,\"state\":", figures.paused ? "true" : "false");
    carry_json_put_string(text, figures.state);
    carry_json_put_raw(text, "}");
}

static void put_recording(carry_server *server, carry_json_text *text) {
    const carry_film_state *film = &server->filmed;
    carry_json_put_raw(text, "{\"allowed\":%s,\"on\":%s,", server->record_to != NULL ? "true" : "false",
                       server->film != NULL ? "true" : "false");
    const char *name = strrchr(film->path, '/');
    carry_json_put_key(text, "name");
    carry_json_put_string(text, name != NULL ? name + 1 : film->path);
    carry_json_put_raw(text, ",\"files\":%d,", film->files);
    put_count(text, "frames", film->frames);
    put_count(text, "bytes", film->bytes);
    put_count(text, "dropped", film->dropped);
    carry_json_put_key(text, "error");
    carry_json_put_string(text, film->why);
    carry_json_put_raw(text, "}");
}

void carry_server_state(carry_server *server, carry_json_text *text) {
    carry_json_put_raw(text, "{\"stream\":\"%016llx\",\"controls\":", (unsigned long long)server->name);
    carry_controls_write(server->controls, text);
    char note[CARRY_CONTROL_NOTE];
    carry_controls_note(server->controls, note);
    carry_json_put_raw(text, ",\"note\":");
    carry_json_put_string(text, note);
    carry_json_put_raw(text, ",\"figures\":");
    put_figures(server, text);
    carry_json_put_raw(text, ",\"recording\":");
    put_recording(server, text);
    carry_json_put_raw(text, "}\n");
}

static void put_metric(carry_json_text *text, const char *name, const char *kind, const char *help, double value) {
    carry_json_put_raw(text, "# HELP carry_stream_%s %s\n# TYPE carry_stream_%s %s\ncarry_stream_%s ", name, help, name,
                       kind, name);
    if (isnan(value)) {
        carry_json_put_raw(text, "NaN\n");
    } else if (isinf(value)) {
        carry_json_put_raw(text, value > 0.0 ? "+Inf\n" : "-Inf\n");
    } else {
        carry_json_put_raw(text, "%.17g\n", value);
    }
}

static void put_stage_metrics(carry_json_text *text, const carry_overlap_summary *overlap) {
    const struct {
        const char *stage;
        double seconds;
    } stages[] = {{"0", overlap->stage0},      {"1", overlap->stage1},        {"decode", overlap->decode},
                  {"encode", overlap->encode}, {"denoise", overlap->denoise}, {"recompute", overlap->recompute},
                  {"clean", overlap->clean},   {"idle", overlap->idle}};
    carry_json_put_raw(text, "# HELP carry_stream_stage_seconds Median of a chunk's time by stage and part\n"
                             "# TYPE carry_stream_stage_seconds gauge\n");
    for (size_t i = 0; i < sizeof stages / sizeof stages[0]; i++) {
        double seconds = isfinite(stages[i].seconds) ? stages[i].seconds : 0.0;
        carry_json_put_raw(text, "carry_stream_stage_seconds{stage=\"%s\"} %.17g\n", stages[i].stage, seconds);
    }
}

void carry_server_metrics(carry_server *server, carry_json_text *text) {
    carry_stream_figures f;
    carry_http_counts http;
    carry_hub_figures(server->hub, &f);
    carry_http_counts_read(server->http, &http);
    const char *why;
    const struct {
        const char *name, *kind, *help;
        double value;
    } metrics[] = {
        {"healthy", "gauge", "1 while frames come or the stream is paused", carry_server_healthy(server, &why)},
        {"fps", "gauge", "Frames shown a second, over the last seconds", f.fps},
        {"frames_total", "counter", "Frames made", (double)f.frames},
        {"chunks_total", "counter", "Chunks made", (double)f.chunks},
        {"epoch", "gauge", "Hard cuts and restarts so far, as the pipeline counts them", (double)f.epoch},
        {"cuts_total", "counter", "Hard cuts", (double)f.cuts},
        {"restarts_total", "counter", "Restarts of the pipeline", (double)f.restarts},
        {"stale_dropped_total", "counter", "Results of before a cut, dropped", (double)f.stale_dropped},
        {"overlap_score", "gauge", "1: stages overlap fully, 0: they take turns",
         f.overlap.counted > 0 ? f.overlap.score : (double)NAN},
        {"period_seconds", "gauge", "Median time between chunks", f.overlap.period},
        {"hidden_seconds", "gauge", "Median time of a chunk in which both stages worked", f.overlap.hidden},
        {"predicted_period_seconds", "gauge", "Period that the stage times predict", f.overlap.predicted},
        {"queue_depth", "gauge", "Envelopes that may be under way", f.depth},
        {"queue_under_way", "gauge", "Envelopes under way", f.under_way},
        {"queue_decoded_waiting", "gauge", "Results that wait to be decoded", f.decoded_waiting},
        {"mesh_ranks", "gauge", "Ranks that share the generator", f.mesh_ranks},
        {"reductions_large", "gauge", "Large all-reduces of a forward pass", (double)f.reductions_large},
        {"reductions_small", "gauge", "Small all-reduces of a forward pass", (double)f.reductions_small},
        {"paused", "gauge", "1 while paused", f.paused},
        {"viewers", "gauge", "Viewers that are connected", f.viewers},
        {"viewer_dropped_total", "counter", "Frames that slow viewers missed", (double)f.viewer_dropped},
        {"connections", "gauge", "Connections to the server", http.connections},
        {"requests_total", "counter", "HTTP requests", (double)http.requests},
        {"messages_total", "counter", "Messages of viewers", (double)http.messages},
        {"refused_total", "counter", "Requests, messages and connections refused",
         (double)(http.refused + server->refused)},
        {"stalled_total", "counter", "Clients disconnected because they kept the server waiting", (double)http.stalled},
        {"recording", "gauge", "1 while a recording that was asked for here is written", server->film != NULL},
        {"recorded_frames", "gauge", "Frames in the recording", (double)server->filmed.frames},
        {"resident_bytes", "gauge", "Memory of the process", carry_resident_bytes()},
    };
    for (size_t i = 0; i < sizeof metrics / sizeof metrics[0]; i++) {
        put_metric(text, metrics[i].name, metrics[i].kind, metrics[i].help, metrics[i].value);
    }
    put_stage_metrics(text, &f.overlap);
}

/* Three times the longest expected interval between two frames: a chunk (its period, or the sum of its stage times,
   since the first chunk has no period) or AT_ONCE frames at the pace. At least QUIET seconds. */
double carry_server_quiet(const carry_server *server) {
    carry_stream_figures figures;
    int width, height;
    double pace = carry_hub_pace(server->hub, &width, &height);
    carry_hub_figures(server->hub, &figures);
    double chunk = fmax(figures.overlap.period, figures.last.stage0 + figures.last.stage1);
    return fmax(QUIET, 3.0 * fmax(chunk, pace > 0.0 ? AT_ONCE / pace : 0.0));
}

bool carry_server_healthy(carry_server *server, const char **why) {
    carry_stream_figures figures;
    carry_hub_figures(server->hub, &figures);
    double now = carry_seconds();
    if (figures.frames != server->frames_seen) {
        server->frames_seen = figures.frames;
        server->frames_at = now;
    }
    if (figures.frames == 0) {
        *why = "no frame has come yet";
        return false;
    }
    if (figures.paused) {
        server->frames_at = now; /* the time starts anew when the stream continues */
        *why = "paused";
        return true;
    }
    bool healthy = now - server->frames_at <= carry_server_quiet(server);
    *why = healthy ? "frames come" : "no frame has come for a while";
    return healthy;
}
