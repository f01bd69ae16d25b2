/* The output of carry train: lines of text, on a terminal one line that is redrawn; or JSON. */
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "cli/cmd_train.h"
#include "core/clock.h"
#include "model/lm/families/family.h"
#include "train/memory.h"

static const char *duration(char text[32], double seconds) {
    const long long s = seconds < 1e9 ? (long long)(seconds + 0.5) : 0;
    if (s >= 3600) {
        (void)snprintf(text, 32, "%lldh%02lldm", s / 3600, s / 60 % 60);
    } else if (s >= 60) {
        (void)snprintf(text, 32, "%lldm%02llds", s / 60, s % 60);
    } else {
        (void)snprintf(text, 32, "%llds", s);
    }
    return text;
}

static const char *count_text(char text[32], double count) {
    if (count >= 1e6) {
        (void)snprintf(text, 32, "%.1f M", 1e-6 * count);
    } else if (count >= 1e4) {
        (void)snprintf(text, 32, "%.1f k", 1e-3 * count);
    } else {
        (void)snprintf(text, 32, "%.0f", count);
    }
    return text;
}

/* Ends a line that is being redrawn, so that the next output starts on a new line. */
static void end_line(train_session *session) {
    if (session->has_unended) {
        (void)putchar('\n');
        session->has_unended = false;
    }
}

/* Formats bytes in MB, or in GB from 1 GB on; text has 32 bytes. */
static const char *memory_text(char text[32], double bytes) {
    (void)snprintf(text, 32, bytes < 1e9 ? "%.1f MB" : "%.2f GB", bytes * (bytes < 1e9 ? 1e-6 : 1e-9));
    return text;
}

/* Prints the memory that the run will need, before its first step. */
static void print_memory(const carry_train_memory *m) {
    char text[6][32];
    (void)printf("memory: weights %s, gradients %s, AdamW %s, activations %s, other %s: %s",
                 memory_text(text[0], (double)(m->weights + m->copies)), memory_text(text[1], (double)m->gradients),
                 memory_text(text[2], (double)m->moments), memory_text(text[3], (double)m->activations),
                 memory_text(text[4], (double)m->other), memory_text(text[5], (double)m->total));
    if (m->available > 0) {
        (void)printf("; %s were free",
                     memory_text(text[0], (double)(m->available + m->weights + m->copies + m->gradients)));
    }
    (void)putchar('\n');
}

static void on_start(void *user, const carry_train_start *s) {
    train_session *session = user;
    const carry_lm_config *c = &s->lm->config;
    char device[CLI_DEVICE];
    char parameters[32];
    char tokens[32];
    train_store_started(session, s);
    if (session->common.json) {
        return;
    }
    if (s->resumed != NULL) {
        (void)printf("going on from %s, after step %lld\n", s->resumed, (long long)s->step);
    }
    (void)printf("%s%s%s: %s parameters, %lld layers, hidden %lld, %lld heads of %lld, vocabulary %lld; on %s\n",
                 cli_bold(), c->family->name, cli_plain(), count_text(parameters, (double)s->lm->own.trained),
                 (long long)c->num_hidden_layers, (long long)c->hidden_size, (long long)c->delta.heads,
                 (long long)c->delta.key, (long long)c->vocab_size,
                 cli_device_name(device, s->lm->ctx, s->lm->own.device));
    (void)printf("%lld steps of %lld x %lld = %s tokens", (long long)s->steps, (long long)s->options->batch,
                 (long long)s->options->length, count_text(tokens, (double)s->tokens));
    if (isfinite(s->rows_of_epoch)) {
        (void)printf(", %.2g times through the text",
                     (double)s->steps * (double)s->options->batch / fmax(1.0, s->rows_of_epoch));
    }
    (void)printf("; seed %lld\n", (long long)s->options->seed);
    if (s->ranks * s->parts > 1) {
        (void)printf("%d data ranks x %d sequence ranks\n", s->ranks, s->parts);
    }
    print_memory(s->memory_plan);
    (void)printf("%s%s\npeak %.1f GFLOP/s, of the fastest large product now%s\n", cli_dim(), s->plan,
                 1e-9 * session->peak, cli_plain());
    (void)fflush(stdout);
}

static void print_json(const train_session *session, const carry_train_report *r) {
    cli_json_open();
    cli_json_integer("step", r->step);
    cli_json_number("loss", r->loss);
    cli_json_number("tokens_per_s", r->tokens_per_s);
    cli_json_number("mfu", r->mfu);
    cli_json_number("memory", r->memory);
    cli_json_integer("steps", r->steps);
    cli_json_integer("tokens", r->seen);
    cli_json_number("rate", r->rate);
    cli_json_number("norm", r->norm);
    cli_json_number("left_s", r->left);
    cli_json_number("peak_gflops", 1e-9 * session->peak);
    cli_json_close();
    (void)fflush(stdout);
}

static void on_report(void *user, const carry_train_report *r) {
    train_session *session = user;
    char left[32];
    char rate[32];
    session->last_loss = r->loss;
    if (session->common.json) {
        print_json(session, r);
        return;
    }
    char mfu[24] = "";
    if (isfinite(r->mfu)) {
        (void)snprintf(mfu, sizeof mfu, "  MFU %.0f %%", 100.0 * r->mfu);
    }
    (void)printf("%sstep %lld/%lld  loss %.4f  rate %.2e  %s tokens/s%s  %.0f MB  %s left",
                 session->redraws ? "\r\033[K" : "", (long long)r->step, (long long)r->steps, r->loss, r->rate,
                 count_text(rate, r->tokens_per_s), mfu, 1e-6 * r->memory, duration(left, r->left));
    session->has_unended = true;
    if (session->started > 0.0) {
        (void)printf("  %s(%.2f s after the start)%s", cli_dim(), carry_seconds() - session->started, cli_plain());
        session->started = 0.0;
    }
    if (!session->redraws) {
        end_line(session);
    }
    (void)fflush(stdout);
}

static void on_evaluation(void *user, const carry_train_evaluation *e) {
    train_session *session = user;
    session->last_exam = e->loss;
    if (session->common.json) {
        cli_json_open();
        cli_json_integer("step", e->step);
        cli_json_number("eval_loss", e->loss);
        cli_json_integer("eval_labels", e->labels);
        if (isfinite(e->accuracy)) {
            cli_json_number("accuracy", e->accuracy);
        }
        cli_json_close();
    } else {
        end_line(session);
        (void)printf("step %lld  held out: %sloss %.4f%s", (long long)e->step, cli_green(), e->loss, cli_plain());
        if (isfinite(e->accuracy)) {
            (void)printf("  %.2f %% right", 100.0 * e->accuracy);
        } else {
            (void)printf("  perplexity %.2f", exp(e->loss));
        }
        (void)putchar('\n');
    }
    (void)fflush(stdout);
}

static void on_metric(void *user, int64_t step, const char *name, double value) {
    train_store_metric(user, step, name, value);
}

static void on_note(void *user, int64_t step, const char *line) {
    train_session *session = user;
    (void)step;
    end_line(session);
    (void)fflush(stdout);
    (void)fprintf(stderr, "carry: %s\n", line);
}

void train_show_hooks(train_session *session) {
    session->redraws = !session->common.json && isatty(STDOUT_FILENO) != 0;
    session->last_loss = session->last_exam = NAN;
    session->hooks = (carry_train_hooks){.sink = {.user = session, .metric = on_metric, .note = on_note},
                                         .stop = cli_interrupted_in_training,
                                         .started = on_start,
                                         .report = on_report,
                                         .evaluated = on_evaluation,
                                         .user = session};
}

void train_show_end(train_session *session) {
    end_line(session);
    (void)fflush(stdout);
}

static void print_model(const train_session *session) {
    const carry_train_options *o = &session->options;
    const bool adapts = carry_train_has_adapter(o);
    if (o->save_every == 0) {
        (void)printf("no checkpoint was written (--save-every 0)\n");
        return;
    }
    (void)printf("the %s is in %s/latest", adapts ? "adapter" : "model", o->out);
    if (adapts && o->model[0] != '\0') {
        (void)printf(":\n  carry generate %s --adapter %s/latest -p \"...\"", o->model, o->out);
    } else if (!adapts && o->task[0] == '\0') {
        (void)printf(":\n  carry generate %s/latest -p \"...\"", o->out);
    }
    (void)putchar('\n');
}

void train_print_end(const train_session *session) {
    if (session->common.json) {
        return;
    }
    print_model(session);
    if (!session->unstored) {
        (void)printf("the loss curve:\n  carry report %lld -o report.html\n", (long long)session->run);
    }
}
