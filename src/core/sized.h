/* Structs of the public interface that begin with their size (CARRY_INIT in carry/status.h), so that they can grow.
   The library copies them in and out with these functions only. */
#ifndef CARRY_CORE_SIZED_H
#define CARRY_CORE_SIZED_H

#include "carry/context.h"

/* Copies a struct that the caller filled to `own`, which has own_size bytes, and sets the size in `own` to own_size.
   If given is NULL, all other fields are zero. If it is smaller, the missing fields are zero. If it is larger,
   CARRY_EUNSUPPORTED unless the bytes beyond own_size are zero. CARRY_EARGUMENT if its size is below sizeof(size_t), as
   0 is, or above 65536. */
carry_status carry_sized_read(carry_ctx *ctx, void *own, size_t own_size, const void *given, const char *type);
/* Copies `own` to a struct of the caller, up to the size given in that struct; bytes beyond own_size become zero. */
carry_status carry_sized_write(carry_ctx *ctx, void *given, const void *own, size_t own_size, const char *type);

#define CARRY_SIZED_READ(ctx, type, own, given) carry_sized_read(ctx, own, sizeof(type), given, #type)
#define CARRY_SIZED_WRITE(ctx, type, given, own) carry_sized_write(ctx, given, own, sizeof(type), #type)

#endif
