/* Options of the engine and of sampling, shared by the verbs that generate.

       carry_engine_options engine = {CARRY_INIT(carry_engine_options)};
       const cli_option own[] = {..., CLI_ENGINE_OPTIONS(&engine), {0}};
       if (cli_parse(...) >= 0 && cli_engine_check(&engine)) { ... } */
#ifndef CARRY_CLI_ENGINE_OPTIONS_H
#define CARRY_CLI_ENGINE_OPTIONS_H

#include "carry/engine.h"
#include "cli/cli.h"

/* kv, state: const char **. */
#define CLI_STATE_TYPE_OPTIONS(kv, state)                                                                         \
    {"kv-type", 0, CLI_TEXT, (kv), "TYPE", "store keys and values in f32, bf16, f16 or fp8 (that of --dtype)"}, { \
        "state-type", 0, CLI_TEXT, (state), "TYPE", "store recurrent states in f32 or bf16 (f32)"                 \
    }

/* to: carry_engine_options *. Fields without an option keep their value. */
#define CLI_ENGINE_OPTIONS(to)                                                                                           \
    {"sequences", 0, CLI_POSITIVE, &(to)->sequences, "N", "texts at once, at most (16)"},                                \
        {"context", 0, CLI_POSITIVE, &(to)->context, "N", "tokens of a prompt and its text, at most"},                   \
        {"memory", 0, CLI_BYTES, &(to)->memory, "BYTES", "memory for the states of all texts, as in 2G"},                \
        {"cache-device", 0, CLI_BYTES, &(to)->cache_device, "BYTES", "of it, for states of earlier prompts (the rest)"}, \
        {"cache-host", 0, CLI_BYTES, &(to)->cache_host, "BYTES", "host memory for states that leave the device (none)"}, \
        {"cache-dir",      0,     CLI_TEXT,                                                                              \
         &(to)->cache_dir, "DIR", "keep states of prompts here, and go on from those that begin alike"},                 \
        {"cache-dir-size", 0, CLI_BYTES, &(to)->cache_dir_bytes, "BYTES", "of the files in --cache-dir (16G)"},          \
        {"draft",      0,      CLI_TEXT,                                                                                 \
         &(to)->draft, "NAME", "guess next tokens and verify them together: ngram, mtp or none (none)"},                 \
        {"draft-tokens",      0,   CLI_POSITIVE,                                                                         \
         &(to)->draft_tokens, "N", "guesses of a text in a step, up to 16 (4; mtp: 2)"},                                 \
        CLI_STATE_TYPE_OPTIONS(&(to)->kv_type, &(to)->state_type),                                                       \
        {"no-cache", 0, CLI_FLAG, &(to)->no_cache, NULL, "read every prompt from its beginning"}, {                      \
        "same-bits", 0, CLI_FLAG, &(to)->same_bits, NULL,                                                                \
            "the same bits whatever runs beside a text and whatever is cached; slower"                                   \
    }

/* The defaults of CLI_SAMPLING_OPTIONS, as an initializer of carry_sampling. */
#define CLI_SAMPLING_DEFAULTS \
    { .temperature = 0.8, .top_p = 0.95, .repetition = 1.0 }

/* to: carry_sampling *; seed: int64_t *. */
#define CLI_SAMPLING_OPTIONS(to, seed)                                                                    \
    {"temperature",      0,   CLI_REAL,                                                                   \
     &(to)->temperature, "T", "0: always the likeliest token; 1: the probabilities of the model (0.8)"},  \
        {"top-k", 0, CLI_NUMBER, &(to)->top_k, "K", "sample from the K likeliest tokens (0: all)"},       \
        {"top-p",      0,   CLI_REAL,                                                                     \
         &(to)->top_p, "P", "sample from the likeliest tokens whose probabilities add up to P (0.95)"},   \
        {"min-p",      0,   CLI_REAL,                                                                     \
         &(to)->min_p, "P", "sample from tokens at least P times as probable as the likeliest (0: all)"}, \
        {"repetition-penalty", 0,   CLI_REAL,                                                             \
         &(to)->repetition,    "R", "make tokens less likely that already occurred (1: off)"},            \
    {                                                                                                     \
        "seed", 0, CLI_NUMBER, (seed), "N", "seed of the random choices (1)"                              \
    }

/* Returns false after printing a message if options are invalid or exclude each other, or if the path of --cache-dir is
   not a folder. A cache folder that cannot be written only causes a warning later. */
bool cli_engine_check(const carry_engine_options *options);
/* The same for the types of states; NULL: not given. */
bool cli_state_types_check(const char *kv_type, const char *state_type);

#endif
