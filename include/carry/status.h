/* What every fallible function of Carry returns.

   0 is success. The context keeps, beside the status, one error message with the names and numbers that a person needs
   (carry_ctx_error) and the place in the source that refused (carry_ctx_error_place). */
#ifndef CARRY_STATUS_H
#define CARRY_STATUS_H

#if defined(_WIN32)
#define CARRY_API
#else
#define CARRY_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* X(name, text): the one list that gives the enum, the names and the texts. New entries go last: the numbers are ABI.
 */
#define CARRY_STATUS_LIST(X)                                                \
    X(OK, "done")                                                           \
    X(EARGUMENT, "an argument is not acceptable")                           \
    X(ESHAPE, "a tensor has the wrong shape")                               \
    X(EDTYPE, "a tensor has the wrong element type")                        \
    X(ESTRIDE, "a tensor has strides that this function does not take")     \
    X(EALIGN, "data is not aligned to its element type")                    \
    X(ESIZE, "a size overflows or exceeds a limit")                         \
    X(EMEMORY, "out of memory")                                             \
    X(EWORKSPACE, "the workspace is too small")                             \
    X(ERANGE, "values leave the range in which the algorithm holds")        \
    X(EUNSUPPORTED, "not available in this build or on this machine")       \
    X(ENOTFOUND, "no such thing")                                           \
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

/* "ESHAPE" and "a tensor has the wrong shape"; never NULL, also for a number that is no status. */
CARRY_API const char *carry_status_name(carry_status status);
CARRY_API const char *carry_status_text(carry_status status);

#ifdef __cplusplus
}
#endif
#endif
