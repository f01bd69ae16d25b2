/* The result of every function that can fail.

   0 is success. On failure the context also keeps an error message with the names and numbers concerned
   (carry_ctx_error) and the place in the source that reported it (carry_ctx_error_place).

   Structs that begin with a field `size` can grow in later versions without breaking programs that were compiled
   before. Begin their initialiser with CARRY_INIT:

       const carry_scan_options options = {CARRY_INIT(carry_scan_options), .chunk = 64};

   Fields that the program does not know are zero, which is the default. A struct of a newer version is accepted if the
   fields that this library does not know are zero, else refused with CARRY_EUNSUPPORTED; a size of 0 is refused with
   CARRY_EARGUMENT. In C++ before C++20, set `size` by assignment. Structs that the library fills (properties, counts)
   work the same way: it writes the fields that the program knows. */
#ifndef CARRY_STATUS_H
#define CARRY_STATUS_H

#if defined(_WIN32)
#define CARRY_API
#else
#define CARRY_API __attribute__((visibility("default")))
#endif

#define CARRY_INIT(type) .size = sizeof(type)

#ifdef __cplusplus
extern "C" {
#endif

/* X(name, text): the enum, the names and the texts come from this list. Add new entries at the end: the numbers are
   part of the ABI. */
#define CARRY_STATUS_LIST(X)                                                \
    X(OK, "done")                                                           \
    X(EARGUMENT, "invalid argument")                                        \
    X(ESHAPE, "a tensor has the wrong shape")                               \
    X(EDTYPE, "a tensor has the wrong element type")                        \
    X(ESTRIDE, "a tensor has strides that this function does not accept")   \
    X(EALIGN, "data is not aligned to its element type")                    \
    X(ESIZE, "a size overflows or exceeds a limit")                         \
    X(EMEMORY, "out of memory")                                             \
    X(EWORKSPACE, "the workspace is too small")                             \
    X(ERANGE, "a value is out of range")                                    \
    X(EUNSUPPORTED, "not available in this build or on this machine")       \
    X(ENOTFOUND, "not found")                                               \
    X(EFORMAT, "a file or a text is damaged or not in the expected format") \
    X(EIO, "reading or writing failed")                                     \
    X(EDEVICE, "the device reported an error")                              \
    X(EPEER, "another rank failed or is missing")                           \
    X(ETIMEOUT, "a deadline passed")                                        \
    X(EINTERRUPTED, "interrupted")

typedef enum carry_status {
#define X(name, text) CARRY_##name,
    CARRY_STATUS_LIST(X)
#undef X
} carry_status;

/* "ESHAPE" and "a tensor has the wrong shape"; never NULL, even for a number that is not a status. */
CARRY_API const char *carry_status_name(carry_status status);
CARRY_API const char *carry_status_text(carry_status status);

#ifdef __cplusplus
}
#endif
#endif
