/* Cached prefixes in files: a folder with one file per snapshot. A file has the part of the snapshot that its nearest
   ancestor with a file does not have (engine/state_image.h). File names contain the model, the number of tokens and
   their hash, so that several models can share a folder. All contents of a file are checked before use. When the folder
   is full, the least recently used file on which no other file builds is deleted (prefix_evict.c).

   A folder that cannot be read or written or is full, and a damaged file, produce a warning and lose their prefixes,
   but never stop the engine. */
#ifndef CARRY_ENGINE_PREFIX_DISK_H
#define CARRY_ENGINE_PREFIX_DISK_H

#include "engine/prefix.h"

void carry_prefix_disk_open(carry_prefix *prefix); /* on failure it warns, and prefix->disk stays NULL */
void carry_prefix_disk_close(carry_prefix *prefix);
/* Does nothing without a folder. A snapshot that has a file is marked as just used. */
void carry_prefix_disk_write(carry_prefix *prefix, carry_prefix_node *node);
/* Loads the longest snapshot of these tokens into host memory, with a length above `least` and at most `limit`. */
bool carry_prefix_disk_load(carry_prefix *prefix, const int32_t *ids, int64_t limit, int64_t least);
void carry_prefix_disk_forget(carry_prefix *prefix, const carry_prefix_node *node); /* deletes its file */
/* Deletes the files of all prefixes of these tokens. */
void carry_prefix_disk_distrust(carry_prefix *prefix, const int32_t *ids, int64_t count);

#endif
