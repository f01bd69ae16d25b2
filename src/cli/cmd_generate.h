/* Shared by the files of carry generate. */
#ifndef CARRY_CLI_CMD_GENERATE_H
#define CARRY_CLI_CMD_GENERATE_H

#include "cli/engine_options.h"
#include "engine/generate.h"
#include "tokenizer/chat.h"

typedef struct cli_generating {
    cli_common common;
    carry_ctx *ctx;
    cli_texts given, stops;
    const char *file, *system, *messages, *tools, *variables, *state_load, *state_save, *dtype_name;
    const char *regex, *schema_file;
    carry_dtype dtype;
    char why[CARRY_MODEL_WHY]; /* the reason for this type; "" once it has been printed */
    bool by_ids, is_chat, thinks, thinks_not, is_random;
    const char *quantise; /* the format of random weights; NULL: none */
    carry_engine_options engine;
    int64_t tokens;
    carry_sampling sampling;
    carry_model model;
    carry_prompt *prompts;
    carry_prompt *asked; /* as typed; for a chat, the user's last message */
    int64_t count, room;
    char **held; /* texts that the prompts point into, owned by the session */
    int64_t held_count;
    carry_continuation *results;
    int64_t current; /* index of the prompt whose text is being printed */
    size_t shown;    /* bytes or tokens of it that were printed; the prompt itself is printed once `headed` */
    bool headed, on_terminal;
    char *schema; /* the text of schema_file */
    double loading;
    const char *on; /* the device, as it was typed */
    const char *adapter;
} cli_generating;

/* Collects the prompts from -p, --file and --messages: texts, token ids, or rendered chats. Returns false after
   printing a message. */
bool cli_generate_gather(cli_generating *g);
/* Checks for options that exclude each other. Returns false after printing a message. */
bool cli_generate_check(const cli_generating *g);

#endif
