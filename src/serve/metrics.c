/* GET /metrics, in the text format of Prometheus. */
#include <inttypes.h>

#include "serve/server_internal.h"

static const double bounds[CARRY_SERVE_BUCKETS] = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1,
                                                   0.25,  0.5,    1.0,   2.5,  5.0,   10.0, 60.0};

void carry_serve_observe(carry_serve_histogram *h, double seconds) {
    int bucket = 0;
    while (bucket < CARRY_SERVE_BUCKETS && seconds > bounds[bucket]) {
        bucket++;
    }
    (void)atomic_fetch_add(&h->count[bucket], 1);
    atomic_store(&h->sum, atomic_load(&h->sum) + seconds); /* only the output thread adds */
}

static void add_histogram(carry_json_text *to, const char *name, const char *help, carry_serve_histogram *h) {
    unsigned long long total = 0;
    carry_json_put_raw(to, "# HELP %s %s\n# TYPE %s histogram\n", name, help, name);
    for (int i = 0; i < CARRY_SERVE_BUCKETS; i++) {
        total += atomic_load(&h->count[i]);
        carry_json_put_raw(to, "%s_bucket{le=\"%g\"} %llu\n", name, bounds[i], total);
    }
    total += atomic_load(&h->count[CARRY_SERVE_BUCKETS]);
    carry_json_put_raw(to, "%s_bucket{le=\"+Inf\"} %llu\n%s_sum %.9g\n%s_count %llu\n", name, total, name,
                       atomic_load(&h->sum), name, total);
}

static void add_value(carry_json_text *to, const char *name, const char *type, const char *help, int64_t value) {
    carry_json_put_raw(to, "# HELP %s %s\n# TYPE %s %s\n%s %" PRId64 "\n", name, help, name, type, name, value);
}

static void add_engine(carry_json_text *to, const carry_engine_stats *e) {
    add_value(to, "carry_requests_waiting", "gauge", "Requests in the engine's queue.", e->waiting);
    add_value(to, "carry_requests_active", "gauge", "Texts that are being read or written.", e->active);
    add_value(to, "carry_steps_total", "counter", "Steps of the engine.", e->steps);
    add_value(to, "carry_requests_total", "counter", "Requests of the engine, one per choice.", e->requests);
    add_value(to, "carry_requests_cancelled_total", "counter", "Requests cancelled; also those ended by a stop text.",
              e->cancelled);
    add_value(to, "carry_requests_failed_total", "counter", "Requests that failed.", e->failed);
    add_value(to, "carry_prompt_tokens_total", "counter", "Tokens of prompts.", e->prompt_tokens);
    add_value(to, "carry_cached_tokens_total", "counter", "Tokens of prompts that a cached state had read.",
              e->cached_tokens);
    add_value(to, "carry_generated_tokens_total", "counter", "Tokens of texts.", e->tokens);
    add_value(to, "carry_state_slots", "gauge", "Slots for recurrent states.", e->slots);
    add_value(to, "carry_state_slots_free", "gauge", "Free slots.", e->free_slots);
    add_value(to, "carry_state_pages", "gauge", "Pages for keys and values.", e->pages);
    add_value(to, "carry_state_pages_free", "gauge", "Free pages.", e->free_pages);
    add_value(to, "carry_cached_states", "gauge", "Cached states on the device.", e->snapshots);
    add_value(to, "carry_cached_states_host", "gauge", "Cached states in host memory.", e->host_snapshots);
    add_value(to, "carry_cached_states_files", "gauge", "Cached states in files.", e->file_snapshots);
}

void carry_serve_write_metrics(carry_lm_server *s, carry_json_text *to) {
    (void)pthread_mutex_lock(&s->lock);
    const carry_engine_stats stats = s->stats;
    int64_t waiting = 0;
    for (int i = 0; i < CARRY_SERVE_LANES; i++) {
        waiting += s->lanes[i].count;
    }
    (void)pthread_mutex_unlock(&s->lock);
    add_value(to, "carry_ready", "gauge", "1 once the model is loaded and until the server shuts down.",
              atomic_load(&s->phase) == CARRY_SERVE_READY);
    add_value(to, "carry_requests_preparing", "gauge", "Requests that wait to be parsed.", waiting);
    add_value(to, "carry_clients_gone_total", "counter", "Clients that went away before their answer was complete.",
              (int64_t)atomic_load(&s->counters.disconnected));
    carry_json_put_raw(to, "# HELP carry_responses_total HTTP responses.\n# TYPE carry_responses_total counter\n");
    for (int i = 0; i < CARRY_SERVE_STATUSES; i++) {
        const unsigned long long count = atomic_load(&s->counters.responses[i]);
        if (count > 0) {
            carry_json_put_raw(to, "carry_responses_total{status=\"%d\"} %llu\n", i, count);
        }
    }
    add_engine(to, &stats);
    add_histogram(to, "carry_time_to_first_token_seconds", "Time from submission to the first token.",
                  &s->counters.first);
    add_histogram(to, "carry_time_between_tokens_seconds", "Mean time between tokens of a text.", &s->counters.between);
    add_histogram(to, "carry_request_seconds", "Time from submission to the last token.", &s->counters.whole);
}
