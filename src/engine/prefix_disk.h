/* Cached prefixes in files: a folder with a file for each snapshot, which has what the snapshot adds to its nearest
   ancestor that has a file (engine/state_image.h). Files are named for the model, the number of tokens and their hash,
   so that a folder can serve several models. Everything in a file is checked before it is used.

   A folder that cannot be read or written, that is full, and a damaged file cost a warning and their prefixes, and
   never stop the engine. */
#ifndef CARRY_ENGINE_PREFIX_DISK_H
#define CARRY_ENGINE_PREFIX_DISK_H

#include "engine/prefix.h"

void carry_prefix_disk_open(carry_prefix *prefix); /* prefix->disk stays NULL after a warning */
void carry_prefix_disk_close(carry_prefix *prefix);
/* Nothing happens without a folder, and for a snapshot that has a file. */
void carry_prefix_disk_write(carry_prefix *prefix, carry_prefix_node *node);
/* Loads the snapshot after the most of these tokens into host memory: more than `least`, at most `limit`. */
bool carry_prefix_disk_load(carry_prefix *prefix, const int32_t *ids, int64_t limit, int64_t least);
void carry_prefix_disk_forget(carry_prefix *prefix, const carry_prefix_node *node); /* deletes its file */

#endif
