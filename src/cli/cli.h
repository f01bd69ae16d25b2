/* Shared by the verbs: options, the context, printing. A verb only parses options, calls the layers below and
   prints. */
#ifndef CARRY_CLI_CLI_H
#define CARRY_CLI_CLI_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "carry/carry.h"
#include "bench/support.h"

struct carry_model; /* engine/model_folder.h */

struct carry_recorder;

/* Exit codes (carry(1)). */
enum { CLI_DONE = 0, CLI_WRONG = 1, CLI_IMPOSSIBLE = 2 };

/* CLI_NUMBER: a whole number, 0 or more. CLI_POSITIVE: 1 or more. CLI_REAL: any finite number; the verb checks its
   range. CLI_SECONDS: a number above 0. CLI_TEXT: not empty. CLI_TEXTS: may be given several times, and may be empty.
   CLI_BYTES: 1 or more, such as "1000000", "512M" or "1.5G"; K, M, G and T are powers of 1,024. CLI_COUNT counts how
   often the option is given. */
typedef enum cli_kind {
    CLI_FLAG,
    CLI_COUNT,
    CLI_NUMBER,
    CLI_SECONDS,
    CLI_REAL,
    CLI_BYTES,
    CLI_TEXT,
    CLI_TEXTS,
    CLI_POSITIVE
} cli_kind;

typedef struct cli_texts {
    const char **text; /* capacity: the number of arguments */
    int count;
} cli_texts;

typedef struct cli_option {
    const char *name; /* without dashes */
    char letter;      /* 0: none */
    cli_kind kind;
    void *target;         /* bool *, int *, int64_t *, double *, double *, size_t *, const char **, cli_texts * */
    const char *argument; /* "N", for help; NULL for flags */
    const char *help;
} cli_option;

typedef struct cli_common {
    bool json, help;
    int verbose;
    int64_t threads, seed;
    double deadline; /* seconds; 0: the library's default */
    const char *kernels, *wisdom;
} cli_common;

typedef struct cli_verb {
    const char *name;
    const char *arguments; /* "PROBLEM..." */
    const char *summary;   /* one line, for carry --help */
    const char *details;   /* for carry VERB --help */
    const char *example;
    int (*run)(int count, char **arguments);
    bool on_ranks; /* every rank does part of its work (cli/ranks.h) */
    carry_support support;
    const struct cli_verb *other; /* a variant of the verb with its own options, such as train dit */
} cli_verb;

extern const cli_verb cli_list, cli_plan, cli_check, cli_bench;
/* Only with the lab. */
extern const cli_verb cli_run, cli_runs, cli_report, cli_profile, cli_climb, cli_job, cli_cards;
/* Only with training. */
extern const cli_verb cli_train, cli_train_dit, cli_generate, cli_eval, cli_tokenizer;
extern const cli_verb cli_stream, cli_pull, cli_serve, cli_chat, cli_quantise, cli_merge;
extern const cli_verb *const cli_verbs[]; /* the table in main.c, the only list; NULL at its end */

/* Parses options before, between and after the other words. The words that remain are moved to the front of
   `arguments`; returns their number, or -1 after printing a message. `own` may be NULL; an option list ends with a
   NULL name. --help prints the help and sets common->help. */
int cli_parse(const cli_verb *verb, int count, char **arguments, const cli_option *own, cli_common *common);

/* If `text` is a common option, such as --json, or --deadline of verbs that run on ranks, returns the number of
   arguments that it takes, including itself; else 0. */
int cli_common_takes(const char *text);

/* "carry VERB WORDS..." as typed, with quotes around words that are empty or contain blanks or special characters of
   the shell; for the run store. Call it before cli_parse, which moves the words. */
const char *cli_command(char *text, size_t size, const char *verb, int count, char **arguments);

/* A context with the common options, or NULL after printing a message. Each rank (cli/ranks.h) has its own context
   with its share of the threads; cli_open makes that of rank 0. */
carry_ctx *cli_open(const cli_common *common);
carry_ctx *cli_open_rank(const cli_common *common, int rank);

/* Parses --device: cpu, cuda or cuda:N. NULL: the first GPU, or the CPU without one. Returns CLI_DONE, or
   CLI_IMPOSSIBLE after printing a message. */
int cli_device(carry_ctx *ctx, const char *text, int *device);
/* "cpu", or "cuda:0, NVIDIA H200". */
#define CLI_DEVICE 128
const char *cli_device_name(char name[CLI_DEVICE], carry_ctx *ctx, int device);
#define CLI_ADAPTER_OPTION(target) \
    { "adapter", 0, CLI_TEXT, target, "DIR", "merge this LoRA adapter (PEFT's format) into the weights first" }
#define CLI_DEVICE_OPTION(target) \
    { "device", 0, CLI_TEXT, target, "NAME", "cpu, cuda or cuda:N (the first GPU if there is one)" }
/* Parses --dtype; NULL leaves *dtype unchanged. Returns CLI_DONE, or CLI_IMPOSSIBLE after printing a message. */
int cli_dtype(const char *text, carry_dtype *dtype);
/* Chooses the type that a model computes in, --dtype or the model's default, and writes the reason to `why`,
   CARRY_MODEL_WHY bytes (engine/model_folder.h). cli_tell_dtype prints both on standard error, once, before the
   first result, unless is_json. */
void cli_choose_dtype(carry_ctx *ctx, const struct carry_model *model, const char *text, carry_dtype *dtype, char *why);
void cli_tell_dtype(carry_dtype dtype, char *why, bool is_json);
#define CLI_DTYPE_OPTION(target)                                                                                      \
    {                                                                                                                 \
        "dtype", 0, CLI_TEXT, target, "TYPE",                                                                         \
            "type to compute in: f32, bf16 or f16 (bf16 if the weights are and its products are fast here, else f32)" \
    }
/* Adds ":device=..." to the problems that name no device, unless the device is the CPU, their default. wanted: the
   value of --device; a problem that cannot run on that device is refused. NULL: the default device of cli_device;
   problems that cannot run on it, or are for several ranks, are left unchanged. Changed entries of `problems` point
   into *memory, which the caller frees. Returns CLI_DONE, or CLI_IMPOSSIBLE after printing a message. */
int cli_device_problems(const cli_common *common, const char *wanted, int words, char **problems, char **memory);
const char *cli_problem_device(const char *problem); /* "cpu" or "cuda" */

/* Sets the recorder for the spans of every context (NULL: none). carry profile calls it for the verb that it runs. */
void cli_set_recorder(struct carry_recorder *recorder);
bool cli_has_recorder(void);

/* A word of the command line for use in a message: shortened, with control characters shown as ?. */
const char *cli_shown(char shown[64], const char *text);

/* Prints "carry: message" on standard error and returns CLI_IMPOSSIBLE. If several processes refuse, only rank 0
   prints. */
int cli_refuse(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Prints the context's last message in the same way, but each of several processes prints its own, with its rank. */
int cli_failed(carry_ctx *ctx);

/* Reads a stream to its end. The result is zero-terminated and freed by the caller; NULL after printing a message. */
char *cli_read_all(FILE *from, const char *name, size_t *length);

/* Replaces control characters, and so also the start of every escape sequence, with ?, in place. Returns text. */
char *cli_make_plain(char *text);

/* Checks that the run store exists, before it is opened for reading: opening would create it and hide a typo. path: the
   value of --store; NULL: CARRY_STORE; nothing is checked if neither is set. Returns CLI_DONE, or CLI_IMPOSSIBLE after
   printing a message. */
int cli_store_there(const char *path);

/* Handles Ctrl-C, SIGTERM and SIGHUP. The first signal asks the work to stop (cli_interrupted). If the work has not
   stopped after 1.2 seconds, the process is ended; but if it got some, yet at most half a second of processor time
   since the signal, because the machine is busy, it gets up to 10 more seconds. A second Ctrl-C or SIGTERM ends it at
   once. */
void cli_catch_interrupt(void);
bool cli_interrupted(void);
/* Changes the limit of 1.2 seconds, for work that ends cleanly by itself but may take longer; 0: no limit. */
void cli_limit_interrupt(double seconds);
/* As cli_interrupted, for training: also removes the time limit, so that the current step is finished and saved,
   however long it takes. */
bool cli_interrupted_in_training(void);

/* Flushes standard output. Returns `code`, or CLI_IMPOSSIBLE with a message if the output could not be written, for
   example on a full disk. */
int cli_finish(int code);

/* JSON output, one object per line: cli_json_open, fields, cli_json_close. NaN and infinities are written as null. */
void cli_json_open(void);
void cli_json_text(const char *key, const char *value);
void cli_json_bytes(const char *key, const char *value,
                    size_t length); /* the text may contain zero bytes; invalid UTF-8 becomes U+FFFD */
void cli_json_number(const char *key, double value);
void cli_json_integer(const char *key, int64_t value);
void cli_json_numbers(const char *key, const uint32_t *values, size_t count); /* writes a list */
void cli_json_bool(const char *key, bool value);
void cli_json_close(void);

/* "received 0.52 MB  exposed 0.7 %  waits 20 %  " for a problem of several ranks (ranks > 0), else "". */
#define CLI_TOGETHER 80
const char *cli_together(char text[CLI_TOGETHER], int ranks, double received, double exposed, double waited);
/* "overlap 0.98  slower stage 40.3 ms  " for a stream (slower_stage > 0), else "". */
const char *cli_overlapped(char text[CLI_TOGETHER], double overlap, double slower_stage);
/* "use  80 %  ", or "" if it is unknown; "error 1.2e-07", or "not compared". */
#define CLI_FIGURE 32
const char *cli_use(char text[CLI_FIGURE], double share);
const char *cli_error(char text[CLI_FIGURE], double error);

/* Escape sequences on a terminal without NO_COLOR, else "". */
const char *cli_bold(void);
const char *cli_green(void);
const char *cli_red(void);
const char *cli_dim(void);
const char *cli_plain(void);

/* Prints text on standard output; on a terminal without control characters, which could change its state. */
void cli_print_text(const char *text, size_t length, bool on_terminal);

#endif
