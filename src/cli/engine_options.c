/* Checks of the engine's options. */
#include "cli/engine_options.h"

#include <string.h>
#include <sys/stat.h>

#include "engine/state_types.h"

#define MOST_GUESSES 16 /* carry/engine.h */

bool cli_state_types_check(const char *kv_type, const char *state_type) {
    char shown[64];
    if (kv_type != NULL && !carry_state_types_is_kv(kv_type)) {
        (void)cli_refuse("--kv-type '%s': expected " CARRY_STATE_TYPES_KV, cli_shown(shown, kv_type));
        return false;
    }
    if (state_type != NULL && !carry_state_types_is_state(state_type)) {
        (void)cli_refuse("--state-type '%s': expected " CARRY_STATE_TYPES_STATE "%s", cli_shown(shown, state_type),
                         strcmp(state_type, "int8") == 0 ? "; rounding errors of 8-bit integers would add up" : "");
        return false;
    }
    return true;
}

bool cli_engine_check(const carry_engine_options *o) {
    char shown[64];
    struct stat about;
    if (!cli_state_types_check(o->kv_type, o->state_type)) {
        return false;
    }
    if (o->no_cache && (o->cache_device > 0 || o->cache_host > 0 || o->cache_dir != NULL || o->cache_dir_bytes > 0)) {
        (void)cli_refuse("--no-cache does not go with --cache-device, --cache-host, --cache-dir and --cache-dir-size");
        return false;
    }
    if (o->draft != NULL && strcmp(o->draft, "ngram") != 0 && strcmp(o->draft, "mtp") != 0 &&
        strcmp(o->draft, "none") != 0) {
        (void)cli_refuse("--draft '%s': expected ngram, mtp or none", cli_shown(shown, o->draft));
        return false;
    }
    if (o->draft_tokens > 0 && o->draft == NULL) {
        (void)cli_refuse("--draft-tokens needs --draft ngram or --draft mtp");
        return false;
    }
    if (o->draft_tokens > MOST_GUESSES) {
        (void)cli_refuse("--draft-tokens %lld: expected 1 to %d", (long long)o->draft_tokens, MOST_GUESSES);
        return false;
    }
    if (o->cache_dir_bytes > 0 && o->cache_dir == NULL) {
        (void)cli_refuse("--cache-dir-size needs --cache-dir");
        return false;
    }
    if (o->memory > 0 && o->cache_device > o->memory) {
        (void)cli_refuse("--cache-device %zu is more than --memory %zu, which it is part of", o->cache_device,
                         o->memory);
        return false;
    }
    if (o->cache_dir != NULL && stat(o->cache_dir, &about) == 0 && !S_ISDIR(about.st_mode)) {
        (void)cli_refuse("--cache-dir %s is not a folder", cli_shown(shown, o->cache_dir));
        return false;
    }
    return true;
}
