/* Shared by the verbs: options, the context, printing. A verb parses, calls the layers below and prints; nothing else.
 */
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

/* CLI_NUMBER: a whole number, 0 or more; CLI_POSITIVE: 1 or more. CLI_REAL: any finite number, for the verb to judge.
   CLI_TEXTS: every time it is given, empty ones too. CLI_BYTES: 1 or more, "1000000", "512M", "1.5G": units of 1,024.
 */
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
    char letter;      /* or 0 */
    cli_kind kind;
    void *target;         /* bool *, int *, int64_t *, double *, double *, size_t *, const char **, cli_texts * */
    const char *argument; /* "N", for help; NULL for flags */
    const char *help;
} cli_option;

typedef struct cli_common {
    bool json, help;
    int verbose;
    int64_t threads, seed;
    double deadline; /* seconds; 0: the library's */
    const char *kernels, *wisdom;
} cli_common;

typedef struct cli_verb {
    const char *name;
    const char *arguments; /* "PROBLEM..." */
    const char *summary;   /* one line, for carry --help */
    const char *details;   /* for carry VERB --help */
    const char *example;
    int (*run)(int count, char **arguments);
    bool on_ranks; /* its work is done by every rank (cli/ranks.h) */
    carry_support support;
    const struct cli_verb *other; /* another thing that it does, with options of its own: train dit */
} cli_verb;

extern const cli_verb cli_list, cli_plan, cli_check, cli_bench;
extern const cli_verb cli_run, cli_runs, cli_report, cli_profile, cli_climb, cli_job, cli_cards; /* with the lab */
extern const cli_verb cli_train, cli_train_dit, cli_generate, cli_eval, cli_tokenizer;           /* with training */
extern const cli_verb cli_stream, cli_pull, cli_serve, cli_chat, cli_quantise, cli_merge;
extern const cli_verb *const cli_verbs[]; /* main.c, the only list; NULL at its end */

/* Parses options before, between and after the words that remain, which are left in arguments; their number, or -1
   after a message. own may be NULL; both lists end with a NULL name. --help prints and sets common->help. */
int cli_parse(const cli_verb *verb, int count, char **arguments, const cli_option *own, cli_common *common);

/* How many arguments an option that every verb has takes, itself included; 0: text is no such option. */
int cli_common_takes(const char *text);

/* "carry VERB WORDS...", as typed, words with blanks in quotes; for the run store. Called before cli_parse, which moves
   the words. */
const char *cli_command(char *text, size_t size, const char *verb, int count, char **arguments);

/* A context after the common options; NULL after a message. On ranks (cli/ranks.h) there is one for each, with its
   share of the threads; cli_open makes rank 0's. */
carry_ctx *cli_open(const cli_common *common);
carry_ctx *cli_open_rank(const cli_common *common, int rank);

/* The device of --device: cpu, cuda or cuda:N. NULL: the first GPU, or the CPU without one. CLI_DONE, or after
   a message CLI_IMPOSSIBLE. */
int cli_device(carry_ctx *ctx, const char *text, int *device);
/* "cpu", or "cuda:0, NVIDIA H200". */
#define CLI_DEVICE 128
const char *cli_device_name(char name[CLI_DEVICE], carry_ctx *ctx, int device);
#define CLI_ADAPTER_OPTION(target) \
    { "adapter", 0, CLI_TEXT, target, "DIR", "merge this LoRA adapter (PEFT's format) into the weights first" }
#define CLI_DEVICE_OPTION(target) \
    { "device", 0, CLI_TEXT, target, "NAME", "cpu, cuda or cuda:N (the first GPU if there is one)" }
/* The type of --dtype to compute in; NULL leaves it as it is. CLI_DONE, or after a message CLI_IMPOSSIBLE. */
int cli_dtype(const char *text, carry_dtype *dtype);
/* The type that a model computes in, --dtype or the model's default, with the reason, CARRY_MODEL_WHY bytes
   (engine/model_folder.h). cli_tell_dtype prints both on standard error before the first result, once, unless is_json.
 */
void cli_choose_dtype(carry_ctx *ctx, const struct carry_model *model, const char *text, carry_dtype *dtype, char *why);
void cli_tell_dtype(carry_dtype dtype, char *why, bool is_json);
#define CLI_DTYPE_OPTION(target)                                                                                      \
    {                                                                                                                 \
        "dtype", 0, CLI_TEXT, target, "TYPE",                                                                         \
            "type to compute in: f32, bf16 or f16 (bf16 if the weights are and its products are fast here, else f32)" \
    }
/* Moves problems that name no device to that of --device. NULL: the default as above, for problems that can be planned
   there. The new texts of `problems` are in *memory, which the caller frees. CLI_DONE, or after a message
   CLI_IMPOSSIBLE. */
int cli_device_problems(const cli_common *common, const char *wanted, int words, char **problems, char **memory);
const char *cli_problem_device(const char *problem); /* "cpu" or "cuda" */

/* Where the spans of every context go (NULL: nowhere), which profile decides for the verb that it runs. */
void cli_set_recorder(struct carry_recorder *recorder);
bool cli_has_recorder(void);

/* A word of the command line for a message: cut short, control characters shown as ?. */
const char *cli_shown(char shown[64], const char *text);

/* "carry: message" on standard error; returns CLI_IMPOSSIBLE. Of several processes, which all refuse, rank 0 prints.
 */
int cli_refuse(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* The context's last message, likewise; each of several processes prints its own, with its rank. */
int cli_failed(carry_ctx *ctx);

/* All of a stream, with a 0 after its end, for the caller to free; NULL after a message. */
char *cli_read_all(FILE *from, const char *name, size_t *length);

/* Replaces control characters and escape sequences with ?, in place. Returns text. */
char *cli_make_plain(char *text);

/* CLI_IMPOSSIBLE with an error message if this store, which was named to be read, does not exist: opening it would
   create it and hide a typo. CLI_DONE for NULL. */
int cli_store_there(const char *path);

/* Ctrl-C, SIGTERM: the first asks the work to stop (cli_interrupted), and ends the process within two seconds where it
   does not; a second ends it at once. */
void cli_catch_interrupt(void);
bool cli_interrupted(void);
/* For work that ends cleanly by itself but may take longer; 0: no limit. */
void cli_limit_interrupt(double seconds);
/* As cli_interrupted. The steps of a training have begun: the one under way is finished and saved, however long it
   takes. */
bool cli_interrupted_in_training(void);

/* Flushes standard output; CLI_IMPOSSIBLE with an error message when what was printed did not arrive (a full disk),
 * else code. */
int cli_finish(int code);

/* JSON, one object per line: cli_json_open, fields, cli_json_close. NaN and infinities are null. */
void cli_json_open(void);
void cli_json_text(const char *key, const char *value);
void cli_json_bytes(const char *key, const char *value,
                    size_t length); /* 0 bytes included; invalid UTF-8 becomes U+FFFD */
void cli_json_number(const char *key, double value);
void cli_json_integer(const char *key, int64_t value);
void cli_json_numbers(const char *key, const uint32_t *values, size_t count); /* a list */
void cli_json_bool(const char *key, bool value);
void cli_json_close(void);

/* "received 0.52 MB  exposed 0.7 %  waits 20 %  ", of a problem of several ranks (ranks > 0), else "". */
#define CLI_TOGETHER 80
const char *cli_together(char text[CLI_TOGETHER], int ranks, double received, double exposed, double waited);
/* "overlap 0.98  slower stage 40.3 ms  ", of a stream (slower_stage > 0), else "". */
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

#endif
