/* carry train. */
#include <stdlib.h>
#include <string.h>

#include "cli/cmd_train.h"
#include "cli/window.h"
#include "core/clock.h"
#include "core/error.h"
#include "ops/product/ceiling.h"
#include "train/checkpoint.h"

#define KEYS 80
#define OWN 8 /* number of options that are not keys, plus the end of the list */

/* The keys of the run given as options. Their texts are applied after the checkpoint and the file. */
typedef struct typed {
    const char *text[KEYS];
    bool flag[KEYS];
    cli_option option[KEYS + OWN];
} typed;

static void list_options(typed *t, train_session *session) {
    int n = 0;
    for (int i = 0; i < KEYS && carry_train_keys[i].name != NULL; i++) {
        const carry_train_key *key = &carry_train_keys[i];
        const bool is_flag = key->kind == CARRY_TRAIN_FLAG;
        t->option[n++] = (cli_option){
            key->name,     0,        is_flag ? CLI_FLAG : CLI_TEXT, is_flag ? (void *)&t->flag[i] : (void *)&t->text[i],
            key->argument, key->help};
    }
    const cli_option own[OWN] = {
        {"config", 0, CLI_TEXT, &session->config, "FILE",
         "read these options from a YAML file, one per line (batch: 8)"},
        {"resume", 0, CLI_FLAG, &session->resume, NULL, "continue the run in DIR (an argument, or --out)"},
        {"overwrite", 0, CLI_FLAG, &session->overwrite, NULL,
         "--out: allow a folder with other files, or a link to one"},
        {"store", 0, CLI_TEXT, &session->store_path, "FILE", "the run store ($CARRY_STORE, or .carry/store.db)"},
        {"no-store", 0, CLI_FLAG, &session->unstored, NULL, "store nothing in the run store; also applies to --resume"},
        {"name", 0, CLI_TEXT, &session->given_name, "NAME",
         "name of the stored run; NAME/ numbers the runs of a series"},
        CLI_DEVICE_OPTION(&session->device),
        {0},
    };
    memcpy(t->option + n, own, sizeof own);
}

static bool says_how_long(const char *name) {
    return strcmp(name, "steps") == 0 || strcmp(name, "tokens") == 0 || strcmp(name, "epochs") == 0;
}

/* Options of the command line override the file and the checkpoint. */
static int set_typed(train_session *session, const typed *t) {
    for (int i = 0; i < KEYS && carry_train_keys[i].name != NULL; i++) {
        const carry_train_key *key = &carry_train_keys[i];
        const char *value = t->flag[i] ? "true" : t->text[i];
        if (value == NULL || (strcmp(key->name, "out") == 0 && session->resume)) {
            continue;
        }
        if (session->resume && key->fixed) {
            const bool is_adapter = carry_train_has_adapter(&session->options);
            return cli_refuse("--%s cannot be changed when a run is resumed: start a new run from its weights with "
                              "%s %s/latest",
                              key->name, is_adapter ? "--model and --adapter" : "--model", session->options.out);
        }
        if (says_how_long(key->name)) {
            /* Overrides the length in the checkpoint or the file. */
            session->options.steps = session->options.tokens = 0;
            session->options.epochs = 0.0;
        }
        if (carry_train_set(session->ctx, &session->options, key->name, value) != CARRY_OK) {
            return cli_refuse("--%s", carry_ctx_error(session->ctx));
        }
    }
    return CLI_DONE;
}

/* True if this key was given on the command line. steps, tokens and epochs count as one key, since each sets the
   length. */
static bool is_typed(const typed *t, const char *name) {
    for (int i = 0; i < KEYS && carry_train_keys[i].name != NULL; i++) {
        const char *other = carry_train_keys[i].name;
        if ((t->text[i] != NULL || t->flag[i]) &&
            (strcmp(other, name) == 0 || (says_how_long(other) && says_how_long(name)))) {
            return true;
        }
    }
    return false;
}

/* A resumed run uses the options in its checkpoint: a file with different options is refused, not ignored. */
static int compare_config(train_session *session, const typed *t) {
    const carry_train_options run = session->options;
    int code = train_read_config(session, session->config);
    for (int i = 0; code == CLI_DONE && i < KEYS && carry_train_keys[i].name != NULL; i++) {
        const carry_train_key *key = &carry_train_keys[i];
        const char *of_run = (const char *)&run + key->offset;
        const char *of_file = (const char *)&session->options + key->offset;
        const bool is_same =
            key->kind == CARRY_TRAIN_TEXT ? strcmp(of_run, of_file) == 0 : memcmp(of_run, of_file, key->size) == 0;
        if (!is_same && !key->fixed && strcmp(key->name, "out") != 0 && !is_typed(t, key->name)) {
            code =
                cli_refuse("%s has another %s than the run in %s, which goes on with its own: give --%s to change it",
                           session->config, key->name, run.out, key->name);
        }
    }
    session->options = run;
    return code;
}

/* Adds the words of the command line as texts, after that of --data. */
static int add_data(train_session *session, int count, char **words) {
    char *data = session->options.data;
    size_t used = strlen(data);
    for (int i = 0; i < count; i++) {
        if (strchr(words[i], '\n') != NULL || used + strlen(words[i]) + 2 > sizeof session->options.data) {
            return cli_refuse("the paths of the texts are too long, or one contains a newline");
        }
        used +=
            (size_t)snprintf(data + used, sizeof session->options.data - used, "%s%s", used > 0 ? "\n" : "", words[i]);
    }
    return CLI_DONE;
}

void train_run_folder(char *folder) {
    for (size_t n = strlen(folder); n > 1 && folder[n - 1] == '/'; n = strlen(folder)) {
        folder[n - 1] = '\0';
    }
    char *last = strrchr(folder, '/');
    if (last != NULL && strcmp(last, "/latest") == 0) {
        *last = '\0';
    }
}

/* Finds the folder of the resumed run, and reads the options it was started with. */
static int take_checkpoint(train_session *session, const char *folder) {
    carry_found found;
    if (folder == NULL) {
        return cli_refuse("--resume needs the run's folder: carry train --resume DIR");
    }
    char out[CARRY_TRAIN_PATH];
    (void)snprintf(out, sizeof out, "%s", folder);
    train_run_folder(out);
    carry_status status = carry_checkpoint_find(session->ctx, &found, out, NULL); /* damage is reported later */
    if (status == CARRY_OK && strcmp(found.path, out) == 0) {
        carry_found_free(&found);
        return cli_refuse("%s is one checkpoint: --resume takes the folder of the run, --model starts from weights",
                          out);
    }
    if (status == CARRY_OK) {
        session->options = carry_train_options_default(); /* only the folder was needed from the file */
        status = carry_train_options_read(session->ctx, &session->options, carry_json_find(found.document, "options"));
        session->resumed_after = found.step;
        carry_found_free(&found);
    }
    (void)snprintf(session->options.out, sizeof session->options.out, "%s", out);
    return status == CARRY_OK ? CLI_DONE : cli_refuse("%s", carry_ctx_error(session->ctx));
}

/* Names the run after the text, without folders and extension, or after the task. */
static void name_run(train_session *session) {
    const carry_train_options *o = &session->options;
    char path[CARRY_TRAIN_PATHS];
    (void)snprintf(path, sizeof path, "%s", o->task[0] != '\0' ? o->task : o->data);
    path[strcspn(path, "\n")] = '\0';
    for (size_t n = strlen(path); n > 1 && path[n - 1] == '/'; n = strlen(path)) {
        path[n - 1] = '\0';
    }
    const char *slash = strrchr(path, '/');
    const char *from = slash != NULL ? slash + 1 : path;
    (void)snprintf(session->name, sizeof session->name, "%.60s", *from != '\0' ? from : "text");
    char *dot = strrchr(session->name, '.');
    if (dot != NULL && dot != session->name) {
        *dot = '\0';
    }
}

int train_check_out(const char *out, const char *verb, bool overwrite) {
    if (carry_run_folder_is_used(out)) {
        return cli_refuse("%s holds a run already: %s --resume %s goes on with it, or give another --out", out, verb,
                          out);
    }
    return overwrite || carry_run_folder_is_free(out)
               ? CLI_DONE
               : cli_refuse("--out %s is not an empty folder: give another, or --overwrite", out);
}

/* Chooses a new folder if none is given. A given folder must not hold another run. */
static int choose_out(train_session *session) {
    char *out = session->options.out;
    if (out[0] != '\0') {
        return session->resume ? CLI_DONE : train_check_out(out, "carry train", session->overwrite);
    }
    for (int i = 1; i < 10000; i++) {
        (void)snprintf(out, sizeof session->options.out, i == 1 ? "trained/%s" : "trained/%s-%d", session->name, i);
        if (carry_run_folder_is_free(out)) {
            return CLI_DONE;
        }
    }
    return cli_refuse("trained/ holds too many runs named %s: give --out", session->name);
}

static carry_status train_rank(void *user, carry_comm *comm) {
    train_session *session = user;
    carry_ctx *ctx = carry_comm_ctx(comm);
    double peak;
    carry_dtype type = CARRY_F32;
    /* An unknown type is refused later, with the other options. */
    (void)carry_dtype_parse(&type, session->options.dtype);
    CARRY_TRY(carry_barrier(comm)); /* ranks that share cores then also share them during the measurement */
    CARRY_TRY(carry_ceiling_product(ctx, session->hooks.device, type, &peak));
    CARRY_TRY(carry_all_reduce(comm, &peak, 1, CARRY_F64, CARRY_REDUCE_SUM));
    carry_train_hooks hooks = session->hooks; /* threads share the session */
    hooks.peak = peak;
    hooks.resume = session->resume;
    hooks.step = cli_get_window() != NULL ? cli_window_step : NULL;
    if (carry_comm_rank(comm) == 0) {
        session->peak = peak;
    }
    carry_status status = carry_train_run(comm, &session->options, &hooks);
    if (carry_comm_rank(comm) == 0) {
        train_show_end(session);
        train_store_end(session, status, status != CARRY_OK ? carry_ctx_error(ctx) : "");
    }
    return status;
}

/* Without --device, a training on several ranks, or with --method linear (a model without the delta rule), runs on the
   CPU. With --device cuda, ranks are assigned to the GPUs in turn. */
static int choose_device(train_session *session) {
    const bool needs_cpu = cli_ranks() != 1 || strcmp(session->options.method, carry_lm_recurrence_linear.name) == 0;
    const char *text = session->device == NULL && needs_cpu ? "cpu" : session->device;
    const int code = cli_device(session->ctx, text, &session->hooks.device);
    session->hooks.spreads = text != NULL && strcmp(text, "cuda") == 0;
    return code;
}

/* Fills in defaults: a preset without data trains on a task; a profile of some steps ends the training after them. */
static void fill_in(train_session *session) {
    carry_train_options *o = &session->options;
    const cli_window *window = cli_get_window();
    if (o->preset[0] != '\0' && o->data[0] == '\0' && o->task[0] == '\0') {
        (void)snprintf(o->task, sizeof o->task, "copy");
    }
    if (window != NULL && window->steps > 0 && o->steps == 0 && o->tokens == 0 && !(o->epochs > 0.0)) {
        o->steps = window->from + window->steps - 1;
    }
}

/* Refuses a profile window outside the steps to come. For a length in tokens or epochs this is found out later. */
static int check_window(const train_session *session) {
    const cli_window *window = cli_get_window();
    const int64_t last = session->options.steps;
    if (window != NULL && last > 0 && window->from > last) {
        return cli_refuse("--profile-from %lld: the training ends after step %lld", (long long)window->from,
                          (long long)last);
    }
    if (window != NULL && window->steps > 0 && window->from + window->steps - 1 <= session->resumed_after) {
        return cli_refuse("--profile-from %lld --profile-steps %lld: the training goes on after step %lld",
                          (long long)window->from, (long long)window->steps, (long long)session->resumed_after);
    }
    return CLI_DONE;
}

static int prepare(train_session *session, const typed *t, int words, char **arguments) {
    const char *folder = words > 0 ? arguments[0] : NULL;
    for (int i = 0; carry_train_keys[i].name != NULL && folder == NULL; i++) {
        folder = strcmp(carry_train_keys[i].name, "out") == 0 ? t->text[i] : NULL;
    }
    int code = session->config != NULL ? train_read_config(session, session->config) : CLI_DONE;
    if (code == CLI_DONE && session->resume) {
        code = take_checkpoint(session, folder != NULL                    ? folder
                                        : session->options.out[0] != '\0' ? session->options.out
                                                                          : NULL);
    }
    if (code == CLI_DONE && session->resume && session->config != NULL) {
        code = compare_config(session, t);
    }
    code = code == CLI_DONE ? set_typed(session, t) : code;
    code = code == CLI_DONE && !session->resume ? add_data(session, words, arguments) : code;
    if (code == CLI_DONE) {
        fill_in(session);
    }
    code = code == CLI_DONE ? check_window(session) : code;
    code = code == CLI_DONE ? train_check_download(session) : code;
    if (code == CLI_DONE && !session->resume && carry_train_options_used(session->ctx, &session->options) != CARRY_OK) {
        code = cli_refuse("--%s", carry_ctx_error(session->ctx));
    }
    if (code == CLI_DONE && carry_train_options_check(session->ctx, &session->options, cli_ranks()) != CARRY_OK) {
        code = cli_refuse("%s", carry_ctx_error(session->ctx));
    }
    code = code == CLI_DONE ? choose_device(session) : code;
    if (code == CLI_DONE) {
        name_run(session);
        code = choose_out(session);
    }
    return code;
}

static int run(int count, char **arguments) {
    if (count > 0 && strcmp(arguments[0], "dit") == 0) {
        return train_dit(count - 1, arguments + 1);
    }
    train_session *session = calloc(1, sizeof *session);
    typed *t = calloc(1, sizeof *t);
    int code = CLI_IMPOSSIBLE;
    if (session == NULL || t == NULL) {
        (void)cli_refuse("out of memory");
        goto done;
    }
    session->started = carry_seconds();
    session->options = carry_train_options_default();
    list_options(t, session);
    (void)cli_command(session->command, sizeof session->command, "train", count, arguments);
    const int words = cli_parse(&cli_train, count, arguments, t->option, &session->common);
    if (words < 0 || session->common.help) {
        code = words < 0 ? CLI_IMPOSSIBLE : CLI_DONE;
        goto done;
    }
    if (session->resume && words > 1) {
        (void)cli_refuse("--resume takes one folder, not %d", words);
        goto done;
    }
    if (carry_ctx_new(&session->ctx, &(carry_ctx_options){CARRY_INIT(carry_ctx_options), .threads = 1}) != CARRY_OK) {
        (void)cli_refuse("out of memory");
        goto done;
    }
    cli_catch_interrupt();
    train_show_hooks(session);
    code = prepare(session, t, words, arguments);
    code = code == CLI_DONE ? train_store_begin(session) : code;
    if (code == CLI_DONE) {
        const carry_status status = cli_on_ranks(&session->common, train_rank, session);
        train_store_end(session, status, ""); /* if no rank reached it */
        code = status == CARRY_OK ? CLI_DONE : CLI_IMPOSSIBLE;
        if (code == CLI_DONE && cli_process_rank() <= 0) {
            train_print_end(session);
        }
    }
done:
    if (session != NULL) {
        carry_ctx_free(session->ctx);
    }
    free(session);
    free(t);
    return code;
}

const cli_verb cli_train = {
    .name = "train",
    .arguments = "--data FILE | --task NAME | dit",
    .summary = "train or fine-tune a language model, or the video transformer of the demo",
    .details =
        "Trains on text (files and folders) or on a synthetic task, and writes checkpoints: folders step-N in the\n"
        "format of Hugging Face, with the state of the optimizer; latest points to the newest. With --data alone it\n"
        "trains a tokenizer of 512 to 4096 tokens and a Gated DeltaNet of 2 to 4 M parameters, in about two minutes\n"
        "on two cores, and holds out the last twentieth of the text for evaluation.\n"
        "\n"
        "--resume DIR continues a run that stopped, was interrupted (Ctrl-C finishes the step and saves) or was\n"
        "killed, with the same bits on the same ranks. Options given with it override the stored ones.\n"
        "\n"
        "carry --ranks N train ... and mpirun -n N carry train ... divide each batch among N ranks; --sequence-ranks\n"
        "P splits each row over P of them. MFU is relative to the fastest large product, measured at the start.\n"
        "\n"
        "--model DIR fine-tunes a published folder, of any family of carry list families. --data FILE.jsonl has one\n"
        "example a line, {\"prompt\": ..., \"completion\": ...} or {\"messages\": [...]}, of which completions and\n"
        "assistant turns are learned; examples are packed into rows and do not see each other. --lora-rank N trains\n"
        "an adapter in PEFT's format: carry generate DIR --adapter OUT/latest uses it, carry merge merges it.\n"
        "\n"
        "carry train dit ... trains a causal video transformer on moving shapes: see carry train dit --help.",
    .example = "carry train --model Qwen3.5-0.8B --data chats.jsonl --lora-rank 16 --rate 2e-4 --epochs 2",
    .support = {.cpu = "f32 bf16 f16",
                .cuda = "f32 bf16 f16",
                .cpu_backward = "f32 bf16 f16",
                .cuda_backward = "f32 bf16 f16",
                .ranks = "cpu cuda"},
    .other = &cli_train_dit,
    .run = run,
    .on_ranks = true,
};
