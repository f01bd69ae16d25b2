/* carry chat: a conversation in the terminal. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/chat_conversation.h"
#include "cli/chat_line.h"
#include "cli/engine_options.h"
#include "engine/engine_inside.h"

typedef struct chat_session {
    cli_common common;
    carry_ctx *ctx;
    carry_engine_options engine_options;
    carry_engine *engine;
    carry_model model; /* used until the engine takes it over */
    carry_chat chat;
    bool has_chat;
    carry_sampling sampling;
    int64_t tokens;
    const char *system, *dtype_name, *on, *adapter;
    bool thinks, thinks_not;
    carry_dtype dtype;
    char why[CARRY_MODEL_WHY];
    int64_t ends[CARRY_MODEL_ENDS + 3];
    int64_t end_count;
    chat_conversation conversation;
    chat_line line;
    bool is_over;
    char failure[256];   /* why the last answer failed */
    char complaint[512]; /* with --json: the error of the current line; "": none */
    bool has_answered;   /* the current line has an answer, which was printed */
} chat_session;

static volatile sig_atomic_t is_stopped;

static void stop(int number) {
    (void)number;
    is_stopped = 1;
}

/* Ctrl-C stops the answer and interrupts a read that waits for a line. */
static void catch_interrupt(void) {
    struct sigaction action = {.sa_handler = stop};
    (void)sigemptyset(&action.sa_mask);
    (void)sigaction(SIGINT, &action, NULL);
}

/* Prints an error, or keeps it for the JSON line. */
static void complain(chat_session *d, const char *text) {
    if (d->common.json) {
        (void)snprintf(d->complaint, sizeof d->complaint, "%s", text);
    } else {
        (void)fprintf(stderr, "carry: %s\n", text);
    }
}

static void report_failure(chat_session *d) {
    complain(d, carry_ctx_error(d->ctx));
}

static double rate_of(const carry_engine_event *end) {
    const double seconds = end->seconds - end->first_s;
    return end->tokens > 1 && seconds > 0.0 ? (double)(end->tokens - 1) / seconds : 0.0;
}

static void print_rates(const carry_engine_event *end) {
    (void)fprintf(stderr, "%s[%lld tokens, %.1f tokens/s; prompt of %lld tokens, %lld cached; first after %.2f s]%s\n",
                  cli_dim(), (long long)end->tokens, rate_of(end), (long long)end->prompt_tokens,
                  (long long)end->cached_tokens, end->first_s, cli_plain());
}

/* One JSON line for an answer. */
static void print_answer(chat_session *d, const carry_engine_event *end, const char *text) {
    cli_json_open();
    cli_json_text("role", "assistant");
    cli_json_text("content", text);
    cli_json_text("ended", carry_engine_reason_name(end->reason));
    if (d->failure[0] != '\0') {
        cli_json_text("error", d->failure);
    }
    cli_json_integer("messages", (int64_t)d->conversation.count);
    cli_json_integer("prompt_tokens", end->prompt_tokens);
    cli_json_integer("cached_tokens", end->cached_tokens);
    cli_json_integer("tokens", end->tokens);
    cli_json_number("first_s", end->first_s);
    cli_json_number("seconds", end->seconds);
    cli_json_number("tokens_per_s", rate_of(end));
    cli_json_close();
    d->has_answered = true;
}

/* Runs a request to its end. Prints the text as it arrives and appends it to `answer`. */
static bool run_request(chat_session *d, uint64_t id, carry_engine_event *end, char **answer) {
    size_t length = 0;
    bool is_cancelled = false;
    carry_engine_event event = {CARRY_INIT(carry_engine_event)};
    *answer = calloc(1, 1);
    for (bool is_busy = true; is_busy && *answer != NULL;) {
        if (carry_engine_step(d->engine, &is_busy) != CARRY_OK) {
            return false;
        }
        if (is_stopped && !is_cancelled) {
            carry_engine_cancel(d->engine, id);
            is_cancelled = is_busy = true;
        }
        while (carry_engine_next(d->engine, &event)) {
            char *grown = realloc(*answer, length + event.text_bytes + 1);
            if (grown == NULL) {
                return false;
            }
            *answer = grown;
            memcpy(grown + length, event.text, event.text_bytes);
            length += event.text_bytes;
            grown[length] = '\0';
            if (!d->common.json) {
                cli_print_text(event.text, event.text_bytes, d->line.is_terminal);
                (void)fflush(stdout);
            }
            if (event.token < 0) {
                *end = event;
                (void)snprintf(d->failure, sizeof d->failure, "%s", event.message);
            }
        }
    }
    return *answer != NULL;
}

/* Generates the model's answer to the messages so far. */
static void answer(chat_session *d) {
    char *prompt;
    size_t length;
    char *text = NULL;
    uint64_t id;
    carry_engine_event end = {CARRY_INIT(carry_engine_event)};
    const carry_thinking thinking = d->thinks       ? CARRY_THINKING_ON
                                    : d->thinks_not ? CARRY_THINKING_OFF
                                                    : CARRY_THINKING_AS_IS;
    if (chat_conversation_render(d->ctx, &d->conversation, &d->chat, thinking, false, &prompt, &length) != CARRY_OK) {
        report_failure(d);
        return;
    }
    const carry_engine_request request = {CARRY_INIT(carry_engine_request),
                                          .text = prompt,
                                          .text_bytes = length,
                                          .is_rendered = true,
                                          .tokens = d->tokens > 0 ? d->tokens : carry_engine_context(d->engine),
                                          .temperature = d->sampling.temperature,
                                          .top_k = d->sampling.top_k,
                                          .top_p = d->sampling.top_p,
                                          .min_p = d->sampling.min_p,
                                          .repetition = d->sampling.repetition,
                                          .seed = d->sampling.seed++,
                                          .logprobs = -1,
                                          .ends = d->ends,
                                          .end_count = d->end_count};
    is_stopped = 0;
    const bool is_done =
        carry_engine_submit(d->ctx, d->engine, &request, &id) == CARRY_OK && run_request(d, id, &end, &text);
    free(prompt);
    if (!is_done) {
        report_failure(d);
    } else {
        if (!d->common.json) {
            (void)fputs(is_stopped ? " ...\n" : "\n", stdout);
            (void)fflush(stdout);
        }
        if (!d->common.json && end.reason == CARRY_REASON_FAILED) {
            complain(d, d->failure);
        } else if (!d->common.json) {
            print_rates(&end);
        }
        (void)chat_conversation_add(&d->conversation, "assistant", text);
        if (d->common.json) {
            print_answer(d, &end, text);
        }
    }
    is_stopped = 0;
    free(text);
}

static void on_help(chat_session *d, const char *rest) {
    (void)rest;
    (void)fputs("/system [TEXT]  set or remove the system prompt\n"
                "/undo           remove the last question and its answer\n"
                "/retry          answer the last question again, by another seed\n"
                "/save FILE      save the messages to FILE and the state of the model to FILE.state\n"
                "/load FILE      go on from there\n"
                "/help, /quit    Ctrl-C stops an answer, Ctrl-D ends\n",
                d->common.json ? stderr : stdout);
}

static void on_quit(chat_session *d, const char *rest) {
    (void)rest;
    d->is_over = true;
}

static void on_system(chat_session *d, const char *rest) {
    if (!chat_conversation_system(&d->conversation, rest)) {
        complain(d, "out of memory");
    }
}

static void on_undo(chat_session *d, const char *rest) {
    (void)rest;
    if (!chat_conversation_remove(&d->conversation, "user")) {
        complain(d, "there is no question to remove");
    }
}

static void on_retry(chat_session *d, const char *rest) {
    (void)rest;
    const size_t count = d->conversation.count;
    if (count == 0 || strcmp(d->conversation.message[count - 1].role, "system") == 0) {
        complain(d, "there is no question to answer again");
        return;
    }
    if (strcmp(d->conversation.message[count - 1].role, "assistant") == 0) {
        (void)chat_conversation_remove(&d->conversation, "assistant");
    }
    answer(d);
}

static void on_save(chat_session *d, const char *rest) {
    if (rest[0] == '\0') {
        complain(d, "/save needs the name of a file");
    } else if (chat_conversation_save(d->ctx, &d->conversation, d->engine, &d->chat, rest) != CARRY_OK) {
        report_failure(d);
    } else if (!d->common.json) {
        (void)fprintf(stderr, "%s[saved: %s, %s.state]%s\n", cli_dim(), rest, rest, cli_plain());
    }
}

static void on_load(chat_session *d, const char *rest) {
    bool has_state;
    if (rest[0] == '\0') {
        complain(d, "/load needs the name of a file");
    } else if (chat_conversation_load(d->ctx, &d->conversation, d->engine, rest, &has_state) != CARRY_OK) {
        report_failure(d);
    } else if (!d->common.json) {
        (void)fprintf(stderr, "%s[%zu messages%s]%s\n", cli_dim(), d->conversation.count,
                      has_state ? " and their state" : "; their state is read again", cli_plain());
    }
}

typedef struct command {
    const char *name;
    void (*run)(chat_session *session, const char *rest);
} command;

static const command commands[] = {{"/help", on_help}, {"/quit", on_quit},   {"/exit", on_quit}, {"/system", on_system},
                                   {"/undo", on_undo}, {"/retry", on_retry}, {"/save", on_save}, {"/load", on_load}};

static void run_command(chat_session *d, const char *text) {
    const size_t length = strcspn(text, " ");
    const char *rest = text + length + strspn(text + length, " ");
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        if (strlen(commands[i].name) == length && memcmp(text, commands[i].name, length) == 0) {
            commands[i].run(d, rest);
            (void)fflush(stdout);
            return;
        }
    }
    char shown[64];
    char why[128];
    (void)snprintf(why, sizeof why, "'%s': unknown command; /help lists them", cli_shown(shown, text));
    complain(d, why);
}

/* One JSON line for a line of input that has no answer. */
static void print_line(chat_session *d, const char *text) {
    const bool is_command = text[0] == '/';
    if (!d->common.json || d->has_answered) {
        return;
    }
    cli_json_open();
    if (is_command) {
        cli_json_bytes("command", text, strcspn(text, " "));
    }
    if (d->complaint[0] != '\0') {
        cli_json_text("error", d->complaint);
    }
    cli_json_integer("messages", (int64_t)d->conversation.count);
    cli_json_close();
}

static void converse(chat_session *d) {
    while (!d->is_over && ferror(stdout) == 0) {
        const char *text;
        const chat_line_result result = chat_line_read(&d->line, "> ", &text);
        if (result == CHAT_LINE_ENDED) {
            return;
        }
        if (result == CHAT_LINE_CLEARED || text[strspn(text, " \t")] == '\0') {
            continue;
        }
        d->complaint[0] = d->failure[0] = '\0';
        d->has_answered = false;
        if (text[0] == '/') {
            run_command(d, text);
        } else if (chat_conversation_add(&d->conversation, "user", text)) {
            answer(d);
        } else {
            complain(d, "out of memory");
        }
        print_line(d, text);
    }
}

static carry_status open_chat(chat_session *d, const char *folder, int device) {
    CARRY_TRY(carry_model_open(d->ctx, &d->model, folder, device));
    CARRY_TRY(carry_model_adapt(&d->model, d->adapter));
    cli_choose_dtype(d->ctx, &d->model, d->dtype_name, &d->dtype, d->why);
    CARRY_TRY(carry_chat_open(d->ctx, &d->chat, d->model.tokenizer));
    d->has_chat = true;
    CARRY_TRY(carry_engine_adopt(d->ctx, &d->engine, &d->model, d->dtype, &d->engine_options));
    for (; d->end_count < d->engine->end_count; d->end_count++) {
        d->ends[d->end_count] = d->engine->ends[d->end_count];
    }
    if (d->chat.end >= 0) {
        d->ends[d->end_count++] = d->chat.end;
    }
    return CARRY_OK;
}

static int chat(chat_session *d, const char *folder) {
    int device;
    d->ctx = cli_open(&d->common);
    if (d->ctx == NULL || cli_device(d->ctx, d->on, &device) != CLI_DONE) {
        return CLI_IMPOSSIBLE;
    }
    if (carry_sampling_check(d->ctx, &d->sampling) != CARRY_OK || open_chat(d, folder, device) != CARRY_OK) {
        return cli_failed(d->ctx);
    }
    if (d->system != NULL && !chat_conversation_system(&d->conversation, d->system)) {
        return cli_refuse("out of memory");
    }
    cli_tell_dtype(d->dtype, d->why, d->common.json);
    catch_interrupt();
    chat_line_open(&d->line);
    d->line.is_terminal = d->line.is_terminal && !d->common.json;
    if (d->line.is_terminal) {
        (void)fprintf(stderr, "%s%s: /help lists the commands%s\n", cli_dim(), folder, cli_plain());
    }
    converse(d);
    return CLI_DONE;
}

static void close_session(chat_session *d) {
    chat_line_close(&d->line);
    chat_conversation_free(&d->conversation);
    if (d->has_chat) {
        carry_chat_close(&d->chat);
    }
    if (d->engine != NULL) {
        carry_engine_close(d->engine);
    } else {
        carry_model_close(&d->model);
    }
    carry_ctx_free(d->ctx);
}

static int run(int count, char **arguments) {
    chat_session d = {.dtype = CARRY_F32,
                      .engine_options = {CARRY_INIT(carry_engine_options), .sequences = 1},
                      .sampling = CLI_SAMPLING_DEFAULTS};
    const cli_option own[] = {
        {"system", 0, CLI_TEXT, &d.system, "TEXT", "the system prompt"},
        {"tokens", 'n', CLI_NUMBER, &d.tokens, "N", "tokens of an answer, at most (as the context allows)"},
        CLI_SAMPLING_OPTIONS(&d.sampling, &d.common.seed),
        {"think", 0, CLI_FLAG, &d.thinks, NULL, "think before the answer"},
        {"no-think", 0, CLI_FLAG, &d.thinks_not, NULL, "answer at once"},
        CLI_DTYPE_OPTION(&d.dtype_name),
        CLI_ENGINE_OPTIONS(&d.engine_options),
        CLI_ADAPTER_OPTION(&d.adapter),
        CLI_DEVICE_OPTION(&d.on),
        {0},
    };
    int code = CLI_IMPOSSIBLE;
    const int words = cli_parse(&cli_chat, count, arguments, own, &d.common);
    d.sampling.seed = (uint64_t)d.common.seed;
    if (words >= 0 && d.common.help) {
        code = CLI_DONE;
    } else if (words >= 0 && words != 1) {
        (void)cli_refuse("chat needs one model folder: carry chat MODEL");
    } else if (words == 1 && d.thinks && d.thinks_not) {
        (void)cli_refuse("--think and --no-think exclude each other");
    } else if (words == 1 && cli_dtype(d.dtype_name, &d.dtype) == CLI_DONE && cli_engine_check(&d.engine_options)) {
        code = chat(&d, arguments[0]);
    }
    close_session(&d);
    return code;
}

const cli_verb cli_chat = {
    .name = "chat",
    .arguments = "MODEL",
    .summary = "talk with a language model in the terminal",
    .details =
        "MODEL is a folder as carry generate takes it, with a chat template, or hf:OWNER/NAME after carry pull.\n"
        "Answers are printed as they come; tokens/s and the tokens of the prompt that were cached follow on\n"
        "standard error. Ctrl-C stops an answer, which stays in the conversation as far as it came. Ctrl-D ends.\n"
        "Lines that begin with / are commands: /system, /undo, /retry, /save, /load, /help, /quit. Without a\n"
        "terminal, every line of standard input is a message or a command.\n"
        "With --json every such line gives one line: of an answer content, ended, prompt_tokens, cached_tokens, "
        "tokens\n"
        "and times; of a command its name; error if it failed; and the number of messages.",
    .example = "carry chat model --system 'Answer briefly.'",
    .support = {.cpu = "f32 bf16 f16", .cuda = "f32 bf16"},
    .run = run,
};
